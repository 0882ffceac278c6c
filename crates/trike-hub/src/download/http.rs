//! HTTP requests: token scope, redirects and timeouts.

use std::{
    fs::File,
    io::{self, Read},
    path::PathBuf,
    time::{Duration, Instant},
};

use ureq::{
    Agent, Body,
    http::{HeaderMap, Response, StatusCode, Uri, header},
};

use crate::HubError;
use crate::error::{printable, shown};
use crate::variables::Variables;

/// The hub needs one or two.
const MAX_REDIRECTS: usize = 6;
/// Delays before retries.
const PAUSES: [Duration; 2] = [Duration::from_millis(300), Duration::from_secs(2)];
/// Minimum bytes per read timeout, so that a server that sends single bytes cannot stall a download forever.
const LEAST: u64 = 16 << 10;

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
/// Default of both timeouts.
const DEFAULT_SECONDS: u64 = 10;
/// Far above the length of any token.
const MAX_TOKEN: u64 = 4096;

/// Endpoint of the hub.
#[derive(Clone)]
pub(crate) struct Endpoint {
    /// Without a trailing slash.
    url: String,
    /// Sent only to the origin of `url`.
    token: Option<String>,
    /// Timeout of a response.
    answer_timeout: Duration,
    /// Timeout of each read of a body.
    pub(super) read_timeout: Duration,
}

impl Endpoint {
    /// Endpoint, credentials and timeouts from the environment variables.
    pub(crate) fn of(variables: &Variables) -> Result<Self, HubError> {
        let url = variables.get("HF_ENDPOINT").map(|url| url.to_string_lossy().into_owned());
        let url = url.unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
        Ok(Self {
            url: url.trim_end_matches('/').to_owned(),
            token: if variables.is_set("HF_HUB_DISABLE_IMPLICIT_TOKEN") { None } else { token(variables)? },
            answer_timeout: seconds(variables, "HF_HUB_ETAG_TIMEOUT"),
            read_timeout: seconds(variables, "HF_HUB_DOWNLOAD_TIMEOUT"),
        })
    }
}

fn seconds(variables: &Variables, name: &str) -> Duration {
    let given = variables.get(name).and_then(|value| value.to_str()?.trim().parse().ok());
    // At least one second, and at most a day.
    Duration::from_secs(given.unwrap_or(DEFAULT_SECONDS).clamp(1, 86_400))
}

/// The token of a variable, or the one stored by a login with the hub's tools.
fn token(variables: &Variables) -> Result<Option<String>, HubError> {
    let named = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"].into_iter().find_map(|name| {
        let value = variables.get(name)?.to_string_lossy().into_owned();
        Some((name.to_owned(), value)).filter(|(_, value)| !value.trim().is_empty())
    });
    let stored = || {
        let path = variables.get("HF_TOKEN_PATH").map(PathBuf::from);
        let path = path.or_else(|| variables.home().map(|folder| folder.join("token")))?;
        let mut text = String::new();
        File::open(&path).ok()?.take(MAX_TOKEN).read_to_string(&mut text).ok()?;
        Some((path.display().to_string(), text))
    };
    let Some((from, value)) = named.or_else(stored) else { return Ok(None) };
    let value = value.trim();
    if !value.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(HubError::Token { from });
    }
    Ok(Some(value.to_owned()).filter(|value| !value.is_empty()))
}

/// Type of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Ask {
    /// HEAD; stops at a redirect that describes its target.
    Head,
    /// GET of the body from this byte.
    From(u64),
}

/// HTTP client for one model.
pub(super) struct Client {
    agent: Agent,
    pub(super) endpoint: Endpoint,
    origin: Origin,
    /// `org/name`.
    pub(super) repository: String,
    pub(super) revision: String,
}

/// Scheme, host and port; the token is sent to one origin only.
#[derive(Clone, Debug, PartialEq)]
struct Origin {
    scheme: String,
    host: String,
    port: u16,
}

impl Origin {
    fn of(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let scheme = uri.scheme_str()?.to_ascii_lowercase();
        let default = match scheme.as_str() {
            "http" => 80,
            "https" => 443,
            _ => return None,
        };
        let port = uri.port_u16().unwrap_or(default);
        Some(Self { scheme, host: uri.host()?.to_ascii_lowercase(), port })
    }
}

