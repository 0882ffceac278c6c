//! Prefill kernel, for many rows of activations: weights are unpacked once into a panel that stays in the L1 cache.

use std::ops::Range;

use super::permutes::RunPermuting;
use super::{Ahead, Units, Unpack, add_means, bias, products};
use crate::activations::{Activations, Panel, SEGMENT};
use crate::line::{CodeLine, FloatLine, IntLine, ROWS};
use crate::matrix::LONG;
use crate::matrix::TernaryMatrix;
use crate::piece::Piece;
use crate::simd::{Simd, takes};
use trike_host::CacheLine;
use trike_host::Loop;

/// Maximum columns of a panel: two tiles of them fit the L1 cache together with the activations.
const BLOCK: usize = 880;
/// Maximum columns of a unit for which the float sums of fewer rows are kept in registers: for longer units, loading
/// each weight twice costs more than loading the sums of all rows once per unit.
const SHORT: usize = 256;

/// Maximum sums of a panel: two tiles by twelve rows.
const MOST_SUMS: usize = 24;

/// Prefetch target after the last tiles.
static NOTHING: CodeLine = CacheLine([0; 64]);

/// The panel kernel.
pub(super) struct Prefill<'a, 'p, K> {
    kernels: K,
    m: &'a TernaryMatrix,
    x: &'a Activations,
    units: Units,
    piece: &'a mut Piece<'p>,
}

impl<'a, 'p, K: RunPermuting> Prefill<'a, 'p, K> {
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

/// Columns per panel: whole units, or parts of long ones that start at a stored sum of activations, split evenly so that
/// the last panel is not much smaller.
fn columns_per_panel(m: &TernaryMatrix, units: Units) -> usize {
    let step = if units.cols == LONG { SEGMENT } else { units.cols };
    let whole = least_common_multiple(step, m.shape().period());
    let panels = units.end().div_ceil(BLOCK.max(whole));
    units.end().div_ceil(panels).next_multiple_of(whole)
}

fn least_common_multiple(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

impl<K: RunPermuting> Loop for Prefill<'_, '_, K> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { kernels: k, m, x, units, piece } = self;
        let Plan { room, folds, blocks, negated, factors, mut panel } = Plan::new(m, x, units, K::TILES);
        let mut scratch = Scratch::default();
        let mut tile = piece.tiles.start;
        while tile < piece.tiles.end {
            let tiles = K::TILES.min(piece.tiles.end - tile);
            scratch.clear(tiles * m.groups(), tiles * x.rows());
            for set in 0..m.sets() {
                for (t, groups) in scratch.groups.chunks_exact_mut(m.groups()).enumerate() {
                    m.scales(k, tile + t, set, groups);
                }
                let mut first_part = 0;
                for (start, end, parts) in &blocks {
                    let (from, to) = (m.shape().lines_for(*start), m.shape().lines_for(*end));
                    // The weights of the next panel, of the first panel of the next set, or of the next tiles.
                    let planes_ahead =
                        if set + 1 < m.sets() { m.planes() } else { (tiles * m.sets() - set) * m.planes() };
                    let last = *end >= units.end();
                    let ahead = if last { planes_ahead * m.shape().lines() } else { to };
                    let ahead = ahead - from;
                    for (run, planes) in m.folds().enumerate() {
                        for t in 0..tiles {
                            let panel = &mut panel[(run * tiles + t) * room..][..room];
                            for plane in planes.clone() {
                                let lines = m.tile(tile + t, set, plane);
                                let (columns, first) = ((*start, *end), plane == planes.start);
                                let ahead = ahead * size_of::<CodeLine>();
                                Unpack::new(m.shape(), lines, columns, ahead, first, panel).unpack(k);
                            }
                        }
                    }
                    let (folds, panel) = (folds.as_slice(), panel.as_slice());
                    let (negated, factors) = (negated.as_slice(), factors.as_slice());
                    let (start, groups) = (*start, m.groups());
                    let short = K::WIDE && units.cols <= SHORT && folds.len() == 1;
                    let mut next = [&NOTHING; 2];
                    for t in 0..tiles {
                        let now = m.plane_index(tile + t, set, 0) * m.shape().lines() + from;
                        next[t] = m.lines().get(now + ahead).unwrap_or(&NOTHING);
                    }
                    let job = Block {
                        x,
                        folds,
                        negated,
                        factors,
                        parts,
                        first_part,
                        panel,
                        room,
                        start,
                        groups,
                        short,
                        next,
                    };
                    if const { K::TILES == 2 } && tiles == 2 {
                        job.rows::<K, 2>(k, &mut scratch);
                    } else {
                        job.rows::<K, 1>(k, &mut scratch);
                    }
                    first_part += parts.len();
                }
            }
            for t in 0..tiles {
                let groups = &mut scratch.groups[..m.groups()];
                if m.means(k, tile + t, groups) {
                    add_means(k, x, units, groups, &mut scratch.sums[t * x.rows()..][..x.rows()]);
                }
            }
            piece.write(k, &x.joined(), tile..tile + tiles, &scratch.sums);
            tile += tiles;
        }
    }
}

