//! A loaded model on any backend.

mod choose_kv;
mod language;
mod mean;
mod needle;
mod perplexity;
mod positions;
mod tasks;

use std::{collections::BTreeMap, ops::ControlFlow, path::Path};

use trike_core::Layout;
use trike_format::Difference;
use trike_nn::{ActivationPrecision, DeviceUse, KvPrecision, KvPrecisions, KvSpec, MemoryPlan, Tuning};

use crate::{
    GenerateOptions, Generation, LlmError, ModelConfig, Pooling, Session,
    bench::{BenchOptions, BenchReport},
    tokenizer::Tokenizer,
};

pub use choose_kv::{ChooseKv, ChosenKv};
pub use needle::{
    Haystack, NeedleAnswers, NeedleDepth, NeedleFigures, NeedleOptions, NeedleScore, NeedleSetting, haystacks,
};
pub use perplexity::{
    Comparison, STORY_MARK, Score, ScoreOptions, Split, compare_ids, divergence, sequences,
};
pub use positions::PositionFigures;
pub use tasks::{Question, TaskScore, read_questions};

/// Receives pieces of new text; `Break` ends the generation.
pub type OnText<'a> = dyn FnMut(&str) -> ControlFlow<()> + 'a;

/// A loaded model on any backend, as a trait object: `Box<dyn Model>` from [`open()`](crate::open) and
/// [`Device::load`](crate::Device::load).
///
/// The required methods depend on the backend: forward passes and properties of the decoder. The provided methods
/// (prompts, perplexity, tasks) are implemented once on top of them, so that a command or a server does not depend on the
/// backend. The cost: each call is one virtual call, and the decoder itself, with its sequences, is only accessible through
/// [`LanguageModel::decoder`](crate::LanguageModel::decoder).
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

    /// Memory used on a device, or on several in sum; `None` on the host.
    fn device_use(&self) -> Option<DeviceUse>;

    /// Memory used on each device, with its name, in the order of their layers; empty on the host.
    fn device_uses(&self) -> Vec<(String, DeviceUse)>;

    /// Times the kernels for steps of so many tokens on a device, and uses the fastest from now on; without effect on the host.
    /// `progress` is called with the products measured and in total. The tables of the result are for
    /// [`Device::use_tuned`](crate::Device::use_tuned).
    ///
    /// # Errors
    ///
    /// When the device is lost or has too little memory.
    fn tune(&self, tokens: &[usize], progress: &mut dyn FnMut(usize, usize)) -> Result<Tuning, LlmError>;

    /// Bytes of all weights in the kernels' layouts.
    fn weight_bytes(&self) -> usize;

    /// The number of ternary matrices in each layout.
    fn layouts(&self) -> BTreeMap<Layout, usize>;

    /// Memory for the weights, a KV cache of `kv` and the activations of a prefill step.
    fn memory(&self, kv: &KvSpec) -> MemoryPlan;

    /// Precision of cached keys and values unless another one is requested: f32 for a model with f32 weights, f16 for
    /// every other one, except on a backend without f16.
    fn default_kv(&self) -> KvPrecision;

    /// Whether the backend can cache keys and values in this precision.
    fn can_cache(&self, kv: KvPrecision) -> bool;

    /// `wanted` if the backend can cache keys and values in that precision, else int8 instead of int4, else f16, else f32.
    fn cache_precision(&self, wanted: KvPrecision) -> KvPrecision;

    /// For each layer, the error that caching its keys and values in each of `precisions` makes:
    /// [`Decoder::cache_errors`](trike_nn::Decoder::cache_errors) against the default precision.
    ///
    /// # Errors
    ///
    /// [`LlmError::KvChoice`] unless the model runs on the CPU in one process, [`LlmError::PromptTooLong`], and errors of the decoder.
    fn cache_errors(&self, ids: &[u32], precisions: &[KvPrecision]) -> Result<Vec<Vec<f64>>, LlmError>;

    /// Chooses the precisions of the KV cache layer by layer: the smallest cache that
    /// [`ChooseKv`] finds whose KL divergence from the default precision stays within a bound, on a text that the model samples itself.
    /// The choice is the same each time. `progress` is called with the passes done and in total.
    ///
    /// ```
    /// use trike_llm::{ChooseKv, LanguageModel, Model};
    ///
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny");
    /// let model = LanguageModel::load(path)?;
    /// let chosen = model.choose_kv(&ChooseKv::default().with_kl(0.01).with_tokens(64), &mut |_, _| ())?;
    /// assert!(chosen.kl <= 0.01 && chosen.bytes_per_position <= chosen.default_bytes_per_position);
    /// # Ok::<(), trike_llm::LlmError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`cache_errors`](Self::cache_errors) and [`generate_ids`](Self::generate_ids), [`LlmError::Option`] for options out of range,
    /// and [`LlmError::NoTokenizer`].
    fn choose_kv(
        &self,
        options: &ChooseKv,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<ChosenKv, LlmError> {
        choose_kv::choose(self, options, progress)
    }

    /// Passes the logits of every token of `ids` to `on_row`, in order.
    ///
    /// # Errors
    ///
    /// [`LlmError::PromptTooLong`], [`LlmError::NonFinite`] for damaged weights, and errors of the decoder.
    fn logits(
        &self,
        ids: &[u32],
        kv: KvPrecision,
        on_row: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), LlmError> {
        self.logits_with(ids, &KvSpec::new(kv, ids.len().max(1)), on_row)
    }

    /// [`logits`](Self::logits) with a cache of `kv`. If it selects keys, the tokens are run one by one, as in a generation, else many at
    /// once.
    ///
    /// # Errors
    ///
    /// As [`logits`](Self::logits), and [`NnError`](trike_nn::NnError) for a cache that is too small or that the backend does not have.
    fn logits_with(
        &self,
        ids: &[u32],
        kv: &KvSpec,
        on_row: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), LlmError>;

    /// Reads the first `prompt` of `ids` like a prompt and runs the others one by one, as in a generation, with caches of `kv`; passes the logits of the latter to `on_row`, with their positions and in order. What `session` has of the
    /// prompt is not read again; afterwards the session has all of `ids`.
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

    /// Continues a prompt of token ids, such as a rendered conversation, until one of `ends` is sampled or a limit of `options` is
    /// reached, without reading the tokens again that the prompt and the text of `session` start with; afterwards the session has
    /// this text. Each piece of new text is passed to `on_text` as soon as it is final; the pieces joined are
    /// [`Generation::text`].
    ///
    /// # Errors
    ///
    /// [`TokenizerError::EmptyPrompt`](crate::tokenizer::TokenizerError::EmptyPrompt) for no ids, [`LlmError::PromptTooLong`],
    /// options out of range, and logits that cannot be sampled.
    fn generate_in(
        &self,
        session: &mut Session,
        prompt_ids: Vec<u32>,
        ends: &[u32],
        options: &GenerateOptions,
        on_text: &mut OnText<'_>,
    ) -> Result<Generation, LlmError>;

    /// Writes a session that this model filled to a file, which is replaced when it is complete. An empty session, or one of which
    /// positions were evicted, writes nothing.
    ///
    /// # Errors
    ///
    /// [`LlmError::Io`]; [`LlmError::SessionFile`] when the file exists and is not a saved session; errors of a backend that cannot
    /// copy its caches: only the CPU can.
    fn save_session(&self, session: &Session, path: &Path) -> Result<(), LlmError>;

    /// Reads a session that [`save_session`](Self::save_session) wrote, for texts with `options`. The inner error says in what the keys
    /// and values differ from those that this model computes: other weights, another backend, activations or selected keys.
    ///
    /// # Errors
    ///
    /// [`LlmError::Io`], [`LlmError::SessionFile`] for a file that is damaged or something else, options out of range, and errors of a
    /// backend that cannot copy its caches.
    fn load_session(
        &self,
        path: &Path,
        options: &GenerateOptions,
    ) -> Result<Result<Session, Difference>, LlmError>;

    /// An embedding of a text: its hidden states after the final norm, pooled, with a length of one.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::EmptyPrompt`](crate::tokenizer::TokenizerError::EmptyPrompt) for no ids, [`LlmError::PromptTooLong`],
    /// [`LlmError::NonFinite`] for damaged weights, and errors of the decoder.
    fn embed(&self, ids: &[u32], pooling: Pooling) -> Result<Vec<f32>, LlmError>;

    /// Measures prefill and decode. On the host, every thread count of `options` is measured, together with the machine's
    /// ceilings; on a device the thread counts are ignored. `progress` is called with the repetitions done and in total.
    ///
    /// # Errors
    ///
    /// [`LlmError::Option`] for options out of range, and errors of the decoder.
    fn bench(
        &mut self,
        options: &BenchOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<BenchReport, LlmError>;

    /// [`generate_in`](Self::generate_in) an empty session.
    ///
    /// # Errors
    ///
    /// As [`generate_in`](Self::generate_in).
    fn generate_ids(
        &self,
        prompt_ids: Vec<u32>,
        ends: &[u32],
        options: &GenerateOptions,
        on_text: &mut OnText<'_>,
    ) -> Result<Generation, LlmError> {
        self.generate_in(&mut Session::default(), prompt_ids, ends, options, on_text)
    }

    /// Continues `prompt`.
    ///
    /// # Errors
    ///
    /// As [`generate_with`](Self::generate_with).
    fn generate(&self, prompt: &str, options: &GenerateOptions) -> Result<Generation, LlmError> {
        self.generate_with(prompt, options, &mut |_| ControlFlow::Continue(()))
    }

    /// Continues `prompt` and passes each piece of new text to `on_text`.
    ///
    /// # Errors
    ///
    /// [`LlmError::NoTokenizer`], tokenizer errors for `prompt`, and as [`generate_ids`](Self::generate_ids).
    fn generate_with(
        &self,
        prompt: &str,
        options: &GenerateOptions,
        on_text: &mut OnText<'_>,
    ) -> Result<Generation, LlmError> {
        let tokenizer = self.tokenizer()?;
        self.generate_ids(tokenizer.encode_prompt(prompt)?, tokenizer.eos(), options, on_text)
    }

    /// Perplexity of `text`. `progress` is called with the sequences done and in total.
    ///
    /// # Errors
    ///
    /// [`LlmError::NothingToScore`], [`LlmError::NoTokenizer`], and as [`logits`](Self::logits).
    fn score(
        &self,
        text: &str,
        options: &ScoreOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Score, LlmError> {
        perplexity::score(self, text, options, progress)
    }

    /// [`score`](Self::score) of this model and of `base`, and the KL divergence between them, on the tokens of this model's
    /// tokenizer. Sequences are truncated to the shorter of the two contexts.
    ///
    /// # Errors
    ///
    /// [`LlmError::VocabularyMismatch`] when the vocabularies differ in size, and as [`score`](Self::score).
    fn compare(
        &self,
        base: &dyn Model,
        text: &str,
        options: &ScoreOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Comparison, LlmError> {
        perplexity::compare(self, base, text, options, progress)
    }

    /// Hides sentences of `text` in stretches of it, at several depths of the context, and measures whether the model continues their first
    /// halves, with exact attention and with the cache and the keys of `options`. `progress` is called with the prompts done and in total.
    ///
    /// ```
    /// use trike_llm::{LanguageModel, Model, NeedleOptions};
    ///
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny");
    /// let model = LanguageModel::load(path)?;
    /// let text: String = (0..60).map(|i| format!(" On day {i}, Lily saw {} birds.", i * i % 97)).collect();
    /// let options = NeedleOptions::default()
    ///     .with_context(256)
    ///     .with_haystacks(1)
    ///     .with_kv(trike_nn::KvOptions::default().with_keys(trike_nn::KeySelector::signs(16)?));
    /// let score = model.find_needles(&text, &options, &mut |_, _| ())?;
    ///
    /// let (exact, signs) = (score.all.exact, score.all.setting.expect("a setting"));
    /// assert_eq!((score.context, score.depths.len(), score.all.prompts), (256, 9, 9));
    /// assert!(signs.kept <= exact.found && exact.found <= 9);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`haystacks()`], [`LlmError::NoTokenizer`], and as [`logits_in`](Self::logits_in).
    fn find_needles(
        &self,
        text: &str,
        options: &NeedleOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<NeedleScore, LlmError> {
        needle::find(self, text, options, progress)
    }

    /// Answers multiple-choice questions by the likelihood of each choice after its context. `kv` is the precision of cached
    /// keys and values, the model's default when `None`. `progress` is called with the questions done and in total.
    ///
    /// # Errors
    ///
    /// [`LlmError::NothingToScore`] when no question fits the context, and as [`score`](Self::score).
    fn answer(
        &self,
        questions: &[Question],
        kv: Option<KvPrecisions>,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<TaskScore, LlmError> {
        tasks::answer(self, questions, kv.unwrap_or(self.default_kv().into()), progress)
    }
}
