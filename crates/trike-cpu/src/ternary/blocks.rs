//! Kernels for weights stored without their blocks of zeros.
//!
//! A missing block adds nothing to an exact sum, and its activations are excluded from the correction for the bias of
//! the codes. A unit without any block adds `scale * 0`, which is a no-op while the scale is finite, so it is skipped;
//! if the factors of the activations could make a product of scales infinite, all units are processed.

use std::ops::Range;

use super::{Ahead, Units, add_means, bias, products};
use crate::activations::{Activations, Panel};
use crate::kernels::Kernels;
use crate::line::{CodeLine, FloatLine, IntLine, ROWS};
use crate::matrix::blocks::{BLOCK, BlockTile, Blocks, ZEROS, numbers};
use crate::matrix::{ScaleRoom, TernaryMatrix};
use crate::piece::{Piece, WRITTEN};
use crate::simd::{Simd, takes};
use trike_host::CacheLine;
use trike_host::Loop;

/// Prefetch distance in bytes.
const AHEAD: usize = 8192;
/// Steps of four columns per block.
const STEPS: usize = BLOCK / 4;
/// Blocks per panel over all its tiles: 32 KiB.
const ROOM: usize = 64;

/// Computes some tiles of a matrix for all rows of activations.
pub(super) fn piece<K: Kernels>(
    kernels: K,
    m: &TernaryMatrix,
    blocks: &Blocks,
    x: &Activations,
    units: Units,
    piece: &mut Piece<'_>,
) {
    let skips = !x.grouped() || {
        let factors =
            (0..x.rows()).flat_map(|row| (0..units.count).map(move |unit| (row, units.range(unit).0)));
        let largest = factors.map(|(row, start)| x.group_factor(row, start)).fold(0.0, f32::max);
        (blocks.largest_scale() * largest).is_finite()
    };
    let job = Job { m, blocks, x, units, skips };
    match x.rows() {
        _ if !x.in_place() => kernels.run(ManyTokens { kernels, job, piece }),
        1 => kernels.run(FewTokens::<K, 1> { kernels, job, piece }),
        2 => kernels.run(FewTokens::<K, 2> { kernels, job, piece }),
        3 if const { K::THREE_ROWS } => kernels.run(FewTokens::<K, 3> { kernels, job, piece }),
        _ => kernels.run(FewTokens::<K, 4> { kernels, job, piece }),
    }
}

/// Arguments of a product.
#[derive(Clone, Copy)]
struct Job<'a> {
    m: &'a TernaryMatrix,
    blocks: &'a Blocks,
    x: &'a Activations,
    units: Units,
    /// Whether units without blocks may be skipped.
    skips: bool,
}

impl Job<'_> {
    /// Blocks per unit, except for the last one.
    #[inline(always)]
    fn per_unit(&self) -> usize {
        self.units.cols / BLOCK
    }

    /// Blocks per row, including padding.
    fn count(&self) -> usize {
        self.m.cols().div_ceil(BLOCK)
    }

    /// Minus the sum of the activations of one block of one row.
    #[inline(always)]
    fn negated(&self, row: usize, block: usize) -> i32 {
        self.x.negated(row, block * BLOCK, (block + 1) * BLOCK)
    }
}

/// One to four rows of activations: one pass over the blocks in memory order.
struct FewTokens<'a, 'p, K, const T: usize> {
    kernels: K,
    job: Job<'a>,
    piece: &'a mut Piece<'p>,
}

