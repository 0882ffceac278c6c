//! The outside rivals: candle's CPU matrix product, and the `gemm` crate under it called directly.

use candle_core::{DType, Device, Result, Tensor};
use trike_bench::Bases;

use crate::expected::{BOUND, F16_BOUND};
use crate::gemm;
use crate::kernel::TERNARY;

/// What every row is compared with.
pub const BASES: Bases = Bases { rival: RivalKind::CandleF32.name(), kernel: TERNARY.name };

/// Who multiplies, in which numbers: weights, activations and outputs alike.
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
    /// All of them.
    pub const ALL: [Self; 3] = [Self::CandleF32, Self::CandleF16, Self::GemmF32];

    /// How reports call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CandleF32 => "candle f32",
            Self::CandleF16 => "candle f16",
            Self::GemmF32 => "gemm f32",
        }
    }

    /// How far its answers may be from the exact ones; see [`Expected::check`](crate::Expected::check).
    #[must_use]
    pub fn bound(self) -> f64 {
        if self == Self::CandleF16 { F16_BOUND } else { BOUND }
    }
}

/// Dense weights of a rival.
pub struct Rival {
    rows: usize,
    cols: usize,
    held: Numbers,
}

/// Numbers as a rival holds them.
enum Numbers {
    Candle(Tensor),
    Plain(Vec<f32>),
}

/// Activations of a rival.
pub struct Input(Numbers);

/// What a rival computed.
pub struct Output(Numbers);

impl Rival {
    /// `rows x cols` integers as the rival holds them.
    ///
    /// # Errors
    ///
    /// What candle refuses: a length other than `rows * cols`.
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

    /// The same numbers in memory of their own.
    ///
    /// # Errors
    ///
    /// What candle refuses.
    pub fn duplicate(&self) -> Result<Self> {
        let held = match &self.held {
            Numbers::Candle(weights) => Numbers::Candle(weights.copy()?),
            Numbers::Plain(weights) => Numbers::Plain(weights.clone()),
        };
        Ok(Self { held, ..*self })
    }

    /// Bytes of the weights.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let bytes = match &self.held {
            Numbers::Candle(weights) => weights.dtype().size_in_bytes(),
            Numbers::Plain(_) => size_of::<f32>(),
        };
        self.rows * self.cols * bytes
    }

    /// Activations of `cols` numbers a token, in the type of the weights.
    ///
    /// # Errors
    ///
    /// What candle refuses: a length that is not whole tokens.
    pub fn activations(&self, x: &[f32]) -> Result<Input> {
        Ok(Input(match &self.held {
            Numbers::Candle(weights) => {
                let shape = (x.len() / self.cols, self.cols);
                Numbers::Candle(Tensor::from_slice(x, shape, &Device::Cpu)?.to_dtype(weights.dtype())?)
            }
            Numbers::Plain(_) => Numbers::Plain(x.to_vec()),
        }))
    }

    /// `x W^T` with activations that this rival, or one of its kind, made, on so many threads of the current pool; candle
    /// asks for as many as the machine has and gets those of the pool.
    ///
    /// # Errors
    ///
    /// What candle refuses, and activations of another kind.
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
    /// The numbers, `tokens x rows`.
    ///
    /// # Errors
    ///
    /// What candle refuses.
    pub fn into_floats(self) -> Result<Vec<f32>> {
        match self.0 {
            Numbers::Candle(y) => y.flatten_all()?.to_dtype(DType::F32)?.to_vec1(),
            Numbers::Plain(y) => Ok(y),
        }
    }
}
