//! What is served, and how.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use trike_text::{chat::ChatTemplate, sampler::GenerationConfig};

/// The model as clients see it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServedModel {
    /// The name that clients ask for.
    pub name: String,
    /// Further names that it is asked for by.
    pub aliases: Vec<String>,
    /// The chat template; without one, chats are refused.
    pub template: Option<ChatTemplate>,
    /// The model's recommendations for sampling, for what a request leaves open.
    pub generation: GenerationConfig,
}

impl ServedModel {
    /// A model with its name, template and recommendations.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        template: Option<ChatTemplate>,
        generation: GenerationConfig,
    ) -> Self {
        Self { name: name.into(), aliases: Vec::new(), template, generation }
    }

    /// Sets [`aliases`](Self::aliases).
    #[must_use]
    pub fn with_aliases(self, aliases: impl Into<Vec<String>>) -> Self {
        Self { aliases: aliases.into(), ..self }
    }

    /// Whether the model has this name.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }
}

/// Options of a server; each `with_` method changes one field of the default.
///
/// ```
/// use trike_serve::ServeOptions;
///
/// let options = ServeOptions::default();
/// assert!(options.address.ip().is_loopback());
/// assert!(options.keys.is_empty() && options.origin.is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServeOptions {
    /// Where the server listens: 127.0.0.1, port 8080, by default; port 0 lets the system choose.
    pub address: SocketAddr,
    /// Keys of which requests must send one; none are needed when empty. `/health` never needs one.
    pub keys: Vec<String>,
    /// The web origin whose pages may read answers, or `*` for all; none by default.
    pub origin: Option<String>,
    /// Bytes of the longest body of a request. 16 MiB by default.
    pub body_limit: usize,
    /// Time after which a request fails. Ten minutes by default.
    pub timeout: Duration,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            address: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080),
            keys: Vec::new(),
            origin: None,
            body_limit: 16 << 20,
            timeout: Duration::from_secs(600),
        }
    }
}

impl ServeOptions {
    /// Sets [`address`](Self::address).
    #[must_use]
    pub fn with_address(self, address: impl Into<SocketAddr>) -> Self {
        Self { address: address.into(), ..self }
    }

    /// Sets [`keys`](Self::keys).
    #[must_use]
    pub fn with_keys(self, keys: impl Into<Vec<String>>) -> Self {
        Self { keys: keys.into(), ..self }
    }

    /// Sets [`origin`](Self::origin).
    #[must_use]
    pub fn with_origin(self, origin: impl Into<Option<String>>) -> Self {
        Self { origin: origin.into(), ..self }
    }

    /// Sets [`body_limit`](Self::body_limit).
    #[must_use]
    pub fn with_body_limit(self, body_limit: usize) -> Self {
        Self { body_limit, ..self }
    }

    /// Sets [`timeout`](Self::timeout).
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }
}
