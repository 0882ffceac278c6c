//! GGUF tensor types: the types that Trike reads and writes, and the names of the others.

use std::fmt;

use trike_trit::GroupSize;

use crate::{StoredType, TensorInfo};

/// A GGUF tensor type that Trike reads; the [writable](Self::is_writable) ones it also writes.
///
/// `Q2_0` has two block sizes under the same id; see [`Gguf`](crate::Gguf) for how the reader distinguishes them.
///
/// ```
/// use trike_format::GgufType;
///
/// let t = GgufType::Tq2_0;
/// assert_eq!((t.id(), t.block(), t.block_bytes()), (35, 256, 66));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GgufType {
    /// Four bytes per weight.
    F32,
    /// Two bytes per weight.
    F16,
    /// Two bytes per weight, with the exponent range of f32.
    Bf16,
    /// 32 int8 codes and an f16 scale in 34 bytes.
    Q8_0,
    /// 256 trits and an f16 scale in 54 bytes.
    Tq1_0,
    /// 256 two-bit codes and an f16 scale in 66 bytes.
    Tq2_0,
    /// Two-bit codes and an f16 scale, 64 weights in 18 bytes, as in llama.cpp.
    Q2_0G64,
    /// Two-bit codes and an f16 scale, 128 weights in 34 bytes, in PrismML's files.
    Q2_0G128,
    /// The blocks of [`Q2_0G128`](Self::Q2_0G128) under a separate id, in PrismML's files.
    Pq2_0,
    /// 128 trits and an f16 scale in 28 bytes, in PrismML's files.
    Ptq1_0,
    /// 128 two-bit codes in 32 bytes and one f32 scale for the tensor, in Microsoft's files.
    I2S,
    /// 32 four-bit codes and an f16 scale in 18 bytes.
    Q4_0,
    /// 32 four-bit codes, an f16 scale and an f16 minimum in 20 bytes.
    Q4_1,
    /// 32 five-bit codes and an f16 scale in 22 bytes.
    Q5_0,
    /// 32 five-bit codes, an f16 scale and an f16 minimum in 24 bytes.
    Q5_1,
    /// 256 four-bit codes with a scale and a minimum per 32 weights, in 144 bytes.
    Q4K,
    /// 256 five-bit codes with a scale and a minimum per 32 weights, in 176 bytes.
    Q5K,
    /// 256 six-bit codes with a scale per 16 weights, in 210 bytes.
    Q6K,
}

/// The id of both block sizes of `Q2_0`.
pub(crate) const Q2_0_ID: u32 = 42;
/// The id of Microsoft's `I2_S`; only the tensor size shows whether a file has the supported layout.
pub(crate) const I2_S_ID: u32 = 36;
/// Bytes after the codes of `I2_S`: the scale of the tensor, padded.
pub(crate) const I2_S_TRAILER: usize = 32;

impl GgufType {
    /// Every type.
    pub const ALL: [Self; 18] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q8_0,
        Self::Tq1_0,
        Self::Tq2_0,
        Self::Q2_0G64,
        Self::Q2_0G128,
        Self::Pq2_0,
        Self::Ptq1_0,
        Self::I2S,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
    ];

    /// Whether [`GgufWriter`](crate::GgufWriter) writes this type.
    pub const fn is_writable(self) -> bool {
        matches!(
            self,
            Self::F32
                | Self::F16
                | Self::Bf16
                | Self::Q8_0
                | Self::Tq1_0
                | Self::Tq2_0
                | Self::Q2_0G64
                | Self::Q2_0G128
        )
    }

    /// The id in the file.
    pub const fn id(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Q4K => 12,
            Self::Q5K => 13,
            Self::Q6K => 14,
            Self::Bf16 => 30,
            Self::Tq1_0 => 34,
            Self::Tq2_0 => 35,
            Self::I2S => I2_S_ID,
            Self::Q2_0G64 | Self::Q2_0G128 => Q2_0_ID,
            Self::Pq2_0 => 142,
            Self::Ptq1_0 => 143,
        }
    }

    /// Weights per block; the length of a row is a multiple of it.
    pub const fn block(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 => 32,
            Self::Q2_0G64 => 64,
            Self::Q2_0G128 | Self::Pq2_0 | Self::Ptq1_0 | Self::I2S => 128,
            Self::Tq1_0 | Self::Tq2_0 | Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes per block. `I2_S` has 32 additional bytes per tensor.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
            Self::Q4_0 | Self::Q2_0G64 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Ptq1_0 => 28,
            Self::I2S => 32,
            Self::Q8_0 | Self::Q2_0G128 | Self::Pq2_0 => 34,
            Self::Tq1_0 => 54,
            Self::Tq2_0 => 66,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// The type with this id; `None` for an unknown id and for `Q2_0`, whose id is ambiguous.
    pub(crate) fn from_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|t| t.id() == id && id != Q2_0_ID)
    }

    /// Size of a tensor in bytes; `None` if its row length is not a multiple of the block or the size overflows.
    pub(crate) fn bytes(self, shape: &[usize]) -> Option<usize> {
        let cols = *shape.last()?;
        if !cols.is_multiple_of(self.block()) {
            return None;
        }
        let rows = shape[..shape.len() - 1].iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
        let blocks = (cols / self.block()).checked_mul(self.block_bytes())?.checked_mul(rows)?;
        blocks.checked_add(if self == Self::I2S { I2_S_TRAILER } else { 0 })
    }
}

