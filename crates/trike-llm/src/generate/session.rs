//! Keys and values kept after a generation, in memory and in a file.

use std::{
    any::Any,
    fs::File,
    io::{self, BufReader, Read, Write},
    path::Path,
};

use serde::{Deserialize, Serialize};
use trike_format::{Difference, Digest, Identity, OutputFile};
use trike_nn::{Backend, Decoder, DecoderSequence, KvSpec};

use super::PROMPT_STEP;
use crate::{GenerateOptions, LanguageModel, LlmError, fingerprint};

/// The first bytes of a saved session; the last is the version of the format.
const MAGIC: &[u8; 8] = b"TRIKEKV2";
/// Generous upper bound of the header size for any context.
const MAX_HEADER: u32 = 64 << 20;

/// The tokens of a text with their keys and values, so that a text with this prefix is continued without prefilling it again: the
/// next turn of a conversation, or the same long prompt in another run.
///
/// A session belongs to the model that filled it; another model starts over. The default is empty.
///
/// ```
/// use trike_llm::{GenerateOptions, LanguageModel, Session};
/// use std::ops::ControlFlow;
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny");
/// let model = LanguageModel::load(path)?;
/// let mut session = Session::default();
/// let options = GenerateOptions::default().with_max_tokens(4).with_context(64);
/// let mut ids = model.tokenizer()?.encode_prompt("Once upon a time")?;
/// let first = model.generate_in(&mut session, ids.clone(), &[], &options, |_| ControlFlow::Continue(()))?;
/// ids.extend(&first.ids);
/// let second = model.generate_in(&mut session, ids.clone(), &[], &options, |_| ControlFlow::Continue(()))?;
/// assert_eq!((first.reused, second.reused), (0, ids.len() - 1));
/// # Ok::<(), trike_llm::LlmError>(())
/// ```
#[derive(Default)]
pub struct Session {
    /// The tokens whose keys and values are kept.
    ids: Vec<u32>,
    /// A `DecoderSequence<B>` of that length.
    sequence: Option<Box<dyn Any>>,
    /// Version of the decoder that computed it.
    version: u64,
    /// Number of initial tokens that were prefilled in steps of several tokens: their keys and values do not depend on the
    /// [`KvSpec::keys`] of the sequence.
    read: usize,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("tokens", &self.ids.len()).finish_non_exhaustive()
    }
}

/// The description of a saved session, as JSON.
#[derive(Debug, Deserialize, Serialize)]
struct Header {
    /// The settings that determine the keys and values.
    identity: Vec<(String, String)>,
    ids: Vec<u32>,
    read: usize,
    /// Bytes of each layer.
    layers: Vec<usize>,
    /// Digest of `ids`, `read`, and the keys and values.
    digest: String,
}

/// The digest of a session's content.
fn digest(ids: &[u32], read: usize, layers: &[impl AsRef<[u8]>]) -> String {
    let start = Digest::default().word(read as u64);
    let ids = ids.iter().fold(start, |digest, &id| digest.word(u64::from(id)));
    layers.iter().fold(ids, |digest, layer| digest.bytes(layer.as_ref())).to_string()
}

