//! Permutation: rotation of the dimensions.

use cubecl::prelude::*;

use super::{OneWay, UNITS, units};
use crate::capabilities::Capabilities;
use crate::device::{CubeDevice, Launch};
use crate::error::{CubeError, Result, check_len, check_range, check_shape};
use crate::plan::{KernelProblem, Settings, Strategy};
use crate::popcount::{STEP, TritTable, words_of};
use trike_core::Cost;

/// A rotation of `rows` rows of `cols` trits by the same number of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PermuteProblem {
    /// Rows.
    pub rows: usize,
    /// Trits per row.
    pub cols: usize,
}

impl KernelProblem for PermuteProblem {
    type Blueprint = OneWay;
    const NAME: &'static str = "permute trits";

    fn validate(&self) -> Result<()> {
        check_shape("table of trits", self.rows, self.cols.next_multiple_of(STEP))?;
        // Twice an index fits 32 bits.
        check_range("trits of a permuted row", 1, i32::MAX as usize, self.cols)
    }

    fn candidates(&self, _: &Capabilities) -> Vec<OneWay> {
        vec![OneWay]
    }

    fn settings(&self, _: &OneWay, _: &Capabilities) -> Result<Settings> {
        Ok(units(self.rows * words_of(self.cols), 2))
    }

    fn cost(&self) -> Cost {
        // Two loads, two shifts and an OR per word; about as many for the indices.
        let words = (self.rows * words_of(self.cols)) as u64;
        Cost::of_operations(10 * words, 8 * words)
    }
}

/// 32 trits of a sign from any offset of a row; zeros past the row's last word.
#[cube]
fn trits_from(words: &[u32], row_start: usize, sign: usize, row_words: usize, place: usize) -> u32 {
    let word = place / 32;
    let shift = (place % 32) as u32;
    // Words of a sign are in groups of four.
    let mut bits = words[row_start + word / 4 * 8 + sign * 4 + word % 4] >> shift;
    let next = word + 1;
    if shift > 0 && next < row_words {
        bits |= words[row_start + next / 4 * 8 + sign * 4 + next % 4] << (32 - shift);
    }
    bits
}

/// Unit `i` computes word `i` of the output, from several pieces of the row if it wraps around the end.
#[cube(launch_unchecked)]
fn permute(words: &[u32], out: &mut [u32], count: u32, cols: u32, steps: u32, by: u32) {
    let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
    if i < count as usize {
        let (cols, row_words) = (cols as usize, 4 * steps as usize);
        let row_start = i / (2 * row_words) * (2 * row_words);
        let in_row = i - row_start;
        let sign = in_row % 8 / 4;
        let first = (in_row / 8 * 4 + in_row % 4) * 32;
        let mut bits = 0u32;
        if first < cols {
            let wanted = clamp_max(cols - first, 32usize);
            // Output `j` is input `j - by`.
            let mut place = (first + cols - by as usize) % cols;
            let mut filled = 0usize;
            while filled < wanted {
                // Trits past the last are zero, so a piece that extends past the end adds nothing.
                bits |= trits_from(words, row_start, sign, row_words, place) << filled as u32;
                filled += cols - place;
                place = 0usize.runtime();
            }
            if wanted < 32 {
                bits &= (1u32 << wanted as u32) - 1;
            }
        }
        out[i] = bits;
    }
}

impl CubeDevice {
    /// Rotates every row: `out[(j + by) mod cols] = x[j]`.
    ///
    /// # Errors
    ///
    /// [`CubeError::Length`] for an output of another shape, [`CubeError::Overlap`] for the table itself, and those of
    /// [`KernelProblem::plan`] and of the launch.
    pub fn permute(&self, x: &TritTable, by: isize, out: &TritTable) -> Result<()> {
        check_len("trits of a permuted row", x.cols(), out.cols())?;
        check_len("permuted rows", x.rows(), out.rows())?;
        if out.words().overlaps(x.words()) {
            return Err(CubeError::Overlap { what: "input and output of permuted trits" });
        }
        let problem = PermuteProblem { rows: x.rows(), cols: x.cols() };
        let (_, settings) = problem.plan(&Strategy::Inferred, self.capabilities())?;
        let launch = Launch::new(PermuteProblem::NAME, &UNITS, settings);
        // A table has fewer than 2^32 columns.
        let by = by.rem_euclid(isize::try_from(problem.cols).unwrap_or(isize::MAX)) as u32;
        let steps = problem.cols.div_ceil(STEP) as u32;
        self.launch(&launch, &[out.words()], |client, cubes, units| {
            // SAFETY: the shapes of both tables were checked above; a unit writes the word of its index below `count`, and
            // reads words within its row.
            unsafe {
                permute::launch_unchecked(
                    client,
                    cubes,
                    units,
                    x.words().arg(),
                    out.words().arg(),
                    (problem.rows * words_of(problem.cols)) as u32,
                    problem.cols as u32,
                    steps,
                    by,
                );
            }
        })
    }
}
