//! The steps that are one cargo command each: format, clippy, features, API docs.

use crate::workspace::Workspace;
use anyhow::Result;
use xshell::cmd;

/// Formatting equals what rustfmt prints.
pub(crate) fn fmt(ws: &Workspace) -> Result<String> {
    cmd!(ws.sh, "cargo fmt --all --check").quiet().run()?;
    Ok(String::new())
}

/// Clippy over libraries, binaries, tests, benches and examples, warnings denied.
pub(crate) fn clippy(ws: &Workspace) -> Result<String> {
    cmd!(ws.sh, "cargo clippy --locked --workspace --all-targets -- -D warnings").quiet().run()?;
    Ok(String::new())
}

/// Each crate alone, so that no crate leans on a feature that another one turned on.
///
/// Clippy instead of `cargo check`: it stops at dead code that only exists without a feature, and shares its
/// compiled dependencies with the `clippy` step, which a different profile or `RUSTFLAGS` would not.
pub(crate) fn features(ws: &Workspace) -> Result<String> {
    let crates = ws.crates();
    for package in &crates {
        let name = package.name.as_str();
        for flags in [&["--no-default-features"][..], &[]] {
            println!("-- {name} {}", if flags.is_empty() { "(default features)" } else { flags[0] });
            cmd!(ws.sh, "cargo clippy --quiet --locked -p {name} {flags...} -- -D warnings").quiet().run()?;
        }
    }
    Ok(format!("{} crates alone", crates.len()))
}

/// API docs of every crate, with missing docs and broken links denied.
pub(crate) fn doc(ws: &Workspace) -> Result<String> {
    let _flags = ws.sh.push_env("RUSTDOCFLAGS", "-D warnings -D missing_docs");
    cmd!(ws.sh, "cargo doc --locked --workspace --no-deps").quiet().run()?;
    Ok(String::new())
}