impl Session {
    /// The tokens whose keys and values are kept.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The kept sequence, truncated to the common prefix with the prompt, or a new one; the session is then empty. At least the
    /// last token of the prompt is run again, because its logits are not kept.
    pub(super) fn take<B: Backend + 'static>(
        &mut self,
        decoder: &Decoder<B>,
        spec: &KvSpec,
        prompt: &[u32],
    ) -> Result<DecoderSequence<B>, LlmError> {
        let ids = std::mem::take(&mut self.ids);
        let kept = self.sequence.take().and_then(|kept| kept.downcast::<DecoderSequence<B>>().ok());
        let mut common = ids.iter().zip(prompt).take_while(|(a, b)| a == b).count().min(prompt.len() - 1);
        if kept.as_ref().is_some_and(|kept| kept.spec().keys != spec.keys) {
            common = common.min(self.read);
        }
        let read = std::mem::take(&mut self.read).min(common);
        let Some(mut kept) = kept.filter(|kept| {
            let own = kept.spec();
            common > 0
                && self.version == decoder.version()
                && own.precision == spec.precision
                && own.prompt_keys == spec.prompt_keys
                && own.window.is_none()
                && spec.window.is_none()
        }) else {
            return Ok(decoder.sequence(*spec)?);
        };
        if kept.truncate(common).is_err() {
            // Positions were evicted since.
            return Ok(decoder.sequence(*spec)?);
        }
        self.read = read;
        if kept.spec() == spec {
            return Ok(*kept);
        }
        // For a cache of another capacity or with other codes, the content is copied if the backend supports it.
        let mut sequence = decoder.sequence(*spec)?;
        if common <= sequence.max_step()
            && let Ok(layers) = kept.save(decoder.backend())
        {
            let layers: Vec<&[u8]> = layers.iter().map(Vec::as_slice).collect();
            sequence.restore(decoder.backend(), common, &layers)?;
        }
        Ok(sequence)
    }

    /// Keeps a sequence of a decoder that contains the first of `ids`: `reused` from [`take`](Self::take), those up to `prompt`
    /// prefilled, and the rest decoded one by one.
    pub(super) fn keep<B: Backend + 'static>(
        &mut self,
        decoder: &Decoder<B>,
        sequence: DecoderSequence<B>,
        ids: &[u32],
        (reused, prompt): (usize, usize),
    ) {
        if sequence.window().is_none() {
            self.version = decoder.version();
            self.ids = ids[..sequence.len().min(ids.len())].to_vec();
            let by_itself = usize::from(prompt.saturating_sub(reused) % PROMPT_STEP == 1);
            self.read = if self.read < reused { self.read } else { prompt.saturating_sub(by_itself) };
            self.sequence = Some(Box::new(sequence));
        }
    }
}

