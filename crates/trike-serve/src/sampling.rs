//! The fields that all texts share: sampling, limits, formats.

use serde_json::{Map, Value, json};
use trike_llm::GenerateOptions;
use trike_text::constraint::Grammar;
use trike_text::sampler::{GenerationConfig, SamplingOptions};

use crate::error::ApiError;
use crate::fields::Fields;

/// Most texts of one request.
const MOST_CHOICES: usize = 16;
/// Most tokens with log-probabilities.
const MOST_LOGPROBS: usize = 20;

/// Fields of other servers with the value that changes nothing, in JSON.
const NEUTRAL: &[(&str, &str)] = &[
    ("dry_multiplier", "0"),
    ("dynatemp_range", "0"),
    ("id_slot", "-1"),
    ("ignore_eos", "false"),
    ("min_tokens", "0"),
    ("mirostat", "0"),
    ("n_keep", "0"),
    ("n_probs", "0"),
    ("return_progress", "false"),
    ("skip_special_tokens", "true"),
    ("stop_token_ids", "[]"),
    ("timings_per_token", "false"),
    ("typical_p", "1"),
    ("xtc_probability", "0"),
];

/// What a client asks of a text.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) options: GenerateOptions,
    /// Number of texts.
    pub(crate) choices: usize,
    pub(crate) stream: bool,
    /// Whether a stream ends with the numbers of tokens.
    pub(crate) usage: bool,
}

impl Wanted {
    /// Reads the fields of a chat, or of the continuation of a text.
    pub(crate) fn read(
        fields: &mut Fields,
        model: &GenerationConfig,
        is_chat: bool,
    ) -> Result<Self, ApiError> {
        let seed: Option<i64> = fields.take("seed", "a whole number")?;
        let repetition = fields.number("repetition_penalty")?;
        let sampling = SamplingOptions {
            temperature: fields.number("temperature")?,
            // As in other servers, 0 and negative numbers turn it off.
            top_k: fields.take::<i64>("top_k", "a whole number")?.filter(|k| *k > 0).map(|k| k as usize),
            top_p: fields.number("top_p")?,
            min_p: fields.number("min_p")?,
            repetition_penalty: fields.number("repeat_penalty")?.or(repetition),
            // -1 is a random seed.
            seed: seed.filter(|seed| *seed != -1).map(i64::cast_unsigned),
        };
        let sampler = if is_chat { sampling.chat_sampler(model) } else { sampling.sampler(model) };
        let sampler = sampler
            .with_presence_penalty(fields.number("presence_penalty")?.unwrap_or(0.0))
            .with_frequency_penalty(fields.number("frequency_penalty")?.unwrap_or(0.0))
            .with_logit_bias(bias(fields.value("logit_bias"))?);
        let window: Option<i64> = fields.take("repeat_last_n", "a whole number")?;
        let sampler = match window {
            None => sampler,
            Some(..=-1) => sampler.with_repetition_window(usize::MAX),
            Some(0) => {
                sampler.with_repetition_penalty(1.0).with_presence_penalty(0.0).with_frequency_penalty(0.0)
            }
            Some(window) => sampler.with_repetition_window(window as usize),
        };
        let longer: Option<i64> = fields.take("max_completion_tokens", "a whole number")?;
        let predicted: Option<i64> = fields.take("n_predict", "a whole number")?;
        let max_tokens: Option<i64> = fields.take("max_tokens", "a whole number")?;
        // A negative number is no limit.
        let max_tokens = max_tokens.or(longer).or(predicted).and_then(|max| usize::try_from(max).ok());
        let choices = fields.count("n")?.unwrap_or(1);
        if !(1..=MOST_CHOICES).contains(&choices) {
            let message = format!("`n`: expected 1 to {MOST_CHOICES}, got {choices}");
            return Err(ApiError::invalid("n", message));
        }
        let stream = fields.flag("stream")?;
        let usage = stream_usage(fields)?;
        let options = GenerateOptions::default()
            .with_sampler(sampler)
            .with_max_tokens(max_tokens)
            .with_stop(fields.strings("stop")?)
            .with_grammar(grammar(fields)?)
            .with_logprobs(logprobs(fields, is_chat)?);
        for (name, neutral) in NEUTRAL {
            let neutral: Value = serde_json::from_str(neutral).unwrap_or_default();
            fields.only(name, &[neutral], "leave it out")?;
        }
        fields.without_effect(&[
            "prompt_cache_retention",
            "verbose",
            "user",
            "metadata",
            "store",
            "service_tier",
            "safety_identifier",
            "prompt_cache_key",
            "cache_prompt",
        ]);
        Ok(Self { options, choices, stream, usage })
    }
}

