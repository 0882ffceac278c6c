//! Matvec for few tokens: one pass over the weights.
//!
//! Memory bandwidth is the bottleneck, and four streams a quarter of the rows apart are read faster than one: each is in its own
//! page, and the hardware prefetchers work within a page. The rows of a stream are contiguous, so a fixed prefetch distance is also
//! correct at the ends of rows.

use super::{Block, ForTokens, LINE, SIDE, Source, few, lines};
use crate::kernels::Element;
use crate::kernels::floats::Streaming;
use crate::kernels::rows::{BLOCK, Rows};
use trike_host::Loop;

/// Prefetch distance of weights, in bytes.
const AHEAD: usize = 2048;

/// The whole product for a few tokens.
pub(super) struct Few<'a, 'o, S, E> {
    pub(super) simd: S,
    pub(super) w: Rows<'a, E>,
    pub(super) x: &'a [Block<f32>],
    pub(super) out: &'a mut [&'o mut [f32]],
}

impl<S: Streaming, E: Element> ForTokens for Few<'_, '_, S, E> {
    const MOST: usize = few::<S>();

    fn tokens(&self) -> usize {
        self.out.len()
    }

    fn with<const T: usize>(self) {
        let Self { simd, w, x, out } = self;
        let blocks = w.blocks();
        let x = std::array::from_fn(|t| &x[t * blocks..][..blocks]);
        simd.run(Stream::<S, E, T> { simd, w, x, out });
    }
}

/// One pass over all rows, in four streams.
struct Stream<'a, 'o, S, E, const T: usize> {
    simd: S,
    w: Rows<'a, E>,
    x: [&'a [Block<f32>]; T],
    out: &'a mut [&'o mut [f32]],
}

impl<S: Streaming, E: Element, const T: usize> Loop for Stream<'_, '_, S, E, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { simd, w, x, out } = self;
        let (rows, quarter) = (w.count(), w.count() / SIDE);
        let left = SIDE * quarter;
        // The remaining rows share this loop, so that the products are compiled once.
        for row in 0..quarter + usize::from(left < rows) {
            let places = if row < quarter {
                [0, 1, 2, 3].map(|q| q * quarter + row)
            } else {
                // Missing rows repeat the last one.
                [0, 1, 2, 3].map(|q| (left + q).min(rows - 1))
            };
            let sums = four_rows(simd, w, places, x);
            for (out, sums) in out.iter_mut().zip(sums) {
                for (place, sum) in places.into_iter().zip(sums) {
                    out[place] = sum;
                }
            }
        }
    }
}

/// Four rows times `T` tokens.
#[inline(always)]
fn four_rows<S: Streaming, E: Element, const T: usize>(
    simd: S,
    w: Rows<'_, E>,
    rows: [usize; SIDE],
    x: [&[Block<f32>]; T],
) -> [[f32; SIDE]; T] {
    let (blocks, span) = (w.blocks(), w.span());
    let source = rows.map(|row| Source::new(w, row));
    let whole = w.cols / BLOCK;
    let mut sums = [[0.0; SIDE]; T];
    for start in (0..blocks).step_by(span) {
        let end = (start + span).min(blocks);
        let mut acc = [[simd.splat_lanes(0.0); SIDE]; T];
        let weights = source.map(|source| &source.blocks[start..end.min(whole)]);
        let xs = x.map(|x| &x[start..end]);
        for i in 0..weights[0].len() {
            let weights = weights.map(|weights| &weights[i]);
            for weights in weights {
                for line in 0..lines::<E>() {
                    simd.prefetch_lanes::<true>(
                        std::ptr::from_ref(weights).cast::<u8>().wrapping_add(AHEAD + line * LINE),
                    );
                }
            }
            add_block(simd, weights, xs.map(|x| &x[i]), &mut acc);
        }
        if end > whole {
            let weights = source.map(|source| source.last());
            add_block(simd, weights.each_ref(), xs.map(|x| &x[whole - start]), &mut acc);
        }
        for (sums, acc) in sums.iter_mut().zip(acc) {
            let folded = simd.fold_lanes(acc);
            if start == 0 {
                *sums = folded;
            } else {
                sums.iter_mut().zip(folded).for_each(|(sum, more)| *sum += more);
            }
        }
    }
    sums
}

/// Accumulates the products of one block.
#[inline(always)]
fn add_block<S: Streaming, E: Element, const T: usize>(
    simd: S,
    weights: [&Block<E>; SIDE],
    x: [&Block<f32>; T],
    acc: &mut [[S::Lanes; SIDE]; T],
) {
    for at in (0..BLOCK).step_by(S::LANES) {
        let mut xs = [simd.splat_lanes(0.0); T];
        for t in 0..T {
            xs[t] = simd.load_lanes(x[t], at);
        }
        for r in 0..SIDE {
            let w = simd.load_lanes(weights[r], at);
            for t in 0..T {
                acc[t][r] = simd.mul_add(w, xs[t], acc[t][r]);
            }
        }
    }
}