impl Client {
    pub(super) fn new(endpoint: Endpoint, repository: String, revision: &str) -> Result<Self, HubError> {
        let bad = || HubError::answer(&endpoint.url, "HF_ENDPOINT as http://… or https://…", "another URL");
        let origin = Origin::of(&endpoint.url).ok_or_else(bad)?;
        let wait = Some(endpoint.answer_timeout);
        let config = Agent::config_builder()
            // Redirects are followed in `send`, with one rule for the token.
            .max_redirects(0)
            .http_status_as_error(false)
            .user_agent(concat!("trike/", env!("CARGO_PKG_VERSION")))
            // Sizes and digests refer to the unencoded file.
            .accept_encoding("identity")
            .timeout_resolve(wait)
            .timeout_connect(wait)
            .timeout_send_request(wait)
            .timeout_recv_response(wait)
            .timeout_per_read(Some(endpoint.read_timeout))
            .build();
        Ok(Self { agent: config.new_agent(), endpoint, origin, repository, revision: revision.to_owned() })
    }

    /// A URL below the endpoint.
    pub(super) fn url(&self, parts: &[&str]) -> String {
        parts.iter().fold(self.endpoint.url.clone(), |url, part| url + "/" + &encoded(part))
    }

    /// Follows redirects and returns the last response, regardless of its status.
    pub(super) fn send(&self, url: &str, ask: Ask) -> Result<Response<Body>, HubError> {
        let mut url = url.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            let here = Origin::of(&url);
            let answer = self.once(&url, ask, here.as_ref() == Some(&self.origin))?;
            let location = answer.headers().get(header::LOCATION);
            let (true, Some(location)) = (answer.status().is_redirection(), location) else {
                return Ok(answer);
            };
            let says = |name| text(answer.headers(), name).is_some();
            if ask == Ask::Head && says("x-linked-etag") && says("x-linked-size") {
                return Ok(answer);
            }
            let next = location.to_str().ok().and_then(|location| join(&url, location));
            let there = next.as_deref().and_then(Origin::of);
            match (here, next, there) {
                (Some(here), Some(next), Some(there)) if here.scheme == "http" || there.scheme == "https" => {
                    url = next;
                }
                _ => {
                    let got = printable(&String::from_utf8_lossy(location.as_bytes()));
                    return Err(HubError::answer(&url, "a redirect that keeps https", got));
                }
            }
        }
        Err(HubError::answer(&url, format!("at most {MAX_REDIRECTS} redirects"), "more"))
    }

    fn once(&self, url: &str, ask: Ask, with_token: bool) -> Result<Response<Body>, HubError> {
        let mut request = match ask {
            Ask::Head => self.agent.head(url),
            Ask::From(0) => self.agent.get(url),
            Ask::From(start) => self.agent.get(url).header(header::RANGE, format!("bytes={start}-")),
        };
        if let (true, Some(token)) = (with_token, &self.endpoint.token) {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        request.call().map_err(|error| HubError::transport(url, &error))
    }

    /// The body of a response, with a minimum transfer rate.
    pub(super) fn body(&self, answer: Response<Body>) -> Patient<impl Read + use<>> {
        Patient::new(answer.into_body().into_reader(), self.endpoint.read_timeout)
    }

    /// Maps an error status to an error.
    pub(super) fn check(&self, url: &str, answer: &Response<Body>) -> Result<(), HubError> {
        let (status, token) = (answer.status(), self.endpoint.token.is_some());
        let code = text(answer.headers(), "x-error-code").unwrap_or_default();
        let (id, revision) = (self.repository.clone(), self.revision.clone());
        let url = shown(url);
        Err(match (status, code) {
            (status, _) if status.is_success() || status.is_redirection() => return Ok(()),
            (_, "GatedRepo") => HubError::Gated { page: format!("{}/{id}", self.endpoint.url), id },
            (StatusCode::NOT_FOUND, "RevisionNotFound") => HubError::NoRevision { id, revision },
            (StatusCode::NOT_FOUND, "EntryNotFound") => HubError::NoFile { url },
            // Servers other than the hub send no codes; the file was listed.
            (StatusCode::NOT_FOUND, "") if url.contains("/resolve/") => HubError::NoFile { url },
            (StatusCode::UNAUTHORIZED | StatusCode::NOT_FOUND, _) => HubError::NotFound {
                id,
                endpoint: self.endpoint.url.clone(),
                status: status.to_string(),
                token,
            },
            (StatusCode::FORBIDDEN, _) => HubError::Refused { url, status: status.to_string(), token },
            (StatusCode::TOO_MANY_REQUESTS, _) => HubError::Status {
                url,
                status: status.to_string(),
                remedy: "wait some minutes, or set HF_TOKEN, which raises the limit",
                transient: false,
            },
            _ => HubError::Status {
                url,
                status: status.to_string(),
                remedy: "try again later",
                transient: status.is_server_error(),
            },
        })
    }
}

