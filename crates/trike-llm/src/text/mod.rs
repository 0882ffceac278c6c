//! The text parts of a checkpoint: tokenizer, chat templates, generation defaults.
//!
//! `trike-text` takes plain values and its own file formats; this module extracts them from a [`ModelFile`].

mod gguf;
mod split;

pub(crate) use gguf::gguf_templates;

use std::path::{Path, PathBuf};

use trike_format::{Gguf, TensorSource as _};

use crate::{
    LlmError, ModelFile, Tensors,
    chat::ChatTemplate,
    names::FILE_KEY,
    sampler::GenerationConfig,
    sampling,
    tokenizer::{Tokenizer, TokenizerError},
};

pub use gguf::gguf_tokenizer;
pub use split::{STORY_MARK, Split, sequences};

/// The default chat template of a model directory.
pub(crate) const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// The vocabulary of a GGUF file in a model directory: a GGUF file without tensors.
pub(crate) const TOKENIZER_GGUF: &str = "tokenizer.gguf";

/// Tokenizers of a model directory; the first one found is used.
pub(crate) const TOKENIZER_FILES: [&str; 4] =
    ["tokenizer.json", "tokenizer.model", "tokenizer.bin", TOKENIZER_GGUF];

/// Names of special tokens in templates and in `tokenizer_config.json`, and their keys in GGUF after `tokenizer.ggml.`.
pub(crate) const SPECIAL_TOKENS: [(&str, &str); 4] = [
    ("bos_token", "bos_token_id"),
    ("eos_token", "eos_token_id"),
    ("unk_token", "unknown_token_id"),
    ("pad_token", "padding_token_id"),
];

/// The chat templates of a GGUF file, with its special tokens. `None` when it has no template.
///
/// # Errors
///
/// Keys of the wrong type, and a template that does not compile.
pub fn gguf_chat_template(file: &Gguf, tokenizer: &Tokenizer) -> Result<Option<ChatTemplate>, LlmError> {
    let named = gguf_templates(file)?;
    if let Some(config) = file.str(&format!("{FILE_KEY}tokenizer_config.json"))? {
        // Stored files are more complete than the keys: they have the text of special tokens and the other templates.
        let default = named.iter().find(|(name, _)| *name == "default").map(|(_, text)| *text);
        let template = ChatTemplate::from_tokenizer_config(config, default)?;
        let map = file.str(&format!("{FILE_KEY}special_tokens_map.json"))?;
        return Ok(template.map(|template| template.with_special_tokens_map(Some(config), map)));
    }
    let Some(mut template) = ChatTemplate::from_named(named)? else { return Ok(None) };
    for (variable, key) in SPECIAL_TOKENS {
        let id = file.u32(&format!("tokenizer.ggml.{key}"))?;
        if let Some(token) = id.and_then(|id| tokenizer.name_of(id)) {
            template = template.with_token(variable, token);
        }
    }
    Ok(Some(template))
}

impl ModelFile {
    /// Opens the tokenizer at `explicit`, or by default the model's own.
    ///
    /// # Errors
    ///
    /// [`LlmError::NoTokenizer`] when there is none, [`LlmError::TokenizerMismatch`] when a tokenizer that is not the model's own
    /// has ids outside the model's vocabulary or far fewer, and errors of its file.
    pub fn tokenizer(&self, explicit: Option<&Path>) -> Result<Tokenizer, LlmError> {
        let tokenizer = match explicit {
            Some(path) => self.open_tokenizer(path)?,
            None => self.own_tokenizer()?,
        };
        let special = &self.config().special;
        // The token that the tokenizer's own files prepend to a text is BOS, regardless of `config.json`.
        let bos = tokenizer.named("bos_token").or(special.bos).or(tokenizer.bos());
        let named_eos = || tokenizer.named("eos_token").map_or(tokenizer.eos().to_vec(), |eos| vec![eos]);
        let rows = self.config().spec.vocab as u32;
        let eos = match special.eos.is_empty() {
            true => named_eos(),
            // An end token in a row without a token is never generated.
            false => {
                let known = |id: &&u32| **id >= rows || tokenizer.token_bytes(**id).is_ok();
                special.eos.iter().filter(known).copied().collect()
            }
        };
        let tokenizer = tokenizer.with_special(bos, eos).map_err(|e| self.mismatch(e))?;
        // For the model's own tokenizer, the numbers of rows and tokens may differ: rows are padded, and added tokens may lack a
        // row.
        let own = explicit.is_none_or(|path| self.own_tokenizer_file().as_deref() == Some(path));
        let tokenizer = if own { tokenizer.with_rows(self.config().spec.vocab) } else { tokenizer };
        self.check_tokenizer(&tokenizer)?;
        Ok(tokenizer)
    }

