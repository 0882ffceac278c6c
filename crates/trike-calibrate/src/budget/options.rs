//! Budgets, and the candidates of a plan.

use std::fmt;

use trike_core::{Bounds, OptionError};
use trike_llm::{LlmError, ModelFile};
use trike_trit::{Granularity, GroupSize, MAX_DEPTH};

use crate::{CalibrateError, ConfigError};

/// Budget of a quantized model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// Perplexity ratio to the dense model, on text used neither for calibration nor for planning.
    PerplexityRatio(f64),
    /// Kullback-Leibler divergence from the dense model, in nats per token.
    Divergence(f64),
    /// Bits per weight over the linear layers of the blocks, including scales.
    Bits(f64),
    /// Total bytes of all tensors.
    Bytes(u64),
}

/// The budget of a plan, and its ternary candidates; int8 and unchanged layers are always candidates.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PlanOptions {
    /// The budget.
    pub budget: Budget,
    /// Largest number of planes per layer.
    pub planes: usize,
    /// Candidate granularities of scales.
    pub groups: Vec<Granularity>,
    /// Maximum number of trial quantizations for a quality budget; with 0 the first plan is the result, without a check of the
    /// budget.
    pub trials: usize,
    /// Whether to accept the closest model if no trial meets a quality budget, instead of returning an error.
    pub nearest: bool,
    /// Whether to use the planes of the configuration in every layer if the text is too short for a search, instead of returning an
    /// error.
    pub uniform: bool,
    /// Whether embedding and head are in the plan, as int8 or unchanged, unless the configuration decides that.
    pub head: bool,
}

/// Default perplexity ratio.
const RATIO: f64 = 1.02;
/// Default maximum number of trials.
const TRIALS: usize = 3;
/// Number of weights in the blocks above which there are no trials by default: each would take hours, with both models in memory.
const LARGE: u64 = 400_000_000;

impl PlanOptions {
    /// Up to four planes (more would be as large as int8) and one scale per 32, 64 or 128 weights or per row; up to six trials, of
    /// which one must meet the budget.
    #[must_use]
    pub fn new(budget: Budget) -> Self {
        let sizes = [GroupSize::G32, GroupSize::G64, GroupSize::G128];
        let groups = sizes.map(Granularity::Group).into_iter().chain([Granularity::Row]).collect();
        Self { budget, planes: 4, groups, trials: 6, nearest: false, uniform: false, head: true }
    }

    /// The default options for a model: a perplexity ratio of 1.02, where the closest of three trials is accepted. A model with
    /// more than 400 million weights in its blocks is planned from sensitivities alone, and a text too short for a search is not an
    /// error.
    ///
    /// # Errors
    ///
    /// If a tensor's description cannot be read.
    pub fn unasked(input: &ModelFile) -> Result<Self, LlmError> {
        let blocks = input.weights().into_iter().filter(|name| name.is_block_matrix());
        let weights: u64 =
            blocks.map(|name| Ok(input.info(name)?.elements())).sum::<Result<_, LlmError>>()?;
        let trials = if weights > LARGE { 0 } else { TRIALS };
        Ok(Self::new(Budget::PerplexityRatio(RATIO))
            .with_trials(trials)
            .with_nearest(true)
            .with_uniform(true))
    }

    /// Sets [`budget`](Self::budget).
    #[must_use]
    pub fn with_budget(self, budget: Budget) -> Self {
        Self { budget, ..self }
    }

    /// Sets [`planes`](Self::planes).
    #[must_use]
    pub fn with_planes(self, planes: usize) -> Self {
        Self { planes, ..self }
    }

    /// Sets [`groups`](Self::groups).
    #[must_use]
    pub fn with_groups(self, groups: impl Into<Vec<Granularity>>) -> Self {
        Self { groups: groups.into(), ..self }
    }

    /// Sets [`trials`](Self::trials).
    #[must_use]
    pub fn with_trials(self, trials: usize) -> Self {
        Self { trials, ..self }
    }

    /// Sets [`nearest`](Self::nearest).
    #[must_use]
    pub fn with_nearest(self, nearest: bool) -> Self {
        Self { nearest, ..self }
    }

    /// Sets [`uniform`](Self::uniform).
    #[must_use]
    pub fn with_uniform(self, uniform: bool) -> Self {
        Self { uniform, ..self }
    }

    /// Sets [`head`](Self::head).
    #[must_use]
    pub fn with_head(self, head: bool) -> Self {
        Self { head, ..self }
    }

    pub(super) fn validate(&self) -> Result<(), CalibrateError> {
        OptionError::check("planes", Bounds::at_least(1usize).at_most(MAX_DEPTH), self.planes)?;
        if self.groups.is_empty() {
            return Err(ConfigError::PlanGroups.into());
        }
        self.budget.validate()
    }
}

impl Budget {
    fn validate(&self) -> Result<(), CalibrateError> {
        let (budget, got) = match *self {
            Self::PerplexityRatio(got) if got.is_finite() && got <= 1.0 => {
                return Err(ConfigError::PerplexityRatio { got }.into());
            }
            Self::PerplexityRatio(got) => ("perplexity ratio", got),
            Self::Divergence(got) => ("divergence", got),
            Self::Bits(got) => ("bits per weight", got),
            Self::Bytes(got) => ("bytes", got as f64),
        };
        Ok(OptionError::check(budget, Bounds::over(0.0), got)?)
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PerplexityRatio(ratio) => {
                write!(f, "a perplexity of at most {ratio} times the dense model's")
            }
            Self::Divergence(nats) => write!(f, "a divergence of at most {nats} nats per token"),
            Self::Bits(bits) => write!(f, "at most {bits} bits per weight"),
            Self::Bytes(bytes) => write!(f, "at most {bytes} bytes"),
        }
    }
}
