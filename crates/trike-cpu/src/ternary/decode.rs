//! Decode kernels, for one to four rows of activations: one pass over the weights in memory order.

use super::permutes::{PermuteLoop, Permutes, RunPermuting};
use super::{Ahead, Units, Unpack, bias, products, sparse};
use crate::activations::Activations;
use crate::kernels::Kernels;
use crate::line::{CodeLine, FloatLine, IntLine, ROWS, TableLine};
use crate::matrix::LONG;
use crate::matrix::sparse::Sparse;
use crate::matrix::{Groups, ScaleRoom, TernaryMatrix};
use crate::piece::{Piece, WRITTEN};
use crate::simd::Simd;
use trike_core::TileLayout;
use trike_host::CacheLine;
use trike_host::Loop;

/// Prefetch distance in bytes.
const AHEAD: usize = 8192;

/// Computes some tiles for all rows of activations.
pub(super) fn piece<K: RunPermuting>(
    k: K,
    m: &TernaryMatrix,
    x: &Activations,
    units: Units,
    piece: &mut Piece<'_>,
) {
    let job = Job { m, x, units, piece };
    match x.rows() {
        1 => rows::<K, 1>(k, job),
        2 => rows::<K, 2>(k, job),
        3 if const { K::THREE_ROWS } => rows::<K, 3>(k, job),
        _ => rows::<K, 4>(k, job),
    }
}

/// One loop per layout; the two-bit layout needs no permutes.
fn rows<K: RunPermuting, const T: usize>(k: K, job: Job<'_, '_>) {
    match (job.m.sparse(), job.m.shape().layout()) {
        (Some(sparse), _) => {
            if let Err(task) = k.try_permuting(Sparsely::<T> { job, sparse }) {
                k.plain().run_permuting(task);
            }
        }
        (None, TileLayout::TwoBit) => k.run(TwoBits::<K, T> { k, job }),
        (None, TileLayout::Base3) => k.run_permuting(Base3::<T> { job }),
    }
}

/// Arguments of a product.
struct Job<'a, 'p> {
    m: &'a TernaryMatrix,
    x: &'a Activations,
    units: Units,
    piece: &'a mut Piece<'p>,
}

/// The layout-specific part of decoding: adds a set of planes of one tile to its outputs.
trait Sets<S: Simd, const T: usize> {
    /// Adds a set.
    fn add(
        &mut self,
        s: S,
        tile_and_set: (usize, usize),
        units: &[Unit<T>],
        scales: Groups<'_>,
        sums: [S::Floats; T],
    ) -> [S::Floats; T];
}

/// Kernel for tiles of 2-bit codes.
struct TwoBits<'a, 'p, K, const T: usize> {
    k: K,
    job: Job<'a, 'p>,
}

impl<K: RunPermuting, const T: usize> Loop for TwoBits<'_, '_, K, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Job { m, x, units, .. } = self.job;
        let sets = TwoBitSets { m, rows: self.job.rows(), cols: units.cols, grouped: x.grouped() };
        self.job.tiles::<K, T>(self.k, bias(m.planes()), sets);
    }
}

/// Kernel for tiles of base-3 bytes.
struct Base3<'a, 'p, const T: usize> {
    job: Job<'a, 'p>,
}

impl<S: RunPermuting, const T: usize> PermuteLoop<S> for Base3<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<P: Permutes<S>>(self, s: S, permutes: P) {
        let Job { m, x, units, .. } = self.job;
        let shape = m.shape();
        // The digits of a line belong to five groups, or the line is part of one long unit.
        let direct = if shape.span() == 4 { units.cols == LONG } else { units.cols == shape.span() };
        let room = if direct { 0 } else { m.folds().count() * shape.padded_cols() / 4 };
        let sets = Base3Sets {
            permutes,
            m,
            rows: self.job.rows(),
            units,
            grouped: x.grouped(),
            direct,
            panel: vec![CacheLine([0; 64]); room],
            exact: vec![[CacheLine([0; ROWS]); T]; if direct { 0 } else { units.count }],
        };
        self.job.tiles::<S, T>(s, bias(m.planes()), sets);
    }
}

/// Kernel for sparse tiles.
struct Sparsely<'a, 'p, const T: usize> {
    job: Job<'a, 'p>,
    sparse: &'a Sparse,
}

