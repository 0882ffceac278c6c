//! Residual streams of a text between blocks, and blocks loaded one at a time.

use std::ops::ControlFlow;

use trike_core::Tensor;
use trike_cpu::{Cpu, Matrix};
use trike_llm::WeightSource;
use trike_nn::{
    BackendCaches, BackendOps, BackendTransfers, BackendWeights, BlockContext, CacheSpec, CpuBackend,
    CpuCache, CpuRope, CpuTensor, DecoderBlock, DecoderSpec, Eviction, Hook, HookPoint, KeySelector,
    KvPrecision, NnError, PromptKeys, StepInputs, WeightName,
};

use crate::{CalibrateError, weights::BlockWeights};

/// Tokens per batch, unless one sequence is longer. Memory consists of the activations of a block over a batch, and the residual
/// streams.
pub(crate) const TOKENS: usize = 2048;

/// A half of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    Attention,
    Mlp,
}

impl Half {
    /// Both, in order.
    pub(crate) const ALL: [Self; 2] = [Self::Attention, Self::Mlp];

    /// The hook points of the half: its input, and the input of the projection that is added to the stream.
    pub(crate) fn points(self) -> [HookPoint; 2] {
        match self {
            Self::Attention => [HookPoint::Attention, HookPoint::Output],
            Self::Mlp => [HookPoint::Mlp, HookPoint::Down],
        }
    }

    /// The half that contains a hook point.
    pub(crate) fn of(point: HookPoint) -> Self {
        match point {
            HookPoint::Attention | HookPoint::Output => Self::Attention,
            HookPoint::Mlp | HookPoint::Down => Self::Mlp,
        }
    }
}

/// Consecutive sequences, and their residual streams in a model.
pub(crate) struct Batch {
    /// The tokens of each sequence, from position 0.
    inputs: StepInputs,
    /// `tokens x hidden`.
    pub(crate) x: Vec<f32>,
}

/// An embedding, and the factor of its rows.
pub(crate) struct Embedding {
    pub(crate) table: Matrix,
    pub(crate) factor: f32,
}

/// Packs whole sequences into batches and embeds their tokens.
pub(crate) fn embed(
    backend: &CpuBackend,
    Embedding { table, factor }: &Embedding,
    sequences: &[Vec<u32>],
) -> Result<Vec<Batch>, CalibrateError> {
    let mut batches: Vec<StepInputs> = Vec::new();
    for ids in sequences {
        match batches.last_mut() {
            Some(batch) if batch.rows() + ids.len() <= TOKENS => batch.push(ids, 0, None)?,
            _ => {
                let mut batch = StepInputs::default();
                batch.push(ids, 0, None)?;
                batches.push(batch);
            }
        }
    }
    let batch = |inputs: StepInputs| {
        let x = backend.move_to_host(backend.embed(table, &inputs, *factor)?)?;
        Ok(Batch { inputs, x })
    };
    batches.into_iter().map(batch).collect()
}

impl Batch {
    /// The same sequences with other residual streams.
    pub(crate) fn with(&self, x: Vec<f32>) -> Self {
        Self { inputs: self.inputs.clone(), x }
    }

    /// Number of tokens of each sequence.
    pub(crate) fn lengths(&self) -> impl Iterator<Item = usize> + '_ {
        self.inputs.segments().iter().map(|segment| segment.rows.len())
    }

    /// Runs the residual stream through half of a block, up to `until` if given. Returns the stream after it, or the input of the
    /// matrices at `until`.
    fn half(
        &self,
        context: BlockContext<'_, CpuBackend>,
        block: &DecoderBlock<CpuBackend>,
        half: Half,
        until: Option<HookPoint>,
    ) -> Result<Vec<f32>, NnError> {
        let backend = context.backend;
        let mut x = backend.upload(&self.x, context.spec.hidden)?;
        let mut seen = None;
        let mut keep = |point, input: &CpuTensor, _: &CpuTensor| {
            if until != Some(point) {
                return Ok(ControlFlow::Continue(()));
            }
            seen = Some(backend.to_host(input)?);
            Ok(ControlFlow::Break(()))
        };
        let hook: Option<&mut Hook<'_, CpuBackend>> = until.is_some().then_some(&mut keep);
        let _ = match half {
            Half::Attention => {
                let mut caches = self.caches(context)?;
                let mut caches: Vec<_> = caches.iter_mut().collect();
                block.forward_attention(context, &mut x, &self.inputs, &mut caches, hook)?
            }
            Half::Mlp => block.forward_mlp(context, &mut x, hook)?,
        };
        match seen {
            Some(input) => Ok(input),
            None => backend.move_to_host(x),
        }
    }

    /// An empty cache for each sequence.
    fn caches(&self, context: BlockContext<'_, CpuBackend>) -> Result<Vec<CpuCache>, NnError> {
        let BlockContext { backend, spec, .. } = context;
        let cache = |capacity: usize| {
            backend.new_cache(&CacheSpec {
                kv_heads: spec.kv_heads,
                head_dim: spec.head_dim,
                capacity,
                precision: KvPrecision::F32,
                keys: KeySelector::All,
                prompt_keys: PromptKeys::All,
                eviction: Eviction::Never,
            })
        };
        self.lengths().map(cache).collect()
    }

    /// Runs the stream through a block and returns the output. `hook` gets the input of the linear layers at `hooked`
    /// and the residual stream, both in host memory.
    pub(crate) fn through(
        &self,
        context: BlockContext<'_, CpuBackend>,
        block: &DecoderBlock<CpuBackend>,
        mut hook: impl FnMut(HookPoint, Vec<f32>, Vec<f32>) -> ControlFlow<()>,
        hooked: Option<HookPoint>,
    ) -> Result<Vec<f32>, NnError> {
        let BlockContext { backend, spec, .. } = context;
        let mut x = backend.upload(&self.x, spec.hidden)?;
        let mut caches = self.caches(context)?;
        let mut caches: Vec<_> = caches.iter_mut().collect();
        let host = |x: &CpuTensor| backend.to_host(x);
        // If the hook breaks, the output is not needed.
        let _ = block.forward_hooked(
            context,
            &mut x,
            &self.inputs,
            &mut caches,
            &mut |point, input, stream| {
                if hooked == Some(point) {
                    Ok(hook(point, host(input)?, host(stream)?))
                } else {
                    Ok(ControlFlow::Continue(()))
                }
            },
        )?;
        backend.move_to_host(x)
    }
}

