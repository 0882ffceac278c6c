//! Choice of the fastest layout for a tensor.

use trike_core::{ActivationPrecision, Layout};
use trike_trit::TritTensor;

use super::sparse_matrix::{SparseForm, SparseLayout, form_of as sparse_form};
use super::ternary::{TernaryLayout, form_of};
use crate::device::CubeDevice;

/// Maximum fraction of nonzero blocks of 16 rows by 128 columns for which [`Layout::Blocks`] is chosen.
///
/// Predicted: below it a matvec (one token) is faster, because fewer bytes are read. It is low because this layout has only the
/// few-token kernel: prompts cannot use matrix instructions with it.
const BLOCKS_UP_TO: f64 = 0.5;

/// The layout with the fastest predicted matvec (one token) on a GPU: [`Layout::Sparse`] or [`Layout::Bitmap`] if their
/// predicted time is less than that of two bits per weight, [`Layout::Blocks`] if at most half of the blocks of 16 rows by 128
/// columns have a nonzero, else [`Layout::TwoBit`].
///
/// The times are predicted from counted bytes and instructions, with the ratio of an H200's throughputs; nothing was measured.
/// [`Layout::Base3`] is never chosen for speed (about two instructions per weight cost more than its bytes save): it is for
/// models that do not fit in memory otherwise.
#[must_use]
pub fn choose_layout(device: &CubeDevice, tensor: &TritTensor, activations: ActivationPrecision) -> Layout {
    let Ok(two_bits) = form_of(&[tensor], device.capabilities().f16, TernaryLayout::TwoBit) else {
        return Layout::TwoBit;
    };
    let two_bits = two_bits.bytes() as f64;
    if has_kernel(device, tensor, Layout::Bitmap, activations)
        && let Ok(form) = sparse_form(tensor)
    {
        let form = SparseForm { layout: form.predicted(), ..form };
        if form.predicted_time() < two_bits {
            return match form.layout {
                SparseLayout::Entries => Layout::Sparse,
                SparseLayout::Bitmap => Layout::Bitmap,
            };
        }
    }
    if has_kernel(device, tensor, Layout::Blocks, activations) && share_of_blocks(tensor) <= BLOCKS_UP_TO {
        return Layout::Blocks;
    }
    Layout::TwoBit
}

/// Returns true if there is a kernel for the tensor in the layout, with activations of that precision.
#[must_use]
pub fn has_kernel(
    device: &CubeDevice,
    tensor: &TritTensor,
    layout: Layout,
    activations: ActivationPrecision,
) -> bool {
    let ternary = |layout| form_of(&[tensor], device.capabilities().f16, layout).is_ok();
    let sparse = |layout| {
        activations.group().is_none()
            && sparse_form(tensor).is_ok_and(|form| SparseForm { layout, ..form }.validate().is_ok())
    };
    match layout {
        Layout::TwoBit => ternary(TernaryLayout::TwoBit),
        Layout::Base3 => ternary(TernaryLayout::Base3),
        Layout::Blocks => ternary(TernaryLayout::Blocks),
        Layout::Sparse => sparse(SparseLayout::Entries),
        Layout::Bitmap => sparse(SparseLayout::Bitmap),
    }
}

/// Fraction of blocks of 16 rows by 128 columns with a nonzero in any plane.
fn share_of_blocks(tensor: &TritTensor) -> f64 {
    const ROWS: usize = super::ternary::TILE;
    const COLS: usize = super::shape::BLOCK;
    let (across, down) = (tensor.cols().div_ceil(COLS), tensor.rows().div_ceil(ROWS));
    let mut trits = vec![0i8; tensor.cols()];
    let mut present = 0;
    for tile in 0..down {
        let mut blocks = vec![false; across];
        for plane in 0..tensor.depth() {
            for row in tile * ROWS..((tile + 1) * ROWS).min(tensor.rows()) {
                if tensor.read_row(plane, row, &mut trits).is_err() {
                    return 1.0;
                }
                for (block, trits) in blocks.iter_mut().zip(trits.chunks(COLS)) {
                    *block |= trits.iter().any(|&trit| trit != 0);
                }
            }
        }
        present += blocks.iter().filter(|block| **block).count();
    }
    present as f64 / (across * down) as f64
}