impl<S: Kernels, const T: usize> PermuteLoop<S> for Sparsely<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<P: Permutes<S>>(self, s: S, permutes: P) {
        let Self { job, sparse } = self;
        let rows: [&[[i8; 16]]; T] = job.rows();
        let sets = SparseSets {
            permutes,
            m: job.m,
            sparse,
            rows,
            units: job.units,
            grouped: job.x.grouped(),
            tables: rows.map(|row| sparse.tables(row.as_flattened())),
            exact: vec![[CacheLine([0; ROWS]); T]; job.units.count],
        };
        // Slots hold values, not biased codes.
        job.tiles::<S, T>(s, 0, sets);
    }
}

impl<'a> Job<'a, '_> {
    /// The rows of activations; missing ones repeat the last, and their outputs are discarded.
    #[inline(always)]
    fn rows<const T: usize>(&self) -> [&'a [[i8; 16]]; T] {
        std::array::from_fn(|t| self.x.row(t.min(self.x.rows() - 1)))
    }

    /// The outputs of all tiles; `bias` is the offset of the codes of all planes of a set.
    #[inline(always)]
    fn tiles<S: Kernels, const T: usize>(self, s: S, bias: i32, mut sets: impl Sets<S, T>) {
        let Self { m, x, units, piece } = self;
        let Scratch { mut scales, mut means, units } = Scratch::<T>::new(m, x, units, bias);
        let mut outputs = [[CacheLine([0.0; ROWS]); T]; WRITTEN];
        let mut first = piece.tiles.start;
        while first < piece.tiles.end {
            let tiles = first..(first + WRITTEN).min(piece.tiles.end);
            for (tile, outputs) in tiles.clone().zip(&mut outputs) {
                let mut sums = [s.splat(0.0); T];
                for set in 0..m.sets() {
                    let scales = m.group_scales(s, tile, set, &mut scales);
                    sums = sets.add(s, (tile, set), &units, scales, sums);
                }
                if m.means(s, tile, &mut means) {
                    for unit in &units {
                        let mean = s.load_floats(&means[unit.group]);
                        for t in 0..T {
                            let sum = s.splat_int(unit.sum[t]);
                            sums[t] = add_scaled(s, sums[t], mean, unit.factors[t], x.grouped(), sum);
                        }
                    }
                }
                for t in 0..T {
                    s.store_floats(sums[t], &mut outputs[t]);
                }
            }
            first = tiles.end;
            let outputs = &outputs.as_flattened()[..tiles.len() * T];
            piece.write(s, &x.joined(), tiles, outputs);
        }
    }
}

/// Values that are equal for all tiles.
struct Scratch<const T: usize> {
    scales: ScaleRoom,
    means: Vec<FloatLine>,
    units: Vec<Unit<T>>,
}

impl<const T: usize> Scratch<T> {
    /// Not inlined, because it would be compiled again for every kernel and instruction set.
    #[inline(never)]
    fn new(m: &TernaryMatrix, x: &Activations, units: Units, bias: i32) -> Self {
        Self { scales: m.scale_room(), means: m.mean_room(), units: Unit::all(units, x, bias) }
    }
}

/// 2-bit codes.
struct TwoBitSets<'a, const T: usize> {
    m: &'a TernaryMatrix,
    rows: [&'a [[i8; 16]]; T],
    /// Columns per unit.
    cols: usize,
    grouped: bool,
}

impl<S: Simd, const T: usize> Sets<S, T> for TwoBitSets<'_, T> {
    #[inline(always)]
    fn add(
        &mut self,
        s: S,
        (tile, set): (usize, usize),
        units: &[Unit<T>],
        scales: Groups<'_>,
        mut sums: [S::Floats; T],
    ) -> [S::Floats; T] {
        let Self { m, rows, cols, grouped } = *self;
        let mut rest = units;
        if m.planes() == 1 && cols < LONG {
            let lines = m.tile(tile, set, 0);
            // The last unit may have fewer lines.
            let (whole, last) = units.split_at(units.len().min(lines.len() / (cols / 16)));
            rest = last;
            sums = if const { S::UNROLLED >= 16 } {
                match cols {
                    32 => short_units::<S, T, 2>(s, 1, lines, rows, whole, scales, sums),
                    64 => short_units::<S, T, 4>(s, 1, lines, rows, whole, scales, sums),
                    128 => short_units::<S, T, 8>(s, 1, lines, rows, whole, scales, sums),
                    _ => short_units::<S, T, 16>(s, 1, lines, rows, whole, scales, sums),
                }
            } else {
                match cols {
                    32 => short_units::<S, T, 2>(s, 1, lines, rows, whole, scales, sums),
                    64 if const { T == 1 } => short_units::<S, T, 4>(s, 1, lines, rows, whole, scales, sums),
                    _ => short_units::<S, T, 4>(s, cols / 64, lines, rows, whole, scales, sums),
                }
            };
        }
        for unit in rest {
            let (start, end) = (unit.start, unit.end);
            let mut ints = [s.splat_int(0); T];
            for plane in 0..m.planes() {
                let lines = &m.tile(tile, set, plane)[start / 16..end / 16];
                let part = two_bit::<S, T>(s, lines, columns(rows, start, end));
                fold_plane(s, &mut ints, part, plane);
            }
            sums = add(s, unit, ints, scales, grouped, sums);
        }
        sums
    }
}