impl<K: Kernels, const T: usize> Loop for FewTokens<'_, '_, K, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { kernels: k, job, piece } = self;
        let Job { m, blocks, x, units, skips } = job;
        // A set of one plane needs no buffer for exact sums.
        let direct = skips && m.planes() == 1;
        let Few { mut scales, mut means, negated, mut exact } = Few::<T>::new(&job, direct);
        // Missing rows repeat the last one; their outputs are discarded.
        let row = |t: usize| x.row(t.min(x.rows() - 1)).as_chunks().0;
        let columns = Columns { codes: std::array::from_fn(row), negated: &negated };
        let mut outputs = [[CacheLine([0.0; ROWS]); T]; WRITTEN];
        let mut start = piece.tiles.start;
        while start < piece.tiles.end {
            let tiles = start..(start + WRITTEN).min(piece.tiles.end);
            for (tile, outputs) in tiles.clone().zip(&mut outputs) {
                let mut sums = [k.splat(0.0); T];
                for set in 0..m.sets() {
                    let scales = m.group_scales(k, tile, set, &mut scales);
                    exact.fill([CacheLine([0; ROWS]); T]);
                    for plane in 0..m.planes() {
                        for ints in exact.as_flattened_mut() {
                            k.store_ints(k.scale_add(k.load_ints(ints), 3, k.splat_int(0)), ints);
                        }
                        let plane = blocks.tile(m.plane_index(tile, set, plane));
                        let mut first = 0;
                        while first < plane.places.len() {
                            let unit = usize::from(plane.places[first]) / job.per_unit();
                            let last = if units.count == 1 {
                                plane.places.len()
                            } else {
                                end_of_unit(plane.places, first, (unit + 1) * job.per_unit())
                            };
                            let part = BlockTile {
                                lines: &plane.lines[first..last],
                                places: &plane.places[first..last],
                            };
                            let ints = dots::<K, T>(k, part, columns);
                            if direct {
                                let scale = scales.load(k, units.group_of(unit));
                                for t in 0..T {
                                    sums[t] = add_scaled(k, sums[t], scale, job.factor(t, unit), ints[t]);
                                }
                            } else {
                                for t in 0..T {
                                    let place = &mut exact[unit][t];
                                    k.store_ints(k.add_ints(k.load_ints(place), ints[t]), place);
                                }
                            }
                            first = last;
                        }
                    }
                    for (unit, ints) in exact.iter().enumerate() {
                        let scale = scales.load(k, units.group_of(unit));
                        for t in 0..T {
                            let ints = k.load_ints(&ints[t]);
                            sums[t] = add_scaled(k, sums[t], scale, job.factor(t, unit), ints);
                        }
                    }
                }
                for t in 0..T {
                    k.store_floats(sums[t], &mut outputs[t]);
                }
                if m.means(k, tile, &mut means) {
                    add_means(k, x, units, &means, &mut outputs[..x.rows()]);
                }
            }
            start = tiles.end;
            let outputs = &outputs.as_flattened()[..tiles.len() * T];
            piece.write(k, &x.joined(), tiles, outputs);
        }
    }
}

/// Buffers of [`FewTokens`] and values that are equal for all tiles.
struct Few<const T: usize> {
    scales: ScaleRoom,
    means: Vec<FloatLine>,
    /// Negated sums of the activations of each block.
    negated: Vec<[i32; T]>,
    /// Exact sums of each unit.
    exact: Vec<[IntLine; T]>,
}

impl<const T: usize> Few<T> {
    /// Not inlined, because it would be compiled again for every instruction set.
    #[inline(never)]
    fn new(job: &Job<'_>, direct: bool) -> Self {
        let last = job.x.rows() - 1;
        let negated = |block| std::array::from_fn(|t: usize| job.negated(t.min(last), block));
        Self {
            scales: job.m.scale_room(),
            means: job.m.mean_room(),
            negated: (0..job.count()).map(negated).collect(),
            exact: vec![[CacheLine([0; ROWS]); T]; if direct { 0 } else { job.units.count }],
        }
    }
}

impl Job<'_> {
    /// The factor of a unit, if the activations have group factors.
    #[inline(always)]
    fn factor(&self, row: usize, unit: usize) -> Option<f32> {
        self.x.grouped().then_some(self.x.group_factor(row, self.units.range(unit).0))
    }
}

/// End of the run of blocks with numbers below `end`, searched from `first`.
#[inline(always)]
fn end_of_unit(places: &[u16], first: usize, end: usize) -> usize {
    let mut last = first;
    while last < places.len() && usize::from(places[last]) < end {
        last += 1;
    }
    last
}

/// `sum + (scale * factor) * exact`; without factors, one multiplication less and the same result.
#[inline(always)]
fn add_scaled<S: Simd>(
    s: S,
    sum: S::Floats,
    scale: S::Floats,
    factor: Option<f32>,
    exact: S::Ints,
) -> S::Floats {
    let scale = match factor {
        Some(factor) => s.mul(scale, s.splat(factor)),
        None => scale,
    };
    s.add(sum, s.mul(scale, s.to_floats(exact)))
}

/// Activations by block.
#[derive(Clone, Copy)]
struct Columns<'a, const T: usize> {
    codes: [&'a [[[i8; 16]; 2]]; T],
    /// Negated sums of the blocks.
    negated: &'a [[i32; T]],
}

