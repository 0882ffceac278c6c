//! Loading a checkpoint as a model.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    path::{Path, PathBuf},
};

use trike_core::{Int8Tensor, Layout};
use trike_cpu::{Cpu, FileRange, Tiles};
use trike_format::{Digest, FormatError};
use trike_nn::{
    ActivationPolicy, ActivationPrecision, Backend, CpuBackend, Decoder, DecoderWeights, KvPrecision, KvSpec,
    NnError, Tensor, WeightName,
};
use trike_trit::{Edit, TritTensor};

use crate::{LlmError, ModelConfig, ModelFile, WeightSource, tokenizer::Tokenizer};

/// Precision of the LM head (and of the embedding, when they are one matrix).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeadPrecision {
    /// Int8 for a ternary model whose head is stored in floats, otherwise as stored.
    #[default]
    Auto,
    /// As the checkpoint stores it.
    AsStored,
    /// Int8 in groups of 32, for every model.
    Int8,
}

/// Group size of an int8 head: a block of GGUF's `Q8_0`. A small group limits the effect of one large weight on the precision of
/// its neighbours.
pub(crate) const HEAD_GROUP: usize = 32;

/// Options of loading a model; each `with_` method changes one field of the default.
///
/// ```
/// use trike_llm::{HeadPrecision, LanguageModel, LoadOptions, ModelFile};
/// use trike_nn::{ActivationPrecision, Backend};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny");
/// let exact = LoadOptions::default().with_activations(ActivationPrecision::F32).with_head(HeadPrecision::AsStored);
/// let model = LanguageModel::load_with(&ModelFile::open(path)?, &exact, &mut |_, _| ())?;
/// assert_eq!(model.decoder().backend().activations(), ActivationPrecision::F32.into());
/// # Ok::<(), trike_llm::LlmError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LoadOptions {
    /// Tokenizer, as opened by [`ModelFile::tokenizer`]; `None` = the model's own, if it has one.
    pub tokenizer: Option<Tokenizer>,
    /// Threads and instruction set of the host; `None` = one thread per physical core and the best instruction set. Ignored on a GPU.
    pub cpu: Option<Cpu>,
    /// Activation precision of ternary layers; `None` = the one that the model was trained with, or
    /// [`ActivationPolicy::Int8`] if it was trained without quantized activations.
    pub activations: Option<ActivationPolicy>,
    /// Precision of the LM head.
    pub head: HeadPrecision,
    /// Layout of ternary weights, for every weight that the kernels support in it; `None` = chosen per weight.
    pub layout: Option<Layout>,
    /// KV cache of the longest planned sequence, which must fit into memory together with the weights; `None` = on a GPU the whole
    /// context, on the host not counted.
    pub sequence: Option<KvSpec>,
}

impl LoadOptions {
    /// Sets [`tokenizer`](Self::tokenizer).
    #[must_use]
    pub fn with_tokenizer(self, tokenizer: impl Into<Option<Tokenizer>>) -> Self {
        Self { tokenizer: tokenizer.into(), ..self }
    }

    /// Sets [`cpu`](Self::cpu).
    #[must_use]
    pub fn with_cpu(self, cpu: impl Into<Option<Cpu>>) -> Self {
        Self { cpu: cpu.into(), ..self }
    }

    /// Sets [`activations`](Self::activations).
    #[must_use]
    pub fn with_activations(self, activations: impl Into<ActivationPolicy>) -> Self {
        Self { activations: Some(activations.into()), ..self }
    }

    /// Sets [`head`](Self::head).
    #[must_use]
    pub fn with_head(self, head: HeadPrecision) -> Self {
        Self { head, ..self }
    }

    /// Sets [`layout`](Self::layout).
    #[must_use]
    pub fn with_layout(self, layout: impl Into<Option<Layout>>) -> Self {
        Self { layout: layout.into(), ..self }
    }

    /// Sets [`sequence`](Self::sequence).
    #[must_use]
    pub fn with_sequence(self, sequence: impl Into<Option<KvSpec>>) -> Self {
        Self { sequence: sequence.into(), ..self }
    }

