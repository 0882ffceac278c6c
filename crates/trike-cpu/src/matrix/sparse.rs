//! Storage of sparse planes.

use trike_trit::TritTensor;

use crate::error::CpuError;
use crate::line::{CodeLine, ROWS, TableLine};
use crate::matrix::LONG;
use crate::matrix::shares::{Share, for_tiles};
use trike_host::CacheLine;
use trike_host::Pool;
use trike_host::{HostError, Lines};

/// Columns that a slot can address.
pub(crate) const WINDOW: usize = 127;
/// An empty slot: addresses the table entry that is always zero.
pub(crate) const EMPTY: u8 = 127;
/// Sign bit of a slot.
pub(crate) const NEGATIVE: u8 = 128;
/// Cost of a spilled entry, in bytes that a kernel streams in the same time.
const SPILL_BYTES: usize = 64;
/// The same for a line of 1, 2 or 4 windows: each window takes two loads and a permute, and four take longer than the
/// memory access.
const LINE_BYTES: [usize; 3] = [64, 68, 104];
/// Trits sampled for the choice of the cells.
const SAMPLE: usize = 1 << 18;

/// Assignment of the nonzeros of a row to slots.
///
/// The columns of a unit (a group of the scales, or [`LONG`] columns) are covered by `cells`: cell `j` holds columns
/// `j step .. j step + 127`, or the last 127 of the unit if that would exceed it. Neighbouring cells overlap, so that
/// a row with a local excess of nonzeros can use the next cell. A cell has 1, 2 or 4 slots per row, and a line of 64
/// bytes holds 4, 2 or 1 cells:
///
/// ```text
/// byte 4 r + s of a line:  slot s of row r: column within the window (0..127, or 127 for none), and the sign in bit 7
/// ```
///
/// All tiles have the same cells. Entries without a slot are spilled: `column << 5 | row << 1 | negative`, sorted by
/// column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cells {
    cols: usize,
    /// Columns per unit.
    unit: usize,
    /// Slots per row in a cell.
    pub(super) slots: usize,
    pub(super) step: usize,
    /// Lines per full unit.
    whole: usize,
    /// Lines of the last unit, if it is shorter.
    rest: usize,
}

impl Cells {
    fn new(cols: usize, unit: usize, slots: usize, step: usize) -> Self {
        let mut this = Self { cols, unit, slots, step, whole: 0, rest: 0 };
        (this.whole, this.rest) = (this.lines_for(unit), this.lines_for(cols % unit));
        this
    }

    /// Columns per unit.
    pub(crate) fn unit(&self) -> usize {
        self.unit
    }

    /// Columns of a unit; the last one may have fewer.
    pub(super) fn unit_len(&self, unit: usize) -> usize {
        self.unit.min(self.cols - unit * self.unit)
    }

    /// Cells per line.
    pub(crate) fn per_line(&self) -> usize {
        4 / self.slots
    }

    /// Lines of a unit of `cols` columns.
    pub(super) fn lines_for(&self, cols: usize) -> usize {
        cols.div_ceil(self.step).div_ceil(self.per_line())
    }

    /// Lines of one plane of one tile.
    pub(super) fn lines(&self) -> usize {
        self.cols / self.unit * self.whole + self.rest
    }

    /// The units: first column, number of columns, and first line.
    pub(crate) fn units(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let this = *self;
        (0..self.cols.div_ceil(self.unit))
            .map(move |unit| (unit * this.unit, this.unit_len(unit), unit * this.whole))
    }

    /// The line range of a unit.
    #[inline(always)]
    pub(crate) fn lines_of(&self, unit: usize) -> (usize, usize) {
        let start = unit * self.whole;
        let last = (unit + 1) * self.unit > self.cols;
        (start, start + if last { self.rest } else { self.whole })
    }

    /// The first column of the window of a cell, in a unit of `cols` columns.
    pub(super) fn window(&self, cell: usize, cols: usize) -> usize {
        (cell * self.step).min(cols.saturating_sub(WINDOW))
    }

    /// Assigns the sorted columns of the nonzeros of one row of one unit to cells: calls `put(cell, slot, which)` or
    /// `spill(which)`. Windows end in ascending order, so greedy assignment spills the fewest.
    #[inline]
    fn place(
        &self,
        unit_cols: usize,
        entries: &[u32],
        mut put: impl FnMut(usize, usize, usize),
        mut spill: impl FnMut(usize),
    ) {
        let mut next = 0;
        for cell in 0..self.lines_for(unit_cols) * self.per_line() {
            let start = self.window(cell, unit_cols);
            while next < entries.len() && (entries[next] as usize) < start {
                spill(next);
                next += 1;
            }
            for slot in 0..self.slots {
                if next < entries.len() && (entries[next] as usize) < start + WINDOW {
                    put(cell, slot, next);
                    next += 1;
                }
            }
        }
        (next..entries.len()).for_each(spill);
    }

