//! Bundling (superposition): counts of the values per dimension, and their conversion to trits.

use cubecl::prelude::*;

use super::{UNITS, units};
use crate::device::{Buffer, CubeDevice, Launch};
use crate::error::{CubeError, Result, check_len, check_range, check_shape};
use crate::popcount::{STEP, TritTable, words_of};

/// Counts of +1 and -1 per dimension of one or more bundles.
///
/// ```text
/// counts    [bundle][sign: pos, neg][dimension, padded to steps of 128]
/// ```
#[derive(Clone, Debug)]
pub struct TritCounts {
    bundles: usize,
    cols: usize,
    counts: Buffer<u32>,
    /// Total weight of each bundle.
    totals: Vec<u32>,
}

impl TritCounts {
    /// Number of bundles.
    #[must_use]
    pub fn bundles(&self) -> usize {
        self.bundles
    }

    /// Number of dimensions.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Total weight of each bundle.
    #[must_use]
    pub fn totals(&self) -> &[u32] {
        &self.totals
    }

    /// Reads the counts of +1 and of -1 per dimension of each bundle.
    ///
    /// # Errors
    ///
    /// [`CubeError::Device`].
    pub fn read(&self, device: &CubeDevice) -> Result<Vec<[Vec<u32>; 2]>> {
        let padded = self.cols.next_multiple_of(STEP);
        let counts = device.read(&self.counts)?;
        let bundles = counts.chunks_exact(2 * padded);
        Ok(bundles.map(|b| [0, padded].map(|start| b[start..start + self.cols].to_vec())).collect())
    }
}

/// Rule for converting counts to trits.
#[derive(Clone, Copy, Debug)]
pub enum Decision<'a> {
    /// The most frequent of the three values. Tie-breaking order by dimension modulo 3: 0, +1, -1 at 0; +1, -1, 0 at 1; -1, 0,
    /// +1 at 2. Zero for an empty bundle.
    Plurality,
    /// The sign of the sum if its magnitude exceeds the bundle's threshold, else 0.
    Majority(&'a [u32]),
    /// The sign of the sum; if the sum is zero, the trit of the given one-row table.
    Signs(&'a TritTable),
}

/// Unit `i` counts dimension `i % padded` of bundle `i / padded` over its `rows` rows.
#[cube(launch_unchecked)]
fn count(
    words: &[u32],
    weights: &[u32],
    out: &mut [u32],
    bundles: u32,
    rows: u32,
    steps: u32,
    #[comptime] weighted: bool,
) {
    let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
    let (rows, steps) = (rows as usize, steps as usize);
    let padded = 128 * steps;
    if i < bundles as usize * padded {
        let (bundle, col) = (i / padded, i % padded);
        let bit = (col % 32) as u32;
        let word = col / 128 * 8 + col % 128 / 32;
        let mut pos = 0u32;
        let mut neg = 0u32;
        for r in 0..rows {
            let row = bundle * rows + r;
            let at = row * steps * 8 + word;
            let (p, n) = ((words[at] >> bit) & 1, (words[at + 4] >> bit) & 1);
            if comptime!(weighted) {
                pos += p * weights[row];
                neg += n * weights[row];
            } else {
                pos += p;
                neg += n;
            }
        }
        let to = bundle * 2 * padded + col;
        out[to] = pos;
        out[to + padded] = neg;
    }
}

/// Compile-time form of [`Decision`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Rule {
    Plurality,
    Majority,
    Signs,
}