/// The exact sums of some blocks.
#[inline(always)]
fn dots<S: Simd, const T: usize>(s: S, tile: BlockTile<'_>, x: Columns<'_, T>) -> [S::Ints; T] {
    let mut total = [s.splat_int(0); T];
    let mut less = [0i32; T];
    // For one token each line of a block has its own sums, so that consecutive additions are independent.
    let most = if T == 1 { S::LINES } else { S::LINES / 2 };
    let mut start = 0;
    while start < tile.lines.len() {
        let end = (start + most).min(tile.lines.len());
        let (lines, places) = (&tile.lines[start..end], &tile.places[start..end]);
        let mut sums = [[s.no_sums(); T]; 2];
        for (block, place) in lines.iter().zip(places) {
            let place = usize::from(*place);
            for half in 0..2 {
                s.prefetch(&block[half], AHEAD);
                let fields = s.fields(s.load(&block[half]));
                let own = if T == 1 { half } else { 0 };
                for t in 0..T {
                    sums[own][t] = s.line(sums[own][t], fields, &x.codes[t][place][half]);
                }
            }
            for t in 0..T {
                less[t] += x.negated[place][t];
            }
        }
        for t in 0..T {
            total[t] = s.add_ints(total[t], s.finish(sums[0][t]));
            if T == 1 {
                total[t] = s.add_ints(total[t], s.finish(sums[1][t]));
            }
        }
        start = end;
    }
    for t in 0..T {
        total[t] = s.add_ints(total[t], s.splat_int(less[t]));
    }
    total
}

/// Many rows of activations: blocks are unpacked once into a panel that stays in the L1 cache.
struct ManyTokens<'a, 'p, K> {
    kernels: K,
    job: Job<'a>,
    piece: &'a mut Piece<'p>,
}

impl<K: Kernels> Loop for ManyTokens<'_, '_, K> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { kernels: k, job, piece } = self;
        let (m, rows) = (job.m, job.x.rows());
        let mut scratch = Scratch::new(&job);
        let mut tile = piece.tiles.start;
        while tile < piece.tiles.end {
            // Two tiles share the loads of the activations, unless too few of their blocks coincide.
            let both = if K::TILES == 2 && tile + 1 < piece.tiles.end {
                let [both, first, second] =
                    [tile..tile + 2, tile..tile + 1, tile + 1..tile + 2].map(|t| scratch.count(&job, t));
                2 * PAIRED * both <= ALONE * (first + second)
            } else {
                false
            };
            let tiles = if const { K::TILES == 2 } && both {
                job.tiles::<K, 2>(k, tile, &mut scratch);
                2
            } else {
                job.tiles::<K, 1>(k, tile, &mut scratch);
                1
            };
            for t in 0..tiles {
                let sums = &mut scratch.sums[t * rows..][..rows];
                if m.means(k, tile + t, &mut scratch.groups) {
                    add_means(k, job.x, job.units, &scratch.groups, sums);
                }
            }
            piece.write(k, &job.x.joined(), tile..tile + tiles, &scratch.sums[..tiles * rows]);
            tile += tiles;
        }
    }
}

/// Relative cost of a block per tile, for two tiles multiplied together and for one alone.
const PAIRED: usize = 8;
const ALONE: usize = 9;

/// Per-thread buffers, other than the outputs.
#[derive(Default)]
struct Scratch {
    /// Negated sums of the activations, `[block][row]`.
    negated: Vec<i32>,
    /// `[fold][tile][block][step]`.
    panel: Vec<CodeLine>,
    /// Bit mask of the blocks present in any of the current tiles.
    words: Vec<u64>,
    /// Block numbers of the set bits.
    list: Vec<usize>,
    /// Number of processed blocks of each plane of each tile.
    passed: Vec<usize>,
    /// Bias of the blocks of a panel, per row.
    less: Vec<i32>,
    /// Scales or means of the current tiles, `[tile][group]`.
    groups: Vec<FloatLine>,
    /// Outputs of the current tiles and rows of activations, `[tile][row]`.
    sums: Vec<FloatLine>,
    /// Partial exact sums of a unit, in the same order.
    ints: Vec<IntLine>,
}

impl Scratch {
    /// Not inlined, because it would be compiled again for every instruction set.
    #[inline(never)]
    fn new(job: &Job<'_>) -> Self {
        let negated = |block| (0..job.x.rows()).map(move |row| job.negated(row, block));
        Self {
            negated: (0..job.count()).flat_map(negated).collect(),
            panel: vec![CacheLine([0; 64]); job.m.folds().count() * ROOM * STEPS],
            ..Self::default()
        }
    }

