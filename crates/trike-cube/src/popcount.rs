//! Dot products of trits with trits: AND and popcount, for hypervectors and ternary keys.

use cubecl::prelude::*;
use trike_trit::{TritError, TritTensor};

use crate::capabilities::Capabilities;
use crate::device::{Buffer, CubeDevice, Launch};
use crate::error::{CubeError, Result, check_len, check_range, check_shape, unsupported};
use crate::plan::{KernelProblem, Settings, Strategy};
use trike_core::{Cost, TritScore};

/// Four words of a bit plane.
pub(crate) type Quad = Vector<u32, Const<4>>;

/// Trits per step: one vector per sign.
pub(crate) const STEP: usize = 128;
/// Rows per cube.
const ROWS: usize = 4;
/// Units per cube.
const UNITS: usize = 64;
/// Partial counts after the first step of the reduction over the units.
const PARTS: usize = 8;

/// Rows of trits on a device, as bit planes: a codebook (item memory) or queries.
///
/// ```text
/// words    [row][step of 128 trits][sign: pos, neg][word of 4]: bit j of word w is trit 128 step + 32 w + j
/// ```
#[derive(Clone, Debug)]
pub struct TritTable {
    rows: usize,
    cols: usize,
    words: Buffer<u32>,
}

impl TritTable {
    /// Uploads the trits of a tensor of one plane; its scales and its rotation are ignored.
    ///
    /// # Errors
    ///
    /// [`CubeError::Unsupported`] for more than one plane, [`CubeError::Shape`] and [`CubeError::Memory`] for a tensor that is
    /// too large.
    pub fn upload(device: &CubeDevice, tensor: &TritTensor) -> Result<Self> {
        let (rows, cols) = (tensor.rows(), tensor.cols());
        if tensor.depth() != 1 {
            let property = format!("{} trit planes", tensor.depth());
            return unsupported("table of trits", property, "upload one trit plane per table");
        }
        check_shape("table of trits", rows, cols.next_multiple_of(STEP))?;
        let mut words = vec![0; rows * words_of(cols)];
        let mut trits = vec![0i8; cols.next_multiple_of(STEP)];
        for (row, words) in words.chunks_exact_mut(words_of(cols)).enumerate() {
            tensor.read_row(0, row, &mut trits[..cols])?;
            pack_row(&trits, words);
        }
        Ok(Self { rows, cols, words: device.upload_weights(&words)? })
    }

    /// Uploads rows of bit planes: per row its positive and its negative trits, 64 per word, zeros past the last trit.
    ///
    /// # Errors
    ///
    /// [`CubeError::Length`] for planes whose length does not match `cols`, [`CubeError::Trit`] for bits past the last trit and
    /// for trits with both signs, [`CubeError::Shape`] and [`CubeError::Memory`] for a table that is too large.
    pub fn from_planes<'a>(
        device: &CubeDevice,
        cols: usize,
        rows: impl ExactSizeIterator<Item = [&'a [u64]; 2]>,
    ) -> Result<Self> {
        let count = rows.len();
        check_shape("table of trits", count, cols.next_multiple_of(STEP))?;
        let past = if cols.is_multiple_of(64) { 0 } else { !0u64 << (cols % 64) };
        let mut words = vec![0; count * words_of(cols)];
        for (row, (planes, words)) in rows.zip(words.chunks_exact_mut(words_of(cols))).enumerate() {
            for plane in planes {
                check_len("words of a plane of trits", cols.div_ceil(64), plane.len())?;
                if plane.last().is_some_and(|last| last & past != 0) {
                    return Err(TritError::NonzeroPadding { plane: 0, row }.into());
                }
            }
            let [pos, neg] = planes;
            if let Some(word) = pos.iter().zip(neg).position(|(p, n)| p & n != 0) {
                return Err(TritError::BothBits { plane: 0, row, word }.into());
            }
            for (sign, plane) in planes.into_iter().enumerate() {
                for (i, &word) in plane.iter().enumerate() {
                    let at = i / 2 * 8 + sign * 4 + i % 2 * 2;
                    (words[at], words[at + 1]) = (word as u32, (word >> 32) as u32);
                }
            }
        }
        Ok(Self { rows: count, cols, words: device.upload_weights(&words)? })
    }

    /// Allocates an uninitialized table, to be written completely by a kernel.
    ///
    /// # Errors
    ///
    /// As [`TritTable::from_planes`].
    pub fn empty(device: &CubeDevice, rows: usize, cols: usize) -> Result<Self> {
        check_shape("table of trits", rows, cols.next_multiple_of(STEP))?;
        let words = device.empty(check_shape("words of a table of trits", rows, words_of(cols))?)?;
        Ok(Self { rows, cols, words })
    }

