//! Training on a device: forward and backward kernels that inference does not need, losses, ternarization of latent weights, and
//! optimizer updates.
//!
//! Everything is f32, row-major, `tokens x width`. No kernel adds floats atomically: each output is summed by one unit or one cube,
//! in an order that depends only on the shapes, so that repeated runs give the same bits. Norms, rotary embedding, gates and sums
//! are those of [`ops`](crate::ops).
//!
//! Each kernel has a single variant: only products dominate the time of a step, and their tile is fixed. All of them run within the
//! smallest limits of WebGPU, and no plane operations are used, so that results do not depend on whether a device has planes.
//!
//! * products: [`product`] of two [`Factor`]s
//! * backward passes: [`rms_norm_input`], [`rms_norm_weight`], [`gated_back`], [`sum_rows`]
//! * attention over packed documents: [`DocumentBounds`], [`documents_attention`], [`documents_attention_back`]
//! * gradients of tables: [`Lookups`], [`add_rows_to`]
//! * rounding: [`round_activations`], [`round_weights`]
//! * ternarization: [`Groups`], [`group_scales`], [`ternarize`], [`clip_gradient`], [`scale_gradients`]
//! * losses: [`Targets`], [`Losses`], [`head_loss`]
//! * optimizers: [`sum_of_squares`], [`adamw`], and the building blocks of Muon and momentum
//!
//! [`adamw`]: crate::CubeDevice::adamw
//! [`add_rows_to`]: crate::CubeDevice::add_rows_to
//! [`clip_gradient`]: crate::CubeDevice::clip_gradient
//! [`documents_attention`]: crate::CubeDevice::documents_attention
//! [`documents_attention_back`]: crate::CubeDevice::documents_attention_back
//! [`gated_back`]: crate::CubeDevice::gated_back
//! [`group_scales`]: crate::CubeDevice::group_scales
//! [`head_loss`]: crate::CubeDevice::head_loss
//! [`product`]: crate::CubeDevice::product
//! [`rms_norm_input`]: crate::CubeDevice::rms_norm_input
//! [`rms_norm_weight`]: crate::CubeDevice::rms_norm_weight
//! [`round_activations`]: crate::CubeDevice::round_activations
//! [`round_weights`]: crate::CubeDevice::round_weights
//! [`scale_gradients`]: crate::CubeDevice::scale_gradients
//! [`sum_of_squares`]: crate::CubeDevice::sum_of_squares
//! [`sum_rows`]: crate::CubeDevice::sum_rows
//! [`ternarize`]: crate::CubeDevice::ternarize

pub(crate) mod attention;
mod attention_back;
mod elementwise;
mod groups;
mod loss;
mod norm;
mod optimizer;
mod product;
mod round;
pub(crate) mod settings;
mod sort;
mod table;

pub use attention::DocumentBounds;
pub use groups::Groups;
pub use loss::{HeadLoss, Losses, Targets};
pub use optimizer::AdamWStep;
pub use product::Factor;
pub use table::Lookups;

use crate::device::Buffer;
use crate::error::{CubeError, Result};
use settings::{SUM_UNITS, each, per_cube};

/// The number of rows of `cols` elements.
fn rows_of(what: &'static str, len: usize, cols: usize) -> Result<usize> {
    if cols != 0 && len.is_multiple_of(cols) {
        Ok(len / cols)
    } else {
        Err(CubeError::NotMultiple { what, unit: cols, got: len })
    }
}

/// Checks that an output shares no memory with the inputs.
fn check_apart(what: &'static str, output: &Buffer<f32>, inputs: &[&Buffer<f32>]) -> Result<()> {
    match inputs.iter().any(|input| output.overlaps(input)) {
        true => Err(CubeError::Overlap { what }),
        false => Ok(()),
    }
}
