//! The bundled model, and the folders of the command.

use std::path::PathBuf;

use anyhow::Context;
use trike::hub::Hub;

/// The hub, configured by the variables of this process.
pub(super) fn hub() -> Hub {
    Hub::from_variables(|name| std::env::var_os(name))
}

/// The name accepted by the commands, unless a file has it.
pub(super) const NAME: &str = Hub::BUNDLED;

/// Bytes of its files.
pub(super) fn bytes() -> u64 {
    Hub::bundled_bytes()
}

/// Its directory, written first if it is missing or incomplete.
///
/// # Errors
///
/// If no folder can be written.
pub(super) fn find() -> anyhow::Result<PathBuf> {
    let place =
        hub().bundled().context("cannot write the bundled model: set XDG_CACHE_HOME, or choose a model")?;
    crate::output::name_path(&place, NAME);
    Ok(place)
}

/// Trike's folder in the user's cache, then that in the folder for temporary files.
pub(super) fn folders() -> impl Iterator<Item = PathBuf> {
    hub().folders()
}
