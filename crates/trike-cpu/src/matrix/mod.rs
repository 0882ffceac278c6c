//! Weight matrices packed for the kernels.

pub(crate) mod blocks;
mod choose;
mod dense;
mod edit;
mod int8;
mod shares;
pub(crate) mod sparse;
mod ternary;
mod tiles;

pub use choose::choose_layout;
pub use dense::DenseMatrix;
pub use edit::EditOutcome;
pub use int8::Int8Matrix;
pub(crate) use int8::pack_int8;
pub(crate) use ternary::pack;
pub(crate) use ternary::{Groups, ScaleRoom};
pub use ternary::{MAX_COLS, TernaryMatrix};
pub(crate) use tiles::map_tiles;

use trike_core::DenseData;
use trike_host::Isa;

use crate::kernels::{FloatKernels, with_float_kernels};
use crate::line::{ROWS, TILE};

/// Maximum columns per integer sum of a long unit: a multiple of the steps of the layouts and panels.
///
/// With six folded planes and activations of -128 the sum stays below `364 * 128 * 16320 < 2^30`.
pub(crate) const LONG: usize = 16_320;

/// A weight matrix for [`CpuOps::linear`](crate::CpuOps::linear): `rows x cols`, out by in.
#[derive(Clone, Debug)]
pub enum Matrix {
    /// Trits with scales.
    Ternary(TernaryMatrix),
    /// Int8 codes with group scales.
    Int8(Int8Matrix),
    /// Floats.
    Dense(DenseMatrix),
}

impl Matrix {
    /// Output features.
    pub fn rows(&self) -> usize {
        match self {
            Self::Ternary(m) => m.rows(),
            Self::Int8(m) => m.rows(),
            Self::Dense(m) => m.rows(),
        }
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        match self {
            Self::Ternary(m) => m.cols(),
            Self::Int8(m) => m.cols(),
            Self::Dense(m) => m.cols(),
        }
    }

    /// Resident size in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Ternary(m) => m.bytes(),
            Self::Int8(m) => m.bytes(),
            Self::Dense(m) => m.bytes(),
        }
    }

    /// Rows per tile, the unit of work distribution over threads.
    pub(crate) fn tile_rows(&self) -> usize {
        match self {
            Self::Ternary(_) | Self::Int8(_) => ROWS,
            Self::Dense(_) => TILE,
        }
    }

    /// Number of tiles of [`Matrix::tile_rows`] rows.
    pub(crate) fn tiles(&self) -> usize {
        self.rows().div_ceil(self.tile_rows())
    }

    /// Total cost of the tiles before `tile`, at least their bytes; used to distribute tiles over threads.
    pub(crate) fn cost_before(&self, tile: usize) -> usize {
        match self {
            Self::Ternary(m) => m.cost_before(tile),
            Self::Int8(_) | Self::Dense(_) => tile * (self.bytes() / self.tiles()).max(1),
        }
    }

    /// Writes the weights of one row as f32; the caller has checked `row` and the length of `out`.
    pub(crate) fn dequantize_row(&self, isa: Isa, row: usize, out: &mut [f32]) {
        match self {
            Self::Ternary(m) => m.dequantize_row(isa, row, out),
            Self::Int8(m) => m.dequantize_row(row, out),
            Self::Dense(m) => {
                let range = row * m.cols()..(row + 1) * m.cols();
                match m.data() {
                    DenseData::F32(v) => out.copy_from_slice(&v[range]),
                    DenseData::F16(v) => with_float_kernels!(isa, kernels => kernels.widen(&v[range], out)),
                    DenseData::Bf16(v) => with_float_kernels!(isa, kernels => kernels.widen(&v[range], out)),
                }
            }
        }
    }
}

impl From<TernaryMatrix> for Matrix {
    fn from(matrix: TernaryMatrix) -> Self {
        Self::Ternary(matrix)
    }
}

impl From<Int8Matrix> for Matrix {
    fn from(matrix: Int8Matrix) -> Self {
        Self::Int8(matrix)
    }
}

impl From<DenseMatrix> for Matrix {
    fn from(matrix: DenseMatrix) -> Self {
        Self::Dense(matrix)
    }
}
