//! Keys and values of a sequence on the host.

use std::sync::Arc;

use trike_cpu::{Cpu, CpuError, CpuOps, KV_PAGE, KeyIndex, KeyScratch, KeySelection, KvBuffer, KvView};

use super::eviction::Retained;
use crate::{AttentionSpec, CacheSpec, Eviction, NnError, SharedPage};

/// Keys and values of some slots of one layer, `kv_heads x capacity x head_dim` each.
#[derive(Clone, Debug)]
struct Slots {
    k: KvBuffer,
    v: KvBuffer,
    capacity: usize,
}

impl Slots {
    fn new(spec: &CacheSpec, capacity: usize) -> Result<Self, CpuError> {
        let zeros = |precision| KvBuffer::new(precision, spec.kv_heads * capacity, spec.head_dim);
        Ok(Self { k: zeros(spec.precision.key())?, v: zeros(spec.precision.value())?, capacity })
    }

    fn view(&self) -> KvView<'_> {
        KvView { k: self.k.view(), v: self.v.view(), capacity: self.capacity }
    }

    /// Stores a token's keys and values, `kv_heads x head_dim` each.
    fn store(&mut self, slot: usize, head_dim: usize, k: &[f32], v: &[f32]) -> Result<(), CpuError> {
        for (head, (k, v)) in k.chunks_exact(head_dim).zip(v.chunks_exact(head_dim)).enumerate() {
            self.k.write(head * self.capacity + slot, k)?;
            self.v.write(head * self.capacity + slot, v)?;
        }
        Ok(())
    }
}

/// Where the keys and values are.
#[derive(Debug)]
enum Store {
    /// Position `p` is in slot `p % capacity`.
    Ring(Slots),
    /// Position `p` is in page `p / KV_PAGE`. A page that another sequence refers to is copied before it is written.
    Pages(Vec<Arc<Slots>>),
}

/// Keys and values of one layer of one sequence.
#[derive(Debug)]
pub struct CpuCache {
    store: Store,
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
        let store = Store::Ring(Slots::new(spec, spec.capacity)?);
        let index = match spec.keys.is_all() {
            true => None,
            false => Some(KeyIndex::new(spec.kv_heads, spec.head_dim, spec.capacity)?),
        };
        let retained = (spec.eviction != Eviction::Never).then(Retained::default);
        Ok(Self { store, spec: *spec, index, retained })
    }

    /// An empty cache in pages, which are allocated as positions are stored; [`DecoderSequence`](crate::DecoderSequence) has checked that nothing
    /// else than appending is wanted of it.
    pub(super) fn paged(spec: &CacheSpec) -> Self {
        Self { store: Store::Pages(Vec::new()), spec: *spec, index: None, retained: None }
    }

    /// The pages of the first `positions` positions; `None` for a ring, or if it has fewer.
    pub(super) fn pages(&self, positions: usize) -> Option<Vec<SharedPage>> {
        match &self.store {
            Store::Pages(pages) => {
                let pages = pages.get(..positions.div_ceil(KV_PAGE))?;
                Some(pages.iter().map(|page| SharedPage::new(Arc::clone(page))).collect())
            }
            Store::Ring(_) => None,
        }
    }

    /// Refers to pages of another cache of the same shape; `false` for a ring and for pages of another shape or backend.
    pub(super) fn adopt(&mut self, shared: &[SharedPage]) -> bool {
        let Store::Pages(pages) = &mut self.store else { return false };
        let CacheSpec { kv_heads, head_dim, precision, .. } = self.spec;
        let shape = |precision| (precision, kv_heads * KV_PAGE, head_dim);
        let fits = |page: &Slots| {
            page.k.shape() == shape(precision.key()) && page.v.shape() == shape(precision.value())
        };
        let adopted = shared.iter().map(|page| page.downcast().filter(|page| fits(page)));
        let Some(adopted) = adopted.collect() else { return false };
        *pages = adopted;
        true
    }

    pub(super) fn spec(&self) -> &CacheSpec {
        &self.spec
    }

    #[cfg(test)]
    pub(super) fn with_view<T>(&self, f: impl FnOnce(KvView<'_>) -> T) -> T {
        match &self.store {
            Store::Ring(ring) => f(ring.view()),
            Store::Pages(_) => panic!("a ring"),
        }
    }

    /// The rounded keys of a slot, `kv_heads x head_dim`.
    #[cfg(test)]
    pub(super) fn keys_at(&self, slot: usize) -> Vec<f32> {
        let CacheSpec { kv_heads, head_dim, capacity, .. } = self.spec;
        let mut keys = vec![f32::NAN; kv_heads * head_dim];
        let Store::Ring(ring) = &self.store else { panic!("a ring") };
        for (head, keys) in keys.chunks_exact_mut(head_dim).enumerate() {
            ring.k.read(head * capacity + slot, keys).expect("a slot of the cache");
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
        let (Some(retained), Store::Ring(ring)) = (&mut self.retained, &mut self.store) else {
            return Ok(position);
        };
        retained.rewind(position);
        let CacheSpec { capacity, eviction, .. } = self.spec;
        if let Some(kept) = eviction.before(retained.used(), tokens, capacity) {
            let kept = retained.choose(cpu, spec, ring.view(), eviction, kept)?;
            for (array, slot) in ring.k.arrays_mut().into_iter().chain(ring.v.arrays_mut()) {
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
        match &mut self.store {
            Store::Ring(ring) => ring.store(position % capacity, head_dim, k, v)?,
            Store::Pages(pages) => {
                let page = position / KV_PAGE;
                // Pages after this one are those of truncated positions.
                pages.truncate(page + 1);
                while pages.len() <= page {
                    pages.push(Arc::new(Slots::new(&self.spec, KV_PAGE)?));
                }
                Arc::make_mut(&mut pages[page]).store(position % KV_PAGE, head_dim, k, v)?;
            }
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
        let view = match &self.store {
            Store::Ring(ring) => ring.view(),
            Store::Pages(pages) => {
                let pages: Vec<_> = pages.iter().map(|page| page.view()).collect();
                return cpu.attention_paged(spec, q, position, &pages, out);
            }
        };
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
    /// `None` for pages.
    pub(super) fn save(&self, positions: usize) -> Option<Vec<u8>> {
        let Store::Ring(ring) = &self.store else { return None };
        let capacity = self.spec.capacity;
        let mut saved = Vec::new();
        for (array, slot) in ring.k.arrays().into_iter().chain(ring.v.arrays()) {
            for head in array.chunks_exact(capacity * slot) {
                saved.extend_from_slice(&head[..positions.min(capacity) * slot]);
            }
        }
        Some(saved)
    }

    /// Reads what [`save`](Self::save) wrote.
    pub(super) fn restore(&mut self, positions: usize, saved: &[u8]) -> Result<(), NnError> {
        let CacheSpec { kv_heads, capacity, .. } = self.spec;
        // A cache in pages has no slots to restore to.
        let Store::Ring(ring) = &mut self.store else {
            return Err(NnError::Shape {
                what: "bytes of saved keys and values",
                expected: 0,
                got: saved.len(),
            });
        };
        let arrays = || ring.k.arrays().into_iter().chain(ring.v.arrays());
        let expected = arrays().map(|(_, slot)| kv_heads * positions.min(capacity) * slot).sum();
        if positions > capacity || saved.len() != expected {
            return Err(NnError::Shape {
                what: "bytes of saved keys and values",
                expected,
                got: saved.len(),
            });
        }
        let mut rest = saved;
        for (array, slot) in ring.k.arrays_mut().into_iter().chain(ring.v.arrays_mut()) {
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
