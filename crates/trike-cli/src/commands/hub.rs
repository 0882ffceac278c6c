//! Resolution of `org/name` models.

use std::path::{Path, PathBuf};

use trike::hub::{HubCache, HubError, ModelId};

use super::shipped::hub;
use crate::naming::{self, NoModel};

/// Returns an existing path unchanged. Otherwise the path of the bundled model for its name or, if it parses as a model id of the
/// hub or a link to it, the path of the model in the cache, downloaded first if necessary.
pub(super) fn resolve(path: &Path, quiet: bool) -> anyhow::Result<PathBuf> {
    if path.exists() {
        return Ok(path.to_owned());
    }
    if path.as_os_str() == super::shipped::NAME {
        return super::shipped::find();
    }
    let Some(text) = path.to_str() else { return Ok(path.to_owned()) };
    let id = match naming::link(text) {
        Some(id) => id?,
        None => match text.parse() {
            Ok(id) => id,
            Err(_) => return check(text).map(|()| path.to_owned()),
        },
    };
    match hub().cached(&id) {
        Err(HubError::NotInCache { reason, cache, .. }) => absent(&id, &cache, &reason, quiet),
        // Without a cache, it must be a path.
        Err(HubError::NoCache) => Ok(path.to_owned()),
        found => Ok(found?),
    }
}

/// Returns an error for a name that is neither a path nor a model.
pub(super) fn check(text: &str) -> anyhow::Result<()> {
    let is_id =
        || text == super::shipped::NAME || naming::link(text).is_some() || text.parse::<ModelId>().is_ok();
    match Path::new(text).exists() || naming::is_path(text) || is_id() {
        true => Ok(()),
        false => Err(NoModel::new(text, names()).into()),
    }
}

/// Names of models that exist: the bundled one, those in the cache, and published ones.
fn names() -> impl Iterator<Item = String> {
    let cached = hub().cache().ok().and_then(|cache: HubCache| cache.models().ok()).unwrap_or_default();
    let cached = cached.into_iter().map(|model| model.id.to_string());
    std::iter::once(super::shipped::NAME.to_owned()).chain(cached).chain(super::known::names())
}

/// Whether a model is in the cache.
pub(super) fn is_cached(name: &str) -> bool {
    name.parse().is_ok_and(|id| hub().cached(&id).is_ok())
}

#[cfg(feature = "hub")]
fn absent(id: &ModelId, _cache: &Path, _reason: &str, quiet: bool) -> anyhow::Result<PathBuf> {
    shown(id, quiet, |hub, progress| hub.path(id, progress))
}

/// Downloads the missing files of the newest commit of a model's revision.
#[cfg(feature = "hub")]
pub(super) fn pull(id: &ModelId, quiet: bool) -> anyhow::Result<PathBuf> {
    shown(id, quiet, |hub, progress| hub.pull(id, progress))
}

/// A download with a progress bar, and a message for Ctrl-C.
#[cfg(feature = "hub")]
fn shown(
    id: &ModelId,
    quiet: bool,
    download: impl FnOnce(&trike::hub::Hub, &mut dyn FnMut(u64, u64)) -> Result<PathBuf, HubError>,
) -> anyhow::Result<PathBuf> {
    use crate::{interrupt, progress::Progress};

    let hub = hub();
    interrupt::advise(|| "run the same command again to continue the download".to_owned());
    let quiet = quiet || hub.is_set("HF_HUB_DISABLE_PROGRESS_BARS");
    let progress = Progress::start(format!("downloading {id}"), quiet);
    let path = download(&hub, &mut |done, total| progress.set_bytes(done, total))?;
    interrupt::advise_nothing();
    Ok(path)
}

#[cfg(not(feature = "hub"))]
fn absent(id: &ModelId, cache: &Path, reason: &str, _quiet: bool) -> anyhow::Result<PathBuf> {
    let revision =
        if id.revision() == "main" { String::new() } else { format!(" --revision {}", id.revision()) };
    let file = id.file().map_or_else(String::new, |file| format!(" {file}"));
    anyhow::bail!(
        "{id} is not in {}: {reason}; this build cannot download: run `hf download {}/{}{file}{revision}`, install it with the default features, or pass a path",
        cache.display(),
        id.org(),
        id.name(),
    );
}
