//! Download errors, with remedies.

use std::path::PathBuf;

use ureq::http::StatusCode;

/// Error of a download. Text from a server is never printed raw: it could contain terminal control sequences.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HubError {
    /// The model requires accepted terms.
    #[error(
        "{id} is gated: accept its terms on {page}, then set HF_TOKEN to a token of that account, or log in with `hf auth login`"
    )]
    Gated { id: String, page: String },
    /// The hub does not distinguish these, so that private names stay private.
    #[error(
        "{id}: {endpoint} has no such model, or it is private ({status}): check the name; for a private one {}",
        token_remedy(*token)
    )]
    NotFound { id: String, endpoint: String, status: StatusCode, token: bool },
    /// The model exists, the revision does not.
    #[error("{id}: no revision `{revision}`: expected a branch, a tag or a commit")]
    NoRevision { id: String, revision: String },
    /// The file is listed but not served.
    #[error("{url}: not found, although the repository lists it: try again, or choose another revision")]
    NoFile { url: String },
    /// Access denied, but neither gated nor missing.
    #[error("{url}: access denied ({status}): {}", token_remedy(*token))]
    Refused { url: String, status: StatusCode, token: bool },
    /// Too many requests.
    #[error("{url}: too many requests (429): wait some minutes, or set HF_TOKEN, which raises the limit")]
    Throttled { url: String },
    /// Any other error status.
    #[error("{url}: the server answered {status}; try again later")]
    Status { url: String, status: StatusCode },
    /// No response, or an incomplete one.
    #[error(
        "{url}: {source}; check the connection (HF_ENDPOINT sets the server, HF_HUB_DOWNLOAD_TIMEOUT and HF_HUB_ETAG_TIMEOUT the timeouts in seconds)"
    )]
    Transport { url: String, source: Box<ureq::Error> },
    /// The connection is open but too slow.
    #[error(
        "{url}: received fewer than {least} bytes in {seconds} s; try again, the partial download is kept"
    )]
    Stalled { url: String, least: u64, seconds: u64 },
    /// The connection closed before the end of the file.
    #[error(
        "{url}: expected {expected} bytes, connection closed after {got}; try again, the partial download is kept"
    )]
    Truncated { url: String, expected: u64, got: u64 },
    /// An invalid response.
    #[error("{url}: expected {expected}, got {got}")]
    Answer { url: String, expected: String, got: String },
    /// The content does not match its digest.
    #[error("{url}: expected {kind} {expected}, got {got}; the download was discarded")]
    Digest { url: String, kind: &'static str, expected: String, got: String },
    /// The token is not a valid header value.
    #[error("the token from {from} contains invalid characters: copy it again")]
    Token { from: String },
    /// I/O error in the cache.
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
}

fn token_remedy(sent: bool) -> &'static str {
    if sent {
        "the token that was sent (from HF_TOKEN or `hf auth login`) is invalid or has no read access"
    } else {
        "set HF_TOKEN to a token with read access, or log in with `hf auth login`"
    }
}

impl HubError {
    /// Whether a retry of the same request may succeed.
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

/// A URL without its query, which may hold a signature, and without control characters.
pub(super) fn shown(url: &str) -> String {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    printable(&url[..end])
}

/// Server text for an error message: truncated, and without control characters.
pub(super) fn printable(text: &str) -> String {
    let plain = text.chars().take(200).map(|c| if c.is_control() { '\u{fffd}' } else { c });
    plain.collect()
}
