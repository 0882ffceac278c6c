//! The topic of `trike explain` that an error belongs to.

use trike::{
    CalibrateError, LlmError,
    format::FormatError,
    hub::HubError,
    nn::NnError,
    text::{chat::ChatError, tokenizer::TokenizerError},
    train::TrainError,
};

use crate::{
    advice::{Refusal, is_full, is_missing_device, refusal},
    naming::{BadLink, NoChatModel, NoChatTemplate, NoModel},
    topics::Topic,
};

/// The topic of an error, if the page has more on it than the message and its advice.
pub(crate) fn topic(error: &anyhow::Error) -> Option<Topic> {
    if let Some(error) = error.downcast_ref::<NoModel>() {
        return Some(if error.may_be_prompt { Topic::Prompt } else { Topic::Model });
    }
    if error.is::<NoChatTemplate>() {
        return Some(Topic::Tokenizer);
    }
    if error.is::<NoChatModel>() || error.is::<BadLink>() {
        return Some(Topic::Model);
    }
    if is_full(error) {
        return Some(Topic::Output);
    }
    if let Some(error) = error.chain().find_map(|cause| cause.downcast_ref::<HubError>()) {
        return of_hub(error);
    }
    match refusal(error) {
        Some(Refusal::Llm(error)) => of_llm(error),
        Some(Refusal::Calibrate(error)) => of_calibrate(error),
        Some(Refusal::Train(error)) => of_train(error),
        Some(Refusal::Engine(error)) => (error.field() == "context").then_some(Topic::Context),
        Some(Refusal::Eval(_)) => None,
        None => error.chain().find_map(|cause| cause.downcast_ref().map(of_format))?,
    }
}

fn of_hub(error: &HubError) -> Option<Topic> {
    match error {
        // Their messages say it all: the server or the network is at fault, or the disk.
        HubError::Io { .. }
        | HubError::Interrupted { .. }
        | HubError::Answer { .. }
        | HubError::Digest { .. }
        | HubError::Status { .. } => None,
        HubError::Index { .. } => Some(Topic::File),
        _ => Some(Topic::Model),
    }
}

fn of_llm(error: &LlmError) -> Option<Topic> {
    match error {
        LlmError::Format(error) => of_format(error),
        LlmError::Hub(error) => of_hub(error),
        LlmError::NoTokenizer { .. }
        | LlmError::TokenizerMismatch { .. }
        | LlmError::TokenizerFile { .. }
        | LlmError::GgufTokenizer { .. } => Some(Topic::Tokenizer),
        LlmError::Tokenizer(error) => {
            (!matches!(error, TokenizerError::EmptyPrompt | TokenizerError::EmptyStop { .. }))
                .then_some(Topic::Tokenizer)
        }
        LlmError::Chat(error) => match **error {
            ChatError::NoSuchTemplate { .. } | ChatError::Syntax { .. } | ChatError::Unsupported { .. } => {
                Some(Topic::Tokenizer)
            }
            _ => None,
        },
        LlmError::PromptTooLong { .. } => Some(Topic::Context),
        LlmError::Option(error) => (error.field() == "context").then_some(Topic::Context),
        LlmError::HostMemory { .. } | LlmError::RankMemory { .. } | LlmError::TooLarge { .. } => {
            Some(Topic::Memory)
        }
        LlmError::Nn(NnError::Memory { .. } | NnError::SplitMemory { .. }) => Some(Topic::Memory),
        LlmError::Nn(error) if is_missing_device(error) => Some(Topic::Gpu),
        LlmError::NotBuilt { .. } => Some(Topic::Gpu),
        LlmError::Unsupported { .. } | LlmError::Config { .. } | LlmError::UnreadTensors { .. } => {
            Some(Topic::File)
        }
        LlmError::Planes { .. } => Some(Topic::Quantize),
        _ => None,
    }
}

fn of_format(error: &FormatError) -> Option<Topic> {
    match error {
        FormatError::Io { action: "open", .. } => Some(Topic::Model),
        FormatError::Io { .. } => None,
        FormatError::Write { .. } => Some(Topic::Output),
        FormatError::CannotHold { .. } => Some(Topic::Quantize),
        FormatError::Rounding { .. } | FormatError::NotPacked { .. } | FormatError::PackedSize { .. } => None,
        _ => Some(Topic::File),
    }
}