    /// Marks the blocks of a set that are present in any of some tiles.
    #[inline(never)]
    fn mark(&mut self, job: &Job<'_>, tiles: Range<usize>, set: usize) {
        self.words.clear();
        self.words.resize(job.count().div_ceil(64), 0);
        for tile in tiles {
            for plane in 0..job.m.planes() {
                for place in job.blocks.tile(job.m.plane_index(tile, set, plane)).places {
                    self.words[usize::from(place / 64)] |= 1 << (place % 64);
                }
            }
        }
    }

    /// Number of blocks in the union over some tiles, summed over all sets.
    fn count(&mut self, job: &Job<'_>, tiles: Range<usize>) -> usize {
        let mut count = 0;
        for set in 0..job.m.sets() {
            self.mark(job, tiles.clone(), set);
            count += self.words.iter().map(|word| word.count_ones() as usize).sum::<usize>();
        }
        count
    }
}

impl Job<'_> {
    /// The outputs of `N` tiles, without the means.
    #[inline(always)]
    fn tiles<S: Kernels, const N: usize>(&self, s: S, tile: usize, scratch: &mut Scratch) {
        let (m, rows) = (self.m, self.x.rows());
        scratch.groups.resize(N * m.groups(), CacheLine([0.0; ROWS]));
        scratch.sums.clear();
        scratch.sums.resize(N * rows, CacheLine([0.0; ROWS]));
        scratch.ints.resize(N * rows, CacheLine([0; ROWS]));
        for set in 0..m.sets() {
            for (n, groups) in scratch.groups.chunks_exact_mut(m.groups()).enumerate() {
                m.scales(s, tile + n, set, groups);
            }
            scratch.mark(self, tile..tile + N, set);
            let mut list = std::mem::take(&mut scratch.list);
            list.clear();
            list.extend(numbers(&scratch.words));
            scratch.passed.clear();
            scratch.passed.resize(N * m.planes(), 0);
            let mut rest = list.as_slice();
            for unit in 0..self.units.count {
                let len = rest.iter().take_while(|&&block| block < (unit + 1) * self.per_unit()).count();
                let (blocks, tail) = rest.split_at(len);
                rest = tail;
                let parts = blocks.len().div_ceil(ROOM / N).max(usize::from(!self.skips));
                for part in 0..parts {
                    let from = part * (ROOM / N);
                    let blocks = &blocks[from..blocks.len().min(from + ROOM / N)];
                    self.unpack::<S, N>(s, (tile, set), blocks, scratch);
                    let (first, last) = (part == 0, part + 1 == parts);
                    let part = Part { job: self, unit, blocks, first, last };
                    part.rows::<S, N>(s, scratch);
                }
            }
            scratch.list = list;
        }
    }

    /// Unpacks some blocks of `N` tiles into the panel, and accumulates the bias of their codes.
    #[inline(always)]
    fn unpack<S: Simd, const N: usize>(
        &self,
        s: S,
        (tile, set): (usize, usize),
        blocks: &[usize],
        scratch: &mut Scratch,
    ) {
        let (m, rows) = (self.m, self.x.rows());
        for (run, planes) in m.folds().enumerate() {
            for n in 0..N {
                let panel = &mut scratch.panel[(run * N + n) * (ROOM / N) * STEPS..];
                for plane in planes.clone() {
                    let weights = self.blocks.tile(m.plane_index(tile + n, set, plane));
                    let passed = &mut scratch.passed[n * m.planes() + plane];
                    for (block, places) in blocks.iter().zip(panel.as_chunks_mut::<STEPS>().0) {
                        let here =
                            weights.places.get(*passed).is_some_and(|&place| usize::from(place) == *block);
                        let lines = if here { &weights.lines[*passed] } else { &[ZEROS; 2] };
                        *passed += usize::from(here);
                        for half in 0..2 {
                            s.prefetch(&lines[half], AHEAD);
                            let codes = s.unpack(s.load(&lines[half]));
                            for f in 0..4 {
                                super::put(s, &mut places[4 * half + f], codes[f], plane == planes.start);
                            }
                        }
                    }
                }
            }
        }
        scratch.less.clear();
        scratch.less.resize(rows, 0);
        for block in blocks {
            let negated = &scratch.negated[block * rows..][..rows];
            for (less, negated) in scratch.less.iter_mut().zip(negated) {
                *less += negated;
            }
        }
        let bias = bias(m.planes());
        for less in &mut scratch.less {
            *less = bias.wrapping_mul(*less);
        }
    }
}

