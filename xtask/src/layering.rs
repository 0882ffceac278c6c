//! The house: which crate may use which, and where `unsafe` may live.

use crate::workspace::{Workspace, no_findings};
use anyhow::Result;
use cargo_metadata::{DependencyKind, Metadata, Package, TargetKind};

/// One row of the table in `docs/src/architecture.md`.
struct Room {
    krate: &'static str,
    /// A crate may use workspace crates of a lower layer only.
    layer: u8,
    /// The registry crates it may use, optional ones included.
    may_use: &'static [&'static str],
    /// Whether its roots may do without `#![forbid(unsafe_code)]`.
    unsafe_allowed: bool,
}

/// Tools stand on the roof: nothing may use them, and they may use everything.
const ROOF: u8 = 9;
/// `trike-testkit` is for dev-dependencies, which this check does not follow: nothing may use it otherwise.
const DEV: u8 = ROOF;

/// The house, bottom up. Growing a `may_use` list is a decision for the architecture chapter, not a repair.
const HOUSE: &[Room] = &[
    Room {
        krate: "trike-trit",
        layer: 0,
        may_use: &["bytemuck", "half", "thiserror"],
        unsafe_allowed: false,
    },
    Room { krate: "trike-core", layer: 1, may_use: &["half", "thiserror"], unsafe_allowed: false },
    Room {
        krate: "trike-host",
        layer: 1,
        may_use: &["bytemuck", "half", "memmap2", "thiserror"],
        unsafe_allowed: true,
    },
    Room { krate: "trike-popcount", layer: 2, may_use: &["thiserror"], unsafe_allowed: true },
    Room { krate: "trike-cpu", layer: 2, may_use: &["bytemuck", "half", "thiserror"], unsafe_allowed: true },
    // Unsafe is launches: a kernel trusts the lengths that its launcher checked.
    Room {
        krate: "trike-cube",
        layer: 2,
        may_use: &["bytemuck", "cubecl", "cubecl-cuda", "cubecl-hip", "half", "thiserror"],
        unsafe_allowed: true,
    },
    Room {
        krate: "trike-format",
        layer: 2,
        may_use: &["bytemuck", "half", "memmap2", "safetensors", "serde_json", "tempfile", "thiserror"],
        unsafe_allowed: true,
    },
    Room { krate: "trike-vsa", layer: 3, may_use: &["serde", "thiserror"], unsafe_allowed: false },
    Room { krate: "trike-quant", layer: 3, may_use: &["half", "thiserror"], unsafe_allowed: false },
    Room {
        krate: "trike-nn",
        layer: 4,
        may_use: &["candle-core", "candle-nn", "half", "thiserror"],
        unsafe_allowed: false,
    },
    Room {
        krate: "trike-text",
        layer: 4,
        may_use: &[
            "minijinja",
            "minijinja-contrib",
            "rand_chacha",
            "serde",
            "serde_json",
            "thiserror",
            "tokenizers",
        ],
        unsafe_allowed: false,
    },
    Room {
        krate: "trike-llm",
        layer: 5,
        may_use: &["half", "serde", "serde_json", "thiserror"],
        unsafe_allowed: false,
    },
    Room {
        krate: "trike-calibrate",
        layer: 6,
        may_use: &["half", "plotters", "rand_chacha", "serde", "serde_json", "thiserror"],
        unsafe_allowed: false,
    },
    Room { krate: "trike", layer: 7, may_use: &[], unsafe_allowed: false },
    Room {
        krate: "trike-cli",
        layer: 8,
        may_use: &[
            "anyhow",
            "clap",
            "clap_complete",
            "clap_mangen",
            "comfy-table",
            "ctrlc",
            "indicatif",
            "ring",
            "serde",
            "serde_json",
            "thiserror",
            "ureq",
        ],
        unsafe_allowed: false,
    },
    Room { krate: "trike-testkit", layer: DEV, may_use: &["zip"], unsafe_allowed: false },
    // One above the roof, because it makes its inputs with the test kit. Unsafe is one call of a rival.
    Room {
        krate: "trike-benches",
        layer: ROOF + 1,
        may_use: &["anyhow", "candle-core", "clap", "gemm", "half", "rayon", "serde", "serde_json"],
        unsafe_allowed: true,
    },
    // One above the roof, because it makes its inputs with the test kit. Unsafe is a method that CubeCL declares so: the launch
    // of a device that records launches and runs nothing; and one call of a rival.
    Room {
        krate: "trike-gpu-test",
        layer: ROOF + 1,
        may_use: &[
            "anyhow",
            "clap",
            "cubecl",
            "cubecl-common",
            "cubecl-cpp",
            "cubecl-environment",
            "cubecl-runtime",
            "cubecl-server",
            "cubecl-spirv",
            "cubecl-wgpu",
            "cubek-attention",
            "cubek-matmul",
            "cubek-std",
            "cudarc",
            "half",
            "serde_json",
        ],
        unsafe_allowed: true,
    },
    // Its own room on the ground: it must compile before, and in spite of, everything that it checks.
    Room {
        krate: "xtask",
        layer: 0,
        may_use: &["anyhow", "cargo_metadata", "clap", "xshell"],
        unsafe_allowed: false,
    },
];

/// A dependency as the rules see it.
struct Use {
    name: String,
    in_workspace: bool,
}

/// The layer of a crate; one without a row counts as the highest until [`run`] refuses it.
pub(crate) fn layer(krate: &str) -> u8 {
    HOUSE.iter().find(|r| r.krate == krate).map_or(u8::MAX, |r| r.layer)
}

