//! Linear layers: `y = x W^T`, with `x` of `m x k`, `W` of `n x k` and `y` of `m x n`, all row-major.

mod activations;
mod blueprint;
mod choose;
pub(crate) mod dense;
mod dense_plan;
pub(crate) mod edit;
pub(crate) mod kernels;
mod launch;
mod mma_plan;
mod plan;
pub(crate) mod quantize;
mod shape;
mod sparse;
pub(crate) mod sparse_matrix;
pub(crate) mod ternary;
pub(crate) mod tune;

pub(crate) use launch::{check_outputs, dims_of, written};

pub use activations::Activations;
pub use blueprint::{DecodeBlueprint, LinearBlueprint, MAX_SPLIT_CUBES, SplitBlueprint};
pub use choose::{choose_layout, has_kernel};
pub use dense::{CubeDenseMatrix, DenseForm, DenseKind, DenseValues};
pub use dense_plan::{DenseBlueprint, DenseProblem};
pub use kernels::{MAX_STAGES, MmaShape, WmmaElement, WmmaShape};
pub use plan::TernaryProblem;
pub use shape::{ActivationShape, BLOCK, MAX_COLS, SEGMENT};
pub use sparse::{SparseBlueprint, SparseProblem};
pub use sparse_matrix::{MAX_SPARSE_COLS, SparseForm, SparseLayout, SparseMatrix};
pub use ternary::{CubeTernaryMatrix, MAX_PARTS, TILE, TernaryForm, TernaryLayout};
pub use trike_core::ActivationPrecision;
pub use tune::{Tried, Tuned};
