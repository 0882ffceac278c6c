//! A loaded model on any backend.

mod batch;
mod chat;
mod language;

use std::{collections::BTreeMap, ops::ControlFlow, path::Path};

use trike_core::Layout;
use trike_format::Difference;
use trike_nn::{
    ActivationPrecision, CacheCapabilities, CpuBackend, DeviceUse, KernelTuning, KvPrecision, KvSpec,
    MemoryPlan,
};

use crate::{
    GenerateOptions, Generation, LanguageModel, LlmError, ModelConfig, OnText, Pooling, PreparedRequest,
    Session, tokenizer::Tokenizer,
};

pub use batch::{DecoderBatch, SequenceBatch};
pub use chat::Chat;

/// A loaded model on any backend, as a trait object: `Box<dyn Model>` from [`open()`](crate::open) and
/// [`Device::load`](crate::Device::load).
///
/// Its methods are those that depend on the backend: properties of the decoder, forward passes, generation, sessions, embeddings.
/// Everything built on them, from continuing a text to the measurements of `trike-eval`, is written once over `&dyn Model`, so that
/// a command or a server does not depend on the backend. The cost: each call is virtual, and the decoder itself, with its
/// sequences, is only accessible through [`LanguageModel::decoder`].
///
/// ```
/// use trike_llm::{DeviceChoice, GenerateOptions, Model, open};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny");
/// let model: Box<dyn Model> = open(path, &DeviceChoice::Cpu)?;
/// let story = model.generate("Once upon a time", &GenerateOptions::default().with_max_tokens(8))?;
/// assert_eq!(story.ids.len(), 8);
/// assert!(model.memory(&trike_nn::KvSpec::new(model.default_kv(), 256)).total() > model.weight_bytes() as u64);
/// # Ok::<(), trike_llm::LlmError>(())
/// ```
pub trait Model {
    /// The file or directory of the checkpoint; a short description for a model without one.
    fn path(&self) -> &Path;

    /// The configuration: family, sizes, special tokens.
    fn config(&self) -> &ModelConfig;

    /// The tokenizer.
    ///
    /// # Errors
    ///
    /// [`LlmError::NoTokenizer`] when the model was loaded without one.
    fn tokenizer(&self) -> Result<&Tokenizer, LlmError>;

    /// The name of the backend, with its device or instruction set.
    fn backend(&self) -> String;

    /// The activation precisions of the ternary layers; empty for a model without ternary layers.
    fn activations(&self) -> Vec<ActivationPrecision>;

    /// Memory used on each device, with its name, in the order of their layers; empty on the host.
    fn device_uses(&self) -> Vec<(String, DeviceUse)>;

