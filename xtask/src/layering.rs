//! Checks manifests and sources against the package table: dependencies, places of `unsafe`, and cycles between
//! modules.

use crate::house::{HOUSE, Row, row};
use crate::workspace::{Workspace, no_findings};
use crate::{modules, pages, source};
use anyhow::Result;
use cargo_metadata::{DependencyKind, Metadata, Package, TargetKind};

/// Checks every package against its row, the modules of every crate, and the pages generated from the rows.
pub(crate) fn run(ws: &Workspace) -> Result<String> {
    let mut findings = table_findings(HOUSE);
    findings.extend(manifest_findings(&ws.metadata));
    findings.extend(unsafe_findings(ws)?);
    let (knots, cycles) = modules::findings(ws)?;
    findings.extend(cycles);
    findings.extend(pages::findings(ws)?);
    no_findings(&findings)?;
    Ok(format!("{} packages, {knots}", HOUSE.len()))
}

/// A dependency of a manifest.
#[derive(Clone)]
struct Edge {
    name: String,
    in_workspace: bool,
    optional: bool,
    /// A dev-dependency.
    for_tests: bool,
    /// Named with a version, so that a registry must have it before this package is published.
    has_version: bool,
}

/// Checks the table itself: every row is above the rows that it uses, and published packages use only published ones.
fn table_findings(house: &[Row]) -> Vec<String> {
    let mut findings = Vec::new();
    for (at, user) in house.iter().enumerate() {
        for (name, _) in Row::names(user.uses) {
            let Some(used) = row(&house[..at], name) else {
                findings.push(format!("{} may use {name}, which has no earlier row", user.name));
                continue;
            };
            if used.layer > user.layer || (used.layer == user.layer && !user.is_dev()) {
                findings.push(format!(
                    "{} (layer {}) may use {name} (layer {}): dependencies point down only",
                    user.name, user.layer, used.layer
                ));
            }
        }
    }
    findings
}

fn manifest_findings(metadata: &Metadata) -> Vec<String> {
    let packages = metadata.workspace_packages();
    let mut findings = Vec::new();
    for package in &packages {
        findings.extend(edge_findings(HOUSE, &package.name, &edges(package)));
        let published = package.publish.as_ref().is_none_or(|to| !to.is_empty());
        if row(HOUSE, &package.name).is_some_and(|row| row.is_dev() == published) {
            findings
                .push(format!("{}: tools and tests have `publish = false`, and nothing else", package.name));
        }
    }
    let is_there = |row: &Row| packages.iter().any(|p| p.name == row.name);
    let gone = HOUSE.iter().filter(|row| !is_there(row));
    findings.extend(gone.map(|row| format!("{}: in the table but not in the workspace", row.name)));
    findings
}

fn edges(package: &Package) -> Vec<Edge> {
    let all = package.dependencies.iter().map(|d| Edge {
        name: d.name.clone(),
        in_workspace: d.path.is_some(),
        optional: d.optional,
        for_tests: d.kind == DependencyKind::Development,
        has_version: d.req.to_string() != "*",
    });
    all.collect()
}

/// Compares the dependencies of a manifest with its row in both directions: unused permissions are findings too.
fn edge_findings(house: &[Row], name: &str, edges: &[Edge]) -> Vec<String> {
    let Some(user) = row(house, name) else {
        return vec![format!("{name}: has no row in the table")];
    };
    let mut findings = Vec::new();
    for edge in edges {
        if edge.for_tests {
            findings.extend(test_edge_finding(house, user, edge));
            continue;
        }
        let (kind, list) = match edge.in_workspace {
            true => ("workspace packages", user.uses),
            false => ("registry packages", user.registry),
        };
        match Row::names(list).find(|(listed, _)| *listed == edge.name) {
            None => findings.push(format!(
                "{name} uses {}, which is not in its row; allowed {kind}: {}",
                edge.name,
                if list.is_empty() { "none" } else { list }
            )),
            Some((_, optional)) if optional != edge.optional => findings.push(format!(
                "{name} uses {} {}, its row says {}",
                edge.name,
                if edge.optional { "behind a feature" } else { "always" },
                if optional { "behind a feature" } else { "always" },
            )),
            Some(_) => {}
        }
    }
    for (list, in_workspace) in [(user.uses, true), (user.registry, false)] {
        for (listed, _) in Row::names(list) {
            let is_it = |e: &Edge| e.name == listed && e.in_workspace == in_workspace && !e.for_tests;
            if !edges.iter().any(is_it) {
                findings.push(format!(
                    "{name} does not use {listed}, which is in its row: remove it from the row"
                ));
            }
        }
    }
    findings
}

/// Dev-dependencies may be any registry package, but a workspace package only if it is published earlier: `cargo
/// publish` also requires the versions of dev-dependencies.
fn test_edge_finding(house: &[Row], user: &Row, edge: &Edge) -> Option<String> {
    if !edge.in_workspace || !edge.has_version || user.is_dev() {
        return None;
    }
    let used = row(house, &edge.name)?;
    (used.layer >= user.layer).then(|| {
        format!(
            "the tests of {} (layer {}) use {} (layer {}), which is published after it",
            user.name, user.layer, used.name, used.layer
        )
    })
}

