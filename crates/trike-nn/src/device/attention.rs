//! Attention of a step: prompts one by one, single tokens of sequences made together in one launch.

use std::sync::PoisonError;

use trike_cube::attention::{CacheSegment, CacheToken, CubeKvCache, TokenBatch};
use trike_cube::ops::CubeRopeTable;
use trike_cube::{Buffer, Strategy};

use super::{CubeBackend, CubeInputs, CubeRope, CubeTensor};
use crate::{AttentionSpec, CacheSpec, Eviction, KeySelector, NnError, PromptKeys, StepInputs, check};

impl CubeBackend {
    /// Stores keys and values, then attends; with `rope`, the launch of the store also rotates queries and keys.
    pub(super) fn attend(
        &self,
        spec: &AttentionSpec,
        [q, k, v]: [&CubeTensor; 3],
        rope: Option<&CubeRope>,
        inputs: &CubeInputs,
        caches: &mut [&mut CubeKvCache],
    ) -> Result<CubeTensor, NnError> {
        let caches: Vec<&CubeKvCache> = caches.iter().map(|cache| &**cache).collect();
        let specs: Vec<CacheSpec> = caches.iter().map(|cache| spec_of(cache)).collect();
        check::attention(spec, [q, k, v].map(CubeTensor::shape), &inputs.host, specs.iter())?;
        let table = match rope {
            Some(rope) => {
                check::rope(k.shape(), rope.head_dim, &inputs.host)?;
                Some(self.rope_table(q, rope, inputs)?)
            }
            None => None,
        };
        let out = self.tensor(q.rows(), q.width)?;
        let qkv = [&q.buffer, &k.buffer, &v.buffer];
        let segments = inputs.host.segments();
        for together in groups(inputs, &caches) {
            let spec = spec.within(segments[together[0]].window);
            match together[..] {
                [one] => {
                    let (rows, cache) = (segments[one].rows.clone(), caches[one]);
                    let rows = CacheSegment { rows, positions: &inputs.at(self.index).positions, cache };
                    self.attend_to_one(&spec, qkv, table.as_ref(), &rows, &out.buffer)?;
                }
                _ => {
                    self.attend_to_several(&spec, qkv, table.as_ref(), (inputs, &together), &caches, &out)?;
                }
            }
        }
        Ok(out)
    }

    fn attend_to_one(
        &self,
        spec: &AttentionSpec,
        [q, k, v]: [&Buffer<f32>; 3],
        table: Option<&CubeRopeTable>,
        rows: &CacheSegment<'_>,
        out: &Buffer<f32>,
    ) -> Result<(), NnError> {
        match table {
            Some(table) => self.device.rotate_and_store(q, k, v, rows, table)?,
            None => self.device.store(k, v, rows)?,
        }
        Ok(self.device.attention(spec, q, rows, out, &Strategy::Inferred)?)
    }

    fn attend_to_several(
        &self,
        spec: &AttentionSpec,
        [q, k, v]: [&Buffer<f32>; 3],
        table: Option<&CubeRopeTable>,
        (inputs, together): (&CubeInputs, &[usize]),
        caches: &[&CubeKvCache],
        out: &CubeTensor,
    ) -> Result<(), NnError> {
        let tokens = batch_of(&inputs.host, caches, together.iter().copied());
        let mut known = inputs.at(self.index).tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let at = match known.iter().position(|known| known.are(&tokens)) {
            Some(at) => at,
            None => {
                known.push(self.upload_batch(&tokens)?);
                known.len() - 1
            }
        };
        let caches: Vec<&CubeKvCache> = tokens.iter().map(|token| token.cache).collect();
        let batch = TokenBatch { tokens: &known[at], caches: &caches };
        match table {
            Some(table) => self.device.rotate_and_store_tokens(q, k, v, &batch, table)?,
            None => self.device.store_tokens(k, v, &batch)?,
        }
        Ok(self.device.attention_of_tokens(spec, q, &batch, &out.buffer, &Strategy::Inferred)?)
    }
}

/// The tokens of some segments of one row each.
pub(super) fn batch_of<'a>(
    inputs: &StepInputs,
    caches: &[&'a CubeKvCache],
    segments: impl Iterator<Item = usize>,
) -> Vec<CacheToken<'a>> {
    let token = |i: usize| {
        let row = inputs.segments()[i].rows.start;
        CacheToken { row, position: inputs.positions()[row], cache: caches[i] }
    };
    segments.map(token).collect()
}

/// The segments of a step that are processed together: single tokens with one window whose caches share an allocation.
fn groups(inputs: &CubeInputs, caches: &[&CubeKvCache]) -> Vec<Vec<usize>> {
    let segments = inputs.host.segments();
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (i, segment) in segments.iter().enumerate() {
        let fits = |group: &&mut Vec<usize>| {
            let first = group[0];
            let singles = segment.rows.len() == 1 && segments[first].rows.len() == 1;
            singles && segments[first].window == segment.window && caches[first].is_beside(caches[i])
        };
        match groups.iter_mut().find(fits) {
            Some(group) => group.push(i),
            None => groups.push(vec![i]),
        }
    }
    groups
}

fn spec_of(cache: &CubeKvCache) -> CacheSpec {
    let shape = cache.shape();
    CacheSpec {
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
        capacity: shape.capacity,
        precision: shape.precision,
        keys: KeySelector::All,
        prompt_keys: PromptKeys::All,
        eviction: Eviction::Never,
    }
}