    /// Fills the lines of some tiles and returns the spilled entries.
    fn pack(
        &self,
        tensor: &TritTensor,
        planes: &[usize],
        share: Share<'_, CodeLine>,
    ) -> Result<Spilled, CpuError> {
        let (rows, cols) = (tensor.rows(), tensor.cols());
        let mut spills: Vec<u32> = Vec::new();
        let mut ends = Vec::new();
        let (mut trits, mut entries) = (vec![0i8; cols], Vec::new());
        let places = share.tiles.flat_map(|tile| planes.iter().map(move |&plane| (tile, plane)));
        for ((tile, plane), lines) in places.zip(share.part.chunks_exact_mut(self.lines())) {
            lines.fill(CacheLine([EMPTY; 64]));
            let first = spills.len();
            for r in 0..ROWS.min(rows - tile * ROWS) {
                tensor.read_row(plane, tile * ROWS + r, &mut trits)?;
                for (start, len, line) in self.units() {
                    let trits = &trits[start..start + len];
                    entries.clear();
                    entries.extend((0u32..).zip(trits).filter(|(_, trit)| **trit != 0).map(|(col, _)| col));
                    let requested = 4 * (spills.len() + entries.len());
                    spills.try_reserve(entries.len()).map_err(|_| HostError::Memory { requested })?;
                    let sign = |i: usize| trits[entries[i] as usize] < 0;
                    let put = |cell: usize, slot: usize, i: usize| {
                        let col = entries[i] as usize - self.window(cell, len);
                        let byte = 4 * r + cell % self.per_line() * self.slots + slot;
                        let negative = if sign(i) { NEGATIVE } else { 0 };
                        lines[line + cell / self.per_line()].0[byte] = col as u8 | negative;
                    };
                    // Columns are below 2^20 (`MAX_COLS`).
                    let spill = |i: usize| {
                        let col = entries[i] + start as u32;
                        spills.push(col << 5 | (r as u32) << 1 | u32::from(sign(i)));
                    };
                    self.place(len, &entries, put, spill);
                }
            }
            spills[first..].sort_unstable();
            ends.push(spills.len());
        }
        Ok(Spilled { spills, ends })
    }

    /// The cell parameters with the lowest estimated read time on a sample of units.
    fn choose(tensor: &TritTensor, planes: &[usize], unit: usize) -> Result<Self, CpuError> {
        let (rows, cols) = (tensor.rows(), tensor.cols());
        let mut trits = vec![0i8; cols];
        let mut sample: Vec<(usize, Vec<u32>)> = Vec::new();
        let wanted = (SAMPLE / cols).clamp(4, 256).min(rows * planes.len());
        let mut taken = 0;
        for i in 0..wanted {
            // Spread over rows and planes.
            let at = i * rows * planes.len() / wanted;
            tensor.read_row(planes[at / rows], at % rows, &mut trits)?;
            for trits in trits.chunks(unit) {
                if taken < 2 * SAMPLE {
                    taken += trits.len();
                    let set = trits.iter().enumerate().filter(|(_, trit)| **trit != 0);
                    sample.push((trits.len(), set.map(|(col, _)| col as u32).collect()));
                }
            }
        }
        let mut candidates: Vec<(usize, Self)> = Vec::new();
        for slots in [1, 2, 4] {
            for step in (4..32).chain((32..64).step_by(2)).chain((64..=WINDOW).step_by(3)) {
                let cells = Self::new(cols, unit, slots, step);
                let lines: usize = sample.iter().map(|(len, _)| cells.lines_for(*len)).sum();
                let bytes = lines * LINE_BYTES[cells.per_line() / 2] / ROWS;
                candidates.push((bytes, cells));
            }
        }
        candidates.sort_by_key(|(bytes, _)| *bytes);
        let (mut best, mut least) = (candidates[0].1, usize::MAX);
        for (bytes, cells) in candidates {
            if bytes >= least {
                break;
            }
            let mut spilled = 0;
            for (len, entries) in &sample {
                cells.place(*len, entries, |_, _, _| (), |_| spilled += 1);
            }
            let cost = bytes + SPILL_BYTES * spilled;
            if cost < least {
                (best, least) = (cells, cost);
            }
        }
        Ok(best)
    }
}

/// The nonzeros of all planes of a matrix.
#[derive(Clone, Debug)]
pub(crate) struct Sparse {
    pub(super) cells: Cells,
    /// `[tile][plane][line]`.
    pub(super) lines: Lines<CodeLine>,
    pub(super) spills: Vec<u32>,
    /// End of the spills of each plane of each tile.
    pub(super) ends: Vec<usize>,
}

/// Spilled entries of some tiles, and their end per plane of each tile.
struct Spilled {
    spills: Vec<u32>,
    ends: Vec<usize>,
}

/// One plane of one tile.
#[derive(Clone, Copy)]
pub(crate) struct SparseTile<'a> {
    pub(crate) lines: &'a [CodeLine],
    pub(crate) spills: &'a [u32],
}

