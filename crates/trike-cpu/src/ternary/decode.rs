//! One to four rows of activations: the weights pass once, as they lie in memory.

use super::{Ahead, Units, bias, products, sparse, unpack, write};
use crate::activations::Activations;
use crate::kernels::Kernels;
use crate::line::{CodeLine, ROWS, TableLine};
use crate::linear::Piece;
use crate::matrix::layout::{Fixed, LONG};
use crate::matrix::{Groups, TernaryMatrix};
use crate::simd::Simd;
use trike_host::Line;
use trike_host::Loop;

/// Bytes that the prefetch runs ahead of the reading.
const AHEAD: usize = 8192;

/// The kernel for `T` rows of activations.
pub(super) struct Decode<'a, 'p, K, const T: usize> {
    kernels: K,
    m: &'a TernaryMatrix,
    x: &'a Activations,
    units: Units,
    piece: &'a mut Piece<'p>,
}

impl<'a, 'p, K, const T: usize> Decode<'a, 'p, K, T> {
    pub(super) fn new(
        kernels: K,
        m: &'a TernaryMatrix,
        x: &'a Activations,
        units: Units,
        piece: &'a mut Piece<'p>,
    ) -> Self {
        Self { kernels, m, x, units, piece }
    }
}

impl<K: Kernels, const T: usize> Loop for Decode<'_, '_, K, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { kernels: k, m, x, units, piece } = self;
        let mut groups = vec![Line([0.0; ROWS]); m.groups()];
        let mut outputs = [Line([0.0; ROWS]); T];
        let rows: [&[[i8; 16]]; T] = std::array::from_fn(|t| x.row(t));
        let shape = m.shape();
        // The nonzeros of sparse weights are values, not codes.
        let bias = if m.sparse().is_some() { 0 } else { bias(m.planes()) };
        let all = Unit::<T>::all(units, x, bias);
        let tables: [Vec<TableLine>; T] = std::array::from_fn(|t| {
            m.sparse().map_or_else(Vec::new, |sparse| sparse.tables(rows[t].as_flattened()))
        });
        let mut exact = vec![[Line([0; ROWS]); T]; if m.sparse().is_some() { units.count } else { 0 }];
        // Five groups lie side by side in the digits of a line, or a line is part of one long unit.
        let direct = if shape.span() == 4 { units.cols == LONG } else { units.cols == shape.span() };
        let steps = shape.padded_cols() / 4;
        let mut panel = match m.shape().layout() {
            Fixed::Base3 if !direct => vec![Line([0; 64]); m.folds().count() * steps],
            Fixed::TwoBit | Fixed::Base3 => Vec::new(),
        };
        for tile in piece.tiles.clone() {
            let mut sums = [k.splat(0.0); T];
            for set in 0..m.sets() {
                let scales = m.group_scales(k, tile, set, &mut groups);
                if let Some(sparse) = m.sparse() {
                    if m.planes() == 1
                        && let [unit] = all.as_slice()
                        && let Some(ints) =
                            sparse::one_unit(k, sparse, m.plane_index(tile, set, 0), rows, &tables)
                    {
                        sums = add(k, unit, ints, scales, x.grouped(), sums);
                        continue;
                    }
                    exact.fill([Line([0; ROWS]); T]);
                    for plane in 0..m.planes() {
                        let index = m.plane_index(tile, set, plane);
                        sparse::add_plane(k, sparse, index, units, rows, &tables, &mut exact);
                    }
                    for (unit, exact) in all.iter().zip(&exact) {
                        let mut ints = [k.splat_int(0); T];
                        for t in 0..T {
                            ints[t] = k.load_ints(&exact[t]);
                        }
                        sums = add(k, unit, ints, scales, x.grouped(), sums);
                    }
                    continue;
                }
                match m.shape().layout() {
                    Fixed::TwoBit if m.planes() == 1 && !x.grouped() && units.cols < LONG => {
                        let lines = m.tile(tile, set, 0);
                        sums = match units.cols {
                            32 => short_units::<K, T, 2>(k, lines, rows, &all, scales, sums),
                            64 => short_units::<K, T, 4>(k, lines, rows, &all, scales, sums),
                            128 => short_units::<K, T, 8>(k, lines, rows, &all, scales, sums),
                            _ => short_units::<K, T, 16>(k, lines, rows, &all, scales, sums),
                        };
                    }
                    Fixed::TwoBit => {
                        for unit in &all {
                            let (start, end) = (unit.start, unit.end);
                            let mut ints = [k.splat_int(0); T];
                            for plane in 0..m.planes() {
                                let lines = &m.tile(tile, set, plane)[start / 16..end / 16];
                                let part = two_bit::<K, T>(k, lines, columns(rows, start, end));
                                fold_plane(k, &mut ints, part, plane);
                            }
                            sums = add(k, unit, ints, scales, x.grouped(), sums);
                        }
                    }
                    Fixed::Base3 if direct && shape.span() == 4 => {
                        for unit in &all {
                            let (start, end) = (unit.start, unit.end);
                            let mut ints = [k.splat_int(0); T];
                            for plane in 0..m.planes() {
                                let lines = &m.tile(tile, set, plane)[start / 20..end / 20];
                                let part = long_digits::<K, T>(k, lines, columns(rows, start, end));
                                fold_plane(k, &mut ints, part, plane);
                            }
                            sums = add(k, unit, ints, scales, x.grouped(), sums);
                        }
                    }
                    Fixed::Base3 if direct => {
                        for first in (0..units.count).step_by(5) {
                            let (start, end) = (first * units.cols, (first + 5) * units.cols);
                            let mut ints = [[k.splat_int(0); T]; 5];
                            for plane in 0..m.planes() {
                                let lines = &m.tile(tile, set, plane)[start / 20..end / 20];
                                let part = digits::<K, T>(k, lines, columns(rows, start, end));
                                for f in 0..5 {
                                    fold_plane(k, &mut ints[f], part[f], plane);
                                }
                            }
                            for f in 0..(units.count - first).min(5) {
                                sums = add(k, &all[first + f], ints[f], scales, x.grouped(), sums);
                            }
                        }
                    }
                    Fixed::Base3 => {
                        for (fold, panel) in m.folds().zip(panel.chunks_exact_mut(steps)) {
                            for plane in fold.clone() {
                                let whole = (0, shape.padded_cols());
                                let lines = m.tile(tile, set, plane);
                                let ahead = m.sets() * m.planes() * size_of_val(lines);
                                unpack(k, shape, lines, whole, ahead, plane == fold.start, panel);
                            }
                        }
                        for unit in &all {
                            let (start, end) = (unit.start, unit.end);
                            let mut ints = [k.splat_int(0); T];
                            for (fold, panel) in m.folds().zip(panel.chunks_exact(steps)) {
                                let (largest, weight) = (
                                    3u8.pow(fold.len() as u32) - 1,
                                    3i32.pow((m.planes() - fold.end) as u32),
                                );
                                for t in 0..T {
                                    let x = fours(rows[t], start, end).as_chunks().0;
                                    let zero = [[k.splat_int(0)]];
                                    let dots = products::<K, 1, 1>(
                                        k,
                                        [&panel[start / 4..end / 4]],
                                        x,
                                        largest,
                                        Ahead { places: [&panel[0]], stride: 0 },
                                        zero,
                                    );
                                    ints[t] = k.scale_add(dots[0][0], weight, ints[t]);
                                }
                            }
                            sums = add(k, unit, ints, scales, x.grouped(), sums);
                        }
                    }
                }
            }
            if m.means(k, tile, &mut groups) {
                for unit in &all {
                    let mean = k.load_floats(&groups[unit.group]);
                    for t in 0..T {
                        let sum = k.splat_int(unit.sum[t]);
                        sums[t] = add_scaled(k, sums[t], mean, unit.factors[t], x.grouped(), sum);
                    }
                }
            }
            for t in 0..T {
                k.store_floats(sums[t], &mut outputs[t]);
            }
            write(k, x, m, tile..tile + 1, &outputs, piece);
        }
    }
}

