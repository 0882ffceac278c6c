//! Selection of the keys for a single token by sign codes, as on the host: see `KeyIndex` of `trike-cpu` for the definitions.
//!
//! Four launches per token: the code of its key and the integers of its query, the scores of all positions, the selection, and
//! [`decode`](super::decode) over the selected positions. All read the position from a buffer, so they can be recorded.

mod kernel;
mod select;

use std::sync::atomic::Ordering;

use half::f16;
use trike_core::SelectedKeys;

use self::kernel::{ADDED, CODED, Form};
use super::cache::KvBuffer;
use super::index::KeyIndex;
use super::plan::PROCESSORS;
use super::{Call, horizon};
use crate::device::{Buffer, CubeDevice, Launch};
use crate::error::{CubeError, Result};
use crate::plan::{KernelProblem, Settings};

/// Runs an expression with the element type of keys.
macro_rules! with_elements {
    ($keys:expr, $E:ident => $run:expr) => {
        match $keys {
            KvBuffer::F32(_) => {
                type $E = f32;
                $run
            }
            KvBuffer::F16(_) => {
                type $E = f16;
                $run
            }
            KvBuffer::Int8(_) => {
                type $E = u32;
                $run
            }
        }
    };
}

/// Maximum `head_dim` for which each score has its own histogram bin: the bins fit the shared memory of every device. For larger
/// heads, two neighbouring scores share a bin.
const COUNTED: usize = 128;
/// Maximum units per cube of the selection kernel.
const UNITS: u32 = 1024;

impl CubeDevice {
    /// Codes the keys of a call if necessary, and selects those of its token; `None` if it attends to all of them.
    pub(super) fn select_keys(&self, call: &Call<'_>) -> Result<Option<(Buffer<u32>, SelectedKeys)>> {
        let (problem, Some(index)) = (&call.problem, &call.cache.index) else { return Ok(None) };
        // Checks the bounds for the launches below.
        problem.validate()?;
        let position = problem.first_position;
        let end = position + problem.tokens;
        let all = horizon(end - 1, None, problem.cache.capacity);
        let coded = index.coded.load(Ordering::Relaxed);
        if problem.window.is_some_and(|window| window < end) {
            index.coded.store(0, Ordering::Relaxed);
            return Ok(None);
        }
        let is_step = problem.tokens == 1 && problem.sequences == 1 && call.mask.is_none();
        let selected = index.selector.select(all / 2).filter(|_| is_step);
        // More than half of a horizon is visible at its positions, so a call before them follows a truncation.
        let is_truncated = 2 * position < coded;
        let all_anew = match selected {
            Some(_) => coded != all,
            None => !is_step && coded > 0 && is_truncated,
        };
        if all_anew {
            if self.is_capturing() {
                return Err(CubeError::Capture { what: "codes of all keys" });
            }
            // A new mean over the same keys as on the host, whenever their number has doubled.
            self.center_keys(call, index, 1 << end.ilog2())?;
            self.code_keys(call, index, 0, end)?;
            index.coded.store(all, Ordering::Relaxed);
        } else if !is_step && coded > 0 {
            // A prompt after a selection: the next step may be recorded, so its keys are coded now.
            self.code_keys(call, index, position, end)?;
        } else if is_truncated {
            index.coded.store(0, Ordering::Relaxed);
        }
        let Some(selected) = selected else { return Ok(None) };
        let query = self.code_step(call, index)?;
        let pairs = all.div_ceil(2);
        let scores = self.score_keys(call, index, &query, pairs, selected)?;
        Ok(Some((self.select_positions(call, &scores, pairs, selected)?, selected)))
    }

