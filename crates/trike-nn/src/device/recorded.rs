//! Steps of one token, recorded once and run again.
//!
//! Everything that differs from one token to the next lies in buffers: the id and the position are written over the ones
//! before, and kernels find from the position which slot of a cache is written and how far attention reaches. What does not
//! lie in a buffer is the grid of attention, so a recording serves the positions of one [`attention::horizon`].

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread::{self, ThreadId};

use trike_cube::attention::{self, Positions};
use trike_cube::ops::{self, Indices};
use trike_cube::{Buffer, CubeError, Graph, Graphs, Strategy};
use trike_trit::TritTensor;

use super::{CubeBackend, CubeMatrix, CubeTensor, Kind};
use crate::backend::{best_of, usable};
use crate::{Best, NnError, TokenStep};

/// What a sequence keeps of its last step of one token.
#[derive(Debug, Default)]
pub struct CubeRecorded {
    /// What it depended on.
    last: Option<Key>,
    step: Option<Box<RecordedStep>>,
    /// Recordings in a row that came to nothing.
    failures: u32,
}

/// Recordings in a row that may come to nothing before a sequence is left alone: one does when a table of rotations has to grow.
const FAILURES: u32 = 3;

/// What is in a recording for good, beside the caches.
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
    inputs: Inputs,
    logits: CubeTensor,
    /// Ids of the largest, and their logits.
    top: Option<(Indices, Buffer<f32>)>,
}

/// What is written before each replay.
#[derive(Clone, Debug)]
struct Inputs {
    token: Token,
    /// Below the end of the table of rotations.
    position: Positions,
}

#[derive(Clone, Debug)]
pub(super) enum Token {
    /// Looked up on the device.
    Id(Indices),
    /// Looked up on the host, in a ternary table.
    Row { row: Buffer<f32>, table: Arc<TritTensor> },
}

/// The inputs of the step that a thread records.
#[derive(Debug)]
pub(super) struct Recording {
    thread: ThreadId,
    inputs: Inputs,
}

/// Ends a recording however it ends.
struct Ended<'a>(&'a CubeBackend);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        *self.0.recording.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl CubeBackend {
    /// Whether steps of one token are recorded and run again, where the device can; without, each is launched anew. By default
    /// they are.
    #[must_use]
    pub fn with_graphs(self, on: bool) -> Self {
        let graphs = on && self.device.capabilities().graphs != Graphs::None;
        Self { graphs: graphs.into(), ..self }
    }

    /// Whether steps of one token are recorded and run again.
    pub fn graphs(&self) -> bool {
        self.graphs.load(Ordering::Relaxed)
    }

    pub(super) fn recorded_token(
        &self,
        step: &TokenStep<'_, Self>,
        recorded: &mut CubeRecorded,
        run: &mut dyn FnMut() -> Result<CubeTensor, NnError>,
    ) -> Result<Best, NnError> {
        let horizon = attention::horizon(step.position, step.window, step.capacity);
        let key = Key { version: step.version, horizon, largest: step.largest };
        let fits = |kept: &RecordedStep| kept.key == key && position_of(step) < kept.inputs.position.below();
        if let Some(kept) = recorded.step.as_deref().filter(|kept| self.graphs() && fits(kept)) {
            self.write(&kept.inputs, step)?;
            return self.replay(kept);
        }
        // Its memory is wanted back before more is asked for.
        recorded.step = None;
        // A recording pays from the second step that would use it on.
        let again = recorded.last.replace(key) == Some(key);
        if !again || !self.graphs() || recorded.failures == FAILURES {
            return best_of(self, run()?, step.largest);
        }
        match self.record(step, key, run) {
            Ok(kept) => {
                recorded.failures = 0;
                let kept = recorded.step.insert(Box::new(kept));
                // The first run has added to a row that was looked up.
                if matches!(kept.inputs.token, Token::Row { .. }) {
                    self.write(&kept.inputs, step)?;
                }
                self.replay(kept)
            }
            Err(error) => {
                recorded.failures += 1;
                if matches!(error, NnError::Cube(CubeError::Device { .. } | CubeError::Feature { .. })) {
                    self.graphs.store(false, Ordering::Relaxed);
                }
                // What is wrong with the step itself shows again.
                best_of(self, run()?, step.largest)
            }
        }
    }

