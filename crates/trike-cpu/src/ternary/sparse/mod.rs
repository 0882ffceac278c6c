//! Kernels for sparse weights.
//!
//! For few rows of activations, the slots of a line are looked up in a table of the activations that they can address
//! (`Permutes::find`): 64 slots per permute. For more rows, the columns of the nonzeros of each row are listed, and for each column
//! the activations of 64 interleaved tokens are added or subtracted.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod columns;

use super::Units;
use super::permutes::Permutes;
use crate::activations::{Activations, INTERLEAVE, Interleaved};
use crate::kernels::Kernels;
use crate::line::{FloatLine, IntLine, ROWS, TableLine};
use crate::matrix::TernaryMatrix;
use crate::matrix::sparse::{Entry, Sparse, SparseTile};
use crate::piece::Piece;
use crate::simd::Simd;

pub(crate) use columns::Columns;
use columns::list_row;
use trike_host::CacheLine;
use trike_host::Loop;

/// Prefetch distance of spilled entries, in bytes.
const AHEAD: usize = 512;

/// The exact sums of a plane of one tile whose columns form one unit, in both the weights and the kernel; `None` if
/// the instruction set has no table lookup of 128 bytes.
#[inline(always)]
pub(super) fn one_unit<S: Simd, P: Permutes<S>, const T: usize>(
    s: S,
    permutes: P,
    sparse: &Sparse,
    index: usize,
    x: [&[[i8; 16]]; T],
    tables: &[Vec<TableLine>; T],
) -> Option<[S::Ints; T]> {
    let tile = sparse.tile(index);
    let mut parts: [&[TableLine]; T] = [&[]; T];
    for t in 0..T {
        parts[t] = &tables[t];
    }
    let mut found = permutes.find::<T>(s, tile.lines, sparse.cells().per_line(), parts)?;
    if let Some(first) = tile.spills.first() {
        s.prefetch(first, AHEAD);
        let mut ints = [CacheLine([0; ROWS]); T];
        for &word in tile.spills {
            add_entry(&mut ints, x, Entry::spilled(word));
        }
        for t in 0..T {
            found[t] = s.add_ints(found[t], s.load_ints(&ints[t]));
        }
    }
    Some(found)
}

/// Adds a plane of one tile to the exact sums of the units, after multiplying those of the earlier planes by three.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "one call site, in the loop over planes")]
pub(super) fn add_plane<S: Simd, P: Permutes<S>, const T: usize>(
    s: S,
    permutes: P,
    sparse: &Sparse,
    index: usize,
    units: Units,
    x: [&[[i8; 16]]; T],
    tables: &[Vec<TableLine>; T],
    ints: &mut [[IntLine; T]],
) {
    for line in ints.as_flattened_mut() {
        s.store_ints(s.scale_add(s.load_ints(line), 3, s.splat_int(0)), line);
    }
    let tile = sparse.tile(index);
    if sparse.cells().unit() == units.cols && find_plane(s, permutes, sparse, tile, tables, ints) {
        let (mut unit, mut end) = (0, units.cols);
        for &word in tile.spills {
            let entry = Entry::spilled(word);
            while entry.col >= end {
                unit += 1;
                end += units.cols;
            }
            add_entry(&mut ints[unit], x, entry);
        }
    } else if let [ints] = ints {
        // One unit has all columns: no division by those of a unit.
        for row in 0..ROWS {
            sparse.for_row(tile, row, |entry| add_entry(ints, x, entry));
        }
    } else {
        for row in 0..ROWS {
            sparse.for_row(tile, row, |entry| add_entry(&mut ints[entry.col / units.cols], x, entry));
        }
    }
}

