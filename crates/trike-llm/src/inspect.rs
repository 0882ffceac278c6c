//! Description of a checkpoint's contents.

use std::path::Path;

use serde::Serialize;
use trike_format::{Tensor, TensorInfo};
use trike_trit::{ScaleValues, TritTensor};

use crate::{LlmError, ModelConfig, ModelFile, Tensors};

/// Description of a checkpoint. The field names are the schema of `trike inspect --json`.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// The file or directory.
    pub path: String,
    /// Name of the format.
    pub format: &'static str,
    /// The architecture and its sizes, when the decoder block implements it.
    pub model: Option<ModelReport>,
    /// The reason why it cannot be run: an unimplemented feature, or tensors that belong to no layer.
    pub refusal: Option<String>,
    /// Every tensor, in the order of the file.
    pub tensors: Vec<TensorReport>,
    /// Number of tensors of a supported type whose contents cannot be loaded.
    pub damaged: usize,
    /// Totals over the tensors.
    pub totals: Totals,
}

/// Architecture and sizes.
#[derive(Clone, Debug, Serialize)]
pub struct ModelReport {
    /// Name in the file.
    pub architecture: String,
    /// Decoder blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Inner width of the MLP.
    pub intermediate: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Vocabulary size.
    pub vocab: usize,
    /// Context length, in tokens.
    pub context: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// Whether the LM head is the embedding matrix.
    pub tied_head: bool,
}

/// One tensor.
#[derive(Clone, Debug, Serialize)]
pub struct TensorReport {
    /// Its name in the file.
    pub name: String,
    /// Length of each axis, slowest first.
    pub shape: Vec<usize>,
    /// Stored type.
    pub encoding: String,
    /// Bytes in the file, scales included.
    pub bytes: u64,
    /// Bits per weight in the file, including scales.
    pub bits_per_weight: f64,
    /// Fraction of weights that are zero; for a ternary tensor, of trits over all planes.
    pub zeros: Option<f64>,
    /// Granularity of the scales, and their extremes.
    pub scales: Option<ScaleReport>,
    /// The reason why the tensor cannot be loaded, or the type it is loaded as if that differs from the stored one.
    pub note: Option<String>,
}

/// Scales of one tensor.
#[derive(Clone, Debug, Serialize)]
pub struct ScaleReport {
    /// The weights that share a scale: `tensor`, `row`, `group256`.
    pub granularity: String,
    /// Number of scales.
    pub count: usize,
    /// Smallest magnitude.
    pub min: f32,
    /// Mean magnitude.
    pub mean: f32,
    /// Largest magnitude.
    pub max: f32,
}

/// Totals over all tensors.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Totals {
    /// Tensors.
    pub tensors: usize,
    /// Weights.
    pub parameters: u64,
    /// Bytes of all tensors in the file.
    pub bytes: u64,
    /// Bits per weight over the whole file.
    pub bits_per_weight: f64,
    /// Weights of ternary tensors.
    pub ternary_parameters: u64,
    /// Bits per weight over the ternary tensors.
    pub ternary_bits_per_weight: Option<f64>,
    /// Fraction of zero trits over the ternary tensors.
    pub ternary_zeros: Option<f64>,
}

