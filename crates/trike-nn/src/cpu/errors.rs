//! Errors due to the precision of KV caches, on the host.

use super::{CpuBackend, CpuTensor};
use crate::{
    BackendCaches, BackendOps, BlockContext, CacheSpec, Decoder, Eviction, KeySelector, KvPrecision, NnError,
    PromptKeys, StepInputs,
};

impl Decoder<CpuBackend> {
    /// For each layer, the error due to caching its keys and values in each of `precisions`: the squared norm of the change in the
    /// residual stream after the layer's attention, relative to the squared norm of the stream, averaged over the tokens. The
    /// stream is computed with caches in `exact` in all layers, so errors of earlier layers do not propagate.
    ///
    /// The text is run once, in steps of up to `step` tokens, and the attention of each layer once more for each of `precisions`.
    ///
    /// # Errors
    ///
    /// [`NnError::EmptyStep`] for no ids or steps of no tokens, [`NnError::Token`], and errors of the backend.
    pub fn cache_errors(
        &self,
        ids: &[u32],
        exact: KvPrecision,
        precisions: &[KvPrecision],
        step: usize,
    ) -> Result<Vec<Vec<f64>>, NnError> {
        let (backend, spec) = (self.backend(), self.spec());
        if ids.is_empty() || step == 0 {
            return Err(NnError::EmptyStep);
        }
        if let Some(&id) = ids.iter().find(|&&id| id as usize >= spec.vocab) {
            return Err(NnError::Token { id, vocab: spec.vocab });
        }
        let mut streams = Vec::new();
        for (at, ids) in ids.chunks(step).enumerate() {
            let mut inputs = StepInputs::default();
            inputs.push(ids, at * step, spec.window_of_all())?;
            streams.push((backend.embed(self.embedding(), &inputs, spec.embedding_factor())?, inputs));
        }
        let cache = |precision| {
            backend.new_cache(&CacheSpec {
                kv_heads: spec.kv_heads,
                head_dim: spec.head_dim,
                capacity: ids.len(),
                precision,
                keys: KeySelector::All,
                prompt_keys: PromptKeys::All,
                eviction: Eviction::Never,
            })
        };
        let mut errors = Vec::with_capacity(spec.layers);
        for block in self.blocks() {
            let context = BlockContext { backend, spec, rope: self.rope() };
            let mut exact = cache(exact)?;
            let mut caches = precisions.iter().map(|&one| cache(one)).collect::<Result<Vec<_>, _>>()?;
            let mut sums = vec![0.0; precisions.len()];
            for (x, inputs) in &mut streams {
                let before = x.clone();
                // Without a hook the pass never breaks.
                let _ = block.forward_attention(context, x, inputs, &mut [&mut exact], None)?;
                for (sum, cache) in sums.iter_mut().zip(&mut caches) {
                    let mut other = before.clone();
                    let _ = block.forward_attention(context, &mut other, inputs, &mut [cache], None)?;
                    *sum += relative_error(&other, x);
                }
                let _ = block.forward_mlp(context, x, None)?;
            }
            errors.push(sums.into_iter().map(|sum| sum / ids.len() as f64).collect());
        }
        Ok(errors)
    }
}

/// `|x - exact|^2 / |exact|^2` of each row, summed over the rows.
fn relative_error(x: &CpuTensor, exact: &CpuTensor) -> f64 {
    let rows = x.values().chunks_exact(x.width).zip(exact.values().chunks_exact(exact.width));
    let of_row = |(x, exact): (&[f32], &[f32])| {
        let square = |sum: f64, value: f64| sum + value * value;
        let error = x.iter().zip(exact).map(|(x, exact)| f64::from(x - exact)).fold(0.0, square);
        let length = exact.iter().map(|exact| f64::from(*exact)).fold(0.0, square);
        // The relative error of a zero row is undefined: use the absolute one.
        if length > 0.0 { error / length } else { error }
    };
    rows.map(of_row).sum()
}
