//! `y = x W^T` for ternary weights, written once over [`Simd`].
//!
//! Three kernels: for few rows of activations the weights stay packed and are read in one pass ([`decode`]); for more rows they are
//! unpacked into a panel of bytes that stays in the L1 cache for all rows ([`prefill`]), or, for one plane of 2-bit codes if
//! registers suffice, in registers ([`batch`]). All compute the same integers and convert them to floats in the same order, so the
//! result of a token depends neither on the kernel, nor on the instruction set, nor on the other tokens:
//!
//! ```text
//! row = sum over sets, then over units of columns, of (scale * group factor) * f32(exact sum)
//!     + sum over units of (mean * group factor) * f32(exact sum of the activations)
//! ```
//!
//! [`sparse`] and [`blocks`] do the same for weights stored without zeros or without blocks of zeros.
//!
//! A unit is the smaller of the weight group and the activation group; without any groups it is a whole row, or
//! [`LONG`] columns of a longer one.

#![allow(
    clippy::needless_range_loop,
    reason = "the indices are rows of activations, tiles and fields, and each walks several arrays"
)]

mod batch;
mod blocks;
mod decode;
mod permutes;
mod prefill;
mod sparse;

#[cfg(test)]
mod tests;

use trike_trit::GroupSize;

use trike_core::ActivationPrecision;

use crate::activations::Activations;
use crate::kernels::{Kernels as _, with_kernels, with_shared_kernels};
use crate::line::{CodeLine, FloatLine};
use crate::matrix::LONG;
use crate::matrix::TernaryMatrix;
use crate::piece::Piece;
use crate::simd::Simd;
use trike_core::{TileLayout, TritShape};
use trike_host::Isa;

use permutes::{PermuteLoop, Permutes, RunPermuting};

/// Partition of a row of columns into exact sums.
#[derive(Clone, Copy)]
pub(crate) struct Units {
    /// Columns per unit, except for the last one.
    pub(crate) cols: usize,
    /// Number of units.
    pub(crate) count: usize,
    /// log2 of the units per scale.
    shift: u32,
    /// Columns including the padding of the layout.
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

    /// End column of the last unit.
    #[inline(always)]
    pub(crate) fn end(&self) -> usize {
        self.range(self.count - 1).1
    }

    /// The scale group of a unit.
    #[inline(always)]
    pub(crate) fn group_of(&self, unit: usize) -> usize {
        unit >> self.shift
    }
}

/// `(3^planes - 1) / 2`: the offset of a code of this many folded planes from its value.
pub(crate) fn bias(planes: usize) -> i32 {
    (3i32.pow(planes as u32) - 1) / 2
}

/// Computes some tiles of one matrix for all tokens.
pub(crate) fn ternary_piece(
    isa: Isa,
    m: &TernaryMatrix,
    x: &Activations,
    precision: ActivationPrecision,
    piece: &mut Piece<'_>,
) {
    let units = Units::new(m, precision);
    match (m.blocks(), m.sparse()) {
        (None, Some(sparse)) if !x.in_place() => {
            with_shared_kernels!(isa, kernels => {
                kernels.run(sparse::ManyTokens::new(kernels, m, sparse, x, units, piece));
            });
        }
        _ => with_kernels!(isa, kernels => piece_with(kernels, m, x, units, piece)),
    }
}

/// The kernels with products of codes and activations.
fn piece_with<K: RunPermuting>(
    kernels: K,
    m: &TernaryMatrix,
    x: &Activations,
    units: Units,
    piece: &mut Piece<'_>,
) {
    if let Some(blocks) = m.blocks() {
        blocks::piece(kernels, m, blocks, x, units, piece);
    } else if x.in_place() {
        decode::piece(kernels, m, x, units, piece);
    } else if const { batch::Batch::<K>::EXISTS } && batch::takes(m, x, units) {
        kernels.run(batch::Batch::new(kernels, m, x, units, piece));
    } else {
        kernels.run(prefill::Prefill::new(kernels, m, x, units, piece));
    }
}

/// Adds the contribution of the means of one tile.
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

/// Unpacks columns `start..end` of one plane of one tile into lines of four columns; planes after the first of a run
/// are folded in. `start` and `end` are multiples of the layout's period, or the end of its padding.
struct Unpack<'a> {
    shape: &'a TritShape,
    lines: &'a [CodeLine],
    /// Distance in bytes to the next lines to unpack, for prefetching.
    ahead: usize,
    /// Whether the plane is the first of its run.
    first: bool,
    panel: &'a mut [CodeLine],
}

impl<'a> Unpack<'a> {
    fn new(
        shape: &'a TritShape,
        lines: &'a [CodeLine],
        (start, end): (usize, usize),
        ahead: usize,
        first: bool,
        panel: &'a mut [CodeLine],
    ) -> Self {
        Self { shape, lines: &lines[shape.lines_for(start)..shape.lines_for(end)], ahead, first, panel }
    }

