//! The state of one sequence: its KV caches and its length.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::{Backend, BackendBase, DecoderSpec, Eviction, KV_PAGE, KvPage, KvSpec, NnError};

/// One sequence of a [`Decoder`](crate::Decoder): cached keys and values of every layer.
///
/// Made by [`Decoder::sequence`](crate::Decoder::sequence) and [`Decoder::sequences`](crate::Decoder::sequences).
pub struct DecoderSequence<B: Backend> {
    /// The backend's recording, which refers to the caches; declared before them, so that it is dropped first.
    pub(crate) recorded: B::Recorded,
    /// Recordings of steps of several of the sequences that were made together.
    group: Option<Group<B>>,
    pub(crate) caches: Vec<B::Cache>,
    spec: KvSpec,
    len: usize,
    /// Positions in the caches: fewer than `len` after an eviction.
    used: usize,
    /// Tokens since the last eviction, or all.
    recent: usize,
    /// The first position whose slot has not been overwritten by a later one, even if that later one was truncated.
    oldest: usize,
    id: u64,
}

/// A number unique within the process.
fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Shared by sequences that were made together.
type Group<B> = Arc<Mutex<<B as BackendBase>::Recorded>>;

/// Checks that a backend supports caches of a spec.
fn check<B: Backend>(backend: &B, decoder: &DecoderSpec, spec: &KvSpec) -> Result<(), NnError> {
    let can = backend.capabilities();
    spec.validate()?;
    spec.precision.check(decoder.layers)?;
    if !spec.precision.is_uniform() && !can.mixed {
        return Err(on_cpu_only(format!("KV caches in {}", spec.precision), backend.name()));
    }
    if let (Some(window), true) = (decoder.window, spec.eviction != Eviction::Never) {
        let rule = "of the model must not be set for a cache that evicts";
        return Err(NnError::Spec { field: "window", rule, got: window.to_string() });
    }
    let missing = if !spec.keys.is_all() && !can.select {
        spec.keys.name()
    } else if !spec.prompt_keys.is_all() && !can.select_prompt {
        "a sample of the prompt"
    } else if spec.eviction != Eviction::Never && !can.evict {
        "eviction"
    } else {
        return Ok(());
    };
    Err(on_cpu_only(format!("selection of keys by {missing}"), backend.name()))
}

fn on_cpu_only(what: String, backend: String) -> NnError {
    NnError::Unsupported { what, backend, remedy: "only the CPU has it" }
}

impl<B: Backend> DecoderSequence<B> {
    pub(crate) fn new(backend: &B, decoder: &DecoderSpec, spec: KvSpec) -> Result<Self, NnError> {
        check(backend, decoder, &spec)?;
        let cache = |layer| backend.stage(backend.stage_of(layer)).new_cache(&spec.cache(decoder, layer));
        let caches = (0..decoder.layers).map(cache).collect::<Result<_, _>>()?;
        let recorded = B::Recorded::default();
        let (len, used, recent, oldest) = (0, 0, 0, 0);
        Ok(Self { recorded, group: None, caches, spec, len, used, recent, oldest, id: next_id() })
    }

    /// A sequence whose caches are in pages.
    pub(crate) fn paged(backend: &B, decoder: &DecoderSpec, spec: KvSpec) -> Result<Self, NnError> {
        check(backend, decoder, &spec)?;
        let fail = |field, rule, got: String| Err(NnError::Spec { field, rule, got });
        match spec.window {
            Some(window) => {
                return fail("window", "must not be set for a cache in pages", window.to_string());
            }
            None if spec.eviction != Eviction::Never => {
                return fail(
                    "eviction",
                    "must not be set for a cache in pages",
                    spec.eviction.name().to_owned(),
                );
            }
            None if !spec.keys.is_all() || !spec.prompt_keys.is_all() => {
                let got = if spec.keys.is_all() { "a sample of the prompt" } else { spec.keys.name() };
                return fail("keys", "must be all for a cache in pages", got.to_owned());
            }
            None => {}
        }
        let cache =
            |layer| backend.stage(backend.stage_of(layer)).new_paged_cache(&spec.cache(decoder, layer));
        let caches = (0..decoder.layers).map(cache).collect::<Result<_, _>>()?;
        let recorded = B::Recorded::default();
        let (len, used, recent, oldest) = (0, 0, 0, 0);
        Ok(Self { recorded, group: None, caches, spec, len, used, recent, oldest, id: next_id() })
    }

    /// References to the pages with the first `positions` positions of a [paged](crate::Decoder::paged_sequence) sequence.
    ///
    /// # Errors
    ///
    /// [`NnError::Unsupported`] for a sequence that is not in pages, [`NnError::Truncate`] for more positions than it has.
    pub fn pages(&self, backend: &B, positions: usize) -> Result<Vec<KvPage>, NnError> {
        if positions > self.len {
            return Err(NnError::Truncate { requested: positions, oldest: self.oldest });
        }
        let of_layer = |(layer, cache): (usize, &B::Cache)| {
            backend.stage(backend.stage_of(layer)).cache_pages(cache, positions)
        };
        let layers = self.caches.iter().enumerate().map(of_layer).collect::<Result<Vec<_>, _>>()?;
        let page = |page: usize| KvPage { layers: layers.iter().map(|pages| pages[page].clone()).collect() };
        Ok((0..positions.div_ceil(KV_PAGE)).map(page).collect())
    }

