//! Results of generations as dicts.

use pyo3::{prelude::*, types::PyDict};
use trike::Generation;

/// A generation as a dict.
pub(crate) fn as_dict<'py>(py: Python<'py>, generation: &Generation) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("text", &generation.text)?;
    dict.set_item("ids", &generation.ids)?;
    dict.set_item("prompt_ids", &generation.prompt_ids)?;
    dict.set_item("finish", generation.finish.name())?;
    dict.set_item("reused_tokens", generation.reused)?;
    dict.set_item("prompt_seconds", generation.prefill.as_secs_f64())?;
    dict.set_item("decode_seconds", generation.decode.as_secs_f64())?;
    dict.set_item("tokens_per_second", generation.tokens_per_second())?;
    let logprobs = generation.logprobs.iter().map(|token| (token.id, token.logprob, token.top.clone()));
    dict.set_item("logprobs", logprobs.collect::<Vec<_>>())?;
    Ok(dict)
}
