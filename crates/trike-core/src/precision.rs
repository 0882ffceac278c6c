//! Number formats of activations and of cached keys and values.

use trike_trit::GroupSize;

/// Number format of the activations that are multiplied with ternary weights. Dense weights always compute in f32; int8
/// weights do on devices, and on the host they are multiplied with 16-bit activations for every format but
/// [`F32`](Self::F32).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

/// How a backend chooses the [`ActivationPrecision`] of each ternary layer.
///
/// ```
/// use trike_core::{ActivationPolicy, ActivationPrecision};
/// use trike_trit::GroupSize;
///
/// let policy = ActivationPolicy::default();
/// assert_eq!(policy.precision(None), ActivationPrecision::Int8PerToken);
/// let g64 = GroupSize::G64;
/// assert_eq!(policy.precision(Some(g64)), ActivationPrecision::Int8PerGroup(g64));
/// let exact = ActivationPolicy::from(ActivationPrecision::F32);
/// assert_eq!(exact.precision(Some(g64)), ActivationPrecision::F32);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ActivationPolicy {
    /// Int8: one factor per token for weights with one scale per row or tensor; for weights with scales per group, one factor
    /// per group of the same size.
    #[default]
    Int8,
    /// The same precision for every layer.
    Fixed(ActivationPrecision),
}

impl ActivationPolicy {
    /// The precision for weights with scales per `group` of columns; `None` = one scale per row or tensor.
    pub fn precision(self, group: Option<GroupSize>) -> ActivationPrecision {
        match (self, group) {
            (Self::Int8, None) => ActivationPrecision::Int8PerToken,
            (Self::Int8, Some(group)) => ActivationPrecision::Int8PerGroup(group),
            (Self::Fixed(precision), _) => precision,
        }
    }
}

impl From<ActivationPrecision> for ActivationPolicy {
    fn from(precision: ActivationPrecision) -> Self {
        Self::Fixed(precision)
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
    /// `s = max|x| / 127`, `code = round(x / s)` (to nearest even). Accumulation stays f32. On a device the head dimension must be a
    /// multiple of 4.
    Int8,
    /// Four bits per element and one f32 scale per head and position, for keys and for values. The elements of a head are first
    /// mixed by the normalized Hadamard transform `H` of its largest power-of-two blocks, which spreads outliers:
    /// `s = max|H x| / 15`, and the codes are the nearest of the sixteen odd integers from -15 to 15 to `H x / s`. On the host only.
    Int4,
    /// Keys as in [`Int8`](Self::Int8), values as in [`Int4`](Self::Int4). On the host only.
    Int8Int4,
}

impl KvPrecision {
    /// All precisions.
    pub const ALL: [Self; 5] = [Self::F32, Self::F16, Self::Int8, Self::Int4, Self::Int8Int4];

    /// The precision of the keys: this one, but for [`Int8Int4`](Self::Int8Int4).
    #[must_use]
    pub const fn key(self) -> Self {
        match self {
            Self::Int8Int4 => Self::Int8,
            Self::F32 | Self::F16 | Self::Int8 | Self::Int4 => self,
        }
    }

    /// The precision of the values: this one, but for [`Int8Int4`](Self::Int8Int4).
    #[must_use]
    pub const fn value(self) -> Self {
        match self {
            Self::Int8Int4 => Self::Int4,
            Self::F32 | Self::F16 | Self::Int8 | Self::Int4 => self,
        }
    }

    /// Bytes of the key and the value of one head at one position, with their scales.
    ///
    /// ```
    /// use trike_core::KvPrecision;
    ///
    /// let bytes = KvPrecision::ALL.map(|precision| precision.bytes_per_position(128));
    /// assert_eq!(bytes, [1024, 512, 264, 136, 200]);
    /// // The last byte of an odd number of elements has one code.
    /// assert_eq!(KvPrecision::Int4.bytes_per_position(5), 2 * (3 + 4));
    /// ```
    pub fn bytes_per_position(self, head_dim: usize) -> usize {
        let one = |precision| match precision {
            Self::F32 => 4 * head_dim,
            Self::F16 => 2 * head_dim,
            Self::Int8 | Self::Int8Int4 => head_dim + size_of::<f32>(),
            Self::Int4 => head_dim.div_ceil(2) + size_of::<f32>(),
        };
        one(self.key()) + one(self.value())
    }

    /// `f32`, `f16`, `int8`, `int4` or `int8-int4`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
            Self::Int8Int4 => "int8-int4",
        }
    }

    /// The precision with this [`name`](Self::name).
    ///
    /// ```
    /// use trike_core::KvPrecision;
    ///
    /// assert_eq!(KvPrecision::named("int8-int4"), Some(KvPrecision::Int8Int4));
    /// assert_eq!(KvPrecision::named("int2"), None);
    /// ```
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|precision| precision.name() == name)
    }
}