    /// Makes an empty [paged](crate::Decoder::paged_sequence) sequence one of `len` tokens, whose keys and values are in `pages` of
    /// other sequences of the same decoder and precision. Nothing is copied until one of them writes to a shared page.
    ///
    /// # Errors
    ///
    /// [`NnError::ContextFull`] when they do not fit, [`NnError::Spec`] for a sequence with tokens or another number of pages or layers,
    /// [`NnError::Unsupported`] for one that is not in pages, or for pages of another shape; the sequence is then unusable.
    pub fn adopt(&mut self, backend: &B, pages: &[KvPage], len: usize) -> Result<(), NnError> {
        let fail = |field, rule, got: usize| Err(NnError::Spec { field, rule, got: got.to_string() });
        if self.len > 0 {
            return fail("length", "must be 0 to adopt pages", self.len);
        }
        self.check_step(len)?;
        if len.div_ceil(KV_PAGE) != pages.len() {
            return fail("pages", "must hold the positions and no more", pages.len());
        }
        if let Some(page) = pages.iter().find(|page| page.layers.len() != self.caches.len()) {
            return fail("layers", "must be those of the decoder", page.layers.len());
        }
        for (layer, cache) in self.caches.iter_mut().enumerate() {
            let pages: Vec<_> = pages.iter().map(|page| page.layers[layer].clone()).collect();
            backend.stage(backend.stage_of(layer)).adopt_pages(cache, &pages)?;
        }
        (self.len, self.used, self.recent) = (len, len, len);
        Ok(())
    }

    /// `count` sequences whose caches are made together.
    pub(crate) fn several(
        backend: &B,
        decoder: &DecoderSpec,
        spec: KvSpec,
        count: usize,
    ) -> Result<Vec<Self>, NnError> {
        check(backend, decoder, &spec)?;
        let group = Group::<B>::default();
        let empty = || Self {
            recorded: B::Recorded::default(),
            group: Some(Arc::clone(&group)),
            caches: Vec::new(),
            spec,
            len: 0,
            used: 0,
            recent: 0,
            oldest: 0,
            id: next_id(),
        };
        let mut sequences: Vec<Self> = (0..count).map(|_| empty()).collect();
        for layer in 0..decoder.layers {
            let stage = backend.stage(backend.stage_of(layer));
            for (sequence, cache) in
                sequences.iter_mut().zip(stage.new_caches(&spec.cache(decoder, layer), count)?)
            {
                sequence.caches.push(cache);
            }
        }
        Ok(sequences)
    }