impl<B: Backend + 'static> LanguageModel<B> {
    /// Writes a session that this model filled to an [`OutputFile`].
    ///
    /// # Errors
    ///
    /// [`LlmError::Io`]; [`LlmError::SessionFile`] when the file exists and is not a saved session; errors of a backend that cannot
    /// copy its caches. An empty session, or one with evicted positions, is not written.
    pub fn save_session(&self, session: &Session, path: &Path) -> Result<(), LlmError> {
        let Some(sequence) =
            session.sequence.as_ref().and_then(|kept| kept.downcast_ref::<DecoderSequence<B>>())
        else {
            return Ok(());
        };
        if sequence.evicted() > 0 {
            return Ok(());
        }
        if path.exists() {
            // Replace only a saved session (of any model), never another file.
            drop(self.open_session(path)?);
        }
        let layers = sequence.save(self.decoder().backend())?;
        let header = Header {
            identity: self.identity(sequence.spec())?.facts().to_vec(),
            ids: session.ids.clone(),
            read: session.read,
            layers: layers.iter().map(Vec::len).collect(),
            digest: digest(&session.ids, session.read, &layers),
        };
        let write = || -> io::Result<()> {
            let header = serde_json::to_vec(&header)?;
            let mut file = OutputFile::create(path)?;
            file.write_all(MAGIC)?;
            file.write_all(&(header.len() as u32).to_le_bytes())?;
            file.write_all(&header)?;
            for layer in &layers {
                file.write_all(layer)?;
            }
            file.finish()
        };
        write().map_err(|source| LlmError::Io { path: path.to_owned(), source })
    }

    /// Reads a session that [`save_session`](Self::save_session) wrote, for texts with `options`. The inner error names the setting
    /// that differs from this model's: other weights, another backend, activations or selected keys.
    ///
    /// # Errors
    ///
    /// [`LlmError::Io`], [`LlmError::SessionFile`] for a file that is corrupt or not a session, and options out of range.
    pub fn load_session(
        &self,
        path: &Path,
        options: &GenerateOptions,
    ) -> Result<Result<Session, Difference>, LlmError> {
        let (header, mut file, size) = match self.open_session(path)? {
            Ok(opened) => opened,
            Err(difference) => return Ok(Err(difference)),
        };
        let wrong =
            |expected: String, got: String| LlmError::SessionFile { path: path.to_owned(), expected, got };
        let total = header.layers.iter().fold(0u64, |sum, &bytes| sum.saturating_add(bytes as u64));
        if total != size {
            return Err(wrong(format!("{total} bytes of keys and values"), format!("{size}")));
        }
        let spec = self.decoder().spec();
        let cache = options.cache(header.ids.len().min(spec.context), spec.context, self.default_kv())?;
        if let Some(difference) = self.identity(&cache)?.differs_from(&header.identity) {
            return Ok(Err(difference));
        }
        if header.ids.is_empty() || header.ids.len() > spec.context {
            let expected = format!("1 to {} tokens", spec.context);
            return Err(wrong(expected, header.ids.len().to_string()));
        }
        let mut layers = Vec::new();
        for &bytes in &header.layers {
            // Bounded by the file size, as checked above.
            let mut layer = vec![0; bytes];
            file.read_exact(&mut layer).map_err(|source| LlmError::Io { path: path.to_owned(), source })?;
            layers.push(layer);
        }
        let found = digest(&header.ids, header.read, &layers);
        if found != header.digest {
            return Err(wrong(format!("contents with the digest {}", header.digest), found));
        }
        let layers: Vec<&[u8]> = layers.iter().map(Vec::as_slice).collect();
        let own = KvSpec::new(cache.precision, header.ids.len())
            .with_keys(cache.keys)
            .with_prompt_keys(cache.prompt_keys);
        let mut sequence = self.decoder().sequence(own)?;
        sequence.restore(self.decoder().backend(), header.ids.len(), &layers)?;
        Ok(Ok(Session {
            read: header.read.min(header.ids.len()),
            ids: header.ids,
            sequence: Some(Box::new(sequence)),
            version: self.decoder().version(),
        }))
    }

    /// The header of a saved session, a reader of the rest of its file, and the size of the rest.
    fn open_session(&self, path: &Path) -> Result<Result<Opened, Difference>, LlmError> {
        let failed = |source| LlmError::Io { path: path.to_owned(), source };
        let wrong = |expected: &str, got: String| {
            let expected = expected.to_owned();
            LlmError::SessionFile { path: path.to_owned(), expected, got }
        };
        // Opening a pipe would wait for a writer.
        if !path.metadata().map_err(failed)?.is_file() {
            return Err(wrong("a saved prompt", "no regular file".to_owned()));
        }
        let file = File::open(path).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        let mut file = BufReader::new(file);
        let mut start = Vec::new();
        file.by_ref().take(12).read_to_end(&mut start).map_err(failed)?;
        let (family, format) = (&MAGIC[..7], char::from(MAGIC[7]).to_string());
        let length = match start.split_at_checked(8) {
            Some((magic, length)) if magic == MAGIC && length.len() == 4 => {
                u32::from_le_bytes([length[0], length[1], length[2], length[3]])
            }
            Some((magic, _)) if magic.starts_with(family) && magic[7].is_ascii_digit() => {
                let fact = "the format of saved prompts".to_owned();
                let stored = Some(char::from(magic[7]).to_string());
                return Ok(Err(Difference { fact, stored, now: Some(format) }));
            }
            _ => return Err(wrong("a saved prompt", "another file".to_owned())),
        };
        if length > MAX_HEADER || u64::from(length) + 12 > size {
            return Err(wrong("a saved prompt", "a file that was cut short".to_owned()));
        }
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header).map_err(failed)?;
        let header =
            serde_json::from_slice(&header).map_err(|error| wrong("a saved prompt", error.to_string()))?;
        Ok(Ok((header, file, size - 12 - u64::from(length))))
    }

    /// The settings that determine the keys and values of a token, besides the tokens before it.
    fn identity(&self, spec: &KvSpec) -> Result<Identity, LlmError> {
        let changed = self.replaced_digest().map_or_else(|| "none".to_owned(), |digest| digest.to_string());
        let decoder = self.decoder();
        Ok(Identity::new()
            .with("the model", fingerprint::local(self.path())?)
            .with("the digest of layers changed in memory", changed)
            .with("what computes", decoder.backend().name())
            .with("the layout of weights", format!("{:?}", decoder.layouts()))
            .with("the precision of activations", format!("{:?}", self.activations()))
            .with("the precision of the head", self.head())
            .with("the precision of keys and values", spec.precision)
            .with("the selection of keys", format!("{:?}", spec.keys))
            .with("the selection of keys for prompts", format!("{:?}", spec.prompt_keys)))
    }
}

/// The header of a saved session, a reader of the rest of its file, and the size of the rest.
type Opened = (Header, BufReader<File>, u64);
