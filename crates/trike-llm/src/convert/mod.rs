//! Lossless conversion between file formats.

mod config;
mod text;

pub use text::{write_tokenizer, write_tokenizer_file};

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;
use trike_core::{Layout, TileLayout};
use trike_cpu::{Isa, choose_layout};
use trike_format::{
    Claim, DenseData, DenseTensor, GgufType, GgufWriter, HfDirWriter, Int8Tensor, StoredType, Tensor,
    exact_trits,
};
use trike_nn::{DecoderSpec, RopePairing, RopeScaling, WeightName};
use trike_trit::{Encoding, ScaleValues, Scales};

use crate::{LlmError, ModelConfig, ModelFile, Tensors, config::ROPE_FACTORS, names};

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

/// Storage of the embedding and the LM head of a converted model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EmbeddingStorage {
    /// As in the input.
    #[default]
    Stored,
    /// Rounded to int8 in groups of 32 with f16 scales, `Q8_0` in GGUF.
    Int8,
    /// Rounded to f16.
    F16,
}

/// Storage of the scales of trits in a converted model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScaleStorage {
    /// As in the input.
    #[default]
    Stored,
    /// Rounded to f16, as the ternary types of GGUF require; trained weights have f32 scales.
    F16,
}

/// Options of a conversion.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConvertOptions {
    /// The target.
    pub target: Target,
    /// Encoding of trits in [`Target::Trike`].
    pub encoding: Encoding,
    /// Storage of the embedding and the LM head.
    pub embeddings: EmbeddingStorage,
    /// Storage of scales. This and [`embeddings`](Self::embeddings) are the only options that change values.
    pub scales: ScaleStorage,
    /// With [`Target::Trike`]: matrices in the layout of the host kernels, so that loading maps them without repacking. Trits are
    /// in the fastest layout for this machine; every machine can read them.
    pub packed: bool,
    /// A tokenizer to store with the result instead of the model's own: a file of any format, or a directory that contains one.
    pub tokenizer: Option<PathBuf>,
    /// Refuse a conversion that leaves anything out, instead of reporting it in a note.
    pub strict: bool,
}

impl ConvertOptions {
    /// Defaults: every value unchanged, trits in base 3, the model's own tokenizer.
    ///
    /// ```
    /// use trike_llm::{ConvertOptions, EmbeddingStorage, Target};
    ///
    /// let options = ConvertOptions::new(Target::Tq2_0).with_embeddings(EmbeddingStorage::Int8);
    /// assert_eq!((options.target, options.tokenizer), (Target::Tq2_0, None));
    /// ```
    #[must_use]
    pub fn new(target: Target) -> Self {
        Self {
            target,
            encoding: Encoding::Base3,
            embeddings: EmbeddingStorage::Stored,
            scales: ScaleStorage::Stored,
            packed: false,
            tokenizer: None,
            strict: false,
        }
    }

    /// Sets [`encoding`](Self::encoding).
    #[must_use]
    pub fn with_encoding(self, encoding: Encoding) -> Self {
        Self { encoding, ..self }
    }

    /// Sets [`embeddings`](Self::embeddings).
    #[must_use]
    pub fn with_embeddings(self, embeddings: EmbeddingStorage) -> Self {
        Self { embeddings, ..self }
    }

    /// Sets [`scales`](Self::scales).
    #[must_use]
    pub fn with_scales(self, scales: ScaleStorage) -> Self {
        Self { scales, ..self }
    }

