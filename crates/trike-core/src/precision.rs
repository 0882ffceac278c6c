//! Number formats of activations and of cached keys and values.

use trike_trit::GroupSize;

/// The numbers in which ternary weights meet their activations; int8 and dense weights always compute in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActivationPrecision {
    /// The exact path: each token becomes a fixed-point number of four signed bytes per value, whose step is at most
    /// `2^-29` of the token's largest magnitude, and the products are summed in integers. Values within `2^-5` of the
    /// largest are exact, and nothing is rounded before the scales. (A token whose largest magnitude lies below `2^-90` keeps
    /// steps of `2^-120`.)
    F32,
    /// Each token becomes a fixed-point number of two signed bytes per value, whose step is at most `2^-13` of the token's
    /// largest magnitude: finer than f16 for whatever matters in a sum, at half the work of [`F32`](Self::F32).
    Int16,
    /// One factor per token: `s = 127 / max(max|x|, 1e-5)`, `code = round(x * s)` with halves to even, clamped to
    /// `-128..=127`. BitNet models were trained with this.
    Int8PerToken,
    /// One factor per group of columns, computed in the same way.
    Int8PerGroup(GroupSize),
}

impl ActivationPrecision {
    /// Signed bytes per value: the rows of codes per token.
    pub fn slices(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Int16 => 2,
            Self::Int8PerToken | Self::Int8PerGroup(_) => 1,
        }
    }

    /// Columns that share a factor, or `None` when a whole token does.
    pub fn group(self) -> Option<usize> {
        match self {
            Self::Int8PerGroup(size) => Some(size.get()),
            Self::F32 | Self::Int16 | Self::Int8PerToken => None,
        }
    }
}

/// The type of cached keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvPrecision {
    /// Four bytes, exact.
    F32,
    /// Two bytes; accumulation stays f32.
    F16,
}

impl KvPrecision {
    /// Bytes per element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }
}