/// Base-3 bytes.
struct Base3Sets<'a, P, const T: usize> {
    permutes: P,
    m: &'a TernaryMatrix,
    rows: [&'a [[i8; 16]]; T],
    units: Units,
    grouped: bool,
    /// Whether the digits of lines are multiplied directly, without a panel.
    direct: bool,
    /// Buffer for the unpacked columns of all folds, if not `direct`.
    panel: Vec<CodeLine>,
    /// Buffer for the sums of the units, if not `direct`.
    exact: Vec<[IntLine; T]>,
}

impl<S: RunPermuting, P: Permutes<S>, const T: usize> Sets<S, T> for Base3Sets<'_, P, T> {
    #[inline(always)]
    fn add(
        &mut self,
        s: S,
        (tile, set): (usize, usize),
        all: &[Unit<T>],
        scales: Groups<'_>,
        mut sums: [S::Floats; T],
    ) -> [S::Floats; T] {
        let Self { permutes, m, rows, units, grouped, direct, .. } = *self;
        let shape = m.shape();
        if direct && shape.span() == 4 {
            for unit in all {
                let (start, end) = (unit.start, unit.end);
                let mut ints = [s.splat_int(0); T];
                for plane in 0..m.planes() {
                    let lines = &m.tile(tile, set, plane)[start / 20..end / 20];
                    let part = long_digits::<S, P, T>(s, permutes, lines, columns(rows, start, end));
                    fold_plane(s, &mut ints, part, plane);
                }
                sums = add(s, unit, ints, scales, grouped, sums);
            }
            return sums;
        }
        if direct {
            for first in (0..units.count).step_by(5) {
                let (start, end) = (first * units.cols, (first + 5) * units.cols);
                let mut ints = [[s.splat_int(0); T]; 5];
                for plane in 0..m.planes() {
                    let lines = &m.tile(tile, set, plane)[start / 20..end / 20];
                    let part = digits::<S, P, T>(s, permutes, lines, columns(rows, start, end));
                    for f in 0..5 {
                        fold_plane(s, &mut ints[f], part[f], plane);
                    }
                }
                for f in 0..(units.count - first).min(5) {
                    sums = add(s, &all[first + f], ints[f], scales, grouped, sums);
                }
            }
            return sums;
        }
        let steps = shape.padded_cols() / 4;
        for (fold, panel) in m.folds().zip(self.panel.chunks_exact_mut(steps)) {
            for plane in fold.clone() {
                let whole = (0, shape.padded_cols());
                let lines = m.tile(tile, set, plane);
                let ahead = m.sets() * m.planes() * size_of_val(lines);
                s.run_permuting(Unpack::new(shape, lines, whole, ahead, plane == fold.start, panel));
            }
        }
        for t in 0..T {
            let (panel, x, exact) = (&self.panel[..], rows[t], self.exact.as_flattened_mut());
            s.run(PanelSums { s, m, units, panel, x, exact: &mut exact[t..], stride: T });
        }
        for (unit, exact) in all.iter().zip(&self.exact) {
            let mut ints = [s.splat_int(0); T];
            for t in 0..T {
                ints[t] = s.load_ints(&exact[t]);
            }
            sums = add(s, unit, ints, scales, grouped, sums);
        }
        sums
    }
}

/// The sums of the units of a set for one row of activations: a separate loop, compiled once for all row counts.
struct PanelSums<'a, S> {
    s: S,
    m: &'a TernaryMatrix,
    units: Units,
    /// The unpacked columns of all folds.
    panel: &'a [CodeLine],
    x: &'a [[i8; 16]],
    /// The sums, with a stride of this many lines.
    exact: &'a mut [IntLine],
    stride: usize,
}