    /// Sets [`strict`](Self::strict).
    #[must_use]
    pub fn with_strict(self, strict: bool) -> Self {
        Self { strict, ..self }
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
    /// Largest change of a weight, relative to the largest magnitude in its tensor; 0 unless embeddings or scales were rounded.
    pub largest_change: f32,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// The largest change of a weight, relative to the largest magnitude.
fn change(before: &Tensor, after: &Tensor) -> f32 {
    let (before, after) = (before.to_f32(), after.to_f32());
    let largest = before.iter().fold(f32::MIN_POSITIVE, |m, v| m.max(v.abs()));
    before.iter().zip(&after).fold(0f32, |m, (a, b)| m.max((a - b).abs())) / largest
}

/// Weights that share a scale when embeddings are rounded: a block of `Q8_0`.
const EMBEDDING_GROUP: usize = 32;

/// Converts `input` to `output`, which must not exist. Every weight keeps its value, except for rounded
/// [`embeddings`](ConvertOptions::embeddings) and [`scales`](ConvertOptions::scales). `progress` is called with the tensors done
/// and in total.
///
/// # Errors
///
/// [`LlmError::NotLossless`] when the target cannot represent a weight exactly or cannot store a tensor,
/// [`LlmError::OutputPath`] for a path that does not match the target, and errors of
/// reading and writing; [`LlmError::LeftOut`] with [`strict`](ConvertOptions::strict). The output appears when it is complete.
pub fn convert(
    input: &ModelFile,
    output: &Path,
    options: &ConvertOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<ConvertReport, LlmError> {
    let is_gguf = output.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
    let other_path =
        |is_file| LlmError::OutputPath { path: output.to_owned(), target: options.target.name(), is_file };
    let to_gguf = match options.target {
        Target::Tq1_0 | Target::Tq2_0 | Target::Q2_0 if !is_gguf => {
            return Err(other_path(true));
        }
        Target::Trike if is_gguf => return Err(other_path(false)),
        _ => is_gguf,
    };
    let job = Job { input, output, options };
    job.check_nothing_is_dropped()?;
    if to_gguf {
        job.check_planes()?;
        job.check_layers()?;
    }
    let claim = Claim::new(output)?;
    if to_gguf { job.gguf(progress) } else { job.directory(claim, progress) }
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

    /// Returns an error, before anything is written, for trits that no GGUF type can store.
    fn check_planes(&self) -> Result<(), LlmError> {
        if self.options.target == Target::F16 {
            return Ok(());
        }
        for name in self.input.weights() {
            if let StoredType::Trits { depth: depth @ 2.., .. } = self.input.info(name)?.kind {
                return Err(LlmError::Planes {
                    path: self.input.path().to_owned(),
                    tensor: self.input.stored_name(name),
                    planes: depth,
                    target: self.options.target.name().to_owned(),
                });
            }
        }
        Ok(())
    }

    /// Refuses a pattern of layers that the keys of GGUF cannot express: the file would be read as another model.
    fn check_layers(&self) -> Result<(), LlmError> {
        let config = self.input.config();
        let implied = config.family.gguf_rope_layers(config.spec.layers);
        let name = match self.input.tensors() {
            Tensors::Gguf(_) => return Ok(()),
            _ if config.spec.rope_layers != implied => "layers without RoPE other than every fourth",
            _ if config.spec.window.is_some() && config.spec.window_of_all().is_none() => {
                "a sliding window in some layers"
            }
            _ => return Ok(()),
        };
        let remedy = "no key of GGUF says so; write a directory instead";
        let (path, name) = (self.input.path().to_owned(), name.to_owned());
        Err(LlmError::Unsupported { path, name, remedy: remedy.to_owned() })
    }

    /// With [`strict`](ConvertOptions::strict), an error if anything is left out.
    fn check_notes(&self, notes: &[String]) -> Result<(), LlmError> {
        if !self.options.strict || notes.is_empty() {
            return Ok(());
        }
        Err(LlmError::LeftOut { path: self.input.path().to_owned(), notes: notes.join("; ") })
    }

    /// Refuses a tensor that is not a decoder weight, which would be lost.
    fn check_nothing_is_dropped(&self) -> Result<(), LlmError> {
        for name in self.input.unread() {
            if !self.is_copy_of_embedding(name)? {
                return Err(self.not_lossless(name, "it is not a decoder weight and would be dropped"));
            }
        }
        Ok(())
    }

    /// Whether a tensor is the head of a model with a tied head, stored in duplicate.
    fn is_copy_of_embedding(&self, name: &str) -> Result<bool, LlmError> {
        let input = self.input;
        if !input.config().spec.tied_head || name != input.stored_name(WeightName::Head) {
            return Ok(false);
        }
        let (copy, embedding) = (input.source().load(name)?, input.load(WeightName::Embedding)?);
        Ok(copy.shape() == embedding.shape() && copy.into_f32() == embedding.into_f32())
    }

    /// Loads a weight in its target type and with the RoPE pairing `pairing`; also returns the relative rounding error.
    fn load(&self, name: WeightName, pairing: RopePairing) -> Result<(Tensor, f32), LlmError> {
        let tensor = repaired(&self.input.config().spec, name, self.input.load(name)?, pairing)?;
        let stored = self.input.stored_name(name);
        if name.is_vector() {
            return Ok((tensor, 0.0));
        }
        let rounded = !name.is_block_matrix() && self.options.embeddings == EmbeddingStorage::F16;
        if self.options.target == Target::F16 && !rounded {
            let (tensor, change) = self.scales(tensor)?;
            return Ok((self.dense(&stored, tensor)?, change));
        }
        if name.is_block_matrix() {
            return self.scales(self.trits(&stored, tensor)?);
        }
        let rounded: Tensor = match (self.options.embeddings, &tensor) {
            (EmbeddingStorage::Stored, _) => return Ok((tensor, 0.0)),
            (EmbeddingStorage::Int8, Tensor::Dense(dense)) => {
                Int8Tensor::quantize(dense, EMBEDDING_GROUP, true)?.into()
            }
            (EmbeddingStorage::Int8, Tensor::Int8(int8)) if is_q8_0(int8) => return Ok((tensor, 0.0)),
            (EmbeddingStorage::Int8, _) => {
                let dense = DenseTensor::new(tensor.shape(), DenseData::F32(tensor.to_f32()))?;
                Int8Tensor::quantize(&dense, EMBEDDING_GROUP, true)?.into()
            }
            (EmbeddingStorage::F16, _) => {
                let halves = tensor.to_f32().into_iter().map(half::f16::from_f32).collect();
                DenseTensor::new(tensor.shape(), DenseData::F16(halves))?.into()
            }
        };
        let change = change(&tensor, &rounded);
        Ok((rounded, change))
    }

    /// A tensor with scales in the requested storage, and the relative rounding error.
    fn scales(&self, tensor: Tensor) -> Result<(Tensor, f32), LlmError> {
        let Tensor::Ternary(trits) = &tensor else { return Ok((tensor, 0.0)) };
        let scales = trits.scales();
        let wide = [Some(scales.values()), scales.means()].into_iter().flatten();
        let is_wide = wide.into_iter().any(|values| matches!(values, ScaleValues::F32(_)));
        if self.options.scales == ScaleStorage::Stored || !is_wide {
            return Ok((tensor, 0.0));
        }
        let halves = |of: &ScaleValues| ScaleValues::F16(of.iter().map(half::f16::from_f32).collect());
        let halved = Scales::new(scales.granularity(), halves(scales.values()), scales.means().map(halves));
        let rounded = trits.clone().with_scales(halved)?.into();
        let change = change(&tensor, &rounded);
        Ok((rounded, change))
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

    fn directory(
        &self,
        claim: Claim,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<ConvertReport, LlmError> {
        let mut writer = HfDirWriter::create(claim.staging()?, self.config_json()?)?;
        let notes = write_tokenizer(&writer, self.input, self.options.tokenizer.as_deref())?;
        self.check_notes(&notes)?;
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
        writer.finish()?;
        claim.publish()?;
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
                // The alignment is set by the writer, the file type describes the old file, and the new file is not split.
                let replaced = |key: &str| self.options.tokenizer.is_some() && text::is_tokenizer(key);
                let listed = matches!(self.input.config().spec.rope.scaling, RopeScaling::Factors(_));
                // A linear scaling is already included in the divisors.
                let merged = |key: &str| {
                    listed
                        && [".rope.scaling.type", ".rope.scaling.factor", ".rope.scale_linear"]
                            .iter()
                            .any(|end| key.ends_with(end))
                };
                let own = |key: &str| {
                    !["general.alignment", "general.file_type"].contains(&key)
                        && !key.starts_with("split.")
                        && !merged(key)
                        && !replaced(key)
                };
                for (key, value) in file.metadata().iter().filter(|(key, _)| own(key)) {
                    writer.metadata(key, value.clone())?;
                }
                if let Some(path) = &self.options.tokenizer {
                    notes.extend(text::tokenizer_keys(&mut writer, self.input, Some(path.clone()))?);
                }
            }
            Tensors::Hf(_) | Tensors::Llama2c(_) => {
                let name = self.output.file_stem().and_then(|s| s.to_str());
                for (key, value) in config::to_gguf(self.input.config(), name) {
                    writer.metadata(&key, value)?;
                }
                notes.extend(text::write_keys(&mut writer, self.input, self.options.tokenizer.as_deref())?);
            }
        }
        self.check_notes(&notes)?;
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
            (Tensor::Int8(int8), _) if !is_q8_0(int8) => {
                let halves = matches!(int8.scales(), ScaleValues::F16(_));
                Err(LlmError::Int8Groups {
                    path: self.input.path().to_owned(),
                    tensor: self.input.stored_name(name),
                    group: int8.group(),
                    scales: if halves { "f16" } else { "f32" },
                    target: "Q8_0",
                })
            }
            (Tensor::Int8(_), _) => Ok(GgufType::Q8_0),
            (Tensor::Dense(t), _) => Ok(match t.data() {
                DenseData::F32(_) => GgufType::F32,
                DenseData::F16(_) => GgufType::F16,
                DenseData::Bf16(_) => GgufType::Bf16,
            }),
        }
    }
}

/// Whether `Q8_0` can store these weights unchanged.
fn is_q8_0(tensor: &Int8Tensor) -> bool {
    tensor.group() == EMBEDDING_GROUP && tensor.scales().iter().all(|s| half::f16::from_f32(s).to_f32() == s)
}

/// The tile layout of a tensor; `None` if it is dense, or if the fastest layout on this machine is not a tile layout.
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

/// The `config.json` of a directory with the weights of `file` and the configuration `config`: the file's own, or an equivalent of
/// its header; `None` when HuggingFace has no equivalent. `output` is used in error messages only.
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
/// [`LlmError::Nn`] when the tensor does not have the shape that `spec` requires.
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
        Some(rows) => Ok(tensor.select_rows(&rows)?),
        None => Ok(tensor),
    }
}
