//! Choice of the fastest layout for a tensor.

use trike_core::{ActivationPrecision, Layout};
use trike_trit::TritTensor;

use super::sparse_matrix::{SparseForm, SparseLayout, form_of as sparse_form};
use super::ternary::{TernaryLayout, form_of};
use crate::device::Device;

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
pub fn choose_layout(device: &Device, tensor: &TritTensor, activations: ActivationPrecision) -> Layout {
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
    device: &Device,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use trike_testkit::Rng;
    use trike_trit::{Encoding, Granularity, GroupSize, Scales};

    #[test]
    fn the_table_follows_zeros_and_their_structure() {
        let Some(device) = testing::device(crate::Planes::Off) else { return };
        let mut rng = Rng::new(41);
        let (rows, cols) = (256, 1024);
        let tensor = |trits: &[i8], granularity| {
            let scales = match granularity {
                Granularity::Group(size) => rows * cols / size.get(),
                Granularity::Row => rows,
                Granularity::Tensor => 1,
            };
            let scales = Scales::new(granularity, vec![1.0; scales], None);
            TritTensor::from_trits(rows, cols, trits, Encoding::TwoBit, scales).expect("a tensor")
        };
        let int8 = ActivationPrecision::Int8PerToken;
        let grouped = ActivationPrecision::Int8PerGroup(GroupSize::G64);
        let few = rng.trits(rows * cols, 0.05);
        let many = rng.trits(rows * cols, 0.6);
        let mut blocks = many.clone();
        for (row, trits) in blocks.chunks_mut(cols).enumerate() {
            for (block, trits) in trits.chunks_mut(128).enumerate() {
                if (row / 16 + block) % 4 != 0 {
                    trits.fill(0);
                }
            }
        }
        let g64 = Granularity::Group(GroupSize::G64);
        for (trits, granularity, activations, want) in [
            (&few, Granularity::Row, int8, Layout::Sparse),
            // Neither scales nor factors of groups have a sparse kernel.
            (&few, g64, int8, Layout::TwoBit),
            (&few, Granularity::Row, grouped, Layout::TwoBit),
            (&many, Granularity::Row, int8, Layout::TwoBit),
            (&blocks, Granularity::Row, int8, Layout::Blocks),
            (&blocks, g64, grouped, Layout::Blocks),
        ] {
            let tensor = tensor(trits, granularity);
            assert_eq!(choose_layout(&device, &tensor, activations), want, "{granularity:?} {activations:?}");
            assert!(has_kernel(&device, &tensor, want, activations));
        }
    }
}
