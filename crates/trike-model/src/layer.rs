//! What a single layer consists of.

use trike_core::GatedActivation;

/// The parts of a layer's block. [`block`](fn@crate::block) has one arm for each variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSpec {
    /// The first half of the block, which mixes positions.
    pub mixer: Mixer,
    /// The second half, which treats positions separately.
    pub mlp: Mlp,
}

/// The first half of a block: an operation over the positions of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixer {
    /// Softmax attention with a KV cache.
    Attention(AttentionLayer),
}

/// What differs between the attention layers of a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionLayer {
    /// Positions that a query attends to, its own included; all when `None`.
    pub window: Option<usize>,
    /// Whether queries and keys are rotated (RoPE).
    pub rope: bool,
}

/// The second half of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mlp {
    /// `D (f(G x) * U x)`
    Gated(GatedActivation),
}

/// A subset of the layers of a decoder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LayerSet {
    /// All layers.
    #[default]
    All,
    /// These layers, in increasing order.
    Listed(Vec<usize>),
}

impl LayerSet {
    /// The layers whose flag is set.
    ///
    /// ```
    /// use trike_model::LayerSet;
    ///
    /// assert_eq!(LayerSet::from_flags([true, true]), LayerSet::All);
    /// assert_eq!(LayerSet::from_flags([false, true, false]), LayerSet::Listed(vec![1]));
    /// ```
    #[must_use]
    pub fn from_flags(flags: impl IntoIterator<Item = bool>) -> Self {
        let flags: Vec<bool> = flags.into_iter().collect();
        if flags.iter().all(|&is_in| is_in) {
            return Self::All;
        }
        Self::Listed((0..flags.len()).filter(|&layer| flags[layer]).collect())
    }

    /// Whether the layer is in the set.
    #[must_use]
    pub fn contains(&self, layer: usize) -> bool {
        match self {
            Self::All => true,
            Self::Listed(layers) => layers.contains(&layer),
        }
    }

    /// A listed layer that a decoder of `layers` layers lacks.
    pub(crate) fn beyond(&self, layers: usize) -> Option<usize> {
        match self {
            Self::All => None,
            Self::Listed(listed) => listed.iter().copied().find(|&layer| layer >= layers),
        }
    }
}
