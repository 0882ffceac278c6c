//! Steps of one token of each sequence, recorded once and replayed.
//!
//! Everything that differs from token to token is in buffers: ids, positions and the cache offsets of a batch are overwritten, and
//! kernels derive the slot of the KV cache and the length of attention from them. The exception is the grid of the attention
//! kernel, so a recording is valid for the positions of one [`attention::horizon`]. Sequences whose caches were made together share
//! one recording per number of tokens.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use trike_cube::attention::{self, CacheToken, CubeKvCache};
use trike_cube::ops::{self, Indices};
use trike_cube::{Buffer, CubeError, Graphs, LaunchGraph, Strategy};
use trike_trit::TritTensor;

use super::attention::batch_of;
use super::matrices::Kind;
use super::tensors::Ids;
use super::{CubeBackend, CubeInputs, CubeTensor};
use crate::backend::{logits_of, split};
use crate::step::usable;
use crate::{NnError, RunStep, StepCaches, StepLogits, TokenStep, check};

/// Recordings of steps of a sequence, or of sequences that were made together.
#[derive(Debug, Default)]
pub struct CubeRecorded {
    /// Key of the last step.
    last: Option<Key>,
    /// Ordered by last use, one per number of tokens.
    steps: Vec<RecordedStep>,
    /// Number of consecutive failed recordings.
    failures: u32,
}

/// Consecutive failed recordings after which steps are no longer recorded; one failure is normal when the RoPE table grows.
const FAILURES: u32 = 3;
/// Recordings that are kept: each has memory for all intermediate results of its step.
const MOST: usize = 4;

/// Parameters that are fixed in a recording, besides the allocations of the KV caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    tokens: usize,
    version: u64,
    horizon: usize,
    largest: Option<usize>,
}

#[derive(Debug)]
struct RecordedStep {
    graph: LaunchGraph,
    key: Key,
    /// Written before each replay. Positions stay below the length of the RoPE table.
    inputs: CubeInputs,
    /// A cache of the first layer, whose allocation the caches of all steps share.
    cache: Option<CubeKvCache>,
    logits: CubeTensor,
    /// Ids and values of the largest logits of each token.
    top: Option<(Indices, Buffer<f32>)>,
}

impl RecordedStep {
    /// Whether a replay computes the step described by `key` and `caches`, at positions up to `last`.
    fn fits(&self, key: &Key, last: u32, caches: &[&mut [CubeKvCache]]) -> bool {
        let beside = |of_layers: &&mut [CubeKvCache]| match (&self.cache, of_layers.first()) {
            (Some(cache), Some(first)) => key.tokens == 1 || cache.is_beside(first),
            _ => true,
        };
        self.key == *key && last < self.inputs.bound() && caches.iter().all(beside)
    }
}

impl CubeBackend {
    /// Whether steps of one token are recorded and replayed, if the device supports it; otherwise every step launches its
    /// kernels. On by default, and always off in a pipeline.
    #[must_use]
    pub fn with_graphs(self, on: bool) -> Self {
        let graphs = on && self.later.is_empty() && self.device.capabilities().graphs != Graphs::None;
        Self { graphs: graphs.into(), ..self }
    }

    /// Whether steps of one token are recorded and replayed.
    pub fn graphs(&self) -> bool {
        self.graphs.load(Ordering::Relaxed)
    }

