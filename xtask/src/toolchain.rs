//! Steps that are little more than calls of cargo: format, Clippy, features, link, API docs.

use crate::cargo::Call;
use crate::share::Share;
use crate::{llvm, workspace::Workspace};
use anyhow::{Result, ensure};
use xshell::cmd;

/// Checks formatting with rustfmt.
pub(crate) fn fmt(ws: &Workspace) -> Result<String> {
    cmd!(ws.sh, "cargo fmt --all --check").quiet().run()?;
    Ok(String::new())
}

/// Clippy over libraries, binaries, tests, benches and examples, with warnings denied.
pub(crate) fn clippy_call() -> Call {
    Call::workspace("clippy").and(["--all-targets"]).passing_on(DENIED)
}

const DENIED: [&str; 2] = ["-D", "warnings"];

/// Runs Clippy with the features of the tests.
pub(crate) fn clippy(ws: &Workspace) -> Result<String> {
    clippy_call().run(ws)?;
    Ok(String::new())
}

/// Clippy and API docs with all features, which `clippy` and `doc` leave out: every runtime of CubeCL, MPI, Python, the rivals of
/// benchmarks.
pub(crate) fn all_features_calls() -> [Call; 2] {
    [
        Call::all_features("clippy").and(["--all-targets"]).passing_on(DENIED),
        Call::all_features("doc").and(["--no-deps"]),
    ]
}

/// Checks the code and the API docs of all features.
pub(crate) fn all_features(ws: &Workspace) -> Result<String> {
    let _without = llvm::none(ws);
    let [clippy, doc] = all_features_calls();
    clippy.run(ws)?;
    let _flags = ws.sh.push_env("RUSTDOCFLAGS", DOC_FLAGS);
    doc.run(ws)?;
    Ok("Clippy and docs".to_owned())
}

/// Clippy for each published crate alone: with its default features, and without them if it has any.
///
/// Clippy instead of `cargo check`: it reports dead code that exists only without a feature. All features are checked
/// by `all-features` in one command: one crate at a time would compile CubeCL with every runtime for each crate, which
/// costs more minutes than the extra check is worth.
pub(crate) fn features_calls(ws: &Workspace) -> Vec<Call> {
    // Unpublished packages are only used in this workspace, where `clippy` and `test` check them.
    let published = ws.crates().into_iter().filter(|c| c.publish.as_ref().is_none_or(|to| !to.is_empty()));
    published
        .flat_map(|package| {
            let has_default = package.features.get("default").is_some_and(|list| !list.is_empty());
            let ways = if has_default { &[&["--no-default-features"][..], &[]][..] } else { &[&[][..]] };
            let alone = |flags: &&[&'static str]| {
                Call::package("clippy", &package.name).and(flags.iter().copied()).passing_on(DENIED)
            };
            ways.iter().map(alone).collect::<Vec<_>>()
        })
        .collect()
}

/// Checks each published crate alone, so that no crate relies on a feature that another one enables.
pub(crate) fn features(ws: &Workspace, share: Share) -> Result<String> {
    let _without = llvm::none(ws);
    let calls = share.select(features_calls(ws));
    for call in &calls {
        println!("-- {}", call.selection()[1..].join(" "));
        call.clone().and(["--quiet"]).run(ws)?;
    }
    Ok(format!("{} selections", calls.len()))
}

/// The command with the features `cuda` and `hip`.
///
/// With the profile and features of the tests: most dependencies are then compiled already. Crates to which the two runtimes add
/// features are compiled again.
pub(crate) fn link_call() -> Call {
    Call::workspace("build")
        .and(["--features", "trike-cli/cuda,trike-cli/hip", "--bin", "trike"])
        .with_dev_features()
}

/// Links the command with the features `cuda` and `hip`, without LLVM, and starts it; no such device is needed.
pub(crate) fn link(ws: &Workspace) -> Result<String> {
    let _stubs = llvm::stubbed(ws)?;
    link_call().run(ws)?;
    let command = ws.metadata.target_directory.as_std_path().join("debug/trike");
    for device in ["cuda:99", "hip:99"] {
        // The runtime searches for devices and loads its driver if there is one; a build without the runtime would
        // report that instead.
        let run = cmd!(ws.sh, "{command} run --device {device} -m models/tiny -p Once");
        let output = run.quiet().ignore_status().output()?;
        let message = String::from_utf8_lossy(&output.stderr);
        ensure!(
            message.contains(&format!("device {device}: not found")),
            "trike --device {device}: {message}"
        );
    }
    Ok("cuda and hip".to_owned())
}

const DOC_FLAGS: &str = "-D warnings -D missing_docs";

/// The API docs with the features of the tests: of all libraries, and of the programs whose names no library has.
///
/// With an example, because cargo then unites the features of dev-dependencies too, as Clippy has them; otherwise CubeCL and what
/// uses it would be checked once more.
pub(crate) fn doc_call() -> Call {
    let programs = ["bench-calibration", "bench-quantize", "bench-report", "bench-training", "xtask"];
    let call = Call::workspace("doc").and(["--no-deps", "--lib", "--example", "story"]);
    programs.into_iter().fold(call, |call, program| call.and(["--bin", program]))
}

/// Builds the API docs of all crates, with missing docs and broken links denied.
pub(crate) fn doc(ws: &Workspace) -> Result<String> {
    let _flags = ws.sh.push_env("RUSTDOCFLAGS", DOC_FLAGS);
    doc_call().run(ws)?;
    Ok(String::new())
}
