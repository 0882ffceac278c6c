//! `x W^T` for weights that are not ternary, in vector operations: one source for every instruction set.
//!
//! A weight is `scale * code` rounded to f32 (exactly what row lookup gives), a product is fused with its addition, and
//! every output sums in `LANES` lanes over [`Rows::span`] blocks of columns, folds, and adds the folds in order. So an
//! output depends on its own row and token only, whatever is computed beside it, and few tokens and many give the same
//! bits.
//!
//! Few tokens pass over the weights once ([`stream`]), some pass over rows that stay in the second cache, and many meet
//! panels of widened weights ([`panel`]).

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

/// Rows that are computed side by side.
const SIDE: usize = 4;
/// Rows whose weights are written as f32 together.
const PANEL: usize = 32;
/// Tokens for which no panel is made: widening weights again for every few tokens costs less.
const SOME: usize = 24;
/// Codes that stay in the second cache while some tokens pass, in bytes.
const RESIDENT: usize = 256 << 10;
/// The alignment of what is read again and again: a line, so that no vector crosses one.
const LINE: usize = 64;

/// A block of activations, or of codes.
type Block<E> = [E; BLOCK];

/// Lines of a block of codes.
const fn lines<E>() -> usize {
    size_of::<Block<E>>() / LINE
}

/// `out[t][r] = w[r] . x[t]`.
pub(crate) fn product<S: Streaming, E: Element>(simd: S, w: Rows<'_, E>, x: &[f32], out: &mut [&mut [f32]]) {
    let scales_per_block = match (w.scales.is_empty(), w.group) {
        (true, _) => 0,
        (false, 32) => 2,
        // A group that reaches the end of the row has one scale for all blocks.
        (false, group) if group >= w.cols || (group >= BLOCK && group.is_power_of_two()) => 1,
        (false, _) if const { E::CODES } => return widened(simd, w, x, out),
        (false, _) => unreachable!("floats with scales"),
    };
    // Broken blocks of activations end in zeros, and many tokens are read so often that they are worth a copy in whole
    // lines.
    let (copy, start);
    let x = if !w.cols.is_multiple_of(BLOCK) || out.len() > few::<S>() {
        (copy, start) = padded(x, w.cols);
        &copy[start..][..out.len() * w.blocks() * BLOCK]
    } else {
        x
    };
    let x = x.as_chunks::<BLOCK>().0;
    // Codes have scales and floats have none; no other pair is compiled.
    match scales_per_block {
        0 if const { !E::CODES } => scaled::<S, E, 0>(simd, w, x, out),
        1 if const { E::CODES } => scaled::<S, E, 1>(simd, w, x, out),
        2 if const { E::CODES } => scaled::<S, E, 2>(simd, w, x, out),
        scales => unreachable!("{scales} scales per block"),
    }
}

/// Groups that no loop is made for: the weights of some rows are written as f32, and those multiplied.
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

/// Tokens in whole blocks, the columns behind the last being zero, and where in the buffer they begin.
fn padded(x: &[f32], cols: usize) -> (Vec<f32>, usize) {
    let width = cols.next_multiple_of(BLOCK);
    let (mut copy, start) = aligned(x.len() / cols * width);
    for x in x.chunks_exact(cols) {
        copy.extend_from_slice(x);
        copy.resize(copy.len() + width - cols, 0.0);
    }
    (copy, start)
}

/// A buffer with room for `len` numbers behind a few zeros, after which a line begins.
fn aligned(len: usize) -> (Vec<f32>, usize) {
    let mut buffer: Vec<f32> = Vec::with_capacity(len + LINE / size_of::<f32>());
    // It is for speed alone: where the platform does not tell the offset, any will do.
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

/// Tokens whose sums stay in registers beside weights that have yet to be widened.
const fn few<S: Streaming>() -> usize {
    S::SIDE_TOKENS - 1
}

/// The product for some tokens, not so many that a panel is worth making: rows that stay in the second cache meet a few
/// tokens at a time.
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

/// `count` tokens in groups of at most `most`, as even as can be at the end: one token alone would not keep the
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

/// Something to be done with a number of tokens that is known when it is compiled.
trait ForTokens {
    /// The largest number of tokens that it is compiled for.
    const MOST: usize;
    fn tokens(&self) -> usize;
    fn with<const T: usize>(self);
}

/// The one place where the number of tokens becomes a constant.
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

/// The weights of a block from column `at`.
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

/// One row, block by block, with `SCALES` scales per block.
#[derive(Clone, Copy)]
struct Source<'a, E, const SCALES: usize> {
    blocks: &'a [Block<E>],
    tail: &'a [E],
    scales: &'a [f32],
    /// Blocks that share a scale, as a power of two; irrelevant unless there is one scale per block.
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

    /// The scales of a block; those of groups that lie behind the end of the row are zero.
    #[inline(always)]
    fn scales(&self, block: usize) -> [f32; SCALES] {
        let first = if SCALES == 1 { block >> self.shift } else { SCALES * block };
        std::array::from_fn(|s| self.scales.get(first + s).copied().unwrap_or(0.0))
    }

    /// The broken block at the end, zeros behind it.
    #[inline(always)]
    fn last(&self) -> Block<E> {
        let mut block = [E::ZERO; BLOCK];
        block[..self.tail.len()].copy_from_slice(self.tail);
        block
    }
}
