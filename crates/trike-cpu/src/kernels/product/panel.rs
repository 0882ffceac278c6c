//! GEMM for many tokens, with weights widened into panels of 32 rows of one span.
//!
//! A panel stays in the L2 cache while all tokens are processed, in groups that stay in L1. Meanwhile the weights of the
//! next panel are prefetched.

use std::ops::Range;

use super::{Block, ForTokens, LINE, PANEL, SIDE, Source, aligned, for_tokens, groups, lines};
use crate::kernels::Element;
use crate::kernels::floats::Streaming;
use crate::kernels::rows::{BLOCK, Rows};
use trike_host::Loop;

/// A block of four rows in f32 in read order: step by step, and within a step row by row.
const QUAD: usize = SIDE * BLOCK;
/// Prefetch distance in rows of a panel. A span of a row is too short for the hardware prefetcher.
const ROWS_AHEAD: usize = 4;

/// The product for many tokens, panel by panel.
pub(super) fn many<S: Streaming, E: Element>(
    simd: S,
    w: Rows<'_, E>,
    x: &[Block<f32>],
    out: &mut [&mut [f32]],
) {
    let (rows, blocks, span) = (w.count(), w.blocks(), w.span());
    let len = PANEL.min(rows).next_multiple_of(SIDE) * span * BLOCK;
    let (mut buffer, aligned) = aligned(len);
    buffer.resize(aligned + len, 0.0);
    let starts = || (0..blocks).step_by(span);
    let panels: Vec<(usize, usize)> =
        (0..rows).step_by(PANEL).flat_map(|first| starts().map(move |start| (first, start))).collect();
    let at = |&(first, start): &(usize, usize)| {
        (w.slice(first..(first + PANEL).min(rows)), start..(start + span).min(blocks))
    };
    for (p, panel) in panels.iter().enumerate() {
        let (some, range) = at(panel);
        let quads = some.count().div_ceil(SIDE);
        let numbers = buffer[aligned..][..quads * range.len() * QUAD].as_chunks_mut().0;
        simd.run(Pack { simd, w: some, range: range.clone(), panel: numbers });
        let ahead = panels.get(p + 1).map(at).map_or_else(Vec::new, |(w, range)| runs(w, &range));
        for (group, tokens) in groups(out.len(), S::SIDE_TOKENS).enumerate() {
            for_tokens(Group {
                simd,
                panel: numbers,
                x: &x[tokens.start * blocks..tokens.end * blocks],
                blocks,
                range: range.clone(),
                first: panel.0,
                ahead: ahead.get(group * quads..).unwrap_or_default(),
                out: &mut out[tokens],
            });
        }
    }
}

/// Addresses of the weights of a panel, in runs of as many lines as the panel has blocks.
fn runs<E: Element>(w: Rows<'_, E>, range: &Range<usize>) -> Vec<*const u8> {
    let bytes = size_of::<Block<E>>();
    let begin = |row| w.row(row).as_ptr().cast::<u8>().wrapping_add(range.start * bytes);
    let runs = |row| (0..bytes / LINE).map(move |run| begin(row).wrapping_add(run * range.len() * LINE));
    (0..w.count()).flat_map(runs).collect()
}

/// Widens some blocks of at most [`PANEL`] rows to f32 in the order of [`QUAD`]; missing rows repeat the last one.
struct Pack<'a, S, E> {
    simd: S,
    w: Rows<'a, E>,
    range: Range<usize>,
    panel: &'a mut [[f32; QUAD]],
}

