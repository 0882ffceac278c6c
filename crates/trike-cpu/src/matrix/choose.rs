//! Choice of the fastest layout of a tensor.

use trike_core::{Layout, TileLayout, TritShape};
use trike_trit::{Encoding, Granularity, TritTensor};

use super::blocks::share_present;
use super::ternary::kept_planes;
use trike_host::isa::Isa;

/// Minimum fraction of zeros for [`Layout::Sparse`].
///
/// Measured with 4096 x 4096 and 2560 x 6912 weights: break-even with two bits is at 86 to 88 % zeros for one token
/// from memory, and at about 83 % for 128 tokens; at 90 % both are 1.3 to 1.5 times as fast, at 95 % more than twice.
const SPARSE_FROM: f64 = 0.90;
/// The same for groups of at least 128 columns: the sums of each group cost more than its few nonzeros. Smaller groups
/// are never faster.
const SPARSE_GROUPS_FROM: f64 = 0.99;
/// Time per token with [`Layout::Sparse`] relative to two bits: constant and slope over the fraction of nonzeros,
/// fitted at 90 to 99 % zeros.
const SPARSE_TIME: (f64, f64) = (0.13, 5.0);
/// Approximately the same with groups, where sparse is used.
const SPARSE_GROUPS_TIME: f64 = 0.5;
/// The same for [`Layout::Base3`].
const BASE3_TIME: f64 = 0.8;
/// Maximum size relative to two bits per weight for which the smaller size outweighs the extra instructions of base 3.
const BASE3_UP_TO: f64 = 0.85;
/// Maximum fraction of nonzero blocks for [`Layout::Blocks`].
///
/// Measured with 4096 x 4096 weights: for one token from memory, break-even with two bits is at a tenth of the blocks
/// zero; for 128 tokens at an eighth if neighbouring tiles have the same zero blocks, and at a third if not. At a
/// fifth, one token is 1.2 times as fast.
const BLOCKS_UP_TO: f64 = 0.80;
/// The same for weights with groups: with groups of 128 and half of the blocks zero, one token is 1.5 times as fast,
/// and 128 tokens are as fast as with two bits.
const GROUPED_BLOCKS_UP_TO: f64 = 0.60;

/// The fastest layout of a tensor on `isa`: [`Layout::Blocks`] if enough blocks of 16 rows by 32 columns are zero;
/// [`Layout::Sparse`] if at least 90 % of the trits are zero (99 % with groups of 128 columns or more, never with
/// smaller groups); [`Layout::Base3`] for tensors in that encoding, if it is smaller with their groups and `isa` is as
/// fast with it; otherwise [`Layout::TwoBit`].
///
/// ```
/// use trike_cpu::{Isa, Layout, choose_layout};
/// use trike_trit::{Encoding, Scales, TritTensor};
///
/// let layout = |every: usize| {
///     let trits: Vec<i8> = (0..64 * 64).map(|i| i8::from(i % every == 0)).collect();
///     let tensor = TritTensor::from_trits(64, 64, &trits, Encoding::TwoBit, Scales::tensor(1.0))?;
///     Ok::<_, trike_trit::TritError>(choose_layout(&tensor, Isa::detect()))
/// };
/// assert_eq!((layout(3)?, layout(20)?), (Layout::TwoBit, Layout::Sparse));
/// # Ok::<(), trike_trit::TritError>(())
/// ```
pub fn choose_layout(tensor: &TritTensor, isa: Isa) -> Layout {
    // A tensor encoded for size stays small if the CPU has the permutes that make unpacking fast.
    let group = match tensor.scales().granularity() {
        Granularity::Group(size) => Some(size),
        Granularity::Tensor | Granularity::Row => None,
    };
    let lines = |layout| TritShape::new(layout, tensor.cols(), group).lines() as f64;
    let small = lines(TileLayout::Base3) <= BASE3_UP_TO * lines(TileLayout::TwoBit);
    let wanted = tensor.encoding() == Encoding::Base3 && isa.has_vbmi();
    let dense = if wanted && small { (Layout::Base3, BASE3_TIME) } else { (Layout::TwoBit, 1.0) };
    let all = tensor.rows() as f64 * tensor.cols() as f64 * tensor.depth() as f64;
    let zeros = tensor.zeros() as f64 / all;
    let (layout, time) = match group {
        None if zeros >= SPARSE_FROM => (Layout::Sparse, SPARSE_TIME.0 + SPARSE_TIME.1 * (1.0 - zeros)),
        Some(size) if size.get() >= 128 && zeros >= SPARSE_GROUPS_FROM => {
            (Layout::Sparse, SPARSE_GROUPS_TIME)
        }
        None | Some(_) => dense,
    };
    let up_to = if group.is_some() { GROUPED_BLOCKS_UP_TO } else { BLOCKS_UP_TO };
    if share_present(tensor, &kept_planes(tensor)) <= up_to * time { Layout::Blocks } else { layout }
}