/// A model whose blocks are loaded one at a time, with dense f32 weights.
pub(crate) struct Blocks<'a> {
    pub(crate) source: &'a dyn WeightSource,
    pub(crate) backend: &'a CpuBackend,
    rope: CpuRope,
}

impl<'a> Blocks<'a> {
    pub(crate) fn new(source: &'a dyn WeightSource, backend: &'a CpuBackend) -> Result<Self, NnError> {
        let spec = &source.config().spec;
        let rope = backend.load_rope(&spec.rope, spec.head_dim, spec.context)?;
        Ok(Self { source, backend, rope })
    }

    pub(crate) fn spec(&self) -> &'a DecoderSpec {
        &self.source.config().spec
    }

    pub(crate) fn cpu(&self) -> &'a Cpu {
        self.backend.cpu()
    }

    /// Loads a block.
    pub(crate) fn load(&self, layer: usize) -> Result<DecoderBlock<CpuBackend>, NnError> {
        DecoderBlock::load(self.backend, self.spec(), layer, &mut BlockWeights::new(self.source))
    }

    /// Loads a block with some of its weights replaced.
    pub(crate) fn load_with(
        &self,
        layer: usize,
        replaced: &[(WeightName, Tensor)],
    ) -> Result<DecoderBlock<CpuBackend>, NnError> {
        let mut weights = BlockWeights::with(self.source, replaced);
        DecoderBlock::load(self.backend, self.spec(), layer, &mut weights)
    }

    /// Loads the embedding.
    pub(crate) fn embedding(&self) -> Result<Embedding, CalibrateError> {
        let table = self.backend.load_matrix(self.source.load(WeightName::Embedding)?)?;
        Ok(Embedding { table, factor: self.spec().embedding_factor() })
    }

    fn context(&self) -> BlockContext<'_, CpuBackend> {
        BlockContext { backend: self.backend, spec: self.spec(), rope: &self.rope }
    }

    /// The residual stream of a batch after a block.
    pub(crate) fn output(
        &self,
        block: &DecoderBlock<CpuBackend>,
        batch: &Batch,
    ) -> Result<Vec<f32>, NnError> {
        batch.through(self.context(), block, |_, _, _| ControlFlow::Continue(()), None)
    }

    /// The residual stream of a batch after a block. `watch` gets the inputs of the matrices at each point.
    pub(crate) fn watch(
        &self,
        block: &DecoderBlock<CpuBackend>,
        batch: &Batch,
        mut watch: impl FnMut(HookPoint, Vec<f32>),
    ) -> Result<Vec<f32>, NnError> {
        let BlockContext { backend, spec, .. } = self.context();
        let mut x = backend.upload(&batch.x, spec.hidden)?;
        let mut caches = batch.caches(self.context())?;
        let mut caches: Vec<_> = caches.iter_mut().collect();
        let _ = block.forward_hooked(
            self.context(),
            &mut x,
            &batch.inputs,
            &mut caches,
            &mut |point, input, _| {
                watch(point, backend.to_host(input)?);
                Ok(ControlFlow::Continue(()))
            },
        )?;
        backend.move_to_host(x)
    }

    /// Passes the streams of all batches through a block. In place, because they are most of the memory use.
    pub(crate) fn advance(
        &self,
        block: &DecoderBlock<CpuBackend>,
        batches: &mut [Batch],
    ) -> Result<(), NnError> {
        batches.iter_mut().try_for_each(|batch| {
            batch.x = self.output(block, batch)?;
            Ok(())
        })
    }

    /// Passes the streams of all batches through half of a block, in place.
    pub(crate) fn advance_half(
        &self,
        block: &DecoderBlock<CpuBackend>,
        half: Half,
        batches: &mut [Batch],
    ) -> Result<(), NnError> {
        batches.iter_mut().try_for_each(|batch| {
            batch.x = batch.half(self.context(), block, half, None)?;
            Ok(())
        })
    }

    /// Inputs of the matrices at `point` of a block, for a batch whose stream is at the start of that half of the block.
    pub(crate) fn half_inputs(
        &self,
        block: &DecoderBlock<CpuBackend>,
        batch: &Batch,
        point: HookPoint,
    ) -> Result<Vec<f32>, NnError> {
        batch.half(self.context(), block, Half::of(point), Some(point))
    }

    /// Inputs of the matrices at `point` of a block, and the residual stream there.
    pub(crate) fn inputs(
        &self,
        block: &DecoderBlock<CpuBackend>,
        batch: &Batch,
        point: HookPoint,
    ) -> Result<(Vec<f32>, Vec<f32>), NnError> {
        let mut seen = (Vec::new(), Vec::new());
        let keep = |_, input, stream| {
            seen = (input, stream);
            ControlFlow::Break(())
        };
        batch.through(self.context(), block, keep, Some(point))?;
        Ok(seen)
    }
}