/// Checks that `unsafe` occurs only where the rows allow it, and that packages without `unsafe` forbid it.
fn unsafe_findings(ws: &Workspace) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    let files = ws.files()?;
    for package in ws.metadata.workspace_packages() {
        let Some(row) = row(HOUSE, &package.name) else { continue };
        let folder = ws.folder(package);
        let own = files.iter().filter_map(|f| Some((f, f.strip_prefix(&folder)?.strip_prefix('/')?)));
        for (file, path) in own.filter(|(_, path)| path.ends_with(".rs")) {
            findings.extend(unsafe_finding(row, path, &ws.sh.read_file(file)?));
        }
        for target in &package.targets {
            // Build scripts must not use unsafe either.
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
                let path = target.src_path.strip_prefix(&ws.metadata.workspace_root);
                findings.extend(root_finding(row, path.unwrap_or(&target.src_path).as_str(), &text));
            }
        }
        for (path, _) in row.unsafe_in {
            if !ws.root.join(&folder).join(path).exists() {
                findings.push(format!("{}: its row allows unsafe in {path}, which does not exist", row.name));
            }
        }
    }
    Ok(findings)
}

/// `path` is relative to the package.
fn unsafe_finding(row: &Row, path: &str, text: &str) -> Option<String> {
    let allowed = |place: &str| path.strip_prefix(place).is_some_and(|s| s.is_empty() || s.starts_with('/'));
    if row.unsafe_in.iter().any(|(place, _)| allowed(place)) {
        return None;
    }
    let code = source::code(text);
    let line = code.lines().position(|line| source::contains_word(line, "unsafe"))? + 1;
    Some(format!("{}: unsafe in {path}:{line}, which is not in its row", row.name))
}