/// The columns from `start` to `end` of a row, four at a time.
#[inline(always)]
fn fours(x: &[[i8; 16]], start: usize, end: usize) -> &[[i8; 4]] {
    &x.as_flattened().as_chunks().0[start / 4..end / 4]
}

/// [`fours`] of some rows.
#[inline(always)]
fn columns<const T: usize>(rows: [&[[i8; 16]]; T], start: usize, end: usize) -> [&[[i8; 4]]; T] {
    let mut columns: [&[[i8; 4]]; T] = [&[]; T];
    for t in 0..T {
        columns[t] = fours(rows[t], start, end);
    }
    columns
}

/// `sum = 3 sum + part`, from the first plane to the last.
#[inline(always)]
fn fold_plane<S: Simd, const T: usize>(s: S, sum: &mut [S::Ints; T], part: [S::Ints; T], plane: usize) {
    for t in 0..T {
        sum[t] = if plane == 0 { part[t] } else { s.scale_add(sum[t], 3, part[t]) };
    }
}

/// What is the same for a unit in every tile.
struct Unit<const T: usize> {
    start: usize,
    end: usize,
    /// The group of its scales.
    group: usize,
    /// What codes of all planes of a set are above their values, times the sum of the activations, negated.
    negated: [i32; T],
    /// The sum of the activations.
    sum: [i32; T],
    factors: [f32; T],
}

