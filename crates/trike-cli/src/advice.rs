//! User-facing advice for an error: the flag that sets a rejected field, and the next thing to try.
//!
//! The libraries name fields, values and remedies, but are independent of the command line. This module maps both to
//! flags; it also distinguishes wrong usage from other failures, by type and never by text.

use clap::{
    CommandFactory,
    error::{ContextKind, ContextValue},
};
use trike::{
    CalibrateError, EvalError, LlmError,
    calibrate::{ConfigError, EditError, FoldError},
    comm::CommError,
    core::OptionError,
    engine::EngineError,
    format::FormatError,
    nn::NnError,
    quant::QuantError,
    text::{chat::ChatError, constraint::ConstraintError, sampler::SamplerError, tokenizer::TokenizerError},
    train::TrainError,
};

use crate::naming::{BadLink, NoChatModel, NoModel};

/// Rewords a value that is not a number: the standard parsers say "invalid digit found in string".
pub(crate) fn reword(error: clap::Error) -> clap::Error {
    let Some(cause) = std::error::Error::source(&error) else { return error };
    let expected = if let Some(error) = cause.downcast_ref::<std::num::ParseIntError>() {
        match error.kind() {
            std::num::IntErrorKind::PosOverflow => "a smaller number",
            _ => "a whole number, 0 or more",
        }
    } else if cause.is::<std::num::ParseFloatError>() {
        "a number"
    } else {
        return error;
    };
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let (Some(value), Some(argument)) = (text(ContextKind::InvalidValue), text(ContextKind::InvalidArg))
    else {
        return error;
    };
    let message = format!("invalid value '{value}' for '{argument}': expected {expected}");
    crate::args::Cli::command().error(clap::error::ErrorKind::ValueValidation, message)
}