    pub(super) fn recorded_tokens(
        &self,
        step: TokenStep<'_, Self>,
        recorded: &mut CubeRecorded,
        caches: StepCaches<'_, '_, Self>,
        run: &mut RunStep<'_, Self>,
    ) -> Result<Vec<StepLogits>, NnError> {
        let last = step.inputs.positions().iter().copied().max().unwrap_or(u32::MAX);
        let Some(window) = step.inputs.segments().first().map(|segment| segment.window) else {
            return self.launch_tokens(step, caches, run);
        };
        let horizon = attention::horizon(last as usize, window, step.capacity);
        let key = Key { tokens: step.inputs.rows(), version: step.version, horizon, largest: step.largest };
        let again = recorded.last.replace(key) == Some(key);
        let found = recorded.steps.iter().position(|kept| kept.fits(&key, last, caches));
        if let Some(at) = found.filter(|_| self.graphs()) {
            // Most recent last.
            recorded.steps[at..].rotate_left(1);
            if let Some(kept) = recorded.steps.last_mut() {
                self.write(&mut kept.inputs, &step, caches)?;
                return self.replay(kept);
            }
        }
        // Free an old recording before allocating memory for a new one.
        recorded.steps.retain(|kept| kept.key.tokens != key.tokens);
        // Recording pays off only from the second step with the same key.
        if !again || !self.graphs() || recorded.failures == FAILURES || !are_beside(caches) {
            return self.launch_tokens(step, caches, run);
        }
        if recorded.steps.len() == MOST {
            recorded.steps.remove(0);
        }
        match self.record(&step, key, caches, run) {
            Ok(mut kept) => {
                recorded.failures = 0;
                // The direct run has modified looked-up rows: write them again.
                if matches!(kept.inputs.ids, Some(Ids::Rows { .. })) {
                    self.write(&mut kept.inputs, &step, caches)?;
                }
                recorded.steps.push(kept);
                match recorded.steps.last() {
                    Some(kept) => self.replay(kept),
                    None => Ok(Vec::new()),
                }
            }
            Err(error) => {
                recorded.failures += 1;
                if matches!(error, NnError::Cube(CubeError::Device { .. } | CubeError::Feature { .. })) {
                    self.graphs.store(false, Ordering::Relaxed);
                }
                // An error of the step itself occurs again here and is returned.
                self.launch_tokens(step, caches, run)
            }
        }
    }

    /// The step without a recording.
    fn launch_tokens(
        &self,
        step: TokenStep<'_, Self>,
        caches: StepCaches<'_, '_, Self>,
        run: &mut RunStep<'_, Self>,
    ) -> Result<Vec<StepLogits>, NnError> {
        let rows = step.inputs.rows();
        let inputs = self.upload_inputs(step.inputs)?;
        logits_of(self.stage_at(self.later.len()), run(&inputs, caches)?, step.largest, rows)
    }

    /// Runs the step twice: once directly, once for the recording.
    fn record(
        &self,
        step: &TokenStep<'_, Self>,
        key: Key,
        caches: StepCaches<'_, '_, Self>,
        run: &mut RunStep<'_, Self>,
    ) -> Result<RecordedStep, NnError> {
        let _alone = self.record_alone.lock().unwrap_or_else(PoisonError::into_inner);
        let inputs = self.recorded_inputs(step, caches)?;
        let (graph, (logits, top)) = self.device.capture(|| {
            let logits = run(&inputs, caches)?;
            let top = match step.largest.filter(|&k| can_find(k, logits.width)) {
                Some(k) => {
                    let values = self.device.empty(key.tokens * k)?;
                    let ids =
                        self.device.top(&logits.buffer, logits.width, k, &values, &Strategy::Inferred)?;
                    Some((ids, values))
                }
                None => None,
            };
            Ok::<_, NnError>((logits, top))
        })?;
        self.traffic.captured();
        let cache = caches.first().and_then(|of_layers| of_layers.first()).cloned();
        Ok(RecordedStep { graph, key, inputs, cache, logits, top })
    }

