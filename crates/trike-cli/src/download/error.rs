//! Why a model could not be downloaded, and what to do.

use std::path::PathBuf;

use ureq::http::StatusCode;

/// Why a model could not be downloaded. What a server says is never part of a message: it could steer the terminal.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HubError {
    /// Its owner wants to know who downloads it.
    #[error(
        "{id} is gated: accept its terms on {page}, then set HF_TOKEN to a token of that account, or log in with `hf auth login`"
    )]
    Gated { id: String, page: String },
    /// The hub does not tell these apart, so that private names stay private.
    #[error(
        "{id}: {endpoint} has no such model, or it is private ({status}): check the name; for a private one {}",
        token_remedy(*token)
    )]
    NotFound { id: String, endpoint: String, status: StatusCode, token: bool },
    /// The model is there, this state of it is not.
    #[error("{id}: there is no revision `{revision}`: name a branch, a tag or a commit")]
    NoRevision { id: String, revision: String },
    /// The listing names it, but it is not served.
    #[error("{url} is not there, though the repository lists it: try again, or name another revision")]
    NoFile { url: String },
    /// Neither gated nor absent.
    #[error("{url}: the hub refuses ({status}): {}", token_remedy(*token))]
    Refused { url: String, status: StatusCode, token: bool },
    /// Too many requests.
    #[error("{url}: too many requests (429): wait some minutes, or set HF_TOKEN, which raises the limit")]
    Throttled { url: String },
    /// Any other answer that is no success.
    #[error("{url}: the server answered {status}; try again later")]
    Status { url: String, status: StatusCode },
    /// No answer, or half of one.
    #[error(
        "{url}: {source}; check the connection (HF_ENDPOINT names another server, HF_HUB_DOWNLOAD_TIMEOUT and HF_HUB_ETAG_TIMEOUT the seconds to wait)"
    )]
    Transport { url: String, source: Box<ureq::Error> },
    /// The connection is open and next to nothing comes.
    #[error("{url}: fewer than {least} bytes came in {seconds} s; try again, what is there is kept")]
    Stalled { url: String, least: u64, seconds: u64 },
    /// The connection closed before the end.
    #[error(
        "{url}: expected {expected} bytes, the connection ended after {got}; try again, what is there is kept"
    )]
    Truncated { url: String, expected: u64, got: u64 },
    /// An answer that is none.
    #[error("{url}: expected {expected}, got {got}")]
    Answer { url: String, expected: String, got: String },
    /// The content is not what its name in the cache says.
    #[error("{url}: expected content with the {kind} {expected}, got {got}: nothing of it was kept")]
    Digest { url: String, kind: &'static str, expected: String, got: String },
    /// The token cannot be sent.
    #[error("the token from {from} holds characters that no token has: copy it again")]
    Token { from: String },
    /// The cache cannot be written.
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
}

fn token_remedy(sent: bool) -> &'static str {
    if sent {
        "the token that was sent (HF_TOKEN, or of `hf auth login`) is not valid or may not read it"
    } else {
        "set HF_TOKEN to a token that may read it, or log in with `hf auth login`"
    }
}

impl HubError {
    /// Whether the same request may succeed a moment later.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Stalled { .. } | Self::Truncated { .. } => true,
            Self::Transport { source, .. } => {
                matches!(**source, ureq::Error::Io(_) | ureq::Error::Timeout(_))
            }
            Self::Status { status, .. } => status.is_server_error(),
            _ => false,
        }
    }

    pub(super) fn answer(url: &str, expected: impl Into<String>, got: impl Into<String>) -> Self {
        Self::Answer { url: shown(url), expected: expected.into(), got: got.into() }
    }

    pub(super) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        |source| Self::Io { path, source }
    }
}

/// An address without its query, which may hold a signature, and without what could steer a terminal.
pub(super) fn shown(url: &str) -> String {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    printable(&url[..end])
}

/// A text of a server in an error: short, and without control characters.
pub(super) fn printable(text: &str) -> String {
    let plain = text.chars().take(200).map(|c| if c.is_control() { '\u{fffd}' } else { c });
    plain.collect()
}
