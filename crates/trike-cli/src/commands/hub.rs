//! Where `org/name` leads.

use std::path::{Path, PathBuf};

use trike::llm::{HubCache, ModelId};

/// A path as it is; else, when it reads as a model of the hub, the place of that model in the cache.
pub(super) fn resolve(path: &Path) -> anyhow::Result<PathBuf> {
    let id = path.to_str().and_then(|text| text.parse::<ModelId>().ok());
    match (id, root()) {
        (Some(id), Some(root)) if !path.exists() => Ok(HubCache::new(root).resolve(&id)?),
        _ => Ok(path.to_owned()),
    }
}

/// The cache's folder, named by the variables that the hub's own tools read, in their order.
fn root() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let under = |name: &str, rest: &str| variable(name).map(|folder| folder.join(rest));
    variable("HF_HUB_CACHE")
        .or_else(|| variable("HUGGINGFACE_HUB_CACHE"))
        .or_else(|| under("HF_HOME", "hub"))
        .or_else(|| under("XDG_CACHE_HOME", "huggingface/hub"))
        .or_else(|| under("HOME", ".cache/huggingface/hub"))
}