impl<S: Simd> Loop for PanelSums<'_, S> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { s, m, units, panel, x, exact, stride } = self;
        let steps = m.shape().padded_cols() / 4;
        for unit in 0..units.count {
            let (start, end) = units.range(unit);
            let mut ints = s.splat_int(0);
            for (fold, panel) in m.folds().zip(panel.chunks_exact(steps)) {
                let largest = 3u8.pow(fold.len() as u32) - 1;
                let weight = 3i32.pow((m.planes() - fold.end) as u32);
                let x = fours(x, start, end).as_chunks().0;
                let zero = [[s.splat_int(0)]];
                let ahead = Ahead { places: [&panel[0]], stride: 0 };
                let dots = products::<S, 1, 1>(s, [&panel[start / 4..end / 4]], x, largest, ahead, zero);
                ints = s.scale_add(dots[0][0], weight, ints);
            }
            s.store_ints(ints, &mut exact[unit * stride]);
        }
    }
}

/// Nonzeros.
struct SparseSets<'a, P, const T: usize> {
    permutes: P,
    m: &'a TernaryMatrix,
    sparse: &'a Sparse,
    rows: [&'a [[i8; 16]]; T],
    units: Units,
    grouped: bool,
    tables: [Vec<TableLine>; T],
    /// The exact sums of the units of one set.
    exact: Vec<[IntLine; T]>,
}

impl<S: Simd, P: Permutes<S>, const T: usize> Sets<S, T> for SparseSets<'_, P, T> {
    #[inline(always)]
    fn add(
        &mut self,
        s: S,
        (tile, set): (usize, usize),
        all: &[Unit<T>],
        scales: Groups<'_>,
        mut sums: [S::Floats; T],
    ) -> [S::Floats; T] {
        let Self { permutes, m, sparse, rows, units, grouped, ref tables, ref mut exact } = *self;
        if m.planes() == 1
            && let [unit] = all
            && let Some(ints) =
                sparse::one_unit(s, permutes, sparse, m.plane_index(tile, set, 0), rows, tables)
        {
            return add(s, unit, ints, scales, grouped, sums);
        }
        exact.fill([CacheLine([0; ROWS]); T]);
        for plane in 0..m.planes() {
            let index = m.plane_index(tile, set, plane);
            sparse::add_plane(s, permutes, sparse, index, units, rows, tables, exact);
        }
        for (unit, exact) in all.iter().zip(exact) {
            let mut ints = [s.splat_int(0); T];
            for t in 0..T {
                ints[t] = s.load_ints(&exact[t]);
            }
            sums = add(s, unit, ints, scales, grouped, sums);
        }
        sums
    }
}

/// The columns `start..end` of a row, in chunks of four.
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

/// The constants of a unit, equal for all tiles.
struct Unit<const T: usize> {
    start: usize,
    end: usize,
    /// The group of its scales.
    group: usize,
    /// Minus the bias of the codes of a set times the sum of the activations.
    negated: [i32; T],
    /// The sum of the activations.
    sum: [i32; T],
    factors: [f32; T],
}

impl<const T: usize> Unit<T> {
    fn all(units: Units, x: &Activations, bias: i32) -> Vec<Self> {
        let unit = |unit| {
            let (start, end) = units.range(unit);
            let last = x.rows() - 1;
            let negated = std::array::from_fn(|t: usize| x.negated(t.min(last), start, end));
            Self {
                start,
                end,
                group: units.group_of(unit),
                negated: negated.map(|v| bias.wrapping_mul(v)),
                sum: negated.map(i32::wrapping_neg),
                factors: std::array::from_fn(|t| x.group_factor(t.min(last), start)),
            }
        };
        (0..units.count).map(unit).collect()
    }
}

/// Adds a unit whose integers are sums of biased codes of all planes of a set.
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

/// `sum + (scale * factor) * exact`; without factors, one multiplication less and the same result.
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

