//! The numbers of a problem, and the forms in which kernels hold them.

use trike_cpu::{ActivationPrecision, CpuError, DenseData, DenseMatrix, Int8Matrix, Matrix, TernaryMatrix};
use trike_trit::{Encoding, Granularity, GroupSize, ScaleValues, Scales, TritTensor};

/// How the weights are held and in which numbers they meet the activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Trits with one scale, int8 activations with a factor for each token: how BitNet models run.
    TernaryInt8,
    /// Trits with an f16 scale for 128 weights, int8 activations.
    GroupedInt8,
    /// Trits with one scale, f32 activations: the exact path.
    TernaryF32,
    /// Bytes with a scale for 64 weights, f32 activations: what embeddings and heads use.
    Int8,
    /// Dense f16, widened in registers.
    F16,
    /// Dense f32.
    F32,
}

impl Kernel {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::TernaryInt8, Self::GroupedInt8, Self::TernaryF32, Self::Int8, Self::F16, Self::F32];

    /// How reports call it: weights, then activations.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::TernaryInt8 => "ternary x int8",
            Self::GroupedInt8 => "ternary/128 x int8",
            Self::TernaryF32 => "ternary x f32",
            Self::Int8 => "int8/64 x f32",
            Self::F16 => "f16 x f32",
            Self::F32 => "f32 x f32",
        }
    }

    /// What [`Cpu::linear`](trike_cpu::Cpu::linear) is called with.
    #[must_use]
    pub fn precision(self) -> ActivationPrecision {
        match self {
            Self::TernaryInt8 | Self::GroupedInt8 => ActivationPrecision::Int8PerToken,
            Self::TernaryF32 | Self::Int8 | Self::F16 | Self::F32 => ActivationPrecision::F32,
        }
    }

    /// Whether every group of [`Weights::GROUP`] has a scale of its own.
    #[must_use]
    pub fn is_grouped(self) -> bool {
        !matches!(self, Self::TernaryInt8 | Self::TernaryF32)
    }
}

/// `rows x cols` small integers, each a trit times a scale: the same numbers in whatever form a kernel holds them.
///
/// ```
/// use trike_benches::{Kernel, Weights};
///
/// let weights = Weights::new(1, 3, vec![1, 0, -1]);
/// assert_eq!(weights.integers(Kernel::TernaryF32), [3, 0, -3]);
/// assert_eq!(weights.matrix(Kernel::F16)?.bytes(), 6);
/// # Ok::<(), trike_cpu::CpuError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Weights {
    rows: usize,
    cols: usize,
    trits: Vec<i8>,
}

impl Weights {
    /// Weights that share a scale where a kernel [is grouped](Kernel::is_grouped).
    pub const GROUP: GroupSize = GroupSize::G128;
    /// The scale where there is only one.
    const SCALE: u8 = 3;

    /// Weights with these trits, row-major.
    ///
    /// # Panics
    ///
    /// When there are not `rows * cols` trits.
    #[must_use]
    pub fn new(rows: usize, cols: usize, trits: Vec<i8>) -> Self {
        assert_eq!(rows.checked_mul(cols), Some(trits.len()), "a trit for each weight");
        Self { rows, cols, trits }
    }

    /// Outputs.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The weights that a kernel multiplies with, row-major.
    #[must_use]
    pub fn integers(&self, kernel: Kernel) -> Vec<i8> {
        let mut integers = self.trits.clone();
        for (row, weights) in integers.chunks_exact_mut(self.cols.max(1)).enumerate() {
            for (group, weights) in weights.chunks_mut(Self::GROUP.get()).enumerate() {
                let scale = if kernel.is_grouped() { Self::group_scale(row, group) } else { Self::SCALE };
                weights.iter_mut().for_each(|w| *w *= scale as i8);
            }
        }
        integers
    }

    /// 1 to 7, and different in neighbouring rows and groups, so that a scale from the wrong place shows.
    fn group_scale(row: usize, group: usize) -> u8 {
        1 + ((3 * row + 2 * group) % 7) as u8
    }

    /// The weights as a kernel holds them.
    ///
    /// # Errors
    ///
    /// What the constructors of the matrices and of [`TritTensor`] refuse; nothing for a shape of the catalogue.
    pub fn matrix(&self, kernel: Kernel) -> Result<Matrix, CpuError> {
        let (rows, cols) = (self.rows, self.cols);
        match kernel {
            Kernel::TernaryInt8 | Kernel::TernaryF32 => self.pack(Scales::tensor(f32::from(Self::SCALE))),
            Kernel::GroupedInt8 => {
                let groups = cols.div_ceil(Self::GROUP.get());
                let scales = (0..rows).flat_map(|row| (0..groups).map(move |g| Self::group_scale(row, g)));
                let values = ScaleValues::F16(scales.map(Into::into).collect());
                self.pack(Scales::new(Granularity::Group(Self::GROUP), values, None))
            }
            Kernel::Int8 => {
                let scales = vec![1.0; rows * cols.div_ceil(64)];
                Ok(Int8Matrix::new(rows, cols, 64, self.integers(kernel), scales)?.into())
            }
            Kernel::F16 => {
                let data = DenseData::F16(self.integers(kernel).into_iter().map(Into::into).collect());
                Ok(DenseMatrix::new(rows, cols, data)?.into())
            }
            Kernel::F32 => {
                let data = DenseData::F32(self.integers(kernel).into_iter().map(Into::into).collect());
                Ok(DenseMatrix::new(rows, cols, data)?.into())
            }
        }
    }

    fn pack(&self, scales: Scales) -> Result<Matrix, CpuError> {
        let tensor = TritTensor::from_trits(self.rows, self.cols, &self.trits, Encoding::TwoBit, scales)?;
        Ok(TernaryMatrix::pack(&tensor)?.into())
    }
}