impl<S: Streaming, E: Element> Loop for Pack<'_, S, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { simd, w, range, panel } = self;
        let last = w.count() - 1;
        for (q, panel) in panel.chunks_exact_mut(range.len()).enumerate() {
            for r in 0..SIDE {
                let source = Source::new(w, (q * SIDE + r).min(last));
                for (block, quad) in range.clone().zip(panel.iter_mut()) {
                    let broken;
                    let codes = match source.blocks.get(block) {
                        Some(codes) => codes,
                        None => {
                            broken = source.last();
                            &broken
                        }
                    };
                    for line in 0..lines::<E>() {
                        let bytes = ROWS_AHEAD * size_of_val(w.row(0)) + line * LINE;
                        simd.prefetch_lanes::<false>(
                            std::ptr::from_ref(codes).cast::<u8>().wrapping_add(bytes),
                        );
                    }
                    for at in (0..BLOCK).step_by(S::LANES) {
                        simd.store_lanes(quad, at * SIDE + r * S::LANES, simd.load_lanes(codes, at));
                    }
                }
            }
        }
    }
}

/// A panel and a group of tokens.
struct Group<'a, 'o, S> {
    simd: S,
    panel: &'a [[f32; QUAD]],
    x: &'a [Block<f32>],
    /// Blocks per token.
    blocks: usize,
    /// Blocks of the panel.
    range: Range<usize>,
    /// The first row of the panel.
    first: usize,
    /// Addresses of the lines of the next panel to prefetch, one run per four rows; there may be fewer.
    ahead: &'a [*const u8],
    out: &'a mut [&'o mut [f32]],
}

impl<S: Streaming> ForTokens for Group<'_, '_, S> {
    const MOST: usize = S::SIDE_TOKENS;

    fn tokens(&self) -> usize {
        self.out.len()
    }

    fn with<const T: usize>(self) {
        let x = std::array::from_fn(|t| &self.x[t * self.blocks..][self.range.clone()]);
        let Self { simd, panel, first, range, ahead, out, .. } = self;
        simd.run(Multiply::<S, T> { simd, panel, x, first, begins: range.start == 0, ahead, out });
    }
}

/// Adds the products of a panel to the outputs; the first panel of a row overwrites them.
struct Multiply<'a, 'o, S, const T: usize> {
    simd: S,
    panel: &'a [[f32; QUAD]],
    x: [&'a [Block<f32>]; T],
    first: usize,
    begins: bool,
    ahead: &'a [*const u8],
    out: &'a mut [&'o mut [f32]],
}

impl<S: Streaming, const T: usize> Loop for Multiply<'_, '_, S, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { simd, panel, x, first, begins, ahead, out } = self;
        let blocks = x[0].len();
        let mut x = x;
        for x in &mut x {
            *x = &x[..blocks];
        }
        for (q, quads) in panel.chunks_exact(blocks).enumerate() {
            let mut acc = [[simd.splat_lanes(0.0); SIDE]; T];
            // If nothing is left to prefetch, use the resident panel.
            let ahead = ahead.get(q).copied().unwrap_or(quads.as_ptr().cast());
            for (i, quad) in quads.iter().enumerate() {
                simd.prefetch_lanes::<false>(ahead.wrapping_add(i * LINE));
                for at in (0..BLOCK).step_by(S::LANES) {
                    let mut xs = [simd.splat_lanes(0.0); T];
                    for t in 0..T {
                        xs[t] = simd.load_lanes(&x[t][i], at);
                    }
                    for r in 0..SIDE {
                        let w = simd.load_lanes(quad, at * SIDE + r * S::LANES);
                        for t in 0..T {
                            acc[t][r] = simd.mul_add(w, xs[t], acc[t][r]);
                        }
                    }
                }
            }
            for (out, acc) in out.iter_mut().zip(acc) {
                let folded = simd.fold_lanes(acc);
                let out = &mut out[first + q * SIDE..];
                if let Some(out) = out.first_chunk_mut::<SIDE>() {
                    for r in 0..SIDE {
                        out[r] = if begins { folded[r] } else { out[r] + folded[r] };
                    }
                } else {
                    for (out, more) in out.iter_mut().zip(folded) {
                        *out = if begins { more } else { *out + more };
                    }
                }
            }
        }
    }
}
