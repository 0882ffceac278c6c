//! The oldest compiler that must work: the manifests state it, and the hosted CI checks with exactly that one.

use crate::workspace::Workspace;
use anyhow::{Context, Result, ensure};
use xshell::cmd;

/// Compares the compiler in use with the `rust-version` of every package.
///
/// Not a step of `ci`, because developers may use a newer compiler; the workflow runs it before `ci`, which then is the
/// test of the oldest one.
pub(crate) fn run(ws: &Workspace) -> Result<()> {
    let stated = stated(ws)?;
    let compiler = cmd!(ws.sh, "rustc --version").quiet().read()?;
    check(&stated, &compiler)?;
    println!("{compiler}: the rust-version of all packages is {stated}");
    Ok(())
}

/// The one `rust-version` of all packages of the workspace.
fn stated(ws: &Workspace) -> Result<String> {
    let packages = ws.metadata.workspace_packages();
    let version = |package: &cargo_metadata::Package| package.rust_version.as_ref().map(ToString::to_string);
    let first =
        packages.first().and_then(|package| version(package)).context("a package has no rust-version")?;
    for package in packages {
        let its = version(package);
        ensure!(its.as_ref() == Some(&first), "{}: rust-version {its:?}, others have {first}", package.name);
    }
    Ok(first)
}

/// `stated` is `1.95.0`, as cargo completes it; the compiler may be any patch of it.
fn check(stated: &str, compiler: &str) -> Result<()> {
    let in_use = compiler.split_whitespace().nth(1).unwrap_or_default();
    let minor = |version: &str| version.splitn(3, '.').take(2).map(str::to_owned).collect::<Vec<_>>();
    ensure!(
        minor(in_use) == minor(stated),
        "the compiler is `{compiler}`, expected {stated}: install it, or change rust-version in Cargo.toml"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_patch_of_the_stated_version_passes() {
        check("1.95.0", "rustc 1.95.0 (59807616e 2026-04-14)").unwrap();
        check("1.95", "rustc 1.95.2 (59807616e 2026-04-14)").unwrap();
        for other in ["rustc 1.96.0 (x)", "rustc 1.94.0 (x)", "rustc 1.9.5 (x)", "rustc 2.95.0 (x)", ""] {
            assert!(check("1.95.0", other).is_err(), "{other}");
        }
    }

    /// Workflows and pages name the version that the manifests state.
    #[test]
    fn workflows_and_pages_state_the_same_version() {
        let ws = Workspace::load().unwrap();
        let stated = stated(&ws).unwrap();
        let minor = stated.strip_suffix(".0").unwrap_or(&stated);
        for page in ["CONTRIBUTING.md", "docs/src/contributing.md"] {
            let text = ws.sh.read_file(page).unwrap();
            assert!(text.contains(&format!("A build needs only Rust {minor} or newer.")), "{page}");
        }
        let mut installs = 0;
        for file in ws.files().unwrap().iter().filter(|file| file.starts_with(".github/workflows/")) {
            let text = ws.sh.read_file(file).unwrap();
            for line in text.lines() {
                for start in ["rustup toolchain install ", "rustup default "] {
                    if let Some((_, rest)) = line.split_once(start) {
                        installs += 1;
                        assert_eq!(rest.split_whitespace().next(), Some(minor), "{file}: {line}");
                    }
                }
            }
        }
        assert!(installs > 0, "no workflow installs a toolchain");
    }
}
