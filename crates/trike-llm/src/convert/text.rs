//! The text parts of a model in another format: tokenizer, chat templates, generation settings.
//!
//! A directory keeps them in files, GGUF in keys. Content with a standard key is stored under it, so that other programs read it;
//! files without one, or with more content than their keys, are stored whole under [`FILE_KEY`] and restored byte for byte.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use trike_format::{
    Gguf, GgufWriter, HfDir, HfDirWriter, MetaArray, MetaValue, StringArray, TensorSource as _,
};

use crate::{
    LlmError, ModelFile, Tensors,
    names::FILE_KEY,
    sampler::GenerationConfig,
    sampling::{self, sampling_key},
    text::{CHAT_TEMPLATE, SPECIAL_TOKENS, TOKENIZER_FILES, TOKENIZER_GGUF, gguf_templates},
    tokenizer::{SpVocab, TokenizerFiles},
};

/// Files of a directory that belong to the model's text and are copied unchanged.
const FILES: [&str; 6] = [
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "vocab.json",
    "merges.txt",
];

/// The folder in which newer checkpoints keep templates in addition to the default one.
const MORE_TEMPLATES: &str = "additional_chat_templates";

const NO_TOKENIZER: &str = "the result has no tokenizer: none was given or found";

fn no_templates(dir: &HfDir) -> Option<String> {
    dir.path()
        .join(MORE_TEMPLATES)
        .is_dir()
        .then(|| format!("the templates in {MORE_TEMPLATES} are left out"))
}

/// Writes a tokenizer (the one given or the model's own), chat templates and generation settings into a directory. Returns
/// notes on what is left out.
///
/// # Errors
///
/// Errors of reading and writing, and a tokenizer of an unknown kind.
pub fn write_tokenizer(
    writer: &HfDirWriter,
    input: &ModelFile,
    tokenizer: Option<&Path>,
) -> Result<Vec<String>, LlmError> {
    let mut notes = Vec::new();
    let mut found = false;
    match input.tensors() {
        Tensors::Hf(dir) => {
            for path in FILES.iter().chain(&[CHAT_TEMPLATE]).filter_map(|name| dir.file(name)) {
                writer.copy_file(path)?;
            }
            let own = if tokenizer.is_none() { &TOKENIZER_FILES[..] } else { &[] };
            for path in own.iter().filter_map(|name| dir.file(name)) {
                found = true;
                writer.copy_file(path)?;
            }
            notes.extend(no_templates(dir));
        }
        Tensors::Gguf(file) => found = write_gguf_text(writer, file, tokenizer.is_none())?,
        Tensors::Llama2c(_) => {}
    }
    match tokenizer {
        Some(tokenizer) => write_tokenizer_file(writer, tokenizer)?,
        None if found => {}
        None => notes.push(NO_TOKENIZER.to_owned()),
    }
    Ok(notes)
}

/// Writes a tokenizer into a directory under the standard name of its format; `tokenizer` is a file or a model directory that
/// contains one.
///
/// # Errors
///
/// Errors of reading and writing, and a tokenizer of an unknown kind.
pub fn write_tokenizer_file(writer: &HfDirWriter, tokenizer: &Path) -> Result<(), LlmError> {
    let path = tokenizer_file(tokenizer)?;
    match tokenizer_name(&path)? {
        TOKENIZER_GGUF => write_vocabulary(writer, &Gguf::open(&path)?),
        name => Ok(writer.write_file(name, &read(&path)?)?),
    }
}

