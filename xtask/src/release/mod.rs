//! Artefacts of a release other than crates: an archive per target, checksums, an installer and an image description.
//!
//! Start from [`run`]. Nothing here uploads anything: `.github/workflows/release.yml` calls this command on one machine
//! per target and uploads the files of `target/dist`.

mod archive;
mod binstall;
mod container;
mod crates;
mod installer;

use crate::workspace::Workspace;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use xshell::cmd;

/// Script that installs an archive; part of every release.
const INSTALLER: &str = "packaging/install.sh";
/// Description of the container image, built from an unpacked archive.
const CONTAINERFILE: &str = "packaging/Containerfile";

/// Options; by default the archive of this machine's target.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Also package all crates as `cargo publish` would, build the command from the packages, and check the installer
    /// and the container description.
    #[arg(long)]
    dry_run: bool,
    /// Use this executable instead of building one.
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Build for this target; the machine must be able to run the result. Default: the host.
    #[arg(long, value_name = "TRIPLE")]
    target: Option<String>,
    /// Fail unless this is `v` and the version of the workspace, and the changelog has a dated section for it.
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,
}

/// The executable of a release, and the names of its files.
struct Release {
    version: String,
    target: String,
    binary: PathBuf,
    /// Receives the artefacts.
    out: PathBuf,
}

impl Release {
    /// Name of the archive without its ending, and of the folder in it.
    fn name(&self) -> String {
        format!("trike-{}-{}", self.version, self.target)
    }

    /// Name of the archive.
    fn archive(&self) -> String {
        format!("{}.tar.gz", self.name())
    }

    /// Name of the executable.
    fn command(&self) -> &'static str {
        if self.target.contains("windows") { "trike.exe" } else { "trike" }
    }
}

/// The subcommand.
pub(crate) fn run(ws: &Workspace, options: &Options) -> Result<()> {
    let version = version(ws)?;
    if let Some(tag) = &options.tag {
        check_tag(tag, &version, &ws.sh.read_file("CHANGELOG.md")?)?;
    }
    if options.dry_run {
        println!("== crates, in the order of their release");
        crates::publish_dry_run(ws)?;
    }
    let binary = match &options.binary {
        Some(path) => std::path::absolute(path)?,
        None => build(ws, options.target.as_deref())?,
    };
    let target = options.target.clone().map_or_else(|| host(ws), Ok)?;
    let out = ws.metadata.target_directory.as_std_path().join("dist");
    let release = Release { version, target, binary, out };
    println!("== archive");
    let archive = archive::make(ws, &release)?;
    archive::check(ws, &release, &archive)?;
    let installer = release.out.join("install.sh");
    std::fs::copy(ws.root.join(INSTALLER), &installer).context("cannot copy the installer")?;
    archive::write_checksums(ws, &release.out)?;
    if options.dry_run {
        println!("== installer");
        installer::check(ws, &release, &archive)?;
        println!("== container description");
        container::check(ws, &release)?;
        if options.binary.is_none() && options.target.is_none() {
            println!("== the command, built from the packages");
            crates::build_from_packages(ws, &release.version)?;
        }
    }
    println!("== artefacts in {}", release.out.display());
    // Not `release.binary`: the build from the packages replaces it.
    let unpacked = release.out.join(release.name()).join(release.command());
    println!("{:>10}  {} (not compressed)", size(&unpacked)?, release.command());
    for file in [&archive, &installer, &release.out.join(archive::CHECKSUMS)] {
        println!("{:>10}  {}", size(file)?, file.file_name().unwrap_or_default().to_string_lossy());
    }
    Ok(())
}

/// Builds the command with the release profile and returns the path of the executable.
fn build(ws: &Workspace, target: Option<&str>) -> Result<PathBuf> {
    println!("== build");
    let flags: Vec<&str> = target.into_iter().flat_map(|target| ["--target", target]).collect();
    cmd!(ws.sh, "cargo build --locked --release -p trike-cli {flags...}").quiet().run()?;
    let mut path = ws.metadata.target_directory.clone().into_std_path_buf();
    path.extend(target);
    let name = if target.map_or(cfg!(windows), |t| t.contains("windows")) { "trike.exe" } else { "trike" };
    Ok(path.join("release").join(name))
}

fn version(ws: &Workspace) -> Result<String> {
    let packages = ws.metadata.workspace_packages();
    let package = packages.iter().find(|package| package.name == "trike-cli");
    Ok(package.context("the workspace has no trike-cli")?.version.to_string())
}

/// The target of this machine's compiler.
fn host(ws: &Workspace) -> Result<String> {
    let about = cmd!(ws.sh, "rustc --version --verbose").quiet().read()?;
    let host = about.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not say what its host is")?.to_owned())
}

fn check_tag(tag: &str, version: &str, changelog: &str) -> Result<()> {
    ensure!(
        tag == format!("v{version}"),
        "the tag is {tag}, expected v{version}: raise the version or move the tag"
    );
    let heading = format!("## {version} - ");
    ensure!(
        changelog.lines().any(|line| line.starts_with(&heading)),
        "CHANGELOG.md has no section `{heading}DATE`"
    );
    Ok(())
}

fn size(path: &Path) -> Result<u64> {
    Ok(std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_the_version_and_has_a_section() {
        let changelog = "# Changelog\n\n## Unreleased\n\n## 0.1.0 - 2026-12-01\n";
        check_tag("v0.1.0", "0.1.0", changelog).unwrap();
        for (tag, changelog, message) in [
            ("0.1.0", changelog, "expected v0.1.0"),
            ("v0.1.1", changelog, "expected v0.1.0"),
            ("v0.1.0", "## 0.1.0\n", "no section `## 0.1.0 - DATE`"),
        ] {
            let error = check_tag(tag, "0.1.0", changelog).unwrap_err().to_string();
            assert!(error.contains(message), "{tag}: {error}");
        }
    }
}
