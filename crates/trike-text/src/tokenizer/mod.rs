//! Text to token ids and back, for the tokenizer files of Llama-like models.
//!
//! Start from [`Tokenizer::open`], which detects the format by content. A `tokenizer.json` is encoded with
//! the `tokenizers` crate, and so are byte-level vocabularies of GGUF files. SentencePiece vocabularies (`.model`,
//! llama2.c `.bin`, GGUF) use an exact merge implemented here, because SentencePiece breaks ties by position, which the
//! crate's ranked merges cannot express; tiktoken's ranks have their own merge for the same reason. Decoding uses one table
//! from id to bytes for all of them: the cost per token is constant, and it provides the byte counts for bits per byte. The
//! price: decoders that depend on more than one token (WordPiece, CTC) are not supported.
//!
//! * [`Tokenizer`]: encode, decode, special tokens
//! * [`SpVocab`], [`PieceType`]: a SentencePiece vocabulary in memory, from GGUF metadata for example
//! * [`BpeVocab`], [`PreTokenizer`]: a byte-level vocabulary in memory
//! * [`BpeTraining`]: training of a byte-level vocabulary
//! * [`TokenizerError`]

mod bpe;
mod encode;
mod ends;
mod error;
mod hf;
pub mod keys;
mod limits;
mod llama2c;
mod merge;
mod pieces;
mod proto;
mod ranks;
mod rules;
mod settings;
mod specials;
mod split;
mod spm;
mod tiktoken;
mod train;

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

pub use bpe::BpeVocab;
pub use error::TokenizerError;
pub use settings::TokenizerFiles;
pub use split::PreTokenizer;
pub use spm::{PieceType, SpVocab};
pub use train::{BpeTraining, TrainedBpe};

pub(crate) use encode::Shield;

use encode::{Encoder, HfEncoder};
use hf::{Affixes, HfTokenizer};
use limits::read_capped;
use pieces::Pieces;
use settings::Settings;
use specials::SpecialTokens;
use spm::{ByteFallback, SpEncoder, SpaceForm};
use tiktoken::is_tiktoken;

/// Largest accepted fraction of embedding rows without a token, as a divisor: rows are padded to a round
/// number for the hardware, by at most 2.5 % in published models.
const PADDING_DIVISOR: usize = 8;

/// Text to ids and back. Clones share the vocabulary.
///
/// ```
/// use trike_text::tokenizer::{PieceType, SpVocab, Tokenizer};
///
/// let tokens = ["<unk>", "<s>", "</s>", "\u{2581}", "h", "i", "hi", "\u{2581}hi"];
/// let mut types = vec![PieceType::Normal; tokens.len()];
/// types[0] = PieceType::Unknown;
/// types[1..3].fill(PieceType::Control);
/// let tokenizer = Tokenizer::from_sentencepiece_vocab(&SpVocab {
///     tokens: tokens.map(str::to_owned).to_vec(),
///     scores: vec![0.0, 0.0, 0.0, -9.0, -9.0, -9.0, -1.0, -2.0],
///     types,
///     bos: Some(1),
///     eos: vec![2],
///     unk: Some(0),
///     add_space_prefix: true,
///     remove_extra_spaces: false,
/// })?;
/// let ids = tokenizer.encode("hi hi", true)?;
/// assert_eq!(ids, [1, 7, 7]);
/// assert_eq!(tokenizer.decode(&ids)?, "hi hi");
/// # Ok::<(), trike_text::tokenizer::TokenizerError>(())
/// ```
#[derive(Clone)]
pub struct Tokenizer {
    encoder: Encoder,
    pieces: Arc<Pieces>,
    specials: Arc<SpecialTokens>,
    /// Added tokens of a SentencePiece vocabulary: recognized in every text, but not special.
    added: Arc<SpecialTokens>,
    strips_leading_space: bool,
    bos: Option<u32>,
    eos: Vec<u32>,
    affixes: Affixes,
    /// Whether a sequence ends with EOS, if the file says so without naming tokens.
    adds_eos: bool,
    /// Special tokens by key, as given in the files accompanying the tokenizer.
    named: BTreeMap<String, String>,
    /// Embedding rows of the model, if the tokenizer is known to belong to it.
    rows: Option<usize>,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let encoder = match self.encoder {
            Encoder::Hf(_) => "BPE",
            Encoder::SentencePiece(_) => "SentencePiece",
            Encoder::Ranks(_) => "tiktoken",
        };
        f.debug_struct("Tokenizer")
            .field("encoder", &encoder)
            .field("vocab_size", &self.vocab_size())
            .field("bos", &self.bos)
            .field("eos", &self.eos)
            .finish_non_exhaustive()
    }
}

