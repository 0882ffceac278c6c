//! The decoder-only language model.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use trike_trit::{Edit, TritTensor};

use crate::{
    Backend, DecoderBlock, DecoderSequence, DecoderSpec, DecoderWeights, Input, KvSpec, Layout, MatrixEdit,
    NnError, Norm, StepCaches, StepInputs, StepLogits, StepNotice, Tensor, TokenStep, WeightName,
    backend::logits_of,
    block::{BlockContext, Loader, linear},
    check,
};

/// Tokens of a step for which logits are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// The last token of each sequence.
    Last,
    /// All tokens.
    All,
}

/// The tokens that one sequence reads in a step.
pub struct Step<'a, B: Backend> {
    /// The sequence; its cache grows.
    pub sequence: &'a mut DecoderSequence<B>,
    /// New token ids, at least one.
    pub ids: &'a [u32],
}

/// A decoder-only language model on a backend.
///
/// ```
/// use trike_cpu::Cpu;
/// use trike_nn::{
///     ActivationPrecision, CpuBackend, Decoder, DecoderSpec, DecoderWeights, DenseData, DenseTensor, KvPrecision,
///     KvSpec, Logits, NnError, Step, Tensor, WeightName,
/// };
///
/// /// Identity-like matrices and norms of one.
/// struct Simple;
///
/// impl DecoderWeights for Simple {
///     fn matrix(&mut self, name: WeightName) -> Result<Tensor, NnError> {
///         let (rows, cols) = if name == WeightName::Embedding { (3, 4) } else { (4, 4) };
///         let values = (0..rows * cols).map(|i| f32::from(i % cols == i / cols)).collect();
///         Ok(Tensor::Dense(DenseTensor::new(vec![rows, cols], DenseData::F32(values))?))
///     }
///
///     fn vector(&mut self, _: WeightName) -> Result<Vec<f32>, NnError> {
///         Ok(vec![1.0; 4])
///     }
/// }
///
/// let spec = DecoderSpec { intermediate: 4, context: 8, tied_head: true, ..DecoderSpec::llama(4, 1, 2, 3) };
/// let decoder = Decoder::new(CpuBackend::new(Cpu::new(1)?, ActivationPrecision::F32), spec, &mut Simple)?;
/// let mut sequence = decoder.sequence(KvSpec::new(KvPrecision::F32, 8))?;
/// let logits = decoder.forward(&mut [Step { sequence: &mut sequence, ids: &[2, 1] }], Logits::All)?;
/// assert_eq!(logits[0].len(), 2 * 3);
/// // Every matrix is the identity, so each token predicts itself.
/// assert!(logits[0][2] > logits[0][0] && logits[0][3 + 1] > logits[0][3]);
/// assert_eq!(sequence.len(), 2);
/// # Ok::<(), NnError>(())
/// ```
pub struct Decoder<B: Backend> {
    backend: B,
    spec: DecoderSpec,
    embedding: B::Matrix,
    blocks: Vec<DecoderBlock<B>>,
    norm: B::Vector,
    /// The final norm weights used by the head, multiplied by [`DecoderSpec::head_factor`]; `None` if that is 1.
    head_norm: Option<B::Vector>,
    /// `None` if the embedding serves as the head.
    head: Option<B::Matrix>,
    /// One for each stage of the backend.
    ropes: Vec<B::Rope>,
    /// Unique per model, and changed with the weights, which invalidates older keys and values.
    version: u64,
    /// Unique per model, and changed when a weight is replaced, which invalidates older recordings.
    recording: u64,
}

