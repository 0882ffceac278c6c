//! Tensor entries of a file, and the trait of all files with tensors.

use std::{fmt, path::Path};

use trike_core::Tensor;
use trike_trit::{Coupling, Encoding, GroupSize};

use crate::FormatError;

/// Storage type of a tensor in a file. [`Display`](fmt::Display) gives its common name.
///
/// ```
/// use trike_format::StoredType;
/// use trike_trit::{Coupling, Encoding, GroupSize};
///
/// assert_eq!(StoredType::Q2_0(GroupSize::G64).to_string(), "Q2_0 g64");
/// let trits = StoredType::Trits { encoding: Encoding::Base3, depth: 2, coupling: Coupling::Tied };
/// assert_eq!(trits.to_string(), "trits base3 x2 tied");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoredType {
    /// Four bytes per weight.
    F32,
    /// Two bytes per weight.
    F16,
    /// Two bytes per weight, with the exponent range of f32.
    Bf16,
    /// GGUF: 32 int8 codes and an f16 scale.
    Q8_0,
    /// GGUF: 256 trits in 52 bytes and an f16 scale.
    Tq1_0,
    /// GGUF: 256 two-bit codes and an f16 scale.
    Tq2_0,
    /// GGUF: 64 (mainline) or 128 (PrismML) two-bit codes and an f16 scale.
    Q2_0(GroupSize),
    /// GGUF of PrismML: the blocks of `Q2_0` with 128 weights under a separate id.
    Pq2_0,
    /// GGUF of PrismML: 128 trits in 26 bytes and an f16 scale.
    Ptq1_0,
    /// GGUF of Microsoft: two-bit codes and one f32 scale for the tensor.
    I2S,
    /// GGUF: 32 four-bit codes and an f16 scale.
    Q4_0,
    /// GGUF: 32 four-bit codes, an f16 scale and an f16 minimum.
    Q4_1,
    /// GGUF: 32 five-bit codes and an f16 scale.
    Q5_0,
    /// GGUF: 32 five-bit codes, an f16 scale and an f16 minimum.
    Q5_1,
    /// GGUF: 256 four-bit codes with a scale and a minimum per 32 weights.
    Q4K,
    /// GGUF: 256 five-bit codes with a scale and a minimum per 32 weights.
    Q5K,
    /// GGUF: 256 six-bit codes with a scale per 16 weights.
    Q6K,
    /// HuggingFace's BitNet: two-bit codes, four rows per byte, and one scale for the tensor.
    BitNet,
    /// Int8 codes with one scale per group along a row.
    Int8 {
        /// Columns per scale.
        group: usize,
    },
    /// Trike's packed trits.
    Trits {
        /// Encoding of the trits.
        encoding: Encoding,
        /// Number of planes.
        depth: usize,
        /// Coupling of the planes.
        coupling: Coupling,
    },
    /// The name of a type that Trike does not read. Its tensors are listed, but loading them is an error.
    Unsupported(String),
}

impl StoredType {
    /// Whether tensors of this type can be loaded.
    pub fn is_supported(&self) -> bool {
        !matches!(self, Self::Unsupported(_))
    }

    /// Whether the type is ternary. A tensor of [`Q2_0`](Self::Q2_0) or [`Pq2_0`](Self::Pq2_0) can still contain codes
    /// that are not trits, and is then loaded as dense f32.
    pub fn is_ternary(&self) -> bool {
        matches!(
            self,
            Self::Tq1_0
                | Self::Tq2_0
                | Self::Q2_0(_)
                | Self::Pq2_0
                | Self::Ptq1_0
                | Self::I2S
                | Self::BitNet
                | Self::Trits { .. }
        )
    }
}

impl fmt::Display for StoredType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::F32 => "F32".to_owned(),
            Self::F16 => "F16".to_owned(),
            Self::Bf16 => "BF16".to_owned(),
            Self::Q8_0 => "Q8_0".to_owned(),
            Self::Tq1_0 => "TQ1_0".to_owned(),
            Self::Tq2_0 => "TQ2_0".to_owned(),
            Self::Q2_0(group) => format!("Q2_0 g{}", group.get()),
            Self::Pq2_0 => "PQ2_0".to_owned(),
            Self::Ptq1_0 => "PTQ1_0".to_owned(),
            Self::I2S => "I2_S".to_owned(),
            Self::Q4_0 => "Q4_0".to_owned(),
            Self::Q4_1 => "Q4_1".to_owned(),
            Self::Q5_0 => "Q5_0".to_owned(),
            Self::Q5_1 => "Q5_1".to_owned(),
            Self::Q4K => "Q4_K".to_owned(),
            Self::Q5K => "Q5_K".to_owned(),
            Self::Q6K => "Q6_K".to_owned(),
            Self::BitNet => "bitnet 2bit".to_owned(),
            Self::Int8 { group } => format!("int8 g{group}"),
            Self::Trits { encoding, depth: 1, .. } => format!("trits {encoding}"),
            Self::Trits { encoding, depth, coupling } => format!("trits {encoding} x{depth} {coupling}"),
            Self::Unsupported(name) => name.clone(),
        };
        f.pad(&name)
    }
}

/// A tensor's entry in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorInfo {
    /// The name, as spelled in the file.
    pub name: String,
    /// Length of each axis, slowest-varying first: a matrix is `[rows, cols]`, output x input features.
    pub shape: Vec<usize>,
    /// The storage type.
    pub kind: StoredType,
    /// Size in the file in bytes, including scales. For a type that Trike does not read, the distance to the next
    /// tensor.
    pub bytes: u64,
}

impl TensorInfo {
    /// Number of weights; saturates instead of overflowing for the shape of an unsupported tensor.
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |n, &d| n.saturating_mul(d as u64))
    }
}

/// A model file or directory: a list of tensors that are loaded one at a time.
///
/// Opening reads headers only; [`load`](Self::load) copies one tensor out of the memory map and validates it.
pub trait TensorSource {
    /// The file or directory.
    fn path(&self) -> &Path;

    /// All tensors, in file order (an [`HfDir`](crate::HfDir) sorts them by name).
    fn tensors(&self) -> &[TensorInfo];

    /// The entry of a tensor; `None` if there is no tensor of that name.
    fn info(&self, name: &str) -> Option<&TensorInfo>;

    /// Loads and validates a tensor: codes in range, weights and scales finite.
    ///
    /// # Errors
    ///
    /// [`FormatError::MissingTensor`], [`FormatError::UnsupportedTensor`], or an error for invalid contents.
    fn load(&self, name: &str) -> Result<Tensor, FormatError>;
}
