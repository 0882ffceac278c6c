//! Options of loading and of generation, from keyword arguments.

use pyo3::{exceptions::PyValueError, prelude::*};
use trike::{
    ActivationPolicy, ActivationPrecision, Cpu, GenerateOptions, HeadPrecision, KvOptions, KvPrecision,
    KvPrecisions, LoadOptions, Split,
    llm::{GenerationConfig, Pooling, SamplingOptions},
    text::constraint::Grammar,
};

use crate::errors;

/// Activation precision of ternary layers.
fn activations(name: &str) -> PyResult<Option<ActivationPolicy>> {
    Ok(match name {
        "auto" => None,
        "int8" => Some(ActivationPolicy::Int8),
        "int16" => Some(ActivationPrecision::Int16.into()),
        "f32" => Some(ActivationPrecision::F32.into()),
        got => return Err(errors::unknown("activations", got, &["auto", "int8", "int16", "f32"])),
    })
}

/// Precision of cached keys and values.
pub(crate) fn kv(text: Option<&str>) -> PyResult<Option<KvPrecisions>> {
    let Some(text) = text else { return Ok(None) };
    let accepted =
        || KvPrecision::ALL.iter().map(|one| one.name()).chain(["one for each layer as in int4,int8:0-1+5"]);
    let wrong = |_| errors::unknown("kv", text, &accepted().collect::<Vec<_>>());
    text.parse().map(Some).map_err(wrong)
}

/// Options of loading.
pub(crate) fn load(threads: usize, activations: &str, head: &str) -> PyResult<LoadOptions> {
    let head = match head {
        "auto" => HeadPrecision::Auto,
        "stored" => HeadPrecision::AsStored,
        "int8" => HeadPrecision::Int8,
        got => return Err(errors::unknown("head", got, &["auto", "stored", "int8"])),
    };
    let options = LoadOptions::default().with_head(head).with_cpu(Cpu::new(threads).map_err(errors::value)?);
    Ok(match self::activations(activations)? {
        Some(policy) => options.with_activations(policy),
        None => options,
    })
}

/// Pooling of the hidden states of a text's tokens.
pub(crate) fn pooling(name: &str) -> PyResult<Pooling> {
    match name {
        "mean" => Ok(Pooling::Mean),
        "last" => Ok(Pooling::Last),
        got => Err(errors::unknown("pooling", got, &["mean", "last"])),
    }
}

/// How a text is split into sequences; by default chosen from its contents.
pub(crate) fn split(name: Option<&str>, text: &str) -> PyResult<Split> {
    Ok(match name {
        None => Split::of(text),
        Some("stories") => Split::Stories,
        Some("lines") => Split::Lines,
        Some("window") => Split::Window,
        Some("llama-cpp") => Split::LlamaCpp,
        Some(got) => {
            return Err(errors::unknown("split", got, &["stories", "lines", "window", "llama-cpp"]));
        }
    })
}

/// Options of a generation as Python passes them; `None` = the model's own.
#[derive(FromPyObject)]
pub(crate) struct Sampling {
    max_tokens: Option<usize>,
    temperature: Option<f32>,
    top_k: Option<usize>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    seed: Option<u64>,
    stop: Vec<String>,
    kv: Option<String>,
    context: Option<usize>,
    window: Option<usize>,
    logprobs: Option<usize>,
    json_schema: Option<String>,
    regex: Option<String>,
    grammar: Option<String>,
}

impl Sampling {
    /// The options, with the model's recommended settings as defaults.
    pub(crate) fn options(&self, model: &GenerationConfig) -> PyResult<GenerateOptions> {
        let given = SamplingOptions {
            temperature: self.temperature,
            // 0 disables top-k, as in a generation configuration.
            top_k: self.top_k.map(|k| if k == 0 { usize::MAX } else { k }),
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed,
        };
        let sampler = given.sampler(model);
        sampler.validate().map_err(errors::value)?;
        Ok(GenerateOptions::default()
            .with_max_tokens(self.max_tokens)
            .with_sampler(sampler)
            .with_stop(self.stop.clone())
            .with_kv(KvOptions::from(kv(self.kv.as_deref())?).with_window(self.window))
            .with_context(self.context)
            .with_logprobs(self.logprobs)
            .with_grammar(self.form()?))
    }

    fn form(&self) -> PyResult<Option<Grammar>> {
        match (&self.json_schema, &self.regex, &self.grammar) {
            (None, None, None) => Ok(None),
            (Some(schema), None, None) => Ok(Some(Grammar::JsonSchema(schema.clone()))),
            (None, Some(regex), None) => Ok(Some(Grammar::Regex(regex.clone()))),
            (None, None, Some(grammar)) => Ok(Some(Grammar::Lark(grammar.clone()))),
            _ => Err(PyValueError::new_err("expected at most one of json_schema, regex and grammar")),
        }
    }
}
