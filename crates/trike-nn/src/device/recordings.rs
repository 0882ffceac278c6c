//! Steps of one token, recorded once and replayed.
//!
//! Everything that differs from token to token is in buffers: id and position are overwritten, and kernels derive the slot of
//! the KV cache and the length of attention from the position. The exception is the grid of the attention kernel, so a
//! recording is valid for the positions of one [`attention::horizon`].

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use trike_cube::attention;
use trike_cube::ops::{self, Indices};
use trike_cube::{Buffer, CubeError, Graph, Graphs, Strategy};
use trike_trit::TritTensor;

use super::matrices::Kind;
use super::tensors::Token;
use super::{CubeBackend, CubeInputs, CubeTensor};
use crate::backend::logits_of;
use crate::step::usable;
use crate::{NnError, StepLogits, TokenStep, check};

/// The recording of a sequence's last step of one token.
#[derive(Debug, Default)]
pub struct CubeRecorded {
    /// Key of the last step.
    last: Option<Key>,
    step: Option<Box<RecordedStep>>,
    /// Number of consecutive failed recordings.
    failures: u32,
}

/// Consecutive failed recordings after which a sequence is no longer recorded; one failure is normal when the RoPE table grows.
const FAILURES: u32 = 3;

/// Parameters that are fixed in a recording, besides the KV caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    version: u64,
    horizon: usize,
    largest: Option<usize>,
}

#[derive(Debug)]
struct RecordedStep {
    graph: Graph,
    key: Key,
    /// Written before each replay. The position stays below the length of the RoPE table.
    inputs: CubeInputs,
    logits: CubeTensor,
    /// Ids and values of the largest logits.
    top: Option<(Indices, Buffer<f32>)>,
}

impl CubeBackend {
    /// Whether steps of one token are recorded and replayed, if the device supports it; otherwise every step launches its
    /// kernels. On by default.
    #[must_use]
    pub fn with_graphs(self, on: bool) -> Self {
        let graphs = on && self.device.capabilities().graphs != Graphs::None;
        Self { graphs: graphs.into(), ..self }
    }

    /// Whether steps of one token are recorded and replayed.
    pub fn graphs(&self) -> bool {
        self.graphs.load(Ordering::Relaxed)
    }

    pub(super) fn recorded_token(
        &self,
        step: TokenStep<'_, Self>,
        recorded: &mut CubeRecorded,
        run: &mut dyn FnMut(&CubeInputs) -> Result<CubeTensor, NnError>,
    ) -> Result<StepLogits, NnError> {
        let [segment] = step.inputs.segments() else { return self.launch_token(step, run) };
        let position = segment.first_position;
        let horizon = attention::horizon(position, segment.window, step.capacity);
        let key = Key { version: step.version, horizon, largest: step.largest };
        let fits =
            |kept: &RecordedStep| kept.key == key && position_of(&step) < kept.inputs.positions.bound();
        if let Some(kept) = recorded.step.as_deref().filter(|kept| self.graphs() && fits(kept)) {
            self.write(&kept.inputs, &step)?;
            return self.replay(kept);
        }
        // Free the old recording before allocating memory for a new one.
        recorded.step = None;
        // Recording pays off only from the second step with the same key.
        let again = recorded.last.replace(key) == Some(key);
        if !again || !self.graphs() || recorded.failures == FAILURES {
            return self.launch_token(step, run);
        }
        match self.record(&step, key, run) {
            Ok(kept) => {
                recorded.failures = 0;
                let kept = recorded.step.insert(Box::new(kept));
                // The direct run has modified the looked-up row: write it again.
                if matches!(kept.inputs.token, Some(Token::Row { .. })) {
                    self.write(&kept.inputs, &step)?;
                }
                self.replay(kept)
            }
            Err(error) => {
                recorded.failures += 1;
                if matches!(error, NnError::Cube(CubeError::Device { .. } | CubeError::Feature { .. })) {
                    self.graphs.store(false, Ordering::Relaxed);
                }
                // An error of the step itself occurs again here and is returned.
                self.launch_token(step, run)
            }
        }
    }

