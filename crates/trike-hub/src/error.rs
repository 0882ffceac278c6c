//! Errors, with remedies.

use std::path::PathBuf;

/// An error of a name, of the cache or of a download. Text from a server is never printed raw: it could contain terminal control
/// sequences.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// An invalid name of a model.
    #[error("`{got}` is not a model name: expected a path, or org/name[@revision][:file]")]
    InvalidName {
        /// The name given.
        got: String,
    },
    /// A model is not in the cache.
    #[error("{id} is not in {}: {reason}; download it with the hub's own tools, or give a path", cache.display())]
    NotInCache {
        /// The model.
        id: String,
        /// The root of the cache that was searched.
        cache: PathBuf,
        /// The missing item.
        reason: String,
    },
    /// A model is not in the cache, and a variable forbids downloads.
    #[error(
        "{id} is not in {}: {reason}; {variable} is set: unset it to download the model, or pass a path",
        cache.display()
    )]
    Offline {
        /// The model.
        id: String,
        /// The root of the cache that was searched.
        cache: PathBuf,
        /// The missing item.
        reason: String,
        /// The variable.
        variable: &'static str,
    },
    /// A download was requested, but a variable forbids downloads.
    #[error("{variable} is set: unset it to download {id}")]
    Forbidden {
        /// The model.
        id: String,
        /// The variable.
        variable: &'static str,
    },
    /// No variable defines the location of the cache.
    #[error("no cache: neither HF_HOME nor HOME is set")]
    NoCache,
    /// A repository contains no model that can be run, or several.
    #[error("{id}: {reason}; {}", listed(files))]
    Files {
        /// The model.
        id: String,
        /// The reason and a suggested action.
        reason: String,
        /// The files concerned.
        files: Vec<String>,
    },
    /// An invalid index of safetensors files.
    #[error("{}: `weight_map`: expected {expected}, got {got}", path.display())]
    Index {
        /// The file.
        path: PathBuf,
        /// The accepted content.
        expected: String,
        /// The content.
        got: String,
    },
    /// I/O error in the cache.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The model requires accepted terms.
    #[error(
        "{id} is gated: accept its terms on {page}, then set HF_TOKEN to a token of that account, or log in with `hf auth login`"
    )]
    Gated {
        /// The model.
        id: String,
        /// Its page.
        page: String,
    },
    /// A missing or private model: the hub does not distinguish the two.
    #[error(
        "{id}: {endpoint} has no such model, or it is private ({status}): check the name; for a private one {}",
        token_remedy(*token)
    )]
    NotFound {
        /// The model.
        id: String,
        /// The server.
        endpoint: String,
        /// Status of the answer.
        status: String,
        /// Whether a token was sent.
        token: bool,
    },
    /// The model exists, the revision does not.
    #[error("{id}: no revision `{revision}`: expected a branch, a tag or a commit")]
    NoRevision {
        /// The model.
        id: String,
        /// The revision.
        revision: String,
    },
    /// The file is listed but not served.
    #[error("{url}: not found, although the repository lists it: try again, or choose another revision")]
    NoFile {
        /// The file.
        url: String,
    },
    /// Access denied, but neither gated nor missing.
    #[error("{url}: access denied ({status}): {}", token_remedy(*token))]
    Refused {
        /// What was requested.
        url: String,
        /// Status of the answer.
        status: String,
        /// Whether a token was sent.
        token: bool,
    },
    /// Any other error status, such as that of too many requests.
    #[error("{url}: the server answered {status}; {remedy}")]
    Status {
        /// What was requested.
        url: String,
        /// Status of the answer.
        status: String,
        /// What to do.
        remedy: &'static str,
        /// Whether a retry of the same request may succeed.
        transient: bool,
    },
    /// No response, or an incomplete one.
    #[error(
        "{url}: {reason}; check the connection (HF_ENDPOINT sets the server, HF_HUB_DOWNLOAD_TIMEOUT and HF_HUB_ETAG_TIMEOUT the timeouts in seconds)"
    )]
    Transport {
        /// What was requested.
        url: String,
        /// The error of the connection.
        reason: String,
        /// Whether a retry of the same request may succeed.
        transient: bool,
    },
    /// The connection is too slow, or closed before the end of the file.
    #[error("{url}: {reason}; try again, the partial download is kept")]
    Interrupted {
        /// What was requested.
        url: String,
        /// The bytes expected and received.
        reason: String,
    },
    /// An invalid response.
    #[error("{url}: expected {expected}, got {got}")]
    Answer {
        /// What was requested.
        url: String,
        /// The accepted responses.
        expected: String,
        /// The response.
        got: String,
    },
    /// The content does not match its digest.
    #[error("{url}: expected {kind} {expected}, got {got}; the download was discarded")]
    Digest {
        /// The file.
        url: String,
        /// The kind of digest.
        kind: &'static str,
        /// The announced digest.
        expected: String,
        /// Digest of the content.
        got: String,
    },
    /// The token is not a valid header value.
    #[error("the token from {from} contains invalid characters: copy it again")]
    Token {
        /// The variable or the file.
        from: String,
    },
}

fn token_remedy(sent: bool) -> &'static str {
    if sent {
        "the token that was sent (from HF_TOKEN or `hf auth login`) is invalid or has no read access"
    } else {
        "set HF_TOKEN to a token with read access, or log in with `hf auth login`"
    }
}

impl HubError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        |source| Self::Io { path, source }
    }
}

#[cfg(feature = "download")]
impl HubError {
    /// Whether a retry of the same request may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Interrupted { .. } => true,
            Self::Transport { transient, .. } | Self::Status { transient, .. } => *transient,
            _ => false,
        }
    }

    pub(crate) fn answer(url: &str, expected: impl Into<String>, got: impl Into<String>) -> Self {
        Self::Answer { url: shown(url), expected: expected.into(), got: got.into() }
    }

    pub(crate) fn transport(url: &str, error: &ureq::Error) -> Self {
        let transient = matches!(error, ureq::Error::Io(_) | ureq::Error::Timeout(_));
        Self::Transport { url: shown(url), reason: error.to_string(), transient }
    }
}

/// A URL without its query, which may hold a signature, and without control characters.
#[cfg(feature = "download")]
pub(crate) fn shown(url: &str) -> String {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    printable(&url[..end])
}

/// Text of a server for an error message: truncated, and without control characters, so that no terminal escape sequence is printed.
pub(crate) fn printable(text: &str) -> String {
    let plain = text.chars().take(200).map(|c| if c.is_control() { '\u{fffd}' } else { c });
    plain.collect()
}

/// Lists untrusted file names.
fn listed(files: &[String]) -> String {
    if files.is_empty() {
        return "the repository has no files".to_owned();
    }
    format!("files: {}", files.iter().map(|name| printable(name)).collect::<Vec<_>>().join(", "))
}
