//! `trike completions` and `trike man`.

use std::path::Path;

use anyhow::Context;
use trike::format::OutputFile;

use crate::{args, manual};

/// Generates a completion script.
pub(super) fn script(shell: clap_complete::Shell) -> anyhow::Result<String> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut args::command(), "trike", &mut script);
    Ok(String::from_utf8(script)?)
}

/// Writes the manual pages and returns their paths.
pub(super) fn manual(dir: &Path) -> anyhow::Result<String> {
    let doing = || format!("cannot write manual pages to {}", dir.display());
    std::fs::create_dir_all(dir).with_context(doing)?;
    let mut command = args::command().disable_help_subcommand(true);
    command.build();
    let mut pages = String::new();
    for command in std::iter::once(&command).chain(command.get_subcommands()) {
        let name = command.get_display_name().unwrap_or(command.get_name());
        let path = dir.join(format!("{name}.1"));
        OutputFile::replace(&path, manual::page(command).with_context(doing)?).with_context(doing)?;
        pages += &format!("{}\n", path.display());
    }
    Ok(pages)
}
