//! `trike completions` and `trike man`.

use std::path::Path;

use anyhow::Context;
use clap::CommandFactory;

use crate::args::Cli;

/// Generates a completion script.
pub(super) fn script(shell: clap_complete::Shell) -> anyhow::Result<String> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "trike", &mut script);
    Ok(String::from_utf8(script)?)
}

/// Writes the manual pages and returns their paths.
pub(super) fn manual(dir: &Path) -> anyhow::Result<String> {
    let doing = || format!("cannot write manual pages to {}", dir.display());
    std::fs::create_dir_all(dir).with_context(doing)?;
    clap_mangen::generate_to(Cli::command(), dir).with_context(doing)?;
    let mut pages: Vec<String> = dir
        .read_dir()
        .with_context(doing)?
        .filter_map(|entry| Some(entry.ok()?.path().display().to_string()))
        .filter(|page| page.ends_with(".1"))
        .collect();
    pages.sort();
    Ok(pages.join("\n") + "\n")
}
