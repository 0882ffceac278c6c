//! The residual streams of a text, between two blocks.

use std::ops::ControlFlow;

use trike_cpu::Matrix;
use trike_nn::{
    Backend, BlockContext, CacheSpec, CpuBackend, CpuTensor, DecoderBlock, HookPoint, KvPrecision, NnError,
    StepInputs,
};

use crate::CalibrateError;

/// Tokens of a batch, unless one sequence is longer: the activations of a block over them are what is in memory beside the
/// streams.
const TOKENS: usize = 2048;

/// Some sequences, one after the other, and their residual streams in a model.
pub(crate) struct Batch {
    /// The tokens of each sequence, from position 0 on.
    inputs: StepInputs,
    /// `tokens x hidden`.
    pub(crate) x: Vec<f32>,
}

/// Packs whole sequences into batches and looks their tokens up.
pub(crate) fn embed(
    backend: &CpuBackend,
    table: &Matrix,
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
        let x = backend.into_host(backend.embed(table, &inputs)?)?;
        Ok(Batch { inputs, x })
    };
    batches.into_iter().map(batch).collect()
}

impl Batch {
    /// The same sequences with other residual streams.
    pub(crate) fn with(&self, x: Vec<f32>) -> Self {
        Self { inputs: self.inputs.clone(), x }
    }

    /// Tokens of each sequence.
    pub(crate) fn lengths(&self) -> impl Iterator<Item = usize> + '_ {
        self.inputs.segments().iter().map(|segment| segment.rows.len())
    }

    /// Runs the stream through a block and returns the output; `hook` gets the input of the linear layers at `hooked`, on the
    /// host, and the residual stream beside it.
    pub(crate) fn through(
        &self,
        context: BlockContext<'_, CpuBackend>,
        block: &DecoderBlock<CpuBackend>,
        mut hook: impl FnMut(HookPoint, Vec<f32>, Vec<f32>) -> ControlFlow<()>,
        hooked: Option<HookPoint>,
    ) -> Result<Vec<f32>, NnError> {
        let BlockContext { backend, spec, .. } = context;
        let mut x = backend.upload(&self.x, spec.hidden)?;
        let cache = |capacity: usize| {
            backend.new_cache(&CacheSpec {
                kv_heads: spec.kv_heads,
                head_dim: spec.head_dim,
                capacity,
                precision: KvPrecision::F32,
            })
        };
        let mut caches = self.lengths().map(cache).collect::<Result<Vec<_>, _>>()?;
        let mut caches: Vec<_> = caches.iter_mut().collect();
        let host = |x: &CpuTensor| backend.to_host(x);
        // Where the hook breaks, nobody needs the stream.
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
        backend.into_host(x)
    }
}