    /// Autotunes the matmul kernels of a device for steps of each of `tokens` tokens; without effect on the host. `progress` is
    /// called with the number of products measured so far and in total. The tables of the result are for
    /// [`Device::use_tuned`](crate::Device::use_tuned).
    ///
    /// # Errors
    ///
    /// When the device is lost or has too little memory.
    fn tune(
        &self,
        tokens: &[usize],
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<KernelTuning, LlmError>;

    /// The number of ternary matrices in each layout.
    fn layouts(&self) -> BTreeMap<Layout, usize>;

    /// Memory for the weights, a KV cache of `kv` and the activations of a prefill step.
    fn memory(&self, kv: &KvSpec) -> MemoryPlan;

    /// Precision of cached keys and values unless another one is requested: f32 for a model with f32 weights, f16 for
    /// every other one, except on a backend without f16.
    fn default_kv(&self) -> KvPrecision;

    /// Capabilities of the backend's KV caches.
    fn capabilities(&self) -> CacheCapabilities;

    /// The concrete model if it runs on the CPU in one process: for features of the CPU only, such as errors of single layers.
    fn host(&self) -> Option<&LanguageModel<CpuBackend>>;

    /// [`host`](Self::host), mutable.
    fn host_mut(&mut self) -> Option<&mut LanguageModel<CpuBackend>>;

    /// `count` empty sequences with caches of `kv` that are stepped together, in pages where the backend has them.
    ///
    /// # Errors
    ///
    /// Errors of the decoder, such as a cache that the backend does not support.
    fn batch(&self, kv: &KvSpec, count: usize) -> Result<Box<dyn SequenceBatch + '_>, LlmError>;

    /// Passes the logits of every token of `ids` to `on_row`, in order, with a cache of `kv`. With key selection, the tokens are
    /// run one by one, as in decoding, otherwise in prefill steps.
    ///
    /// # Errors
    ///
    /// [`LlmError::PromptTooLong`], [`LlmError::NonFinite`] for damaged weights, errors of the decoder, and
    /// [`NnError`](trike_nn::NnError) for a cache that is too small or that the backend does not support.
    fn logits_with(
        &self,
        ids: &[u32],
        kv: &KvSpec,
        on_row: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), LlmError>;

    /// Prefills the first `prompt` of `ids`, decodes the rest token by token with caches of `kv`, and calls `on_row` with the
    /// positions and logits of the latter in order. The part of the prompt in `session` is reused; afterwards the session has all
    /// of `ids`.
    ///
    /// # Errors
    ///
    /// As [`logits_with`](Self::logits_with); after an error the session is empty.
    fn logits_in(
        &self,
        session: &mut Session,
        ids: &[u32],
        prompt: usize,
        kv: &KvSpec,
        on_row: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), LlmError>;

    /// Continues the prompt of a request until one of its end tokens is sampled or a limit of its options is reached, reusing the
    /// common prefix of the prompt and the text of `session`; afterwards the session has this text. Each piece of new text is
    /// passed to `on_text` as soon as it is final; the pieces joined are [`Generation::text`].
    ///
    /// # Errors
    ///
    /// [`TokenizerError::EmptyPrompt`](crate::tokenizer::TokenizerError::EmptyPrompt) for no ids, options out of range, and logits that
    /// cannot be sampled.
    fn run(
        &self,
        session: &mut Session,
        request: &PreparedRequest,
        on_text: &mut OnText<'_>,
    ) -> Result<Generation, LlmError>;

    /// Writes a session that this model filled to a file, which is replaced atomically. An empty session, or one with evicted
    /// positions, is not written.
    ///
    /// # Errors
    ///
    /// [`LlmError::Io`]; [`LlmError::SessionFile`] when the file exists and is not a saved session; an error on every backend but
    /// the CPU, since others cannot copy their caches.
    fn save_session(&self, session: &Session, path: &Path) -> Result<(), LlmError>;

    /// Reads a session that [`save_session`](Self::save_session) wrote, for texts with `options`. The inner error names the setting
    /// that differs from this model's: other weights, another backend, activations or selected keys.
    ///
    /// # Errors
    ///
    /// [`LlmError::Io`], [`LlmError::SessionFile`] for a file that is corrupt or not a session, options out of range, and errors of
    /// a backend that cannot copy its caches.
    fn load_session(
        &self,
        path: &Path,
        options: &GenerateOptions,
    ) -> Result<Result<Session, Difference>, LlmError>;

    /// The embedding of a text: its hidden states after the final norm, pooled and normalized to unit length.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::EmptyPrompt`](crate::tokenizer::TokenizerError::EmptyPrompt) for no ids, [`LlmError::PromptTooLong`],
    /// [`LlmError::NonFinite`] for damaged weights, and errors of the decoder.
    fn embed(&self, ids: &[u32], pooling: Pooling) -> Result<Vec<f32>, LlmError>;
}

/// Functions built on the trait's methods.
impl dyn Model + '_ {
    /// [`run`](Model::run) for a request of token ids, such as a rendered conversation; each token of `ends` ends the text.
    ///
    /// # Errors
    ///
    /// [`LlmError::PromptTooLong`], options out of range, and as [`run`](Model::run).
    pub fn generate_in(
        &self,
        session: &mut Session,
        prompt_ids: Vec<u32>,
        ends: &[u32],
        options: &GenerateOptions,
        on_text: &mut OnText<'_>,
    ) -> Result<Generation, LlmError> {
        self.run(session, &PreparedRequest::of(self, prompt_ids, ends, options.clone())?, on_text)
    }

    /// Bytes of all weights in the kernels' layouts.
    #[must_use]
    pub fn weight_bytes(&self) -> usize {
        self.memory(&KvSpec::new(self.default_kv(), 1)).weights as usize
    }

    /// Memory used on the device, or on all devices together; `None` on the host.
    #[must_use]
    pub fn device_use(&self) -> Option<DeviceUse> {
        self.device_uses().into_iter().map(|(_, used)| used).reduce(DeviceUse::plus)
    }

    /// Continues `prompt`.
    ///
    /// # Errors
    ///
    /// As `generate_with`.
    pub fn generate(&self, prompt: &str, options: &GenerateOptions) -> Result<Generation, LlmError> {
        self.generate_with(prompt, options, &mut |_| ControlFlow::Continue(()))
    }

    /// Continues `prompt` and passes each piece of new text to `on_text`.
    ///
    /// # Errors
    ///
    /// [`LlmError::NoTokenizer`], tokenizer errors for `prompt`, and as `generate_in`.
    pub fn generate_with(
        &self,
        prompt: &str,
        options: &GenerateOptions,
        on_text: &mut OnText<'_>,
    ) -> Result<Generation, LlmError> {
        let tokenizer = self.tokenizer()?;
        let ids = tokenizer.encode_prompt(prompt)?;
        self.generate_in(&mut Session::default(), ids, tokenizer.eos(), options, on_text)
    }
}

impl PreparedRequest {
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
}
