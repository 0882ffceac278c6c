//! `trike quantize`.

use std::path::PathBuf;

use clap::{Args, builder::TypedValueParser, value_parser};
use trike::{
    DeviceChoice, Encoding, Split, Target,
    calibrate::{Budget, Importance, ScaledInputs},
    quant::PrunePattern,
    trit::{Coupling, Granularity},
};

use super::{
    HeadStorage, JsonArg, ModelArg, TokenizerArg,
    names::{GROUPS, HEAD_STORAGE, Names, SPLITS, one_of, positive, threads},
};

/// Quantization method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Compensate,
    LeastSquares,
    AbsMean,
    Twn,
    AbsMax,
}

/// Encoding of packed trits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    /// Chosen per tensor from its contents.
    Auto,
    /// The given encoding.
    Fixed(Encoding),
}

const METHODS: Names<Method> = &[
    ("compensate", Method::Compensate),
    ("nearest", Method::LeastSquares),
    ("absmean", Method::AbsMean),
    ("twn", Method::Twn),
    ("absmax", Method::AbsMax),
];

const SALIENCE: Names<ScaledInputs> =
    &[("none", ScaledInputs::None), ("outliers", ScaledInputs::Outliers), ("all", ScaledInputs::All)];

const COUPLINGS: Names<Coupling> = &[("tied", Coupling::Tied), ("free", Coupling::Free)];

const PACKINGS: Names<Packing> = &[
    ("auto", Packing::Auto),
    (Encoding::Planes.name(), Packing::Fixed(Encoding::Planes)),
    (Encoding::TwoBit.name(), Packing::Fixed(Encoding::TwoBit)),
    (Encoding::Base3.name(), Packing::Fixed(Encoding::Base3)),
    (Encoding::Bitmap.name(), Packing::Fixed(Encoding::Bitmap)),
    (Encoding::RowCompressed.name(), Packing::Fixed(Encoding::RowCompressed)),
];

const IMPORTANCES: Names<Importance> = &[
    ("magnitude", Importance::Magnitude),
    ("wanda", Importance::Wanda),
    ("compensated", Importance::Compensated),
];

/// Parses a size in bytes: a number with a decimal (kB, MB, GB) or binary (KiB, MiB, GiB) unit, or with B.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let at = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let factor = match unit.trim() {
        "B" => 1.0,
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        _ => return Err("expected B, kB, MB, GB, KiB, MiB or GiB".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| "expected a number".to_owned())?;
    Ok((number * factor) as u64)
}

/// Parses `weights`, `rows`, `N:M` or `HxW`.
fn pattern(text: &str) -> Result<PrunePattern, String> {
    let pair = |mark| {
        let (a, b) = text.split_once(mark)?;
        Some((a.parse::<usize>().ok()?, b.parse::<usize>().ok()?))
    };
    match (text, pair(':'), pair('x')) {
        ("weights", ..) => Ok(PrunePattern::Unstructured),
        ("rows", ..) => Ok(PrunePattern::PerRow),
        (_, Some((keep, of)), _) if keep >= 1 && keep < of => Ok(PrunePattern::NOfM { keep, of }),
        (_, _, Some((rows, cols))) if rows >= 1 && cols >= 1 => Ok(PrunePattern::Blocks { rows, cols }),
        _ => Err("expected weights, rows, KEEP:OF such as 2:4, or ROWSxCOLS such as 16x32".to_owned()),
    }
}

fn planes() -> impl TypedValueParser<Value = usize> {
    value_parser!(u64).range(1..=6).map(|n| n as usize)
}

/// Value of `--target`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Goal {
    /// A goal of size or quality, for which precision is chosen per layer.
    Budget(Budget),
    /// A GGUF type to which the result can be converted.
    Gguf(Target),
}

