//! `trike quantize`.

use std::path::PathBuf;

use clap::{Args, builder::TypedValueParser, value_parser};
use trike::{
    Encoding, Split,
    calibrate::Importance,
    quant::PrunePattern,
    trit::{Coupling, Granularity, GroupSize},
};

use super::{
    Embeddings, JsonArg, ModelArg, TokenizerArg,
    names::{EMBEDDINGS, Names, SPLITS, one_of, threads},
};

/// How weights become trits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Compensate,
    LeastSquares,
    AbsMean,
    Twn,
    AbsMax,
}

/// How trits are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    /// By what is in them.
    Auto,
    /// As told.
    Fixed(Encoding),
}

const METHODS: Names<Method> = &[
    ("compensate", Method::Compensate),
    ("nearest", Method::LeastSquares),
    ("absmean", Method::AbsMean),
    ("twn", Method::Twn),
    ("absmax", Method::AbsMax),
];

const GROUPS: Names<Granularity> = &[
    ("32", Granularity::Group(GroupSize::G32)),
    ("64", Granularity::Group(GroupSize::G64)),
    ("128", Granularity::Group(GroupSize::G128)),
    ("256", Granularity::Group(GroupSize::G256)),
    ("row", Granularity::Row),
    ("tensor", Granularity::Tensor),
];

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

