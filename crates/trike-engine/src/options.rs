//! Options of an engine.

use trike_core::{Bounds, OptionError};
use trike_nn::KvPrecision;

/// Options of an [`Engine`](crate::Engine); each `with_` method changes one field of the default.
///
/// ```
/// use trike_engine::EngineOptions;
///
/// let options = EngineOptions::default().with_sequences(4).with_memory(1 << 30);
/// assert_eq!((options.sequences, options.memory, options.context), (4, Some(1 << 30), None));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineOptions {
    /// Requests that run at once; others wait. 16 by default.
    pub sequences: usize,
    /// Requests that may wait; further ones are refused. 256 by default.
    pub queue: usize,
    /// Maximum tokens of prompt and continuation; the model's context when `None`.
    pub context: Option<usize>,
    /// Bytes of keys and values; when `None`, enough for every sequence to fill its context, but at most half of the memory that is
    /// free at the start. Pages are allocated as they are needed.
    pub memory: Option<u64>,
    /// Precision of keys and values; the model's default when `None`.
    pub kv: Option<KvPrecision>,
    /// Prompt tokens of a step while texts are being generated, which wait for the step: the smaller, the more evenly their tokens
    /// come, and the slower prompts are read. 64 by default.
    pub prompt_share: usize,
    /// Whether texts that begin alike share keys and values, and later ones reuse those of earlier ones.
    pub reuse: bool,
    /// Whether the keys and values of generated text are reused, too, as the next turn of a conversation wants.
    pub reuse_generated: bool,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            sequences: 16,
            queue: 256,
            context: None,
            memory: None,
            kv: None,
            prompt_share: 64,
            reuse: true,
            reuse_generated: true,
        }
    }
}

impl EngineOptions {
    /// Sets [`sequences`](Self::sequences).
    #[must_use]
    pub fn with_sequences(self, sequences: usize) -> Self {
        Self { sequences, ..self }
    }

    /// Sets [`queue`](Self::queue).
    #[must_use]
    pub fn with_queue(self, queue: usize) -> Self {
        Self { queue, ..self }
    }

    /// Sets [`context`](Self::context).
    #[must_use]
    pub fn with_context(self, context: impl Into<Option<usize>>) -> Self {
        Self { context: context.into(), ..self }
    }

    /// Sets [`memory`](Self::memory).
    #[must_use]
    pub fn with_memory(self, memory: impl Into<Option<u64>>) -> Self {
        Self { memory: memory.into(), ..self }
    }

    /// Sets [`kv`](Self::kv).
    #[must_use]
    pub fn with_kv(self, kv: impl Into<Option<KvPrecision>>) -> Self {
        Self { kv: kv.into(), ..self }
    }

    /// Sets [`prompt_share`](Self::prompt_share).
    #[must_use]
    pub fn with_prompt_share(self, prompt_share: usize) -> Self {
        Self { prompt_share, ..self }
    }

    /// Sets [`reuse`](Self::reuse).
    #[must_use]
    pub fn with_reuse(self, reuse: bool) -> Self {
        Self { reuse, ..self }
    }

    /// Sets [`reuse_generated`](Self::reuse_generated).
    #[must_use]
    pub fn with_reuse_generated(self, reuse_generated: bool) -> Self {
        Self { reuse_generated, ..self }
    }

    /// Checks that every option is within its bounds, for a model with this context.
    ///
    /// # Errors
    ///
    /// [`OptionError`] with the option.
    pub fn validate(&self, context: usize) -> Result<(), OptionError> {
        OptionError::check("sequences", Bounds::at_least(1usize).at_most(4096), self.sequences)?;
        OptionError::check("prompt_share", Bounds::at_least(16usize).at_most(4096), self.prompt_share)?;
        if let Some(wanted) = self.context {
            OptionError::check("context", Bounds::at_least(1usize).at_most(context), wanted)?;
        }
        Ok(())
    }
}
