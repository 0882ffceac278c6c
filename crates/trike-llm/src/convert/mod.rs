//! Lossless conversion between file formats.

mod config;

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;
use trike_core::{Layout, TileLayout};
use trike_cpu::{Isa, choose_layout};
use trike_format::{
    DenseData, DenseTensor, GgufType, GgufWriter, HfDirWriter, Int8Tensor, Tensor, exact_trits,
};
use trike_nn::{DecoderSpec, RopePairing, WeightName};
use trike_trit::Encoding;

use crate::{LlmError, ModelConfig, ModelFile, Tensors, config::ROPE_FACTORS, file::select_rows, names};

/// Target of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A GGUF file with five trits per byte.
    Tq1_0,
    /// A GGUF file with 2-bit codes in blocks of 256.
    Tq2_0,
    /// A GGUF file with 2-bit codes in blocks of 64.
    Q2_0,
    /// Trike's model directory.
    Trike,
    /// Dense FP16: a GGUF file when the path ends in `.gguf`, else a HuggingFace directory.
    F16,
}

impl Target {
    /// `tq1_0`, `tq2_0`, `q2_0`, `trike` or `f16`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tq1_0 => "tq1_0",
            Self::Tq2_0 => "tq2_0",
            Self::Q2_0 => "q2_0",
            Self::Trike => "trike",
            Self::F16 => "f16",
        }
    }
}

/// Options of a conversion.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConvertOptions {
    /// The target.
    pub target: Target,
    /// Encoding of trits in [`Target::Trike`].
    pub encoding: Encoding,
    /// Round the embedding and the LM head to int8 in groups of 32. The only option that changes values.
    pub int8_embeddings: bool,
    /// With [`Target::Trike`]: matrices in the order in which the host kernels read them, so that a load maps them instead of
    /// packing them. Trits are laid out as this machine prefers; every machine can read them.
    pub packed: bool,
    /// A tokenizer to store with the result, instead of the model's own. A GGUF file can store only a `tokenizer.json`, and
    /// a result made from a GGUF file as a GGUF file keeps its own.
    pub tokenizer: Option<PathBuf>,
}

impl ConvertOptions {
    /// Defaults: every value unchanged, trits in base 3, the model's own tokenizer.
    ///
    /// ```
    /// use trike_llm::{ConvertOptions, Target};
    ///
    /// let options = ConvertOptions::new(Target::Tq2_0).with_int8_embeddings(true);
    /// assert_eq!((options.target, options.tokenizer), (Target::Tq2_0, None));
    /// ```
    #[must_use]
    pub fn new(target: Target) -> Self {
        Self { target, encoding: Encoding::Base3, int8_embeddings: false, packed: false, tokenizer: None }
    }

    /// Sets [`encoding`](Self::encoding).
    #[must_use]
    pub fn with_encoding(self, encoding: Encoding) -> Self {
        Self { encoding, ..self }
    }

    /// Sets [`int8_embeddings`](Self::int8_embeddings).
    #[must_use]
    pub fn with_int8_embeddings(self, int8_embeddings: bool) -> Self {
        Self { int8_embeddings, ..self }
    }

    /// Sets [`packed`](Self::packed).
    #[must_use]
    pub fn with_packed(self, packed: bool) -> Self {
        Self { packed, ..self }
    }

    /// Sets [`tokenizer`](Self::tokenizer).
    #[must_use]
    pub fn with_tokenizer(self, tokenizer: impl Into<Option<PathBuf>>) -> Self {
        Self { tokenizer: tokenizer.into(), ..self }
    }
}

