//! Resolution of `org/name` models.

use std::path::{Path, PathBuf};

use anyhow::bail;
use trike::{
    LlmError,
    llm::{HubCache, ModelId},
};

/// Variables of the hub's own tools that set its location. Variables that hold a token are excluded, because this list
/// is printed.
pub(super) const VARIABLES: [&str; 9] = [
    "HF_ENDPOINT",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_HUB_DISABLE_PROGRESS_BARS",
    "HF_HUB_DOWNLOAD_TIMEOUT",
    "HF_HUB_ETAG_TIMEOUT",
    "HF_HUB_OFFLINE",
    "HF_TOKEN_PATH",
    "HUGGINGFACE_HUB_CACHE",
];

/// An existing path as it is. Otherwise the path of the bundled model for its name or, if it parses as a model id of the hub, the
/// path of the model in the cache, downloaded first if necessary.
pub(super) fn resolve(path: &Path, quiet: bool) -> anyhow::Result<PathBuf> {
    if path.exists() {
        return Ok(path.to_owned());
    }
    if path.as_os_str() == super::shipped::NAME {
        return super::shipped::find();
    }
    let id = path.to_str().and_then(|text| text.parse::<ModelId>().ok());
    let (Some(id), Some(cache)) = (id, cache()) else { return Ok(path.to_owned()) };
    match cache.resolve(&id) {
        Err(LlmError::NotInCache { reason, .. }) => absent(&id, &cache, &reason, quiet),
        found => Ok(found?),
    }
}

#[cfg(feature = "hub")]
fn absent(id: &ModelId, cache: &HubCache, reason: &str, quiet: bool) -> anyhow::Result<PathBuf> {
    if let Some(name) = offline() {
        bail!(
            "{id} is not in {}: {reason}; {name} is set: unset it to download the model, or pass a path",
            cache.root().display()
        );
    }
    download(id, cache, quiet)
}

/// Downloads the missing files of a model and returns its path.
#[cfg(feature = "hub")]
fn download(id: &ModelId, cache: &HubCache, quiet: bool) -> anyhow::Result<PathBuf> {
    let endpoint = remote::endpoint()?;
    crate::download::download(id, cache, endpoint, quiet || is_set("HF_HUB_DISABLE_PROGRESS_BARS"))?;
    Ok(cache.resolve(id)?)
}

/// Downloads what is missing in the cache of the newest state of a model's revision.
#[cfg(feature = "hub")]
pub(super) fn pull(id: &ModelId, quiet: bool) -> anyhow::Result<PathBuf> {
    if let Some(name) = offline() {
        bail!("{name} is set: unset it to download {id}");
    }
    let cache = cache().ok_or_else(|| anyhow::anyhow!("no cache: neither HF_HOME nor HOME is set"))?;
    download(id, &cache, quiet)
}

/// The variable that forbids downloads, if it is set.
#[cfg(feature = "hub")]
fn offline() -> Option<&'static str> {
    ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"].into_iter().find(|name| is_set(name))
}

/// The cache of the hub's tools; `None` without a home directory.
pub(super) fn cache() -> Option<HubCache> {
    root().map(HubCache::new)
}

#[cfg(not(feature = "hub"))]
fn absent(id: &ModelId, cache: &HubCache, reason: &str, _quiet: bool) -> anyhow::Result<PathBuf> {
    let revision =
        if id.revision() == "main" { String::new() } else { format!(" --revision {}", id.revision()) };
    let file = id.file().map_or_else(String::new, |file| format!(" {file}"));
    bail!(
        "{id} is not in {}: {reason}; this build cannot download: run `hf download {}/{}{file}{revision}`, install it with the default features, or pass a path",
        cache.root().display(),
        id.org(),
        id.name(),
    );
}

/// The value of a variable, if it is not empty.
fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Home directory of the hub's tools.
fn home() -> Option<PathBuf> {
    let under = |name: &str, rest: &str| variable(name).map(|folder| folder.join(rest));
    variable("HF_HOME")
        .or_else(|| under("XDG_CACHE_HOME", "huggingface"))
        .or_else(|| under("HOME", ".cache/huggingface"))
}

/// The cache directory, from the same variables and in the same order as the hub's own tools.
fn root() -> Option<PathBuf> {
    variable("HF_HUB_CACHE")
        .or_else(|| variable("HUGGINGFACE_HUB_CACHE"))
        .or_else(|| home().map(|folder| folder.join("hub")))
}

/// Whether a variable has a value that the hub's tools treat as true.
#[cfg(feature = "hub")]
fn is_set(name: &str) -> bool {
    let value = std::env::var(name).unwrap_or_default();
    ["1", "on", "yes", "true"].contains(&value.to_ascii_lowercase().as_str())
}

/// Endpoint, credentials and timeouts of the hub.
#[cfg(feature = "hub")]
mod remote {
    use std::{io::Read, time::Duration};

    use super::{home, is_set, variable};
    use crate::download::{Endpoint, HubError};

    const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
    /// Default of both timeouts.
    const DEFAULT_SECONDS: u64 = 10;
    /// Far above the length of any token.
    const MAX_TOKEN: u64 = 4096;

    pub(super) fn endpoint() -> anyhow::Result<Endpoint> {
        let url = std::env::var("HF_ENDPOINT").ok().filter(|url| !url.is_empty());
        let url = url.unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
        Ok(Endpoint {
            url: url.trim_end_matches('/').to_owned(),
            token: if is_set("HF_HUB_DISABLE_IMPLICIT_TOKEN") { None } else { token()? },
            answer_timeout: seconds("HF_HUB_ETAG_TIMEOUT"),
            read_timeout: seconds("HF_HUB_DOWNLOAD_TIMEOUT"),
        })
    }

    fn seconds(name: &str) -> Duration {
        let given = std::env::var(name).ok().and_then(|value| value.trim().parse().ok());
        // At least one second, and at most a day.
        Duration::from_secs(given.unwrap_or(DEFAULT_SECONDS).clamp(1, 86_400))
    }

    /// The token from the environment, or the one stored by a login with the hub's tools.
    fn token() -> Result<Option<String>, HubError> {
        let named = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"].into_iter().find_map(|name| {
            let value = std::env::var_os(name)?.to_string_lossy().into_owned();
            Some((name.to_owned(), value)).filter(|(_, value)| !value.trim().is_empty())
        });
        let stored = || {
            let path = variable("HF_TOKEN_PATH").or_else(|| home().map(|folder| folder.join("token")))?;
            let mut text = String::new();
            std::fs::File::open(&path).ok()?.take(MAX_TOKEN).read_to_string(&mut text).ok()?;
            Some((path.display().to_string(), text))
        };
        let Some((from, value)) = named.or_else(stored) else { return Ok(None) };
        let value = value.trim();
        if !value.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(HubError::Token { from });
        }
        Ok(Some(value.to_owned()).filter(|value| !value.is_empty()))
    }
}
