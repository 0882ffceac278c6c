//! Keys and values of a sequence on the host.

use half::f16;
use half::slice::HalfFloatSliceExt;
use trike_cpu::{
    Cpu, CpuError, CpuOps, KeyIndex, KeyScratch, KeySelection, KvData, KvView, Lines, quantize_head,
    quantize_head_int4,
};

use super::eviction::Retained;
use crate::{AttentionSpec, CacheSpec, Eviction, KvPrecision, NnError, Segment};

/// Keys or values of one layer.
#[derive(Debug)]
enum Elements {
    F32(Lines<f32>),
    F16(Lines<f16>),
    /// With one scale per slot of a head.
    Int8(Lines<i8>, Lines<f32>),
    /// Two codes in a byte, with one scale per slot of a head.
    Int4(Lines<u8>, Lines<f32>),
}

impl Elements {
    /// For `slots` vectors of `head_dim` elements, of a precision that keys and values have in common.
    fn zeros(precision: KvPrecision, slots: usize, head_dim: usize) -> Result<Self, NnError> {
        let n = slots * head_dim;
        Ok(match precision {
            KvPrecision::F32 => Self::F32(Lines::separate(n)?),
            KvPrecision::F16 => Self::F16(Lines::separate(n)?),
            KvPrecision::Int8 | KvPrecision::Int8Int4 => {
                Self::Int8(Lines::separate(n)?, Lines::separate(slots)?)
            }
            KvPrecision::Int4 => {
                Self::Int4(Lines::separate(slots * head_dim.div_ceil(2))?, Lines::separate(slots)?)
            }
        })
    }

    /// Stores the vector of a slot.
    fn write(&mut self, slot: usize, values: &[f32]) {
        let at = slot * values.len()..(slot + 1) * values.len();
        match self {
            Self::F32(v) => v[at].copy_from_slice(values),
            Self::F16(v) => v[at].convert_from_f32_slice(values),
            Self::Int8(codes, scales) => scales[slot] = quantize_head(values, &mut codes[at]),
            Self::Int4(codes, scales) => {
                let width = values.len().div_ceil(2);
                scales[slot] = quantize_head_int4(values, &mut codes[slot * width..][..width]);
            }
        }
    }

    /// The memory of the elements, one part for each array, with the bytes of a slot.
    fn bytes(&self, head_dim: usize) -> Vec<(&[u8], usize)> {
        match self {
            Self::F32(v) => vec![(bytemuck::cast_slice(v), 4 * head_dim)],
            Self::F16(v) => vec![(bytemuck::cast_slice(v), 2 * head_dim)],
            Self::Int8(codes, scales) => {
                vec![(bytemuck::cast_slice(codes), head_dim), (bytemuck::cast_slice(scales), 4)]
            }
            Self::Int4(codes, scales) => {
                vec![(codes, head_dim.div_ceil(2)), (bytemuck::cast_slice(scales), 4)]
            }
        }
    }

    /// [`bytes`](Self::bytes) to write to.
    fn bytes_mut(&mut self, head_dim: usize) -> Vec<(&mut [u8], usize)> {
        match self {
            Self::F32(v) => vec![(bytemuck::cast_slice_mut(v), 4 * head_dim)],
            Self::F16(v) => vec![(bytemuck::cast_slice_mut(v), 2 * head_dim)],
            Self::Int8(codes, scales) => {
                vec![(bytemuck::cast_slice_mut(codes), head_dim), (bytemuck::cast_slice_mut(scales), 4)]
            }
            Self::Int4(codes, scales) => {
                vec![(codes, head_dim.div_ceil(2)), (bytemuck::cast_slice_mut(scales), 4)]
            }
        }
    }

    fn view(&self) -> KvData<'_> {
        match self {
            Self::F32(v) => KvData::F32(v),
            Self::F16(v) => KvData::F16(v),
            Self::Int8(codes, scales) => KvData::Int8 { codes, scales },
            Self::Int4(codes, scales) => KvData::Int4 { codes, scales },
        }
    }
}

