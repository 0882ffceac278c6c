//! Dependency counts of each crate, and forbidden dependencies.

use crate::workspace::{Workspace, no_findings};
use anyhow::Result;
use cargo_metadata::Package;
use std::collections::BTreeSet;
use xshell::cmd;

/// Maximum number of packages that a crate may build with, itself included, with default features.
const AT_MOST: &[(&str, usize)] = &[("trike-trit", 14)];

/// Prefixes of package names that a crate must not depend on with any features.
const ABSENT: &[(&str, &[&str])] = &[
    ("trike-trit", &["candle", "cubecl"]),
    ("trike-core", &["candle", "cubecl"]),
    ("trike-host", &["candle", "cubecl"]),
    ("trike-format", &["candle", "cubecl"]),
    ("trike-model", &["candle", "cubecl", "gemm"]),
    ("trike-popcount", &["candle", "cubecl", "gemm"]),
    ("trike-cpu", &["candle", "cubecl", "gemm"]),
    ("trike-cube", &["candle", "gemm"]),
    ("trike-quant", &["candle", "cubecl", "gemm"]),
    ("trike-nn", &["candle", "gemm"]),
    ("trike-llm", &["candle", "gemm"]),
    ("trike-eval", &["candle", "gemm"]),
    ("trike-engine", &["candle", "gemm"]),
    ("trike-serve", &["candle", "gemm"]),
    ("trike-calibrate", &["candle", "gemm"]),
    ("trike-train", &["burn", "candle", "gemm"]),
    ("trike-cli", &["candle", "gemm"]),
    ("trike-py", &["candle", "gemm"]),
    // Downloads need no kernels.
    ("trike-hub", &["candle", "cubecl", "gemm", "trike-cpu", "trike-nn"]),
    // Hypervectors need no matrix kernels.
    ("trike-vsa", &["candle", "gemm", "trike-cpu"]),
    // Text processing needs no kernels.
    (
        "trike-text",
        &["candle", "cubecl", "gemm", "trike-cpu", "trike-cube", "trike-host", "trike-nn", "trike-popcount"],
    ),
];
/// Prefixes of package names that a crate may depend on only through non-default features.
const NOT_BY_DEFAULT: &[(&str, &[&str])] = &[
    ("trike-vsa", &["cubecl"]),
    ("trike-nn", &["cubecl"]),
    ("trike-candle", &["cubecl"]),
    ("trike-llm", &["cubecl"]),
    ("trike-eval", &["cubecl"]),
    ("trike-engine", &["cubecl"]),
    ("trike-serve", &["cubecl"]),
    ("trike-calibrate", &["cubecl"]),
    ("trike-train", &["cubecl"]),
    ("trike", &["candle", "cubecl", "gemm"]),
    ("trike-cli", &["cubecl"]),
    ("trike-py", &["cubecl"]),
];

/// Prints the counts of all crates and checks the limits.
pub(crate) fn run(ws: &Workspace) -> Result<String> {
    let mut findings = Vec::new();
    let mut note = String::new();
    for package in ws.crates() {
        let krate = package.name.as_str();
        let default = packages(ws, krate, &[])?;
        let bare = packages(ws, krate, &["--no-default-features"])?;
        let full = packages(ws, krate, &["--all-features"])?;
        println!("{krate}: {} packages, {} without default features", default.len(), bare.len());
        findings.extend(count_findings(krate, default.len()));
        findings.extend(absent_findings(krate, &full, ABSENT));
        findings.extend(absent_findings(krate, &default, NOT_BY_DEFAULT));
        if AT_MOST.iter().any(|(limited, _)| *limited == krate) {
            note = format!("{krate}: {} packages", default.len());
        }
    }
    findings.extend(default_member_findings(ws)?);
    no_findings(&findings)?;
    Ok(note)
}

/// Crates that a plain `cargo build` leaves out: kernels for GPUs, and the Python module.
const LEFT_OUT: [&str; 2] = ["trike-cube", "trike-py"];