    /// Runs the step twice, once for the recording.
    fn record(
        &self,
        step: &TokenStep<'_, Self>,
        key: Key,
        run: &mut dyn FnMut() -> Result<CubeTensor, NnError>,
    ) -> Result<RecordedStep, NnError> {
        let _alone = self.record_alone.lock().unwrap_or_else(PoisonError::into_inner);
        let inputs = self.inputs(step)?;
        let recording = Recording { thread: thread::current().id(), inputs };
        *self.recording.lock().unwrap_or_else(PoisonError::into_inner) = Some(recording);
        let ended = Ended(self);
        let captured = self.device.capture(|| {
            let logits = run()?;
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
        });
        let recording = self.recording.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(ended);
        let (graph, (logits, top)) = captured?;
        let Some(Recording { inputs, .. }) = recording else {
            return Err(CubeError::Capture { what: "another capture" }.into());
        };
        self.copies.captured();
        Ok(RecordedStep { graph, key, inputs, logits, top })
    }

    /// Buffers with the inputs of a step.
    fn inputs(&self, step: &TokenStep<'_, Self>) -> Result<Inputs, NnError> {
        let position = position_of(step);
        let (vocab, width) = step.table.shape();
        let token = match &step.table.0 {
            Kind::Dense(_) => {
                self.copies.uploaded(size_of_val(&step.id));
                // A table has fewer than 2^32 rows.
                Token::Id(Indices::upload(&self.device, &[step.id], vocab as u32)?)
            }
            Kind::Ternary { .. } => {
                let table = Arc::clone(host_table(step.table)?);
                let values = row(&table, step.id)?;
                super::same("width of a row of a table", width, values.len())?;
                self.copies.uploaded(size_of_val(&values[..]));
                Token::Row { row: self.device.upload(&values)?, table }
            }
        };
        self.copies.uploaded(size_of_val(&position));
        let position = Positions::upload(&self.device, &[position])?;
        Ok(Inputs { token, position })
    }

    fn write(&self, inputs: &Inputs, step: &TokenStep<'_, Self>) -> Result<(), NnError> {
        match &inputs.token {
            Token::Id(ids) => {
                ids.write(&self.device, &[step.id])?;
                self.copies.uploaded(size_of_val(&step.id));
            }
            Token::Row { row: buffer, table } => {
                let values = row(table, step.id)?;
                self.device.write(buffer, &values)?;
                self.copies.uploaded(size_of_val(&values[..]));
            }
        }
        let position = position_of(step);
        self.copies.uploaded(size_of_val(&position));
        Ok(inputs.position.clone().write(&self.device, &[position])?)
    }

    fn replay(&self, kept: &RecordedStep) -> Result<Best, NnError> {
        kept.graph.replay()?;
        self.copies.replayed();
        if let Some((ids, values)) = &kept.top {
            let (ids, values) = ids.read_with(&self.device, values)?;
            self.copies.read(size_of_val(&ids[..]) + size_of_val(&values[..]));
            let row: Vec<(u32, f32)> = ids.into_iter().zip(values).collect();
            if usable(&row) {
                return Ok(Best::Top(row));
            }
        }
        self.copies.read(kept.logits.buffer.bytes());
        Ok(Best::All(self.device.read(&kept.logits.buffer)?))
    }

    /// The inputs of the step that this thread records, if it does.
    fn recording<T>(&self, of: impl FnOnce(&Inputs) -> T) -> Option<T> {
        let recording = self.recording.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = recording.as_ref().filter(|r| r.thread == thread::current().id())?;
        Some(of(&mine.inputs))
    }

    /// Where the token of the step lies that this thread records.
    pub(super) fn recorded_input(&self) -> Option<Token> {
        self.recording(|inputs| inputs.token.clone())
    }

    /// Where its position lies.
    pub(super) fn recorded_position(&self) -> Option<Positions> {
        self.recording(|inputs| inputs.position.clone())
    }
}

/// Whether the kernel finds so many.
pub(super) fn can_find(k: usize, width: usize) -> bool {
    (1..=ops::MOST.min(width)).contains(&k)
}

/// The host's copy of a ternary table.
pub(super) fn host_table(matrix: &CubeMatrix) -> Result<&Arc<TritTensor>, NnError> {
    match &matrix.0 {
        Kind::Ternary { table: Some(table), .. } => Ok(table),
        Kind::Ternary { packed, .. } => {
            let got = packed.form().parts.len();
            Err(NnError::Shape { what: "matrices beside a table", expected: 0, got })
        }
        Kind::Dense(_) => Err(NnError::Shape { what: "ternary tables", expected: 1, got: 0 }),
    }
}

fn row(table: &TritTensor, id: u32) -> Result<Vec<f32>, NnError> {
    Ok(table.select_rows(&[id as usize])?.dequantize())
}

/// A position that is too large for 32 bits is refused as one that is too large.
fn position_of(step: &TokenStep<'_, CubeBackend>) -> u32 {
    u32::try_from(step.position).unwrap_or(u32::MAX)
}
