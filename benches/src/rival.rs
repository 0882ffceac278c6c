//! The rivals: candle's CPU matrix product, and the `gemm` crate on which it is built, called directly.

use candle_core::{DType, Device, Result, Tensor};
use trike_bench::Bases;

use crate::expected::{BOUND, F16_BOUND};
use crate::gemm;
use crate::kernel::TERNARY;

/// References of the speedup columns.
pub const BASES: Bases = Bases { rival: RivalKind::CandleF32.name(), kernel: TERNARY.name };

/// A rival library and its type of weights, activations and outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RivalKind {
    /// `candle-core` in f32.
    CandleF32,
    /// `candle-core` in f16.
    CandleF16,
    /// `gemm` in f32.
    GemmF32,
}

impl RivalKind {
    /// All rivals.
    pub const ALL: [Self; 3] = [Self::CandleF32, Self::CandleF16, Self::GemmF32];

    /// Name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CandleF32 => "candle f32",
            Self::CandleF16 => "candle f16",
            Self::GemmF32 => "gemm f32",
        }
    }

    /// Error bound of its results; see [`Expected::check`](crate::Expected::check).
    #[must_use]
    pub fn bound(self) -> f64 {
        if self == Self::CandleF16 { F16_BOUND } else { BOUND }
    }
}

/// A rival with its dense weights.
pub struct Rival {
    rows: usize,
    cols: usize,
    held: Numbers,
}

/// Values in the rival's own representation.
enum Numbers {
    Candle(Tensor),
    Plain(Vec<f32>),
}

/// Activations of a rival.
pub struct Input(Numbers);

/// Output of a rival.
pub struct Output(Numbers);

impl Rival {
    /// Converts `rows x cols` integer weights, row-major.
    ///
    /// # Errors
    ///
    /// Candle's error if the length is not `rows * cols`.
    pub fn new(kind: RivalKind, weights: &[i8], rows: usize, cols: usize) -> Result<Self> {
        let floats: Vec<f32> = weights.iter().map(|&w| f32::from(w)).collect();
        let held = match kind {
            RivalKind::CandleF32 | RivalKind::CandleF16 => {
                let dtype = if kind == RivalKind::CandleF16 { DType::F16 } else { DType::F32 };
                Numbers::Candle(Tensor::from_vec(floats, (rows, cols), &Device::Cpu)?.to_dtype(dtype)?)
            }
            RivalKind::GemmF32 => Numbers::Plain(floats),
        };
        Ok(Self { rows, cols, held })
    }

    /// A deep copy.
    ///
    /// # Errors
    ///
    /// Errors of candle.
    pub fn duplicate(&self) -> Result<Self> {
        let held = match &self.held {
            Numbers::Candle(weights) => Numbers::Candle(weights.copy()?),
            Numbers::Plain(weights) => Numbers::Plain(weights.clone()),
        };
        Ok(Self { held, ..*self })
    }

    /// Size of the weights, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let bytes = match &self.held {
            Numbers::Candle(weights) => weights.dtype().size_in_bytes(),
            Numbers::Plain(_) => size_of::<f32>(),
        };
        self.rows * self.cols * bytes
    }

    /// Converts activations (`tokens x cols`) to the type of the weights.
    ///
    /// # Errors
    ///
    /// Candle's error if the length is not a multiple of `cols`.
    pub fn activations(&self, x: &[f32]) -> Result<Input> {
        Ok(Input(match &self.held {
            Numbers::Candle(weights) => {
                let shape = (x.len() / self.cols, self.cols);
                Numbers::Candle(Tensor::from_slice(x, shape, &Device::Cpu)?.to_dtype(weights.dtype())?)
            }
            Numbers::Plain(_) => Numbers::Plain(x.to_vec()),
        }))
    }

    /// `x W^T` with activations from [`activations`](Self::activations) of a rival of the same kind, on `threads` threads of
    /// the current rayon pool. Candle ignores `threads` and uses the whole pool.
    ///
    /// # Errors
    ///
    /// Errors of candle, and activations of another kind of rival.
    pub fn linear(&self, x: &Input, threads: usize) -> Result<Output> {
        Ok(Output(match (&self.held, &x.0) {
            (Numbers::Candle(weights), Numbers::Candle(x)) => Numbers::Candle(x.matmul(&weights.t()?)?),
            (Numbers::Plain(weights), Numbers::Plain(x)) => {
                Numbers::Plain(gemm::linear(weights, self.cols, x, threads))
            }
            _ => candle_core::bail!("activations of another rival"),
        }))
    }
}

impl Output {
    /// The values in f32, `tokens x rows`.
    ///
    /// # Errors
    ///
    /// Errors of candle.
    pub fn into_floats(self) -> Result<Vec<f32>> {
        match self.0 {
            Numbers::Candle(y) => y.flatten_all()?.to_dtype(DType::F32)?.to_vec1(),
            Numbers::Plain(y) => Ok(y),
        }
    }
}