    /// The bit planes of each row, in the format of [`TritTable::from_planes`].
    ///
    /// # Errors
    ///
    /// [`CubeError::Device`].
    pub fn read_planes(&self, device: &CubeDevice) -> Result<Vec<[Vec<u64>; 2]>> {
        let words = device.read(&self.words)?;
        let plane = |row: &[u32], sign: usize| -> Vec<u64> {
            let places = (0..self.cols.div_ceil(64)).map(|i| i / 2 * 8 + sign * 4 + i % 2 * 2);
            places.map(|at| u64::from(row[at]) | u64::from(row[at + 1]) << 32).collect()
        };
        let rows = words.chunks_exact(words_of(self.cols));
        Ok(rows.map(|row| [0, 1].map(|sign| plane(row, sign))).collect())
    }

    /// A view of `rows` rows, sharing the memory.
    pub(crate) fn rows_from(&self, first: usize, rows: usize) -> Result<Self> {
        let row = words_of(self.cols);
        Ok(Self { rows, cols: self.cols, words: self.words.view(first * row, rows * row)? })
    }

    pub(crate) fn words(&self) -> &Buffer<u32> {
        &self.words
    }

    /// Rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Trits per row.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Device memory of the table, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.words.bytes()
    }
}

/// Words per row.
pub(crate) fn words_of(cols: usize) -> usize {
    cols.div_ceil(STEP) * 8
}

fn pack_row(trits: &[i8], words: &mut [u32]) {
    for (trits, words) in trits.as_chunks::<STEP>().0.iter().zip(words.as_chunks_mut::<8>().0) {
        for (w, trits) in trits.as_chunks::<32>().0.iter().enumerate() {
            for (j, &trit) in trits.iter().enumerate() {
                words[w] |= u32::from(trit > 0) << j;
                words[4 + w] |= u32::from(trit < 0) << j;
            }
        }
    }
}

/// Scores of queries with all rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TritDotProblem {
    /// The score.
    pub score: TritScore,
    /// Number of queries.
    pub queries: usize,
    /// Rows of the table.
    pub rows: usize,
    /// Trits per row.
    pub cols: usize,
}

/// Kernel variant: number of queries that share one pass over the table, 1, 2, 4 or 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TritDotBlueprint {
    /// Queries per cube.
    pub queries: usize,
}

impl KernelProblem for TritDotProblem {
    type Blueprint = TritDotBlueprint;

    const NAME: &'static str = "trit dot";

    fn validate(&self) -> Result<()> {
        check_shape("table of trits", self.rows, self.cols.next_multiple_of(STEP))?;
        check_shape("queries of trits", self.queries, self.cols.next_multiple_of(STEP))?;
        check_shape("dot products of trits", self.queries, self.rows)?;
        // Every count fits an i32.
        check_range("trits of a row", 1, i32::MAX as usize, self.cols)
    }

    fn candidates(&self, _device: &Capabilities) -> Vec<TritDotBlueprint> {
        vec![TritDotBlueprint { queries: self.queries.next_power_of_two().min(8) }]
    }

    fn settings(&self, blueprint: &TritDotBlueprint, _device: &Capabilities) -> Result<Settings> {
        let queries = blueprint.queries;
        check_range("queries of a cube", 1, 8, queries)?;
        if !queries.is_power_of_two() {
            return Err(CubeError::NotMultiple { what: "queries of a cube", unit: 2, got: queries });
        }
        let side = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Ok(Settings {
            cubes: [side(self.rows.div_ceil(ROWS)), side(self.queries.div_ceil(queries)), 1],
            units: [UNITS as u32, 1],
            shared_bytes: 4 * ROWS * queries * (UNITS + PARTS),
            bindings: 3,
        })
    }

    fn cost(&self) -> Cost {
        let [queries, rows, words] = [self.queries, self.rows, words_of(self.cols)].map(|n| n as u64);
        // Per word with both signs of both operands: four ANDs, two ORs, two popcounts, two additions.
        Cost::of_operations(
            10 * queries * rows * (words / 2),
            4 * (queries * words + rows * words + queries * rows),
        )
    }
}

