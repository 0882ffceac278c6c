//! An open checkpoint: its configuration, its tensors under the decoder's names, its tokenizer.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
};

use trike_cpu::{FileRange, Tiles};
use trike_format::{
    FileKind, FormatError, Gguf, HfDir, Llama2c, StoredType, Tensor, TensorInfo, TensorSource, absmean_trits,
    detect,
};
use trike_hub::Hub;
use trike_nn::{KvPrecision, WeightName};
use trike_trit::{Encoding, Granularity};

use crate::{
    LlmError, ModelConfig, WeightSource, config::ROPE_FACTORS, names, sampler::GenerationConfig, sampling,
};

/// The open file behind a [`ModelFile`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Tensors {
    /// A directory with `config.json`.
    Hf(HfDir),
    /// A GGUF file.
    Gguf(Gguf),
    /// A llama2.c checkpoint.
    Llama2c(Llama2c),
}

/// A checkpoint of any format that Trike reads. Opening it reads headers only.
#[derive(Debug)]
pub struct ModelFile {
    tensors: Tensors,
    config: ModelConfig,
    /// Stored names of tensors that a directory has under another name than the checkpoint's.
    renamed: HashMap<String, String>,
}

/// Name suffixes of buffers that old checkpoints store although they follow from the configuration.
const BUFFERS: [&str; 6] = [
    "rotary_emb.inv_freq",
    "rotary_emb.original_inv_freq",
    "rotary_emb.cos_cached",
    "rotary_emb.sin_cached",
    "position_ids",
    ".masked_bias",
];

/// Whether the content of a tensor follows from the configuration, which includes GGUF's divisors of rotary frequencies.
fn is_derived(name: &str) -> bool {
    name == ROPE_FACTORS || BUFFERS.iter().any(|buffer| name.ends_with(buffer))
}

/// The stored names of tensors by the checkpoint's names, where they differ: a compiled module adds `_orig_mod` to each name below
/// it, and the decoder alone, saved without its head, has no prefix.
fn renamed(dir: &HfDir) -> HashMap<String, String> {
    let mut all = HashMap::new();
    for stored in dir.tensors().iter().map(|tensor| &tensor.name) {
        let parts: Vec<&str> = stored.split('.').filter(|part| *part != "_orig_mod").collect();
        let mut name = parts.join(".");
        if ["embed_tokens.", "layers.", "norm."].iter().any(|start| name.starts_with(start)) {
            name.insert_str(0, "model.");
        }
        // A tensor under its canonical name takes precedence; the other one is then unread, which is an error.
        if name != *stored && dir.info(&name).is_none() {
            all.entry(name).or_insert_with(|| stored.clone());
        }
    }
    all
}

impl Tensors {
    /// Opens a checkpoint of any format, without parsing its configuration.
    ///
    /// # Errors
    ///
    /// [`FormatError`] when `path` is not a checkpoint or is malformed.
    pub fn open(path: &Path) -> Result<Self, FormatError> {
        Ok(match detect(path)? {
            FileKind::HfDir => Self::Hf(HfDir::open(path)?),
            FileKind::Gguf => Self::Gguf(Gguf::open(path)?),
            FileKind::Llama2c => Self::Llama2c(Llama2c::open(path)?),
        })
    }

    /// The tensors, under the file's own names.
    pub fn source(&self) -> &dyn TensorSource {
        match self {
            Self::Hf(dir) => dir,
            Self::Gguf(file) => file,
            Self::Llama2c(file) => file,
        }
    }

    /// The generation configuration, or an empty one.
    pub(crate) fn generation_config(&self) -> Result<GenerationConfig, LlmError> {
        match self {
            Self::Hf(dir) => sampling::of_hf(dir),
            Self::Gguf(file) => sampling::of_gguf(file),
            Self::Llama2c(_) => Ok(GenerationConfig::default()),
        }
    }

    /// The name of the format, for reports.
    pub fn format(&self) -> &'static str {
        match self {
            Self::Hf(_) => "HuggingFace directory",
            Self::Gguf(_) => "GGUF",
            Self::Llama2c(_) => "llama2.c checkpoint",
        }
    }
}