/// Writes the text parts of a GGUF file as files; returns whether a tokenizer was included.
fn write_gguf_text(writer: &HfDirWriter, file: &Gguf, with_tokenizer: bool) -> Result<bool, LlmError> {
    let mut found = false;
    let mut stored = Vec::new();
    let names = FILES.iter().map(|name| (*name, false)).chain(TOKENIZER_FILES.map(|name| (name, true)));
    for (name, is_tokenizer) in names {
        let Some(value) = file.metadata().get(&format!("{FILE_KEY}{name}")) else { continue };
        if is_tokenizer && !with_tokenizer {
            continue;
        }
        found |= is_tokenizer;
        stored.push(name);
        match value {
            MetaValue::Str(text) => writer.write_file(name, text.as_bytes())?,
            MetaValue::Array(MetaArray::U8(bytes)) => writer.write_file(name, bytes)?,
            other => {
                return Err(LlmError::Config {
                    path: file.path().to_owned(),
                    key: format!("{FILE_KEY}{name}"),
                    expected: "a string or bytes".to_owned(),
                    got: other.describe(),
                });
            }
        }
    }
    if with_tokenizer {
        if let Some(json) = file.str("tokenizer.huggingface.json")? {
            writer.write_file("tokenizer.json", json.as_bytes())?;
            found = true;
        } else if !found && file.str("tokenizer.ggml.model")?.is_some() {
            write_vocabulary(writer, file)?;
            found = true;
        }
    }
    let templates = gguf_templates(file)?;
    let config = file.str(&format!("{FILE_KEY}tokenizer_config.json"))?;
    let known: Value = config.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let default = templates.iter().find(|(name, _)| *name == "default").map(|(_, text)| *text);
    if stored.contains(&"tokenizer_config.json") {
        // The written file already has the other templates.
        let named = known["chat_template"].as_array().into_iter().flatten();
        let in_list =
            named.filter(|entry| entry["name"] == "default").find_map(|entry| entry["template"].as_str());
        let in_file = known["chat_template"].as_str().or(in_list);
        if let Some(text) = default.filter(|text| in_file != Some(text)) {
            writer.write_file(CHAT_TEMPLATE, text.as_bytes())?;
        }
    } else if !templates.is_empty() {
        write_json(writer, "tokenizer_config.json", &tokenizer_config(file, &templates)?)?;
    }
    if !stored.contains(&"generation_config.json")
        && let Some(config) = generation_json(file)?
    {
        write_json(writer, "generation_config.json", &config)?;
    }
    Ok(found)
}

/// The special tokens and templates of a GGUF file, as HuggingFace's tools write them.
fn tokenizer_config(file: &Gguf, templates: &[(&str, &str)]) -> Result<Value, LlmError> {
    let mut config = Map::new();
    let tokens = file.strings("tokenizer.ggml.tokens")?;
    for (name, key) in SPECIAL_TOKENS {
        let id = file.u32(&format!("tokenizer.ggml.{key}"))?;
        if let Some(token) = id.zip(tokens).and_then(|(id, tokens)| tokens.get(id as usize)) {
            config.insert(name.to_owned(), token.into());
        }
    }
    for name in ["add_bos_token", "add_eos_token"] {
        if let Some(adds) = file.bool(&format!("tokenizer.ggml.{name}"))? {
            config.insert(name.to_owned(), adds.into());
        }
    }
    let template = match templates {
        [("default", text)] => json!(text),
        all => all.iter().map(|(name, text)| json!({ "name": name, "template": text })).collect(),
    };
    config.insert("chat_template".to_owned(), template);
    Ok(Value::Object(config))
}

/// The sampling keys of a GGUF file as a `generation_config.json`; `None` when it has none.
fn generation_json(file: &Gguf) -> Result<Option<Value>, LlmError> {
    // End-of-text tokens are in `config.json`.
    let GenerationConfig { do_sample, temperature, top_k, top_p, min_p, repetition_penalty, eos_token_id: _ } =
        sampling::of_gguf(file)?;
    let float = |value: Option<f32>| value.map(|v| json!(super::config::exact(v)));
    let fields = [
        ("do_sample", do_sample.map(Value::from)),
        ("temperature", float(temperature)),
        ("top_k", top_k.map(Value::from)),
        ("top_p", float(top_p)),
        ("min_p", float(min_p)),
        ("repetition_penalty", float(repetition_penalty)),
    ];
    let fields: Map<String, Value> =
        fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
    Ok(if fields.is_empty() { None } else { Some(Value::Object(fields)) })
}

/// Writes the vocabulary of a GGUF file as a GGUF file of its own, without tensors.
fn write_vocabulary(writer: &HfDirWriter, file: &Gguf) -> Result<(), LlmError> {
    let mut out = GgufWriter::create(writer.path().join(TOKENIZER_GGUF))?;
    let mut found = false;
    for (key, value) in file.metadata().iter().filter(|(key, _)| is_vocabulary(key)) {
        found = true;
        out.metadata(key, value.clone())?;
    }
    if !found {
        return Err(LlmError::NoTokenizer { path: file.path().to_owned() });
    }
    Ok(out.finish()?)
}

fn is_vocabulary(key: &str) -> bool {
    key.starts_with("tokenizer.ggml.") || key == "tokenizer.huggingface.json"
}

