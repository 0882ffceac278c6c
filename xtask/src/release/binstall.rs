//! The metadata with which `cargo binstall` finds the archive of a release, and the command in it.

use super::Release;
use crate::workspace::Workspace;
use anyhow::{Context, Result, ensure};
use cargo_metadata::Package;
use std::path::Path;

/// Stands for the address of the repository until the manifest has one.
const NO_REPOSITORY: &str = "https://repository.invalid";

/// The templates of `[package.metadata.binstall]`, and the values of their variables.
struct Templates<'a> {
    url: &'a str,
    command: &'a str,
    repository: &'a str,
}

impl<'a> Templates<'a> {
    fn of(package: &'a Package) -> Result<Self> {
        let metadata = &package.metadata["binstall"];
        let template = |key: &str| metadata[key].as_str().with_context(|| format!("binstall has no `{key}`"));
        // The only format of the archives.
        ensure!(template("pkg-fmt")? == "tgz", "binstall: pkg-fmt is {}, expected tgz", metadata["pkg-fmt"]);
        let repository = package.repository.as_deref().unwrap_or(NO_REPOSITORY);
        Ok(Self { url: template("pkg-url")?, command: template("bin-dir")?, repository })
    }

    /// A template with the variables that `cargo binstall` gives it for a release.
    fn rendered(&self, template: &str, release: &Release) -> Result<String> {
        let ending = if release.target.contains("windows") { ".exe" } else { "" };
        let variables = [
            ("repo", self.repository.trim_end_matches('/')),
            ("version", release.version.as_str()),
            ("target", release.target.as_str()),
            ("bin", "trike"),
            ("binary-ext", ending),
        ];
        let mut text = template.to_owned();
        for (name, value) in variables {
            text = text.replace(&format!("{{ {name} }}"), value);
        }
        ensure!(!text.contains(['{', '}']), "binstall: {template}: a variable that this check does not know");
        Ok(text)
    }

    /// Checks that both templates give the names of the release: its archive, below the address of the release's tag, and the
    /// command in it.
    fn check(&self, release: &Release) -> Result<()> {
        let url = self.rendered(self.url, release)?;
        let expected =
            format!("{}/releases/download/v{}/{}", self.repository, release.version, release.archive());
        ensure!(url == expected, "binstall: pkg-url is {url}, expected {expected}");
        let command = self.rendered(self.command, release)?;
        let expected = format!("{}/{}", release.name(), release.command());
        ensure!(command == expected, "binstall: bin-dir is {command}, expected {expected}");
        Ok(())
    }
}

/// Checks the metadata against an archive that was made and unpacked to `root`.
pub(super) fn check(ws: &Workspace, release: &Release, archive: &Path, root: &Path) -> Result<()> {
    let packages = ws.metadata.workspace_packages();
    let package = packages.iter().find(|package| package.name == "trike-cli");
    let templates = Templates::of(package.context("the workspace has no trike-cli")?)?;
    templates.check(release)?;
    let url = templates.rendered(templates.url, release)?;
    let name = archive.file_name().unwrap_or_default().to_string_lossy();
    ensure!(url.ends_with(&format!("/{name}")), "binstall: pkg-url is {url}, and the archive {name}");
    let command = root.join(templates.rendered(templates.command, release)?);
    ensure!(command.is_file(), "binstall: the archive has no {}", command.display());
    match templates.repository {
        NO_REPOSITORY => println!("binstall: finds the archive once `repository` is set in the manifest"),
        _ => println!("binstall: {url}"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The targets of the workflow that makes a release.
    fn targets(workflow: &str) -> Vec<&str> {
        let rows = workflow.lines().filter_map(|line| line.trim().strip_prefix("- { target: "));
        rows.filter_map(|row| row.split(',').next()).collect()
    }

    fn release(target: &str, version: &str) -> Release {
        let (target, version) = (target.to_owned(), version.to_owned());
        Release { version, target, binary: "trike".into(), out: "dist".into() }
    }

    #[test]
    fn the_templates_name_the_archive_of_every_target() {
        let ws = Workspace::load().unwrap();
        let packages = ws.metadata.workspace_packages();
        let package = packages.iter().find(|package| package.name == "trike-cli").unwrap();
        let workflow = ws.sh.read_file(".github/workflows/release.yml").unwrap();
        let targets = targets(&workflow);
        assert_eq!(targets.len(), 6, "{targets:?}");
        let mut templates = Templates::of(package).unwrap();
        for target in &targets {
            let release = release(target, &package.version.to_string());
            templates.check(&release).unwrap();
            assert!(release.archive().starts_with(&release.name()) && release.archive().ends_with(".tar.gz"));
        }
        // Without an address in the manifest, the template waits for one; with one, the same template holds.
        assert!(templates.url.starts_with("{ repo }/"), "{}", templates.url);
        if package.repository.is_none() {
            assert_eq!(templates.repository, NO_REPOSITORY);
        }
        templates.repository = "https://example.org/trike";
        templates.check(&release(targets[0], "1.2.3")).unwrap();
        let url = templates.rendered(templates.url, &release("x86_64-pc-windows-msvc", "1.2.3")).unwrap();
        let archive = "trike-1.2.3-x86_64-pc-windows-msvc.tar.gz";
        assert_eq!(url, format!("https://example.org/trike/releases/download/v1.2.3/{archive}"));
    }

    #[test]
    fn other_names_are_found() {
        let good = Templates {
            url: "{ repo }/releases/download/v{ version }/trike-{ version }-{ target }.tar.gz",
            command: "trike-{ version }-{ target }/{ bin }{ binary-ext }",
            repository: "https://example.org/a",
        };
        let release = release("aarch64-pc-windows-msvc", "0.1.0");
        good.check(&release).unwrap();
        assert_eq!(
            good.rendered(good.command, &release).unwrap(),
            "trike-0.1.0-aarch64-pc-windows-msvc/trike.exe"
        );
        for (from, to, message) in [
            ("/v{ version }", "/{ version }", "pkg-url is"),
            ("trike-{ version }-", "trike-", "pkg-url is"),
            (".tar.gz", "{ archive-suffix }", "does not know"),
            ("{ binary-ext }", "", "bin-dir is"),
        ] {
            let (url, command) = (good.url.replace(from, to), good.command.replace(from, to));
            let bad = Templates { url: &url, command: &command, ..good };
            let error = bad.check(&release).unwrap_err().to_string();
            assert!(error.contains(message), "{from}: {error}");
        }
    }
}