/// The library error found in an error chain.
pub(crate) enum Refusal<'a> {
    Llm(&'a LlmError),
    Eval(&'a EvalError),
    Calibrate(&'a CalibrateError),
    Train(&'a TrainError),
    Engine(&'a OptionError),
}

pub(crate) fn refusal(error: &anyhow::Error) -> Option<Refusal<'_>> {
    error.chain().find_map(|cause| {
        if let Some(error) = cause.downcast_ref::<CalibrateError>() {
            return Some(match error {
                CalibrateError::Llm(error) => Refusal::Llm(error),
                CalibrateError::Eval(error) => Refusal::Eval(error),
                error => Refusal::Calibrate(error),
            });
        }
        if let Some(error) = cause.downcast_ref::<TrainError>() {
            return Some(match error {
                TrainError::Llm(error) => Refusal::Llm(error),
                error => Refusal::Train(error),
            });
        }
        if let Some(error) = cause.downcast_ref::<EvalError>() {
            return Some(match error {
                EvalError::Llm(error) => Refusal::Llm(error),
                error => Refusal::Eval(error),
            });
        }
        if let Some(error) = cause.downcast_ref::<EngineError>() {
            return match error {
                EngineError::Model(error) => Some(Refusal::Llm(error)),
                EngineError::Option(error) => Some(Refusal::Engine(error)),
                _ => None,
            };
        }
        cause.downcast_ref().map(Refusal::Llm)
    })
}

/// Whether the library rejected the command line, as opposed to a file or the machine.
pub(crate) fn is_usage(error: &anyhow::Error) -> bool {
    if error.is::<NoChatModel>() || error.is::<BadLink>() {
        return true;
    }
    match refusal(error) {
        Some(Refusal::Calibrate(CalibrateError::Edit(EditError::Changed { .. }))) => false,
        Some(Refusal::Calibrate(error)) => {
            matches!(
                error,
                CalibrateError::Config(_)
                    | CalibrateError::Edit(_)
                    | CalibrateError::OutputExists { .. }
                    | CalibrateError::NotOurs { .. }
            ) || option(error).is_some()
        }
        Some(Refusal::Llm(error)) => match error {
            LlmError::Option(_)
            | LlmError::NotBuilt { .. }
            | LlmError::OutputPath { .. }
            | LlmError::TokenizerFile { .. }
            | LlmError::Sampler(SamplerError::Option(_))
            | LlmError::Constraint(ConstraintError::Grammar { .. })
            | LlmError::Tokenizer(TokenizerError::EmptyStop { .. }) => true,
            LlmError::Nn(error) => is_missing_device(error) || is_wrong_start(error),
            _ => false,
        },
        Some(Refusal::Eval(error)) => matches!(error, EvalError::Option(_)),
        Some(Refusal::Train(error)) => {
            matches!(
                error,
                TrainError::Config { .. }
                    | TrainError::Option(_)
                    | TrainError::DataFile { .. }
                    | TrainError::Comm(CommError::Differs { .. })
            )
        }
        Some(Refusal::Engine(_)) => true,
        None => false,
    }
}

/// Whether the requested device does not exist on this machine or is not supported by this build.
pub(crate) fn is_missing_device(error: &NnError) -> bool {
    #[cfg(feature = "gpu")]
    {
        use trike::nn::cube::CubeError;
        matches!(error, NnError::Cube(CubeError::NoDevice { .. } | CubeError::SoftwareSpirv { .. }))
    }
    #[cfg(not(feature = "gpu"))]
    {
        let _ = error;
        false
    }
}

/// Whether the model cannot run on the ranks as they were started.
fn is_wrong_start(error: &NnError) -> bool {
    matches!(error, NnError::Comm(CommError::Differs { .. }) | NnError::Spec { field: "ranks", .. })
}

/// Whether writing failed for lack of space.
pub(crate) fn is_full(error: &anyhow::Error) -> bool {
    use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    let mut errors = error.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    errors.any(|error| matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge))
}

/// Advice on an error, as one clause; `None` if the message is sufficient.
pub(crate) fn advice(error: &anyhow::Error) -> Option<String> {
    if is_full(error) {
        let kept = match refusal(error) {
            Some(Refusal::Calibrate(_)) => " and run the same command again: finished blocks are kept",
            Some(Refusal::Train(_)) => " and run the same command again: the last checkpoint is kept",
            Some(Refusal::Llm(_) | Refusal::Eval(_) | Refusal::Engine(_)) | None => "",
        };
        return Some(format!("make room there{kept}"));
    }
    if let Some(error) = error.downcast_ref::<NoModel>() {
        return Some(error.advice());
    }
    if let Some(error) = error.downcast_ref::<NoChatModel>() {
        return Some(error.advice());
    }
    match refusal(error)? {
        Refusal::Llm(error) => of_llm(error),
        Refusal::Eval(error) => of_eval(error),
        Refusal::Calibrate(error) => of_calibrate(error),
        Refusal::Train(error) => of_train(error),
        Refusal::Engine(error) => Some(format!("set it with {}", serve_flag(error.field()))),
    }
}

fn of_train(error: &TrainError) -> Option<String> {
    let own = |text: &str| Some(text.to_owned());
    match error {
        TrainError::Option(error) if error.field() == "number of ranks" => {
            own("start at most one rank for each block of the model")
        }
        TrainError::Option(error) => Some(match train_flag(error.field()) {
            Some(flag) => format!("set it with {flag}, or {} in the configuration", error.field()),
            None => format!("set {} in the configuration", error.field()),
        }),
        TrainError::Memory { .. } => own("try a smaller --batch or --length, or gradient_checkpointing = 1"),
        TrainError::Diverged { .. } => own("train with a lower --learning-rate into another directory"),
        TrainError::NothingToLearn { .. } | TrainError::TooFewDocuments { .. } => {
            own("give other --data, or more of it")
        }
        TrainError::CutAway { .. } => {
            own("give a larger --length, or sample_packing = true in the configuration")
        }
        TrainError::NothingLearned { .. } => own("train for more --steps, or with bf16 in place of fp16"),
        TrainError::Changed { .. } => own("put the file back, or choose another --output to start over"),
        TrainError::Vocabulary { .. } => own("choose a --teacher with the same tokenizer, or --teacher none"),
        TrainError::Checkpoint { .. } => {
            own("run the command that started it, or choose another --output to start over")
        }
        TrainError::Comm(CommError::Differs { .. }) => {
            own("start all ranks with the same command, version, models and data")
        }
        TrainError::Comm(_) => own("run the same command again: it continues after the last checkpoint"),
        _ => None,
    }
}

/// The option of `trike train` that sets a field of the configuration, if there is one.
fn train_flag(field: &str) -> Option<&'static str> {
    match field {
        "learning_rate" => Some("--learning-rate"),
        "micro_batch_size" => Some("--batch"),
        "max_steps" | "steps" => Some("--steps"),
        "minutes" => Some("--minutes"),
        "num_epochs" => Some("--epochs"),
        "planes" => Some("--planes"),
        "sequence_len" => Some("--length"),
        _ => None,
    }
}

fn of_llm(error: &LlmError) -> Option<String> {
    let own = |text: &str| Some(text.to_owned());
    match error {
        LlmError::Option(error) | LlmError::Sampler(SamplerError::Option(error)) => {
            Some(format!("set it with {}", flag(error.field())))
        }
        LlmError::NoTokenizer { .. }
        | LlmError::TokenizerMismatch { .. }
        | LlmError::TokenizerFile { .. }
        | LlmError::GgufTokenizer { .. } => own("pass a tokenizer file with --tokenizer FILE"),
        LlmError::Tokenizer(TokenizerError::EmptyStop { .. }) => own("pass a non-empty text to --stop"),
        LlmError::Tokenizer(TokenizerError::EmptyPrompt) => own("pass a prompt with --prompt TEXT"),
        LlmError::Chat(error) => match &**error {
            ChatError::NoSuchTemplate { .. } | ChatError::Syntax { .. } | ChatError::Unsupported { .. } => {
                own("pass another template with --chat-template FILE")
            }
            _ => None,
        },
        LlmError::PromptTooLong { .. } => own("shorten it, or use --window N for a rolling window"),
        LlmError::NotBuilt { .. } => own("`trike doctor` lists the devices that this build supports"),
        LlmError::Nn(error) if is_missing_device(error) => {
            own("`trike doctor` lists the devices that this build supports")
        }
        LlmError::Nn(NnError::Memory { .. } | NnError::SplitMemory { .. }) | LlmError::TooLarge { .. } => {
            own("use --device cpu to run the model on the CPU")
        }
        LlmError::HostMemory { .. } => own(
            "shorten the sequence with --context N, use --kv int8, or map the weights: `trike convert --to trike --packed`",
        ),
        LlmError::SessionFile { .. } => {
            own("choose another file with --prompt-cache FILE, or remove this one")
        }
        LlmError::Nn(NnError::Comm(CommError::Differs { .. })) => {
            own("start all ranks with the same command, version and model")
        }
        LlmError::Nn(NnError::Spec { field: "ranks", .. }) => {
            own("start another number of ranks with `mpirun -n N`")
        }
        LlmError::RankMemory { .. } => own(
            "start more ranks or more machines with `mpirun -n N`, or shorten the sequence with --context N",
        ),
        LlmError::Nn(NnError::Unsupported { .. }) => own("omit the option, or use --device cpu"),
        LlmError::Planes { .. } => {
            own("keep all planes with --to trike, or quantize the dense model with --planes 1")
        }
        LlmError::Int8Groups { .. } => own("round it again with --embeddings int8 or --embeddings f16"),
        LlmError::LeftOut { .. } => own("omit --strict to convert the rest"),
        LlmError::UnreadTensors { .. } => own("use the configuration that belongs to these weights"),
        LlmError::NotLossless { target, .. } if target == "f16" => own(
            "`--scales f16` and `--embeddings f16` round to f16; a directory with `--to trike` can store any model",
        ),
        LlmError::NotLossless { .. } => own("`trike quantize` makes a dense model ternary"),
        LlmError::OutputPath { .. } => own("choose another OUT, or another format with --to"),
        LlmError::Format(error) => of_format(error),
        _ => None,
    }
}

fn of_eval(error: &EvalError) -> Option<String> {
    match error {
        EvalError::Option(error) => Some(format!("set it with {}", flag(error.field()))),
        EvalError::NeedleText { .. } => Some(
            "give a longer text of sentences with --needle FILE, or shorten the haystacks with --context N"
                .to_owned(),
        ),
        _ => None,
    }
}

fn of_format(error: &FormatError) -> Option<String> {
    match error {
        FormatError::NotPacked { .. } => Some("`trike convert --to trike` packs a ternary model".to_owned()),
        FormatError::PackedSize { .. } => {
            Some("convert it with `trike convert --to trike --encoding base3`".to_owned())
        }
        FormatError::CannotHold { .. } => Some(
            "choose a type with --to, or a directory as the output, which can store any model; `--scales f16` rounds scales to f16"
                .to_owned(),
        ),
        _ => None,
    }
}

fn of_calibrate(error: &CalibrateError) -> Option<String> {
    if let Some(error) = option(error) {
        return Some(format!("set it with {}", quantize_flag(error.field())?));
    }
    let text = match error {
        CalibrateError::Config(error) => return Some(format!("see {}", flag_of_config(error)?)),
        CalibrateError::Fold(FoldError::Ternary { .. }) => "omit --salience and --rotate",
        CalibrateError::Edit(EditError::Rotated { .. }) => {
            "use --zero-row or --negate-row to change whole rows"
        }
        CalibrateError::CalibrationText { .. } => {
            "pass a longer text with --calibration FILE, or increase --sequences"
        }
        CalibrateError::DeviceMemory { .. } => "use a smaller --tune-max-weights, or omit --device",
        CalibrateError::Memory { .. } => "use fewer or shorter --sequences, or --no-tune",
        CalibrateError::PlanFile { .. } => {
            "`trike quantize --plan-only` with a budget writes a plan for --plan"
        }
        CalibrateError::OutputExists { .. } | CalibrateError::NotOurs { .. } => {
            "choose another output with --output"
        }
        CalibrateError::AlreadyTernary { .. } => {
            "choose a dense model with -m; `trike convert` changes the format of this one"
        }
        CalibrateError::Edit(EditError::Changed { .. }) => {
            "edits.json in its directory belongs to other weights: remove it to edit these"
        }
        CalibrateError::Edit(EditError::NotADirectory { .. }) => {
            "`trike convert FILE DIR --to trike` makes such a directory"
        }
        CalibrateError::Format(error) => return of_format(error),
        _ => return None,
    };
    Some(text.to_owned())
}

/// The rejected option, also if the error names a tensor.
fn option(error: &CalibrateError) -> Option<&OptionError> {
    match error {
        CalibrateError::Option(error) => Some(error),
        CalibrateError::Quantize { source, .. } => match &**source {
            QuantError::Option(error) => Some(error),
            _ => None,
        },
        _ => None,
    }
}

/// The flag that sets a field of the library's options.
fn flag(field: &str) -> String {
    match field {
        "prompt" => "-p, --prompt".to_owned(),
        "generate" => "-n, --generate".to_owned(),
        "repetitions" => "-r, --repetitions".to_owned(),
        "depths" => "-d, --depth".to_owned(),
        "haystacks" => "--limit".to_owned(),
        field => format!("--{}", field.replace('_', "-")),
    }
}

/// The flag of `trike serve` that sets a field.
fn serve_flag(field: &str) -> String {
    match field {
        "sequences" => "--parallel".to_owned(),
        "memory" => "--kv-memory, in bytes with a unit such as MB".to_owned(),
        field => flag(field),
    }
}

/// The flag of `trike quantize` that sets a field; `None` for fields that no flag sets.
fn quantize_flag(field: &str) -> Option<&'static str> {
    Some(match field {
        "input_rotation" => "--hadamard",
        "damping" => "--damping",
        "tuning.block_epochs" => "--tune-block-epochs",
        "tuning.model_epochs" => "--tune-model-epochs",
        "tuning.rate" => "--tune-rate",
        "planes" | "depth" => "--planes",
        "rule" => "--method, --coupling or --mean",
        "coupling" => "--coupling",
        "granularity" => "--group",
        "with_mean" => "--mean",
        "share" => "--prune",
        "divergence" | "bits per weight" | "bytes" | "perplexity ratio" => "--target",
        _ => return None,
    })
}