/// Result of a conversion. The field names are the schema of `trike convert --json`.
#[derive(Clone, Debug, Serialize)]
pub struct ConvertReport {
    /// Path read.
    pub input: String,
    /// Path written.
    pub output: String,
    /// Tensors written.
    pub tensors: usize,
    /// Bytes of the tensors read.
    pub input_bytes: u64,
    /// Bytes of all files written.
    pub output_bytes: u64,
    /// Largest change of a weight, relative to the largest magnitude in its tensor; 0 unless embeddings were rounded.
    pub largest_change: f32,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// Weights that share a scale when embeddings are rounded: a block of `Q8_0`.
const EMBEDDING_GROUP: usize = 32;

/// Files of a HuggingFace directory that belong to the model and are copied unchanged.
const AUXILIARY: [&str; 8] = [
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer.bin",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "chat_template.jinja",
];

/// Converts `input` to `output`. Every weight keeps its value, except for embeddings with
/// [`int8_embeddings`](ConvertOptions::int8_embeddings). `progress` is called with the tensors done and in total.
///
/// # Errors
///
/// [`LlmError::NotLossless`] when the target cannot represent a weight exactly or cannot store a tensor,
/// [`LlmError::ExpectedGguf`] and [`LlmError::ExpectedDirectory`] for a path that does not match the target, and errors of
/// reading and writing. An incomplete output keeps the name of a temporary file.
pub fn convert(
    input: &ModelFile,
    output: &Path,
    options: &ConvertOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<ConvertReport, LlmError> {
    let is_gguf = output.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
    let to_gguf = match options.target {
        Target::Tq1_0 | Target::Tq2_0 | Target::Q2_0 if !is_gguf => {
            return Err(LlmError::ExpectedGguf { path: output.to_owned(), target: options.target.name() });
        }
        Target::Trike if is_gguf => {
            return Err(LlmError::ExpectedDirectory {
                path: output.to_owned(),
                target: options.target.name(),
            });
        }
        _ => is_gguf,
    };
    let job = Job { input, output, options };
    job.check_nothing_is_dropped()?;
    if to_gguf { job.gguf(progress) } else { job.directory(progress) }
}

struct Job<'a> {
    input: &'a ModelFile,
    output: &'a Path,
    options: &'a ConvertOptions,
}

impl Job<'_> {
    fn not_lossless(&self, tensor: &str, reason: impl Into<String>) -> LlmError {
        LlmError::NotLossless {
            path: self.input.path().to_owned(),
            tensor: tensor.to_owned(),
            target: self.options.target.name().to_owned(),
            reason: reason.into(),
        }
    }

    /// Refuses a tensor that is not a decoder weight, which would be lost.
    fn check_nothing_is_dropped(&self) -> Result<(), LlmError> {
        let known: Vec<String> = self.input.weights().iter().map(|&w| self.input.stored_name(w)).collect();
        let tensors = self.input.source().tensors();
        // Old checkpoints store the rotary frequencies, which follow from theta; GGUF's divisors are in the spec.
        let derived = |name: &str| name.ends_with("rotary_emb.inv_freq") || name == ROPE_FACTORS;
        let lost = tensors.iter().find(|t| !known.contains(&t.name) && !derived(&t.name));
        match lost {
            None => Ok(()),
            Some(t) => Err(self.not_lossless(&t.name, "it is not a decoder weight and would be dropped")),
        }
    }

    /// Loads a weight in its target type and with the RoPE pairing `pairing`; also returns the relative rounding error.
    fn load(&self, name: WeightName, pairing: RopePairing) -> Result<(Tensor, f32), LlmError> {
        let tensor = repaired(&self.input.config().spec, name, self.input.load(name)?, pairing)?;
        let stored = self.input.stored_name(name);
        if name.is_vector() {
            return Ok((tensor, 0.0));
        }
        if self.options.target == Target::F16 {
            return Ok((self.dense(&stored, tensor)?, 0.0));
        }
        if name.is_block_matrix() {
            return Ok((self.trits(&stored, tensor)?, 0.0));
        }
        match tensor {
            Tensor::Dense(dense) if self.options.int8_embeddings => {
                let int8 = Int8Tensor::quantize(&dense, EMBEDDING_GROUP, true)?;
                let (before, after) = (dense.to_f32(), int8.dequantize());
                let largest = before.iter().fold(f32::MIN_POSITIVE, |m, v| m.max(v.abs()));
                let change = before.iter().zip(&after).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
                Ok((int8.into(), change / largest))
            }
            tensor => Ok((tensor, 0.0)),
        }
    }