/// Checks that a plain `cargo build` compiles every crate except [`LEFT_OUT`], and no CubeCL.
fn default_member_findings(ws: &Workspace) -> Result<Vec<String>> {
    let is_default = |package: &Package| ws.metadata.workspace_default_members.contains(&package.id);
    let crates = ws.crates();
    let left_out = crates.iter().filter(|p| !is_default(p) && !LEFT_OUT.contains(&p.name.as_str()));
    let mut findings: Vec<String> =
        left_out.map(|p| format!("{} is not in default-members of Cargo.toml", p.name)).collect();
    let listing = cmd!(ws.sh, "cargo tree --locked -e normal,build,dev --prefix none").quiet().read()?;
    let cubecl = unique(&listing).into_iter().filter(|p| p.starts_with("cubecl"));
    findings.extend(cubecl.map(|p| format!("a plain `cargo build` compiles {p}; see: cargo tree -i cubecl")));
    Ok(findings)
}

/// Names and versions of the packages that `krate` builds with on this host, itself included.
fn packages(ws: &Workspace, krate: &str, features: &[&str]) -> Result<BTreeSet<String>> {
    let listing = cmd!(ws.sh, "cargo tree --locked -p {krate} -e normal --prefix none {features...}");
    Ok(unique(&listing.quiet().read()?))
}

/// Deduplicates the listing: repeated packages are printed again, with or without a star.
fn unique(listing: &str) -> BTreeSet<String> {
    let name_and_version = |line: &str| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    listing.lines().map(name_and_version).filter(|p| !p.is_empty()).collect()
}

fn count_findings(krate: &str, count: usize) -> Option<String> {
    let (_, limit) = AT_MOST.iter().find(|(limited, _)| *limited == krate)?;
    (count > *limit).then(|| format!("{krate} builds with {count} packages, at most {limit} are allowed"))
}

fn absent_findings(krate: &str, packages: &BTreeSet<String>, rules: &[(&str, &[&str])]) -> Vec<String> {
    let rules = rules.iter().filter(|(guarded, _)| *guarded == krate);
    rules
        .flat_map(|(_, starts)| packages.iter().filter(|p| starts.iter().any(|start| p.starts_with(start))))
        .map(|p| {
            format!("{krate} builds with {p}; see: cargo tree -p {krate} -e normal, and with --all-features")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_packages_count_once_and_versions_apart() {
        let listing =
            "a v1.0.0 (/somewhere/a)\nb v1.0.0\nsyn v2.0.1 (proc-macro)\nb v1.0.0 (*)\nb v2.0.0\n\n";
        assert_eq!(
            unique(listing).into_iter().collect::<Vec<_>>(),
            ["a v1.0.0", "b v1.0.0", "b v2.0.0", "syn v2.0.1"]
        );
    }

    #[test]
    fn the_count_is_limited_at_its_limit() {
        assert_eq!(count_findings("trike-trit", 13), None);
        assert_eq!(count_findings("trike-trit", 14), None);
        let expected = "trike-trit builds with 15 packages, at most 14 are allowed";
        assert_eq!(count_findings("trike-trit", 15).unwrap(), expected);
        assert_eq!(count_findings("trike-cli", 1_000), None);
    }

    #[test]
    fn a_package_that_must_be_absent_is_found() {
        let packages = unique("trike-nn v0.1.0\ncandle-core v0.11.1\ncubecl-common v0.11.3\n");
        assert_eq!(absent_findings("trike-cpu", &packages, ABSENT).len(), 2);
        assert_eq!(absent_findings("trike-cube", &packages, ABSENT).len(), 1);
        for kernels in ["trike-cpu", "trike-popcount", "trike-cube", "cubecl", "gemm"] {
            let packages = unique(&format!("trike-text v0.1.0\n{kernels} v0.1.0\n"));
            assert_eq!(absent_findings("trike-text", &packages, ABSENT).len(), 1, "{kernels}");
        }
        assert!(absent_findings("trike-nn", &packages, NOT_BY_DEFAULT)[0].contains("cubecl-common v0.11.3"));
        assert_eq!(absent_findings("trike-candle", &packages, ABSENT), [""; 0]);
    }
}