/// Pairs of token and bias, as an object or a list; `false` excludes a token.
fn bias(value: Option<Value>) -> Result<Vec<(u32, f32)>, ApiError> {
    let wrong = || {
        let message = "`logit_bias`: expected an object of token ids and numbers, or a list of such pairs";
        ApiError::invalid("logit_bias", message)
    };
    let pair = |id: Option<u64>, bias: &Value| {
        let id = id.and_then(|id| u32::try_from(id).ok()).ok_or_else(wrong)?;
        let bias = if bias == &Value::Bool(false) {
            f32::NEG_INFINITY
        } else {
            bias.as_f64().ok_or_else(wrong)? as f32
        };
        Ok((id, bias))
    };
    match value {
        None => Ok(Vec::new()),
        Some(Value::Object(map)) => map.iter().map(|(id, bias)| pair(id.parse().ok(), bias)).collect(),
        Some(Value::Array(list)) => list
            .iter()
            .map(|item| match item.as_array().map(Vec::as_slice) {
                Some([id, bias]) => pair(id.as_u64(), bias),
                _ => Err(wrong()),
            })
            .collect(),
        Some(_) => Err(wrong()),
    }
}

fn stream_usage(fields: &mut Fields) -> Result<bool, ApiError> {
    let options: Option<Map<String, Value>> = fields.take("stream_options", "an object")?;
    match options {
        None => Ok(false),
        Some(options) => {
            let mut options = Fields::read(Value::Object(options).to_string().as_bytes())?;
            let usage = options.flag("include_usage")?;
            options.without_effect(&["include_obfuscation"]);
            options.end()?;
            Ok(usage)
        }
    }
}

/// Number of most probable tokens to report.
fn logprobs(fields: &mut Fields, is_chat: bool) -> Result<Option<usize>, ApiError> {
    let (count, wanted) = match is_chat {
        true => (fields.count("top_logprobs")?, fields.flag("logprobs")?),
        false => {
            let count = fields.count("logprobs")?;
            (count, count.is_some())
        }
    };
    match count {
        Some(count) if count > MOST_LOGPROBS => {
            let message = format!("`top_logprobs`: expected at most {MOST_LOGPROBS}, got {count}");
            Err(ApiError::invalid("top_logprobs", message))
        }
        Some(1..) if !wanted => {
            Err(ApiError::invalid("top_logprobs", "`top_logprobs` has an effect with `logprobs` only"))
        }
        count => Ok(wanted.then_some(count.unwrap_or(0))),
    }
}

/// The format of the text: JSON of a schema, or free.
fn grammar(fields: &mut Fields) -> Result<Option<Grammar>, ApiError> {
    let schema = fields.value("json_schema");
    let regex = fields.string("regex")?;
    fields.only("grammar", &[json!("")], "give a JSON schema as `response_format`, or a `regex`")?;
    let of = |schema: &Value| Grammar::JsonSchema(schema.to_string());
    let format: Option<Map<String, Value>> = fields.take("response_format", "an object")?;
    let wrong = |message: String| ApiError::invalid("response_format", message);
    let format = match format {
        None => None,
        Some(format) => match format.get("type").and_then(Value::as_str) {
            Some("text") => None,
            Some("json_object") => Some(of(format.get("schema").unwrap_or(&json!({ "type": "object" })))),
            Some("json_schema") => {
                let inner = format.get("json_schema").and_then(|schema| schema.get("schema"));
                let schema = inner.or_else(|| format.get("schema"));
                let missing = || wrong("`response_format`: expected `json_schema.schema`".to_owned());
                Some(of(schema.ok_or_else(missing)?))
            }
            other => {
                let expected = "expected the type `text`, `json_object` or `json_schema`";
                let got = other.unwrap_or("none");
                return Err(wrong(format!("`response_format`: {expected}, got {got:?}")));
            }
        },
    };
    let all: Vec<Grammar> =
        [schema.as_ref().map(of), regex.map(Grammar::Regex), format].into_iter().flatten().collect();
    match <[Grammar; 1]>::try_from(all) {
        Ok([one]) => Ok(Some(one)),
        Err(all) if all.is_empty() => Ok(None),
        Err(_) => {
            Err(wrong("one of `response_format`, `json_schema` and `regex` can be enforced".to_owned()))
        }
    }
}
