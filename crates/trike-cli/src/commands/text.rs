//! Text files.

use std::path::Path;

use anyhow::Context;

/// Reads a text file.
pub(super) fn read(path: &Path) -> anyhow::Result<String> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    String::from_utf8(bytes).with_context(|| format!("{}: expected UTF-8 text", path.display()))
}