/// Adds the activations addressed by the slots; returns `false`, without changes, if the instruction set has no table
/// lookup of 128 bytes.
#[inline(always)]
fn find_plane<S: Simd, P: Permutes<S>, const T: usize>(
    s: S,
    permutes: P,
    sparse: &Sparse,
    tile: SparseTile<'_>,
    tables: &[Vec<TableLine>; T],
    ints: &mut [[IntLine; T]],
) -> bool {
    let per_line = sparse.cells().per_line();
    for (unit, ints) in ints.iter_mut().enumerate() {
        let (first, last) = sparse.cells().lines_of(unit);
        let mut parts: [&[TableLine]; T] = [&[]; T];
        for t in 0..T {
            parts[t] = &tables[t][first * per_line..last * per_line];
        }
        let Some(found) = permutes.find::<T>(s, &tile.lines[first..last], per_line, parts) else {
            return false;
        };
        for t in 0..T {
            s.store_ints(s.add_ints(s.load_ints(&ints[t]), found[t]), &mut ints[t]);
        }
    }
    true
}

/// Adds one nonzero to the sums of every row of activations.
#[inline(always)]
fn add_entry<const T: usize>(ints: &mut [IntLine; T], x: [&[[i8; 16]]; T], entry: Entry) {
    for t in 0..T {
        let value = i32::from(x[t].as_flattened()[entry.col]);
        ints[t].0[entry.row] += if entry.negative { -value } else { value };
    }
}

/// Kernel for many rows of activations.
pub(super) struct ManyTokens<'a, 'p, K> {
    kernels: K,
    m: &'a TernaryMatrix,
    sparse: &'a Sparse,
    x: &'a Activations,
    units: Units,
    piece: &'a mut Piece<'p>,
}

impl<'a, 'p, K> ManyTokens<'a, 'p, K> {
    pub(super) fn new(
        kernels: K,
        m: &'a TernaryMatrix,
        sparse: &'a Sparse,
        x: &'a Activations,
        units: Units,
        piece: &'a mut Piece<'p>,
    ) -> Self {
        Self { kernels, m, sparse, x, units, piece }
    }
}

/// Tiles whose columns are listed together: the activations of 64 tokens stay in the L2 cache while they are added.
const TOGETHER: usize = 4;

impl<K: Kernels + Columns> Loop for ManyTokens<'_, '_, K> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { kernels: k, m, sparse, x, units, piece } = self;
        let blocks = x.rows().div_ceil(INTERLEAVE);
        let mut groups = vec![CacheLine([0.0; ROWS]); m.groups()];
        let origins = sparse.origins();
        let mut lists = Lists::default();
        // `[tile][row][token]`.
        let mut sums = vec![[0f32; INTERLEAVE]; TOGETHER * ROWS * blocks];
        let mut outputs = vec![CacheLine([0.0; ROWS]); blocks * INTERLEAVE];
        let mut first = piece.tiles.start;
        while first < piece.tiles.end {
            let tiles = TOGETHER.min(piece.tiles.end - first);
            sums.fill([0.0; INTERLEAVE]);
            for set in 0..m.sets() {
                lists.clear();
                for tile in first..first + tiles {
                    for row in 0..ROWS {
                        for plane in 0..m.planes() {
                            lists.push(k, sparse, &origins, m.plane_index(tile, set, plane), row, units);
                        }
                    }
                }
                for (t, sums) in sums.chunks_exact_mut(ROWS * blocks).take(tiles).enumerate() {
                    m.scales(k, first + t, set, &mut groups);
                    for block in 0..blocks {
                        let job = Tile { x, units, groups: &groups, planes: m.planes(), block, blocks };
                        job.add(k, &lists, t * ROWS * m.planes(), sums);
                    }
                }
            }
            for (t, sums) in sums.chunks_exact(ROWS * blocks).take(tiles).enumerate() {
                for (block, outputs) in outputs.chunks_exact_mut(INTERLEAVE).enumerate() {
                    let mut rows: [&[f32; INTERLEAVE]; ROWS] = [&sums[0]; ROWS];
                    for r in 0..ROWS {
                        rows[r] = &sums[r * blocks + block];
                    }
                    let outputs: &mut [FloatLine; INTERLEAVE] = match outputs.first_chunk_mut() {
                        Some(outputs) => outputs,
                        None => continue,
                    };
                    for token in 0..INTERLEAVE {
                        for r in 0..ROWS {
                            outputs[token].0[r] = rows[r][token];
                        }
                    }
                }
                if m.means(k, first + t, &mut groups) {
                    super::add_means(k, x, units, &groups, &mut outputs[..x.rows()]);
                }
                piece.write(k, &x.joined(), first + t..first + t + 1, &outputs[..x.rows()]);
            }
            first += tiles;
        }
    }
}