/// Unit `i` decides 32 dimensions, word `i % words` of bundle `i / words`, and writes one word per sign.
#[cube(launch_unchecked)]
fn decide(
    counts: &[u32],
    numbers: &[u32],
    ties: &[u32],
    out: &mut [u32],
    bundles: u32,
    steps: u32,
    #[comptime] rule: Rule,
) {
    let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
    let words = 4 * steps as usize;
    if i < bundles as usize * words {
        let (bundle, word) = (i / words, i % words);
        let from = (bundle * 2 * words + word) * 32;
        let in_row = word / 4 * 8 + word % 4;
        let number = numbers[bundle];
        let mut pos = 0u32;
        let mut neg = 0u32;
        for j in 0..32usize {
            let (p, n) = (counts[from + j], counts[from + words * 32 + j]);
            let bit = 1u32 << j as u32;
            if comptime!(rule == Rule::Plurality) {
                // `number` is the total weight; the rest is the count of zeros.
                let z = number - p - n;
                let turn = (word * 32 + j) % 3;
                let plus = (p > n && p > z) || (p >= n && ((turn == 0 && p > z) || (turn == 1 && p >= z)));
                let minus = (n > p && n > z) || (n >= z && ((turn == 1 && n > p) || (turn == 2 && n >= p)));
                pos |= select(number > 0 && plus, bit, 0u32);
                neg |= select(number > 0 && minus, bit, 0u32);
            } else {
                // Counts stay below 2^31.
                let sum = i32::cast_from(p) - i32::cast_from(n);
                let cut = i32::cast_from(number);
                pos |= select(sum > cut, bit, 0u32);
                neg |= select(sum < 0i32 - cut, bit, 0u32);
                if comptime!(rule == Rule::Signs) {
                    pos |= select(sum == 0, ties[in_row] & bit, 0u32);
                    neg |= select(sum == 0, ties[in_row + 4] & bit, 0u32);
                }
            }
        }
        let to = bundle * 2 * words + in_row;
        out[to] = pos;
        out[to + 4] = neg;
    }
}

/// Cube `i` counts the nonzeros of row `i`.
#[cube(launch_unchecked)]
fn nonzeros(words: &[u32], out: &mut [u32], rows: u32, row_words: u32, #[comptime] units: usize) {
    let row = CUBE_POS;
    let unit = UNIT_POS as usize;
    let mut sums = Shared::<[u32]>::new_slice(units);
    let start = clamp_max(row, rows as usize - 1) * row_words as usize;
    let mut sum = 0u32;
    let mut word = unit;
    while word < row_words as usize {
        sum += words[start + word].count_ones();
        word += units;
    }
    sums[unit] = sum;
    sync_cube();
    if unit == 0 && row < rows as usize {
        let mut all = 0u32;
        for i in 0..units {
            all += sums[i];
        }
        out[row] = all;
    }
}

impl CubeDevice {
    /// Bundles each run of `each` rows: counts both signs, with row `i` counted `weights[i]` times (once without weights).
    ///
    /// # Errors
    ///
    /// [`CubeError::NotMultiple`] when the rows are not a multiple of `each`, [`CubeError::Length`] when the number of weights
    /// differs from the rows, [`CubeError::Range`] when the total weight of a bundle exceeds `i32::MAX`, and those of
    /// [`Settings::check`](crate::Settings::check) and of the launch.
    pub fn bundle(&self, table: &TritTable, each: usize, weights: Option<&[u32]>) -> Result<TritCounts> {
        const NAME: &str = "bundle of trits";
        if each == 0 || !table.rows().is_multiple_of(each) {
            return Err(CubeError::NotMultiple { what: "rows of bundles", unit: each, got: table.rows() });
        }
        let totals = match weights {
            None => vec![each as u64; table.rows() / each],
            Some(weights) => {
                check_len("weights of a bundle's rows", table.rows(), weights.len())?;
                weights.chunks_exact(each).map(|run| run.iter().map(|&w| u64::from(w)).sum()).collect()
            }
        };
        let total = |total: u64| {
            let got = usize::try_from(total).unwrap_or(usize::MAX);
            check_range("weight of a bundle", 0, i32::MAX as usize, got)?;
            Ok(got as u32)
        };
        let totals = totals.into_iter().map(total).collect::<Result<Vec<_>>>()?;
        let (bundles, padded) = (totals.len(), table.cols().next_multiple_of(STEP));
        let len = check_shape("counts of bundles", 2 * bundles, padded)?;
        let out = TritCounts { bundles, cols: table.cols(), counts: self.empty(len)?, totals };
        let weights_there = weights.map(|weights| self.upload(weights)).transpose()?;
        let settings = units(bundles * padded, 3);
        let launch = Launch::new(NAME, &(weights.is_some(), UNITS), settings);
        self.launch(&launch, &[&out.counts], |client, cubes, units| {
            // Without weights, a placeholder is bound, which is not read.
            let weights = weights_there.as_ref().map_or(table.words().arg(), Buffer::arg);
            // SAFETY: the table has `bundles * each` rows and the output `2 * padded` counts per bundle; a unit handles the
            // dimension of its index below `bundles * padded`, and there is one weight per row.
            unsafe {
                count::launch_unchecked(
                    client,
                    cubes,
                    units,
                    table.words().arg(),
                    weights,
                    out.counts.arg(),
                    bundles as u32,
                    each as u32,
                    (padded / STEP) as u32,
                    weights_there.is_some(),
                );
            }
        })?;
        Ok(out)
    }