    /// The step without a recording.
    fn launch_token(
        &self,
        step: TokenStep<'_, Self>,
        run: &mut dyn FnMut(&CubeInputs) -> Result<CubeTensor, NnError>,
    ) -> Result<StepLogits, NnError> {
        let inputs = self.upload_inputs(step.inputs)?;
        logits_of(self, run(&inputs)?, step.largest)
    }

    /// Runs the step twice: once directly, once for the recording.
    fn record(
        &self,
        step: &TokenStep<'_, Self>,
        key: Key,
        run: &mut dyn FnMut(&CubeInputs) -> Result<CubeTensor, NnError>,
    ) -> Result<RecordedStep, NnError> {
        let _alone = self.record_alone.lock().unwrap_or_else(PoisonError::into_inner);
        let inputs = self.recorded_inputs(step)?;
        let (graph, (logits, top)) = self.device.capture(|| {
            let logits = run(&inputs)?;
            let top = match step.largest.filter(|&k| can_find(k, logits.width)) {
                Some(k) => {
                    let values = self.device.empty(k)?;
                    let ids =
                        self.device.top(&logits.buffer, logits.width, k, &values, &Strategy::Inferred)?;
                    Some((ids, values))
                }
                None => None,
            };
            Ok::<_, NnError>((logits, top))
        })?;
        self.traffic.captured();
        Ok(RecordedStep { graph, key, inputs, logits, top })
    }

    /// Inputs whose buffers are overwritten before each replay.
    fn recorded_inputs(&self, step: &TokenStep<'_, Self>) -> Result<CubeInputs, NnError> {
        let (vocab, width) = step.table.shape();
        check::embed(&step.inputs, vocab)?;
        let ids = step.inputs.ids();
        let token = match &step.table.0 {
            Kind::Dense(_) => {
                self.traffic.uploaded(size_of_val(ids));
                // A table has fewer than 2^32 rows.
                Token::Id(Indices::upload(&self.device, ids, vocab as u32)?)
            }
            Kind::Ternary { .. } | Kind::Sparse { .. } => {
                let table = Arc::clone(step.table.host_table()?);
                let row = self.upload_tensor(&rows(&table, ids)?, width)?.buffer;
                Token::Row { row, table }
            }
        };
        Ok(CubeInputs { token: Some(token), ..self.upload_inputs(step.inputs.clone())? })
    }

    fn write(&self, inputs: &CubeInputs, step: &TokenStep<'_, Self>) -> Result<(), NnError> {
        let ids = step.inputs.ids();
        match &inputs.token {
            Some(Token::Id(buffer)) => {
                buffer.write(&self.device, ids)?;
                self.traffic.uploaded(size_of_val(ids));
            }
            Some(Token::Row { row, table }) => {
                let values = rows(table, ids)?;
                self.device.write(row, &values)?;
                self.traffic.uploaded(size_of_val(&values[..]));
            }
            None => {}
        }
        let positions = step.inputs.positions();
        self.traffic.uploaded(size_of_val(positions));
        Ok(inputs.positions.clone().write(&self.device, positions)?)
    }

    fn replay(&self, kept: &RecordedStep) -> Result<StepLogits, NnError> {
        kept.graph.replay()?;
        self.traffic.replayed();
        if let Some((ids, values)) = &kept.top {
            let (ids, values) = ids.read_with(&self.device, values)?;
            self.traffic.read(size_of_val(&ids[..]) + size_of_val(&values[..]));
            let row: Vec<(u32, f32)> = ids.into_iter().zip(values).collect();
            if usable(&row) {
                return Ok(StepLogits::Top(row));
            }
        }
        self.traffic.read(kept.logits.buffer.bytes());
        Ok(StepLogits::All(self.device.read(&kept.logits.buffer)?))
    }
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

/// The position of a step of one token.
fn position_of(step: &TokenStep<'_, CubeBackend>) -> u32 {
    step.inputs.positions().first().copied().unwrap_or(u32::MAX)
}