    fn center_keys(&self, call: &Call<'_>, index: &KeyIndex, end: usize) -> Result<()> {
        let shape = call.problem.cache;
        let form = Form::new(shape.head_dim);
        let parts = end.div_ceil(ADDED);
        let sums = self.empty::<f32>(shape.kv_heads * parts * (shape.head_dim + 1))?;
        let settings = settings_of(form, [parts, shape.kv_heads], 3);
        let launch = Launch::new("attention/keys/sums", &(form, shape.precision), settings);
        let [end, capacity, parts] = [end, shape.capacity, parts].map(|n| n as u32);
        self.launch(&launch, &[&sums], |client, cubes, units| {
            let (keys, scales, sums) = (call.cache.k.numbers(), call.cache.scales_arg(), sums.arg());
            // SAFETY: slots before `end` are in the cache, and `sums` has a row for every cube.
            with_elements!(&call.cache.k, E => unsafe {
                kernel::add_keys::launch_unchecked::<E>(client, cubes, units, keys, scales, sums, end, capacity, form);
            });
        })?;
        let launch = Launch::new("attention/keys/center", &form, settings_of(form, [shape.kv_heads, 1], 2));
        self.launch(&launch, &[&index.centers], |client, cubes, units| {
            // SAFETY: `sums` and `centers` have a row for every head.
            unsafe {
                kernel::center::launch_unchecked(
                    client,
                    cubes,
                    units,
                    sums.arg(),
                    index.centers.arg(),
                    parts,
                    end,
                    form,
                );
            }
        })
    }

    fn code_keys(&self, call: &Call<'_>, index: &KeyIndex, first: usize, end: usize) -> Result<()> {
        let shape = call.problem.cache;
        let form = Form::new(shape.head_dim);
        let settings = settings_of(form, [(end - first).div_ceil(CODED), shape.kv_heads], 5);
        let launch = Launch::new("attention/keys/codes", &(form, shape.precision), settings);
        let [first, end, capacity] = [first, end, shape.capacity].map(|n| n as u32);
        self.launch(&launch, &[&index.codes, &index.lengths], |client, cubes, units| {
            let (keys, centers) = (call.cache.k.numbers(), index.centers.arg());
            let scales = call.cache.scales_arg();
            let (codes, lengths) = (index.codes.arg(), index.lengths.arg());
            // SAFETY: slots before `end` are in the cache and in the index, which have the same shape.
            with_elements!(&call.cache.k, E => unsafe {
                kernel::code_keys::launch_unchecked::<E>(
                    client, cubes, units, keys, scales, centers, codes, lengths, first, end, capacity, form,
                );
            });
        })
    }

    fn code_step(&self, call: &Call<'_>, index: &KeyIndex) -> Result<Buffer<u32>> {
        let shape = call.problem.cache;
        let form = Form::new(shape.head_dim);
        let query = self.empty(shape.kv_heads * form.query_words())?;
        let keys_are_codes = call.cache.k.scales().is_some();
        let settings = settings_of(form, [shape.kv_heads, 1], 7 + usize::from(keys_are_codes));
        let share = call.problem.heads / shape.kv_heads;
        let launch = Launch::new("attention/keys/step", &(form, shape.precision, share), settings);
        self.launch(&launch, &[&index.codes, &index.lengths, &query], |client, cubes, units| {
            let (q, keys, centers) = (call.q.arg(), call.cache.k.numbers(), index.centers.arg());
            let scales = call.cache.scales_arg();
            let (codes, lengths, query) = (index.codes.arg(), index.lengths.arg(), query.arg());
            let (positions, row, capacity) = (call.of_rows.arg(), call.first_row as u32, shape.capacity as u32);
            // SAFETY: the row is within `q` and `positions`, and its position in the cache and in the index, which have the same shape
            // (`Call::of_segment`); `query` has a row for every head.
            with_elements!(&call.cache.k, E => unsafe {
                kernel::code_step::launch_unchecked::<E>(
                    client, cubes, units, q, keys, scales, centers, positions, codes, lengths, query, row, capacity, share, form,
                );
            });
        })?;
        Ok(query)
    }