    /// Unpacks either layout.
    #[inline(always)]
    fn unpack<K: RunPermuting>(self, k: K) {
        match self.shape.layout() {
            TileLayout::TwoBit => self.two_bit(k),
            TileLayout::Base3 => k.run_permuting(self),
        }
    }

    #[inline(always)]
    fn two_bit<S: Simd>(self, s: S) {
        let Self { lines, ahead, first, panel, .. } = self;
        for (line, places) in lines.iter().zip(panel.as_chunks_mut::<4>().0) {
            s.prefetch(line, ahead);
            let codes = s.unpack(s.load(line));
            for f in 0..4 {
                put(s, &mut places[f], codes[f], first);
            }
        }
    }
}

/// Base-3 bytes.
impl<S: Simd> PermuteLoop<S> for Unpack<'_> {
    type Output = ();

    #[inline(always)]
    fn run<P: Permutes<S>>(self, s: S, permutes: P) {
        let Self { shape, lines, ahead, first, panel } = self;
        let steps = shape.span() / 4;
        for (lines, panel) in lines.chunks_exact(steps).zip(panel.chunks_exact_mut(5 * steps)) {
            for (i, line) in lines.iter().enumerate() {
                s.prefetch(line, ahead);
                let codes = permutes.digits(s, s.load(line));
                for f in 0..5 {
                    put(s, &mut panel[f * steps + i], codes[f], first);
                }
            }
        }
    }
}

/// Writes the codes of a plane, or folds them into those of the preceding planes.
#[inline(always)]
fn put<S: Simd>(s: S, place: &mut CodeLine, codes: S::Bytes, first: bool) {
    let codes = if first { codes } else { s.fold(s.load(place), codes) };
    s.store(codes, place);
}

/// Prefetch addresses while panels are multiplied; advanced by `stride` bytes per step.
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
    if const { S::WIDE } {
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
        // If runs are short, the first one prefetches everything.
        ahead.stride = 0;
        start += len;
    }
    ints
}

/// Adds the products of one step, and prefetches.
#[inline(always)]
fn step<S: Simd, const N: usize, const T: usize>(
    s: S,
    panels: [&[CodeLine]; N],
    i: usize,
    x: &[[i8; 4]; T],
    ahead: Ahead<'_, N>,
    acc: [[S::Acc; T]; N],
) -> [[S::Acc; T]; N] {
    for n in 0..N {
        s.prefetch(ahead.places[n], i * ahead.stride);
    }
    plain_step::<S, N, T>(s, panels, i, x, acc)
}

/// Adds the products of one step.
#[inline(always)]
fn plain_step<S: Simd, const N: usize, const T: usize>(
    s: S,
    panels: [&[CodeLine]; N],
    i: usize,
    x: &[[i8; 4]; T],
    mut acc: [[S::Acc; T]; N],
) -> [[S::Acc; T]; N] {
    let mut codes = [s.splat_byte(0); N];
    for n in 0..N {
        codes[n] = s.load(&panels[n][i]);
    }
    for t in 0..T {
        let x = s.four(x[t]);
        for n in 0..N {
            acc[n][t] = s.dot(acc[n][t], codes[n], x);
        }
    }
    acc
}

/// [`products`] over at most as many steps as the sums can hold.
#[inline(always)]
fn run_of_products<S: Simd, const N: usize, const T: usize>(
    s: S,
    panels: [&[CodeLine]; N],
    x: &[[[i8; 4]; T]],
    ahead: Ahead<'_, N>,
    mut ints: [[S::Ints; T]; N],
) -> [[S::Ints; T]; N] {
    // Sums start from zero: otherwise the compiler keeps the initial values in registers that the sums need.
    let mut acc = [[s.no_acc(); T]; N];
    let mut parts: [&[CodeLine]; N] = [&[]; N];
    for n in 0..N {
        parts[n] = &panels[n][..x.len()];
    }
    let mut first = 0;
    if const { S::TWO_STEPS } {
        // Unrolled explicitly, since the compiler's own choice changes with the surrounding code.
        for (i, pair) in x.as_chunks::<2>().0.iter().enumerate() {
            acc = step::<S, N, T>(s, parts, 2 * i, &pair[0], ahead, acc);
            // Two steps use the weights of half a line: one prefetch is enough.
            acc = plain_step::<S, N, T>(s, parts, 2 * i + 1, &pair[1], acc);
        }
        first = x.len() / 2 * 2;
    }
    for (i, x) in x.iter().enumerate().skip(first) {
        acc = step::<S, N, T>(s, parts, i, x, ahead, acc);
    }
    for n in 0..N {
        for t in 0..T {
            ints[n][t] = s.add_ints(s.to_ints(acc[n][t]), ints[n][t]);
        }
    }
    ints
}
