//! Resolution of `org/name` models.

use std::path::{Path, PathBuf};

use trike::hub::{Hub, HubError, ModelId};

/// The hub, configured by the variables of this process.
pub(super) fn hub() -> Hub {
    Hub::from_variables(|name| std::env::var_os(name))
}

/// Returns an existing path unchanged. Otherwise the path of the bundled model for its name or, if it parses as a model id of the
/// hub, the path of the model in the cache, downloaded first if necessary.
pub(super) fn resolve(path: &Path, quiet: bool) -> anyhow::Result<PathBuf> {
    if path.exists() {
        return Ok(path.to_owned());
    }
    if path.as_os_str() == super::shipped::NAME {
        return super::shipped::find();
    }
    let Some(id) = path.to_str().and_then(|text| text.parse::<ModelId>().ok()) else {
        return Ok(path.to_owned());
    };
    match hub().cached(&id) {
        Err(HubError::NotInCache { reason, cache, .. }) => absent(&id, &cache, &reason, quiet),
        // Without a cache, it must be a path.
        Err(HubError::NoCache) => Ok(path.to_owned()),
        found => Ok(found?),
    }
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
    download: impl FnOnce(&Hub, &mut dyn FnMut(u64, u64)) -> Result<PathBuf, HubError>,
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
