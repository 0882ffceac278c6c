//! The operations, each with its gradient.

mod activations;
mod attention;
mod elementwise;
mod embedding;
mod linear;
mod loss;
mod norm;
mod rope;
mod ternary;

pub use linear::BitLinearSpec;
pub use loss::{Distillation, TapeLoss};
pub use ternary::{TernarizeSpec, TernaryScale};

use crate::error::GradError;

/// Checks the shape of an input.
fn check_shape(what: &'static str, expected: (usize, usize), got: (usize, usize)) -> Result<(), GradError> {
    if expected == got { Ok(()) } else { Err(GradError::Shape { what, expected, got }) }
}
