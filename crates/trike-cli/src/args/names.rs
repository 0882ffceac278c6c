//! Names of option values: one table for parsing, help, errors and reports.

use clap::{
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
    value_parser,
};
use trike::{
    ActivationPolicy, ActivationPrecision, EmbeddingStorage, Encoding, Eviction, HeadPrecision, PromptKeys,
    ScaleStorage, Split, Target,
    core::{InvalidKvPrecisions, Layout},
    cpu::MAX_THREADS,
    llm::{Pooling, Synthetic},
    trit::{Granularity, GroupSize},
};

use crate::topics::{TOPICS, Topic};

use super::{ActivationChoice, HeadStorage, KeysChoice, KvChoice, LayoutChoice};

/// The names of an option's values.
pub(super) type Names<T> = &'static [(&'static str, T)];

pub(super) const ACTIVATIONS: Names<ActivationChoice> = &[
    ("auto", ActivationChoice(None)),
    ("int8", ActivationChoice(Some(ActivationPolicy::Int8))),
    ("f32", fixed(ActivationPrecision::F32)),
    ("int16", fixed(ActivationPrecision::Int16)),
    ("int8-token", fixed(ActivationPrecision::Int8PerToken)),
    ("int8-group32", fixed(ActivationPrecision::Int8PerGroup(GroupSize::G32))),
    ("int8-group64", fixed(ActivationPrecision::Int8PerGroup(GroupSize::G64))),
    ("int8-group128", fixed(ActivationPrecision::Int8PerGroup(GroupSize::G128))),
    ("int8-group256", fixed(ActivationPrecision::Int8PerGroup(GroupSize::G256))),
];

const fn fixed(precision: ActivationPrecision) -> ActivationChoice {
    ActivationChoice(Some(ActivationPolicy::Fixed(precision)))
}

pub(super) const HEADS: Names<HeadPrecision> =
    &[("auto", HeadPrecision::Auto), ("stored", HeadPrecision::AsStored), ("int8", HeadPrecision::Int8)];
pub(super) const KEYS: Names<KeysChoice> = &[("all", KeysChoice::All), ("signs", KeysChoice::Signs)];
pub(super) const EVICTIONS: Names<Eviction> =
    &[(Eviction::Oldest.name(), Eviction::Oldest), (Eviction::Unattended.name(), Eviction::Unattended)];
pub(super) const LAYOUTS: Names<LayoutChoice> = &[
    ("auto", LayoutChoice(None)),
    (Layout::TwoBit.name(), LayoutChoice(Some(Layout::TwoBit))),
    (Layout::Base3.name(), LayoutChoice(Some(Layout::Base3))),
    (Layout::Sparse.name(), LayoutChoice(Some(Layout::Sparse))),
    (Layout::Bitmap.name(), LayoutChoice(Some(Layout::Bitmap))),
    (Layout::Blocks.name(), LayoutChoice(Some(Layout::Blocks))),
];
pub(super) const SPLITS: Names<Split> = &[
    ("stories", Split::Stories),
    ("lines", Split::Lines),
    ("window", Split::Window),
    ("llama.cpp", Split::LlamaCpp),
];
pub(super) const TARGETS: Names<Target> = &[
    (Target::Tq1_0.name(), Target::Tq1_0),
    (Target::Tq2_0.name(), Target::Tq2_0),
    (Target::Q2_0.name(), Target::Q2_0),
    (Target::Trike.name(), Target::Trike),
    (Target::F16.name(), Target::F16),
];
pub(super) const ENCODINGS: Names<Encoding> = &[
    (Encoding::Planes.name(), Encoding::Planes),
    (Encoding::TwoBit.name(), Encoding::TwoBit),
    (Encoding::Base3.name(), Encoding::Base3),
    (Encoding::Bitmap.name(), Encoding::Bitmap),
    (Encoding::RowCompressed.name(), Encoding::RowCompressed),
];
pub(super) const GROUPS: Names<Granularity> = &[
    ("32", Granularity::Group(GroupSize::G32)),
    ("64", Granularity::Group(GroupSize::G64)),
    ("128", Granularity::Group(GroupSize::G128)),
    ("256", Granularity::Group(GroupSize::G256)),
    ("row", Granularity::Row),
    ("tensor", Granularity::Tensor),
];
pub(super) const SCALES: Names<ScaleStorage> =
    &[("stored", ScaleStorage::Stored), ("f16", ScaleStorage::F16)];

pub(super) const EMBEDDINGS: Names<EmbeddingStorage> = &[
    ("stored", EmbeddingStorage::Stored),
    ("int8", EmbeddingStorage::Int8),
    ("q8_0", EmbeddingStorage::Int8),
    ("f16", EmbeddingStorage::F16),
];
pub(super) const HEAD_STORAGE: Names<HeadStorage> =
    &[("stored", HeadStorage::Stored), ("int8", HeadStorage::Int8)];