/// The flag of `trike quantize` that a configuration error refers to.
fn flag_of_config(error: &ConfigError) -> Option<&'static str> {
    Some(match error {
        ConfigError::PruneRotated => "--prune and --hadamard",
        ConfigError::TensorScale => "--group and --method",
        ConfigError::RecoverLarge { .. } => "--recover and --tune-max-weights",
        ConfigError::DeviceUntuned { .. } | ConfigError::SeveralDevices { .. } => "--device",
        ConfigError::SkipsAll { .. } => "--skip",
        ConfigError::PruneFraction { .. } => "--prune",
        ConfigError::PrunePattern { .. } => "--prune-pattern",
        ConfigError::PruneRounded | ConfigError::BudgetRounded => "--method",
        ConfigError::PruneMeans => "--prune and --mean",
        ConfigError::BudgetPruned => "--prune",
        ConfigError::PlanGroups => "--group",
        ConfigError::PerplexityRatio { .. } => "--target",
        ConfigError::NothingHeldOut { .. } => "--calibration and --sequences",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use trike::core::Bounds;

    use super::*;
    use crate::args::Cli;

    /// Every flag of every command, with its short form.
    fn flags() -> Vec<String> {
        let cli = Cli::command();
        let all = cli.get_subcommands().flat_map(clap::Command::get_arguments);
        let names = |arg: &clap::Arg| {
            [arg.get_long().map(|l| format!("--{l}")), arg.get_short().map(|s| format!("-{s}"))]
        };
        all.flat_map(names).flatten().collect()
    }

    #[test]
    fn every_flag_that_is_named_is_one() {
        let flags = flags();
        let path = || "a".into();
        let range = |field| OptionError::check(field, Bounds::at_least(1usize), 0usize).unwrap_err();
        let fields = [
            "window",
            "context",
            "prompt",
            "generate",
            "depths",
            "sequences",
            "repetitions",
            "temperature",
            "top_k",
            "top_p",
            "min_p",
        ];
        let quantize = [
            "input_rotation",
            "damping",
            "tuning.block_epochs",
            "tuning.model_epochs",
            "tuning.rate",
            "planes",
            "depth",
            "rule",
            "coupling",
            "granularity",
            "with_mean",
            "share",
            "divergence",
            "bits per weight",
            "bytes",
            "perplexity ratio",
        ];
        let config = [
            ConfigError::PruneRotated,
            ConfigError::TensorScale,
            ConfigError::RecoverLarge { got: 2, most: 1 },
            ConfigError::DeviceUntuned { device: "cuda:0".to_owned() },
            ConfigError::SeveralDevices { got: 2 },
            ConfigError::SkipsAll { pattern: "*".to_owned() },
            ConfigError::PruneFraction { got: 1.0 },
            ConfigError::PrunePattern { keep: 0, of: 0 },
            ConfigError::PruneRounded,
            ConfigError::PruneMeans,
            ConfigError::BudgetPruned,
            ConfigError::PlanGroups,
            ConfigError::PerplexityRatio { got: 0.5 },
            ConfigError::NothingHeldOut { got: 1 },
        ];
        let errors = fields
            .map(|field| anyhow::Error::from(LlmError::from(range(field))))
            .into_iter()
            .chain([
                LlmError::NoTokenizer { path: path() }.into(),
                LlmError::PromptTooLong { tokens: 2, context: 1 }.into(),
                LlmError::OutputPath { path: path(), target: "tq2_0", is_file: true }.into(),
                LlmError::from(TokenizerError::EmptyStop { index: 0 }).into(),
                LlmError::from(TokenizerError::EmptyPrompt).into(),
                CalibrateError::OutputExists { path: path() }.into(),
                CalibrateError::PlanFile {
                    path: path(),
                    key: "a".to_owned(),
                    expected: "b",
                    got: "c".to_owned(),
                }
                .into(),
                CalibrateError::from(EditError::Rotated { block: 8 }).into(),
                CalibrateError::CalibrationText { sequences: 0, tokens: 0, needed: 16 }.into(),
                CalibrateError::Memory { needed: 2, free: 1, limit: "this machine" }.into(),
                CalibrateError::DeviceMemory { needed: 2, free: 1 }.into(),
            ])
            .chain(quantize.map(|field| CalibrateError::from(range(field)).into()))
            .chain(quantize.map(|field| {
                let source = Box::new(QuantError::from(range(field)));
                CalibrateError::Quantize { tensor: "a".to_owned(), source }.into()
            }))
            .chain(config.map(|error| CalibrateError::from(error).into()));
        for error in errors {
            let advice = advice(&error).unwrap_or_else(|| panic!("{error}"));
            let named = advice.split([' ', ',', '`']).filter(|word| word.starts_with('-'));
            let named: Vec<&str> = named.collect();
            assert!(!named.is_empty(), "{error}: {advice}");
            for flag in named {
                assert!(flags.iter().any(|known| known == flag), "{error}: {flag} in {advice}");
            }
        }
    }

    #[test]
    fn usage_is_told_from_failure() {
        let option = OptionError::Conflict { field: "a", other: "b" };
        assert!(is_usage(&LlmError::from(option.clone()).into()));
        assert!(is_usage(&LlmError::from(SamplerError::Option(option.clone())).into()));
        let target = || LlmError::OutputPath { path: "a".into(), target: "Q2_0", is_file: true };
        assert!(is_usage(&anyhow::Error::from(target()).context("b")));
        assert!(is_usage(&CalibrateError::from(target()).into()));
        assert!(is_usage(&CalibrateError::from(ConfigError::PlanGroups).into()));
        let quantize =
            |source| anyhow::Error::from(CalibrateError::Quantize { tensor: "a".to_owned(), source });
        assert!(is_usage(&quantize(Box::new(option.into()))));
        assert!(!is_usage(&quantize(Box::new(QuantError::NoChoices { layer: 0 }))));
        for error in [EvalError::NothingToScore.into(), anyhow::anyhow!("else")] {
            assert!(!is_usage(&error), "{error}");
        }
    }

    #[test]
    fn an_error_without_a_next_step_has_no_advice() {
        assert_eq!(advice(&EvalError::NothingToScore.into()), None);
        assert_eq!(advice(&anyhow::anyhow!("else")), None);
    }
}
