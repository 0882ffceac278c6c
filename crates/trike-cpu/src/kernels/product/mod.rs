//! `x W^T` for dense and int8 weights: one source for every vector instruction set.
//!
//! A weight is `scale * code` rounded to f32 (the same value as row lookup), products are accumulated with FMA, and
//! every output is summed in `LANES` lanes over spans of [`Rows::span`] blocks of columns; the folds of the spans are
//! added in order. An output therefore depends only on its own row and token, and is bit-identical for any number of
//! tokens.
//!
//! Few tokens make one pass over the weights ([`stream`]), some tokens reuse rows that stay in the L2 cache, and many
//! tokens are multiplied with panels of widened weights ([`panel`]).

#![allow(
    clippy::needless_range_loop,
    reason = "the indices are rows and tokens, and each walks several arrays"
)]

mod panel;
mod stream;

use std::ops::Range;

use super::Element;
use super::floats::{MOST_TOKENS, Streaming};
use super::rows::{BLOCK, Rows};
use panel::many;
use stream::Few;

/// Rows computed at once.
const SIDE: usize = 4;
/// Rows per panel of widened weights.
const PANEL: usize = 32;
/// Maximum tokens without panels: widening the weights again for every few tokens costs less.
const SOME: usize = 24;
/// Bytes of codes that stay in the L2 cache while the tokens are processed.
const RESIDENT: usize = 256 << 10;
/// Alignment of data that is read repeatedly: one cache line, so that no vector crosses a line.
const LINE: usize = 64;

/// A block of activations, or of codes.
type Block<E> = [E; BLOCK];

/// Cache lines per block of codes.
const fn lines<E>() -> usize {
    size_of::<Block<E>>() / LINE
}

/// `out[t][r] = w[r] . x[t]`.
pub(crate) fn product<S: Streaming, E: Element>(simd: S, w: Rows<'_, E>, x: &[f32], out: &mut [&mut [f32]]) {
    let scales_per_block = match (w.scales.is_empty(), w.group) {
        (true, _) => 0,
        (false, 32) => 2,
        // A group that spans the row has one scale for all blocks.
        (false, group) if group >= w.cols || (group >= BLOCK && group.is_power_of_two()) => 1,
        (false, _) if const { E::CODES } => return widened(simd, w, x, out),
        (false, _) => unreachable!("floats with scales"),
    };
    // Partial blocks of activations are padded with zeros; many tokens are read often enough to justify an aligned
    // copy.
    let (copy, start);
    let x = if !w.cols.is_multiple_of(BLOCK) || out.len() > few::<S>() {
        (copy, start) = padded(x, w.cols);
        &copy[start..][..out.len() * w.blocks() * BLOCK]
    } else {
        x
    };
    let x = x.as_chunks::<BLOCK>().0;
    // Codes have scales and floats have none; other combinations are not compiled.
    match scales_per_block {
        0 if const { !E::CODES } => scaled::<S, E, 0>(simd, w, x, out),
        1 if const { E::CODES } => scaled::<S, E, 1>(simd, w, x, out),
        2 if const { E::CODES } => scaled::<S, E, 2>(simd, w, x, out),
        scales => unreachable!("{scales} scales per block"),
    }
}

/// Group sizes without a specialized loop: converts the weights of some rows to f32 and multiplies those.
fn widened<S: Streaming, E: Element>(simd: S, w: Rows<'_, E>, x: &[f32], out: &mut [&mut [f32]]) {
    let mut weights = Vec::with_capacity(PANEL.min(w.count()) * w.cols);
    for first in (0..w.count()).step_by(PANEL) {
        let rows = first..(first + PANEL).min(w.count());
        weights.clear();
        weights.extend(rows.clone().flat_map(|row| w.weights(row)));
        let some = Rows { codes: &weights, cols: w.cols, scales: &[], group: w.cols };
        let mut part: Vec<&mut [f32]> = out.iter_mut().map(|out| &mut out[rows.clone()]).collect();
        product(simd, some, x, &mut part);
    }
}

/// Tokens padded with zeros to whole blocks, and their offset in the buffer.
fn padded(x: &[f32], cols: usize) -> (Vec<f32>, usize) {
    let width = cols.next_multiple_of(BLOCK);
    let (mut copy, start) = aligned(x.len() / cols * width);
    for x in x.chunks_exact(cols) {
        copy.extend_from_slice(x);
        copy.resize(copy.len() + width - cols, 0.0);
    }
    (copy, start)
}

/// A buffer with room for `len` floats after the first cache line boundary, and the offset of that boundary.
fn aligned(len: usize) -> (Vec<f32>, usize) {
    let mut buffer: Vec<f32> = Vec::with_capacity(len + LINE / size_of::<f32>());
    // Only for speed: if the platform cannot compute the offset, any value works.
    let start = buffer.as_ptr().align_offset(LINE).min(LINE / size_of::<f32>());
    buffer.resize(start, 0.0);
    (buffer, start)
}

