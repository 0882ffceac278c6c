//! Packages of the publishable crates: their manifests, their contents, and `cargo package` of all in release order.

use crate::workspace::{Workspace, no_findings};
use anyhow::{Result, ensure};
use cargo_metadata::Package;
use std::collections::BTreeMap;
use std::path::PathBuf;
use xshell::cmd;

/// Packaged files are sources or small test inputs; larger ones are accidental.
const MAX_FILE_BYTES: u64 = 512 * 1024;
/// The registry rejects packages above this size.
const MAX_PACKAGE_BYTES: u64 = 10 * 1024 * 1024;
/// Larger files that belong to a package: crate, path, maximum size.
const ALLOWED: &[(&str, &str, u64)] = &[("trike-models", "tiny/model.safetensors", 1024 * 1024)];

/// Warnings of `cargo package` that are expected for every crate: integration tests are not packaged, and there is no
/// repository address yet.
const EXPECTED_WARNINGS: &[&str] = &[
    "is not included in the published package",
    "manifest has no documentation, homepage or repository",
    "see https://doc.rust-lang.org/cargo/reference/manifest.html#package-metadata",
];

/// Checks the manifest and the file list of every publishable crate, then packages all of them in release order.
pub(crate) fn run(ws: &Workspace) -> Result<String> {
    let mut findings = Vec::new();
    let published = ws.published();
    for package in &published {
        findings.extend(manifest_findings(package));
        let krate = package.name.as_str();
        let listing =
            cmd!(ws.sh, "cargo package --quiet --locked --list --allow-dirty -p {krate}").quiet().read()?;
        let files: Vec<(&str, u64)> = listing
            .lines()
            .map(|file| {
                let on_disk = package.manifest_path.as_std_path().with_file_name(file);
                // Cargo.toml.orig and similar files exist only in the package.
                (file, std::fs::metadata(on_disk).map_or(0, |m| m.len()))
            })
            .collect();
        findings.extend(list_findings(krate, &files));
    }
    no_findings(&findings)?;
    let packages = package_all(ws)?;
    let total: u64 = packages.iter().map(|(_, bytes)| bytes).sum();
    Ok(format!("{} crates, {total} bytes", packages.len()))
}

/// Packages all publishable crates with one command, which resolves each against the packages before it; prints their
/// sizes in release order. Nothing is compiled.
pub(crate) fn package_all(ws: &Workspace) -> Result<Vec<(PathBuf, u64)>> {
    let published = ws.published();
    let selection = published.iter().flat_map(|package| ["-p", package.name.as_str()]);
    // Offline first: with what earlier commands know of the registry this takes seconds, and asking again about every
    // dependency of every package a minute.
    let package = |offline: Option<&str>| {
        let selection = selection.clone();
        let command =
            cmd!(ws.sh, "cargo package {offline...} --locked --no-verify --allow-dirty {selection...}");
        command.quiet().ignore_status().output()
    };
    let mut output = package(Some("--offline"))?;
    if !output.status.success() {
        output = package(None)?;
    }
    let messages = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo package failed:\n{messages}");
    for line in unexpected(&messages) {
        println!("{line}");
    }
    let folder = ws.metadata.target_directory.as_std_path().join("package");
    let mut packages = Vec::new();
    for package in published {
        let file = folder.join(format!("{}-{}.crate", package.name, package.version));
        let bytes = std::fs::metadata(&file)?.len();
        println!("{:>9}  {}", bytes, file.file_name().unwrap_or_default().to_string_lossy());
        ensure!(bytes <= MAX_PACKAGE_BYTES, "{}: {bytes} bytes, at most {MAX_PACKAGE_BYTES}", file.display());
        packages.push((file, bytes));
    }
    Ok(packages)
}

/// Warnings of `cargo package` other than the expected ones.
fn unexpected(messages: &str) -> Vec<&str> {
    let warnings = messages.lines().filter(|line| line.starts_with("warning:"));
    warnings.filter(|line| !EXPECTED_WARNINGS.iter().any(|expected| line.contains(expected))).collect()
}