fn next_version() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl<B: Backend> Decoder<B> {
    /// Loads every weight of `spec`, one after the other, onto `backend`. On a backend of several [stages](crate::BackendPlacement::stages), an
    /// embedding that is also the LM head is requested and loaded twice: looked up on the first, multiplied on the last.
    ///
    /// # Errors
    ///
    /// [`NnError::Spec`] for an inconsistent spec or fewer layers than stages, [`NnError::WeightShape`] for a weight of the wrong
    /// shape, and errors of `weights` or the backend.
    pub fn new(backend: B, spec: DecoderSpec, weights: &mut impl DecoderWeights) -> Result<Self, NnError> {
        spec.validate()?;
        let stages = backend.stages();
        if backend.stage_of(spec.layers - 1) + 1 != stages {
            let (rule, got) = ("must be one or more for each stage of the backend", spec.layers.to_string());
            return Err(NnError::Spec { field: "layers", rule, got });
        }
        let mut loader = Loader { backend: backend.stage(0), weights };
        let embedding = loader.table(WeightName::Embedding, spec.vocab, spec.hidden)?;
        let mut blocks = Vec::with_capacity(spec.layers);
        for layer in 0..spec.layers {
            loader.backend = backend.stage(backend.stage_of(layer));
            blocks.push(DecoderBlock::from_loader(&mut loader, &spec, layer)?);
        }
        let (norm, by) = (loader.values(WeightName::FinalNorm, spec.hidden)?, spec.head_factor());
        let scaled = || loader.backend.load_vector(norm.iter().map(|weight| weight * by).collect());
        let head_norm = (by != 1.0).then(scaled).transpose()?;
        let norm = loader.backend.load_vector(norm)?;
        let head = match (spec.tied_head, stages) {
            (true, 1) => None,
            (true, _) => Some(loader.matrix(WeightName::Embedding, spec.vocab, spec.hidden)?),
            (false, _) => Some(loader.matrix(WeightName::Head, spec.vocab, spec.hidden)?),
        };
        let rope = |index| backend.stage(index).load_rope(&spec.rope, spec.head_dim, spec.context);
        let ropes = (0..stages).map(rope).collect::<Result<_, _>>()?;
        let (version, recording) = (next_version(), next_version());
        Ok(Self { backend, spec, embedding, blocks, norm, head_norm, head, ropes, version, recording })
    }

    /// Replaces the weight of a linear layer by one of the same shape, between steps.
    ///
    /// # Errors
    ///
    /// [`NnError::WeightShape`] for a different shape or a name that is not a linear layer of the blocks, [`NnError::Unsupported`] on several ranks, and
    /// errors of the backend.
    pub fn replace(&mut self, name: WeightName, weight: Tensor) -> Result<(), NnError> {
        let layer = self.layer_of(name, (weight.rows(), weight.cols()))?;
        (self.version, self.recording) = (next_version(), next_version());
        let stage = self.backend.stage(self.backend.stage_of(layer));
        self.blocks[layer].replace(stage, name, weight)?;
        Ok(())
    }

    /// Applies `edits` to the resident weight of a linear layer, between steps; `edited` is the resulting tensor. Recordings of
    /// the model stay valid if the backend edits in place.
    ///
    /// # Errors
    ///
    /// [`NnError::WeightShape`] for a different shape or a name that is not a linear layer of the blocks, [`NnError::Unsupported`] on several ranks,
    /// [`NnError::Trit`] for a position outside `edited`, and errors of [`BackendWeights::edit`](crate::BackendWeights::edit).
    pub fn edit(
        &mut self,
        name: WeightName,
        edits: &[Edit],
        edited: &TritTensor,
    ) -> Result<MatrixEdit, NnError> {
        let layer = self.layer_of(name, (edited.rows(), edited.cols()))?;
        check::edit(edits, edited)?;
        let stage = self.backend.stage(self.backend.stage_of(layer));
        let done = self.blocks[layer].edit(stage, name, edits, edited);
        self.version = next_version();
        if !matches!(done, Ok(Some(MatrixEdit::InPlace))) {
            self.recording = next_version();
        }
        // `layer_of` has checked that `name` is one of the seven matrices.
        Ok(done?.unwrap_or(MatrixEdit::Replaced))
    }

    /// The block index of a linear layer, after checking the shape `got` of its new weight.
    fn layer_of(&self, name: WeightName, got: (usize, usize)) -> Result<usize, NnError> {
        let layer = name.layer().filter(|&layer| name.is_block_matrix() && layer < self.spec.layers);
        let found = layer.map(|layer| (layer, self.spec.shape(name)));
        match found {
            Some((layer, expected)) if expected == got => {
                let stage = self.backend.stage(self.backend.stage_of(layer));
                match stage.rows_of(name, got.0) == (0..got.0) {
                    true => Ok(layer),
                    false => Err(NnError::Unsupported {
                        what: format!("replacing {name}"),
                        backend: self.backend.name(),
                        remedy: "a rank holds only a shard of it: replace it in the file",
                    }),
                }
            }
            other => {
                let (expected_rows, expected_cols) = other.map_or((0, 0), |(_, shape)| shape);
                Err(NnError::WeightShape {
                    name: name.to_string(),
                    expected_rows,
                    expected_cols,
                    got_rows: got.0,
                    got_cols: got.1,
                })
            }
        }
    }

    /// Sizes and constants of the model.
    pub fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    /// The backend.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// A number unique within the process that changes with the weights: state computed under another number must not be continued.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The backend, mutable, for changes between steps.
    pub fn backend_mut(&mut self) -> &mut B {
        (self.version, self.recording) = (next_version(), next_version());
        &mut self.backend
    }

    /// The blocks in their order.
    pub(crate) fn blocks(&self) -> &[DecoderBlock<B>] {
        &self.blocks
    }

    /// The embedding.
    pub(crate) fn embedding(&self) -> &B::Matrix {
        &self.embedding
    }

    /// The rotary embedding of the first stage.
    pub(crate) fn rope(&self) -> &B::Rope {
        &self.ropes[0]
    }

    /// The stage with the final norm and the LM head.
    fn last_stage(&self) -> &B {
        self.backend.stage(self.backend.stages() - 1)
    }

    /// The matrices that every step reads: those of the blocks, and the LM head.
    pub(crate) fn matrices(&self) -> (impl Iterator<Item = &B::Matrix>, &B::Matrix) {
        let blocks = self.blocks.iter().flat_map(DecoderBlock::matrices);
        (blocks, self.head.as_ref().unwrap_or(&self.embedding))
    }

    /// Bytes of all resident matrices.
    pub fn weight_bytes(&self) -> usize {
        let (blocks, _) = self.matrices();
        blocks.chain([&self.embedding]).chain(&self.head).map(|m| self.backend.matrix_bytes(m)).sum()
    }

    /// The number of ternary matrices in each layout.
    pub fn layouts(&self) -> BTreeMap<Layout, usize> {
        let (blocks, _) = self.matrices();
        let mut counts = BTreeMap::new();
        for matrix in blocks.chain([&self.embedding]).chain(&self.head) {
            if let Some(layout) = self.backend.matrix_layout(matrix) {
                *counts.entry(layout).or_default() += 1;
            }
        }
        counts
    }

    /// A new, empty sequence.
    ///
    /// # Errors
    ///
    /// [`NnError::Spec`] when the capacity or window is invalid.
    pub fn sequence(&self, spec: KvSpec) -> Result<DecoderSequence<B>, NnError> {
        DecoderSequence::new(&self.backend, &self.spec, spec)
    }

    /// A new, empty sequence whose keys and values are in pages of [`KV_PAGE`](crate::KV_PAGE) positions, which are allocated as it
    /// grows and can be shared with other sequences: [`DecoderSequence::pages`], [`DecoderSequence::adopt`].
    ///
    /// # Errors
    ///
    /// As [`sequence`](Self::sequence), [`NnError::Spec`] for a window, an eviction or a selection of keys, and [`NnError::Unsupported`]
    /// unless [`CacheCapabilities::pages`](crate::CacheCapabilities::pages).
    pub fn paged_sequence(&self, spec: KvSpec) -> Result<DecoderSequence<B>, NnError> {
        DecoderSequence::paged(&self.backend, &self.spec, spec)
    }

    /// `count` new, empty sequences that are stepped together: a device stores and attends to their next tokens in one launch
    /// each per layer, instead of one per sequence, because their caches share allocations. These are free again when all of
    /// the sequences are dropped.
    ///
    /// # Errors
    ///
    /// As [`sequence`](Self::sequence).
    pub fn sequences(&self, spec: KvSpec, count: usize) -> Result<Vec<DecoderSequence<B>>, NnError> {
        DecoderSequence::several(&self.backend, &self.spec, spec, count)
    }

    /// Runs all `steps` as one ragged batch and returns the logits of each as `[tokens, vocab]`, row-major: depending on
    /// `logits`, one row or one row per new token. Every sequence grows by its tokens.
    ///
    /// # Errors
    ///
    /// [`NnError::EmptyStep`], [`NnError::Token`], [`NnError::ContextFull`] and [`NnError::StepTooLong`], before
    /// anything is changed; errors of the backend, after which the sequences keep their length.
    pub fn forward(&self, steps: &mut [Step<'_, B>], logits: Logits) -> Result<Vec<Vec<f32>>, NnError> {
        if !self.check(steps)? {
            return Ok(Vec::new());
        }
        self.announce(steps, logits, false)?;
        if steps.iter().all(|step| step.ids.len() == 1) {
            let all = |logits| match logits {
                StepLogits::All(logits) => Ok(logits),
                StepLogits::Top(few) => {
                    let (expected, got) = (self.spec.vocab, few.len());
                    Err(NnError::Shape { what: "logits of a token", expected, got })
                }
            };
            return self.tokens(steps, None)?.into_iter().map(all).collect();
        }
        let inputs = self.step_inputs(steps)?;
        let rows = last_rows(&inputs, logits);
        let inputs = self.backend.inputs(inputs)?;
        let out = self.run(&inputs, &mut caches_of(steps), rows.as_deref())?;
        let all = self.last_stage().move_to_host(out)?;
        let counts = counts(steps, logits);
        advance(steps);
        Ok(split(all, &counts, self.spec.vocab))
    }

    /// As [`forward`](Self::forward), but returns the hidden states after the final norm, `[tokens, hidden]` of each step, instead
    /// of logits.
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward).
    pub fn hidden(&self, steps: &mut [Step<'_, B>], rows: Logits) -> Result<Vec<Vec<f32>>, NnError> {
        if !self.check(steps)? {
            return Ok(Vec::new());
        }
        self.announce(steps, rows, true)?;
        let inputs = self.step_inputs(steps)?;
        let selected = last_rows(&inputs, rows);
        let inputs = self.backend.inputs(inputs)?;
        let states = self.states(&inputs, &mut caches_of(steps), selected.as_deref())?;
        let last = self.last_stage();
        let normed = last.rms_norm(&states, &self.norm, self.spec.norm_eps(WeightName::FinalNorm))?;
        let all = last.move_to_host(normed)?;
        let counts = counts(steps, rows);
        advance(steps);
        Ok(split(all, &counts, self.spec.hidden))
    }

    /// As [`forward`](Self::forward) for the last token of each sequence, when its `k` largest logits are sufficient. A device
    /// backend transfers only these, unless one is NaN or infinite: then it returns all logits, for the error message.
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward).
    pub fn forward_top(&self, steps: &mut [Step<'_, B>], k: usize) -> Result<Vec<StepLogits>, NnError> {
        if !self.check(steps)? {
            return Ok(Vec::new());
        }
        self.announce(steps, Logits::Last, false)?;
        if steps.iter().all(|step| step.ids.len() == 1) {
            return self.tokens(steps, Some(k));
        }
        let inputs = self.step_inputs(steps)?;
        let rows = last_rows(&inputs, Logits::Last);
        let inputs = self.backend.inputs(inputs)?;
        let out = self.run(&inputs, &mut caches_of(steps), rows.as_deref())?;
        let best = logits_of(self.last_stage(), out, Some(k), steps.len())?;
        advance(steps);
        Ok(best)
    }

    /// Announces a step to the other ranks.
    fn announce(&self, steps: &[Step<'_, B>], rows: Logits, states: bool) -> Result<(), NnError> {
        let Some(Step { sequence, ids }) = steps.first() else { return Ok(()) };
        self.backend.announce(&StepNotice {
            sequences: steps.len(),
            sequence: sequence.id(),
            spec: *sequence.spec(),
            position: sequence.len(),
            ids: Cow::Borrowed(ids),
            all_rows: rows == Logits::All,
            states,
        })
    }

    /// Runs the steps announced by rank 0 of a [`RankBackend`](crate::RankBackend) on another rank, until rank 0 ends. Only the
    /// most recent sequence is kept. Returns at once on a backend that is not a follower.
    ///
    /// # Errors
    ///
    /// [`NnError::Behind`] for a step of a sequence other than the most recent one, errors of messages, and those of
    /// [`forward`](Self::forward).
    pub fn follow(&self) -> Result<(), NnError> {
        let mut last: Option<(u64, DecoderSequence<B>)> = None;
        while let Some(notice) = self.backend.next_step()? {
            if !last.as_ref().is_some_and(|(id, kept)| *id == notice.sequence && kept.spec() == &notice.spec)
            {
                // Free its memory before allocating the next sequence.
                drop(last.take());
            }
            let (_, sequence) = match &mut last {
                Some(last) => last,
                none => none.insert((notice.sequence, self.sequence(notice.spec)?)),
            };
            if notice.position < sequence.len() {
                sequence.truncate(notice.position)?;
            }
            if notice.position != sequence.len() {
                return Err(NnError::Behind { expected: sequence.len(), got: notice.position });
            }
            let steps = &mut [Step { sequence, ids: &notice.ids }];
            // The results are on rank 0.
            let rows = if notice.all_rows { Logits::All } else { Logits::Last };
            match notice.states {
                true => drop(self.hidden(steps, rows)?),
                false => drop(self.forward(steps, rows)?),
            }
        }
        Ok(())
    }

    /// A step of one token of each sequence, which the backend may have recorded.
    fn tokens(&self, steps: &mut [Step<'_, B>], largest: Option<usize>) -> Result<Vec<StepLogits>, NnError> {
        let Some(first) = steps.first() else { return Ok(Vec::new()) };
        let token = TokenStep {
            inputs: self.step_inputs(steps)?,
            capacity: first.sequence.spec().capacity,
            table: &self.embedding,
            version: self.recording,
            largest,
        };
        let mut run = |inputs: &B::Inputs, caches: StepCaches<'_, '_, B>| self.run(inputs, caches, None);
        let logits = match (&*steps, DecoderSequence::group(steps.iter().map(|step| &*step.sequence))) {
            ([_], _) => {
                let mut recorded = std::mem::take(&mut steps[0].sequence.recorded);
                let logits = self.backend.tokens(token, &mut recorded, &mut caches_of(steps), &mut run);
                steps[0].sequence.recorded = recorded;
                logits?
            }
            (_, Some(group)) => {
                let mut recorded = group.lock().unwrap_or_else(PoisonError::into_inner);
                self.backend.tokens(token, &mut recorded, &mut caches_of(steps), &mut run)?
            }
            (_, None) => {
                self.backend.tokens(token, &mut B::Recorded::default(), &mut caches_of(steps), &mut run)?
            }
        };
        advance(steps);
        Ok(logits)
    }

    /// Ids, positions and segments of checked steps.
    fn step_inputs(&self, steps: &[Step<'_, B>]) -> Result<StepInputs, NnError> {
        let mut inputs = StepInputs::default();
        for step in steps {
            inputs.push(step.ids, step.sequence.len(), self.window(step.sequence))?;
        }
        Ok(inputs)
    }

    /// Positions that a query of a sequence attends to in every layer.
    fn window(&self, sequence: &DecoderSequence<B>) -> Option<usize> {
        [sequence.window(), self.spec.window_of_all()].into_iter().flatten().min()
    }

    /// Checks that all steps can be run. `false` if there are none.
    fn check(&self, steps: &[Step<'_, B>]) -> Result<bool, NnError> {
        for step in steps {
            step.sequence.check_step(step.ids.len())?;
            if let Some(&id) = step.ids.iter().find(|&&id| id as usize >= self.spec.vocab) {
                return Err(NnError::Token { id, vocab: self.spec.vocab });
            }
        }
        Ok(!steps.is_empty())
    }

    /// Runs the tokens `inputs` over the caches of their sequences, up to the logits of the selected rows, or of all.
    fn run(
        &self,
        inputs: &B::Inputs,
        caches: StepCaches<'_, '_, B>,
        rows: Option<&[usize]>,
    ) -> Result<B::Tensor, NnError> {
        let x = self.states(inputs, caches, rows)?;
        let weight = self.head_norm.as_ref().unwrap_or(&self.norm);
        let normed = Input::Normed(&x, Norm { weight, eps: self.spec.norm_eps(WeightName::FinalNorm) });
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        let [out] = linear(self.last_stage(), normed, [head])?;
        Ok(out)
    }

    /// As [`run`](Self::run), up to the residual stream after the last block.
    fn states(
        &self,
        inputs: &B::Inputs,
        caches: StepCaches<'_, '_, B>,
        rows: Option<&[usize]>,
    ) -> Result<B::Tensor, NnError> {
        let (mut at, mut stage) = (0, self.backend.stage(0));
        let mut x = stage.embed(&self.embedding, inputs, self.spec.embedding_factor())?;
        for (layer, block) in self.blocks.iter().enumerate() {
            let next = self.backend.stage_of(layer);
            if next != at {
                let to = self.backend.stage(next);
                x = to.receive(stage, &x, self.spec.hidden)?;
                (at, stage) = (next, to);
            }
            let context = BlockContext { backend: stage, spec: &self.spec, rope: &self.ropes[at] };
            let mut of_layer: Vec<_> = caches.iter_mut().map(|of_layers| &mut of_layers[layer]).collect();
            block.forward(context, &mut x, inputs, &mut of_layer)?;
        }
        match rows {
            Some(rows) => stage.select_rows(&x, rows),
            None => Ok(x),
        }
    }
}

/// The caches of every sequence.
fn caches_of<'s, B: Backend>(steps: &'s mut [Step<'_, B>]) -> Vec<&'s mut [B::Cache]> {
    steps.iter_mut().map(|step| step.sequence.caches.as_mut_slice()).collect()
}

/// The last row of each sequence; `None` if all rows are wanted.
fn last_rows(inputs: &StepInputs, rows: Logits) -> Option<Vec<usize>> {
    let last = inputs.segments().iter().map(|segment| segment.rows.end - 1);
    (rows == Logits::Last && inputs.rows() > inputs.segments().len()).then(|| last.collect())
}

/// Rows of the result of each step.
fn counts<B: Backend>(steps: &[Step<'_, B>], rows: Logits) -> Vec<usize> {
    match rows {
        Logits::Last => vec![1; steps.len()],
        Logits::All => steps.iter().map(|step| step.ids.len()).collect(),
    }
}

/// The rows of each step, `width` values wide.
fn split(all: Vec<f32>, counts: &[usize], width: usize) -> Vec<Vec<f32>> {
    // The usual case is one sequence: its rows are returned without a copy.
    if let [_] = counts {
        return vec![all];
    }
    let mut rest = all.as_slice();
    let mut next = |count: &usize| {
        // A follower rank has no rows.
        let (rows, tail) = rest.split_at((count * width).min(rest.len()));
        rest = tail;
        rows.to_vec()
    };
    counts.iter().map(&mut next).collect()
}

/// Advances every sequence by the tokens of its step.
fn advance<B: Backend>(steps: &mut [Step<'_, B>]) {
    for step in steps {
        step.sequence.advance(step.ids.len());
    }
}
