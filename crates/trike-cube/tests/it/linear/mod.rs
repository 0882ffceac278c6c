//! Linear layers.

mod choose;
mod dense;
mod dense_plan;
mod edit;
mod kernels;
mod mma_plan;
mod plan;
mod quantize;
mod sparse;
mod sparse_matrix;
mod ternary;
mod tune;