    /// Converts counts to trits, one row per bundle.
    ///
    /// # Errors
    ///
    /// [`CubeError::Length`] for an output or ties of another shape, or a number of thresholds other than the bundles',
    /// [`CubeError::Range`] for a threshold over `i32::MAX`, and those of [`Settings::check`](crate::Settings::check) and of
    /// the launch.
    pub fn decide(&self, counts: &TritCounts, decision: Decision<'_>, out: &TritTable) -> Result<()> {
        const NAME: &str = "trits of bundles";
        check_len("dimensions of bundles", counts.cols, out.cols())?;
        check_len("bundles", counts.bundles, out.rows())?;
        let zeros = vec![0; counts.bundles];
        let (rule, numbers, ties) = match decision {
            Decision::Plurality => (Rule::Plurality, &counts.totals[..], None),
            Decision::Majority(cuts) => {
                check_len("thresholds of bundles", counts.bundles, cuts.len())?;
                let largest = cuts.iter().copied().max().unwrap_or(0);
                check_range("threshold of a bundle", 0, i32::MAX as usize, largest as usize)?;
                (Rule::Majority, cuts, None)
            }
            Decision::Signs(ties) => {
                check_len("dimensions of ties", counts.cols, ties.cols())?;
                check_len("rows of ties", 1, ties.rows())?;
                if ties.words().overlaps(out.words()) {
                    return Err(CubeError::Overlap { what: "ties and output of bundles" });
                }
                (Rule::Signs, &zeros[..], Some(ties))
            }
        };
        let numbers = self.upload(numbers)?;
        let words = counts.cols.div_ceil(STEP) * 4;
        let settings = units(counts.bundles * words, 4);
        let launch = Launch::new(NAME, &(rule, UNITS), settings);
        self.launch(&launch, &[out.words()], |client, cubes, units| {
            // Without ties, a placeholder is bound, which is not read.
            let ties = ties.map_or(numbers.arg(), |ties| ties.words().arg());
            // SAFETY: the shapes of counts and output were checked above, there is one number per bundle, and ties are one row;
            // a unit handles the word of its index below `bundles * words`.
            unsafe {
                decide::launch_unchecked(
                    client,
                    cubes,
                    units,
                    counts.counts.arg(),
                    numbers.arg(),
                    ties,
                    out.words().arg(),
                    counts.bundles as u32,
                    (words / 4) as u32,
                    rule,
                );
            }
        })
    }

    /// Counts the nonzero trits of each row.
    ///
    /// # Errors
    ///
    /// Errors of [`Settings::check`](crate::Settings::check) and of the launch, [`CubeError::Device`].
    pub fn nonzeros(&self, table: &TritTable) -> Result<Vec<u32>> {
        const NAME: &str = "nonzeros of trits";
        let out = self.empty::<u32>(table.rows())?;
        let cubes = crate::plan::spread(table.rows());
        let settings = crate::plan::Settings { cubes, ..crate::plan::Settings::linear(1, UNITS, 2) };
        let settings = settings.shared(4 * UNITS as usize);
        self.launch(&Launch::new(NAME, &UNITS, settings), &[&out], |client, cubes, units| {
            // SAFETY: the cube's row is clamped for reads and checked for writes; the words per row are those of `TritTable`.
            unsafe {
                nonzeros::launch_unchecked(
                    client,
                    cubes,
                    units,
                    table.words().arg(),
                    out.arg(),
                    table.rows() as u32,
                    words_of(table.cols()) as u32,
                    UNITS as usize,
                );
            }
        })?;
        self.read(&out)
    }
}
