//! A checkpoint, opened: its configuration, its tensors by the names of a decoder, its tokenizer.

use std::path::{Path, PathBuf};

use trike_format::{
    DenseTensor, FileKind, FormatError, Gguf, HfDir, Int8Tensor, Llama2c, StoredType, Tensor, TensorInfo,
    TensorSource, absmean_trits, detect,
};
use trike_nn::WeightName;
use trike_trit::{Encoding, Granularity};

use crate::{LlmError, ModelConfig, WeightSource, names, text::gguf_tokenizer, tokenizer::Tokenizer};

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
}

impl Tensors {
    /// Opens whatever `path` is, without looking at its configuration.
    ///
    /// # Errors
    ///
    /// [`FormatError`] when it is no checkpoint, or a broken one.
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
    /// Opens a model directory, a GGUF file or a llama2.c checkpoint, whichever `path` is.
    ///
    /// # Errors
    ///
    /// [`LlmError::Format`] when it is none of these or broken, [`LlmError::Unsupported`] and
    /// [`LlmError::Config`] when its configuration asks for something else than the decoder block.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, LlmError> {
        let path = path.as_ref();
        Self::from_tensors(path, Tensors::open(path)?)
    }

    pub(crate) fn from_tensors(path: &Path, tensors: Tensors) -> Result<Self, LlmError> {
        let config = match &tensors {
            Tensors::Hf(dir) => ModelConfig::from_hf(path, dir.config())?,
            Tensors::Gguf(file) => ModelConfig::from_gguf(file)?,
            Tensors::Llama2c(file) => ModelConfig::from_llama2c(file)?,
        };
        Ok(Self { tensors, config })
    }

    /// The file or directory.
    pub fn path(&self) -> &Path {
        self.source().path()
    }

    /// What the checkpoint says of itself.
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

    /// The file's own name of a weight.
    pub fn stored_name(&self, name: WeightName) -> String {
        match &self.tensors {
            Tensors::Gguf(_) => names::gguf(name),
            Tensors::Hf(_) | Tensors::Llama2c(_) => name.to_string(),
        }
    }

    /// Every weight of the decoder, in the order of a checkpoint.
    pub fn weights(&self) -> Vec<WeightName> {
        names::all(&self.config.spec)
    }

    /// The entry of a weight.
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

    /// Loads a weight; the master weights of a BitNet checkpoint that is ternary only when it runs become trits here.
    ///
    /// # Errors
    ///
    /// When it is missing, stored in a type that is not read, or holds unusable numbers.
    pub fn load(&self, name: WeightName) -> Result<Tensor, LlmError> {
        self.info(name)?;
        let tensor = self.source().load(&self.stored_name(name))?;
        match tensor {
            Tensor::Dense(master) if self.ternarizes(name) => {
                Ok(absmean_trits(&master, Granularity::Tensor, Encoding::TwoBit)?.into())
            }
            tensor => Ok(tensor),
        }
    }

    /// Whether a linear layer of a block is stored as trits.
    pub fn is_ternary(&self) -> bool {
        WeightSource::is_ternary(self)
    }

    /// Whether a weight is stored as floats that its layer makes ternary each time it runs.
    pub fn ternarizes(&self, name: WeightName) -> bool {
        match &self.tensors {
            Tensors::Hf(dir) => dir.ternarizes(&self.stored_name(name)),
            Tensors::Gguf(_) | Tensors::Llama2c(_) => false,
        }
    }

    /// Whether every matrix is stored in f32.
    pub fn is_f32(&self) -> bool {
        self.source().tensors().iter().all(|t| t.kind == StoredType::F32)
    }

    /// The tokenizer at `explicit`, or the one that comes with the model.
    ///
    /// # Errors
    ///
    /// [`LlmError::NoTokenizer`] when there is none, [`LlmError::TokenizerMismatch`] when it has ids that the model
    /// lacks, and what is wrong with its file.
    pub fn tokenizer(&self, explicit: Option<&Path>) -> Result<Tokenizer, LlmError> {
        let tokenizer = match explicit {
            Some(path) => self.open_tokenizer(path)?,
            None => self.own_tokenizer()?,
        };
        let special = &self.config.special;
        let tokenizer = match (special.bos, special.eos.is_empty()) {
            (None, true) => tokenizer,
            (bos, _) => {
                let eos = if special.eos.is_empty() { tokenizer.eos().to_vec() } else { special.eos.clone() };
                let bos = bos.or(tokenizer.bos());
                tokenizer.with_special(bos, eos).map_err(|e| self.mismatch(e))?
            }
        };
        tokenizer.check_vocab(self.config.spec.vocab).map_err(|e| self.mismatch(e))?;
        Ok(tokenizer)
    }

    fn mismatch(&self, source: crate::tokenizer::TokenizerError) -> LlmError {
        LlmError::TokenizerMismatch { path: self.path().to_owned(), source }
    }

    fn open_tokenizer(&self, path: &Path) -> Result<Tokenizer, LlmError> {
        // The llama2.c form does not say how many tokens it has.
        match path.extension().and_then(|e| e.to_str()) {
            Some("bin") => Ok(Tokenizer::from_llama2c(path, self.config.spec.vocab)?),
            Some("gguf") => {
                let none = || LlmError::NoTokenizer { path: path.to_owned() };
                gguf_tokenizer(&Gguf::open(path)?)?.ok_or_else(none)
            }
            _ => Ok(Tokenizer::open(path)?),
        }
    }

    fn own_tokenizer(&self) -> Result<Tokenizer, LlmError> {
        let none = || LlmError::NoTokenizer { path: self.path().to_owned() };
        match &self.tensors {
            Tensors::Hf(dir) => {
                let path: PathBuf = ["tokenizer.json", "tokenizer.model", "tokenizer.bin"]
                    .iter()
                    .find_map(|f| dir.file(f))
                    .ok_or_else(none)?;
                self.open_tokenizer(&path)
            }
            Tensors::Gguf(file) => gguf_tokenizer(file)?.ok_or_else(none),
            Tensors::Llama2c(_) => Err(none()),
        }
    }
}