/// Some unpacked blocks of one unit.
struct Part<'a> {
    job: &'a Job<'a>,
    unit: usize,
    blocks: &'a [usize],
    /// Whether it starts the unit.
    first: bool,
    /// Whether it ends the unit.
    last: bool,
}

impl Part<'_> {
    #[inline(always)]
    fn rows<S: Simd, const N: usize>(&self, s: S, scratch: &mut Scratch) {
        for &rows in self.job.x.panels() {
            match rows.rows {
                12 => self.one::<S, N, 12>(s, rows, scratch),
                8 => self.one::<S, N, 8>(s, rows, scratch),
                6 => self.one::<S, N, 6>(s, rows, scratch),
                4 => self.one::<S, N, 4>(s, rows, scratch),
                2 => self.one::<S, N, 2>(s, rows, scratch),
                _ => self.one::<S, N, 1>(s, rows, scratch),
            }
        }
    }

    #[inline(always)]
    fn one<S: Simd, const N: usize, const T: usize>(&self, s: S, rows: Panel, scratch: &mut Scratch) {
        // Panel widths of other instruction sets are not compiled.
        if const { !takes::<S>(N, T) } {
            return;
        }
        let (job, all) = (self.job, self.job.x.rows());
        let mut ints = [[s.splat_int(0); T]; N];
        for n in 0..N {
            for t in 0..T {
                ints[n][t] = s.splat_int(scratch.less[rows.first + t]);
            }
        }
        for (run, fold) in job.m.folds().enumerate() {
            let largest = 3u8.pow(fold.len() as u32) - 1;
            let dots = self.dots::<S, N, T>(s, rows, run, largest, &scratch.panel);
            let weight = 3i32.pow((job.m.planes() - fold.end) as u32);
            for n in 0..N {
                for t in 0..T {
                    ints[n][t] = if weight == 1 {
                        s.add_ints(dots[n][t], ints[n][t])
                    } else {
                        s.scale_add(dots[n][t], weight, ints[n][t])
                    };
                }
            }
        }
        for n in 0..N {
            let places = &mut scratch.ints[n * all + rows.first..][..T];
            for t in 0..T {
                // Partial sums of earlier blocks are carried over to the last part.
                if !self.first {
                    ints[n][t] = s.add_ints(ints[n][t], s.load_ints(&places[t]));
                }
                if !self.last {
                    s.store_ints(ints[n][t], &mut places[t]);
                }
            }
        }
        if !self.last {
            return;
        }
        for n in 0..N {
            let scale = s.load_floats(&scratch.groups[n * job.m.groups() + job.units.group_of(self.unit)]);
            let places = &mut scratch.sums[n * all + rows.first..][..T];
            for t in 0..T {
                let sum = s.load_floats(&places[t]);
                let factor = job.factor(rows.first + t, self.unit);
                s.store_floats(add_scaled(s, sum, scale, factor, ints[n][t]), &mut places[t]);
            }
        }
    }

    /// The sums of code times activation of one fold, over runs of neighbouring blocks.
    #[inline(always)]
    fn dots<S: Simd, const N: usize, const T: usize>(
        &self,
        s: S,
        rows: Panel,
        run: usize,
        largest: u8,
        panel: &[CodeLine],
    ) -> [[S::Ints; T]; N] {
        let x = self.job.x.panel::<T>(rows);
        let mut ints = [[s.splat_int(0); T]; N];
        let mut first = 0;
        while first < self.blocks.len() {
            let mut last = first + 1;
            while last < self.blocks.len() && self.blocks[last] == self.blocks[last - 1] + 1 {
                last += 1;
            }
            let mut panels: [&[CodeLine]; N] = [&[]; N];
            for n in 0..N {
                let panel = &panel[(run * N + n) * (ROOM / N) * STEPS..];
                panels[n] = &panel[first * STEPS..last * STEPS];
            }
            let (start, steps) = (self.blocks[first] * STEPS, (last - first) * STEPS);
            // The blocks of the next panel are not contiguous, so there is nothing to prefetch here.
            let ahead = Ahead { places: [&panel[0]; N], stride: 0 };
            ints = products::<S, N, T>(s, panels, &x[start..start + steps], largest, ahead, ints);
            first = last;
        }
        ints
    }
}
