//! `y = x W^T` for ternary weights, written once over [`Simd`].
//!
//! Two kernels: for a few rows of activations the weights stay packed and pass once ([`decode`]); for more they are
//! unpacked into a panel of bytes that stays in the first cache while all rows pass ([`prefill`]). Both compute the same
//! integers, and turn them into floats in the same order, so a token's result depends neither on the kernel, nor on the
//! instruction set, nor on the tokens beside it:
//!
//! ```text
//! row = sum over sets, then over units of columns, of (scale * group factor) * f32(exact sum)
//!     + sum over units of (mean * group factor) * f32(exact sum of the activations)
//! ```
//!
//! [`sparse`] and [`blocks`] do the same over weights of which zeros are left out: single ones, or blocks of them.
//!
//! A unit is the smaller of the group of the weights and that of the activations; where neither has groups it is a whole
//! row, or [`LONG`] columns of a longer one.

#![allow(
    clippy::needless_range_loop,
    reason = "the indices are rows of activations, tiles and fields, and each walks several arrays"
)]

mod blocks;
mod decode;
mod prefill;
mod sparse;

#[cfg(test)]
mod tests;

use std::ops::Range;

use trike_trit::GroupSize;

use trike_core::ActivationPrecision;

use crate::activations::Activations;
use crate::kernels::Kernels;
use crate::line::{CodeLine, FloatLine, ROWS};
use crate::linear::Piece;
use crate::matrix::TernaryMatrix;
use crate::matrix::layout::{Fixed, LONG, Shape};
use crate::simd::Simd;
use trike_host::Line;

/// How a row of columns is cut into exact sums.
#[derive(Clone, Copy)]
pub(crate) struct Units {
    /// Columns of a unit, the last one excepted.
    pub(crate) cols: usize,
    /// How many there are.
    pub(crate) count: usize,
    /// Units that share a scale are `2^shift`.
    shift: u32,
    /// Columns with the padding of the layout.
    padded: usize,
}

impl Units {
    fn new(m: &TernaryMatrix, precision: ActivationPrecision) -> Self {
        let weights = m.group().map(GroupSize::get);
        let activations = precision.group();
        let cols = [weights, activations].into_iter().flatten().min().unwrap_or(LONG);
        let padded = m.shape().padded_cols();
        // Past the last column there is only padding.
        let shift = weights.map_or(usize::BITS - 1, |group| (group / cols).ilog2());
        Self { cols, count: m.cols().div_ceil(cols), shift, padded }
    }

    /// The columns of a unit.
    #[inline(always)]
    pub(crate) fn range(&self, unit: usize) -> (usize, usize) {
        let start = unit * self.cols;
        (start, (start + self.cols).min(self.padded))
    }

    /// Where the last unit ends.
    #[inline(always)]
    pub(crate) fn end(&self) -> usize {
        self.range(self.count - 1).1
    }

    /// The group of the scales that a unit lies in.
    #[inline(always)]
    pub(crate) fn group_of(&self, unit: usize) -> usize {
        unit >> self.shift
    }
}

/// `(3^planes - 1) / 2`: what a code of that many folded planes is above its value.
pub(crate) fn bias(planes: usize) -> i32 {
    (3i32.pow(planes as u32) - 1) / 2
}

/// Some tiles of one matrix, all tokens.
pub(crate) fn ternary_piece<K: Kernels>(
    kernels: K,
    m: &TernaryMatrix,
    x: &Activations,
    precision: ActivationPrecision,
    piece: &mut Piece<'_>,
) {
    let units = Units::new(m, precision);
    if let Some(blocks) = m.blocks() {
        blocks::piece(kernels, m, blocks, x, units, piece);
    } else if x.in_place() {
        match x.rows() {
            1 => kernels.run(decode::Decode::<K, 1>::new(kernels, m, x, units, piece)),
            2 => kernels.run(decode::Decode::<K, 2>::new(kernels, m, x, units, piece)),
            3 => kernels.run(decode::Decode::<K, 3>::new(kernels, m, x, units, piece)),
            _ => kernels.run(decode::Decode::<K, 4>::new(kernels, m, x, units, piece)),
        }
    } else if let Some(sparse) = m.sparse() {
        kernels.run(sparse::ManyTokens::new(kernels, m, sparse, x, units, piece));
    } else {
        kernels.run(prefill::Prefill::new(kernels, m, x, units, piece));
    }
}

/// Writes the outputs of some tiles; `sums` holds a line for each tile and row of activations.
#[inline(always)]
fn write<S: Simd>(
    s: S,
    x: &Activations,
    m: &TernaryMatrix,
    tiles: Range<usize>,
    sums: &[FloatLine],
    piece: &mut Piece<'_>,
) {
    /// Tokens that the prefetch runs ahead: their outputs lie far apart, and many of them share a set of the cache.
    const AHEAD: usize = 6;
    let start = (tiles.start - piece.tiles.start) * ROWS;
    let rows = (tiles.len() * ROWS).min(m.rows() - tiles.start * ROWS);
    let all = sums.len() / tiles.len();
    let mut line = Line([0.0; ROWS]);
    for token in 0..piece.out.len() {
        if let Some(out) = piece.out.get(token + AHEAD) {
            s.prefetch(&out[start], 0);
            s.prefetch(&out[start + rows - 1], 0);
        }
        let out = &mut piece.out[token][start..start + rows];
        for (sums, out) in sums.chunks_exact(all).zip(out.chunks_mut(ROWS)) {
            let slices = &sums[token * x.slices()..][..x.slices()];
            // The most significant byte comes last.
            let mut joined = s.load_floats(&slices[slices.len() - 1]);
            for low in slices[..slices.len() - 1].iter().rev() {
                joined = s.add(s.mul(joined, s.splat(256.0)), s.load_floats(low));
            }
            s.store_floats(s.mul(joined, s.splat(x.factor(token))), &mut line);
            match out.as_chunks_mut::<ROWS>().0 {
                [out] => *out = line.0,
                _ => out.copy_from_slice(&line.0[..out.len()]),
            }
        }
    }
}