/// A size in bytes: a number with or without a unit, decimal (kB, MB, GB) or binary (KiB, MiB, GiB).
fn size(text: &str) -> Result<u64, String> {
    let at = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let factor = match unit.trim() {
        "" | "B" => 1.0,
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        _ => return Err("expected a number of bytes, or one with kB, MB, GB, KiB, MiB or GiB".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| "expected a number of bytes, such as 1.9GB".to_owned())?;
    Ok((number * factor) as u64)
}

/// `weights`, `rows`, `N:M` or `HxW`.
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

/// What the model may cost. Planes and groups, int8 or floats are then allotted to each layer by what they were measured to
/// cost.
#[derive(Args, Debug)]
#[group(id = "budget", multiple = false)]
pub(crate) struct BudgetArgs {
    /// Most perplexity over the dense model's, such as 1.02, on text that is neither calibrated on nor planned with
    #[arg(long)]
    pub(crate) max_ppl_ratio: Option<f64>,
    /// Most divergence from the dense model, in nats a token
    #[arg(long)]
    pub(crate) max_kl: Option<f64>,
    /// Most bits a weight over the linear layers of the blocks, scales included
    #[arg(long)]
    pub(crate) bits: Option<f64>,
    /// Most bytes of all tensors, such as 1.9GB
    #[arg(long, value_parser = size)]
    pub(crate) max_bytes: Option<u64>,
}

/// Make a dense model ternary, and say what that costs
///
/// Writes a model directory with its tokenizer, a report.json and a report.html. The calibration text runs through the model one block at
/// a time; what a layer loses by rounding is made up for by its other weights as far as the text allows. An interrupted run
/// goes on where it was when the same command is run again.
#[derive(Args, Debug)]
pub(crate) struct QuantizeArgs {
    #[command(flatten)]
    pub(crate) model: ModelArg,
    #[command(flatten)]
    pub(crate) tokenizer: TokenizerArg,
    /// UTF-8 text to calibrate on; text that the model writes itself when left out
    #[arg(short, long)]
    pub(crate) calibration: Option<PathBuf>,
    /// Directory to write; must not exist
    #[arg(short, long)]
    pub(crate) output: PathBuf,
    /// Planes of trits, 1 to 6: more are nearer to the dense model and larger; with a budget, the most of a layer
    /// [default: 3, 4 with a budget]
    #[arg(short, long, value_parser = planes())]
    pub(crate) planes: Option<usize>,
    /// Weights of a row that share a scale; with a budget, the one size to choose from [default: 128; 32, 64, 128 and row with a
    /// budget]
    #[arg(short, long, value_parser = one_of(GROUPS))]
    pub(crate) group: Option<Granularity>,
    #[command(flatten)]
    pub(crate) budget: BudgetArgs,
    /// How each layer is stored: a plan.json of an earlier run, edited or not. Layers that it does not name are stored as the
    /// other options say
    #[arg(long, conflicts_with = "budget")]
    pub(crate) plan: Option<PathBuf>,
    /// Write the plan for a budget to OUT, a file, and no model
    #[arg(long, requires = "budget", conflicts_with_all = ["eval", "curve"])]
    pub(crate) plan_only: bool,
    /// How planes add up: each a third of the one before (tied), or each with a scale of its own (free)
    #[arg(long, default_value = "tied", value_parser = one_of(COUPLINGS))]
    pub(crate) coupling: Coupling,
    /// Store a mean beside every scale
    #[arg(long)]
    pub(crate) mean: bool,
    /// Error compensation, or rounding, which needs no text: to the nearest level of the best grid, or by the rule of
    /// BitNet (absmean), of ternary weight networks (twn) or with the largest weight as outermost level (absmax)
    #[arg(long, default_value = "compensate", value_parser = one_of(METHODS))]
    pub(crate) method: Method,
    /// Share of the mean square of the inputs that is added to each, for inputs that the text says little about
    #[arg(long, default_value_t = 0.01, conflicts_with = "plain")]
    pub(crate) damping: f64,
    /// Compensate within a layer only: columns in stored order, no refitting, nothing of what the layers before lost
    #[arg(long)]
    pub(crate) plain: bool,
    /// Scale the inputs of layers first by what loses least, searched on the text; the norms before them, value or up projections take
    /// the inverse, and the result runs as any other
    #[arg(long)]
    pub(crate) salience: bool,
    /// Rotate the residual stream first, by random signs from SEED (1 when only --rotate is given) and Hadamard matrices. An
    /// output head that was the embedding becomes a matrix of its own
    #[arg(long, value_name = "SEED", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    pub(crate) rotate: Option<u64>,
    /// Rotate the inputs of output and down projections, for which there is nothing to fold a rotation into: the model does it when
    /// it runs, by Hadamard matrices in blocks of at most BLOCK numbers (512 when only --hadamard is given)
    #[arg(
        long,
        value_name = "BLOCK",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "512",
        conflicts_with = "prune"
    )]
    pub(crate) hadamard: Option<usize>,
    /// Leave codes and scales as compensation made them; rounding, free planes and --plain are never tuned
    #[arg(long)]
    pub(crate) no_tune: bool,
    /// Passes over the text in which the codes and scales of a block are tuned against the dense block's output
    #[arg(long, default_value_t = 4, conflicts_with_all = ["no_tune", "plain"])]
    pub(crate) tune_block_epochs: usize,
    /// Passes over the text in which those of the whole model are tuned against the dense model's probabilities
    #[arg(long, default_value_t = 8, conflicts_with_all = ["no_tune", "plain"])]
    pub(crate) tune_model_epochs: usize,
    /// Models with more weights than this in their blocks are not tuned: it takes time
    #[arg(long, default_value_t = 8 << 20, conflicts_with_all = ["no_tune", "plain"])]
    pub(crate) tune_max_weights: u64,
    /// How trits are packed; auto takes row-compressed where the kernels are faster with it, else the smaller of base3 and
    /// bitmap [default: base3; auto with --prune]
    #[arg(long, value_parser = one_of(PACKINGS))]
    pub(crate) encoding: Option<Packing>,
    /// Make this share of each layer's weights, or blocks, zero first; the others make up for it. For N:M the pattern says it
    #[arg(long, conflicts_with = "budget")]
    pub(crate) prune: Option<f64>,
    /// What makes a weight worth keeping: its magnitude, that times its input's (wanda), or what its layer would lose in spite
    /// of the others (compensated) [default: compensated]
    #[arg(long, value_parser = one_of(IMPORTANCES), conflicts_with = "budget")]
    pub(crate) prune_by: Option<Importance>,
    /// What becomes zero together: single weights of a matrix, the same share of each row (rows), all but KEEP of OF
    /// neighbours (2:4), or blocks of ROWSxCOLS (1x32, 16x16, 1x2048) [default: weights]
    #[arg(long, value_parser = pattern, conflicts_with = "budget")]
    pub(crate) prune_pattern: Option<PrunePattern>,
    /// Leave layers whose name contains this as they are, `*` for any characters; may be repeated
    #[arg(long)]
    pub(crate) skip: Vec<String>,
    /// Leave layers with fewer weights as they are
    #[arg(long, default_value_t = 0)]
    pub(crate) min_size: usize,
    /// Embedding and output head: as stored, or rounded to int8 in groups of 32
    #[arg(long, default_value = "stored", value_parser = one_of(EMBEDDINGS))]
    pub(crate) head: Embeddings,
    /// Most sequences of the text to calibrate on, or to write where there is none
    #[arg(long, default_value_t = 128)]
    pub(crate) sequences: usize,
    /// How texts are cut [default: stories where the text has `<|endoftext|>`, else window]
    #[arg(long, value_parser = one_of(SPLITS))]
    pub(crate) split: Option<Split>,
    /// Where chance starts when the model writes the text
    #[arg(long, default_value_t = 1, conflicts_with = "calibration")]
    pub(crate) seed: u64,
    /// UTF-8 text on which both models are measured; should not be the one to calibrate on
    #[arg(short, long)]
    pub(crate) eval: Option<PathBuf>,
    /// Measure one to four planes, every layer alike, too: the report plots perplexity against bits
    #[arg(long, requires = "eval")]
    pub(crate) curve: bool,
    /// Threads; 0 for one a processor
    #[arg(
        long,
        default_value_t = 0,
        env = "TRIKE_THREADS",
        hide_env_values = true,
        value_parser = threads()
    )]
    pub(crate) threads: usize,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}
