//! KV cache.

use std::ops::Range;

use trike_core::{BlockBitmap, KeySelector, PromptKeys};
use trike_cpu::{AttentionSpec, Cpu, CpuOps, KeyIndex, KeyScratch, KeySelection, KvBuffer, KvView};

use crate::exec::check_len;
use crate::trits::TritRows;
use crate::{AttentionScores, CandleError, KvPrecision, NnError};

/// Each sequence has its own allocations, small compared with a cache in use.
const MOST_SEQUENCES: usize = 1 << 20;

/// Keys and values of one attention layer, for a batch of sequences of the same length.
///
/// Position `p` is stored in slot `p % capacity`, so with a window the sequence may grow beyond the capacity. Each layer of a
/// model has its own cache. A cache is exact in its precision and attends to all keys unless
/// [`with_keys`](Self::with_keys), [`with_prompt_keys`](Self::with_prompt_keys) or [`with_scores`](Self::with_scores) says otherwise.
///
/// ```
/// use trike_candle::{KeySelector, KvCache, KvPrecision};
///
/// // Two sequences, four heads of eight, a capacity of 128 positions.
/// let cache = KvCache::new(2, 4, 8, 128, KvPrecision::F16)?;
/// assert_eq!((cache.len(), cache.bytes()), (0, 2 * 2 * 4 * 8 * 128 * 2));
/// // A byte per element and a scale per head and position; nine bytes for the codes of each key.
/// let cache = KvCache::new(2, 4, 8, 128, KvPrecision::Int8)?.with_keys(KeySelector::signs(16)?)?;
/// assert_eq!(cache.bytes(), 2 * 4 * 128 * (2 * (8 + 4) + 9));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct KvCache {
    kv_heads: usize,
    head_dim: usize,
    capacity: usize,
    precision: KvPrecision,
    selector: KeySelector,
    prompt_keys: PromptKeys,
    len: usize,
    /// The first position whose slot was not overwritten.
    oldest: usize,
    /// Window of the last step.
    window: Option<usize>,
    sequences: Vec<Sequence>,
    scratch: KeyScratch,
}

/// Keys and values of one sequence.
#[derive(Clone, Debug)]
struct Sequence {
    keys: Keys,
    values: KvBuffer,
}

#[derive(Clone, Debug)]
enum Keys {
    /// With the sign codes of the keys, if there is a selector.
    Exact(KvBuffer, Option<Box<KeyIndex>>),
    /// For each head, one row per slot.
    Trits(Vec<TritRows>),
}

impl KvCache {
    /// An empty cache; all of its memory is allocated immediately.
    ///
    /// # Errors
    ///
    /// [`NnError::Spec`] when a size is zero, the product is not addressable or there are more than 1,048,576 sequences,
    /// [`NnError::Cpu`] for heads of more than 1,048,576 elements and without memory.
    pub fn new(
        batch: usize,
        kv_heads: usize,
        head_dim: usize,
        capacity: usize,
        precision: KvPrecision,
    ) -> Result<Self, CandleError> {
        let sizes = [batch, kv_heads, head_dim, capacity];
        let len = sizes.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
        if batch > MOST_SEQUENCES || !len.is_some_and(|n| (1..=isize::MAX as usize / 4).contains(&n)) {
            let rule =
                "must be at least 1 each, at most 1048576 sequences, and give a cache of addressable size";
            return Err(NnError::Spec { field: "sizes of a cache", rule, got: format!("{sizes:?}") }.into());
        }
        let sequence = || -> Result<Sequence, CandleError> {
            let buffer = |precision| KvBuffer::new(precision, kv_heads * capacity, head_dim);
            let keys = Keys::Exact(buffer(precision.key())?, None);
            Ok(Sequence { keys, values: buffer(precision.value())? })
        };
        Ok(Self {
            kv_heads,
            head_dim,
            capacity,
            precision,
            selector: KeySelector::All,
            prompt_keys: PromptKeys::All,
            len: 0,
            oldest: 0,
            window: None,
            sequences: (0..batch).map(|_| sequence()).collect::<Result<_, _>>()?,
            scratch: KeyScratch::default(),
        })
    }