    fn trits(&self, name: &str, tensor: Tensor) -> Result<Tensor, LlmError> {
        let encoding = match self.options.target {
            Target::Trike => self.options.encoding,
            Target::Tq1_0 => Encoding::Base3,
            _ => Encoding::TwoBit,
        };
        match tensor {
            Tensor::Ternary(t) => Ok(t.to_encoding(encoding)?.into()),
            Tensor::Dense(dense) => match exact_trits(&dense, encoding)? {
                Some(trits) => Ok(trits.into()),
                None => Err(self.not_lossless(
                    name,
                    "its values are not one scale times -1, 0 and 1: quantize the dense model instead",
                )),
            },
            Tensor::Int8(_) => {
                Err(self.not_lossless(name, "it is stored as int8: quantize the dense model instead"))
            }
        }
    }

    fn dense(&self, name: &str, tensor: Tensor) -> Result<Tensor, LlmError> {
        let shape = tensor.shape();
        if matches!(&tensor, Tensor::Dense(t) if matches!(t.data(), DenseData::F16(_))) {
            return Ok(tensor);
        }
        let values = tensor.into_f32();
        let halves: Vec<half::f16> = values.iter().map(|&v| half::f16::from_f32(v)).collect();
        match halves.iter().zip(&values).position(|(h, v)| h.to_f32() != *v) {
            Some(i) => {
                Err(self
                    .not_lossless(name, format!("weight {i} is {}, which is not an f16 value", values[i])))
            }
            None => Ok(DenseTensor::new(shape, DenseData::F16(halves))?.into()),
        }
    }

    fn report(
        &self,
        tensors: usize,
        largest_change: f32,
        notes: Vec<String>,
    ) -> Result<ConvertReport, LlmError> {
        let io = |source| LlmError::Io { path: self.output.to_owned(), source };
        let meta = self.output.metadata().map_err(io)?;
        let output_bytes = if meta.is_dir() {
            let entries = self.output.read_dir().map_err(io)?;
            entries.filter_map(|e| e.ok()?.metadata().ok()).map(|m| m.len()).sum()
        } else {
            meta.len()
        };
        Ok(ConvertReport {
            input: self.input.path().display().to_string(),
            output: self.output.display().to_string(),
            tensors,
            input_bytes: self.input.source().tensors().iter().map(|t| t.bytes).sum(),
            output_bytes,
            largest_change,
            notes,
        })
    }

    fn directory(&self, progress: &mut dyn FnMut(usize, usize)) -> Result<ConvertReport, LlmError> {
        let mut writer = HfDirWriter::create(self.output, self.config_json()?)?;
        let all = self.input.weights();
        let mut largest = 0f32;
        for (done, &name) in all.iter().enumerate() {
            let (tensor, change) = self.load(name, RopePairing::Halves)?;
            largest = largest.max(change);
            match tile_layout(&tensor).filter(|_| self.options.packed) {
                Some(layout) => writer.tiles(&name.to_string(), &tensor, layout)?,
                None => writer.tensor(&name.to_string(), &tensor)?,
            }
            progress(done + 1, all.len());
        }
        let notes = write_tokenizer(&writer, self.input, self.options.tokenizer.as_deref())?;
        writer.finish()?;
        self.report(all.len(), largest, notes)
    }

    fn config_json(&self) -> Result<Value, LlmError> {
        hf_config(self.input, self.input.config(), self.output).ok_or_else(|| {
            self.not_lossless(
                "the configuration",
                "HuggingFace has no equivalent configuration; keep the model as GGUF",
            )
        })
    }