impl ModelFile {
    /// Opens a model directory, a GGUF file or a llama2.c checkpoint.
    ///
    /// # Errors
    ///
    /// [`LlmError::Format`] when `path` is none of these or malformed, [`LlmError::Unsupported`] and
    /// [`LlmError::Config`] when its configuration requires something that the decoder block does not implement.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, LlmError> {
        let path = path.as_ref();
        Self::from_tensors(path, Tensors::open(path)?)
    }

    /// Opens a model by any name: a path, as [`open`](Self::open) does; `org/name[@revision][:file]` on the HuggingFace hub, which is
    /// downloaded with the feature `hub` and otherwise only searched in the cache of the hub's tools; with the feature `tiny` the
    /// bundled model, `tiny`.
    ///
    /// The environment variables of the hub's tools apply. [`Hub::find`](trike_hub::Hub::find) takes other values of them, and
    /// reports the progress of a download.
    ///
    /// # Errors
    ///
    /// [`LlmError::Hub`], and as [`open`](Self::open).
    pub fn find(name: impl AsRef<Path>) -> Result<Self, LlmError> {
        let hub = Hub::from_variables(|name| std::env::var_os(name));
        Self::open(hub.find(name.as_ref(), &mut |_, _| ())?)
    }

    pub(crate) fn from_tensors(path: &Path, tensors: Tensors) -> Result<Self, LlmError> {
        let mut config = match &tensors {
            Tensors::Hf(dir) => ModelConfig::from_hf(path, dir.config())?,
            Tensors::Gguf(file) => ModelConfig::from_gguf(file)?,
            Tensors::Llama2c(file) => ModelConfig::from_llama2c(file)?,
        };
        // As in HuggingFace's `generate`, the generation configuration takes precedence. If it cannot be read, the error is
        // reported when text is generated, not here.
        let ends = tensors.generation_config().unwrap_or_default().eos_token_id;
        if !ends.is_empty() {
            config.special.eos = ends;
        }
        let renamed = match &tensors {
            Tensors::Hf(dir) => renamed(dir),
            Tensors::Gguf(_) | Tensors::Llama2c(_) => HashMap::new(),
        };
        Ok(Self { tensors, config, renamed })
    }

    /// The file or directory.
    pub fn path(&self) -> &Path {
        self.source().path()
    }

    /// The configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The open file.
    pub fn tensors(&self) -> &Tensors {
        &self.tensors
    }

    /// The tensors, under the file's own names.
    pub fn source(&self) -> &dyn TensorSource {
        self.tensors.source()
    }

    /// The name of the format, for reports.
    pub fn format(&self) -> &'static str {
        self.tensors.format()
    }

    /// The name of a weight in the file. With a tied head, the matrix may be stored under the name of the head only. As in
    /// transformers, names may contain the `_orig_mod` of `torch.compile` and lack the prefix `model.`.
    pub fn stored_name(&self, name: WeightName) -> String {
        let Tensors::Hf(dir) = &self.tensors else {
            return match &self.tensors {
                Tensors::Gguf(_) => names::gguf(name),
                Tensors::Hf(_) | Tensors::Llama2c(_) => name.to_string(),
            };
        };
        let stored = |name: WeightName| {
            let name = name.to_string();
            self.renamed.get(&name).cloned().unwrap_or(name)
        };
        let own = stored(name);
        if name == WeightName::Embedding && self.config.spec.tied_head && dir.info(&own).is_none() {
            let head = stored(WeightName::Head);
            if dir.info(&head).is_some() {
                return head;
            }
        }
        own
    }

    /// Every weight of the decoder, in the order of a checkpoint.
    pub fn weights(&self) -> Vec<WeightName> {
        self.config.spec.weights()
    }

    /// Tensors that no layer of the configuration reads.
    pub(crate) fn unread(&self) -> Vec<&str> {
        let known: HashSet<String> = self.weights().into_iter().map(|name| self.stored_name(name)).collect();
        let names = self.source().tensors().iter().map(|tensor| tensor.name.as_str());
        names.filter(|name| !known.contains(*name) && !is_derived(name)).collect()
    }

    /// Checks that the layers of the configuration read every tensor; a duplicate of a tied head is allowed.
    pub(crate) fn check_all_read(&self) -> Result<(), LlmError> {
        let mut unread = self.unread();
        if self.config.spec.tied_head {
            unread.retain(|name| *name != self.stored_name(WeightName::Head));
        }
        if unread.is_empty() {
            return Ok(());
        }
        let mut names = unread[..unread.len().min(3)].join(", ");
        if unread.len() > 3 {
            names.push_str(", ...");
        }
        Err(LlmError::UnreadTensors { path: self.path().to_owned(), count: unread.len(), names })
    }

    /// Shape and stored type of a weight.
    ///
    /// # Errors
    ///
    /// [`FormatError::MissingTensor`].
    pub fn info(&self, name: WeightName) -> Result<&TensorInfo, LlmError> {
        let stored = self.stored_name(name);
        let missing = || {
            LlmError::from(FormatError::MissingTensor {
                path: self.path().to_owned(),
                tensor: stored.clone(),
                remedy: "the checkpoint is incomplete: download or convert it again".to_owned(),
            })
        };
        self.source().info(&stored).ok_or_else(missing)
    }

    /// Loads a weight; the master weights of a BitNet checkpoint that is ternarized at run time become trits here.
    ///
    /// # Errors
    ///
    /// When it is missing, is stored in an unsupported type, or contains invalid values.
    pub fn load(&self, name: WeightName) -> Result<Tensor, LlmError> {
        self.info(name)?;
        let tensor = self.source().load(&self.stored_name(name))?;
        match tensor {
            Tensor::Dense(master) if self.is_online_ternary(name) => {
                Ok(absmean_trits(&master, Granularity::Tensor, Encoding::TwoBit)?.into())
            }
            tensor => Ok(tensor),
        }
    }

    /// Whether a linear layer of a block is stored as trits.
    pub fn is_ternary(&self) -> bool {
        WeightSource::is_ternary(self)
    }

    /// Whether a weight is stored as floats that its layer ternarizes in every forward pass.
    pub fn is_online_ternary(&self, name: WeightName) -> bool {
        match &self.tensors {
            Tensors::Hf(dir) => dir.is_online_ternary(&self.stored_name(name)),
            Tensors::Gguf(_) | Tensors::Llama2c(_) => false,
        }
    }

    /// Whether every matrix is stored in f32.
    pub fn is_f32(&self) -> bool {
        let mut weights = self.source().tensors().iter().filter(|tensor| !is_derived(&tensor.name));
        weights.all(|tensor| tensor.kind == StoredType::F32)
    }

    /// Precision of cached keys and values unless another one is requested: f32 for a model with f32 weights, f16 for every
    /// other model.
    pub fn default_kv(&self) -> KvPrecision {
        if self.is_f32() { KvPrecision::F32 } else { KvPrecision::F16 }
    }
}

impl WeightSource for ModelFile {
    fn path(&self) -> &Path {
        self.path()
    }

    fn config(&self) -> &ModelConfig {
        self.config()
    }

    fn info(&self, name: WeightName) -> Result<&TensorInfo, LlmError> {
        self.info(name)
    }

    fn load(&self, name: WeightName) -> Result<Tensor, LlmError> {
        self.load(name)
    }

    fn tiles(&self, name: WeightName) -> Result<Option<Tiles<FileRange>>, LlmError> {
        match &self.tensors {
            Tensors::Hf(dir) => {
                self.info(name)?;
                Ok(dir.tiles(&self.stored_name(name))?)
            }
            Tensors::Gguf(_) | Tensors::Llama2c(_) => Ok(None),
        }
    }

    fn is_online_ternary(&self, name: WeightName) -> bool {
        self.is_online_ternary(name)
    }

    /// Counts all tensors of the file, including those that are not decoder weights.
    fn is_f32(&self) -> bool {
        self.is_f32()
    }
}