impl<const T: usize> Unit<T> {
    fn all(units: Units, x: &Activations, bias: i32) -> Vec<Self> {
        let unit = |unit| {
            let (start, end) = units.range(unit);
            let negated = std::array::from_fn(|t| x.negated(t, start, end));
            Self {
                start,
                end,
                group: units.group_of(unit),
                negated: negated.map(|v| bias.wrapping_mul(v)),
                sum: negated.map(i32::wrapping_neg),
                factors: std::array::from_fn(|t| x.group_factor(t, start)),
            }
        };
        (0..units.count).map(unit).collect()
    }
}

/// Adds a unit whose integers count codes of all planes of a set.
#[inline(always)]
fn add<S: Simd, const T: usize>(
    s: S,
    unit: &Unit<T>,
    ints: [S::Ints; T],
    scales: Groups<'_>,
    grouped: bool,
    mut sums: [S::Floats; T],
) -> [S::Floats; T] {
    let scale = scales.load(s, unit.group);
    for t in 0..T {
        let exact = s.add_ints(ints[t], s.splat_int(unit.negated[t]));
        sums[t] = add_scaled(s, sums[t], scale, unit.factors[t], grouped, exact);
    }
    sums
}

/// `sum + (scale * factor) * exact`; without factors there is one multiplication less, and the same result.
#[inline(always)]
fn add_scaled<S: Simd>(
    s: S,
    sum: S::Floats,
    scale: S::Floats,
    factor: f32,
    grouped: bool,
    exact: S::Ints,
) -> S::Floats {
    let scale = if grouped { s.mul(scale, s.splat(factor)) } else { scale };
    s.add(sum, s.mul(scale, s.to_floats(exact)))
}

/// Units of `L` lines, one group each.
#[inline(always)]
fn short_units<S: Simd, const T: usize, const L: usize>(
    s: S,
    lines: &[CodeLine],
    x: [&[[i8; 16]]; T],
    units: &[Unit<T>],
    scales: Groups<'_>,
    mut sums: [S::Floats; T],
) -> [S::Floats; T] {
    let (whole, rest) = lines.as_chunks::<L>();
    let mut columns: [&[[[i8; 16]; L]]; T] = [&[]; T];
    for t in 0..T {
        columns[t] = &x[t].as_chunks().0[..whole.len()];
    }
    for (u, (lines, unit)) in whole.iter().zip(units).enumerate() {
        // Before the products: a choice after them would part the loads of activations from their use.
        let scale = scales.load(s, unit.group);
        let mut ints = [s.splat_int(0); T];
        let mut i = 0;
        while i < L {
            let mut parts = [s.no_sums(); T];
            let end = if L < S::LINES { L } else { i + S::LINES };
            while i < end {
                s.prefetch(&lines[i], AHEAD);
                let fields = s.fields(s.load(&lines[i]));
                for t in 0..T {
                    parts[t] = s.line(parts[t], fields, &columns[t][u][i]);
                }
                i += 1;
            }
            for t in 0..T {
                ints[t] = s.add_ints(ints[t], s.finish(parts[t]));
            }
        }
        for t in 0..T {
            let exact = s.add_ints(ints[t], s.splat_int(unit.negated[t]));
            sums[t] = s.add(sums[t], s.mul(scale, s.to_floats(exact)));
        }
    }
    if let (Some(unit), false) = (units.get(whole.len()), rest.is_empty()) {
        let mut tail: [&[[i8; 4]]; T] = [&[]; T];
        for t in 0..T {
            tail[t] = fours(x[t], unit.start, unit.end);
        }
        let ints = two_bit::<S, T>(s, rest, tail);
        sums = add(s, unit, ints, scales, false, sums);
    }
    sums
}