/// Describes the checkpoint at `path`; every tensor is loaded once for the statistics. A checkpoint that cannot be run is described
/// too, with the reason. `progress` is called with the number of tensors done and in total.
///
/// # Errors
///
/// [`LlmError::Format`] when the path is not a checkpoint or its header is malformed.
pub fn inspect(
    path: impl AsRef<Path>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Inspection, LlmError> {
    let path = path.as_ref();
    let tensors = Tensors::open(path)?;
    let (model, refusal) = match ModelFile::from_tensors(path, Tensors::open(path)?) {
        Ok(file) => {
            let unread = file.check_all_read().err().map(|error| error.to_string());
            (Some(model_report(file.config())), unread)
        }
        Err(error) => (None, Some(error.to_string())),
    };
    let source = tensors.source();
    let total = source.tensors().len();
    let mut reports = Vec::with_capacity(total);
    let mut damaged = 0;
    let mut totals = Totals { tensors: total, ..Totals::default() };
    let (mut ternary_bytes, mut trits, mut zeros) = (0u64, 0f64, 0f64);
    for (done, info) in source.tensors().iter().enumerate() {
        let loaded = source.load(&info.name);
        damaged += usize::from(loaded.is_err() && info.kind.is_supported());
        if let Ok(Tensor::Ternary(t)) = &loaded {
            totals.ternary_parameters += info.elements();
            ternary_bytes += info.bytes;
            trits += info.elements() as f64 * t.depth() as f64;
            zeros += t.zeros() as f64;
        }
        reports.push(tensor_report(info, loaded.as_ref().map_err(ToString::to_string)));
        totals.parameters += info.elements();
        totals.bytes += info.bytes;
        progress(done + 1, total);
    }
    totals.bits_per_weight = bits(totals.bytes, totals.parameters);
    if trits > 0.0 {
        totals.ternary_bits_per_weight = Some(bits(ternary_bytes, totals.ternary_parameters));
        totals.ternary_zeros = Some(zeros / trits);
    }
    let path = path.display().to_string();
    Ok(Inspection { path, format: tensors.format(), model, refusal, tensors: reports, damaged, totals })
}

fn bits(bytes: u64, weights: u64) -> f64 {
    8.0 * bytes as f64 / weights.max(1) as f64
}

fn model_report(config: &ModelConfig) -> ModelReport {
    let spec = &config.spec;
    ModelReport {
        architecture: config.architecture.clone(),
        layers: spec.layers,
        hidden: spec.hidden,
        intermediate: spec.intermediate,
        heads: spec.heads,
        kv_heads: spec.kv_heads,
        head_dim: spec.head_dim,
        vocab: spec.vocab,
        context: spec.context,
        rope_theta: spec.rope.theta,
        tied_head: spec.tied_head,
    }
}

fn tensor_report(info: &TensorInfo, loaded: Result<&Tensor, String>) -> TensorReport {
    let share = |zeros: usize, of: usize| Some(zeros as f64 / of.max(1) as f64);
    let (zeros, scales, note) = match loaded {
        Err(reason) => (None, None, Some(reason)),
        Ok(Tensor::Ternary(t)) => {
            let note = t.rotation().map(|r| {
                format!("inputs are rotated in blocks of {}: a zero trit is not a zero weight", r.block())
            });
            (trit_zeros(t), Some(trit_scales(t)), note)
        }
        Ok(Tensor::Int8(t)) => {
            let zeros = t.codes().iter().filter(|&&c| c == 0).count();
            let granularity =
                if t.group() >= t.cols() { "row".to_owned() } else { format!("group{}", t.group()) };
            (share(zeros, t.codes().len()), Some(scale_report(granularity, t.scales())), None)
        }
        Ok(dense @ Tensor::Dense(_)) => {
            let values = dense.to_f32();
            let zeros = values.iter().filter(|&&v| v == 0.0).count();
            let note = info
                .kind
                .is_ternary()
                .then(|| "loaded as dense: it contains the 2-bit code for +2".to_owned());
            (share(zeros, values.len()), None, note)
        }
    };
    TensorReport {
        name: info.name.clone(),
        shape: info.shape.clone(),
        encoding: info.kind.to_string(),
        bytes: info.bytes,
        bits_per_weight: bits(info.bytes, info.elements()),
        zeros,
        scales,
        note,
    }
}

fn trit_zeros(t: &TritTensor) -> Option<f64> {
    Some(t.zeros() as f64 / (t.rows() as f64 * t.cols() as f64 * t.depth() as f64))
}

fn trit_scales(t: &TritTensor) -> ScaleReport {
    scale_report(t.scales().granularity().to_string(), t.scales().values())
}

fn scale_report(granularity: String, values: &ScaleValues) -> ScaleReport {
    let mut report =
        ScaleReport { granularity, count: values.len(), min: f32::INFINITY, mean: 0.0, max: 0.0 };
    let mut sum = 0.0;
    for value in values.iter().map(f32::abs) {
        report.min = report.min.min(value);
        report.max = report.max.max(value);
        sum += f64::from(value);
    }
    report.mean = (sum / values.len().max(1) as f64) as f32;
    report
}