/// Whether a key of a GGUF file belongs to its tokenizer.
pub(super) fn is_tokenizer(key: &str) -> bool {
    let file = key.strip_prefix(FILE_KEY);
    is_vocabulary(key) || file.is_some_and(|name| TOKENIZER_FILES.contains(&name))
}

/// Writes the text parts of a model in another format into a GGUF file: a tokenizer (the given one or its own), templates,
/// generation settings. Returns notes on what is left out.
pub(super) fn write_keys(
    writer: &mut GgufWriter,
    input: &ModelFile,
    tokenizer: Option<&Path>,
) -> Result<Vec<String>, LlmError> {
    let mut notes = Vec::new();
    let Tensors::Hf(dir) = input.tensors() else {
        return tokenizer_keys(writer, input, tokenizer.map(Path::to_owned));
    };
    for name in FILES {
        if let Some(path) = dir.file(name) {
            writer.metadata(&format!("{FILE_KEY}{name}"), text_of(&path)?)?;
        }
    }
    let own = TOKENIZER_FILES.iter().find_map(|name| dir.file(name));
    notes.extend(tokenizer_keys(writer, input, tokenizer.map(Path::to_owned).or(own))?);
    for (name, text) in templates(dir)? {
        match name.as_str() {
            "default" => writer.metadata("tokenizer.chat_template", text)?,
            name => writer.metadata(&format!("tokenizer.chat_template.{name}"), text)?,
        }
    }
    let names: StringArray =
        templates(dir)?.into_iter().map(|(name, _)| name).filter(|name| name != "default").collect();
    if !names.is_empty() {
        writer.metadata("tokenizer.chat_templates", names)?;
    }
    notes.extend(no_templates(dir));
    // End-of-text tokens are written with the tokenizer.
    let GenerationConfig { do_sample, temperature, top_k, top_p, min_p, repetition_penalty, eos_token_id: _ } =
        input.generation_config()?;
    let greedy = do_sample == Some(false);
    let floats = [
        ("temp", if greedy { Some(0.0) } else { temperature }),
        ("top_p", top_p),
        ("min_p", min_p),
        ("penalty_repeat", repetition_penalty),
    ];
    for (name, value) in floats {
        if let Some(value) = value {
            writer.metadata(&sampling_key(name), value)?;
        }
    }
    if let Some(top_k) = top_k.and_then(|k| i32::try_from(k).ok()) {
        writer.metadata(&sampling_key("top_k"), top_k)?;
    }
    Ok(notes)
}

/// Writes a tokenizer and the special tokens of the model.
pub(super) fn tokenizer_keys(
    writer: &mut GgufWriter,
    input: &ModelFile,
    tokenizer: Option<PathBuf>,
) -> Result<Vec<String>, LlmError> {
    let special = &input.config().special;
    let Some(path) = tokenizer else {
        special_keys(writer, special.bos, &special.eos)?;
        return Ok(vec![NO_TOKENIZER.to_owned()]);
    };
    let path = tokenizer_file(&path)?;
    let opened = input.tokenizer(Some(&path))?;
    let mut notes = Vec::new();
    match tokenizer_name(&path)? {
        TOKENIZER_GGUF => {
            let file = Gguf::open(&path)?;
            let own = ["tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"];
            for (key, value) in file.metadata().iter().filter(|(key, _)| is_vocabulary(key)) {
                if !own.contains(&key)
                    && !ENDS.map(|end| format!("tokenizer.ggml.{end}")).contains(&key.to_owned())
                {
                    writer.metadata(key, value.clone())?;
                }
            }
            special_keys(writer, opened.bos(), opened.eos())?;
            return Ok(notes);
        }
        "tokenizer.json" => writer.metadata("tokenizer.huggingface.json", text_of(&path)?)?,
        name => {
            let bytes = read(&path)?;
            let dir =
                path.parent().filter(|_| path.file_name().is_some_and(|name| name == "tokenizer.model"));
            let files = dir.map(TokenizerFiles::read).transpose()?.unwrap_or_default();
            match SpVocab::read_with(&bytes, &files)? {
                Some(vocab) => vocabulary_keys(writer, &vocab)?,
                None => notes.push(
                    "other programs cannot read this tokenizer from the GGUF file: no key holds tiktoken's format"
                        .to_owned(),
                ),
            }
            writer.metadata(&format!("{FILE_KEY}{name}"), bytes)?;
        }
    }
    special_keys(writer, opened.bos(), opened.eos())?;
    writer.metadata("tokenizer.ggml.add_bos_token", opened.adds_bos())?;
    if opened.adds_eos() {
        writer.metadata("tokenizer.ggml.add_eos_token", true)?;
    }
    Ok(notes)
}

