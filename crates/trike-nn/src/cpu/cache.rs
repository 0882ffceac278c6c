//! Keys and values of a sequence on the host.

use trike_cpu::{Cpu, CpuError, CpuOps, KeyIndex, KeyScratch, KeySelection, KvBuffer, KvView};

use super::eviction::Retained;
use crate::{AttentionSpec, CacheSpec, Eviction, NnError};

/// Keys and values of one layer of one sequence, `kv_heads x capacity x head_dim` each.
#[derive(Debug)]
pub struct CpuCache {
    k: KvBuffer,
    v: KvBuffer,
    spec: CacheSpec,
    /// The codes of the keys, if steps select some of them.
    index: Option<KeyIndex>,
    /// Retained positions of a cache with eviction.
    retained: Option<Retained>,
}

impl CpuCache {
    pub(super) fn new(spec: &CacheSpec) -> Result<Self, NnError> {
        let len = spec.kv_heads.checked_mul(spec.head_dim).and_then(|n| n.checked_mul(spec.capacity));
        len.filter(|n| *n <= isize::MAX as usize / 4).ok_or(NnError::Spec {
            field: "capacity",
            rule: "must give a KV cache of addressable size",
            got: spec.capacity.to_string(),
        })?;
        let zeros = |precision| KvBuffer::new(precision, spec.kv_heads * spec.capacity, spec.head_dim);
        let (k, v) = (zeros(spec.precision.key())?, zeros(spec.precision.value())?);
        let index = match spec.keys.is_all() {
            true => None,
            false => Some(KeyIndex::new(spec.kv_heads, spec.head_dim, spec.capacity)?),
        };
        let retained = (spec.eviction != Eviction::Never).then(Retained::default);
        Ok(Self { k, v, spec: *spec, index, retained })
    }

    pub(super) fn spec(&self) -> &CacheSpec {
        &self.spec
    }

    #[cfg(test)]
    pub(super) fn with_view<T>(&self, f: impl FnOnce(KvView<'_>) -> T) -> T {
        f(KvView { k: self.k.view(), v: self.v.view(), capacity: self.spec.capacity })
    }

    /// The rounded keys of a slot, `kv_heads x head_dim`.
    #[cfg(test)]
    pub(super) fn keys_at(&self, slot: usize) -> Vec<f32> {
        let CacheSpec { kv_heads, head_dim, capacity, .. } = self.spec;
        let mut keys = vec![f32::NAN; kv_heads * head_dim];
        for (head, keys) in keys.chunks_exact_mut(head_dim).enumerate() {
            self.k.read(head * capacity + slot, keys).expect("a slot of the cache");
        }
        keys
    }

    /// Cache position of the first of the next `tokens` tokens of a sequence with `position` tokens. It differs from `position`
    /// only after an eviction.
    pub(super) fn admit(
        &mut self,
        cpu: &Cpu,
        spec: &AttentionSpec,
        position: usize,
        tokens: usize,
    ) -> Result<usize, CpuError> {
        let Some(retained) = &mut self.retained else { return Ok(position) };
        retained.rewind(position);
        let CacheSpec { capacity, eviction, .. } = self.spec;
        if let Some(kept) = eviction.before(retained.used(), tokens, capacity) {
            let view = KvView { k: self.k.view(), v: self.v.view(), capacity };
            let kept = retained.choose(cpu, spec, view, eviction, kept)?;
            for (array, slot) in self.k.arrays_mut().into_iter().chain(self.v.arrays_mut()) {
                for (head, kept) in array.chunks_exact_mut(capacity * slot).zip(&kept) {
                    for (to, &from) in kept.iter().enumerate() {
                        head.copy_within(from * slot..(from + 1) * slot, to * slot);
                    }
                }
            }
            if let Some(index) = &mut self.index {
                index.truncate(0);
            }
        }
        Ok(retained.extend(tokens))
    }

    /// Stores a token's keys and values, `kv_heads x head_dim` each, in the slot of `position`.
    pub(super) fn store(&mut self, position: usize, k: &[f32], v: &[f32]) -> Result<(), CpuError> {
        let CacheSpec { head_dim, capacity, .. } = self.spec;
        let slot = position % capacity;
        for (head, (k, v)) in k.chunks_exact(head_dim).zip(v.chunks_exact(head_dim)).enumerate() {
            self.k.write(head * capacity + slot, k)?;
            self.v.write(head * capacity + slot, v)?;
        }
        if let Some(index) = &mut self.index {
            index.truncate(position);
        }
        Ok(())
    }

    /// Attention of the queries of some tokens, whose keys and values are stored in the cache from `position` on: for one token to
    /// the top-k keys if the cache has an index, for several tokens block-sparse if its spec says so, otherwise to all keys.
    pub(super) fn attend(
        &mut self,
        cpu: &Cpu,
        spec: &AttentionSpec,
        q: &[f32],
        position: usize,
        scratch: &mut KeyScratch,
        out: &mut [f32],
    ) -> Result<(), CpuError> {
        let width = spec.heads * spec.head_dim;
        if let Some(retained) = &mut self.retained {
            retained.remember(q, width);
        }
        let view = KvView { k: self.k.view(), v: self.v.view(), capacity: self.spec.capacity };
        match &mut self.index {
            Some(index) if q.len() == width => {
                let selection = KeySelection { selector: self.spec.keys, index, scratch };
                cpu.attention_selected(spec, q, position, view, selection, out)
            }
            _ => match cpu.choose_blocks(spec, q, position, view, self.spec.prompt_keys)? {
                Some(mask) => cpu.attention_masked(spec, q, position, view, &mask, out),
                None => cpu.attention(spec, q, position, view, out),
            },
        }
    }

    /// Serialized arrays of the keys, then of the values: for each array, the first positions of each head.
    pub(super) fn save(&self, positions: usize) -> Vec<u8> {
        let capacity = self.spec.capacity;
        let mut saved = Vec::new();
        for (array, slot) in self.k.arrays().into_iter().chain(self.v.arrays()) {
            for head in array.chunks_exact(capacity * slot) {
                saved.extend_from_slice(&head[..positions.min(capacity) * slot]);
            }
        }
        saved
    }

    /// Reads what [`save`](Self::save) wrote.
    pub(super) fn restore(&mut self, positions: usize, saved: &[u8]) -> Result<(), NnError> {
        let CacheSpec { kv_heads, capacity, .. } = self.spec;
        let arrays = || self.k.arrays().into_iter().chain(self.v.arrays());
        let expected = arrays().map(|(_, slot)| kv_heads * positions.min(capacity) * slot).sum();
        if positions > capacity || saved.len() != expected {
            return Err(NnError::SavedCache { expected, got: saved.len() });
        }
        let mut rest = saved;
        for (array, slot) in self.k.arrays_mut().into_iter().chain(self.v.arrays_mut()) {
            for head in array.chunks_exact_mut(capacity * slot) {
                let (own, after) = rest.split_at(positions * slot);
                head[..own.len()].copy_from_slice(own);
                rest = after;
            }
        }
        if let Some(index) = &mut self.index {
            index.truncate(0);
        }
        if let Some(retained) = &mut self.retained {
            *retained = Retained::restored(positions);
        }
        Ok(())
    }
}
