//! The keys about tokens that `transformers` 5 or llama.cpp read, with Trike's treatment of each.
//!
//! `docs/src/keys/tokenizer.md` shows the same lists; a test compares them.

use serde_json::{Map, Value};

use super::TokenizerError;

/// Treatment of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// It is read.
    Read,
    /// It does not affect Trike.
    NoEffect,
    /// A file that sets it is refused, naming the key.
    Refused,
}

/// A key of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The name.
    pub name: &'static str,
    /// The treatment.
    pub treatment: Treatment,
    /// The reason, or the effect.
    pub note: &'static str,
}

const fn read(name: &'static str, note: &'static str) -> Key {
    Key { name, treatment: Treatment::Read, note }
}

const fn no_effect(name: &'static str, note: &'static str) -> Key {
    Key { name, treatment: Treatment::NoEffect, note }
}

const fn refused(name: &'static str, note: &'static str) -> Key {
    Key { name, treatment: Treatment::Refused, note }
}

/// Keys of `tokenizer_config.json`.
pub const TOKENIZER_CONFIG: &[Key] = &[
    read(
        "add_bos_token",
        "beside tokenizer.model; a tokenizer.json decides by its post-processor alone, as in transformers 5",
    ),
    read("add_eos_token", "as add_bos_token"),
    read("add_prefix_space", "beside tokenizer.model; in a tokenizer.json the pre-tokenizer decides"),
    read("legacy", "beside tokenizer.model: whether text behind a special token gets a space"),
    read("bos_token", "BOS, and a variable of the chat template"),
    read("eos_token", "the token of add_eos_token, and a variable of the chat template"),
    read("unk_token", "a special token, and a variable of the chat template"),
    read("pad_token", "a special token, and a variable of the chat template"),
    read("sep_token", "a special token, and a variable of the chat template"),
    read("cls_token", "a special token, and a variable of the chat template"),
    read("mask_token", "a special token, and a variable of the chat template"),
    read("additional_special_tokens", "further special tokens"),
    read("extra_special_tokens", "further special tokens"),
    read("added_tokens_decoder", "added tokens; with it, the two older files are not read"),
    read("chat_template", "unless chat_template.jinja replaces it"),
    no_effect("auto_map", "names code, which is not run"),
    no_effect("backend", "names an implementation"),
    no_effect("clean_up_tokenization_spaces", "changes decoded text only; text is given as it was generated"),
    no_effect("device_map", "placement"),
    no_effect("do_lower_case", "of tokenizers without BPE"),
    no_effect("errors", "bytes that are not UTF-8 become U+FFFD"),
    no_effect("init_inputs", "always empty"),
    no_effect("is_local", "where it was loaded from"),
    no_effect("max_length", "text is not cut"),
    no_effect("model_input_names", "no tensors are named"),
    no_effect("model_max_length", "text is not cut; the context is the model's"),
    no_effect("name_or_path", "where it was loaded from"),
    no_effect("pad_to_multiple_of", "nothing is padded"),
    no_effect("pad_token_type_id", "nothing is padded"),
    no_effect("padding_side", "nothing is padded"),
    no_effect("processor_class", "of models with images or sound"),
    no_effect("sp_model_kwargs", "not used by transformers 5 either"),
    no_effect("spaces_between_special_tokens", "special tokens have no text"),
    no_effect("special_tokens_map_file", "a path of its author"),
    no_effect("stride", "text is not cut"),
    no_effect("tokenizer_class", "the tokenizer's file says what it is"),
    no_effect("tokenizer_file", "a path of its author"),
    no_effect("truncation_side", "text is not cut"),
    no_effect("truncation_strategy", "text is not cut"),
    no_effect("use_default_system_prompt", "the template decides"),
    no_effect("vocab_file", "a path of its author"),
    refused("fix_mistral_regex", "replaces the pre-tokenizer"),
    refused("split_special_tokens", "special tokens in text would be text"),
];

/// Keys of `special_tokens_map.json`.
pub const SPECIAL_TOKENS_MAP: &[Key] = &[
    read("bos_token", "before tokenizer_config.json, unless that has added_tokens_decoder"),
    read("eos_token", "before tokenizer_config.json, unless that has added_tokens_decoder"),
    read("unk_token", "before tokenizer_config.json, unless that has added_tokens_decoder"),
    read("pad_token", "before tokenizer_config.json, unless that has added_tokens_decoder"),
    read("sep_token", "before tokenizer_config.json, unless that has added_tokens_decoder"),
    read("cls_token", "before tokenizer_config.json, unless that has added_tokens_decoder"),
    read("mask_token", "before tokenizer_config.json, unless that has added_tokens_decoder"),
    read("additional_special_tokens", "before tokenizer_config.json, unless that has added_tokens_decoder"),
    read("extra_special_tokens", "before tokenizer_config.json, unless that has added_tokens_decoder"),
];

