//! Where `org/name` leads.

use std::path::{Path, PathBuf};

use anyhow::bail;
use trike::{
    LlmError,
    llm::{HubCache, ModelId},
};

/// Variables of the hub's own tools that say where it is. The ones that hold a token are not listed: this list is shown.
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

/// A path as it is; else, when it reads as a model of the hub, the place of that model in the cache, which it may have to
/// be brought to first.
pub(super) fn resolve(path: &Path, quiet: bool) -> anyhow::Result<PathBuf> {
    let id = path.to_str().and_then(|text| text.parse::<ModelId>().ok());
    let (Some(id), Some(root)) = (id, root()) else { return Ok(path.to_owned()) };
    if path.exists() {
        return Ok(path.to_owned());
    }
    let cache = HubCache::new(root);
    match cache.resolve(&id) {
        Err(LlmError::NotInCache { reason, .. }) => absent(&id, &cache, &reason, quiet),
        found => Ok(found?),
    }
}

#[cfg(feature = "hub")]
fn absent(id: &ModelId, cache: &HubCache, reason: &str, quiet: bool) -> anyhow::Result<PathBuf> {
    if let Some(name) = ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"].into_iter().find(|name| is_set(name)) {
        bail!(
            "{id} is not in {}: {reason}; {name} is set: without it the model is downloaded, or give a path",
            cache.root().display()
        );
    }
    let endpoint = remote::endpoint()?;
    crate::download::download(id, cache, endpoint, quiet || is_set("HF_HUB_DISABLE_PROGRESS_BARS"))?;
    Ok(cache.resolve(id)?)
}

#[cfg(not(feature = "hub"))]
fn absent(id: &ModelId, cache: &HubCache, reason: &str, _quiet: bool) -> anyhow::Result<PathBuf> {
    let revision =
        if id.revision() == "main" { String::new() } else { format!(" --revision {}", id.revision()) };
    let file = id.file().map_or_else(String::new, |file| format!(" {file}"));
    bail!(
        "{id} is not in {}: {reason}; this trike was built without downloads: run `hf download {}/{}{file}{revision}`, build it with `--features hub`, or give a path",
        cache.root().display(),
        id.org(),
        id.name(),
    );
}

/// A variable that is not empty.
fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The folder of the hub's tools.
fn home() -> Option<PathBuf> {
    let under = |name: &str, rest: &str| variable(name).map(|folder| folder.join(rest));
    variable("HF_HOME")
        .or_else(|| under("XDG_CACHE_HOME", "huggingface"))
        .or_else(|| under("HOME", ".cache/huggingface"))
}

/// The cache's folder, named by the variables that the hub's own tools read, in their order.
fn root() -> Option<PathBuf> {
    variable("HF_HUB_CACHE")
        .or_else(|| variable("HUGGINGFACE_HUB_CACHE"))
        .or_else(|| home().map(|folder| folder.join("hub")))
}

/// What the hub's tools take for yes.
#[cfg(feature = "hub")]
fn is_set(name: &str) -> bool {
    let value = std::env::var(name).unwrap_or_default();
    ["1", "on", "yes", "true"].contains(&value.to_ascii_lowercase().as_str())
}

/// How the hub is reached.
#[cfg(feature = "hub")]
mod remote {
    use std::{io::Read, time::Duration};

    use super::{home, is_set, variable};
    use crate::download::{Endpoint, HubError};

    const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
    /// Of both timeouts.
    const DEFAULT_SECONDS: u64 = 10;
    /// Far over a token's length.
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
        // Zero is no time at all, and a day is as good as for ever.
        Duration::from_secs(given.unwrap_or(DEFAULT_SECONDS).clamp(1, 86_400))
    }

    /// The token of the environment, or the one that logging in with the hub's tools left.
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