fn root_finding(row: &Row, path: &str, text: &str) -> Option<String> {
    let forbids = source::code(text).lines().any(|line| line.trim() == "#![forbid(unsafe_code)]");
    let allowed = row.unsafe_in.iter().any(|(place, _)| place.starts_with("src"));
    (!allowed && !forbids).then(|| format!("{}: {path} lacks `#![forbid(unsafe_code)]`", row.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::house::DEV;

    const fn small(layer: u8, name: &'static str, uses: &'static str, registry: &'static str) -> Row {
        Row { layer, name, purpose: "", uses, registry, unsafe_in: &[] }
    }

    const SMALL: &[Row] = &[
        small(0, "ground", "", "half"),
        Row { unsafe_in: &[("src/simd", "SIMD")], ..small(1, "kernels", "ground", "") },
        small(1, "files", "ground", ""),
        small(2, "models", "kernels files?", "serde rand?"),
        small(DEV, "kit", "", ""),
        small(DEV, "tool", "kit models", ""),
    ];

    fn inside(name: &str) -> Edge {
        Edge { name: name.into(), in_workspace: true, optional: false, for_tests: false, has_version: true }
    }

    fn registry(name: &str) -> Edge {
        Edge { in_workspace: false, ..inside(name) }
    }

    fn models() -> Vec<Edge> {
        let optional = |edge: Edge| Edge { optional: true, ..edge };
        vec![inside("kernels"), optional(inside("files")), registry("serde"), optional(registry("rand"))]
    }

    #[test]
    fn manifests_that_equal_their_rows_pass() {
        assert_eq!(table_findings(SMALL), [""; 0]);
        assert_eq!(edge_findings(SMALL, "ground", &[registry("half")]), [""; 0]);
        assert_eq!(edge_findings(SMALL, "models", &models()), [""; 0]);
        assert_eq!(edge_findings(SMALL, "tool", &[inside("kit"), inside("models")]), [""; 0]);
    }

    /// A lower layer is not enough: `models` may use `kernels`, and `ground` only by way of it.
    #[test]
    fn forbidden_edges_are_refused() {
        let mut added = models();
        added.push(inside("ground"));
        let message =
            "models uses ground, which is not in its row; allowed workspace packages: kernels files?";
        assert_eq!(edge_findings(SMALL, "models", &added), [message]);
        let message = "ground uses rayon, which is not in its row; allowed registry packages: half";
        assert_eq!(edge_findings(SMALL, "ground", &[registry("half"), registry("rayon")]), [message]);
        let message = "kernels uses half, which is not in its row; allowed registry packages: none";
        assert_eq!(edge_findings(SMALL, "kernels", &[inside("ground"), registry("half")]), [message]);
        // A registry package is not the workspace's of the same name.
        assert_eq!(edge_findings(SMALL, "kernels", &[registry("ground")]).len(), 2);
    }

    /// The same on the real table, with edges that point down and were never decided on.
    #[test]
    fn forbidden_edges_of_the_house_are_refused() {
        let ws = Workspace::load().unwrap();
        for (user, added) in [
            ("trike-quant", inside("trike-cube")),
            ("trike-text", inside("trike-cpu")),
            ("trike-vsa", inside("trike-cpu")),
            ("trike-nn", inside("trike-testkit")),
            ("trike-trit", registry("rayon")),
            ("trike-cpu", registry("candle-core")),
        ] {
            let packages = ws.metadata.workspace_packages();
            let package = packages.iter().find(|p| p.name == user).unwrap();
            let mut edges = edges(package);
            assert_eq!(edge_findings(HOUSE, user, &edges), [""; 0]);
            edges.push(added.clone());
            let findings = edge_findings(HOUSE, user, &edges);
            assert_eq!(findings.len(), 1, "{findings:?}");
            let message = format!("{user} uses {}, which is not in its row", added.name);
            assert!(findings[0].starts_with(&message), "{findings:?}");
        }
    }

    #[test]
    fn optional_means_optional() {
        for at in 0..4 {
            let mut edges = models();
            edges[at].optional ^= true;
            let findings = edge_findings(SMALL, "models", &edges);
            assert_eq!(findings.len(), 1, "{findings:?}");
            assert!(findings[0].contains("always") && findings[0].contains("behind a feature"));
        }
    }

    #[test]
    fn unused_permissions_are_found() {
        let message = "models does not use kernels, which is in its row: remove it from the row";
        assert_eq!(edge_findings(SMALL, "models", &models()[1..]), [message]);
        // What only tests use does not count.
        let for_tests = Edge { for_tests: true, ..registry("half") };
        assert_eq!(edge_findings(SMALL, "ground", &[for_tests]).len(), 1);
    }

    #[test]
    fn rows_may_point_down_only() {
        for (layer, uses, message) in [
            (1, "kernels", "dependencies point down only"),
            (0, "kernels", "dependencies point down only"),
            (3, "kit", "dependencies point down only"),
            (3, "attic", "no earlier row"),
            (3, "added", "no earlier row"),
        ] {
            let mut house: Vec<Row> = SMALL.iter().map(|r| Row { ..*r }).collect();
            house.push(small(layer, "added", uses, ""));
            let findings = table_findings(&house);
            assert_eq!(findings.len(), 1, "{findings:?}");
            assert!(findings[0].contains(message), "{findings:?}");
        }
    }

    #[test]
    fn tests_use_what_a_release_finds() {
        let for_tests = |name: &str, has_version| Edge { for_tests: true, has_version, ..inside(name) };
        let findings = |user: &str, edge: Edge| test_edge_finding(SMALL, row(SMALL, user).unwrap(), &edge);
        assert_eq!(findings("models", for_tests("files", true)), None);
        assert_eq!(findings("ground", for_tests("kit", false)), None);
        assert_eq!(findings("tool", for_tests("kit", true)), None);
        for (user, used) in [("ground", "files"), ("kernels", "files"), ("ground", "kit")] {
            let finding = findings(user, for_tests(used, true)).unwrap();
            assert!(finding.contains("published after it"), "{finding}");
        }
    }

    #[test]
    fn every_package_needs_a_row() {
        assert_eq!(edge_findings(SMALL, "attic", &[]), ["attic: has no row in the table"]);
    }

    #[test]
    fn unsafe_stays_where_the_row_says() {
        let kernels = row(SMALL, "kernels").unwrap();
        for path in ["src/simd", "src/simd/avx2.rs"] {
            assert_eq!(unsafe_finding(kernels, path, "unsafe {}"), None);
        }
        assert_eq!(unsafe_finding(kernels, "src/lib.rs", "// unsafe\n\"unsafe\"; unsafe_code"), None);
        for path in ["src/lib.rs", "src/simd.rs", "src/simd_more/a.rs", "tests/simd.rs"] {
            let message = format!("kernels: unsafe in {path}:2, which is not in its row");
            assert_eq!(unsafe_finding(kernels, path, "fn a() {}\nunsafe fn b() {}\n").unwrap(), message);
        }
    }

    #[test]
    fn only_packages_with_unsafe_may_do_without_the_attribute() {
        let (ground, kernels) = (row(SMALL, "ground").unwrap(), row(SMALL, "kernels").unwrap());
        let forbids = "//! Docs.\n#![forbid(unsafe_code)]\nmod a;\n";
        assert_eq!(root_finding(ground, "lib.rs", forbids), None);
        assert_eq!(root_finding(kernels, "lib.rs", "//! Docs.\n"), None);
        // A comment that mentions the attribute forbids nothing.
        for root in ["//! Docs.\n", "//! See `#![forbid(unsafe_code)]`.\n", "// #![forbid(unsafe_code)]\n"] {
            let finding = root_finding(ground, "lib.rs", root).unwrap();
            assert_eq!(finding, "ground: lib.rs lacks `#![forbid(unsafe_code)]`");
        }
    }

    #[test]
    fn the_workspace_obeys_the_table() {
        let ws = Workspace::load().unwrap();
        let mut findings = table_findings(HOUSE);
        findings.extend(manifest_findings(&ws.metadata));
        findings.extend(unsafe_findings(&ws).unwrap());
        assert_eq!(findings, [""; 0]);
    }
}