/// Checks every workspace package against the table.
pub(crate) fn run(ws: &Workspace) -> Result<String> {
    let findings = workspace_findings(&ws.metadata)?;
    no_findings(&findings)?;
    Ok(format!("{} rooms", HOUSE.len()))
}

fn workspace_findings(metadata: &Metadata) -> Result<Vec<String>> {
    let packages = metadata.workspace_packages();
    let mut findings = Vec::new();
    for package in &packages {
        findings.extend(use_findings(HOUSE, &package.name, &normal_uses(package)));
        for target in &package.targets {
            // A build script runs on the builder's machine and has no reason for unsafe either.
            let is_root = [
                TargetKind::Lib,
                TargetKind::Bin,
                TargetKind::ProcMacro,
                TargetKind::CDyLib,
                TargetKind::CustomBuild,
            ]
            .iter()
            .any(|kind| target.kind.contains(kind));
            if is_root {
                let text = std::fs::read_to_string(&target.src_path)?;
                let path = target.src_path.strip_prefix(&metadata.workspace_root).unwrap_or(&target.src_path);
                findings.extend(unsafe_finding(HOUSE, &package.name, path.as_str(), &text));
            }
        }
    }
    for room in HOUSE {
        if !packages.iter().any(|p| p.name == room.krate) {
            findings.push(format!("{}: in the table but not in the workspace", room.krate));
        }
    }
    Ok(findings)
}

/// Everything that ends up in, or builds, what a user compiles; dev-dependencies do not.
fn normal_uses(package: &Package) -> Vec<Use> {
    package
        .dependencies
        .iter()
        .filter(|d| d.kind != DependencyKind::Development)
        .map(|d| Use { name: d.name.clone(), in_workspace: d.path.is_some() })
        .collect()
}

fn use_findings(house: &[Room], krate: &str, uses: &[Use]) -> Vec<String> {
    let Some(room) = house.iter().find(|r| r.krate == krate) else {
        return vec![format!("{krate}: has no row in the table")];
    };
    let mut findings = Vec::new();
    for used in uses {
        let name = &used.name;
        if used.in_workspace {
            match house.iter().find(|r| r.krate == name) {
                Some(below) if below.layer < room.layer => {}
                Some(other) => findings.push(format!(
                    "{krate} (layer {}) uses {name} (layer {}): dependencies point down only",
                    room.layer, other.layer
                )),
                None => findings.push(format!("{krate} uses {name}, which has no row in the table")),
            }
        } else if !room.may_use.contains(&name.as_str()) {
            findings.push(format!("{krate} uses {name}; it may use {}", room.may_use.join(", ")));
        }
    }
    findings
}

fn unsafe_finding(house: &[Room], krate: &str, path: &str, root: &str) -> Option<String> {
    let allowed = house.iter().any(|r| r.krate == krate && r.unsafe_allowed);
    let forbids = root.lines().any(|l| l.trim() == "#![forbid(unsafe_code)]");
    (!allowed && !forbids).then(|| format!("{krate}: {path} lacks `#![forbid(unsafe_code)]`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &[Room] = &[
        Room { krate: "ground", layer: 0, may_use: &["half"], unsafe_allowed: false },
        Room { krate: "kernels", layer: 1, may_use: &["rayon"], unsafe_allowed: true },
        Room { krate: "files", layer: 1, may_use: &[], unsafe_allowed: false },
    ];

    fn inside(name: &str) -> Use {
        Use { name: name.to_owned(), in_workspace: true }
    }

    fn registry(name: &str) -> Use {
        Use { name: name.to_owned(), in_workspace: false }
    }

    #[test]
    fn uses_may_point_down_only() {
        assert_eq!(use_findings(SMALL, "kernels", &[inside("ground")]), [""; 0]);
        for (krate, used) in [("ground", "kernels"), ("kernels", "files"), ("kernels", "kernels")] {
            let findings = use_findings(SMALL, krate, &[inside(used)]);
            assert_eq!(findings.len(), 1, "{krate} -> {used}");
            assert!(findings[0].contains("point down only"), "{findings:?}");
        }
    }

    #[test]
    fn registry_crates_must_be_in_the_row() {
        assert_eq!(use_findings(SMALL, "ground", &[registry("half")]), [""; 0]);
        assert_eq!(
            use_findings(SMALL, "ground", &[registry("rayon")]),
            ["ground uses rayon; it may use half"]
        );
    }

    #[test]
    fn every_crate_needs_a_row() {
        assert_eq!(use_findings(SMALL, "attic", &[]), ["attic: has no row in the table"]);
        let findings = use_findings(SMALL, "kernels", &[inside("attic")]);
        assert_eq!(findings, ["kernels uses attic, which has no row in the table"]);
    }

    #[test]
    fn only_rooms_with_unsafe_may_do_without_the_attribute() {
        let forbids = "//! Docs.\n#![forbid(unsafe_code)]\nmod a;\n";
        assert_eq!(unsafe_finding(SMALL, "ground", "lib.rs", forbids), None);
        assert_eq!(unsafe_finding(SMALL, "kernels", "lib.rs", "//! Docs.\n"), None);
        // A comment that mentions the attribute forbids nothing.
        for root in ["//! Docs.\n", "//! See `#![forbid(unsafe_code)]`.\n", "// #![forbid(unsafe_code)]\n"] {
            let finding = unsafe_finding(SMALL, "ground", "lib.rs", root).unwrap();
            assert_eq!(finding, "ground: lib.rs lacks `#![forbid(unsafe_code)]`");
        }
    }

    #[test]
    fn the_workspace_obeys_the_table() {
        let ws = Workspace::load().unwrap();
        assert_eq!(workspace_findings(&ws.metadata).unwrap(), [""; 0]);
    }
}
