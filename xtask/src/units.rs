//! Compilation units of the steps, from cargo's unit graph: how many each step compiles, and which of them are the same
//! source that an earlier step compiled, with other features.
//!
//! The graph says what cargo would do, without doing it. Units have the same hash here if cargo would use one for the other:
//! the same target in the same mode, with the same profile and features, on dependencies of which the same holds.

use crate::cargo::Call;
use crate::steps::{STEPS, When};
use crate::workspace::Workspace;
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash as _, Hasher as _};
use std::process::{Command, Stdio};

/// The units of the steps so far.
#[derive(Default)]
pub(crate) struct Built {
    /// Hashes of units.
    units: BTreeSet<u64>,
    /// Target, mode and profile of units, whatever their features.
    sources: BTreeSet<String>,
}

/// The units of one step.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Added {
    /// Units of all calls.
    pub(crate) units: usize,
    /// Those that no earlier step compiles.
    pub(crate) new: usize,
    /// Those of the new ones whose source an earlier step compiles too, by name.
    pub(crate) again: Vec<String>,
}

/// One unit of a graph.
struct Unit {
    hash: u64,
    /// Package, target, mode and profile.
    source: String,
    name: String,
}

impl Built {
    /// Adds the units of a step.
    pub(crate) fn add(&mut self, ws: &Workspace, calls: &[Call]) -> Result<Added> {
        let mut units = BTreeMap::new();
        for call in calls {
            units.extend(graph(ws, call)?.into_iter().map(|unit| (unit.hash, unit)));
        }
        let new: Vec<&Unit> = units.values().filter(|unit| !self.units.contains(&unit.hash)).collect();
        let mut again: Vec<String> = new
            .iter()
            .filter(|unit| self.sources.contains(&unit.source))
            .map(|unit| unit.name.clone())
            .collect();
        again.sort();
        let added = Added { units: units.len(), new: new.len(), again };
        self.units.extend(units.keys());
        self.sources.extend(units.into_values().map(|unit| unit.source));
        Ok(added)
    }
}

/// All steps with their calls, in the order of `ci --all`; the first is the build of xtask itself.
fn steps(ws: &Workspace) -> Vec<(&'static str, When, Vec<Call>)> {
    let itself = ("xtask", When::Commit, vec![Call::package("build", "xtask")]);
    let others = STEPS.iter().map(|step| (step.name, step.when, (step.calls)(ws)));
    std::iter::once(itself).chain(others).filter(|(_, _, calls)| !calls.is_empty()).collect()
}

/// Prints the units of each step that compiles something; with `names`, also which ones are compiled again.
pub(crate) fn run(ws: &Workspace, names: bool) -> Result<()> {
    let mut built = Built::default();
    let mut sums = BTreeMap::new();
    println!("{:<13} {:<8} {:>6} {:>6} {:>6}", "step", "when", "units", "new", "again");
    for (name, when, calls) in steps(ws) {
        let Added { units, new, again } = built.add(ws, &calls)?;
        println!("{name:<13} {:<8} {units:>6} {new:>6} {:>6}", when.name(), again.len());
        if names && !again.is_empty() {
            println!("    {}", again.join(", "));
        }
        *sums.entry(when.name()).or_insert(0) += new;
    }
    for (when, new) in sums {
        println!("{when}: {new} new units");
    }
    Ok(())
}

/// The units of a call.
fn graph(ws: &Workspace, call: &Call) -> Result<Vec<Unit>> {
    let output = Command::new("cargo")
        .args([call.verb(), "--unit-graph", "-Zunstable-options", "--offline"])
        .args(call.selection())
        // The graph is an unstable output; the compiler is not called.
        .env("RUSTC_BOOTSTRAP", "1")
        .current_dir(&ws.root)
        .stdin(Stdio::null())
        .output()
        .context("cannot start cargo")?;
    let messages = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "no unit graph of {call:?}: {messages}");
    read(serde_json::from_slice(&output.stdout)?)
}

