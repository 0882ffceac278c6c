//! Package contents of each publishable crate.

use crate::workspace::{Workspace, no_findings};
use anyhow::Result;
use cargo_metadata::Package;
use xshell::cmd;

/// Packaged files are sources or small test inputs; larger ones are accidental.
const MAX_FILE_BYTES: u64 = 512 * 1024;

/// Lists the files of every publishable crate and checks that the list is complete and has no large files.
pub(crate) fn run(ws: &Workspace) -> Result<String> {
    let mut findings = Vec::new();
    let mut count = 0;
    for package in ws.crates() {
        // `publish = false` is an empty list of registries.
        if package.publish.as_ref().is_some_and(Vec::is_empty) {
            continue;
        }
        count += 1;
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
        println!("{krate}: {} files, {} bytes", files.len(), files.iter().map(|(_, n)| n).sum::<u64>());
        findings.extend(list_findings(krate, &files));
    }
    no_findings(&findings)?;
    Ok(format!("{count} crates"))
}

/// Manifest fields required by the registry.
fn manifest_findings(package: &Package) -> Vec<String> {
    [("a description", package.description.is_some()), ("a license", package.license.is_some())]
        .iter()
        .filter(|(_, there)| !there)
        .map(|(what, _)| format!("{}: the manifest lacks {what}", package.name))
        .collect()
}

fn list_findings(krate: &str, files: &[(&str, u64)]) -> Vec<String> {
    let mut findings = Vec::new();
    let has = |name: &str| files.iter().any(|(file, _)| *file == name);
    if !has("Cargo.toml") {
        findings.push(format!("{krate}: the package lacks Cargo.toml"));
    }
    if !has("src/lib.rs") && !has("src/main.rs") {
        findings.push(format!("{krate}: the package has neither src/lib.rs nor src/main.rs"));
    }
    for (file, bytes) in files {
        if *bytes > MAX_FILE_BYTES {
            findings
                .push(format!("{krate}: {file} has {bytes} bytes, at most {MAX_FILE_BYTES} are packaged"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_package_passes() {
        assert_eq!(list_findings("a", &[("Cargo.toml", 10), ("src/lib.rs", MAX_FILE_BYTES)]), [""; 0]);
        assert_eq!(list_findings("a", &[("Cargo.toml", 10), ("src/main.rs", 10)]), [""; 0]);
    }

    #[test]
    fn missing_and_large_files_are_found() {
        assert_eq!(list_findings("a", &[]).len(), 2);
        let files = [("Cargo.toml", 10), ("src/lib.rs", 10), ("data.bin", MAX_FILE_BYTES + 1)];
        let findings = list_findings("a", &files);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].contains("data.bin has 524289 bytes"), "{findings:?}");
    }
}
