//! `y = x W^T` for int8 weights, written once over [`Simd`], so that every instruction set computes the same bits.
//!
//! Activations are 16-bit fixed point ([`Pairs`]): products with codes are summed exactly in integers over the columns
//! of a group, at most [`UNIT`] at a time, and converted to floats in order:
//!
//! ```text
//! row = factor of the token * sum over units of scale * f32(sum of code * activation)
//! ```
//!
//! A step multiplies two columns of sixteen rows. Weights are sign-extended to 16 bits on load; with products of 16-bit pairs,
//! neither an offset nor a second byte of the activations has to be recombined afterwards.

#![allow(
    clippy::needless_range_loop,
    reason = "the indices are rows of activations and tiles, and each walks several arrays"
)]

mod pairs;

pub(crate) use pairs::Pairs;

use std::ops::Range;

use half::f16;

use crate::kernels::{Kernels, with_kernels};
use crate::line::{CodeLine, FloatLine, ROWS};
use crate::matrix::Int8Matrix;
use crate::piece::Piece;
use crate::simd::Simd;
use pairs::Four;
use trike_host::{CacheLine, Isa, Loop};

/// Maximum columns per exact sum: `256 * 128 * 2^15 = 2^30`.
const UNIT: usize = 256;
/// Columns of two tiles that stay in the L1 cache while all activations are multiplied with them.
const BLOCK: usize = 512;
/// Prefetch distance: far beyond the hardware prefetchers, and within the L1 cache for two tiles.
const AHEAD: usize = 8 << 10;

/// Computes some tiles of one matrix for all tokens.
pub(crate) fn int8_piece(isa: Isa, m: &Int8Matrix, x: &Pairs, piece: &mut Piece<'_>) {
    with_kernels!(isa, kernels => kernels.run(Product { s: kernels, m, x, piece }));
}

struct Product<'a, 'p, S> {
    s: S,
    m: &'a Int8Matrix,
    x: &'a Pairs,
    piece: &'a mut Piece<'p>,
}

impl<S: Kernels> Loop for Product<'_, '_, S> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { s, m, x, piece } = self;
        let rows = x.rows();
        // With one row of activations bandwidth is the bottleneck, and one stream is read faster than two.
        let most = if S::PAIR_SUMS < 24 || rows == 1 { 1 } else { 2 };
        let mut sums = vec![CacheLine([0.0; ROWS]); most * rows];
        let mut tile = piece.tiles.start;
        while tile < piece.tiles.end {
            let count = most.min(piece.tiles.end - tile);
            let sums = &mut sums[..count * rows];
            let tiles = tile..tile + count;
            if const { S::PAIR_SUMS >= 24 } && count == 2 {
                all_rows::<S, 2>(s, m, x, tile, sums);
            } else {
                all_rows::<S, 1>(s, m, x, tile, sums);
            }
            piece.write(s, &x.joined(), tiles, sums);
            tile += count;
        }
    }
}

/// The sums of `N` tiles for all rows of activations.
#[inline(always)]
fn all_rows<S: Simd, const N: usize>(s: S, m: &Int8Matrix, x: &Pairs, tile: usize, sums: &mut [FloatLine]) {
    let rows = x.rows();
    sums.fill(CacheLine([0.0; ROWS]));
    let groups = m.groups();
    let step = if rows == 1 { groups } else { (BLOCK / m.padded_group()).max(1) };
    for first in (0..groups).step_by(step) {
        let block = first..(first + step).min(groups);
        let mut row = 0;
        while row < rows {
            let left = rows - row;
            if const { S::PAIR_SUMS >= 24 } && left >= 6 && left != 8 {
                some_rows::<S, N, 6>(s, m, x, tile, block.clone(), row, sums);
                row += 6;
            } else if const { S::PAIR_SUMS >= 24 } && left >= 4 {
                some_rows::<S, N, 4>(s, m, x, tile, block.clone(), row, sums);
                row += 4;
            } else if left >= 2 {
                some_rows::<S, N, 2>(s, m, x, tile, block.clone(), row, sums);
                row += 2;
            } else {
                some_rows::<S, N, 1>(s, m, x, tile, block.clone(), row, sums);
                row += 1;
            }
        }
    }
}