    fn gguf(&self, progress: &mut dyn FnMut(usize, usize)) -> Result<ConvertReport, LlmError> {
        let mut writer = GgufWriter::create(self.output)?;
        let mut notes = Vec::new();
        match self.input.tensors() {
            Tensors::Gguf(file) => {
                // The writer sets the alignment, and the file type is that of the old file.
                let own = |key: &str| !["general.alignment", "general.file_type"].contains(&key);
                for (key, value) in file.metadata().iter().filter(|(key, _)| own(key)) {
                    writer.metadata(key, value.clone())?;
                }
            }
            Tensors::Hf(_) | Tensors::Llama2c(_) => self.gguf_metadata(&mut writer, &mut notes)?,
        }
        let all = self.input.weights();
        let mut largest = 0f32;
        let pairing = self.input.config().family.gguf_pairing();
        if let Some(factors) = config::rope_factors(&self.input.config().spec) {
            let factors = DenseTensor::new(vec![factors.len()], DenseData::F32(factors))?;
            writer.tensor(ROPE_FACTORS, &factors.into(), GgufType::F32)?;
        }
        for (done, &name) in all.iter().enumerate() {
            let (tensor, change) = self.load(name, pairing)?;
            largest = largest.max(change);
            let kind = self.gguf_type(name, &tensor)?;
            writer.tensor(&names::gguf(name), &tensor, kind)?;
            progress(done + 1, all.len());
        }
        writer.finish()?;
        self.report(all.len(), largest, notes)
    }

    fn gguf_type(&self, name: WeightName, tensor: &Tensor) -> Result<GgufType, LlmError> {
        // Other readers of GGUF support norms in f32 only, which represents every narrower float exactly.
        if name.is_vector() {
            return Ok(GgufType::F32);
        }
        match (tensor, self.options.target) {
            (Tensor::Ternary(_), Target::Tq1_0) => Ok(GgufType::Tq1_0),
            (Tensor::Ternary(_), Target::Tq2_0) => Ok(GgufType::Tq2_0),
            (Tensor::Ternary(_), Target::Q2_0) => Ok(GgufType::Q2_0G64),
            (Tensor::Ternary(_), Target::Trike | Target::F16) => {
                Err(self.not_lossless(&name.to_string(), "this target does not store trits"))
            }
            (Tensor::Int8(_), _) => Ok(GgufType::Q8_0),
            (Tensor::Dense(t), _) => Ok(match t.data() {
                DenseData::F32(_) => GgufType::F32,
                DenseData::F16(_) => GgufType::F16,
                DenseData::Bf16(_) => GgufType::Bf16,
            }),
        }
    }

    fn gguf_metadata(&self, writer: &mut GgufWriter, notes: &mut Vec<String>) -> Result<(), LlmError> {
        let special = &self.input.config().special;
        let name = self.output.file_stem().and_then(|s| s.to_str());
        for (key, value) in config::to_gguf(self.input.config(), name) {
            writer.metadata(&key, value)?;
        }
        if let Some(bos) = special.bos {
            writer.metadata("tokenizer.ggml.bos_token_id", bos)?;
        }
        if let Some(&eos) = special.eos.first() {
            writer.metadata("tokenizer.ggml.eos_token_id", eos)?;
        }
        let own = match self.input.tensors() {
            Tensors::Hf(dir) => dir.file("tokenizer.json"),
            _ => None,
        };
        match self.options.tokenizer.clone().or(own) {
            Some(path) if path.extension().is_some_and(|e| e == "json") => {
                let json = String::from_utf8(read(&path)?).map_err(|e| LlmError::Io {
                    path: path.clone(),
                    source: std::io::Error::new(std::io::ErrorKind::InvalidData, e),
                })?;
                writer.metadata("tokenizer.huggingface.json", json)?;
            }
            Some(_) | None => notes.push(NO_TOKENIZER.to_owned()),
        }
        Ok(())
    }
}

