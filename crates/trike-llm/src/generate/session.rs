//! Keys and values that outlive a generation, in memory and in a file.

use std::{
    any::Any,
    fs::File,
    io::{self, BufReader, Read, Write},
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use serde::{Deserialize, Serialize};
use trike_format::OutputFile;
use trike_nn::{Backend, Decoder, KvPrecisions, KvSpec, Sequence};

use crate::{LanguageModel, LlmError};

/// The first bytes of a saved session.
const MAGIC: &[u8; 8] = b"TRIKEKV1";
/// Far more than the tokens of any context need.
const MAX_HEADER: u32 = 64 << 20;

/// The tokens of a text with their keys and values, so that a text which starts with them is continued without reading them again:
/// the next turn of a conversation, or the same long prompt in another run.
///
/// A session belongs to the model that filled it; another model starts over. An empty one is the default.
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
    /// A `Sequence<B>` of that length.
    sequence: Option<Box<dyn Any>>,
    /// Version of the decoder that computed it.
    version: u64,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("tokens", &self.ids.len()).finish_non_exhaustive()
    }
}

/// The description of a saved session, as JSON.
#[derive(Debug, Deserialize, Serialize)]
struct Header {
    /// What computed it.
    model: String,
    /// Precision of keys and values.
    kv: String,
    ids: Vec<u32>,
    /// Bytes of each layer.
    layers: Vec<usize>,
}

impl Session {
    /// The tokens whose keys and values are kept.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The kept sequence, shortened to what it and the prompt start with, or a new one; the session is empty then. At least the
    /// last token of the prompt is read again, because its logits are not kept.
    pub(super) fn take<B: Backend + 'static>(
        &mut self,
        decoder: &Decoder<B>,
        spec: &KvSpec,
        prompt: &[u32],
    ) -> Result<Sequence<B>, LlmError> {
        let ids = std::mem::take(&mut self.ids);
        let kept = self.sequence.take().and_then(|kept| kept.downcast::<Sequence<B>>().ok());
        let common = ids.iter().zip(prompt).take_while(|(a, b)| a == b).count().min(prompt.len() - 1);
        let Some(mut kept) = kept.filter(|kept| {
            let own = kept.spec();
            common > 0
                && self.version == decoder.version()
                && own.precision == spec.precision
                && own.window.is_none()
                && spec.window.is_none()
        }) else {
            return Ok(decoder.sequence(*spec)?);
        };
        if kept.truncate(common).is_err() {
            // Positions were evicted since.
            return Ok(decoder.sequence(*spec)?);
        }
        if kept.spec() == spec {
            return Ok(*kept);
        }
        // A cache of another size, or with other codes: its content is copied where the backend can.
        let mut sequence = decoder.sequence(*spec)?;
        if common <= sequence.max_step()
            && let Ok(layers) = kept.save(decoder.backend())
        {
            let layers: Vec<&[u8]> = layers.iter().map(Vec::as_slice).collect();
            sequence.restore(decoder.backend(), common, &layers)?;
        }
        Ok(sequence)
    }

    /// Keeps a sequence of a decoder, which has the first of `ids`.
    pub(super) fn keep<B: Backend + 'static>(
        &mut self,
        decoder: &Decoder<B>,
        sequence: Sequence<B>,
        ids: &[u32],
    ) {
        if sequence.window().is_none() {
            self.version = decoder.version();
            self.ids = ids[..sequence.len().min(ids.len())].to_vec();
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
    /// copy its caches. An empty session writes nothing.
    pub fn save_session(&self, session: &Session, path: &Path) -> Result<(), LlmError> {
        let Some(sequence) = session.sequence.as_ref().and_then(|kept| kept.downcast_ref::<Sequence<B>>())
        else {
            return Ok(());
        };
        if path.exists() {
            self.open_session(path)?;
        }
        let layers = sequence.save(self.decoder().backend())?;
        let header = Header {
            model: self.identity(),
            kv: sequence.spec().precision.to_string(),
            ids: session.ids.clone(),
            layers: layers.iter().map(Vec::len).collect(),
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

    /// Reads a session that [`save_session`](Self::save_session) wrote; `None` when it is one of another model, another backend or
    /// other activations.
    ///
    /// # Errors
    ///
    /// [`LlmError::Io`], and [`LlmError::SessionFile`] for a file that is damaged or something else.
    pub fn load_session(&self, path: &Path) -> Result<Option<Session>, LlmError> {
        let (header, mut file, size) = self.open_session(path)?;
        let wrong =
            |expected: String, got: String| LlmError::SessionFile { path: path.to_owned(), expected, got };
        if header.model != self.identity() {
            return Ok(None);
        }
        let spec = self.decoder().spec();
        let kv: KvPrecisions = header
            .kv
            .parse()
            .map_err(|_| wrong("a precision of keys and values".to_owned(), header.kv.clone()))?;
        let total = header.layers.iter().fold(0u64, |sum, &bytes| sum.saturating_add(bytes as u64));
        if total != size {
            return Err(wrong(format!("{total} bytes of keys and values"), format!("{size}")));
        }
        if header.ids.is_empty() || header.ids.len() > spec.context {
            let expected = format!("1 to {} tokens", spec.context);
            return Err(wrong(expected, header.ids.len().to_string()));
        }
        let mut layers = Vec::new();
        for &bytes in &header.layers {
            // No more than the file has, by the check above.
            let mut layer = vec![0; bytes];
            file.read_exact(&mut layer).map_err(|source| LlmError::Io { path: path.to_owned(), source })?;
            layers.push(layer);
        }
        let layers: Vec<&[u8]> = layers.iter().map(Vec::as_slice).collect();
        let mut sequence = self.decoder().sequence(KvSpec::new(kv, header.ids.len()))?;
        sequence.restore(self.decoder().backend(), header.ids.len(), &layers)?;
        Ok(Some(Session {
            ids: header.ids,
            sequence: Some(Box::new(sequence)),
            version: self.decoder().version(),
        }))
    }

    /// The header of a saved session, the rest of its file, and the size of that.
    fn open_session(&self, path: &Path) -> Result<(Header, BufReader<File>, u64), LlmError> {
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
        let length = match start.split_at_checked(8) {
            Some((magic, length)) if magic == MAGIC && length.len() == 4 => {
                u32::from_le_bytes([length[0], length[1], length[2], length[3]])
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
        Ok((header, file, size - 12 - u64::from(length)))
    }

    /// What determines the keys and values of a token: the files of the model, by size and time of change, and how it computes.
    fn identity(&self) -> String {
        let mut files: Vec<PathBuf> = match self.path().read_dir() {
            Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
            Err(_) => vec![self.path().to_owned()],
        };
        files.retain(|file| file.extension().is_some_and(|end| end != "json" && end != "html"));
        files.sort();
        let describe = |file: &PathBuf| {
            let meta = file.metadata().ok();
            let changed =
                meta.as_ref().and_then(|meta| meta.modified().ok()?.duration_since(UNIX_EPOCH).ok());
            let path = file.canonicalize().unwrap_or_else(|_| file.clone());
            let nanoseconds = changed.map_or(0, |time| time.as_nanos());
            format!("{} {} {nanoseconds}", path.display(), meta.map_or(0, |meta| meta.len()))
        };
        let files: Vec<String> = files.iter().map(describe).collect();
        format!("{}; {}; {:?}", files.join("; "), self.decoder().backend().name(), self.activations())
    }
}