/// Keys of the tokens that end a text, in the order of a tokenizer's list of ends.
const ENDS: [&str; 3] = ["eos_token_id", "eot_token_id", "eom_token_id"];

fn special_keys(writer: &mut GgufWriter, bos: Option<u32>, eos: &[u32]) -> Result<(), LlmError> {
    if let Some(bos) = bos {
        writer.metadata("tokenizer.ggml.bos_token_id", bos)?;
    }
    for (key, &id) in ENDS.iter().zip(eos) {
        writer.metadata(&format!("tokenizer.ggml.{key}"), id)?;
    }
    Ok(())
}

/// A SentencePiece vocabulary in the keys that other programs read.
fn vocabulary_keys(writer: &mut GgufWriter, vocab: &SpVocab) -> Result<(), LlmError> {
    writer.metadata("tokenizer.ggml.model", "llama")?;
    writer.metadata("tokenizer.ggml.pre", "default")?;
    writer.metadata("tokenizer.ggml.tokens", vocab.tokens.iter().collect::<StringArray>())?;
    writer.metadata("tokenizer.ggml.scores", vocab.scores.clone())?;
    let types: Vec<i32> = vocab.types.iter().map(|kind| kind.number() as i32).collect();
    writer.metadata("tokenizer.ggml.token_type", types)?;
    writer.metadata("tokenizer.ggml.add_space_prefix", vocab.add_space_prefix)?;
    writer.metadata("tokenizer.ggml.remove_extra_whitespaces", vocab.remove_extra_spaces)?;
    if let Some(unk) = vocab.unk {
        writer.metadata("tokenizer.ggml.unknown_token_id", unk)?;
    }
    Ok(())
}

/// The templates of a directory by name, unmodified.
fn templates(dir: &HfDir) -> Result<Vec<(String, String)>, LlmError> {
    let mut all = Vec::new();
    if let Some(path) = dir.file("tokenizer_config.json") {
        // `ChatTemplate` validates the file.
        let config: Value = serde_json::from_str(&text_of(&path)?).unwrap_or_default();
        match &config["chat_template"] {
            Value::String(text) => all.push(("default".to_owned(), text.clone())),
            Value::Array(list) => all.extend(list.iter().filter_map(|entry| {
                Some((entry["name"].as_str()?.to_owned(), entry["template"].as_str()?.to_owned()))
            })),
            _ => {}
        }
    }
    if let Some(path) = dir.file(CHAT_TEMPLATE) {
        all.retain(|(name, _)| name != "default");
        all.push(("default".to_owned(), text_of(&path)?));
    }
    Ok(all)
}

fn write_json(writer: &HfDirWriter, name: &str, value: &Value) -> Result<(), LlmError> {
    let text = format!("{value:#}\n");
    Ok(writer.write_file(name, text.as_bytes())?)
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, LlmError> {
    std::fs::read(path).map_err(|source| LlmError::Io { path: path.to_owned(), source })
}

fn text_of(path: &Path) -> Result<String, LlmError> {
    String::from_utf8(read(path)?).map_err(|e| LlmError::Io {
        path: path.to_owned(),
        source: std::io::Error::new(std::io::ErrorKind::InvalidData, e),
    })
}

/// The file of a tokenizer given as a file or as a model directory.
fn tokenizer_file(path: &Path) -> Result<PathBuf, LlmError> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let file = TOKENIZER_FILES.iter().map(|name| path.join(name)).find(|file| file.is_file());
    file.ok_or_else(|| LlmError::NoTokenizer { path: path.to_owned() })
}

/// The file name of a tokenizer of this format in a model directory.
fn tokenizer_name(path: &Path) -> Result<&'static str, LlmError> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("json") => Ok("tokenizer.json"),
        Some("model") => Ok("tokenizer.model"),
        Some("bin") => Ok("tokenizer.bin"),
        Some("gguf") => Ok(TOKENIZER_GGUF),
        _ => Err(LlmError::TokenizerFile { path: path.to_owned() }),
    }
}