/// Formats of tokenizer files, detected by their first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileFormat {
    Json,
    Gguf,
    Tiktoken,
    Llama2c,
    SentencePiece,
}

impl FileFormat {
    fn of(bytes: &[u8]) -> Option<Self> {
        Some(match bytes {
            _ if bytes.trim_ascii_start().starts_with(b"{") => Self::Json,
            [b'G', b'G', b'U', b'F', ..] => Self::Gguf,
            _ if is_tiktoken(bytes) => Self::Tiktoken,
            // The i32 in llama2.c's header is small, so its upper half is zero; in a `.model`, the
            // second byte is the length of the first piece, which has a name, a score and a type.
            [_, _, 0, 0, ..] => Self::Llama2c,
            [0x0a, ..] => Self::SentencePiece,
            _ => return None,
        })
    }
}

impl SpVocab {
    /// The vocabulary of a SentencePiece `.model` or of a llama2.c file; `None` for a file of another format.
    ///
    /// # Errors
    ///
    /// As [`Tokenizer::from_sentencepiece`](Tokenizer::from_sentencepiece) and
    /// [`Tokenizer::from_llama2c`](Tokenizer::from_llama2c).
    pub fn read(bytes: &[u8]) -> Result<Option<Self>, TokenizerError> {
        Self::read_with(bytes, &TokenizerFiles::default())
    }

    /// [`read`](Self::read) with the added tokens of the files that accompany a `.model`.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read), and malformed files.
    pub fn read_with(bytes: &[u8], files: &TokenizerFiles) -> Result<Option<Self>, TokenizerError> {
        Ok(match FileFormat::of(bytes) {
            Some(FileFormat::SentencePiece) => {
                Some(with_added(proto::parse(bytes)?, &Settings::parse(files)?).vocab)
            }
            Some(FileFormat::Llama2c) => {
                let mut vocab = llama2c::parse(bytes)?;
                // llama2.c writes plain spaces.
                vocab.tokens.iter_mut().for_each(|token| *token = token.replace(' ', spm::SPACE_SYMBOL));
                // It also writes line feeds around the names of control tokens.
                let named = vocab.tokens.iter_mut().zip(&vocab.types);
                for (token, _) in named.filter(|(_, kind)| **kind == PieceType::Control) {
                    *token = token.trim_matches('\n').to_owned();
                }
                Some(vocab)
            }
            Some(FileFormat::Json | FileFormat::Tiktoken | FileFormat::Gguf) | None => None,
        })
    }
}

impl PieceType {
    /// Corrects the types of tokens that end a turn or a text to control, by name: some GGUF files declare them as text.
    pub fn correct(tokens: &[String], types: &mut [Self]) {
        ends::correct_types(tokens, types);
    }
}

