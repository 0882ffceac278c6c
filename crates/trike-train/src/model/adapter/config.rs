//! Constants of an adapter.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use trike_core::{Bounds, OptionError};
use trike_nn::WeightName;

/// A linear layer of every block that gets an adapter; in JSON by peft's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LoraTarget {
    /// Query projection, `q_proj`.
    #[serde(rename = "q_proj")]
    Query,
    /// Key projection, `k_proj`.
    #[serde(rename = "k_proj")]
    Key,
    /// Value projection, `v_proj`.
    #[serde(rename = "v_proj")]
    Value,
    /// Output projection of attention, `o_proj`.
    #[serde(rename = "o_proj")]
    Output,
    /// Gate projection of the MLP, `gate_proj`.
    #[serde(rename = "gate_proj")]
    Gate,
    /// Up projection of the MLP, `up_proj`.
    #[serde(rename = "up_proj")]
    Up,
    /// Down projection of the MLP, `down_proj`.
    #[serde(rename = "down_proj")]
    Down,
}

impl LoraTarget {
    /// All targets, in the order of a block.
    pub const ALL: [Self; 7] =
        [Self::Query, Self::Key, Self::Value, Self::Output, Self::Gate, Self::Up, Self::Down];

    /// The name in peft.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Query => "q_proj",
            Self::Key => "k_proj",
            Self::Value => "v_proj",
            Self::Output => "o_proj",
            Self::Gate => "gate_proj",
            Self::Up => "up_proj",
            Self::Down => "down_proj",
        }
    }

    /// The target of a name; `None` for any other name.
    ///
    /// ```
    /// use trike_train::LoraTarget;
    ///
    /// assert_eq!(LoraTarget::from_name("q_proj"), Some(LoraTarget::Query));
    /// assert_eq!(LoraTarget::from_name("lm_head"), None);
    /// ```
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|target| target.name() == name)
    }

    /// The weight of a layer.
    #[must_use]
    pub fn weight(self, layer: usize) -> WeightName {
        WeightName::matrices(layer)[self as usize]
    }
}

/// Hyperparameters of LoRA (Hu et al., 2106.09685).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoraConfig {
    /// Rank of the products, at least 1; peft's `r`.
    pub rank: usize,
    /// Numerator of the scale of the products; peft's `lora_alpha`.
    pub alpha: f32,
    /// The matrices with an adapter, at least one; peft's `target_modules`.
    pub targets: BTreeSet<LoraTarget>,
    /// Whether products are scaled by `alpha / sqrt(rank)` (rsLoRA, Kalajdzievski, 2312.03732) instead of `alpha / rank`; peft's
    /// `use_rslora`.
    pub rank_stabilized: bool,
}

impl Default for LoraConfig {
    /// Rank 8 and scale 1, on all seven matrices of a block.
    fn default() -> Self {
        Self { rank: 8, alpha: 8.0, targets: LoraTarget::ALL.into(), rank_stabilized: false }
    }
}

impl LoraConfig {
    /// Checks that all numbers are in range and that there is a target.
    ///
    /// # Errors
    ///
    /// [`OptionError::OutOfRange`].
    pub fn validate(&self) -> Result<(), OptionError> {
        // Larger than any matrix, and small enough for exact sums.
        OptionError::check("rank", Bounds::at_least(1usize).at_most(1usize << 20), self.rank)?;
        OptionError::check("alpha", Bounds::over(0.0).at_most(1e6), self.alpha)?;
        OptionError::check("number of targets", Bounds::at_least(1usize), self.targets.len())
    }

    /// The factor of the product `B A`.
    ///
    /// ```
    /// use trike_train::LoraConfig;
    ///
    /// let config = LoraConfig { rank: 16, alpha: 32.0, ..LoraConfig::default() };
    /// assert_eq!(config.scale(), 2.0);
    /// assert_eq!(LoraConfig { rank_stabilized: true, ..config }.scale(), 8.0);
    /// ```
    #[must_use]
    pub fn scale(&self) -> f32 {
        let rank = self.rank.max(1) as f64;
        let divisor = if self.rank_stabilized { rank.sqrt() } else { rank };
        (f64::from(self.alpha) / divisor) as f32
    }
}