/// Sums of digit times activation over lines whose digits belong to five units: one sum for each.
#[inline(always)]
fn digits<S: Simd, const T: usize>(s: S, lines: &[CodeLine], x: [&[[i8; 4]]; T]) -> [[S::Ints; T]; 5] {
    let mut total = [[s.splat_int(0); T]; 5];
    let n = lines.len();
    let mut parts: [[&[[i8; 4]]; 5]; T] = [[&[]; 5]; T];
    for t in 0..T {
        for f in 0..5 {
            parts[t][f] = &x[t][f * n..(f + 1) * n];
        }
    }
    let mut start = 0;
    while start < n {
        let end = (start + S::LINES).min(n);
        let mut sums = [[s.no_acc(); 5]; T];
        for i in start..end {
            s.prefetch(&lines[i], AHEAD);
            let codes = s.scaled_digits(s.load(&lines[i]));
            for t in 0..T {
                for f in 0..5 {
                    sums[t][f] = s.dot(sums[t][f], codes[f], s.four(parts[t][f][i]));
                }
            }
        }
        for t in 0..T {
            let parts = s.finish_digits(sums[t]);
            for f in 0..5 {
                total[f][t] = s.add_ints(total[f][t], parts[f]);
            }
        }
        start = end;
    }
    total
}

/// The same where the digits of a line are twenty neighbouring columns: one sum.
#[inline(always)]
fn long_digits<S: Simd, const T: usize>(s: S, lines: &[CodeLine], x: [&[[i8; 4]]; T]) -> [S::Ints; T] {
    let mut total = [s.splat_int(0); T];
    let mut fives: [&[[[i8; 4]; 5]]; T] = [&[]; T];
    for t in 0..T {
        fives[t] = &x[t].as_chunks().0[..lines.len()];
    }
    let mut start = 0;
    while start < lines.len() {
        let end = (start + S::LINES).min(lines.len());
        let mut sums = [[s.no_acc(); 5]; T];
        for i in start..end {
            s.prefetch(&lines[i], AHEAD);
            let codes = s.scaled_digits(s.load(&lines[i]));
            for t in 0..T {
                for f in 0..5 {
                    sums[t][f] = s.dot(sums[t][f], codes[f], s.four(fives[t][i][f]));
                }
            }
        }
        for t in 0..T {
            let parts = s.finish_digits(sums[t]);
            for f in 0..5 {
                total[t] = s.add_ints(total[t], parts[f]);
            }
        }
        start = end;
    }
    total
}

/// Sums of code times activation over some lines.
#[inline(always)]
fn two_bit<S: Simd, const T: usize>(s: S, lines: &[CodeLine], x: [&[[i8; 4]]; T]) -> [S::Ints; T] {
    let mut columns: [&[[i8; 16]]; T] = [&[]; T];
    for t in 0..T {
        columns[t] = &x[t].as_flattened().as_chunks().0[..lines.len()];
    }
    let mut total = [s.splat_int(0); T];
    let mut start = 0;
    while start < lines.len() {
        let end = (start + S::LINES).min(lines.len());
        // For one token two lines at a time have sums of their own, so that an addition does not wait for the one before;
        // a few lines are done before that matters.
        let (lines, part) = (&lines[start..end], start..end);
        if T == 1 && lines.len() > 16 {
            let (pairs, last) = lines.as_chunks::<2>();
            let (xs, x_last) = columns[0][part].as_chunks::<2>();
            let mut sums = [s.no_sums(); 2];
            for (pair, x) in pairs.iter().zip(xs) {
                for half in 0..2 {
                    s.prefetch(&pair[half], AHEAD);
                    sums[half] = s.line(sums[half], s.fields(s.load(&pair[half])), &x[half]);
                }
            }
            for (line, x) in last.iter().zip(x_last) {
                sums[0] = s.line(sums[0], s.fields(s.load(line)), x);
            }
            total[0] = s.add_ints(total[0], s.add_ints(s.finish(sums[0]), s.finish(sums[1])));
        } else {
            let mut x: [&[[i8; 16]]; T] = [&[]; T];
            for t in 0..T {
                x[t] = &columns[t][part.clone()];
            }
            let mut sums = [s.no_sums(); T];
            for (i, line) in lines.iter().enumerate() {
                s.prefetch(line, AHEAD);
                let fields = s.fields(s.load(line));
                for t in 0..T {
                    sums[t] = s.line(sums[t], fields, &x[t][i]);
                }
            }
            for t in 0..T {
                total[t] = s.add_ints(total[t], s.finish(sums[t]));
            }
        }
        start = end;
    }
    total
}
