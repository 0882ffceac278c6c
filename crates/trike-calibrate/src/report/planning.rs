//! Allocation of precision to layers.

use serde::{Deserialize, Serialize};

use crate::{Plan, Stored, TextSource};

/// Cost of each storage choice of a linear layer, of the embedding or of the head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sensitivity {
    /// Name of the layer.
    pub layer: String,
    /// Number of weights.
    pub weights: u64,
    /// Every storage choice, with its cost while the rest of the model is dense.
    pub choices: Vec<Measured>,
}

/// Cost of one storage choice of a layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Storage of the layer.
    #[serde(flatten)]
    pub stored: Stored,
    /// Bytes of the layer.
    pub bytes: u64,
    /// Kullback-Leibler divergence from the dense model due to this choice, in nats per token, before tuning: to second order, from
    /// the errors of the outputs and the gradients of the dense model.
    pub kl: f64,
}

/// A model made and measured during the search for a quality budget.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Trial {
    /// Bytes of the planned layers.
    pub bytes: u64,
    /// Bits per weight.
    pub bits_per_weight: f64,
    /// Predicted divergence: the sum of the sensitivities.
    pub predicted_kl: f64,
    /// Divergence on the text held out from calibration.
    pub kl: f64,
    /// Ratio of the perplexity on the held-out text to that of the dense model.
    pub ratio: f64,
    /// Standard error of the budgeted quantity, divergence or perplexity ratio.
    pub error: f64,
    /// Whether it is within the budget by at least 1.645 standard errors.
    pub met: bool,
}

/// The search for a plan within a budget.
#[derive(Clone, Debug, Serialize)]
pub struct Planning {
    /// The requested budget.
    pub budget: String,
    /// Source of the text on which sensitivities and models were measured.
    pub source: TextSource,
    /// Cost of each storage choice of each layer.
    pub sensitivities: Vec<Sensitivity>,
    /// Models made and measured during the search; the last one within the budget is the result.
    pub trials: Vec<Trial>,
    /// The chosen storage of each layer.
    pub plan: Plan,
}

impl Planning {
    /// The budget, and the text it was planned on.
    #[must_use]
    pub fn described(&self) -> String {
        match self.source {
            TextSource::Generated => format!("{}, on text that the dense model wrote itself", self.budget),
            TextSource::Given | TextSource::HeldOut => self.budget.clone(),
        }
    }
}
