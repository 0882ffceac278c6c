//! Top-k of rows: the next token, or its candidates.

use cubecl::prelude::*;

use super::lookup::Indices;
use crate::capabilities::Capabilities;
use crate::device::{Buffer, CubeDevice, Launch};
use crate::error::{CubeError, Result, check_len, check_range, check_shape};
use crate::plan::{KernelProblem, Settings, Strategy};
use trike_core::Cost;

/// The `k` largest values of each row.
///
/// Order: NaN of either sign first, so that a caller detects it in the first value; then descending; ties, including the two
/// zeros, by column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TopProblem {
    /// Rows.
    pub rows: usize,
    /// Columns, below `2^32 - 1`.
    pub cols: usize,
    /// Values per row, at most [`MOST`] and at most the columns.
    pub k: usize,
}

/// Maximum of `k`.
pub const MOST: usize = 256;

/// Kernel variant of [`TopProblem`]: each cube finds the `k` largest values of its part of a row; further passes reduce the
/// results until one cube per row is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TopBlueprint {
    /// Units per cube, a power of two.
    pub units: u32,
    /// Values per unit; a cube handles `units * each` values, at least twice `k`.
    pub each: usize,
}

impl KernelProblem for TopProblem {
    type Blueprint = TopBlueprint;
    const NAME: &'static str = "top";

    fn validate(&self) -> Result<()> {
        check_shape("rows to search", self.rows, self.cols)?;
        check_range("columns to search", 1, u32::MAX as usize - 1, self.cols)?;
        check_range("k of top", 1, self.cols.min(MOST), self.k)
    }

    fn candidates(&self, device: &Capabilities) -> Vec<TopBlueprint> {
        let most = device.max_units.min(device.max_unit_sides[0]).max(1);
        let units = (1 << most.ilog2()).min(128u32);
        let few = u32::try_from(self.cols.next_power_of_two()).unwrap_or(units).clamp(32.min(units), units);
        let all = [TopBlueprint { units, each: 8 }, TopBlueprint { units: few, each: 16 }];
        all.into_iter().filter(|blueprint| self.settings(blueprint, device).is_ok()).collect()
    }

    fn settings(&self, blueprint: &TopBlueprint, _: &Capabilities) -> Result<Settings> {
        let TopBlueprint { units, each } = *blueprint;
        if !units.is_power_of_two() {
            return Err(CubeError::NotMultiple {
                what: "units of a top-k cube (power of two)",
                unit: 2,
                got: units as usize,
            });
        }
        check_range("values per unit of top-k", 1, 64, each)?;
        // Every pass must reduce the number of values.
        check_range("values per cube of top-k", 2 * self.k, usize::MAX, units as usize * each)?;
        let side = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let cubes = [side(self.cols.div_ceil(units as usize * each)), side(self.rows), 1];
        Ok(Settings { cubes, ..Settings::linear(1, units, 4) }.shared(8 * units as usize))
    }

    fn cost(&self) -> Cost {
        let count = (self.rows as u64).saturating_mul(self.cols as u64);
        Cost::of_operations(count.saturating_mul(self.k as u64), 4 * count + 8 * (self.rows * self.k) as u64)
    }
}

mod kernel {
    use super::*;

    /// Sort key of a number, larger keys first; never 0.
    #[cube]
    fn key_of(value: f32) -> u32 {
        let bits = u32::reinterpret(value);
        let magnitude = bits & 0x7FFF_FFFF;
        let mut key = bits | 0x8000_0000;
        if bits >= 0x8000_0000 {
            key = !bits;
        }
        if magnitude == 0 {
            key = 0x8000_0000u32.runtime();
        }
        if magnitude > 0x7F80_0000 {
            key = 0xFFFF_FFFFu32.runtime();
        }
        key
    }

    /// The number of a sort key; both zeros become +0, and every NaN the same NaN.
    #[cube]
    fn value_of(key: u32) -> f32 {
        let bits = select(key >= 0x8000_0000, key & 0x7FFF_FFFF, !key);
        f32::reinterpret(bits)
    }