/// The layout of a tensor in tiles; `None` if it is dense, or if the fastest layout on this machine is not one of tiles.
fn tile_layout(tensor: &Tensor) -> Option<TileLayout> {
    match tensor {
        Tensor::Dense(_) => None,
        Tensor::Int8(_) => Some(TileLayout::TwoBit),
        Tensor::Ternary(tensor) => {
            let all = tensor.rows() as u64 * tensor.cols() as u64;
            let empty = |plane| tensor.sparsity(plane).is_some_and(|sparsity| sparsity.zeros() == all);
            if (0..tensor.depth()).any(empty) {
                // Kernels omit empty planes; tiles hold all.
                return None;
            }
            match choose_layout(tensor, Isa::detect()) {
                Layout::TwoBit => Some(TileLayout::TwoBit),
                Layout::Base3 => Some(TileLayout::Base3),
                Layout::Sparse | Layout::Bitmap | Layout::Blocks => None,
            }
        }
    }
}

/// The `config.json` of a directory with the weights of `file` and the configuration `config`: the file's own, or one equivalent
/// to its header; `None` when HuggingFace has no equivalent. `output` is only named in errors.
pub fn hf_config(file: &ModelFile, config: &ModelConfig, output: &Path) -> Option<Value> {
    match file.tensors() {
        Tensors::Hf(dir) => {
            let mut json = dir.config().clone();
            let tied = config.spec.tied_head;
            if tied != file.config().spec.tied_head {
                json["tie_word_embeddings"] = Value::Bool(tied);
            }
            Some(json)
        }
        Tensors::Gguf(_) | Tensors::Llama2c(_) => config::to_hf(output, config),
    }
}

/// A weight as a HuggingFace directory stores it: the rows of queries and keys are permuted when the RoPE pairing of `spec`
/// differs.
///
/// # Errors
///
/// [`LlmError::Tensor`] and [`LlmError::Trit`] when the tensor does not have the shape that `spec` requires.
pub fn hf_tensor(spec: &DecoderSpec, name: WeightName, tensor: Tensor) -> Result<Tensor, LlmError> {
    repaired(spec, name, tensor, RopePairing::Halves)
}

/// A weight with the dimensions of its heads in the RoPE pairing `pairing`.
fn repaired(
    spec: &DecoderSpec,
    name: WeightName,
    tensor: Tensor,
    pairing: RopePairing,
) -> Result<Tensor, LlmError> {
    match names::rotary_rows(name, spec, spec.rope.pairing, pairing) {
        Some(rows) => select_rows(&tensor, &rows),
        None => Ok(tensor),
    }
}

/// Writes a tokenizer (the one given or the model's own) and the model's other auxiliary files into a directory. Returns notes
/// for the user.
pub fn write_tokenizer(
    writer: &HfDirWriter,
    input: &ModelFile,
    tokenizer: Option<&Path>,
) -> Result<Vec<String>, LlmError> {
    match (tokenizer, input.tensors()) {
        (Some(path), _) => writer.write_file(tokenizer_name(path)?, &read(path)?)?,
        (None, Tensors::Hf(dir)) => {
            for path in AUXILIARY.iter().filter_map(|name| dir.file(name)) {
                writer.copy_file(path)?;
            }
        }
        (None, Tensors::Gguf(file)) => match file.str("tokenizer.huggingface.json")? {
            Some(json) => writer.write_file("tokenizer.json", json.as_bytes())?,
            None => return Ok(vec![NO_TOKENIZER.to_owned()]),
        },
        (None, Tensors::Llama2c(_)) => return Ok(vec![NO_TOKENIZER.to_owned()]),
    }
    Ok(Vec::new())
}

const NO_TOKENIZER: &str = "the result has no tokenizer: none was given or found that this format can store";

fn read(path: &Path) -> Result<Vec<u8>, LlmError> {
    std::fs::read(path).map_err(|source| LlmError::Io { path: path.to_owned(), source })
}

/// The file name of a tokenizer of this format in a model directory.
fn tokenizer_name(path: &Path) -> Result<&'static str, LlmError> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("json") => Ok("tokenizer.json"),
        Some("model") => Ok("tokenizer.model"),
        Some("bin") => Ok("tokenizer.bin"),
        _ => Err(LlmError::TokenizerFile { path: path.to_owned() }),
    }
}
