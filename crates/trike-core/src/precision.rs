//! Number formats of activations and of cached keys and values.

use trike_trit::GroupSize;

/// Number format of the activations that are multiplied with ternary weights; int8 and dense weights always compute in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActivationPrecision {
    /// Exact: the values of each token are converted to fixed point, four signed bytes per value, with a step of at most
    /// `2^-29` of the token's largest magnitude, and the products are accumulated in integers. Values of at least `2^-5` of
    /// the largest magnitude are exact, and nothing is rounded before the scales. (If the largest magnitude of a token is
    /// below `2^-90`, the step is `2^-120`.)
    F32,
    /// The values of each token are converted to fixed point, two signed bytes per value, with a step of at most `2^-13` of
    /// the token's largest magnitude: finer than f16 for values that contribute to a sum, at half the work of
    /// [`F32`](Self::F32).
    Int16,
    /// One factor per token: `s = 127 / max(max|x|, 1e-5)`, `code = round(x * s)` (to nearest even), clamped to
    /// `-128..=127`. BitNet models are trained with this.
    Int8PerToken,
    /// One factor per group of columns, with the same formula.
    Int8PerGroup(GroupSize),
}

impl ActivationPrecision {
    /// Signed bytes per value (= rows of codes per token).
    pub fn slices(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Int16 => 2,
            Self::Int8PerToken | Self::Int8PerGroup(_) => 1,
        }
    }

    /// Columns that share a factor; `None` for one factor per token.
    pub fn group(self) -> Option<usize> {
        match self {
            Self::Int8PerGroup(size) => Some(size.get()),
            Self::F32 | Self::Int16 | Self::Int8PerToken => None,
        }
    }
}

/// Number format of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvPrecision {
    /// Four bytes, exact.
    F32,
    /// Two bytes; accumulation stays f32.
    F16,
    /// One signed byte per element and one f32 scale per head and position, for keys and for values:
    /// `s = max|x| / 127`, `code = round(x / s)` (to nearest even). Accumulation stays f32. On the host only.
    Int8,
}

impl KvPrecision {
    /// Bytes of the key (or of the value) of one head at one position, with its scale.
    ///
    /// ```
    /// use trike_core::KvPrecision;
    ///
    /// let bytes = [KvPrecision::F32, KvPrecision::F16, KvPrecision::Int8].map(|p| p.bytes_per_head(128));
    /// assert_eq!(bytes, [512, 256, 132]);
    /// ```
    pub fn bytes_per_head(self, head_dim: usize) -> usize {
        match self {
            Self::F32 => 4 * head_dim,
            Self::F16 => 2 * head_dim,
            Self::Int8 => head_dim + size_of::<f32>(),
        }
    }

    /// `f32`, `f16` or `int8`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Int8 => "int8",
        }
    }
}