    /// Activation policy for a model.
    pub(crate) fn activations_of(&self, file: &ModelFile) -> ActivationPolicy {
        let trained = file.config().family.trained_activations().map(ActivationPolicy::from);
        self.activations.or(trained).unwrap_or_default()
    }

    /// KV cache of the longest planned sequence of a model.
    pub(crate) fn sequence_of(&self, file: &ModelFile) -> KvSpec {
        let whole = || KvSpec::new(file.default_kv(), file.config().spec.context);
        self.sequence.unwrap_or_else(whole)
    }
}

impl HeadPrecision {
    /// Whether a head that is stored in floats is rounded to int8.
    pub(crate) fn rounds(self, source: &dyn WeightSource) -> bool {
        match self {
            Self::Auto => source.is_ternary(),
            Self::AsStored => false,
            Self::Int8 => true,
        }
    }
}

/// A language model: a decoder on a backend, with its tokenizer.
///
/// ```no_run
/// use trike_llm::{GenerateOptions, LanguageModel};
///
/// let model = LanguageModel::load("models/tiny")?;
/// let story = model.generate("Once upon a time", &GenerateOptions::default())?;
/// println!("{}", story.text);
/// # Ok::<(), trike_llm::LlmError>(())
/// ```
pub struct LanguageModel<B: Backend = CpuBackend> {
    decoder: Decoder<B>,
    tokenizer: Option<Tokenizer>,
    path: PathBuf,
    config: ModelConfig,
    default_kv: KvPrecision,
    activations: BTreeSet<ActivationPrecision>,
    /// Linear layers that replaced those of the source.
    replaced: HashMap<WeightName, TritTensor>,
    /// Whether the LM head was rounded to int8, and with it an embedding that is also the head.
    rounds_head: bool,
}