/// Rows of `tensor` in another order; the elements of a vector count as rows.
pub(crate) fn select_rows(tensor: &Tensor, rows: &[usize]) -> Result<Tensor, LlmError> {
    fn pick<T: Copy>(values: &[T], width: usize, rows: &[usize]) -> Vec<T> {
        rows.iter().flat_map(|&r| values[r * width..(r + 1) * width].iter().copied()).collect()
    }
    Ok(match tensor {
        Tensor::Ternary(t) => Tensor::Ternary(t.select_rows(rows)?),
        Tensor::Dense(t) => {
            let (width, shape) = match t.shape() {
                [_] => (1, vec![rows.len()]),
                _ => (t.cols(), vec![rows.len(), t.cols()]),
            };
            let data = match t.data() {
                trike_format::DenseData::F32(v) => trike_format::DenseData::F32(pick(v, width, rows)),
                trike_format::DenseData::F16(v) => trike_format::DenseData::F16(pick(v, width, rows)),
                trike_format::DenseData::Bf16(v) => trike_format::DenseData::Bf16(pick(v, width, rows)),
            };
            Tensor::Dense(DenseTensor::new(shape, data)?)
        }
        Tensor::Int8(t) => {
            let groups = t.groups_per_row();
            let scales = match t.scales() {
                trike_trit::ScaleValues::F16(v) => trike_trit::ScaleValues::F16(pick(v, groups, rows)),
                trike_trit::ScaleValues::F32(v) => trike_trit::ScaleValues::F32(pick(v, groups, rows)),
            };
            let codes = pick(t.codes(), t.cols(), rows);
            Tensor::Int8(Int8Tensor::new(rows.len(), t.cols(), t.group(), codes, scales)?)
        }
    })
}
