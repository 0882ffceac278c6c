//! A text to generate, prepared before its model is loaded.

use trike_core::{Bounds, OptionError};
use trike_nn::{Eviction, KvPrecision, KvPrecisions, KvSpec};
use trike_text::constraint::Constraint;

use super::GenerateOptions;
use crate::{LlmError, LoadOptions, Model, ModelFile, fitting_context, tokenizer::Tokenizer};

/// A prompt with the options of its continuation and the KV cache that both take. Everything that can be checked without the model is
/// checked when it is made, so that a wrong request is refused before gigabytes are loaded, and the memory of its cache is planned with
/// that of the weights.
///
/// ```
/// use std::ops::ControlFlow;
/// use trike_llm::{Device, GenerateOptions, LoadOptions, ModelFile, PreparedRequest, Session};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny");
/// let file = ModelFile::open(path)?;
/// let tokenizer = file.tokenizer(None)?;
/// let ids = tokenizer.encode_prompt("Once upon a time")?;
/// let options = GenerateOptions::default().with_max_tokens(8);
/// let mut request = PreparedRequest::new(&file, &tokenizer, ids, options)?;
/// let load = LoadOptions::default().with_tokenizer(tokenizer);
/// request.fit(&file, &load)?;
/// assert_eq!(request.kv().capacity, request.ids().len() + 8);
///
/// let model = Device::cpu().load(&file, &load.with_sequence(*request.kv()), &mut |_, _| ())?;
/// let text = model.run(&mut Session::default(), &request, &mut |_| ControlFlow::Continue(()))?;
/// assert_eq!(text.ids.len(), 8);
/// # Ok::<(), trike_llm::LlmError>(())
/// ```
#[derive(Clone, Debug)]
pub struct PreparedRequest {
    pub(super) ids: Vec<u32>,
    pub(super) ends: Vec<u32>,
    pub(super) options: GenerateOptions,
    kv: KvSpec,
}

impl PreparedRequest {
    /// A request for a model that is not loaded yet. The text ends with the tokens that end one in `tokenizer`.
    ///
    /// # Errors
    ///
    /// [`LlmError::Constraint`] for an invalid grammar, [`LlmError::PromptTooLong`], and [`LlmError::Option`] for a window or a context
    /// longer than the model's.
    pub fn new(
        file: &ModelFile,
        tokenizer: &Tokenizer,
        ids: Vec<u32>,
        options: GenerateOptions,
    ) -> Result<Self, LlmError> {
        if let Some(grammar) = &options.grammar {
            Constraint::new(grammar, tokenizer, tokenizer.eos())?;
        }
        let kv = options.cache(ids.len(), file.config().spec.context, file.default_kv())?;
        Ok(Self { ids, ends: tokenizer.eos().to_vec(), options, kv })
    }

    /// A request for a loaded model; each token of `ends` ends the text.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), except that a grammar is not checked yet.
    pub fn of(
        model: &dyn Model,
        ids: Vec<u32>,
        ends: &[u32],
        options: GenerateOptions,
    ) -> Result<Self, LlmError> {
        let kv = options.cache(ids.len(), model.config().spec.context, model.default_kv())?;
        Ok(Self { ids, ends: ends.to_vec(), options, kv })
    }

    /// The tokens of the prompt.
    #[must_use]
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The options.
    #[must_use]
    pub fn options(&self) -> &GenerateOptions {
        &self.options
    }

    /// The KV cache of prompt and continuation, for [`LoadOptions::with_sequence`].
    #[must_use]
    pub fn kv(&self) -> &KvSpec {
        &self.kv
    }

    /// Caches keys and values in these precisions.
    pub fn set_precision(&mut self, precision: KvPrecisions) {
        self.options.kv.precision = Some(precision);
        self.kv.precision = precision;
    }

    /// Shortens the context to the tokens for which the host has memory beside the weights, and returns their number; `None` if the
    /// whole text fits, if its context or its window was given, or if not even the prompt fits: then loading fails with the numbers.
    ///
    /// # Errors
    ///
    /// As [`fitting_context`].
    pub fn fit(&mut self, file: &ModelFile, load: &LoadOptions) -> Result<Option<usize>, LlmError> {
        if self.options.context.is_some() || self.kv.window.is_some() {
            return Ok(None);
        }
        let fitting = fitting_context(file, load, &self.kv)?;
        if fitting >= self.kv.capacity || fitting <= self.ids.len() {
            return Ok(None);
        }
        self.options.context = Some(fitting);
        // The text ends where the cache is full.
        self.kv = self.kv.with_capacity(fitting).with_eviction(Eviction::Never);
        Ok(Some(fitting))
    }

    /// The KV cache in a model with this context and default precision.
    pub(super) fn cache(&self, context: usize, default: KvPrecision) -> Result<KvSpec, LlmError> {
        let length = self.kv.window.unwrap_or(self.kv.capacity);
        OptionError::check("context", Bounds::at_least(1usize).at_most(context), length)?;
        let precision = self.options.kv.precision.unwrap_or(default.into());
        Ok(KvSpec { precision, ..self.kv })
    }
}
