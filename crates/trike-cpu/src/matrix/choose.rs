//! Which layout a tensor is multiplied fastest in.

use trike_core::Layout;
use trike_trit::{Encoding, Granularity, TritTensor};

use super::blocks::share_present;
use super::layout::{Fixed, Shape};
use super::ternary::kept_planes;
use trike_host::isa::Isa;

/// The share of zeros from which [`choose_layout`] takes [`Layout::Sparse`].
///
/// Measured with 4096 x 4096 and 2560 x 6912 weights: one token from memory takes as long as with two bits at 86 to 88 %,
/// 128 tokens do at about 83 %; at 90 % both are 1.3 to 1.5 times as fast, at 95 % more than twice.
const SPARSE_FROM: f64 = 0.90;
/// The same for weights with a scale for each group of at least 128 columns: the sums of each group cost more than its few
/// nonzeros. Smaller groups never gain.
const SPARSE_GROUPS_FROM: f64 = 0.99;
/// The time of one token with [`Layout::Sparse`] over that of two bits, in whole tokens and for each share of nonzeros: a
/// line through the times at 90 to 99 %.
const SPARSE_TIME: (f64, f64) = (0.13, 5.0);
/// The same with groups, about, where they gain.
const SPARSE_GROUPS_TIME: f64 = 0.5;
/// The same for 1.6 bits.
const BASE3_TIME: f64 = 0.8;
/// Fractions of the size of two bits per weight up to which 1.6 bits gain more than their instructions cost.
const BASE3_UP_TO: f64 = 0.85;
/// The share of the blocks that may be there for [`Layout::Blocks`] to be worth it.
///
/// Measured with 4096 x 4096 weights: with a tenth of the blocks zero one token from memory takes as long as with two bits
/// for every weight; 128 tokens do with an eighth where tiles that are neighbours lack the same blocks, and with a third
/// where they do not. With a fifth one token is 1.2 times as fast.
const BLOCKS_UP_TO: f64 = 0.80;
/// The same for weights whose groups have scales of their own: with groups of 128 and half of the blocks zero one token is 1.5
/// times as fast, and 128 tokens take as long as with every weight.
const GROUPED_BLOCKS_UP_TO: f64 = 0.60;

/// The layout in which a tensor is multiplied fastest with the instructions of `isa`: [`Layout::Blocks`] where enough blocks of sixteen rows by 32
/// columns are zero; [`Layout::Sparse`] where at least nine of ten trits are zero (99
/// of 100 where groups of 128 columns or more have scales of their own, never with smaller groups); [`Layout::Base3`] for
/// tensors in that encoding, where it is smaller with their groups and `isa` is as fast with it; else
/// [`Layout::TwoBit`].
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
    // A tensor that was packed for few bytes stays small where the processor has the permutes that make up for it.
    let group = match tensor.scales().granularity() {
        Granularity::Group(size) => Some(size),
        Granularity::Tensor | Granularity::Row => None,
    };
    let lines = |layout| Shape::new(layout, tensor.cols(), group).lines() as f64;
    let small = lines(Fixed::Base3) <= BASE3_UP_TO * lines(Fixed::TwoBit);
    let wanted = tensor.encoding() == Encoding::Base3 && isa.permutes_bytes();
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