    /// The group of all `sequences`, if they were made together.
    pub(crate) fn group<'s>(mut sequences: impl Iterator<Item = &'s Self>) -> Option<Group<B>>
    where
        B: 's,
    {
        let first = sequences.next()?.group.as_ref()?;
        let same = |of: &Self| of.group.as_ref().is_some_and(|group| Arc::ptr_eq(group, first));
        sequences.all(same).then(|| Arc::clone(first))
    }

    /// Number of tokens, which is also the position of the next token.
    #[expect(clippy::len_without_is_empty, reason = "a length in tokens, not a collection")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Positions that were evicted.
    pub fn evicted(&self) -> usize {
        self.len - self.used
    }

    /// A number unique within the process.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Configuration of the KV cache.
    pub fn spec(&self) -> &KvSpec {
        &self.spec
    }

    /// Positions that a query attends to; `None` = all.
    pub fn window(&self) -> Option<usize> {
        self.spec.window
    }

    /// Maximum number of tokens of the next step; 0 when the sequence is full.
    pub fn max_step(&self) -> usize {
        match self.spec.window {
            Some(window) => self.spec.capacity - window + 1,
            None if self.spec.eviction == Eviction::Never => self.spec.capacity - self.len,
            // The remaining capacity, or the capacity freed by an eviction.
            None => {
                (self.spec.capacity - self.used).max(self.spec.capacity - Eviction::kept(self.spec.capacity))
            }
        }
    }

    /// Removes all tokens from position `len` on.
    ///
    /// # Errors
    ///
    /// [`NnError::Truncate`] when `len` is past the end, or when a rolling cache has already overwritten positions that
    /// the next token would attend to, or when positions were evicted since.
    pub fn truncate(&mut self, len: usize) -> Result<(), NnError> {
        if self.spec.eviction != Eviction::Never {
            let gone = self.len.checked_sub(len).filter(|gone| *gone <= self.recent);
            let gone = gone.ok_or(NnError::Truncate { requested: len, oldest: self.len - self.recent })?;
            (self.len, self.used, self.recent) = (len, self.used - gone, self.recent - gone);
            return Ok(());
        }
        let first_seen = self.spec.window.map_or(0, |w| len.saturating_add(1).saturating_sub(w));
        if len > self.len || self.oldest > first_seen {
            return Err(NnError::Truncate { requested: len, oldest: self.oldest });
        }
        (self.len, self.used) = (len, len);
        Ok(())
    }

    /// The keys and values of all tokens so far, layer by layer, for [`restore`](Self::restore).
    ///
    /// # Errors
    ///
    /// As [`BackendCaches::save_cache`](crate::BackendCaches::save_cache); [`NnError::Spec`] when positions were evicted.
    pub fn save(&self, backend: &B) -> Result<Vec<Vec<u8>>, NnError> {
        if self.used < self.len && self.spec.eviction != Eviction::Never {
            let (rule, got) = ("must not have evicted any to be saved", (self.len - self.used).to_string());
            return Err(NnError::Spec { field: "positions of a sequence", rule, got });
        }
        let stage = |layer| backend.stage(backend.stage_of(layer));
        let of_layers = self.caches.iter().enumerate();
        of_layers.map(|(layer, cache)| stage(layer).save_cache(cache, self.len)).collect()
    }

    /// Makes an empty sequence one of `len` tokens, whose keys and values were saved from a sequence of the same decoder with the
    /// same precision.
    ///
    /// # Errors
    ///
    /// [`NnError::ContextFull`] when they do not fit, [`NnError::Spec`] for a rolling cache, a sequence with tokens, or another number
    /// of layers, and as [`BackendCaches::restore_cache`](crate::BackendCaches::restore_cache); the sequence is then unusable.
    pub fn restore(&mut self, backend: &B, len: usize, layers: &[&[u8]]) -> Result<(), NnError> {
        let fail = |field, rule, got: usize| Err(NnError::Spec { field, rule, got: got.to_string() });
        match self.spec.window {
            Some(window) => return fail("window", "must not be set to restore a sequence", window),
            None if self.len > 0 => return fail("length", "must be 0 to restore a sequence", self.len),
            None if layers.len() != self.caches.len() => {
                return fail("layers", "must be those of the decoder", layers.len());
            }
            None => self.check_step(len)?,
        }
        for (layer, (cache, saved)) in self.caches.iter_mut().zip(layers).enumerate() {
            backend.stage(backend.stage_of(layer)).restore_cache(cache, len, saved)?;
        }
        (self.len, self.used, self.recent) = (len, len, len);
        Ok(())
    }

    /// Checks that the cache has space for `tokens` more tokens.
    pub(crate) fn check_step(&self, tokens: usize) -> Result<(), NnError> {
        if tokens == 0 {
            return Err(NnError::EmptyStep);
        }
        match self.spec.window {
            None if self.spec.eviction == Eviction::Never && tokens > self.max_step() => {
                Err(NnError::ContextFull {
                    requested: self.len.saturating_add(tokens),
                    capacity: self.spec.capacity,
                })
            }
            _ if tokens > self.max_step() => {
                Err(NnError::StepTooLong { requested: tokens, limit: self.max_step() })
            }
            // Positions are u32 in the rotary embedding.
            _ if self.len.saturating_add(tokens) > u32::MAX as usize => Err(NnError::ContextFull {
                requested: self.len.saturating_add(tokens),
                capacity: u32::MAX as usize,
            }),
            _ => Ok(()),
        }
    }

    pub(crate) fn advance(&mut self, tokens: usize) {
        if let Some(kept) = self.spec.eviction.before(self.used, tokens, self.spec.capacity) {
            (self.used, self.recent) = (kept, 0);
        }
        self.len += tokens;
        self.used += tokens;
        self.recent += tokens;
        self.oldest = self.oldest.max(self.len.saturating_sub(self.spec.capacity));
    }
}

#[cfg(test)]
mod tests {
    use trike_cpu::{ActivationPrecision, Cpu};

    use super::*;
    use crate::{CpuBackend, KvPrecision};

    /// Overwritten positions stay lost when the overwriting tokens are truncated.
    #[test]
    fn a_rolling_sequence_is_not_truncated_twice_into_what_is_lost() {
        let backend = CpuBackend::new(Cpu::new(1).unwrap(), ActivationPrecision::F32);
        let spec = KvSpec::rolling(KvPrecision::F32, 4, 5);
        let mut sequence = DecoderSequence::new(&backend, &DecoderSpec::llama(8, 1, 1, 10), spec).unwrap();
        (0..4).for_each(|_| sequence.advance(5));
        // A capacity of 8: positions 12 to 19 are there, and the token at 15 attends to 12 and later ones.
        let refused = |sequence: &mut DecoderSequence<CpuBackend>, len| {
            let error = sequence.truncate(len).unwrap_err();
            assert!(matches!(error, NnError::Truncate { requested, oldest: 12 } if requested == len));
        };
        refused(&mut sequence, 14);
        refused(&mut sequence, usize::MAX);
        sequence.truncate(15).unwrap();
        refused(&mut sequence, 12);
        sequence.advance(1);
        refused(&mut sequence, 14);
        sequence.truncate(16).unwrap();
        assert_eq!(sequence.len(), 16);
    }
}