    /// The file of the model's own tokenizer, in a directory.
    fn own_tokenizer_file(&self) -> Option<PathBuf> {
        match self.tensors() {
            Tensors::Hf(dir) => TOKENIZER_FILES.iter().find_map(|name| dir.file(name)),
            Tensors::Gguf(_) | Tensors::Llama2c(_) => None,
        }
    }

    /// Checks that the tokenizer's ids are in the model's vocabulary.
    pub(crate) fn check_tokenizer(&self, tokenizer: &Tokenizer) -> Result<(), LlmError> {
        tokenizer.check_vocab(self.config().spec.vocab).map_err(|e| self.mismatch(e))
    }

    fn mismatch(&self, source: TokenizerError) -> LlmError {
        LlmError::TokenizerMismatch { path: self.path().to_owned(), source }
    }

    fn open_tokenizer(&self, path: &Path) -> Result<Tokenizer, LlmError> {
        // The llama2.c format does not store the number of tokens.
        match path.extension().and_then(|e| e.to_str()) {
            Some("bin") => Ok(Tokenizer::from_llama2c(path, self.config().spec.vocab)?),
            Some("gguf") => {
                let none = || LlmError::NoTokenizer { path: path.to_owned() };
                gguf_tokenizer(&Gguf::open(path)?)?.ok_or_else(none)
            }
            _ => Ok(Tokenizer::open(path)?),
        }
    }

    fn own_tokenizer(&self) -> Result<Tokenizer, LlmError> {
        let none = || LlmError::NoTokenizer { path: self.path().to_owned() };
        match self.tensors() {
            Tensors::Hf(_) => self.open_tokenizer(&self.own_tokenizer_file().ok_or_else(none)?),
            Tensors::Gguf(file) => gguf_tokenizer(file)?.ok_or_else(none),
            Tensors::Llama2c(_) => Err(none()),
        }
    }

    /// The chat templates of the model, in any file format. `None` when it has no template, as in llama2.c checkpoints.
    ///
    /// If the files do not name BOS and EOS, the tokenizer's are used.
    ///
    /// # Errors
    ///
    /// As [`ChatTemplate::from_dir`] and [`gguf_chat_template`].
    pub fn chat_template(&self, tokenizer: &Tokenizer) -> Result<Option<ChatTemplate>, LlmError> {
        let template = match self.tensors() {
            Tensors::Hf(dir) => ChatTemplate::from_dir(dir.path())?,
            Tensors::Gguf(file) => gguf_chat_template(file, tokenizer)?,
            Tensors::Llama2c(_) => None,
        };
        Ok(template.map(|template| template.with_tokens_of(tokenizer)))
    }

    /// The model's generation configuration, or an empty one.
    ///
    /// # Errors
    ///
    /// As [`GenerationConfig::read`], keys of the wrong type, and settings that change the text and are not implemented, such as
    /// beam search.
    pub fn generation_config(&self) -> Result<GenerationConfig, LlmError> {
        let config = self.tensors().generation_config()?;
        match self.tensors() {
            Tensors::Hf(dir) => sampling::check_hf(dir)?,
            Tensors::Gguf(file) => sampling::check_gguf(file)?,
            Tensors::Llama2c(_) => {}
        }
        Ok(config)
    }
}
