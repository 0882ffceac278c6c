//! `trike quantize`.

use std::path::PathBuf;

use clap::{Args, builder::TypedValueParser, value_parser};
use trike::{
    Encoding, Split,
    trit::{Coupling, Granularity, GroupSize},
};

use super::{
    Embeddings, JsonArg, ModelArg, TokenizerArg,
    names::{EMBEDDINGS, ENCODINGS, Names, SPLITS, one_of, threads},
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

fn planes() -> impl TypedValueParser<Value = usize> {
    value_parser!(u64).range(1..=6).map(|n| n as usize)
}

/// Make a dense model ternary, and say what that costs
///
/// Writes a model directory with its tokenizer and a report.json. The calibration text runs through the model one block at
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
    /// Planes of trits, 1 to 6: more are nearer to the dense model and larger
    #[arg(short, long, default_value_t = 3, value_parser = planes())]
    pub(crate) planes: usize,
    /// Weights of a row that share a scale
    #[arg(short, long, default_value = "128", value_parser = one_of(GROUPS))]
    pub(crate) group: Granularity,
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
    /// How trits are packed
    #[arg(long, default_value = "base3", value_parser = one_of(ENCODINGS))]
    pub(crate) encoding: Encoding,
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