impl fmt::Display for GgufType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        StoredType::from(*self).fmt(f)
    }
}

impl From<GgufType> for StoredType {
    fn from(t: GgufType) -> Self {
        match t {
            GgufType::F32 => Self::F32,
            GgufType::F16 => Self::F16,
            GgufType::Bf16 => Self::Bf16,
            GgufType::Q8_0 => Self::Q8_0,
            GgufType::Tq1_0 => Self::Tq1_0,
            GgufType::Tq2_0 => Self::Tq2_0,
            GgufType::Q2_0G64 => Self::Q2_0(GroupSize::G64),
            GgufType::Q2_0G128 => Self::Q2_0(GroupSize::G128),
            GgufType::Pq2_0 => Self::Pq2_0,
            GgufType::Ptq1_0 => Self::Ptq1_0,
            GgufType::I2S => Self::I2S,
            GgufType::Q4_0 => Self::Q4_0,
            GgufType::Q4_1 => Self::Q4_1,
            GgufType::Q5_0 => Self::Q5_0,
            GgufType::Q5_1 => Self::Q5_1,
            GgufType::Q4K => Self::Q4K,
            GgufType::Q5K => Self::Q5K,
            GgufType::Q6K => Self::Q6K,
        }
    }
}

/// The GGUF type of an entry that [`Gguf`](crate::Gguf) listed as readable.
pub(crate) fn of(info: &TensorInfo) -> Option<GgufType> {
    GgufType::ALL.into_iter().find(|&t| StoredType::from(t) == info.kind)
}

/// Names of the ids that Trike does not read, or reads only in one of several layouts, for error messages.
const OTHER: [(u32, &str); 28] = [
    (4, "Q4_2 (removed from llama.cpp)"),
    (5, "Q4_3 (removed from llama.cpp)"),
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (31, "Q4_0_4_4 (removed from llama.cpp)"),
    (32, "Q4_0_4_8 (removed from llama.cpp)"),
    (33, "Q4_0_8_8 (removed from llama.cpp)"),
    (I2_S_ID, "I2_S"),
    (39, "MXFP4"),
    (40, "NVFP4"),
    (41, "Q1_0"),
    (Q2_0_ID, "Q2_0"),
];

/// The name of the type of an id that Trike does not read.
pub(crate) fn other_name(id: u32) -> String {
    let name = OTHER.iter().find(|(other, _)| *other == id);
    name.map_or_else(|| format!("unknown GGUF type {id}"), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::{GgufType, I2_S_ID, I2_S_TRAILER, OTHER, Q2_0_ID, other_name};

    #[test]
    fn ids_are_named_once_and_sizes_are_checked() {
        for t in GgufType::ALL {
            let read = GgufType::from_id(t.id());
            assert!(read == Some(t) || t.id() == Q2_0_ID);
            assert!([Q2_0_ID, I2_S_ID].contains(&t.id()) || OTHER.iter().all(|(id, _)| *id != t.id()));
            let trailer = if t == GgufType::I2S { I2_S_TRAILER } else { 0 };
            assert_eq!(t.bytes(&[3, t.block()]), Some(3 * t.block_bytes() + trailer));
            assert_eq!(t.bytes(&[usize::MAX, t.block()]).is_none(), t.block_bytes() > 1);
        }
        assert_eq!(GgufType::Tq2_0.bytes(&[2, 255]), None);
        assert_eq!(other_name(41), "Q1_0");
        assert_eq!(other_name(999), "unknown GGUF type 999");
    }
}