/// What the means of one tile add.
#[inline(always)]
fn add_means<S: Simd>(s: S, x: &Activations, units: Units, means: &[FloatLine], sums: &mut [FloatLine]) {
    for unit in 0..units.count {
        let (start, end) = units.range(unit);
        let mean = s.load_floats(&means[units.group_of(unit)]);
        for (t, place) in sums.iter_mut().enumerate() {
            let total = s.to_floats(s.splat_int(x.negated(t, start, end).wrapping_neg()));
            let factor = s.mul(mean, s.splat(x.group_factor(t, start)));
            s.store_floats(s.add(s.load_floats(place), s.mul(factor, total)), place);
        }
    }
}

/// Unpacks columns `start..end` of one plane of one tile into four columns a line; planes after the first of a run are
/// folded in. `start` and `end` are multiples of the layout's period, or the end of its padding. What will be unpacked next
/// lies `ahead` bytes after what is now.
#[inline(always)]
fn unpack<S: Simd>(
    s: S,
    shape: &Shape,
    lines: &[CodeLine],
    (start, end): (usize, usize),
    ahead: usize,
    first: bool,
    panel: &mut [CodeLine],
) {
    let lines = &lines[shape.lines_for(start)..shape.lines_for(end)];
    match shape.layout() {
        Fixed::TwoBit => {
            for (line, places) in lines.iter().zip(panel.as_chunks_mut::<4>().0) {
                s.prefetch(line, ahead);
                let codes = s.unpack(s.load(line));
                for f in 0..4 {
                    put(s, &mut places[f], codes[f], first);
                }
            }
        }
        Fixed::Base3 => {
            let steps = shape.span() / 4;
            for (lines, panel) in lines.chunks_exact(steps).zip(panel.chunks_exact_mut(5 * steps)) {
                for (i, line) in lines.iter().enumerate() {
                    s.prefetch(line, ahead);
                    let codes = s.digits(s.load(line));
                    for f in 0..5 {
                        put(s, &mut panel[f * steps + i], codes[f], first);
                    }
                }
            }
        }
    }
}

/// Writes the codes of a plane, or folds them into those of the planes before.
#[inline(always)]
fn put<S: Simd>(s: S, place: &mut CodeLine, codes: S::Bytes, first: bool) {
    let codes = if first { codes } else { s.fold(s.load(place), codes) };
    s.store(codes, place);
}

/// What is asked for while panels are multiplied: `stride` bytes further with every step.
#[derive(Clone, Copy)]
struct Ahead<'a, const N: usize> {
    places: [&'a CodeLine; N],
    stride: usize,
}

/// `ints` plus the sums of code times activation over some steps of four columns: `N` tiles by `T` rows in registers.
#[inline(always)]
fn products<S: Simd, const N: usize, const T: usize>(
    s: S,
    panels: [&[CodeLine]; N],
    x: &[[[i8; 4]; T]],
    largest: u8,
    mut ahead: Ahead<'_, N>,
    mut ints: [[S::Ints; T]; N],
) -> [[S::Ints; T]; N] {
    if S::WIDE {
        return run_of_products(s, panels, x, ahead, ints);
    }
    let mut start = 0;
    while start < x.len() {
        let len = S::steps(largest).min(x.len() - start);
        let mut parts: [&[CodeLine]; N] = [&[]; N];
        for n in 0..N {
            parts[n] = &panels[n][start..start + len];
        }
        ints = run_of_products(s, parts, &x[start..start + len], ahead, ints);
        // One run is enough to ask for everything where runs are short.
        ahead.stride = 0;
        start += len;
    }
    ints
}

/// [`products`] over as many steps as sums can hold.
#[inline(always)]
fn run_of_products<S: Simd, const N: usize, const T: usize>(
    s: S,
    panels: [&[CodeLine]; N],
    x: &[[[i8; 4]; T]],
    ahead: Ahead<'_, N>,
    mut ints: [[S::Ints; T]; N],
) -> [[S::Ints; T]; N] {
    // Sums start from zeros: with anything else the compiler keeps the start in registers that the sums need.
    let mut acc = [[s.no_acc(); T]; N];
    let mut parts: [&[CodeLine]; N] = [&[]; N];
    for n in 0..N {
        parts[n] = &panels[n][..x.len()];
    }
    for (i, x) in x.iter().enumerate() {
        let mut codes = [s.splat_byte(0); N];
        for n in 0..N {
            codes[n] = s.load(&parts[n][i]);
            s.prefetch(ahead.places[n], i * ahead.stride);
        }
        for t in 0..T {
            let x = s.four(x[t]);
            for n in 0..N {
                acc[n][t] = s.dot(acc[n][t], codes[n], x);
            }
        }
    }
    for n in 0..N {
        for t in 0..T {
            ints[n][t] = s.add_ints(s.to_ints(acc[n][t]), ints[n][t]);
        }
    }
    ints
}