/// Cube `(x, y)` scores four rows with `each` queries; unit `u` processes every 64th step of the rows.
#[cube(launch_unchecked)]
fn trit_dots(
    table: &[Quad],
    queries: &[Quad],
    out: &mut [i32],
    rows: u32,
    count: u32,
    steps: u32,
    // Initial value of every score.
    start: i32,
    #[comptime] each: usize,
    #[comptime] score: TritScore,
    #[comptime] floats: bool,
) {
    let unit = UNIT_POS_X as usize;
    let first_row = CUBE_POS_X as usize * ROWS;
    let first_query = CUBE_POS_Y as usize * each;
    let (last_row, last_query) = (rows as usize - 1, count as usize - 1);
    let steps = steps as usize;
    let values = comptime!(ROWS * each);

    let mut sums = Array::<i32>::new(values);
    #[unroll]
    for n in 0..values {
        sums[n] = 0;
    }
    let mut step = unit;
    while step < steps {
        #[unroll]
        for m in 0..each {
            // Queries and rows past the last repeat the last one and are not stored.
            let at = (clamp_max(first_query + m, last_query) * steps + step) * 2;
            let (a, b) = (queries[at], queries[at + 1]);
            #[unroll]
            for r in 0..ROWS {
                let at = (clamp_max(first_row + r, last_row) * steps + step) * 2;
                let (p, n) = (table[at], table[at + 1]);
                // The two products of a sign are disjoint, so one popcount counts both.
                let plus = ((p & a) | (n & b)).count_ones();
                let mut difference = Vector::<i32, Const<4>>::cast_from(plus);
                if comptime!(score == TritScore::Dot) {
                    difference -= Vector::<i32, Const<4>>::cast_from(((p & b) | (n & a)).count_ones());
                }
                if comptime!(score == TritScore::Matches) {
                    // Positions where both are zero match too: all positions minus the union.
                    difference -= Vector::<i32, Const<4>>::cast_from((p | n | a | b).count_ones());
                }
                sums[comptime!(r * each + m)] += difference.vector_sum();
            }
        }
        step += UNITS;
    }

    let mut shared = Shared::<[i32]>::new_slice(comptime!(values * UNITS));
    let mut parts = Shared::<[i32]>::new_slice(comptime!(values * PARTS));
    #[unroll]
    for n in 0..values {
        shared[n * UNITS + unit] = sums[n];
    }
    sync_cube();
    let mut index = unit;
    while index < comptime!(values * PARTS) {
        let mut sum = 0i32;
        for i in 0..comptime!(UNITS / PARTS) {
            sum += shared[index / PARTS * UNITS + index % PARTS + i * PARTS];
        }
        parts[index] = sum;
        index += UNITS;
    }
    sync_cube();
    if unit < values {
        let (row, query) = (first_row + unit / each, first_query + unit % each);
        if row <= last_row && query <= last_query {
            let mut sum = start;
            for i in 0..comptime!(PARTS) {
                sum += parts[unit * PARTS + i];
            }
            if comptime!(floats) {
                sum = i32::reinterpret(f32::cast_from(sum));
            }
            out[query * rows as usize + row] = sum;
        }
    }
}

impl CubeDevice {
    /// Writes the dot product of query `q` and row `r` of the table to `out[q][r]`.
    ///
    /// # Errors
    ///
    /// [`CubeError::Length`] when the trits per row or the output length do not match, and those of [`KernelProblem::plan`] and of
    /// the launch.
    pub fn trit_dot(
        &self,
        queries: &TritTable,
        table: &TritTable,
        out: &Buffer<i32>,
        strategy: &Strategy<TritDotBlueprint>,
    ) -> Result<()> {
        self.trit_scores(TritScore::Dot, queries, table, out, strategy)
    }

    /// Writes the score of query `q` and row `r` of the table to `out[q][r]`.
    ///
    /// # Errors
    ///
    /// As [`CubeDevice::trit_dot`].
    pub fn trit_scores(
        &self,
        score: TritScore,
        queries: &TritTable,
        table: &TritTable,
        out: &Buffer<i32>,
        strategy: &Strategy<TritDotBlueprint>,
    ) -> Result<()> {
        self.scores_as(score, queries, table, out, strategy, false)
    }

    /// [`CubeDevice::trit_scores`], as integers or as the bits of f32 values.
    pub(crate) fn scores_as(
        &self,
        score: TritScore,
        queries: &TritTable,
        table: &TritTable,
        out: &Buffer<i32>,
        strategy: &Strategy<TritDotBlueprint>,
        floats: bool,
    ) -> Result<()> {
        check_len("trits of a query", table.cols, queries.cols)?;
        let problem = TritDotProblem { score, queries: queries.rows, rows: table.rows, cols: table.cols };
        let (blueprint, settings) = problem.plan(strategy, self.capabilities())?;
        check_len("scores of trits", problem.queries * problem.rows, out.len())?;
        let launch = Launch::new(TritDotProblem::NAME, &(blueprint, score, floats), settings);
        let start = if score == TritScore::Matches { problem.cols as i32 } else { 0 };
        let steps = (words_of(problem.cols) / 8) as u32;
        self.launch(&launch, &[out], |client, cubes, units| {
            // SAFETY: the lengths of both tables come from `TritTable::upload`, that of `out` was checked above; the kernel
            // clamps rows and queries to them, and its loop ends at `steps`.
            unsafe {
                trit_dots::launch_unchecked(
                    client,
                    cubes,
                    units,
                    table.words.vectors(4),
                    queries.words.vectors(4),
                    out.arg(),
                    problem.rows as u32,
                    problem.queries as u32,
                    steps,
                    start,
                    blueprint.queries,
                    score,
                    floats,
                );
            }
        })
    }
}