    /// Sets the selector of keys for steps of one token. It is usual to use it in all layers but the first
    /// [`KeySelector::EXACT_LAYERS`]. Keys that are already cached are included.
    ///
    /// # Errors
    ///
    /// [`NnError::Cpu`] for heads of more than 1024 elements or a capacity over 32 bits, [`NnError::Spec`] for a selection among keys
    /// that are trits.
    pub fn with_keys(mut self, selector: KeySelector) -> Result<Self, CandleError> {
        let Self { kv_heads, head_dim, capacity, .. } = self;
        for sequence in &mut self.sequences {
            match &mut sequence.keys {
                Keys::Exact(_, index) => {
                    let codes = || KeyIndex::new(kv_heads, head_dim, capacity).map(Box::new);
                    *index = if selector.is_all() { None } else { Some(codes()?) };
                }
                Keys::Trits(_) if selector.is_all() => {}
                Keys::Trits(_) => return Err(not_with_trits("selector of keys", selector.name())),
            }
        }
        Ok(Self { selector, ..self })
    }

    /// Sets the block-sparse selection of keys for steps of several tokens.
    ///
    /// # Errors
    ///
    /// [`NnError::Spec`] for a selection among keys that are trits.
    pub fn with_prompt_keys(self, prompt_keys: PromptKeys) -> Result<Self, CandleError> {
        if self.scores() == AttentionScores::Popcount && !prompt_keys.is_all() {
            return Err(not_with_trits("selector of keys of prompts", "sampled"));
        }
        Ok(Self { prompt_keys, ..self })
    }

    /// Sets the scores that the cache is used with, and empties it. For [`AttentionScores::Popcount`] keys are stored in two bits
    /// per element and a scale, regardless of the precision, which applies to the values.
    ///
    /// # Errors
    ///
    /// [`NnError::Spec`] for popcount scores with a selection of keys, [`CandleError::Popcount`] for a head size that is too large
    /// for trits, and as [`new`](Self::new).
    pub fn with_scores(mut self, scores: AttentionScores) -> Result<Self, CandleError> {
        if scores == AttentionScores::Popcount && !(self.selector.is_all() && self.prompt_keys.is_all()) {
            return Err(not_with_trits("selectors of keys", "a selection"));
        }
        self.clear();
        if scores == self.scores() {
            return Ok(self);
        }
        let Self { kv_heads, head_dim, capacity, precision, .. } = self;
        let keys = || -> Result<Keys, CandleError> {
            Ok(match scores {
                AttentionScores::Exact => {
                    Keys::Exact(KvBuffer::new(precision.key(), kv_heads * capacity, head_dim)?, None)
                }
                AttentionScores::Popcount => {
                    Keys::Trits((0..kv_heads).map(|_| TritRows::new(head_dim)).collect::<Result<_, _>>()?)
                }
            })
        };
        for sequence in &mut self.sequences {
            sequence.keys = keys()?;
        }
        Ok(self)
    }

    /// The scores that the cache is made for.
    #[must_use]
    pub fn scores(&self) -> AttentionScores {
        match self.sequences.first().map(|sequence| &sequence.keys) {
            Some(Keys::Trits(_)) => AttentionScores::Popcount,
            Some(Keys::Exact(..)) | None => AttentionScores::Exact,
        }
    }

    /// The precision of the keys and values.
    #[must_use]
    pub fn precision(&self) -> KvPrecision {
        self.precision
    }