/// Parses a [`Goal`].
fn goal(text: &str) -> Result<Goal, String> {
    const EXPECTED: &str = "expected a size such as 1.9GB, bits per weight such as 2.0bpw, a perplexity ratio such as 1.02x, a \
        divergence such as 0.05nats, or tq1_0, tq2_0 or q2_0";
    let number = |unit: &str| text.strip_suffix(unit)?.trim_end().parse::<f64>().ok();
    let ggufs = [Target::Tq1_0, Target::Tq2_0, Target::Q2_0];
    if let Some(&target) = ggufs.iter().find(|target| target.name() == text.to_ascii_lowercase()) {
        return Ok(Goal::Gguf(target));
    }
    let quality = number("x").map(Budget::PerplexityRatio).or(number("nats").map(Budget::Divergence));
    let budget = match quality.or(number("bpw").map(Budget::Bits)) {
        Some(budget) => budget,
        // A bare number is ambiguous.
        None if text.ends_with('B') => Budget::Bytes(size(text).map_err(|_| EXPECTED.to_owned())?),
        None => return Err(EXPECTED.to_owned()),
    };
    Ok(Goal::Budget(budget))
}

/// Quantize a dense model to ternary weights and report the loss
///
/// Writes a model directory with its tokenizer, a report.json and a report.html. The model is calibrated block by block on a text;
/// the remaining weights compensate the rounding error (GPTQ). Both models are measured on held-out text. An interrupted run
/// resumes when the same command is run again.
#[derive(Args, Debug)]
pub(crate) struct QuantizeArgs {
    #[command(flatten)]
    pub(crate) model: ModelArg,
    #[command(flatten)]
    pub(crate) tokenizer: TokenizerArg,
    /// Calibration text, UTF-8 [default: text generated by the model itself]
    #[arg(short, long)]
    pub(crate) calibration: Option<PathBuf>,
    /// Directory to write; must not exist [default: NAME-ternary in this directory]
    ///
    /// NAME is that of the model. With --plan-only a file, by default NAME-plan.json.
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: Option<PathBuf>,
    /// Size (1.9GB, 2.0bpw), quality (1.02x, 0.05nats) or GGUF type (tq2_0) [default: 1.02x]
    ///
    /// Total size of all tensors (1.9GB), bits per weight of the linear layers of the blocks including scales (2.0bpw), maximum
    /// perplexity ratio to the dense model (1.02x) or divergence from it in nats per token (0.05nats) on held-out text; planes and
    /// group size, int8 or floats are then chosen per layer by estimated loss. Or a GGUF type to which `trike convert` can convert
    /// the result (tq1_0, tq2_0, q2_0).
    ///
    /// The default is the closest of up to three trial quantizations; above 400 million weights in the blocks, the plan is
    /// estimated from layer sensitivities, without trials. No goal and the same planes in every layer with --planes, --plan,
    /// --prune, --method, --coupling, --mean, --plain, --curve or --recover.
    #[arg(long, value_name = "GOAL", value_parser = goal)]
    pub(crate) target: Option<Goal>,
    /// Trit planes per weight in every layer, 1 to 6 [default: chosen per layer]
    ///
    /// More planes are more accurate and larger. With --target, the maximum per layer. The default is at most 4 per layer; 3 if all
    /// layers have the same.
    #[arg(short, long, value_name = "N", value_parser = planes())]
    pub(crate) planes: Option<usize>,
    /// Weights per scale along a row [default: 128, or chosen per layer]
    ///
    /// If planes are chosen per layer, the only group size considered; the default is then the best of 32, 64, 128 and row.
    #[arg(short, long, value_parser = one_of(GROUPS))]
    pub(crate) group: Option<Granularity>,
    /// Per-layer plan: the plan.json of an earlier run, possibly edited. The other options apply to layers that it does not
    /// name
    #[arg(long, conflicts_with = "target")]
    pub(crate) plan: Option<PathBuf>,
    /// Write only the plan, to the file OUT
    #[arg(long, conflicts_with_all = ["eval", "curve"])]
    pub(crate) plan_only: bool,
    /// Scales of planes: each a third of the previous one (tied), or independent (free)
    #[arg(long, default_value = "tied", value_parser = one_of(COUPLINGS))]
    pub(crate) coupling: Coupling,
    /// Store a mean per scale (asymmetric quantization)
    #[arg(long)]
    pub(crate) mean: bool,
    /// Quantization method: error compensation (GPTQ), or rounding without calibration text: least-squares grid (nearest),
    /// BitNet's absmean, ternary weight networks (twn), or absmax
    #[arg(long, default_value = "compensate", value_parser = one_of(METHODS))]
    pub(crate) method: Method,
    /// Hessian damping, as a fraction of the mean diagonal
    #[arg(long, default_value_t = 0.01, conflicts_with = "plain")]
    pub(crate) damping: f64,
    /// Plain GPTQ: stored column order, no refitting of scales, no compensation of earlier layers, no tuning
    #[arg(long)]
    pub(crate) plain: bool,
    /// Weight the tokens of each layer's statistics by the squared gradient of the dense model's loss with respect to the layer's
    /// outputs (GuidedQuant); takes one more forward and backward pass over the text
    #[arg(long, conflicts_with = "plain")]
    pub(crate) guided: bool,
    /// Rescale the input channels of layers before quantization, by scales searched on the calibration text (AWQ), and fold the
    /// inverse into the preceding norm or projection: for inputs with outliers, for all (if WHERE is omitted), or none [default:
    /// outliers; none with --plain or a --method that rounds]
    #[arg(
        long,
        value_name = "WHERE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "all",
        value_parser = one_of(SALIENCE)
    )]
    pub(crate) salience: Option<ScaledInputs>,
    /// Rotate the residual stream before quantization, by random signs from SEED (1 if omitted) and Hadamard matrices
    /// (QuaRot). A tied output head is untied
    #[arg(long, value_name = "SEED", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    pub(crate) rotate: Option<u64>,
    /// Rotate the inputs of output and down projections at run time, by Hadamard transforms of at most BLOCK values (512 if
    /// omitted)
    #[arg(
        long,
        value_name = "BLOCK",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "512",
        conflicts_with = "prune"
    )]
    pub(crate) hadamard: Option<usize>,
    /// Skip tuning after compensation; rounding, free planes and --plain are never tuned
    #[arg(long)]
    pub(crate) no_tune: bool,
    /// Epochs of block-wise tuning of codes, scales and norms against the dense block's output [default: enough for 262144 tokens,
    /// at most 4]
    #[arg(long, conflicts_with_all = ["no_tune", "plain"])]
    pub(crate) tune_block_epochs: Option<usize>,
    /// Epochs of end-to-end tuning against the dense model's output distribution [default: enough for 524288 tokens, more in a
    /// model with fewer than two million weights, at most 6]
    #[arg(long, conflicts_with_all = ["no_tune", "plain"])]
    pub(crate) tune_model_epochs: Option<usize>,
    /// Learning rate of codes, in units of the distance between levels; a stage that does not improve the loss is retried at a
    /// third of the rate, at most twice
    #[arg(long, default_value_t = 0.02, conflicts_with_all = ["no_tune", "plain"])]
    pub(crate) tune_rate: f32,
    /// Minutes of end-to-end tuning after all other stages, on text generated by the dense model
    #[arg(
        long,
        value_name = "MINUTES",
        default_value_t = 0.0,
        conflicts_with_all = ["no_tune", "plain", "curve"]
    )]
    pub(crate) recover: f64,
    /// Maximum number of weights in the blocks for end-to-end tuning of codes, at 20 bytes of memory each; in larger models only
    /// scales and norms are tuned
    #[arg(long, default_value_t = 400_000_000, conflicts_with_all = ["no_tune", "plain"])]
    pub(crate) tune_max_weights: u64,
    /// Device that tunes: cpu, auto (the first hardware GPU, else cpu), or a runtime of this build with an index, such as cuda:0
    /// [default: cpu]
    ///
    /// The passes of tuning through the blocks, the head and the losses run there; `trike doctor` lists the devices (wgpu, vulkan,
    /// cuda, hip, metal). The statistics of the calibration text, rounding, the updates of latent weights, packing and measurements
    /// stay on the CPU, whose memory is estimated as if it tuned. TRIKE_DEVICE does not apply: results differ in their last bits,
    /// and so does an occasional trit.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["no_tune", "plain", "plan_only"])]
    pub(crate) device: Option<DeviceChoice>,
    /// Encoding of trits; auto = row-compressed if the kernels are faster with it, else the smaller of base3 and bitmap [default:
    /// base3; auto with --prune]
    #[arg(long, value_parser = one_of(PACKINGS))]
    pub(crate) encoding: Option<Packing>,
    /// Fraction of each layer's weights to prune before quantization; the remaining weights compensate. Implied by an N:M
    /// pattern
    #[arg(long, conflicts_with = "target")]
    pub(crate) prune: Option<f64>,
    /// Pruning criterion: weight magnitude, magnitude times input norm (wanda), or compensated error (SparseGPT)
    /// [default: compensated]
    #[arg(long, value_parser = one_of(IMPORTANCES), conflicts_with = "target")]
    pub(crate) prune_by: Option<Importance>,
    /// Sparsity pattern: unstructured per matrix (weights) or per row (rows), N:M (2:4 keeps 2 of 4), or blocks of ROWSxCOLS
    /// (1x32, 16x16, 1x2048) [default: weights]
    #[arg(long, value_parser = pattern, conflicts_with = "target")]
    pub(crate) prune_pattern: Option<PrunePattern>,
    /// Do not quantize layers whose name contains this pattern (`*` matches any characters); may be repeated
    #[arg(long)]
    pub(crate) skip: Vec<String>,
    /// Do not quantize layers with fewer weights
    #[arg(long, default_value_t = 0)]
    pub(crate) min_size: usize,
    /// Embedding and output head: as stored, or quantized to int8 in groups of 32 [default: chosen by the plan if precision is
    /// chosen per layer, else stored]
    #[arg(long, value_parser = one_of(HEAD_STORAGE))]
    pub(crate) head: Option<HeadStorage>,
    /// Maximum number of calibration sequences, or the number to generate without a text [default: enough for 262144 tokens, up to
    /// four times that in a model with fewer than four million weights; 128 without a text]
    #[arg(long, value_parser = positive)]
    pub(crate) sequences: Option<usize>,
    /// How texts are split into sequences [default: stories if the text contains `<|endoftext|>`, else window]
    #[arg(long, value_parser = one_of(SPLITS))]
    pub(crate) split: Option<Split>,
    /// RNG seed of the generated calibration text
    #[arg(long, default_value_t = 1, conflicts_with = "calibration")]
    pub(crate) seed: u64,
    /// Evaluation text, UTF-8 [default: a held-out part of the calibration text]
    ///
    /// Both models are measured on it; it should differ from the calibration text.
    #[arg(short, long)]
    pub(crate) eval: Option<PathBuf>,
    /// Also measure models with one to four planes in all layers, and the same layers rounded to Q8_0, Q4_0 and Q4_K of llama.cpp
    /// if their rows are multiples of the block size; the report plots divergence against bits per weight
    #[arg(long, requires = "eval")]
    pub(crate) curve: bool,
    /// Number of threads; 0 = one per physical core
    #[arg(
        short,
        long,
        default_value_t = 0,
        allow_negative_numbers = true,
        env = "TRIKE_THREADS",
        hide_env_values = true,
        value_name = "N",
        value_parser = threads()
    )]
    pub(crate) threads: usize,
    /// Print the table of all layers, which is also in the report
    #[arg(short, long)]
    pub(crate) verbose: bool,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals() {
        for (text, expected) in [
            ("1.9GB", Goal::Budget(Budget::Bytes(1_900_000_000))),
            ("512 KiB", Goal::Budget(Budget::Bytes(512 << 10))),
            ("100B", Goal::Budget(Budget::Bytes(100))),
            ("2.0bpw", Goal::Budget(Budget::Bits(2.0))),
            ("1.02x", Goal::Budget(Budget::PerplexityRatio(1.02))),
            ("0.05nats", Goal::Budget(Budget::Divergence(0.05))),
            ("TQ2_0", Goal::Gguf(Target::Tq2_0)),
            ("q2_0", Goal::Gguf(Target::Q2_0)),
        ] {
            assert_eq!(goal(text), Ok(expected), "{text}");
        }
        for text in ["", "2", "2.0", "x", "bpw", "GB", "1.9TB", "q4_0", "1,02x", "--1x", "2bits"] {
            assert!(goal(text).is_err_and(|error| error.contains("1.02x")), "{text}");
        }
    }
}