/// Keys and values of one layer of one sequence, `kv_heads x capacity x head_dim` each.
#[derive(Debug)]
pub struct CpuCache {
    k: Elements,
    v: Elements,
    spec: CacheSpec,
    /// The codes of the keys, if steps select some of them.
    index: Option<KeyIndex>,
    /// What is in a cache that evicts.
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
        let zeros = |precision| Elements::zeros(precision, spec.kv_heads * spec.capacity, spec.head_dim);
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

    /// The position in the cache of the first of the next `tokens` tokens of a sequence, which has `position` tokens. Only where
    /// positions were evicted is it another one.
    pub(super) fn admit(
        &mut self,
        cpu: &Cpu,
        spec: &AttentionSpec,
        position: usize,
        tokens: usize,
    ) -> Result<usize, CpuError> {
        let Some(retained) = &mut self.retained else { return Ok(position) };
        retained.rewind(position);
        let CacheSpec { capacity, eviction, head_dim, .. } = self.spec;
        if let Some(kept) = eviction.before(retained.used(), tokens, capacity) {
            let view = KvView { k: self.k.view(), v: self.v.view(), capacity };
            let kept = retained.choose(cpu, spec, view, eviction, kept)?;
            for (array, slot) in self.k.bytes_mut(head_dim).into_iter().chain(self.v.bytes_mut(head_dim)) {
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
    pub(super) fn store(&mut self, position: usize, k: &[f32], v: &[f32]) {
        let CacheSpec { head_dim, capacity, .. } = self.spec;
        let slot = position % capacity;
        for (head, (k, v)) in k.chunks_exact(head_dim).zip(v.chunks_exact(head_dim)).enumerate() {
            self.k.write(head * capacity + slot, k);
            self.v.write(head * capacity + slot, v);
        }
        if let Some(index) = &mut self.index {
            index.truncate(position);
        }
    }

    /// Attention of the queries of a segment, whose keys and values are stored at `position`s in the cache: to selected keys for one token, if the cache has an
    /// index, to selected blocks of keys for several, if its spec has a selection of these, else to all.
    pub(super) fn attend(
        &mut self,
        cpu: &Cpu,
        spec: &AttentionSpec,
        q: &[f32],
        segment: &Segment,
        position: usize,
        scratch: &mut KeyScratch,
        out: &mut [f32],
    ) -> Result<(), CpuError> {
        let spec = spec.within(segment.window);
        if let Some(retained) = &mut self.retained {
            retained.remember(q, spec.heads * spec.head_dim);
        }
        let view = KvView { k: self.k.view(), v: self.v.view(), capacity: self.spec.capacity };
        match &mut self.index {
            Some(index) if segment.rows.len() == 1 => {
                let selection = KeySelection { selector: self.spec.keys, index, scratch };
                cpu.attention_selected(&spec, q, position, view, selection, out)
            }
            _ => match cpu.choose_blocks(&spec, q, position, view, self.spec.prompt_keys)? {
                Some(mask) => cpu.attention_masked(&spec, q, position, view, &mask, out),
                None => cpu.attention(&spec, q, position, view, out),
            },
        }
    }

    /// For each array of the keys, then of the values: each head's positions.
    pub(super) fn save(&self, positions: usize) -> Vec<u8> {
        let CacheSpec { head_dim, capacity, .. } = self.spec;
        let mut saved = Vec::new();
        for (array, slot) in self.k.bytes(head_dim).into_iter().chain(self.v.bytes(head_dim)) {
            for head in array.chunks_exact(capacity * slot) {
                saved.extend_from_slice(&head[..positions.min(capacity) * slot]);
            }
        }
        saved
    }

    /// Reads what [`save`](Self::save) wrote.
    pub(super) fn restore(&mut self, positions: usize, saved: &[u8]) -> Result<(), NnError> {
        let CacheSpec { kv_heads, head_dim, capacity, .. } = self.spec;
        let arrays = || self.k.bytes(head_dim).into_iter().chain(self.v.bytes(head_dim));
        let expected = arrays().map(|(_, slot)| kv_heads * positions.min(capacity) * slot).sum();
        if positions > capacity || saved.len() != expected {
            return Err(NnError::SavedCache { expected, got: saved.len() });
        }
        let mut rest = saved;
        for (array, slot) in self.k.bytes_mut(head_dim).into_iter().chain(self.v.bytes_mut(head_dim)) {
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