    /// Number of positions stored so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the cache is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Maximum number of positions stored at the same time.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes of keys and values, including the sign codes for selection. Keys stored as trits count only once their slot has been
    /// used.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let of_keys = |keys: &Keys| match keys {
            Keys::Exact(buffer, index) => buffer.bytes() + index.as_ref().map_or(0, |index| index.bytes()),
            Keys::Trits(heads) => heads.iter().map(TritRows::bytes).sum(),
        };
        self.sequences.iter().map(|sequence| of_keys(&sequence.keys) + sequence.values.bytes()).sum()
    }

    /// Removes all positions; the memory stays allocated.
    pub fn clear(&mut self) {
        self.forget(0);
    }

    /// Removes the positions from `len` on, for instance those of rejected tokens.
    ///
    /// # Errors
    ///
    /// [`NnError::Truncate`] for more positions than are stored, or if a position that the next token would attend to was
    /// overwritten by a later one. The cache is then unchanged.
    pub fn truncate(&mut self, len: usize) -> Result<(), CandleError> {
        let first_seen = self.window.map_or(0, |window| len.saturating_add(1).saturating_sub(window));
        // At position 0 a token attends to no earlier position.
        if len > self.len || (self.oldest > first_seen && first_seen < len) {
            return Err(NnError::Truncate { requested: len, oldest: self.oldest }.into());
        }
        self.forget(len);
        Ok(())
    }

    /// The only place that shortens the cache: sign codes are computed only once per position and must be dropped.
    fn forget(&mut self, len: usize) {
        self.len = len;
        self.oldest = self.oldest.min(len);
        for sequence in &mut self.sequences {
            if let Keys::Exact(_, Some(index)) = &mut sequence.keys {
                index.truncate(len);
            }
        }
    }

    /// Checks that `tokens` more positions of `batch` sequences fit, together with the positions that they attend to.
    pub(crate) fn check_room(
        &self,
        problem: &AttentionSpec,
        batch: usize,
        tokens: usize,
    ) -> Result<(), CandleError> {
        check_len("sequences of a cache", self.sequences.len(), batch)?;
        check_len("heads of a cache", self.kv_heads, problem.kv_heads)?;
        check_len("width of a cached head", self.head_dim, problem.head_dim)?;
        if tokens == 0 {
            return Err(NnError::EmptyStep.into());
        }
        let (start, end) = (problem.span(self.len).start, self.len.saturating_add(tokens));
        // The window is wider than in earlier steps.
        if start < self.oldest {
            return Err(NnError::Truncate { requested: self.len, oldest: self.oldest }.into());
        }
        if end - start <= self.capacity {
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

    /// Stores the next `tokens` keys and values (`batch x tokens x kv_heads x head_dim`). Requires
    /// [`check_room`](Self::check_room) first; on an error no slot has changed.
    pub(crate) fn store(
        &mut self,
        problem: &AttentionSpec,
        k: &[f32],
        v: &[f32],
        tokens: usize,
    ) -> Result<(), CandleError> {
        let Self { kv_heads, head_dim: d, capacity, len, .. } = *self;
        let step = tokens * kv_heads * d;
        // All keys are rounded before the first is stored, because one may be refused.
        let trits: Vec<TritRows> = match self.scores() {
            AttentionScores::Exact => Vec::new(),
            AttentionScores::Popcount => {
                k.chunks_exact(step).map(|k| TritRows::round("a key", k, d)).collect::<Result<_, _>>()?
            }
        };
        let parts = k.chunks_exact(step).zip(v.chunks_exact(step));
        for (i, (Sequence { keys, values }, (k, v))) in self.sequences.iter_mut().zip(parts).enumerate() {
            for (row, (k, v)) in k.chunks_exact(d).zip(v.chunks_exact(d)).enumerate() {
                let (head, slot) = (row % kv_heads, (len + row / kv_heads) % capacity);
                values.write(head * capacity + slot, v)?;
                match keys {
                    Keys::Exact(buffer, _) => buffer.write(head * capacity + slot, k)?,
                    Keys::Trits(heads) => heads[head].set(slot, &trits[i], row)?,
                }
            }
        }
        self.len = len + tokens;
        self.oldest = self.oldest.max(self.len.saturating_sub(capacity));
        self.window = problem.window;
        Ok(())
    }

    /// Attention of the queries of the last `tokens` positions (`batch x tokens x heads x head_dim`) to exact keys, restricted by
    /// the mask or by the selectors of the cache.
    pub(crate) fn attend(
        &mut self,
        cpu: &Cpu,
        problem: &AttentionSpec,
        q: &[f32],
        tokens: usize,
        mask: Option<&BlockBitmap>,
    ) -> Result<Vec<f32>, CandleError> {
        let Self { capacity, selector, prompt_keys, .. } = *self;
        let (first, mut out) = (self.len - tokens, vec![0.0; q.len()]);
        let step = tokens * problem.heads * problem.head_dim;
        let parts = q.chunks_exact(step).zip(out.chunks_exact_mut(step));
        for (Sequence { keys, values }, (q, out)) in self.sequences.iter_mut().zip(parts) {
            let Keys::Exact(buffer, index) = keys else { continue };
            let kv = KvView { k: buffer.view(), v: values.view(), capacity };
            match (mask, index) {
                (Some(mask), _) => cpu.attention_masked(problem, q, first, kv, mask, out)?,
                (None, Some(index)) if tokens == 1 => {
                    let selection = KeySelection { selector, index, scratch: &mut self.scratch };
                    cpu.attention_selected(problem, q, first, kv, selection, out)?;
                }
                _ => match cpu.choose_blocks(problem, q, first, kv, prompt_keys)? {
                    Some(mask) => cpu.attention_masked(problem, q, first, kv, &mask, out)?,
                    None => cpu.attention(problem, q, first, kv, out)?,
                },
            }
        }
        Ok(out)
    }

    /// The positions still stored.
    pub(crate) fn stored(&self) -> Range<usize> {
        self.oldest..self.len
    }

    /// The stored keys of all sequences in f32, `batch x kv_heads x positions x head_dim`; nothing if they are trits.
    pub(crate) fn keys(&self) -> Result<Vec<f32>, CandleError> {
        self.read(|sequence| match &sequence.keys {
            Keys::Exact(buffer, _) => Some(buffer),
            Keys::Trits(_) => None,
        })
    }

    /// The stored values of all sequences in f32, `batch x kv_heads x positions x head_dim`.
    pub(crate) fn values(&self) -> Result<Vec<f32>, CandleError> {
        self.read(|sequence| Some(&sequence.values))
    }

    fn read<'a>(
        &'a self,
        buffer: impl Fn(&'a Sequence) -> Option<&'a KvBuffer>,
    ) -> Result<Vec<f32>, CandleError> {
        let buffers: Vec<&KvBuffer> = self.sequences.iter().filter_map(buffer).collect();
        let mut all = vec![0.0; buffers.len() * self.kv_heads * self.stored().len() * self.head_dim];
        let slots = (0..self.kv_heads).flat_map(|head| {
            self.stored().map(move |position| head * self.capacity + position % self.capacity)
        });
        let places = buffers.into_iter().flat_map(|buffer| slots.clone().map(move |slot| (buffer, slot)));
        for ((buffer, slot), to) in places.zip(all.chunks_exact_mut(self.head_dim)) {
            buffer.read(slot, to)?;
        }
        Ok(all)
    }

    /// The keys of a sequence as trits, for each head one row per slot; empty if keys are exact.
    pub(crate) fn trits(&self, sequence: usize) -> &[TritRows] {
        match self.sequences.get(sequence).map(|sequence| &sequence.keys) {
            Some(Keys::Trits(heads)) => heads,
            Some(Keys::Exact(..)) | None => &[],
        }
    }
}

fn not_with_trits(field: &'static str, got: &str) -> CandleError {
    let rule = "must be all of them with popcount scores";
    NnError::Spec { field, rule, got: got.to_owned() }.into()
}