/// A nonzero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) row: usize,
    pub(crate) col: usize,
    pub(crate) negative: bool,
}

impl Entry {
    /// Decodes a spilled entry.
    #[inline(always)]
    pub(crate) fn spilled(word: u32) -> Self {
        Self { row: (word >> 1) as usize % ROWS, col: (word >> 5) as usize, negative: word & 1 != 0 }
    }
}

impl Sparse {
    /// Packs some planes of a tensor.
    pub(crate) fn pack(
        tensor: &TritTensor,
        planes: &[usize],
        group: Option<usize>,
        pool: Option<&Pool>,
    ) -> Result<Self, CpuError> {
        let cells = Cells::choose(tensor, planes, group.unwrap_or(LONG))?;
        let (tiles, per_tile) = (tensor.rows().div_ceil(ROWS), planes.len() * cells.lines());
        let mut lines = Lines::zeroed(tiles * per_tile)?;
        let work = tensor.rows() * tensor.cols() * planes.len();
        let parts = for_tiles(pool, work, tiles, &mut lines, &|tile| tile * per_tile, |share| {
            cells.pack(tensor, planes, share)
        })?;
        let count = parts.iter().map(|part| part.spills.len()).sum();
        let (mut spills, mut ends) = (Vec::new(), Vec::with_capacity(tiles * planes.len()));
        spills.try_reserve_exact(count).map_err(|_| HostError::Memory { requested: 4 * count })?;
        for part in parts {
            ends.extend(part.ends.iter().map(|end| spills.len() + end));
            spills.extend(part.spills);
        }
        Ok(Self { cells, lines, spills, ends })
    }

    pub(crate) fn cells(&self) -> &Cells {
        &self.cells
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val::<[CodeLine]>(&self.lines)
            + size_of_val(self.spills.as_slice())
            + size_of_val(self.ends.as_slice())
    }

    /// The `index`-th plane over all tiles.
    #[inline(always)]
    pub(crate) fn tile(&self, index: usize) -> SparseTile<'_> {
        let len = self.cells.lines();
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        SparseTile { lines: &self.lines[index * len..][..len], spills: &self.spills[start..self.ends[index]] }
    }

    /// Calls `see` with every nonzero of one row of a plane: slots in column order, then spills.
    #[inline(always)]
    pub(crate) fn for_row(&self, tile: SparseTile<'_>, row: usize, mut see: impl FnMut(Entry)) {
        let (slots, per_line) = (self.cells.slots, self.cells.per_line());
        for (unit, (start, len, _)) in self.cells.units().enumerate() {
            let (first, last) = self.cells.lines_of(unit);
            for (i, line) in tile.lines[first..last].iter().enumerate() {
                for (s, byte) in line.0[4 * row..4 * row + 4].iter().enumerate() {
                    if byte & !NEGATIVE != EMPTY {
                        let window = start + self.cells.window(i * per_line + s / slots, len);
                        let col = window + usize::from(byte & !NEGATIVE);
                        see(Entry { row, col, negative: *byte >= NEGATIVE });
                    }
                }
            }
        }
        tile.spills.iter().map(|&word| Entry::spilled(word)).filter(|e| e.row == row).for_each(see);
    }

    /// The first columns of the windows of each line.
    pub(crate) fn origins(&self) -> Vec<[u32; 4]> {
        let mut origins = Vec::with_capacity(self.cells.lines());
        for (unit, (start, len, _)) in self.cells.units().enumerate() {
            let (first, last) = self.cells.lines_of(unit);
            origins.extend((0..last - first).map(|line| {
                let cell = |s: usize| line * self.cells.per_line() + s / self.cells.slots;
                [0, 1, 2, 3].map(|s| (start + self.cells.window(cell(s), len)) as u32)
            }));
        }
        origins
    }

    /// The codes, `trit + 1`, of one row.
    pub(crate) fn read_row(&self, index: usize, row: usize, out: &mut [u8]) {
        out.fill(1);
        self.for_row(self.tile(index), row, |e| out[e.col] = if e.negative { 0 } else { 2 });
    }

    /// The lookup tables of the slots for one row of activations: one per cell, in line order.
    pub(crate) fn tables(&self, x: &[i8]) -> Vec<TableLine> {
        let mut tables = vec![CacheLine([0; 128]); self.cells.lines() * self.cells.per_line()];
        for (start, len, line) in self.cells.units() {
            let x = &x[start..start + len];
            let first = line * self.cells.per_line();
            let count = self.cells.lines_for(len) * self.cells.per_line();
            for (cell, table) in tables[first..first + count].iter_mut().enumerate() {
                let window = &x[self.cells.window(cell, len)..];
                match (window.first_chunk::<WINDOW>(), table.0.first_chunk_mut::<WINDOW>()) {
                    // A copy of constant length compiles to two moves.
                    (Some(window), Some(table)) => *table = *window,
                    _ => table.0[..window.len()].copy_from_slice(window),
                }
            }
        }
        tables
    }
}
