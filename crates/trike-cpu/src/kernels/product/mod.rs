//! `x W^T` for dense weights: one source for every vector instruction set.
//!
//! Weights are widened to f32, products are accumulated with FMA, and every output is summed in `LANES` lanes over spans of [`Rows::span`] blocks of columns; the folds of the spans are
//! added in order. An output therefore depends only on its own row and token, and is bit-identical for any number of
//! tokens.
//!
//! Few tokens make one pass over the weights ([`stream`]), a moderate number reuses rows that stay in the L2 cache, and many tokens
//! are multiplied with panels of widened weights ([`panel`]).

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
/// Bytes of weights that stay in the L2 cache while the tokens are processed.
const RESIDENT: usize = 256 << 10;
/// Alignment of data that is read repeatedly: one cache line, so that no vector crosses a line.
const LINE: usize = 64;

/// A block of activations, or of weights.
type Block<E> = [E; BLOCK];

/// Cache lines per block.
const fn lines<E>() -> usize {
    size_of::<Block<E>>() / LINE
}

/// `out[t][r] = w[r] . x[t]`.
pub(crate) fn product<S: Streaming, E: Element>(simd: S, w: Rows<'_, E>, x: &[f32], out: &mut [&mut [f32]]) {
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
    if out.len() <= few::<S>() {
        for_tokens(Few { simd, w, x, out });
    } else if out.len() <= SOME {
        some(simd, w, x, out);
    } else {
        many(simd, w, x, out);
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

/// Maximum tokens whose sums stay in registers next to weights that are widened on the fly.
const fn few<S: Streaming>() -> usize {
    S::SIDE_TOKENS - 1
}

/// The product for a moderate number of tokens, too few for panels: rows that stay in the L2 cache are multiplied by a few tokens
/// at a time.
fn some<S: Streaming, E: Element>(simd: S, w: Rows<'_, E>, x: &[Block<f32>], out: &mut [&mut [f32]]) {
    let step = (RESIDENT / size_of_val(w.row(0))).max(SIDE);
    for first in (0..w.count()).step_by(step) {
        let rows = first..(first + step).min(w.count());
        let part = w.slice(rows.clone());
        for tokens in groups(out.len(), few::<S>()) {
            let x = &x[tokens.start * w.blocks()..tokens.end * w.blocks()];
            let mut out: Vec<&mut [f32]> = out[tokens].iter_mut().map(|out| &mut out[rows.clone()]).collect();
            for_tokens(Few { simd, w: part, x, out: &mut out });
        }
    }
}

/// Splits `count` tokens into groups of at most `most`, balancing the last ones: a single token would underuse the multipliers.
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
    const { assert!(F::MOST <= MOST_TOKENS, "every number has a match arm") };
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

/// A row in blocks.
#[derive(Clone, Copy)]
struct Source<'a, E> {
    blocks: &'a [Block<E>],
    tail: &'a [E],
}

impl<'a, E: Element> Source<'a, E> {
    #[inline(always)]
    fn new(w: Rows<'a, E>, row: usize) -> Self {
        let (blocks, tail) = w.row(row).as_chunks();
        Self { blocks, tail }
    }

    /// The partial last block, padded with zeros.
    #[inline(always)]
    fn last(&self) -> Block<E> {
        let mut block = [E::ZERO; BLOCK];
        block[..self.tail.len()].copy_from_slice(self.tail);
        block
    }
}
