//! KV cache.

use half::f16;
use trike_cpu::{AttentionSpec, Cpu, CpuOps, KvData, KvView};

use crate::exec::check_len;
use crate::{CandleError, KvPrecision, NnError};

/// Keys and values of one attention layer, for a batch of sequences of the same length.
///
/// Position `p` is stored in slot `p % capacity`, so with a window the sequence may grow beyond the capacity. Each layer of a
/// model has its own cache.
///
/// ```
/// use trike_candle::{KvCache, KvPrecision};
///
/// // Two sequences, four heads of eight, a capacity of 128 positions.
/// let cache = KvCache::new(2, 4, 8, 128, KvPrecision::F16)?;
/// assert_eq!((cache.len(), cache.bytes()), (0, 2 * 2 * 4 * 8 * 128 * 2));
/// # Ok::<(), trike_candle::CandleError>(())
/// ```
#[derive(Clone, Debug)]
pub struct KvCache {
    batch: usize,
    kv_heads: usize,
    head_dim: usize,
    capacity: usize,
    len: usize,
    keys: Elements,
    values: Elements,
}

#[derive(Clone, Debug)]
enum Elements {
    F32(Vec<f32>),
    F16(Vec<f16>),
}

/// The error for a cache in a precision that the Candle layers and backend do not store.
pub(crate) fn unsupported(precision: KvPrecision) -> NnError {
    let rule = "must be f32 or f16 with Candle";
    NnError::Spec { field: "precision of a KV cache", rule, got: precision.name().to_owned() }
}

impl Elements {
    fn zeros(precision: KvPrecision, n: usize) -> Result<Self, NnError> {
        match precision {
            KvPrecision::F32 => Ok(Self::F32(vec![0.0; n])),
            KvPrecision::F16 => Ok(Self::F16(vec![f16::ZERO; n])),
            KvPrecision::Int8 | KvPrecision::Int4 | KvPrecision::Int8Int4 => Err(unsupported(precision)),
        }
    }

    fn write(&mut self, at: usize, values: &[f32]) {
        match self {
            Self::F32(v) => v[at..at + values.len()].copy_from_slice(values),
            Self::F16(v) => {
                for (slot, &value) in v[at..].iter_mut().zip(values) {
                    *slot = f16::from_f32(value);
                }
            }
        }
    }

    fn view(&self, at: usize, len: usize) -> KvData<'_> {
        match self {
            Self::F32(v) => KvData::F32(&v[at..at + len]),
            Self::F16(v) => KvData::F16(&v[at..at + len]),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::F32(v) => 4 * v.len(),
            Self::F16(v) => 2 * v.len(),
        }
    }
}

impl KvCache {
    /// An empty cache; all of its memory is allocated immediately.
    ///
    /// # Errors
    ///
    /// [`NnError::Spec`] when a size is zero or the product is not addressable, and for int8.
    pub fn new(
        batch: usize,
        kv_heads: usize,
        head_dim: usize,
        capacity: usize,
        precision: KvPrecision,
    ) -> Result<Self, CandleError> {
        let sizes = [batch, kv_heads, head_dim, capacity];
        let len = sizes.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
        let Some(n) = len.filter(|n| (1..=isize::MAX as usize / 4).contains(n)) else {
            let rule = "must be at least 1 each and give a cache of addressable size";
            return Err(NnError::Spec { field: "sizes of a cache", rule, got: format!("{sizes:?}") }.into());
        };
        let (keys, values) = (Elements::zeros(precision, n)?, Elements::zeros(precision, n)?);
        Ok(Self { batch, kv_heads, head_dim, capacity, len: 0, keys, values })
    }

    /// Number of positions stored so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Maximum number of positions stored at the same time.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes of keys and values.
    pub fn bytes(&self) -> usize {
        self.keys.bytes() + self.values.bytes()
    }

    /// Removes all positions; the memory stays allocated.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Checks that `tokens` more positions of `batch` sequences fit together with the positions that they attend to.
    pub(crate) fn check_room(
        &self,
        problem: &AttentionSpec,
        batch: usize,
        tokens: usize,
    ) -> Result<(), CandleError> {
        check_len("sequences of a cache", self.batch, batch)?;
        check_len("heads of a cache", self.kv_heads, problem.kv_heads)?;
        check_len("width of a cached head", self.head_dim, problem.head_dim)?;
        if tokens == 0 {
            return Err(NnError::EmptyStep.into());
        }
        let end = self.len.saturating_add(tokens);
        let needed = end - problem.span(self.len).start;
        if needed <= self.capacity {
            return Ok(());
        }
        match problem.window {
            // The first token attends to at most `window - 1` earlier positions.
            Some(window) if window <= self.capacity => Err(NnError::StepTooLong {
                requested: tokens,
                limit: self.capacity - self.len.min(window - 1),
            }
            .into()),
            _ => Err(NnError::ContextFull { requested: end, capacity: self.capacity }.into()),
        }
    }

    /// Stores the next `tokens` keys and values (`batch x tokens x kv_heads x head_dim`) and computes attention of `q`
    /// (`batch x tokens x heads x head_dim`). Requires [`check_room`](Self::check_room) first.
    pub(crate) fn step(
        &mut self,
        cpu: &Cpu,
        problem: &AttentionSpec,
        (q, k, v): (&[f32], &[f32], &[f32]),
        tokens: usize,
    ) -> Result<Vec<f32>, CandleError> {
        let Self { batch, kv_heads, head_dim, capacity, len, .. } = *self;
        for (row, (k, v)) in
            k.chunks_exact(kv_heads * head_dim).zip(v.chunks_exact(kv_heads * head_dim)).enumerate()
        {
            let (sequence, slot) = (row / tokens, (len + row % tokens) % capacity);
            for (head, (k, v)) in k.chunks_exact(head_dim).zip(v.chunks_exact(head_dim)).enumerate() {
                let at = ((sequence * kv_heads + head) * capacity + slot) * head_dim;
                self.keys.write(at, k);
                self.values.write(at, v);
            }
        }
        let mut out = vec![0.0; q.len()];
        let (step, ring) = (q.len() / batch, kv_heads * capacity * head_dim);
        for (i, (q, out)) in q.chunks_exact(step).zip(out.chunks_exact_mut(step)).enumerate() {
            let (k, v) = (self.keys.view(i * ring, ring), self.values.view(i * ring, ring));
            cpu.attention(problem, q, len, KvView { k, v, capacity }, out)?;
        }
        self.len = len + tokens;
        Ok(out)
    }
}