/// Values that do not depend on the rows of the weights, and the memory of the panel.
struct Plan {
    /// Steps of a tile in the panel.
    room: usize,
    folds: Vec<Fold>,
    /// The columns of each panel, and the parts of units in it.
    blocks: Vec<(usize, usize, Vec<Part>)>,
    /// See [`Block::negated`] and [`Block::factors`].
    negated: Vec<i32>,
    factors: Vec<f32>,
    panel: Vec<CodeLine>,
}

impl Plan {
    /// Not inlined, because it would be compiled again for every instruction set.
    #[inline(never)]
    fn new(m: &TernaryMatrix, x: &Activations, units: Units, tiles: usize) -> Self {
        let block = columns_per_panel(m, units);
        let room = block / 4;
        let fold = |run: Range<usize>| Fold {
            scale: 3i32.pow(run.len() as u32),
            largest: 3u8.pow(run.len() as u32) - 1,
        };
        let folds: Vec<Fold> = m.folds().map(fold).collect();
        let mut blocks = Vec::new();
        let mut start = 0;
        while start < units.end() {
            let end = (start + block).min(m.shape().padded_cols());
            blocks.push((start, end, Part::between(units, start, end.min(units.end()))));
            start = end;
        }
        let parts = || blocks.iter().flat_map(|(_, _, parts)| parts);
        let bias = bias(m.planes());
        let negated =
            per_part(x, parts(), |row, part| bias.wrapping_mul(x.negated(row, part.start, part.end)));
        let factors = match x.grouped() {
            true => per_part(x, parts(), |row, part| x.group_factor(row, part.unit)),
            false => Vec::new(),
        };
        let panel = vec![CacheLine([0; 64]); folds.len() * tiles * room];
        Self { room, folds, blocks, negated, factors, panel }
    }
}

/// Per-thread buffers, other than the panel.
#[derive(Default)]
struct Scratch {
    /// Scales or means of the current tiles, `[tile][group]`.
    groups: Vec<FloatLine>,
    /// Outputs of the current tiles and rows of activations, `[tile][row]`.
    sums: Vec<FloatLine>,
    /// Partial exact sums of a long unit, in the same order.
    ints: Vec<IntLine>,
    /// The exact sums of the folds so far, `[tile][row]` of a panel.
    folded: Vec<IntLine>,
}

impl Scratch {
    fn clear(&mut self, groups: usize, sums: usize) {
        self.groups.resize(groups, CacheLine([0.0; ROWS]));
        self.sums.clear();
        self.sums.resize(sums, CacheLine([0.0; ROWS]));
        self.ints.resize(sums, CacheLine([0; ROWS]));
        self.folded.resize(MOST_SUMS, CacheLine([0; ROWS]));
    }
}

