//! The state of one sequence: its cached keys and values and how far it is.

use crate::{Backend, CacheSpec, DecoderSpec, KvSpec, NnError};

/// One sequence of a [`Decoder`](crate::Decoder): cached keys and values of every layer.
///
/// Made by [`Decoder::sequence`](crate::Decoder::sequence).
pub struct Sequence<B: Backend> {
    /// What the backend recorded over the caches: in front of them, so that it goes first.
    pub(crate) recorded: B::Recorded,
    pub(crate) caches: Vec<B::Cache>,
    spec: KvSpec,
    len: usize,
}

impl<B: Backend> Sequence<B> {
    pub(crate) fn new(backend: &B, decoder: &DecoderSpec, spec: KvSpec) -> Result<Self, NnError> {
        spec.validate()?;
        let cache = CacheSpec {
            kv_heads: decoder.kv_heads,
            head_dim: decoder.head_dim,
            capacity: spec.capacity,
            precision: spec.precision,
        };
        let caches = (0..decoder.layers).map(|_| backend.new_cache(&cache)).collect::<Result<_, _>>()?;
        Ok(Self { recorded: B::Recorded::default(), caches, spec, len: 0 })
    }

    /// Tokens so far; the position of the next one.
    #[expect(clippy::len_without_is_empty, reason = "a length in tokens, not a collection")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// How keys and values are cached.
    pub fn spec(&self) -> &KvSpec {
        &self.spec
    }

    /// Positions that a query sees, when that is limited.
    pub fn window(&self) -> Option<usize> {
        self.spec.window
    }

    /// Most tokens that the next step may have; 0 when the sequence is full.
    pub fn max_step(&self) -> usize {
        match self.spec.window {
            Some(window) => self.spec.capacity - window + 1,
            None => self.spec.capacity - self.len,
        }
    }

    /// Forgets everything from position `len` on.
    ///
    /// # Errors
    ///
    /// [`NnError::Truncate`] when `len` is past the end, or when a rolling cache has already overwritten what
    /// the next token would see.
    pub fn truncate(&mut self, len: usize) -> Result<(), NnError> {
        let oldest = self.len.saturating_sub(self.spec.capacity);
        let first_seen = self.spec.window.map_or(0, |w| (len + 1).saturating_sub(w));
        if len > self.len || oldest > first_seen {
            return Err(NnError::Truncate { requested: len, oldest });
        }
        self.len = len;
        Ok(())
    }

    /// Checks that `tokens` more fit.
    pub(crate) fn check_step(&self, tokens: usize) -> Result<(), NnError> {
        if tokens == 0 {
            return Err(NnError::EmptyStep);
        }
        match self.spec.window {
            None if tokens > self.max_step() => Err(NnError::ContextFull {
                requested: self.len.saturating_add(tokens),
                capacity: self.spec.capacity,
            }),
            Some(_) if tokens > self.max_step() => {
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
        self.len += tokens;
    }
}