impl<B: Backend> LanguageModel<B> {
    /// Loads an open model onto a backend. The backend defines `cpu`, `activations` and `layout`; those of `options` are ignored.
    /// See [`load_with`](LanguageModel::load_with).
    ///
    /// # Errors
    ///
    /// As [`load_with`](LanguageModel::load_with).
    pub fn load_on(
        backend: B,
        file: &ModelFile,
        options: &LoadOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, LlmError> {
        file.check_all_read()?;
        // A tokenizer mismatch should be reported before gigabytes are loaded.
        let tokenizer = match &options.tokenizer {
            Some(tokenizer) => {
                file.check_tokenizer(tokenizer)?;
                Some(tokenizer.clone())
            }
            None => match file.tokenizer(None) {
                Ok(tokenizer) => Some(tokenizer),
                Err(LlmError::NoTokenizer { .. }) => None,
                Err(error) => return Err(error),
            },
        };
        Self::from_source(backend, file, tokenizer, options.head, progress)
    }

    /// Loads a model from any source of weights onto a backend. Without a tokenizer it runs on token ids only.
    ///
    /// # Errors
    ///
    /// Errors of the source and of the backend.
    pub fn from_source(
        backend: B,
        source: &dyn WeightSource,
        tokenizer: Option<Tokenizer>,
        head: HeadPrecision,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, LlmError> {
        let int8_head = head.rounds(source);
        let total = source.weights().len();
        let (policy, activations) = (backend.activations(), BTreeSet::new());
        let mut weights =
            SourceWeights { source, int8_head, progress, done: HashSet::new(), total, policy, activations };
        let decoder = Decoder::new(backend, source.config().spec.clone(), &mut weights);
        let decoder = decoder.map_err(|error| match error {
            NnError::Tiles { name, source: reason } => LlmError::from(FormatError::Values {
                path: source.path().to_owned(),
                tensor: name,
                found: reason.to_string(),
            }),
            error => error.into(),
        })?;
        let activations = weights.activations;
        let (path, config) = (source.path().to_owned(), source.config().clone());
        let mut model = Self::from_decoder(decoder, path, config, activations);
        model.tokenizer = tokenizer;
        model.rounds_head = int8_head;
        if source.is_f32() {
            model.default_kv = KvPrecision::F32;
        }
        Ok(model)
    }

    /// A model without a tokenizer.
    pub(crate) fn from_decoder(
        decoder: Decoder<B>,
        path: PathBuf,
        config: ModelConfig,
        activations: BTreeSet<ActivationPrecision>,
    ) -> Self {
        let halves = decoder.backend().capabilities().can_cache(KvPrecision::F16);
        let default_kv = if halves { KvPrecision::F16 } else { KvPrecision::F32 };
        Self {
            decoder,
            tokenizer: None,
            path,
            config,
            replaced: HashMap::new(),
            rounds_head: false,
            default_kv,
            activations,
        }
    }

    /// The decoder.
    pub fn decoder(&self) -> &Decoder<B> {
        &self.decoder
    }

    /// The activation precisions of the ternary layers as they were loaded; empty for a model without ternary layers.
    pub fn activations(&self) -> &BTreeSet<ActivationPrecision> {
        &self.activations
    }

    /// The decoder, mutable.
    pub(crate) fn decoder_mut(&mut self) -> &mut Decoder<B> {
        &mut self.decoder
    }

    /// The file or directory of the checkpoint.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The tokenizer.
    ///
    /// # Errors
    ///
    /// [`LlmError::NoTokenizer`] when the model was loaded without one.
    pub fn tokenizer(&self) -> Result<&Tokenizer, LlmError> {
        self.tokenizer.as_ref().ok_or_else(|| LlmError::NoTokenizer { path: self.path.clone() })
    }

    /// The tensor of a linear layer that was [replaced](Self::replace_layer) or [edited](Self::edit_layer) after the model was
    /// loaded.
    pub fn replaced_layer(&self, name: WeightName) -> Option<&TritTensor> {
        self.replaced.get(&name)
    }

    /// Replaces the tensor of a linear layer.
    ///
    /// # Errors
    ///
    /// When the shapes differ, and errors of the backend.
    pub fn replace_layer(&mut self, name: WeightName, tensor: TritTensor) -> Result<(), LlmError> {
        self.decoder.replace(name, Tensor::Ternary(tensor.clone()))?;
        self.replaced.insert(name, tensor);
        Ok(())
    }

    /// Edits trits of a linear layer. `edit` receives the tensor of [`replaced_layer`](Self::replaced_layer) or, before any edit,
    /// that of `load` (the layer as loaded from the source). It must apply all its changes or none, and returns the inverse edits,
    /// as does this function. The resident weights are changed in place if their layout supports it.
    ///
    /// # Errors
    ///
    /// Errors of `load`, `edit` and the backend; the tensor is then unchanged.
    pub fn edit_layer<E: From<LlmError>>(
        &mut self,
        name: WeightName,
        load: impl FnOnce() -> Result<TritTensor, E>,
        edit: impl FnOnce(&mut TritTensor) -> Result<Vec<Edit>, E>,
    ) -> Result<Vec<Edit>, E> {
        let kept = self.replaced.remove(&name);
        let was_kept = kept.is_some();
        let mut tensor = match kept {
            Some(tensor) => tensor,
            None => load()?,
        };
        let made = edit(&mut tensor).and_then(|undo| match self.follow(name, &mut tensor, &undo) {
            Ok(()) => Ok(undo),
            Err(error) => Err(error.into()),
        });
        if was_kept || made.is_ok() {
            self.replaced.insert(name, tensor);
        }
        made
    }

    /// Applies the changes in `tensor`, of which `undo` is the inverse, to the resident weights; on failure, reverts `tensor`.
    fn follow(&mut self, name: WeightName, tensor: &mut TritTensor, undo: &[Edit]) -> Result<(), LlmError> {
        let now = |e: &Edit| Ok(Edit { trit: tensor.get(e.plane, e.row, e.col)?, ..*e });
        let edits: Result<Vec<Edit>, NnError> = undo.iter().map(now).collect();
        if let Err(error) = edits.and_then(|edits| self.decoder.edit(name, &edits, tensor)) {
            tensor.edit(undo).map_err(NnError::from)?;
            return Err(error.into());
        }
        Ok(())
    }

    /// A digest of the layers that replaced those of the source; `None` if there are no such layers.
    pub(crate) fn replaced_digest(&self) -> Option<Digest> {
        let mut layers: Vec<_> =
            self.replaced.iter().map(|(name, tensor)| (name.to_string(), tensor)).collect();
        layers.sort_by(|(a, _), (b, _)| a.cmp(b));
        let digest = layers
            .iter()
            .fold(Digest::default(), |digest, (name, tensor)| digest.bytes(name.as_bytes()).ternary(tensor));
        (!layers.is_empty()).then_some(digest)
    }

    /// The precision of the LM head, for messages.
    pub(crate) fn head(&self) -> &'static str {
        if self.rounds_head { "int8" } else { "as stored" }
    }

    /// Precision of cached keys and values unless another one is requested: f32 for a model with f32 weights, f16 for every
    /// other model, except on a backend without f16.
    pub fn default_kv(&self) -> KvPrecision {
        self.default_kv
    }
}

/// Reads the decoder's weights from a source.
struct SourceWeights<'a> {
    source: &'a dyn WeightSource,
    int8_head: bool,
    progress: &'a mut dyn FnMut(usize, usize),
    done: HashSet<WeightName>,
    total: usize,
    policy: ActivationPolicy,
    /// Activation precisions of the ternary weights loaded so far.
    activations: BTreeSet<ActivationPrecision>,
}