/// Whole units of `parts` times `L` lines, one group each. The lines of a part are unrolled, parts are not.
#[inline(always)]
fn short_units<S: Simd, const T: usize, const L: usize>(
    s: S,
    parts: usize,
    lines: &[CodeLine],
    x: [&[[i8; 16]]; T],
    units: &[Unit<T>],
    scales: Groups<'_>,
    mut sums: [S::Floats; T],
) -> [S::Floats; T] {
    let lines = lines.as_chunks::<L>().0;
    let mut columns: [&[[[i8; 16]; L]]; T] = [&[]; T];
    for t in 0..T {
        columns[t] = &x[t].as_chunks().0[..lines.len()];
    }
    if parts == 1 {
        // Without the loop over parts: for units of a few lines it would cost a tenth.
        for (u, (lines, unit)) in lines.iter().zip(units).enumerate() {
            let mut x = [&columns[0][u]; T];
            for t in 0..T {
                x[t] = &columns[t][u];
            }
            let factors = unit_factors(s, unit, scales);
            let mut exact = [s.no_sums(); T];
            add_lines(s, &mut exact, lines, x);
            let mut ints = [s.splat_int(0); T];
            for t in 0..T {
                ints[t] = s.finish(exact[t]);
            }
            add_unit(s, &mut sums, unit, factors, ints);
        }
        return sums;
    }
    for (u, (unit_lines, unit)) in lines.chunks_exact(parts).zip(units).enumerate() {
        let factors = unit_factors(s, unit, scales);
        let mut ints = [s.splat_int(0); T];
        let mut exact = [s.no_sums(); T];
        for (p, lines) in unit_lines.iter().enumerate() {
            let mut x = [&columns[0][u * parts + p]; T];
            for t in 0..T {
                x[t] = &columns[t][u * parts + p];
            }
            add_lines(s, &mut exact, lines, x);
            if const { L >= S::LINES } {
                // These sums cannot hold further lines.
                for t in 0..T {
                    ints[t] = s.add_ints(ints[t], s.finish(exact[t]));
                    exact[t] = s.no_sums();
                }
            }
        }
        if const { L < S::LINES } {
            for t in 0..T {
                ints[t] = s.finish(exact[t]);
            }
        }
        add_unit(s, &mut sums, unit, factors, ints);
    }
    sums
}

/// Scale times factor of each row, computed before the products of the unit: a branch after them would separate the loads of
/// activations from their use. Without group factors, multiplying by one changes nothing and is cheaper than a branch.
#[inline(always)]
fn unit_factors<S: Simd, const T: usize>(s: S, unit: &Unit<T>, scales: Groups<'_>) -> [S::Floats; T] {
    let scale = scales.load(s, unit.group);
    let mut factors = [scale; T];
    for t in 0..T {
        factors[t] = s.mul(scale, s.splat(unit.factors[t]));
    }
    factors
}

/// Adds the products of some lines, unrolled.
#[inline(always)]
fn add_lines<S: Simd, const T: usize, const L: usize>(
    s: S,
    exact: &mut [S::Sums; T],
    lines: &[CodeLine; L],
    x: [&[[i8; 16]; L]; T],
) {
    for i in 0..L {
        s.prefetch(&lines[i], AHEAD);
        let fields = s.fields(s.load(&lines[i]));
        for t in 0..T {
            exact[t] = s.line(exact[t], fields, &x[t][i]);
        }
    }
}

#[inline(always)]
fn add_unit<S: Simd, const T: usize>(
    s: S,
    sums: &mut [S::Floats; T],
    unit: &Unit<T>,
    factors: [S::Floats; T],
    ints: [S::Ints; T],
) {
    for t in 0..T {
        let exact = s.add_ints(ints[t], s.splat_int(unit.negated[t]));
        sums[t] = s.add(sums[t], s.mul(factors[t], s.to_floats(exact)));
    }
}

/// Sums of digit times activation over lines whose digits belong to five units: one sum per unit.
#[inline(always)]
fn digits<S: Simd, P: Permutes<S>, const T: usize>(
    s: S,
    permutes: P,
    lines: &[CodeLine],
    x: [&[[i8; 4]]; T],
) -> [[S::Ints; T]; 5] {
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
            let codes = permutes.scaled_digits(s, s.load(&lines[i]));
            for t in 0..T {
                for f in 0..5 {
                    sums[t][f] = s.dot(sums[t][f], codes[f], s.four(parts[t][f][i]));
                }
            }
        }
        for t in 0..T {
            let parts = permutes.finish_digits(s, sums[t]);
            for f in 0..5 {
                total[f][t] = s.add_ints(total[f][t], parts[f]);
            }
        }
        start = end;
    }
    total
}

/// The same for lines whose digits are twenty neighbouring columns: one sum.
#[inline(always)]
fn long_digits<S: Simd, P: Permutes<S>, const T: usize>(
    s: S,
    permutes: P,
    lines: &[CodeLine],
    x: [&[[i8; 4]]; T],
) -> [S::Ints; T] {
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
            let codes = permutes.scaled_digits(s, s.load(&lines[i]));
            for t in 0..T {
                for f in 0..5 {
                    sums[t][f] = s.dot(sums[t][f], codes[f], s.four(fives[t][i][f]));
                }
            }
        }
        for t in 0..T {
            let parts = permutes.finish_digits(s, sums[t]);
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
        // For one token, two lines at a time have separate sums if registers suffice, so that consecutive additions are
        // independent; for few lines this does not matter.
        let (lines, part) = (&lines[start..end], start..end);
        if S::TWO_LINES && T == 1 && lines.len() > 16 {
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