/// Adds some groups of `N` tiles for the `T` rows of activations from `row` on.
#[inline(always)]
fn some_rows<S: Simd, const N: usize, const T: usize>(
    s: S,
    m: &Int8Matrix,
    x: &Pairs,
    tile: usize,
    groups: Range<usize>,
    row: usize,
    all: &mut [FloatLine],
) {
    let rows = x.rows();
    let mut sums = [[s.splat(0.0); T]; N];
    for n in 0..N {
        for t in 0..T {
            sums[n][t] = s.load_floats(&all[n * rows + row + t]);
        }
    }
    let mut xs: [&[Four]; T] = [&[]; T];
    for t in 0..T {
        xs[t] = x.row(row + t);
    }
    let lines = m.padded_group() / 4;
    for g in groups {
        let mut codes: [&[CodeLine]; N] = [&[]; N];
        let mut scale = [s.splat(0.0); N];
        for n in 0..N {
            let group = m.group_of(tile + n, g);
            s.prefetch(group.scales, AHEAD);
            scale[n] = if group.halves {
                s.load_halves(&bytemuck::cast_ref::<[u8; 64], [[f16; 16]; 2]>(&group.scales.0)[g % 2])
            } else {
                s.load_any(bytemuck::cast_ref(&group.scales.0))
            };
            codes[n] = group.codes;
        }
        let len = codes[0].len();
        let mut start = 0;
        while start < len {
            let end = (start + UNIT / 4).min(len);
            let mut unit_codes: [&[CodeLine]; N] = [&[]; N];
            for n in 0..N {
                unit_codes[n] = &codes[n][start..end];
            }
            let mut unit_x: [&[Four]; T] = [&[]; T];
            for t in 0..T {
                unit_x[t] = &xs[t][g * lines + start..g * lines + end];
            }
            let exact = products::<S, N, T>(s, unit_codes, unit_x);
            for n in 0..N {
                for t in 0..T {
                    sums[n][t] = s.add(sums[n][t], s.mul(scale[n], s.to_floats(exact[n][t])));
                }
            }
            start = end;
        }
    }
    for n in 0..N {
        for t in 0..T {
            s.store_floats(sums[n][t], &mut all[n * rows + row + t]);
        }
    }
}

/// The exact sums of some lines.
#[inline(always)]
fn products<S: Simd, const N: usize, const T: usize>(
    s: S,
    codes: [&[CodeLine]; N],
    x: [&[Four]; T],
) -> [[S::Ints; T]; N] {
    let len = codes[0].len();
    let mut lines: [&[CodeLine]; N] = [&[]; N];
    for n in 0..N {
        lines[n] = &codes[n][..len];
    }
    let mut xs: [&[Four]; T] = [&[]; T];
    for t in 0..T {
        xs[t] = &x[t][..len];
    }
    // Two sums for small products, which would otherwise wait for each other.
    let mut sums = [[[s.splat_int(0); T]; N]; 2];
    for i in 0..len {
        for n in 0..N {
            s.prefetch(&lines[n][i], AHEAD);
        }
        for half in 0..2 {
            let chain = if N * T < 4 { half } else { 0 };
            let mut w = [s.splat_int(0); N];
            for n in 0..N {
                w[n] = s.load_pairs(&lines[n][i], half);
            }
            for t in 0..T {
                let x = s.splat_int(xs[t][i].0[half]);
                for n in 0..N {
                    sums[chain][n][t] = s.dot_pairs(sums[chain][n][t], w[n], x);
                }
            }
        }
    }
    if N * T < 4 {
        for n in 0..N {
            for t in 0..T {
                sums[0][n][t] = s.add_ints(sums[0][n][t], sums[1][n][t]);
            }
        }
    }
    sums[0]
}