    /// Inputs whose buffers are overwritten before each replay.
    fn recorded_inputs(
        &self,
        step: &TokenStep<'_, Self>,
        caches: &[&mut [CubeKvCache]],
    ) -> Result<CubeInputs, NnError> {
        let (vocab, width) = step.table.shape();
        check::embed(&step.inputs, vocab)?;
        let ids = step.inputs.ids();
        let token = match &step.table.0 {
            Kind::Dense(_) => {
                self.traffic.uploaded(size_of_val(ids));
                // A table has fewer than 2^32 rows.
                Ids::Table(Indices::upload(&self.device, ids, vocab as u32)?)
            }
            Kind::Ternary { .. } | Kind::Sparse { .. } => {
                let table = Arc::clone(step.table.host_table()?);
                let values = self.upload_tensor(&rows(&table, ids)?, width)?.buffer;
                Ids::Rows { rows: values, table }
            }
        };
        let mut inputs = CubeInputs { ids: Some(token), ..self.upload_inputs(step.inputs.clone())? };
        if step.inputs.rows() > 1 {
            let batch = self.upload_batch(&all_of(step, caches))?;
            inputs.first.tokens.get_mut().unwrap_or_else(PoisonError::into_inner).push(batch);
        }
        Ok(inputs)
    }

    fn write(
        &self,
        inputs: &mut CubeInputs,
        step: &TokenStep<'_, Self>,
        caches: &[&mut [CubeKvCache]],
    ) -> Result<(), NnError> {
        let ids = step.inputs.ids();
        match &inputs.ids {
            Some(Ids::Table(buffer)) => {
                buffer.write(&self.device, ids)?;
                self.traffic.uploaded(size_of_val(ids));
            }
            Some(Ids::Rows { rows: buffer, table }) => {
                let values = rows(table, ids)?;
                self.device.write(buffer, &values)?;
                self.traffic.uploaded(size_of_val(&values[..]));
            }
            None => {}
        }
        let positions = step.inputs.positions();
        // Kernels of a batch read positions from the buffer of cache offsets.
        for batch in inputs.first.tokens.get_mut().unwrap_or_else(PoisonError::into_inner) {
            batch.write(&self.device, &all_of(step, caches))?;
            self.traffic.uploaded(3 * size_of_val(positions));
        }
        self.traffic.uploaded(size_of_val(positions));
        Ok(inputs.first.positions.clone().write(&self.device, positions)?)
    }

    fn replay(&self, kept: &RecordedStep) -> Result<Vec<StepLogits>, NnError> {
        kept.graph.replay()?;
        self.traffic.replayed();
        if let Some((ids, values)) = &kept.top {
            let (ids, values) = ids.read_with(&self.device, values)?;
            self.traffic.read(size_of_val(&ids[..]) + size_of_val(&values[..]));
            let pairs: Vec<(u32, f32)> = ids.into_iter().zip(values).collect();
            let mut best = pairs.chunks_exact((pairs.len() / kept.key.tokens).max(1));
            if best.clone().all(usable) {
                return Ok(best.by_ref().map(|row| StepLogits::Top(row.to_vec())).collect());
            }
        }
        self.traffic.read(kept.logits.buffer.bytes());
        Ok(split(self.device.read(&kept.logits.buffer)?, kept.key.tokens))
    }
}

/// The tokens of a step with the caches of the first layer; those of the other layers have the same offsets.
fn all_of<'a>(step: &TokenStep<'_, CubeBackend>, caches: &'a [&mut [CubeKvCache]]) -> Vec<CacheToken<'a>> {
    let first: Vec<&CubeKvCache> = caches.iter().filter_map(|of_layers| of_layers.first()).collect();
    batch_of(&step.inputs, &first, 0..first.len())
}

/// Whether one launch can process the tokens of all sequences.
fn are_beside(caches: &[&mut [CubeKvCache]]) -> bool {
    let firsts: Vec<&CubeKvCache> = caches.iter().filter_map(|of_layers| of_layers.first()).collect();
    firsts.windows(2).all(|two| two[0].is_beside(two[1]))
}

/// Whether the top-k kernel supports this `k` and row width.
pub(super) fn can_find(k: usize, width: usize) -> bool {
    (1..=ops::MOST.min(width)).contains(&k)
}

/// Rows of a ternary table in f32.
fn rows(table: &TritTensor, ids: &[u32]) -> Result<Vec<f32>, NnError> {
    let ids: Vec<usize> = ids.iter().map(|&id| id as usize).collect();
    Ok(table.select_rows(&ids)?.dequantize())
}