fn scaled<S: Streaming, E: Element, const SCALES: usize>(
    simd: S,
    w: Rows<'_, E>,
    x: &[Block<f32>],
    out: &mut [&mut [f32]],
) {
    if out.len() <= few::<S>() {
        for_tokens(Few::<S, E, SCALES> { simd, w, x, out });
    } else if out.len() <= SOME {
        some::<S, E, SCALES>(simd, w, x, out);
    } else {
        many::<S, E, SCALES>(simd, w, x, out);
    }
}

/// Maximum tokens whose sums stay in registers next to weights that are widened on the fly.
const fn few<S: Streaming>() -> usize {
    S::SIDE_TOKENS - 1
}

/// The product for some tokens, too few for panels: rows that stay in the L2 cache are multiplied by a few tokens at a
/// time.
fn some<S: Streaming, E: Element, const SCALES: usize>(
    simd: S,
    w: Rows<'_, E>,
    x: &[Block<f32>],
    out: &mut [&mut [f32]],
) {
    let step = (RESIDENT / size_of_val(w.codes(0))).max(SIDE);
    for first in (0..w.count()).step_by(step) {
        let rows = first..(first + step).min(w.count());
        let part = w.slice(rows.clone());
        for tokens in groups(out.len(), few::<S>()) {
            let x = &x[tokens.start * w.blocks()..tokens.end * w.blocks()];
            let mut out: Vec<&mut [f32]> = out[tokens].iter_mut().map(|out| &mut out[rows.clone()]).collect();
            for_tokens(Few::<S, E, SCALES> { simd, w: part, x, out: &mut out });
        }
    }
}

/// Splits `count` tokens into groups of at most `most`, evenly at the end: a single token would not keep the
/// multipliers busy.
fn groups(count: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let mut token = 0;
    std::iter::from_fn(move || {
        let left = count - token;
        let take = if left >= 2 * most { most } else { left.div_ceil(left.div_ceil(most).max(1)) };
        token += take;
        (take > 0).then(|| token - take..token)
    })
}

/// A task specialized on the number of tokens at compile time.
trait ForTokens {
    /// Maximum number of tokens that it is compiled for.
    const MOST: usize;
    fn tokens(&self) -> usize;
    fn with<const T: usize>(self);
}

/// Dispatches on the number of tokens as a constant.
fn for_tokens<F: ForTokens>(task: F) {
    const { assert!(F::MOST <= MOST_TOKENS, "every number has its arm") };
    match task.tokens() {
        6 if const { F::MOST >= 6 } => task.with::<6>(),
        5 if const { F::MOST >= 5 } => task.with::<5>(),
        4 if const { F::MOST >= 4 } => task.with::<4>(),
        3 if const { F::MOST >= 3 } => task.with::<3>(),
        2 if const { F::MOST >= 2 } => task.with::<2>(),
        1 => task.with::<1>(),
        tokens => unreachable!("{tokens} tokens in a group of at most {}", F::MOST),
    }
}

/// Weights of a block from column `at`.
#[inline(always)]
fn weight<S: Streaming, E: Element, const SCALES: usize>(
    simd: S,
    codes: &Block<E>,
    scales: [f32; SCALES],
    at: usize,
) -> S::Lanes {
    let codes = simd.load_lanes(codes, at);
    if SCALES == 0 { codes } else { simd.mul_lanes(simd.splat_lanes(scales[at * SCALES / BLOCK]), codes) }
}

/// A row in blocks, with `SCALES` scales per block.
#[derive(Clone, Copy)]
struct Source<'a, E, const SCALES: usize> {
    blocks: &'a [Block<E>],
    tail: &'a [E],
    scales: &'a [f32],
    /// log2 of the blocks per scale; unused unless there is one scale per block.
    shift: u32,
}

impl<'a, E: Element, const SCALES: usize> Source<'a, E, SCALES> {
    #[inline(always)]
    fn new(w: Rows<'a, E>, row: usize) -> Self {
        let (blocks, tail) = w.codes(row).as_chunks();
        let groups = w.groups();
        let scales = &w.scales[row * groups..][..groups];
        let shift = if w.group >= w.cols { u32::BITS - 1 } else { (w.group / BLOCK).max(1).trailing_zeros() };
        Self { blocks, tail, scales, shift }
    }

    /// The scales of a block; zero for groups past the end of the row.
    #[inline(always)]
    fn scales(&self, block: usize) -> [f32; SCALES] {
        let first = if SCALES == 1 { block >> self.shift } else { SCALES * block };
        std::array::from_fn(|s| self.scales.get(first + s).copied().unwrap_or(0.0))
    }

    /// The partial last block, padded with zeros.
    #[inline(always)]
    fn last(&self) -> Block<E> {
        let mut block = [E::ZERO; BLOCK];
        block[..self.tail.len()].copy_from_slice(self.tail);
        block
    }
}
