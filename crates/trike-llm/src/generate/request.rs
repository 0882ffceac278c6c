//! A generation request, prepared before its model is loaded.

use trike_core::{Bounds, OptionError};
use trike_nn::{KvPrecision, KvPrecisions, KvSpec};
use trike_text::constraint::Constraint;

use super::GenerateOptions;
use crate::{LlmError, ModelFile, tokenizer::Tokenizer};

/// A prompt with the options of its continuation and their KV cache. All checks that do not need the model are made on
/// construction, so that an invalid request is refused before gigabytes are loaded, and the cache is included in the memory plan of
/// the weights.
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
    pub(crate) ids: Vec<u32>,
    pub(crate) ends: Vec<u32>,
    pub(crate) options: GenerateOptions,
    pub(crate) kv: KvSpec,
}

impl PreparedRequest {
    /// A request for a model that is not loaded yet. The end-of-text tokens are those of `tokenizer`.
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

    /// The KV cache of prompt and continuation, for [`LoadOptions::with_sequence`](crate::LoadOptions::with_sequence).
    #[must_use]
    pub fn kv(&self) -> &KvSpec {
        &self.kv
    }

    /// Caches keys and values in these precisions.
    pub fn set_precision(&mut self, precision: KvPrecisions) {
        self.options.kv.precision = Some(precision);
        self.kv.precision = precision;
    }

    /// The KV cache in a model with this context and default precision.
    pub(super) fn cache(&self, context: usize, default: KvPrecision) -> Result<KvSpec, LlmError> {
        let length = self.kv.window.unwrap_or(self.kv.capacity);
        OptionError::check("context", Bounds::at_least(1usize).at_most(context), length)?;
        let precision = self.options.kv.precision.unwrap_or(default.into());
        Ok(KvSpec { precision, ..self.kv })
    }
}
