//! How the precision of layers was allotted.

use serde::{Deserialize, Serialize};

use crate::{Plan, Stored};

/// The cost of each way to store a linear layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sensitivity {
    /// Name.
    pub layer: String,
    /// Number of weights.
    pub weights: u64,
    /// Every way that was tried, with its cost while the rest of the model is dense.
    pub choices: Vec<Measured>,
}

/// One way to store a layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// How the layer is stored.
    #[serde(flatten)]
    pub stored: Stored,
    /// Bytes that the layer takes.
    pub bytes: u64,
    /// Kullback-Leibler divergence from the dense model that it causes, in nats per token.
    pub kl: f64,
}

/// A model that was made on the way to a budget of quality.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Trial {
    /// Bytes of the planned layers.
    pub bytes: u64,
    /// Bits per weight.
    pub bits_per_weight: f64,
    /// Divergence that the sensitivities add up to.
    pub predicted_kl: f64,
    /// Divergence on the text that was kept out of calibration.
    pub kl: f64,
    /// Perplexity over the dense model's on that text.
    pub ratio: f64,
    /// Standard error of the one of the two that the budget is about.
    pub error: f64,
    /// Whether it meets the budget, by 1.645 standard errors.
    pub met: bool,
}

/// From a budget to a plan.
#[derive(Clone, Debug, Serialize)]
pub struct Planning {
    /// What was asked for.
    pub budget: String,
    /// What each way to store each layer costs.
    pub sensitivities: Vec<Sensitivity>,
    /// The models that were made and measured on the way, the last good one of which is the result.
    pub trials: Vec<Trial>,
    /// How each layer is stored.
    pub plan: Plan,
}
