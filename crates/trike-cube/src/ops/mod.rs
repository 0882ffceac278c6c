//! Decoder operations other than linear layers: norms, quantizers, gates, RoPE, look-ups, top-k.
//!
//! Tensors are `tokens x width`, row-major, f32.

mod elementwise;
mod gated;
mod lookup;
mod rope;
mod rotate;
mod rotate_codes;
pub(crate) mod rows;
mod top;
mod turns;

pub use elementwise::{Elementwise, ElementwiseBlueprint, ElementwiseProblem};
pub use lookup::{Indices, LookupBlueprint, LookupProblem};
pub use rope::{CubeRopeTable, RopeBlueprint, RopeProblem};
pub use rows::{RowBlueprint, RowInput, RowNorm, RowProblem, RowSource, RowTarget};
pub use top::{MOST, TopBlueprint, TopProblem};
pub use trike_core::{GatedActivation, RopePairing};