pub(super) const SIZES: Names<Synthetic> = &[
    (Synthetic::M125.name(), Synthetic::M125),
    (Synthetic::Large.name(), Synthetic::Large),
    (Synthetic::B2.name(), Synthetic::B2),
    (Synthetic::B8.name(), Synthetic::B8),
];

pub(super) const POOLINGS: Names<Pooling> = &[("mean", Pooling::Mean), ("last", Pooling::Last)];

#[cfg(feature = "mpi")]
pub(super) const PARALLEL: Names<trike::llm::ModelParallel> = {
    use trike::llm::ModelParallel;
    &[
        (ModelParallel::Tensor.name(), ModelParallel::Tensor),
        (ModelParallel::Pipeline.name(), ModelParallel::Pipeline),
    ]
};

/// A number of tokens; `None` without a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tokens(pub(crate) Option<usize>);

/// Parses a number of tokens; -1 means no limit.
pub(super) fn tokens(text: &str) -> Result<Tokens, String> {
    match text.parse() {
        Ok(-1) => Ok(Tokens(None)),
        Ok(number) if number >= 0i64 => Ok(Tokens(Some(number as usize))),
        Err(error) if *error.kind() == std::num::IntErrorKind::PosOverflow => {
            Err("expected a smaller number".to_owned())
        }
        _ => Err("expected a whole number, 0 or more, or -1 for no limit".to_owned()),
    }
}

/// An RNG seed; `None` for a random one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed(pub(crate) Option<u64>);

/// Parses a seed; -1 means a random one.
pub(super) fn seed(text: &str) -> Result<Seed, String> {
    match text {
        "-1" => Ok(Seed(None)),
        _ => text.parse().map(|seed| Seed(Some(seed))).map_err(|error: std::num::ParseIntError| match error
            .kind()
        {
            std::num::IntErrorKind::PosOverflow => "expected a smaller number".to_owned(),
            _ => "expected a whole number, 0 or more, or -1 for a random one".to_owned(),
        }),
    }
}

/// Parses one of the names; lists them in the help and in errors.
pub(super) fn one_of<T: Copy + Send + Sync + 'static>(names: Names<T>) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(names.iter().map(|(name, _)| *name)).try_map(|given| {
        names.iter().find(|(name, _)| *name == given).map(|(_, value)| *value).ok_or("no such name")
    })
}

/// Parses the name of a topic; the help lists them with their headings.
pub(super) fn topic() -> impl TypedValueParser<Value = Topic> {
    let values = TOPICS.iter().map(|(name, _, heading)| PossibleValue::new(*name).help(*heading));
    PossibleValuesParser::new(values).try_map(|given| {
        TOPICS.iter().find(|(name, ..)| *name == given).map(|(_, topic, _)| *topic).ok_or("no such topic")
    })
}

/// Parses a number of threads supported by [`trike::Cpu`].
pub(super) fn threads() -> impl TypedValueParser<Value = usize> {
    value_parser!(u64).range(0..=MAX_THREADS as u64).map(|n| n as usize)
}

/// Parses a count that cannot be 0.
pub(super) fn positive(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|&number| number > 0);
    number.ok_or_else(|| "expected a whole number, 1 or more".to_owned())
}

/// Parses precisions of the KV cache.
pub(super) fn kv(text: &str) -> Result<KvChoice, String> {
    match text {
        "auto" => Ok(KvChoice::Auto),
        _ => {
            text.parse().map(KvChoice::Given).map_err(|error: InvalidKvPrecisions| match text.contains(',') {
                true => error.to_string(),
                false => format!("{error}, or auto"),
            })
        }
    }
}

/// Parses a bound on the KL divergence.
pub(super) fn kl(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "expected a number, 0 or more".to_owned())
}

/// Parses the capacity of a cache with eviction.
pub(super) fn kv_limit(text: &str) -> Result<usize, String> {
    let least = Eviction::LEAST_CAPACITY;
    let number = text.parse().ok().filter(|&number| number >= least);
    number.ok_or_else(|| format!("expected a whole number, {least} or more"))
}

/// Parses the share of the keys that prompts attend to.
pub(super) fn prompt_keys(text: &str) -> Result<PromptKeys, String> {
    let keys = text.parse().ok().and_then(|share| PromptKeys::sampled(share).ok());
    keys.ok_or_else(|| "expected a number, 0.001 to 1".to_owned())
}

/// The name of a split.
pub(crate) fn split_name(split: Split) -> &'static str {
    SPLITS.iter().find(|(_, value)| *value == split).map_or("", |(name, _)| name)
}

/// The names of the activation precisions of a model's ternary layers, such as `int8-group64`; `none` without ternary layers.
pub(crate) fn activations_name(activations: &[ActivationPrecision]) -> String {
    let name = |precision: &ActivationPrecision| {
        ACTIVATIONS.iter().find(|(_, value)| *value == fixed(*precision)).map_or("", |(name, _)| *name)
    };
    match activations {
        [] => "none".to_owned(),
        all => all.iter().map(name).collect::<Vec<_>>().join(", "),
    }
}