impl Tokenizer {
    /// Opens a tokenizer file of any supported format, or a directory with `tokenizer.json` or
    /// `tokenizer.model`.
    ///
    /// The token settings of `tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json` in the same directory
    /// apply, as in the `transformers` package: further tokens; with a `tokenizer.json`, only its post-processor adds BOS and EOS,
    /// with a `tokenizer.model` the keys `add_bos_token` and `add_eos_token` do (without a configuration, BOS is added).
    ///
    /// A `tokenizer.json` does not specify BOS and EOS: set them with
    /// [`with_special`](Self::with_special). A llama2.c file does not contain its number of tokens:
    /// use [`from_llama2c`](Self::from_llama2c) if the model is known, or
    /// [`check_vocab`](Self::check_vocab) afterwards.
    ///
    /// # Errors
    ///
    /// An unreadable, malformed or unsupported file, such as a GGUF file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, TokenizerError> {
        let path = path.as_ref();
        let files = ["tokenizer.json", "tokenizer.model"];
        if !path.is_dir() {
            let named = path.file_name().is_some_and(|name| files.iter().any(|file| name == *file));
            let dir = if named { path.parent() } else { None };
            let files = dir.map(TokenizerFiles::read).transpose()?.unwrap_or_default();
            return in_file(path, |bytes| Self::from_bytes_with(&bytes, &files));
        }
        match files.iter().map(|name| path.join(name)).find(|file| file.is_file()) {
            Some(file) => {
                let files = TokenizerFiles::read(path)?;
                in_file(&file, |bytes| Self::from_bytes_with(&bytes, &files))
            }
            None => Err(TokenizerError::InFile {
                path: path.to_owned(),
                error: Box::new(TokenizerError::malformed(
                    "the directory",
                    "tokenizer.json or tokenizer.model",
                    "neither",
                )),
            }),
        }
    }

    /// [`open`](Self::open) on the content of a file and of the files that accompany it.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn from_bytes_with(bytes: &[u8], files: &TokenizerFiles) -> Result<Self, TokenizerError> {
        let settings = Settings::parse(files)?;
        let mut tokenizer = match FileFormat::of(bytes) {
            Some(FileFormat::Json) => Self::from_hf(hf::parse(bytes, &settings.added)?),
            Some(FileFormat::SentencePiece) => return Self::from_sentencepiece_with(bytes, settings),
            _ => Self::from_bytes(bytes)?,
        };
        tokenizer.named = settings.named;
        Ok(tokenizer)
    }

    /// A `.model` in a model directory.
    fn from_sentencepiece_with(bytes: &[u8], settings: Settings) -> Result<Self, TokenizerError> {
        let model = with_added(proto::parse(bytes)?, &settings);
        let mut tokenizer = Self::from_proto(&model)?;
        let added = settings.added.iter().filter(|token| !token.special);
        let added =
            added.filter_map(|token| Some((token.content.as_str(), tokenizer.id_of(&token.content)?)));
        tokenizer.added = Arc::new(SpecialTokens::new(added));
        if settings.found {
            let id = |name: &str| settings.named.get(name).and_then(|token| tokenizer.id_of(token));
            let (bos, eos) = (id("bos_token").or(tokenizer.bos), id("eos_token"));
            tokenizer.bos = bos;
            tokenizer.eos = eos.map_or(std::mem::take(&mut tokenizer.eos), |eos| vec![eos]);
            tokenizer.affixes.adds_bos = Some(settings.add_bos);
            tokenizer.adds_eos = settings.add_eos;
        }
        Ok(tokenizer.spaced_by(settings))
    }

    /// Applies settings from the tokenizer's original files for which GGUF has no keys: the names of special tokens, and whether
    /// text after a special token gets a space.
    ///
    /// # Errors
    ///
    /// Malformed files.
    pub fn with_files(self, files: &TokenizerFiles) -> Result<Self, TokenizerError> {
        Ok(self.spaced_by(Settings::parse(files)?))
    }

    fn spaced_by(mut self, settings: Settings) -> Self {
        if let (true, Encoder::SentencePiece(encoder)) = (settings.found, &mut self.encoder) {
            Arc::make_mut(encoder).set_prefix_once(settings.legacy != Some(true));
        }
        self.named = settings.named;
        self
    }

    /// Reads a HuggingFace `tokenizer.json` with a BPE model. It does not contain BOS and EOS; see
    /// [`with_special`](Self::with_special).
    ///
    /// # Errors
    ///
    /// An unreadable or malformed file, and every feature that affects text or ids but is not implemented.
    pub fn from_hf_json(path: impl AsRef<Path>) -> Result<Self, TokenizerError> {
        in_file(path.as_ref(), |bytes| Self::from_hf_json_bytes(&bytes))
    }

    /// [`from_hf_json`](Self::from_hf_json) on the content of the file.
    ///
    /// # Errors
    ///
    /// As [`from_hf_json`](Self::from_hf_json).
    pub fn from_hf_json_bytes(bytes: &[u8]) -> Result<Self, TokenizerError> {
        Ok(Self::from_hf(hf::parse(bytes, &[])?))
    }

    fn from_hf(hf: HfTokenizer) -> Self {
        Self {
            encoder: Encoder::Hf(Arc::new(HfEncoder::new(hf.encoder))),
            pieces: Arc::new(hf.pieces),
            specials: Arc::new(hf.specials),
            added: Arc::default(),
            strips_leading_space: hf.strips_leading_space,
            bos: None,
            eos: Vec::new(),
            affixes: hf.affixes,
            adds_eos: false,
            named: BTreeMap::new(),
            rows: None,
        }
    }

    /// Builds a tokenizer from a byte-level BPE vocabulary in memory, as stored in GGUF files with
    /// `tokenizer.ggml.model = "gpt2"`. It is equivalent to the same model's `tokenizer.json`, except that text is never
    /// normalized (Qwen's files specify NFC), so decoding restores every text exactly.
    ///
    /// # Errors
    ///
    /// Lists of different lengths, a merge that is not two tokens, a byte without a token, a special id out of range.
    pub fn from_byte_level_vocab(vocab: &BpeVocab) -> Result<Self, TokenizerError> {
        Self::from_hf(bpe::build(vocab)?).with_special(vocab.bos, vocab.eos.clone())
    }

    /// Reads Llama 3's tiktoken `.model`, with Llama 3's special tokens: BOS is
    /// `<|begin_of_text|>`, and `<|end_of_text|>` and `<|eot_id|>` end a text.
    ///
    /// # Errors
    ///
    /// An unreadable or malformed file, and a tiktoken vocabulary of another model, since the file does not contain
    /// the pre-tokenizer.
    pub fn from_tiktoken(path: impl AsRef<Path>) -> Result<Self, TokenizerError> {
        in_file(path.as_ref(), |bytes| Self::from_tiktoken_bytes(&bytes))
    }

    fn from_tiktoken_bytes(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let file = tiktoken::parse(bytes)?;
        Ok(Self {
            encoder: Encoder::Ranks(Arc::new(file.encoder)),
            pieces: Arc::new(file.pieces),
            specials: Arc::new(file.specials),
            added: Arc::default(),
            strips_leading_space: false,
            bos: Some(file.bos),
            eos: file.eos.to_vec(),
            affixes: Affixes { adds_bos: Some(true), ..Affixes::default() },
            adds_eos: false,
            named: BTreeMap::new(),
            rows: None,
        })
    }

    /// Reads a llama2.c tokenizer for a model with `vocab_size` tokens; the file does not contain their number.
    ///
    /// # Errors
    ///
    /// An unreadable or malformed file, and [`TokenizerError::VocabMismatch`] unless it has exactly that many tokens.
    pub fn from_llama2c(path: impl AsRef<Path>, vocab_size: usize) -> Result<Self, TokenizerError> {
        in_file(path.as_ref(), |bytes| {
            let tokenizer = Self::from_llama2c_bytes(&bytes)?;
            if tokenizer.vocab_size() != vocab_size {
                let tokenizer = tokenizer.vocab_size();
                return Err(TokenizerError::VocabMismatch { tokenizer, model: vocab_size });
            }
            Ok(tokenizer)
        })
    }

    fn from_llama2c_bytes(bytes: &[u8]) -> Result<Self, TokenizerError> {
        Self::from_vocab(&llama2c::parse(bytes)?, SpaceForm::Plain, ByteFallback::WhereComplete)
    }

    /// Reads a SentencePiece `.model` file of type BPE.
    ///
    /// # Errors
    ///
    /// An unreadable or malformed file, another model type (unigram), a normalizer that maps characters.
    pub fn from_sentencepiece(path: impl AsRef<Path>) -> Result<Self, TokenizerError> {
        in_file(path.as_ref(), |bytes| Self::from_sentencepiece_bytes(&bytes))
    }

    fn from_sentencepiece_bytes(bytes: &[u8]) -> Result<Self, TokenizerError> {
        Self::from_proto(&proto::parse(bytes)?)
    }

    fn from_proto(model: &proto::SpModel) -> Result<Self, TokenizerError> {
        let fallback = if model.byte_fallback { ByteFallback::Required } else { ByteFallback::Off };
        Self::from_vocab(&model.vocab, SpaceForm::Symbol, fallback)
    }

    /// Builds a tokenizer from a SentencePiece BPE vocabulary in memory, as stored in GGUF files with
    /// `tokenizer.ggml.model = "llama"`. Unknown text becomes byte pieces if all 256 exist, else `unk`.
    ///
    /// # Errors
    ///
    /// Lists of different lengths, a score that is not finite, a byte piece that is not `<0xHH>`, a special
    /// id out of range.
    pub fn from_sentencepiece_vocab(vocab: &SpVocab) -> Result<Self, TokenizerError> {
        Self::from_vocab(vocab, SpaceForm::Symbol, ByteFallback::WhereComplete)
    }

    fn from_vocab(vocab: &SpVocab, space: SpaceForm, fallback: ByteFallback) -> Result<Self, TokenizerError> {
        let (encoder, pieces) = SpEncoder::new(vocab, space, fallback)?;
        let named = vocab.tokens.iter().zip(&vocab.types).zip(0u32..);
        let control = named.filter(|((_, kind), _)| **kind == PieceType::Control);
        Self {
            encoder: Encoder::SentencePiece(Arc::new(encoder)),
            pieces: Arc::new(pieces),
            specials: Arc::new(SpecialTokens::new(control.map(|((token, _), id)| (token.as_str(), id)))),
            added: Arc::default(),
            strips_leading_space: vocab.add_space_prefix,
            bos: None,
            eos: Vec::new(),
            affixes: Affixes::default(),
            adds_eos: false,
            named: BTreeMap::new(),
            rows: None,
        }
        .with_special(vocab.bos, vocab.eos.clone())
    }

    /// [`open`](Self::open) on the content of a file.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TokenizerError> {
        match FileFormat::of(bytes) {
            Some(FileFormat::Json) => Self::from_hf_json_bytes(bytes),
            Some(FileFormat::Gguf) => Err(TokenizerError::unsupported(
                "a GGUF file as a tokenizer",
                "a GGUF model uses its own tokenizer; for another model, pass that model's tokenizer",
            )),
            Some(FileFormat::Tiktoken) => Self::from_tiktoken_bytes(bytes),
            Some(FileFormat::Llama2c) => Self::from_llama2c_bytes(bytes),
            Some(FileFormat::SentencePiece) => Self::from_sentencepiece_bytes(bytes),
            None => {
                let remedy = "pass a tokenizer.json, a SentencePiece or tiktoken .model or a llama2.c .bin";
                Err(TokenizerError::unsupported("this file's format", remedy))
            }
        }
    }

    /// Sets BOS and the tokens that end a sequence, as in the model's configuration.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::UnknownId`] for an id without a token.
    pub fn with_special(mut self, bos: Option<u32>, eos: Vec<u32>) -> Result<Self, TokenizerError> {
        for &id in bos.iter().chain(&eos) {
            self.pieces.get(id)?;
        }
        self.bos = bos;
        self.eos = eos;
        Ok(self)
    }

    /// Sets the bytes of tokens whose names in the file are not UTF-8; no text is encoded to them.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::UnknownId`] for an id without a token.
    pub fn with_token_bytes<'a>(
        mut self,
        tokens: impl IntoIterator<Item = (u32, &'a [u8])>,
    ) -> Result<Self, TokenizerError> {
        let tokens: BTreeMap<u32, &[u8]> = tokens.into_iter().collect();
        if let Some((&last, _)) = tokens.last_key_value() {
            self.pieces.get(last)?;
            let mut pieces = Pieces::default();
            for id in 0..self.vocab_size() as u32 {
                pieces.push(tokens.get(&id).copied().or_else(|| self.pieces.get(id).ok()))?;
            }
            self.pieces = Arc::new(pieces);
        }
        Ok(self)
    }

    /// The text of a sequence. Control tokens have no text; the space that the encoder put before the text
    /// is removed; bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::UnknownId`].
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        let bytes = self.decode_bytes(ids)?;
        Ok(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
    }

    /// [`decode`](Self::decode) to the bytes of the text, without replacement of invalid UTF-8.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::UnknownId`].
    pub fn decode_bytes(&self, ids: &[u32]) -> Result<Vec<u8>, TokenizerError> {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        for &id in ids {
            bytes.extend_from_slice(self.pieces.get(id)?);
        }
        if self.strips_leading_space && bytes.first() == Some(&b' ') {
            bytes.remove(0);
        }
        Ok(bytes)
    }

    /// The bytes that one token adds to a text, leading space included; empty for control tokens.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::UnknownId`].
    pub fn token_bytes(&self, id: u32) -> Result<&[u8], TokenizerError> {
        self.pieces.get(id)
    }

    /// The id of a token by its name in the file (`<s>`, `\u{2581}the`, `<0x0A>`).
    #[must_use]
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.specials.id_of(token).or_else(|| self.encoder.id_of(token))
    }

    /// The name of a token in the file, control tokens included; `None` for tiktoken's tokens that are not UTF-8,
    /// and for ids without a token.
    #[must_use]
    pub fn name_of(&self, id: u32) -> Option<String> {
        let special = self.specials.iter().find(|&(_, special)| special == id);
        special.map(|(name, _)| name.to_owned()).or_else(|| self.encoder.name_of(id, &self.pieces))
    }

    /// The special tokens, which have no text, by name; in no particular order.
    pub fn special_tokens(&self) -> impl Iterator<Item = (&str, u32)> {
        self.specials.iter()
    }

    /// One more than the highest id.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.pieces.len()
    }

    /// The beginning-of-sequence token.
    #[must_use]
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The tokens that end a sequence.
    #[must_use]
    pub fn eos(&self) -> &[u32] {
        &self.eos
    }

    /// Whether a sequence starts with BOS: as specified by the file, by default whether there is a BOS.
    #[must_use]
    pub fn adds_bos(&self) -> bool {
        self.bos.is_some() && self.affixes.adds_bos.unwrap_or(true)
    }

    /// Sets [`adds_bos`](Self::adds_bos), as `tokenizer.ggml.add_bos_token` does.
    #[must_use]
    pub fn with_adds_bos(mut self, adds_bos: bool) -> Self {
        self.affixes.adds_bos = Some(adds_bos);
        self
    }

    /// Whether a prompt ends with EOS, as in some embedding models.
    #[must_use]
    pub fn adds_eos(&self) -> bool {
        !self.suffix().is_empty()
    }

    /// Sets [`adds_eos`](Self::adds_eos), as `tokenizer.ggml.add_eos_token` does.
    #[must_use]
    pub fn with_adds_eos(mut self, adds_eos: bool) -> Self {
        self.adds_eos = adds_eos;
        if !adds_eos {
            self.affixes.after.clear();
        }
        self
    }

    /// The tokens before every prompt: nearly always none, or BOS alone.
    pub(crate) fn prefix(&self) -> Vec<u32> {
        match self.bos.filter(|_| self.adds_bos()) {
            None => Vec::new(),
            // A post-processor may add several tokens there.
            Some(_) if self.affixes.before.len() > 1 => self.affixes.before.clone(),
            Some(bos) => vec![bos],
        }
    }

    /// The tokens after every prompt.
    pub(crate) fn suffix(&self) -> Vec<u32> {
        match &*self.affixes.after {
            [] => self.eos.first().copied().filter(|_| self.adds_eos).into_iter().collect(),
            after => after.to_vec(),
        }
    }

    /// The token that the files assign to this key (`bos_token`), or that the post-processor of a `tokenizer.json` adds as BOS,
    /// which takes precedence over the model's `config.json`.
    #[must_use]
    pub fn named(&self, key: &str) -> Option<u32> {
        match (key, &*self.affixes.before) {
            ("bos_token", [first, ..]) => Some(*first),
            _ => self.id_of(self.named.get(key)?),
        }
    }

    /// The tokens that end an answer in a chat: [`eos`](Self::eos), and every special token that ends
    /// a turn or a text in a chat format (`<|eot_id|>`, `<|im_end|>` and so on), by the rules of llama.cpp. A checkpoint's
    /// configuration often names only one of them.
    #[must_use]
    pub fn turn_ends(&self) -> Vec<u32> {
        let has = |name: &str| self.id_of(name).is_some();
        let named = ends::ENDS.iter().chain(&ends::FILL_ENDS).filter(|name| ends::ends_turn(name, has));
        let named = named.filter_map(|name| self.specials.id_of(name));
        let mut ids: Vec<u32> = self.eos.iter().copied().chain(named).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Whether decoding drops the first space of a text, because encoding adds one.
    pub(crate) fn strips_leading_space(&self) -> bool {
        self.strips_leading_space
    }

    /// Declares that this tokenizer belongs to a model with `rows` embedding rows. Published models have rows without a token, and
    /// tokens without a row that their texts never use; then [`check_vocab`](Self::check_vocab) accepts both.
    #[must_use]
    pub fn with_rows(mut self, rows: usize) -> Self {
        self.rows = Some(rows);
        self
    }

    /// Checks that this tokenizer matches a model with `model` embedding rows.
    ///
    /// Unless it is [known](Self::with_rows) to belong to the model, every id must have a row. Up to an eighth of the rows may be
    /// padding without an id; more indicate another model's tokenizer, which would produce nonsense text.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::VocabMismatch`] with both sizes.
    pub fn check_vocab(&self, model: usize) -> Result<(), TokenizerError> {
        let tokenizer = self.vocab_size();
        let fits = tokenizer <= model && model - tokenizer <= model / PADDING_DIVISOR;
        if fits || self.rows == Some(model) {
            return Ok(());
        }
        Err(TokenizerError::VocabMismatch { tokenizer, model })
    }
}

/// A model with the added tokens of accompanying files, which get the next ids.
fn with_added(mut model: proto::SpModel, settings: &Settings) -> proto::SpModel {
    if let Some(prefix) = settings.add_prefix_space {
        model.vocab.add_space_prefix = prefix;
    }
    let known: HashSet<String> = model.vocab.tokens.iter().cloned().collect();
    for token in settings.added.iter().filter(|token| !known.contains(&token.content)) {
        model.vocab.tokens.push(token.content.clone());
        model.vocab.scores.push(0.0);
        model.vocab.types.push(if token.special { PieceType::Control } else { PieceType::UserDefined });
    }
    model
}

fn in_file(
    path: &Path,
    parse: impl FnOnce(Vec<u8>) -> Result<Tokenizer, TokenizerError>,
) -> Result<Tokenizer, TokenizerError> {
    read_capped(path)
        .and_then(parse)
        .map_err(|error| TokenizerError::InFile { path: PathBuf::from(path), error: Box::new(error) })
}

#[cfg(test)]
mod tests;