/// One panel of `N` tiles times all rows of activations.
struct Block<'a> {
    x: &'a Activations,
    folds: &'a [Fold],
    /// Minus the bias of the codes of all planes times the sums of the activations; see [`per_part`].
    negated: &'a [i32],
    /// The factors of the groups, in the same order; empty without group factors.
    factors: &'a [f32],
    /// The parts of units in the panel.
    parts: &'a [Part],
    /// Number of parts in earlier panels.
    first_part: usize,
    panel: &'a [CodeLine],
    /// Capacity of the panel in steps, per run and tile.
    room: usize,
    /// The first column of the panel.
    start: usize,
    groups: usize,
    /// Whether units are short enough for [`Block::short`].
    short: bool,
    /// Per tile, the first line of the weights to unpack next.
    next: [&'a CodeLine; 2],
}

/// A run of folded planes.
struct Fold {
    /// Factor of the sums of the preceding folds.
    scale: i32,
    /// Maximum code.
    largest: u8,
}

/// The columns of one unit within a panel.
struct Part {
    start: usize,
    end: usize,
    /// The first column of the unit.
    unit: usize,
    group: usize,
    /// Whether it starts the unit.
    first: bool,
    /// Whether it ends the unit.
    last: bool,
}

impl Part {
    /// The parts between two columns.
    fn between(units: Units, start: usize, end: usize) -> Vec<Self> {
        let mut parts = Vec::new();
        let mut from = start;
        while from < end {
            let unit = from / units.cols;
            let (unit_start, unit_end) = units.range(unit);
            let to = unit_end.min(end);
            let group = units.group_of(unit);
            parts.push(Self {
                start: from,
                end: to,
                unit: unit_start,
                group,
                first: from == unit_start,
                last: to == unit_end,
            });
            from = to;
        }
        parts
    }
}

