//! Location of the bundled model.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
};

use anyhow::bail;

/// Path in the repository and in a release.
const PLACE: &str = "models/tiny";

/// The working directory, then every directory above the executable, nearest first: `target/release` is in the
/// repository, and a release has `models` next to the executable.
fn places() -> Vec<PathBuf> {
    let mut seen = HashSet::new();
    let executable = std::env::current_exe().and_then(|path| path.canonicalize()).unwrap_or_default();
    std::env::current_dir()
        .into_iter()
        .chain(executable.ancestors().skip(1).filter(|path| !path.as_os_str().is_empty()).map(Path::to_owned))
        .map(|dir| dir.join(PLACE))
        .filter(|place| seen.insert(place.clone()))
        .collect()
}

/// Finds the bundled model.
///
/// # Errors
///
/// If it is not found; the error lists all searched paths.
pub(crate) fn find() -> anyhow::Result<PathBuf> {
    let places = places();
    match places.iter().find(|path| path.join("config.json").is_file()) {
        Some(path) => Ok(path.clone()),
        None => {
            let looked: Vec<String> = places.iter().map(|path| path.display().to_string()).collect();
            bail!("bundled model not found: choose a model with -m; searched {}", looked.join(", "))
        }
    }
}
