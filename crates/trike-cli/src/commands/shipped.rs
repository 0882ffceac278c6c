//! The bundled model: files in the command, unpacked into the user's cache, because models are mapped from files.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::Context;
use trike::format::{Digest, OutputFile};
use trike_models::TINY;

/// The name accepted by the commands, unless a file has it.
pub(super) const NAME: &str = "tiny";

/// Bytes of its files.
pub(super) fn bytes() -> u64 {
    TINY.iter().map(|(_, content)| content.len() as u64).sum()
}

/// Its directory, written first if it is missing or incomplete.
///
/// # Errors
///
/// If no folder can be written.
pub(super) fn find() -> anyhow::Result<PathBuf> {
    let place = place()?;
    crate::output::name_path(&place, NAME);
    Ok(place)
}

fn place() -> anyhow::Result<PathBuf> {
    // The digest distinguishes the files of different versions.
    let digest = TINY
        .iter()
        .fold(Digest::default(), |digest, (name, content)| digest.bytes(name.as_bytes()).bytes(content));
    let name = format!("{NAME}-{digest}");
    let mut last = None;
    for folder in folders() {
        let place = folder.join(&name);
        if is_complete(&place) {
            return Ok(place);
        }
        match unpack(&place) {
            Ok(()) => return Ok(place),
            Err(error) => last = Some((place, error)),
        }
    }
    let (place, error) =
        last.context("the bundled model needs a folder: set XDG_CACHE_HOME, or choose a model")?;
    Err(error).with_context(|| format!("cannot write the bundled model to {}", place.display()))
}

/// Trike's folder in the user's cache, then that in the folder for temporary files.
pub(super) fn folders() -> impl Iterator<Item = PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = variable("XDG_CACHE_HOME")
        .or_else(|| variable("LOCALAPPDATA"))
        .or_else(|| Some(variable("HOME")?.join(".cache")));
    [cache, Some(std::env::temp_dir())].into_iter().flatten().map(|folder| folder.join("trike"))
}

fn is_complete(place: &Path) -> bool {
    // About a megabyte: read and compared in a millisecond.
    TINY.iter().all(|(name, content)| fs::read(place.join(name)).is_ok_and(|found| found == *content))
}

/// Writes the files under another name, then renames the folder, so that concurrent commands do not conflict.
fn unpack(place: &Path) -> io::Result<()> {
    let folder = place.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let temporary = place.with_extension(std::process::id().to_string());
    fs::create_dir_all(&temporary)?;
    for (name, content) in TINY {
        OutputFile::replace(temporary.join(name), content)?;
    }
    if place.is_dir() {
        // A file in it was changed or removed.
        fs::remove_dir_all(place)?;
    }
    let renamed = trike::format::publish(&temporary, place);
    if renamed.is_err() && is_complete(place) {
        // A concurrent command was faster.
        return fs::remove_dir_all(&temporary);
    }
    renamed
}