/// The columns of nonzeros, sorted by row, plane, unit and sign.
#[derive(Default)]
struct Lists {
    cols: Vec<u32>,
    /// End of the positive and of the negative columns of each row, plane and unit.
    ends: Vec<[usize; 2]>,
    positive: Vec<u32>,
    negative: Vec<u32>,
}

impl Lists {
    fn clear(&mut self) {
        self.cols.clear();
        self.ends.clear();
    }

    /// Appends one row of one plane.
    #[inline(always)]
    fn push<C: Columns>(
        &mut self,
        columns: C,
        sparse: &Sparse,
        origins: &[[u32; 4]],
        index: usize,
        row: usize,
        units: Units,
    ) {
        let tile = sparse.tile(index);
        let (mut positive, mut negative) =
            list_row(columns, tile, row, origins, units.count > 1, (&mut self.positive, &mut self.negative));
        for unit in 0..units.count {
            let end = units.range(unit).1;
            let mut ends = [0; 2];
            for (list, place) in [&mut positive, &mut negative].into_iter().zip(&mut ends) {
                // The last unit takes all remaining columns.
                let count = if unit + 1 == units.count {
                    list.len()
                } else {
                    list.iter().take_while(|&&col| (col as usize) < end).count()
                };
                self.cols.extend_from_slice(&list[..count]);
                *list = &list[count..];
                *place = self.cols.len();
            }
            self.ends.push(ends);
        }
    }

    /// The columns of one unit: positive ones, then negative ones.
    #[inline(always)]
    fn get(&self, index: usize) -> (&[u32], &[u32]) {
        let start = if index == 0 { 0 } else { self.ends[index - 1][1] };
        let [middle, end] = self.ends[index];
        (&self.cols[start..middle], &self.cols[middle..end])
    }
}

/// One tile of one set, and a block of 64 rows of activations.
struct Tile<'a> {
    x: &'a Activations,
    units: Units,
    groups: &'a [FloatLine],
    planes: usize,
    block: usize,
    blocks: usize,
}

impl Tile<'_> {
    /// Adds to the sums `[row][block]`; `first` is the index of the first list of the tile, by row and plane.
    #[inline(always)]
    fn add<C: Columns>(&self, columns: C, lists: &Lists, first: usize, sums: &mut [[f32; INTERLEAVE]]) {
        let x = self.x.interleaved(self.block);
        let mut factors = [1.0f32; INTERLEAVE];
        for unit in 0..self.units.count {
            if self.x.grouped() {
                let start = self.units.range(unit).0;
                let rows = self.block * INTERLEAVE..self.x.rows().min((self.block + 1) * INTERLEAVE);
                for (factor, row) in factors.iter_mut().zip(rows) {
                    *factor = self.x.group_factor(row, start);
                }
            }
            let scales = &self.groups[self.units.group_of(unit)].0;
            for row in 0..ROWS {
                let mut ints = Interleaved([0i32; INTERLEAVE]);
                for plane in 0..self.planes {
                    let (positive, negative) =
                        lists.get((first + row * self.planes + plane) * self.units.count + unit);
                    if plane > 0 {
                        for int in &mut ints.0 {
                            *int = int.wrapping_mul(3);
                        }
                    }
                    columns.add_columns(x, positive, negative, &mut ints);
                }
                let place = &mut sums[row * self.blocks + self.block];
                for i in 0..INTERLEAVE {
                    place[i] += (scales[row] * factors[i]) * ints.0[i] as f32;
                }
            }
        }
    }
}