impl Block<'_> {
    /// Some steps of the panels of one run.
    #[inline(always)]
    fn panels<const N: usize>(&self, run: usize, steps: &Range<usize>) -> [&[CodeLine]; N] {
        let mut panels: [&[CodeLine]; N] = [&[]; N];
        for n in 0..N {
            panels[n] = &self.panel[(run * N + n) * self.room..][steps.clone()];
        }
        panels
    }

    /// Prefetch addresses of the weights of the next panel, used during the last rows of activations: four columns of
    /// a tile are 16 bytes at two bits per weight.
    #[inline(always)]
    fn ahead<const N: usize>(&self, rows: Panel) -> Ahead<'_, N> {
        let mut places = [self.next[0]; N];
        places.copy_from_slice(&self.next[..N]);
        Ahead { places, stride: if rows.first + rows.rows == self.x.rows() { 16 } else { 0 } }
    }

    /// The values of [`per_part`] for the parts of this block; empty for an empty list.
    #[inline(always)]
    fn of_parts<'v, V, const T: usize>(&self, values: &'v [V], rows: Panel) -> &'v [[V; T]] {
        let parts = values.len() / self.x.rows();
        let panel = &values[rows.first * parts..][..T * parts];
        panel.get(self.first_part * T..).unwrap_or_default().as_chunks().0
    }

    #[inline(always)]
    fn rows<S: Simd, const N: usize>(&self, s: S, scratch: &mut Scratch) {
        let grouped = !self.factors.is_empty();
        for &rows in self.x.panels() {
            match rows.rows {
                12 if self.short && grouped => self.short::<S, N, 12, 6, true>(s, rows, scratch),
                8 if self.short && grouped => self.short::<S, N, 8, 4, true>(s, rows, scratch),
                4 if self.short && grouped => self.short::<S, N, 4, 4, true>(s, rows, scratch),
                12 if self.short => self.short::<S, N, 12, 6, false>(s, rows, scratch),
                8 if self.short => self.short::<S, N, 8, 4, false>(s, rows, scratch),
                4 if self.short => self.short::<S, N, 4, 4, false>(s, rows, scratch),
                12 => self.one::<S, N, 12>(s, rows, scratch),
                8 => self.one::<S, N, 8>(s, rows, scratch),
                6 => self.one::<S, N, 6>(s, rows, scratch),
                4 => self.one::<S, N, 4>(s, rows, scratch),
                2 => self.one::<S, N, 2>(s, rows, scratch),
                _ => self.one::<S, N, 1>(s, rows, scratch),
            }
        }
    }

    /// Short units: `H` rows of activations at a time, so that their sums over all units of the panel stay in
    /// registers together with the integers of one unit.
    #[inline(always)]
    fn short<S: Simd, const N: usize, const T: usize, const H: usize, const GROUPED: bool>(
        &self,
        s: S,
        rows: Panel,
        scratch: &mut Scratch,
    ) {
        if const { !S::WIDE || !takes::<S>(N, T) } {
            return;
        }
        let x = self.x.panel::<T>(rows);
        let all = self.x.rows();
        let negated = self.of_parts::<_, T>(self.negated, rows);
        let factors = self.of_parts::<_, T>(self.factors, rows);
        let ahead = self.ahead::<N>(rows);
        let mut first = 0;
        while first < T {
            let row = rows.first + first;
            let mut sums = [[s.splat(0.0); H]; N];
            for n in 0..N {
                let places = &scratch.sums[n * all + row..][..H];
                for t in 0..H {
                    sums[n][t] = s.load_floats(&places[t]);
                }
            }
            for (i, (part, negated)) in self.parts.iter().zip(negated).enumerate() {
                let inside = (part.start - self.start) / 4..(part.end - self.start) / 4;
                let panels = self.panels::<N>(0, &inside);
                let x = &x[part.start / 4..part.end / 4];
                let mut parts: [&[CodeLine]; N] = [&[]; N];
                for n in 0..N {
                    parts[n] = &panels[n][..x.len()];
                }
                let mut acc = [[s.no_acc(); H]; N];
                // Four steps use the weights of one line of two-bit codes: one prefetch per tile.
                let (fours, rest) = x.as_chunks::<4>();
                for (i, x) in fours.iter().enumerate() {
                    for n in 0..N {
                        s.prefetch(ahead.places[n], (inside.start + 4 * i) * ahead.stride);
                    }
                    for j in 0..4 {
                        acc = half_step::<S, N, T, H>(s, parts, 4 * i + j, &x[j], first, acc);
                    }
                }
                let steps = 4 * fours.len();
                for (i, x) in rest.iter().enumerate() {
                    acc = half_step::<S, N, T, H>(s, parts, steps + i, x, first, acc);
                }
                for n in 0..N {
                    let scale = s.load_floats(&scratch.groups[n * self.groups + part.group]);
                    for t in 0..H {
                        let scale =
                            if GROUPED { s.mul(scale, s.splat(factors[i][first + t])) } else { scale };
                        let exact = s.add_ints(s.to_ints(acc[n][t]), s.splat_int(negated[first + t]));
                        sums[n][t] = s.add(sums[n][t], s.mul(scale, s.to_floats(exact)));
                    }
                }
            }
            for n in 0..N {
                let places = &mut scratch.sums[n * all + row..][..H];
                for t in 0..H {
                    s.store_floats(sums[n][t], &mut places[t]);
                }
            }
            first += H;
        }
    }

    #[inline(always)]
    fn one<S: Simd, const N: usize, const T: usize>(&self, s: S, rows: Panel, scratch: &mut Scratch) {
        // Panel widths of other instruction sets are not compiled.
        if const { !takes::<S>(N, T) } {
            return;
        }
        if self.folds.is_empty() {
            return;
        }
        let x = self.x.panel::<T>(rows);
        let all = self.x.rows();
        let negated = self.of_parts::<_, T>(self.negated, rows);
        let factors = self.of_parts::<_, T>(self.factors, rows);
        let ahead = self.ahead::<N>(rows);
        for (i, (part, negated)) in self.parts.iter().zip(negated).enumerate() {
            let steps = part.start / 4..part.end / 4;
            let inside = (part.start - self.start) / 4..(part.end - self.start) / 4;
            let mut run = 0;
            let mut ints = loop {
                let (fold, panels) = (&self.folds[run], self.panels(run, &inside));
                let zeros = [[s.splat_int(0); T]; N];
                let mut dots = products::<S, N, T>(s, panels, &x[steps.clone()], fold.largest, ahead, zeros);
                let folded = &mut scratch.folded[..N * T];
                if run > 0 {
                    for n in 0..N {
                        for t in 0..T {
                            let before = s.load_ints(&folded[n * T + t]);
                            dots[n][t] = s.scale_add(before, fold.scale, dots[n][t]);
                        }
                    }
                }
                run += 1;
                if run == self.folds.len() {
                    break dots;
                }
                // In memory, so that they use no registers if there is only one fold.
                for n in 0..N {
                    for t in 0..T {
                        s.store_ints(dots[n][t], &mut folded[n * T + t]);
                    }
                }
            };
            // Adding the bias makes these sums of values instead of codes.
            for n in 0..N {
                for t in 0..T {
                    ints[n][t] = s.add_ints(ints[n][t], s.splat_int(negated[t]));
                }
            }
            // A long unit spans several panels: partial sums are stored.
            if !part.first {
                for n in 0..N {
                    let places = &scratch.ints[n * all + rows.first..][..T];
                    for t in 0..T {
                        ints[n][t] = s.add_ints(ints[n][t], s.load_ints(&places[t]));
                    }
                }
            }
            if !part.last {
                for n in 0..N {
                    let places = &mut scratch.ints[n * all + rows.first..][..T];
                    for t in 0..T {
                        s.store_ints(ints[n][t], &mut places[t]);
                    }
                }
                continue;
            }
            let mut floats = [[s.splat(0.0); T]; N];
            for n in 0..N {
                for t in 0..T {
                    floats[n][t] = s.to_floats(ints[n][t]);
                }
            }
            let mut scales = [[s.splat(0.0); T]; N];
            for n in 0..N {
                scales[n] = [s.load_floats(&scratch.groups[n * self.groups + part.group]); T];
            }
            if let Some(factors) = factors.get(i) {
                for t in 0..T {
                    let factor = s.splat(factors[t]);
                    for n in 0..N {
                        scales[n][t] = s.mul(scales[n][t], factor);
                    }
                }
            }
            for n in 0..N {
                for t in 0..T {
                    floats[n][t] = s.mul(scales[n][t], floats[n][t]);
                }
            }
            for n in 0..N {
                let places = &mut scratch.sums[n * all + rows.first..][..T];
                for t in 0..T {
                    s.store_floats(s.add(s.load_floats(&places[t]), floats[n][t]), &mut places[t]);
                }
            }
        }
    }
}

/// Adds the products of one step for `H` of the `T` rows of a panel, from row `first` on.
#[inline(always)]
fn half_step<S: Simd, const N: usize, const T: usize, const H: usize>(
    s: S,
    parts: [&[CodeLine]; N],
    i: usize,
    x: &[[i8; 4]; T],
    first: usize,
    mut acc: [[S::Acc; H]; N],
) -> [[S::Acc; H]; N] {
    let mut codes = [s.splat_byte(0); N];
    for n in 0..N {
        codes[n] = s.load(&parts[n][i]);
    }
    for t in 0..H {
        let x = s.four(x[first + t]);
        for n in 0..N {
            acc[n][t] = s.dot(acc[n][t], codes[n], x);
        }
    }
    acc
}

/// A value for each panel of activations, each part, and each row of the panel.
fn per_part<'a, V>(
    x: &Activations,
    parts: impl Iterator<Item = &'a Part> + Clone,
    value: impl Fn(usize, &Part) -> V,
) -> Vec<V> {
    let mut all = Vec::new();
    for panel in x.panels() {
        for part in parts.clone() {
            all.extend((panel.first..panel.first + panel.rows).map(|row| value(row, part)));
        }
    }
    all
}
