//! A share of the work of a linear layer.

use std::ops::Range;

use crate::kernels::Kernels;
use crate::line::{FloatLine, ROWS};
use crate::matrix::Matrix;
use crate::simd::Simd;
use trike_host::{CacheLine, Loop};

/// Tiles that kernels for few rows of activations compute between writes of the outputs: few enough for the L1 cache.
pub(crate) const WRITTEN: usize = 16;

/// A range of tiles of one matrix and their outputs: per token, the rows of those tiles.
pub(crate) struct Piece<'a> {
    pub(crate) w: &'a Matrix,
    pub(crate) tiles: Range<usize>,
    pub(crate) out: Vec<&'a mut [f32]>,
}

/// Parameters for converting the sums of rows of activations to outputs: the `slices` rows of a token are digits, the least
/// significant first.
pub(crate) struct Joined<'a> {
    pub(crate) slices: usize,
    /// Base of the digits: the value of a digit's step in steps of the previous digit.
    pub(crate) base: f32,
    /// Value of one step, per token.
    pub(crate) factors: &'a [f32],
}

impl Piece<'_> {
    /// Writes the outputs of some tiles of [`ROWS`] rows; `sums` holds one line per tile and row of activations.
    ///
    /// A separate loop, as kernels of every kind end with it. Those for few rows of activations call it for [`WRITTEN`] tiles at a
    /// time.
    pub(crate) fn write<S: Kernels>(
        &mut self,
        s: S,
        x: &Joined<'_>,
        tiles: Range<usize>,
        sums: &[FloatLine],
    ) {
        s.run(Write { s, piece: self, x, tiles, sums });
    }
}

/// [`Piece::write`].
struct Write<'a, 'p, S> {
    s: S,
    piece: &'a mut Piece<'p>,
    x: &'a Joined<'a>,
    tiles: Range<usize>,
    sums: &'a [FloatLine],
}

impl<S: Simd> Loop for Write<'_, '_, S> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        /// Prefetch distance in tokens: their outputs are far apart, and many of them map to the same cache set.
        const AHEAD: usize = 6;
        let Self { s, piece, x, tiles, sums } = self;
        let start = (tiles.start - piece.tiles.start) * ROWS;
        let rows = (tiles.len() * ROWS).min(piece.w.rows() - tiles.start * ROWS);
        let all = sums.len() / tiles.len();
        let highest = x.base.powi(x.slices as i32 - 1);
        for token in 0..piece.out.len() {
            if let Some(out) = piece.out.get(token + AHEAD) {
                s.prefetch(&out[start], 0);
                s.prefetch(&out[start + rows - 1], 0);
            }
            let mut place = token * x.slices;
            for out in piece.out[token][start..start + rows].chunks_mut(ROWS) {
                // The most significant digit is last. With more than one digit the factors are powers of two, so multiplying by
                // them first does not affect rounding, and it keeps sums of large weights from overflowing.
                let mut factor = x.factors[token] * highest;
                let slices = &sums[place..place + x.slices];
                let mut joined = s.mul(s.load_floats(&slices[slices.len() - 1]), s.splat(factor));
                for low in slices[..slices.len() - 1].iter().rev() {
                    factor /= x.base;
                    joined = s.add(joined, s.mul(s.load_floats(low), s.splat(factor)));
                }
                let mut line = CacheLine([0.0; ROWS]);
                s.store_floats(joined, &mut line);
                match out.as_chunks_mut::<ROWS>().0 {
                    [out] => *out = line.0,
                    _ => out.copy_from_slice(&line.0[..out.len()]),
                }
                place += all;
            }
        }
    }
}