fn of_calibrate(error: &CalibrateError) -> Option<Topic> {
    match error {
        CalibrateError::Memory { .. } => Some(Topic::Memory),
        CalibrateError::Format(error) => of_format(error),
        CalibrateError::OutputExists { .. } | CalibrateError::NotOurs { .. } | CalibrateError::Io { .. } => {
            Some(Topic::Output)
        }
        CalibrateError::AlreadyTernary { .. }
        | CalibrateError::Budget { .. }
        | CalibrateError::BudgetMet { .. }
        | CalibrateError::CalibrationText { .. } => Some(Topic::Quantize),
        _ => None,
    }
}

fn of_train(error: &TrainError) -> Option<Topic> {
    match error {
        TrainError::Memory { .. } => Some(Topic::Memory),
        TrainError::Diverged { .. }
        | TrainError::NonFinite { .. }
        | TrainError::NothingToLearn { .. }
        | TrainError::TooFewDocuments { .. }
        | TrainError::CutAway { .. }
        | TrainError::NothingLearned { .. }
        | TrainError::Changed { .. }
        | TrainError::Vocabulary { .. }
        | TrainError::Checkpoint { .. } => Some(Topic::Train),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use trike::{core::Bounds, core::OptionError};

    use super::*;
    use crate::topics::TOPICS;

    #[test]
    fn errors_lead_to_every_topic_that_is_an_error() {
        let path = || "a".into();
        let context = || OptionError::check("context", Bounds::at_least(1usize), 0usize).unwrap_err();
        let full = || std::io::Error::from(std::io::ErrorKind::StorageFull);
        let format = |error: FormatError| LlmError::Format(Box::new(error));
        let missing = || FormatError::Io { path: path(), action: "open", source: full() };
        let errors: Vec<(anyhow::Error, Topic)> = vec![
            (NoModel { may_be_prompt: true, ..NoModel::new("a", []) }.into(), Topic::Prompt),
            (NoModel::new("a", []).into(), Topic::Model),
            (HubError::NoCache.into(), Topic::Model),
            (LlmError::Hub(Box::new(HubError::NoCache)).into(), Topic::Model),
            (
                format(FormatError::Truncated {
                    path: path(),
                    what: "b".to_owned(),
                    needed: 2,
                    available: 1,
                })
                .into(),
                Topic::File,
            ),
            (NoChatTemplate { path: "a".to_owned() }.into(), Topic::Tokenizer),
            (LlmError::NoTokenizer { path: path() }.into(), Topic::Tokenizer),
            (LlmError::PromptTooLong { tokens: 2, context: 1 }.into(), Topic::Context),
            (LlmError::Option(context()).into(), Topic::Context),
            (CalibrateError::Memory { needed: 2, free: 1, limit: "this machine" }.into(), Topic::Memory),
            (CalibrateError::OutputExists { path: path() }.into(), Topic::Output),
            (full().into(), Topic::Output),
            (CalibrateError::AlreadyTernary { path: path() }.into(), Topic::Quantize),
            (TrainError::NothingLearned { steps: 1 }.into(), Topic::Train),
            (LlmError::NotBuilt { device: trike::core::DeviceSpec::Auto }.into(), Topic::Gpu),
        ];
        for (error, expected) in &errors {
            assert_eq!(topic(error), Some(*expected), "{error}");
        }
        // The others are symptoms without an error: `trike explain` lists them.
        let symptoms = [Topic::Gibberish, Topic::Slow, Topic::Settings];
        for (name, listed, _) in TOPICS {
            assert_ne!(errors.iter().any(|(_, of)| of == listed), symptoms.contains(listed), "{name}");
        }
        assert_eq!(topic(&anyhow::Error::from(format(missing())).context("b")), Some(Topic::Output), "full");
        let gone = std::io::Error::from(std::io::ErrorKind::NotFound);
        let missing = FormatError::Io { path: path(), action: "open", source: gone };
        assert_eq!(topic(&format(missing).into()), Some(Topic::Model));
        assert_eq!(topic(&anyhow::anyhow!("else")), None);
    }
}