/// Retries a request after transient errors.
pub(super) fn again<T>(mut request: impl FnMut() -> Result<T, HubError>) -> Result<T, HubError> {
    for pause in PAUSES {
        match request() {
            Err(error) if error.is_transient() => std::thread::sleep(pause),
            other => return other,
        }
    }
    request()
}

/// A header value as text.
pub(super) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Percent-encodes a path of one or more segments.
fn encoded(path: &str) -> String {
    let keep = |b: u8| b.is_ascii_alphanumeric() || b"-._~/".contains(&b);
    path.bytes().map(|b| if keep(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// Target of a redirect. Paths relative to the last segment do not occur.
fn join(url: &str, location: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let host = rest.split(['/', '?', '#']).next()?;
    match location {
        l if l.contains("://") && !l.starts_with('/') => Some(l.to_owned()),
        l if l.starts_with("//") => Some(format!("{scheme}:{l}")),
        l if l.starts_with('/') => Some(format!("{scheme}://{host}{l}")),
        _ => None,
    }
}

/// A reader that fails if the transfer rate stays too low.
pub(super) struct Patient<R> {
    inner: R,
    window: Duration,
    since: Instant,
    bytes: u64,
}

/// Error of [`Patient`].
#[derive(Debug)]
pub(super) struct TooSlow;

impl std::fmt::Display for TooSlow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("too slow")
    }
}

impl std::error::Error for TooSlow {}

impl<R: Read> Patient<R> {
    fn new(inner: R, window: Duration) -> Self {
        Self { inner, window, since: Instant::now(), bytes: 0 }
    }
}

impl<R: Read> Read for Patient<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.bytes += read as u64;
        if self.since.elapsed() >= self.window {
            // A short read at the end of a body is not slow.
            if read > 0 && self.bytes < LEAST {
                return Err(io::Error::other(TooSlow));
            }
            (self.since, self.bytes) = (Instant::now(), 0);
        }
        Ok(read)
    }
}

/// Converts an error of reading a body.
pub(super) fn read_error(url: &str, window: Duration, error: io::Error) -> HubError {
    let slow = error.get_ref().and_then(|cause| cause.downcast_ref::<TooSlow>()).is_some();
    let url = shown(url);
    match ureq::Error::from(error) {
        error if slow || matches!(error, ureq::Error::Timeout(_)) => {
            let reason = format!("received fewer than {LEAST} bytes in {} s", window.as_secs());
            HubError::Interrupted { url, reason }
        }
        other => HubError::transport(&url, &other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_differ_by_scheme_host_and_port() {
        let same = |a: &str, b: &str| Origin::of(a).is_some() && Origin::of(a) == Origin::of(b);
        assert!(same("https://hub.example/a", "HTTPS://Hub.Example:443/b?c"));
        for other in [
            "http://hub.example",
            "https://hub.example:444",
            "https://cdn.hub.example",
            "https://hub.example@evil.example/",
            "https://hub.example.evil.example",
            "ftp://hub.example",
            "hub.example",
            "",
        ] {
            assert!(!same("https://hub.example", other), "{other}");
        }
    }

    #[test]
    fn redirects_are_joined_to_where_they_came_from() {
        for (location, want) in [
            ("https://cdn.example/x?a=/b", Some("https://cdn.example/x?a=/b")),
            ("//cdn.example/x", Some("https://cdn.example/x")),
            ("/c/d?u=http://e", Some("https://hub.example:8/c/d?u=http://e")),
            ("d", None),
            ("", None),
        ] {
            assert_eq!(join("https://hub.example:8/a/b", location).as_deref(), want, "{location}");
        }
    }

    #[test]
    fn paths_are_encoded() {
        assert_eq!(encoded("q 4/a+b#?%ü.gguf"), "q%204/a%2Bb%23%3F%25%C3%BC.gguf");
    }

    #[test]
    fn single_bytes_for_too_long_are_too_slow() {
        struct Drip;
        impl Read for Drip {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                std::thread::sleep(Duration::from_millis(2));
                buffer[0] = 0;
                Ok(1)
            }
        }
        let mut slow = Patient::new(Drip.take(10_000), Duration::from_millis(20));
        let error = slow.read_to_end(&mut Vec::new()).unwrap_err();
        let error = read_error("http://a/b?secret", Duration::from_secs(3), error).to_string();
        assert!(error.contains("fewer than 16384 bytes in 3 s") && !error.contains("secret"), "{error}");
        let mut bytes = Vec::new();
        Patient::new(&[7; 100_000][..], Duration::from_secs(60)).read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len(), 100_000);
    }
}