/// Keys of `added_tokens.json`.
pub const ADDED_TOKENS: &[Key] = &[read(
    "(any token)",
    "added in the order of the ids, unless tokenizer_config.json has added_tokens_decoder",
)];

/// Keys of GGUF files that begin with `tokenizer.`.
pub const GGUF: &[Key] = &[
    read("tokenizer.ggml.model", "llama, gpt2, gemma4 and whitespace; others are refused by name"),
    read("tokenizer.ggml.pre", "by the table of pre-tokenizers; absent as default"),
    read("tokenizer.ggml.tokens", ""),
    read("tokenizer.ggml.token_type", ""),
    read("tokenizer.ggml.scores", ""),
    read("tokenizer.ggml.merges", ""),
    read("tokenizer.ggml.bos_token_id", "in a vocabulary of llama, 1 if absent"),
    read("tokenizer.ggml.eos_token_id", "in a vocabulary of llama, 2 if absent"),
    read("tokenizer.ggml.eot_token_id", "ends a text"),
    read("tokenizer.ggml.eom_token_id", "ends a text"),
    read("tokenizer.ggml.unknown_token_id", "in a vocabulary of llama, 0 if absent"),
    read("tokenizer.ggml.padding_token_id", "a variable of the chat template"),
    read("tokenizer.ggml.fim_pad_token_id", "ends a turn"),
    read("tokenizer.ggml.fim_rep_token_id", "ends a turn"),
    read("tokenizer.ggml.fim_sep_token_id", "ends a turn"),
    read("tokenizer.ggml.add_bos_token", ""),
    read("tokenizer.ggml.add_eos_token", ""),
    read("tokenizer.ggml.add_space_prefix", ""),
    read("tokenizer.ggml.remove_extra_whitespaces", ""),
    read("tokenizer.huggingface.json", "before the vocabulary's own keys"),
    read("tokenizer.chat_template", ""),
    read("tokenizer.chat_templates", ""),
    read("tokenizer.chat_template.NAME", ""),
    no_effect("tokenizer.ggml.add_sep_token", "of BERT's vocabularies"),
    no_effect("tokenizer.ggml.seperator_token_id", "of BERT's vocabularies"),
    no_effect("tokenizer.ggml.cls_token_id", "of BERT's vocabularies"),
    no_effect("tokenizer.ggml.mask_token_id", "of BERT's vocabularies"),
    no_effect("tokenizer.ggml.token_type_count", "of BERT's vocabularies"),
    no_effect("tokenizer.ggml.precompiled_charsmap", "of T5's vocabularies, which are refused"),
    no_effect("tokenizer.ggml.fim_pre_token_id", "nothing is filled into a middle"),
    no_effect("tokenizer.ggml.fim_suf_token_id", "nothing is filled into a middle"),
    no_effect("tokenizer.ggml.fim_mid_token_id", "nothing is filled into a middle"),
    no_effect("tokenizer.ggml.prefix_token_id", "nothing is filled into a middle"),
    no_effect("tokenizer.ggml.suffix_token_id", "nothing is filled into a middle"),
    no_effect("tokenizer.ggml.middle_token_id", "nothing is filled into a middle"),
    no_effect("tokenizer.rwkv.world", "of RWKV's vocabularies, which are refused"),
    refused("tokenizer.ggml.normalizer.lowercase", "would change text"),
    refused("tokenizer.ggml.normalizer.strip_accents", "would change text"),
    refused("tokenizer.ggml.suppress_tokens", "would forbid tokens"),
];

/// Whether a value is equivalent to an absent key.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(true) => false,
    }
}

/// Refuses an object that sets a refused key.
pub(super) fn refuse(keys: &'static [Key], object: &Map<String, Value>) -> Result<(), TokenizerError> {
    let mut refused = keys.iter().filter(|key| key.treatment == Treatment::Refused);
    match refused.find(|key| object.get(key.name).is_some_and(|value| !is_off(value))) {
        None => Ok(()),
        Some(key) => Err(TokenizerError::unsupported(
            format!("`{}` ({})", key.name, key.note),
            "remove the key, or use a file without it",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_key_is_refused_unless_it_is_off() {
        let set = |name: &str, value: Value| Map::from_iter([(name.to_owned(), value)]);
        let keys = TOKENIZER_CONFIG;
        for key in keys.iter().filter(|key| key.treatment == Treatment::Refused) {
            let error = refuse(keys, &set(key.name, true.into())).unwrap_err().to_string();
            assert!(error.contains(key.name), "{error}");
            for off in [Value::Null, false.into(), "".into(), Value::Array(vec![])] {
                assert!(refuse(keys, &set(key.name, off)).is_ok());
            }
        }
    }
}