impl SourceWeights<'_> {
    fn load(&mut self, name: WeightName) -> Result<Tensor, NnError> {
        let tensor = self.source.load(name).map_err(|e| load_error(name, e))?;
        self.count(name);
        Ok(tensor)
    }

    /// Reports a weight as loaded, once.
    fn count(&mut self, name: WeightName) {
        if self.done.insert(name) {
            (self.progress)(self.done.len(), self.total);
        }
    }

    /// Whether a weight is the LM head, which with a tied head is the embedding.
    fn is_head(&self, name: WeightName) -> bool {
        match name {
            WeightName::Head => true,
            WeightName::Embedding => self.source.config().spec.tied_head,
            _ => false,
        }
    }
}

fn load_error(name: WeightName, error: impl std::error::Error + Send + Sync + 'static) -> NnError {
    NnError::Load { name: name.to_string(), source: Box::new(error) }
}

impl DecoderWeights for SourceWeights<'_> {
    fn tiles(&mut self, name: WeightName) -> Result<Option<Tiles<FileRange>>, NnError> {
        let tiles = self.source.tiles(name).map_err(|e| load_error(name, e))?;
        if let Some(tiles) = &tiles {
            self.count(name);
            if let Tiles::Trits(trits) = tiles {
                self.activations.insert(self.policy.precision(trits.granularity.group()));
            }
        }
        Ok(tiles)
    }

    fn matrix(&mut self, name: WeightName) -> Result<Tensor, NnError> {
        match self.load(name)? {
            Tensor::Dense(dense) if self.int8_head && self.is_head(name) => {
                // f16 scales, as in `Q8_0`, save a twentieth of the bytes; scales of very large weights overflow f16.
                let int8 = Int8Tensor::quantize(&dense, HEAD_GROUP, true)
                    .or_else(|_| Int8Tensor::quantize(&dense, HEAD_GROUP, false));
                Ok(Tensor::Int8(int8.map_err(|e| load_error(name, e))?))
            }
            tensor => {
                if let Tensor::Ternary(ternary) = &tensor {
                    self.activations.insert(self.policy.precision(ternary.scales().granularity().group()));
                }
                Ok(tensor)
            }
        }
    }

    fn vector(&mut self, name: WeightName) -> Result<Vec<f32>, NnError> {
        Ok(self.load(name)?.into_f32())
    }
}