fn read(mut graph: Value) -> Result<Vec<Unit>> {
    ensure!(graph["version"] == 1, "expected version 1 of cargo's unit graph, got {}", graph["version"]);
    let units = graph["units"].as_array_mut().context("a graph has units")?;
    for unit in &mut *units {
        // `dev` and `test` are one profile with two names.
        unit["profile"].as_object_mut().context("a unit has a profile")?.remove("name");
    }
    let mut hashes = vec![None; units.len()];
    (0..units.len())
        .map(|at| {
            let unit = &units[at];
            let source =
                ["pkg_id", "target", "mode", "platform", "profile"].map(|part| unit[part].to_string());
            let target = unit["target"]["name"].as_str().unwrap_or_default();
            let mode = unit["mode"].as_str().unwrap_or_default();
            Ok(Unit {
                hash: hash(units, at, &mut hashes),
                source: source.join(" "),
                name: format!("{target} ({mode})"),
            })
        })
        .collect()
}

/// Hash of a unit and of all that it depends on.
fn hash(units: &[Value], at: usize, known: &mut [Option<u64>]) -> u64 {
    if let Some(hash) = known[at] {
        return hash;
    }
    let unit = &units[at];
    let mut hasher = DefaultHasher::new();
    for part in ["pkg_id", "target", "mode", "platform", "profile", "features", "is_std"] {
        unit[part].to_string().hash(&mut hasher);
    }
    let indices = unit["dependencies"].as_array().into_iter().flatten();
    let indices = indices.filter_map(|dependency| dependency["index"].as_u64());
    let mut below: Vec<u64> = indices.map(|index| hash(units, index as usize, known)).collect();
    below.sort_unstable();
    below.hash(&mut hasher);
    let hash = hasher.finish();
    known[at] = Some(hash);
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Units of a graph with two packages, of which the first uses the second with these features.
    fn two(features: &[&str]) -> Vec<Unit> {
        let unit = |name: &str, features: &[&str], below: Value| {
            json!({"pkg_id": name, "target": {"name": name}, "mode": "build", "platform": null, "profile": {"name": "dev"},
                   "features": features, "is_std": false, "dependencies": below})
        };
        let units = json!([unit("top", &[], json!([{"index": 1}])), unit("low", features, json!([]))]);
        read(json!({"version": 1, "units": units, "roots": [0]})).unwrap()
    }

    #[test]
    fn another_feature_is_another_unit_here_and_above() {
        let (bare, same, full) = (two(&[]), two(&[]), two(&["std"]));
        for at in 0..2 {
            assert_eq!(bare[at].hash, same[at].hash);
            assert_ne!(bare[at].hash, full[at].hash);
            assert_eq!(bare[at].source, full[at].source);
        }
        assert!(read(json!({"version": 2, "units": []})).is_err());
    }

    /// Maximum number of units that a step compiles although an earlier one compiled them with other features. For `clippy` and `test`
    /// these are dependencies of xtask, which is built alone first. The nightly steps add features or leave some out.
    const AGAIN: &[(&str, usize)] = &[
        ("clippy", 20),
        ("test", 24),
        ("ranks", 24),
        ("link", 70),
        ("all-features", 180),
        ("wheel", 110),
        ("readme", 8),
    ];

    #[test]
    fn no_step_compiles_what_an_earlier_one_did() {
        let ws = Workspace::load().unwrap();
        let mut built = Built::default();
        // Other features are what `features` is about.
        for (step, _, calls) in steps(&ws).into_iter().filter(|(step, ..)| *step != "features") {
            let Added { new, again, .. } = built.add(&ws, &calls).unwrap();
            let most = AGAIN.iter().find(|(name, _)| *name == step).map_or(0, |(_, most)| *most);
            assert!(
                again.len() <= most,
                "{step}: {} of {new} new units are compiled again, at most {most} expected: {}",
                again.len(),
                again.join(", ")
            );
        }
    }
}
