//! Errors of the library as Python exceptions.

use std::{error::Error, io, path::Path};

use pyo3::{
    create_exception,
    exceptions::{
        PyConnectionError, PyFileNotFoundError, PyKeyError, PyMemoryError, PyPermissionError, PyRuntimeError,
        PyValueError,
    },
    prelude::*,
};
use trike::hub::HubError;

create_exception!(
    trike,
    ModelError,
    PyValueError,
    "A path that is not a model, or a model that Trike cannot load, run or write."
);

/// The exception of an error: the matching one for an error of the operating system, `MemoryError` for lack of memory or threads,
/// else the result of `otherwise` for the message.
fn exception(error: &(dyn Error + 'static), otherwise: fn(String) -> PyErr) -> PyErr {
    let message = error.to_string();
    let mut cause = Some(error);
    while let Some(one) = cause {
        if let Some(system) = one.downcast_ref::<io::Error>() {
            // Python derives the class from the kind: FileNotFoundError, PermissionError and so on.
            return io::Error::new(system.kind(), message).into();
        }
        if let Some(trike::llm::LlmError::Format(inner)) = one.downcast_ref() {
            return exception(&**inner, otherwise);
        }
        if is_memory(one) {
            return PyMemoryError::new_err(message);
        }
        cause = one.source();
    }
    otherwise(message)
}

fn is_memory(error: &(dyn Error + 'static)) -> bool {
    use trike::{cpu::HostError, llm::LlmError};
    matches!(error.downcast_ref(), Some(LlmError::HostMemory { .. } | LlmError::TooLarge { .. }))
        || matches!(error.downcast_ref(), Some(HostError::Memory { .. }))
}

/// An error of the operating system about a file.
pub(crate) fn file(path: &Path, error: &io::Error) -> PyErr {
    io::Error::new(error.kind(), format!("{}: {error}", path.display())).into()
}

/// An invalid value: `ValueError`.
pub(crate) fn value(error: impl Error + 'static) -> PyErr {
    exception(&error, PyValueError::new_err)
}

/// An invalid model file, or an operation that the model does not support: [`ModelError`].
pub(crate) fn model(error: impl Error + 'static) -> PyErr {
    exception(&error, ModelError::new_err)
}

/// An error of a model's name on the hub or of its download: `FileNotFoundError` if it is missing, `PermissionError` if it is
/// forbidden, and `ConnectionError` for a failure of connection or server.
pub(crate) fn hub(error: HubError) -> PyErr {
    let message = error.to_string();
    match error {
        HubError::NotInCache { .. }
        | HubError::Offline { .. }
        | HubError::NoCache
        | HubError::NotFound { .. }
        | HubError::NoRevision { .. }
        | HubError::NoFile { .. } => PyFileNotFoundError::new_err(message),
        HubError::Gated { .. } | HubError::Refused { .. } | HubError::Token { .. } => {
            PyPermissionError::new_err(message)
        }
        HubError::Files { .. } | HubError::Index { .. } => model(error),
        HubError::InvalidName { .. } | HubError::Io { .. } => value(error),
        _ => PyConnectionError::new_err(message),
    }
}

/// An error while a model runs: options out of range are `ValueError`, everything else is [`ModelError`].
pub(crate) fn run(error: trike::llm::LlmError) -> PyErr {
    use trike::llm::LlmError;
    match error {
        LlmError::Option(_)
        | LlmError::Sampler(_)
        | LlmError::PromptTooLong { .. }
        | LlmError::Tokenizer(_)
        | LlmError::Chat(_)
        | LlmError::Constraint(_) => value(error),
        error => model(error),
    }
}

/// An error while a model is measured: nothing to score and options out of range are `ValueError`, others as in [`run`].
pub(crate) fn eval(error: trike::EvalError) -> PyErr {
    use trike::EvalError;
    match error {
        EvalError::Llm(error) => run(error),
        EvalError::Option(_) | EvalError::NothingToScore => value(error),
        error => model(error),
    }
}

/// A name that is not in a list: `ValueError` with both.
pub(crate) fn unknown(what: &str, got: &str, expected: &[&str]) -> PyErr {
    PyValueError::new_err(format!("{what}: expected one of {}, got {got:?}", expected.join(", ")))
}

/// An unexpected key: `KeyError`.
pub(crate) fn unknown_key(what: &str, got: &str, expected: &str) -> PyErr {
    PyKeyError::new_err(format!("{what}: expected {expected}, got {got:?}"))
}

/// A panic of the library, which is a bug: `RuntimeError`.
pub(crate) fn panic(payload: &(dyn std::any::Any + Send)) -> PyErr {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message");
    PyRuntimeError::new_err(format!("trike failed unexpectedly, please report it: {text}"))
}
