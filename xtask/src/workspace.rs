//! The workspace: a shell at its root, its packages and its files.

use crate::house;
use anyhow::{Context, Result};
use cargo_metadata::{Metadata, MetadataCommand, Package};
use std::path::PathBuf;
use xshell::{Shell, cmd};

/// A shell at the repository root, and the output of `cargo metadata`.
pub(crate) struct Workspace {
    pub(crate) sh: Shell,
    pub(crate) root: PathBuf,
    pub(crate) metadata: Metadata,
}

impl Workspace {
    /// Loads the workspace of this binary, with all features; the lock file must be up to date.
    pub(crate) fn load() -> Result<Self> {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("xtask lies one folder below the root")?
            .to_path_buf();
        let metadata = MetadataCommand::new()
            .manifest_path(root.join("Cargo.toml"))
            .features(cargo_metadata::CargoOpt::AllFeatures)
            .other_options(["--locked".to_owned()])
            .exec()?;
        let sh = Shell::new()?;
        sh.change_dir(&root);
        Ok(Self { sh, root, metadata })
    }

    /// The members under `crates/`, bottom up, so that the first failure is the root cause.
    pub(crate) fn crates(&self) -> Vec<&Package> {
        let folder = self.root.join("crates");
        let mut found: Vec<&Package> = self
            .metadata
            .workspace_packages()
            .into_iter()
            .filter(|p| p.manifest_path.as_std_path().starts_with(&folder))
            .collect();
        found.sort_by_key(|p| (house::layer(&p.name), p.name.to_string()));
        found
    }

    /// The packages that a release publishes, each after its dependencies.
    pub(crate) fn published(&self) -> Vec<&Package> {
        let mut found = self.metadata.workspace_packages();
        // `publish = false` is an empty list of registries.
        found.retain(|package| package.publish.as_ref().is_none_or(|registries| !registries.is_empty()));
        found.sort_by_key(|package| house::HOUSE.iter().position(|row| row.name == package.name.as_str()));
        found
    }

    /// The folder of a package, relative to the root.
    pub(crate) fn folder(&self, package: &Package) -> String {
        let folder = package.manifest_path.parent().unwrap_or(&package.manifest_path);
        folder.strip_prefix(&self.metadata.workspace_root).unwrap_or(folder).to_string()
    }

    /// Files that git tracks or would track, relative to the root.
    pub(crate) fn files(&self) -> Result<Vec<String>> {
        // CI containers often run as a different user than the owner of the checkout, which git rejects.
        let trust = format!("safe.directory={}", self.root.display());
        let listing = cmd!(self.sh, "git -c {trust} ls-files --cached --others --exclude-standard");
        let listing = listing.quiet().read()?;
        // A tracked file may be deleted in the working tree but not in the index.
        Ok(listing.lines().filter(|f| self.root.join(f).is_file()).map(str::to_owned).collect())
    }
}

/// Fails with all findings, one per line, or passes if there are none.
pub(crate) fn no_findings(findings: &[String]) -> Result<()> {
    anyhow::ensure!(findings.is_empty(), "{} found:\n  {}", findings.len(), findings.join("\n  "));
    Ok(())
}