/// Manifest fields that the registry requires or shows, and the features of the API docs.
fn manifest_findings(package: &Package) -> Vec<String> {
    let docs = &package.metadata["docs"]["rs"];
    let docs_features: Vec<&str> =
        docs["features"].as_array().into_iter().flatten().filter_map(|f| f.as_str()).collect();
    let unknown = docs_features.iter().filter(|f| !package.features.contains_key(**f));
    let unknown = unknown.map(|f| format!("{}: docs.rs would enable `{f}`, no such feature", package.name));
    // The feature adds public items; those of runtimes add none.
    let shows_gpu = !package.features.contains_key("gpu")
        || docs_features.contains(&"gpu")
        || package.targets.iter().all(|target| !target.is_lib());
    [
        ("a description", package.description.is_some()),
        ("a license", package.license.is_some()),
        ("keywords", (1..=5).contains(&package.keywords.len())),
        ("categories", !package.categories.is_empty()),
        ("a rust-version", package.rust_version.is_some()),
        ("[package.metadata.docs.rs]", docs.is_object()),
        ("the feature `gpu` under [package.metadata.docs.rs]", shows_gpu),
    ]
    .iter()
    .filter(|(_, there)| !there)
    .map(|(what, _)| format!("{}: the manifest lacks {what}", package.name))
    .chain(unknown)
    .collect()
}

fn list_findings(krate: &str, files: &[(&str, u64)]) -> Vec<String> {
    let mut findings = Vec::new();
    let by_name: BTreeMap<&str, u64> = files.iter().copied().collect();
    for needed in ["Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT"] {
        if !by_name.contains_key(needed) {
            findings.push(format!("{krate}: the package lacks {needed}"));
        }
    }
    if !by_name.contains_key("src/lib.rs") && !by_name.contains_key("src/main.rs") {
        findings.push(format!("{krate}: the package has neither src/lib.rs nor src/main.rs"));
    }
    for (file, bytes) in files {
        let allowed = ALLOWED.iter().find(|(owner, path, _)| (owner, path) == (&krate, file));
        let limit = allowed.map_or(MAX_FILE_BYTES, |(_, _, limit)| *limit);
        if *bytes > limit {
            findings.push(format!("{krate}: {file} has {bytes} bytes, at most {limit} are packaged"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const LICENCES: [(&str, u64); 2] = [("LICENSE-APACHE", 11), ("LICENSE-MIT", 1)];

    fn with_licences(files: &[(&'static str, u64)]) -> Vec<(&'static str, u64)> {
        files.iter().chain(&LICENCES).copied().collect()
    }

    #[test]
    fn a_whole_package_passes() {
        for root in ["src/lib.rs", "src/main.rs"] {
            let files = with_licences(&[("Cargo.toml", 10), (root, MAX_FILE_BYTES)]);
            assert_eq!(list_findings("a", &files), [""; 0]);
        }
    }

    #[test]
    fn missing_and_large_files_are_found() {
        assert_eq!(list_findings("a", &[]).len(), 4);
        let files =
            with_licences(&[("Cargo.toml", 10), ("src/lib.rs", 10), ("data.bin", MAX_FILE_BYTES + 1)]);
        let findings = list_findings("a", &files);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].contains("data.bin has 524289 bytes"), "{findings:?}");
    }

    /// The weights of the bundled model may be larger than other files, in their crate only and up to a limit.
    #[test]
    fn a_named_file_has_a_limit_of_its_own() {
        let (owner, path, limit) = ALLOWED[0];
        for (krate, bytes, count) in
            [(owner, limit, 0), (owner, limit + 1, 1), ("trike-cli", limit, 1), ("trike-cli", 1, 0)]
        {
            let files = with_licences(&[("Cargo.toml", 10), ("src/lib.rs", 10), (path, bytes)]);
            assert_eq!(list_findings(krate, &files).len(), count, "{krate}, {bytes} bytes");
        }
    }

    #[test]
    fn only_other_warnings_are_printed() {
        let messages = "   Packaging a v0.1.0\nwarning: ignoring test `t` as `tests/t.rs` is not included in the \
                        published package\nwarning: file found to be dirty\n";
        assert_eq!(unexpected(messages), ["warning: file found to be dirty"]);
    }

    /// The package table and the manifests agree on which crates are published.
    #[test]
    fn published_crates_are_those_of_the_release_order() {
        let ws = Workspace::load().unwrap();
        let names: Vec<&str> = ws.published().iter().map(|package| package.name.as_str()).collect();
        let rows = crate::house::HOUSE.iter().filter(|row| !row.is_dev());
        assert_eq!(names, rows.map(|row| row.name).collect::<Vec<_>>());
    }
}