    fn score_keys(
        &self,
        call: &Call<'_>,
        index: &KeyIndex,
        query: &Buffer<u32>,
        pairs: usize,
        selected: SelectedKeys,
    ) -> Result<Buffer<u32>> {
        /// Units per cube.
        const UNITS: u32 = 128;
        /// Cubes per multiprocessor: the query is loaded once for all positions of a unit.
        const RESIDENT: usize = 8;
        let shape = call.problem.cache;
        let form = Form::new(shape.head_dim);
        let scores = self.empty(shape.kv_heads * pairs)?;
        let processors = self.capabilities().multiprocessors.map_or(PROCESSORS, |n| n as usize);
        let most = (RESIDENT * processors).div_ceil(shape.kv_heads);
        let cubes = [pairs.div_ceil(UNITS as usize).min(most), shape.kv_heads, 1];
        let cubes = cubes.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        let settings = Settings { cubes, ..Settings::linear(1, UNITS, 5) };
        let launch = Launch::new("attention/keys/scores", &form, settings);
        let [row, capacity, pairs, first, last] =
            [call.first_row, shape.capacity, pairs, selected.first, selected.last].map(|n| n as u32);
        self.launch(&launch, &[&scores], |client, cubes, units| {
            let (codes, lengths) = (index.codes.vectors(form.lanes()), index.lengths.arg());
            // SAFETY: positions that are read are clamped to the cache, and so to the codes; `scores` has
            // `pairs` words for each head, and `query` a row for each.
            unsafe {
                kernel::score::launch_unchecked(
                    client,
                    cubes,
                    units,
                    form.lanes(),
                    codes,
                    lengths,
                    query.arg(),
                    call.of_rows.arg(),
                    scores.arg(),
                    row,
                    capacity,
                    pairs,
                    first,
                    last,
                    form,
                );
            }
        })?;
        Ok(scores)
    }

    fn select_positions(
        &self,
        call: &Call<'_>,
        scores: &Buffer<u32>,
        pairs: usize,
        selected: SelectedKeys,
    ) -> Result<Buffer<u32>> {
        let shape = call.problem.cache;
        let device = self.capabilities();
        let most = device.max_units.min(device.max_unit_sides[0]).clamp(1, UNITS);
        let shift = u32::from(shape.head_dim > COUNTED);
        let counts = ((2 * Form::new(shape.head_dim).bias() as usize) >> shift) + 1;
        let form = |log: u32| select::Form { units: 1 << log, counts, shift };
        let fits = |form: &select::Form| form.shared_bytes() <= device.max_shared_bytes;
        let form = (0..=most.ilog2()).rev().map(form).find(fits).unwrap_or(form(0));
        let chosen = self.empty(shape.kv_heads * selected.total())?;
        let settings = Settings::linear(shape.kv_heads, form.units as u32, 3).shared(form.shared_bytes());
        let launch = Launch::new("attention/keys/select", &form, settings);
        let SelectedKeys { first, best, last } = selected;
        let [row, pairs, first, best, last] = [call.first_row, pairs, first, best, last].map(|n| n as u32);
        self.launch(&launch, &[&chosen], |client, cubes, units| {
            let (scores, positions) = (scores.arg(), call.of_rows.arg());
            // SAFETY: scores are below the counts; `scores` has `pairs` words for each head, at least one for two positions up to that
            // of the row, and the selected positions are as many as `chosen` has.
            unsafe {
                select::select_positions::launch_unchecked(
                    client,
                    cubes,
                    units,
                    scores,
                    positions,
                    chosen.arg(),
                    row,
                    pairs,
                    first,
                    best,
                    last,
                    form,
                );
            }
        })?;
        Ok(chosen)
    }
}

/// Cubes of the units of a form.
fn settings_of(form: Form, cubes: [usize; 2], bindings: usize) -> Settings {
    // `Settings::check` rejects a number that does not fit.
    let [x, y] = cubes.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    let units = form.units as u32;
    Settings { cubes: [x, y, 1], ..Settings::linear(1, units, bindings) }.shared(form.shared_bytes())
}