    /// Cube `(part, row)` writes the `k` largest values of its part of the row, in descending order; if there are fewer, the
    /// rest has the column `2^32 - 1`, which the next pass skips.
    #[cube(launch_unchecked)]
    pub(super) fn top(
        values: &[f32],
        ids: &[u32],
        out: &mut [f32],
        out_ids: &mut [u32],
        cols: u32,
        k: u32,
        #[comptime] units: usize,
        #[comptime] each: usize,
        #[comptime] first_pass: bool,
    ) {
        let unit = UNIT_POS as usize;
        let row = CUBE_POS_Y as usize;
        let mut keys = Array::<u32>::new(each);
        let mut columns = Array::<u32>::new(each);
        #[unroll]
        for i in 0..each {
            let col = (CUBE_POS_X as usize * each + i) * units + unit;
            let mut key = 0u32;
            let mut column = 0xFFFF_FFFFu32;
            if col < cols as usize {
                let at = row * cols as usize + col;
                if comptime!(first_pass) {
                    column = col as u32;
                } else {
                    column = ids[at];
                }
                if column != 0xFFFF_FFFF {
                    key = key_of(values[at]);
                }
            }
            keys[i] = key;
            columns[i] = column;
        }
        let mut best_keys = Shared::<[u32]>::new_slice(units);
        let mut best_columns = Shared::<[u32]>::new_slice(units);
        let to = (row * CUBE_COUNT_X as usize + CUBE_POS_X as usize) * k as usize;
        for round in 0..k as usize {
            let mut key = keys[0];
            let mut column = columns[0];
            #[unroll]
            for i in 1..each {
                if keys[i] > key || (keys[i] == key && columns[i] < column) {
                    key = keys[i];
                    column = columns[i];
                }
            }
            best_keys[unit] = key;
            best_columns[unit] = column;
            sync_cube();
            #[unroll]
            for level in 0..comptime!(units.ilog2() as usize) {
                let step = comptime!(units >> (level + 1));
                if unit < step {
                    let other = best_keys[unit + step];
                    let other_column = best_columns[unit + step];
                    let mine = best_keys[unit];
                    if other > mine || (other == mine && other_column < best_columns[unit]) {
                        best_keys[unit] = other;
                        best_columns[unit] = other_column;
                    }
                }
                sync_cube();
            }
            let chosen = best_columns[0];
            if unit == 0 {
                out[to + round] = value_of(best_keys[0]);
                out_ids[to + round] = chosen;
            }
            #[unroll]
            for i in 0..each {
                if columns[i] == chosen {
                    keys[i] = 0;
                    columns[i] = 0xFFFF_FFFF;
                }
            }
            sync_cube();
        }
    }
}

impl CubeDevice {
    /// Finds the `k` largest values of each row of `cols`, in descending order. Returns their columns and writes the values to
    /// `values` (`rows x k`).
    ///
    /// `k = 1` is greedy decoding; the token can be looked up without a copy to the host. NaN sorts first and infinity after
    /// it, so the first value shows if the logits are finite; both zeros are returned as zero.
    ///
    /// # Errors
    ///
    /// [`CubeError::NotMultiple`] when `x` is not a whole number of rows, [`CubeError::Range`] for a `k` of 0, over [`MOST`] or
    /// over the columns, [`CubeError::Length`] for `values` of the wrong length, [`CubeError::Overlap`], and those of
    /// [`KernelProblem::plan`] and of the launch.
    pub fn top(
        &self,
        x: &Buffer<f32>,
        cols: usize,
        k: usize,
        values: &Buffer<f32>,
        strategy: &Strategy<TopBlueprint>,
    ) -> Result<Indices> {
        if cols == 0 || !x.len().is_multiple_of(cols) {
            return Err(CubeError::NotMultiple { what: "rows to search", unit: cols, got: x.len() });
        }
        let problem = TopProblem { rows: x.len() / cols, cols, k };
        problem.validate()?;
        check_len("values of top-k", problem.rows * k, values.len())?;
        if x.overlaps(values) {
            return Err(CubeError::Overlap { what: "input and output of top-k" });
        }
        let (blueprint, first) = problem.plan(strategy, self.capabilities())?;
        let (mut from, mut from_ids, mut width, mut settings) = (x.clone(), None, cols, first);
        loop {
            let parts = settings.cubes[0] as usize;
            let count = check_shape("partial results of top-k", problem.rows, parts * k)?;
            let out_ids = self.empty::<u32>(count)?;
            let out = if parts == 1 { values.clone() } else { self.empty::<f32>(count)? };
            self.top_pass(&blueprint, settings, (&from, from_ids.as_ref()), (&out, &out_ids), width, k)?;
            if parts == 1 {
                return Ok(Indices::over(out_ids, cols as u32));
            }
            (from, from_ids, width) = (out, Some(out_ids), parts * k);
            settings = TopProblem { cols: width, ..problem }.settings(&blueprint, self.capabilities())?;
            settings.check(TopProblem::NAME, self.capabilities())?;
        }
    }

    fn top_pass(
        &self,
        blueprint: &TopBlueprint,
        settings: Settings,
        (from, from_ids): (&Buffer<f32>, Option<&Buffer<u32>>),
        (out, out_ids): (&Buffer<f32>, &Buffer<u32>),
        cols: usize,
        k: usize,
    ) -> Result<()> {
        let first_pass = from_ids.is_none();
        let launch = Launch::new(TopProblem::NAME, &(blueprint, first_pass), settings);
        self.launch(&launch, &[out, out_ids], |client, cubes, units| {
            // The first pass has no columns to read; a placeholder is bound instead.
            let ids = from_ids.map_or(from.arg(), Buffer::arg);
            let TopBlueprint { units: count, each } = *blueprint;
            // SAFETY: the outputs have one slot per part, row and round; the kernel checks columns against `cols`, and rows are
            // the cubes along y.
            unsafe {
                kernel::top::launch_unchecked(
                    client,
                    cubes,
                    units,
                    from.arg(),
                    ids,
                    out.arg(),
                    out_ids.arg(),
                    cols as u32,
                    k as u32,
                    count as usize,
                    each,
                    first_pass,
                );
            }
        })
    }
}
