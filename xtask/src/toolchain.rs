//! Steps that run a single cargo command: format, clippy, features, API docs.

use crate::{llvm, workspace::Workspace};
use anyhow::{Result, ensure};
use xshell::cmd;

/// Features of the steps that run the workspace: the runtime with a software driver, also for Candle modules, and
/// downloads. One feature set for all steps, so that nothing is compiled twice; `features` and `readme` cover the
/// default features.
pub(crate) const FEATURES: [&str; 2] = ["--features", "trike-cli/wgpu,trike-cli/hub,trike-candle/wgpu"];

/// Checks formatting with rustfmt.
pub(crate) fn fmt(ws: &Workspace) -> Result<String> {
    cmd!(ws.sh, "cargo fmt --all --check").quiet().run()?;
    Ok(String::new())
}

/// Runs Clippy over libraries, binaries, tests, benches and examples with all features and warnings denied.
///
/// With all features, so that CubeCL is checked once; `features` and `test` cover builds without the optional ones.
pub(crate) fn clippy(ws: &Workspace) -> Result<String> {
    let _docs = llvm::none(ws);
    cmd!(ws.sh, "cargo clippy --locked --workspace --all-features --all-targets -- -D warnings")
        .quiet()
        .run()?;
    Ok(String::new())
}

/// Checks each published crate alone, so that no crate relies on a feature that another one enables.
///
/// Clippy instead of `cargo check`: it reports dead code that exists only without a feature, and shares compiled
/// dependencies with the `clippy` step, which a different profile or `RUSTFLAGS` would not. All features are checked
/// by that step in one command: one crate at a time would compile CubeCL with every runtime for each crate, which
/// costs more minutes than the extra check is worth.
pub(crate) fn features(ws: &Workspace) -> Result<String> {
    let _docs = llvm::none(ws);
    // Unpublished packages are only used in this workspace, where `clippy` and `test` check them.
    let crates: Vec<_> =
        ws.crates().into_iter().filter(|c| c.publish.as_ref().is_none_or(|to| !to.is_empty())).collect();
    for package in &crates {
        let name = package.name.as_str();
        let has_default = package.features.get("default").is_some_and(|list| !list.is_empty());
        let ways = if has_default { &[&["--no-default-features"][..], &[]][..] } else { &[&[][..]] };
        for flags in ways {
            println!("-- {name} {}", if flags.is_empty() { "(default features)" } else { flags[0] });
            let flags = *flags;
            cmd!(ws.sh, "cargo clippy --quiet --locked -p {name} {flags...} -- -D warnings").quiet().run()?;
        }
    }
    Ok(format!("{} crates alone", crates.len()))
}

/// Links the command with the features `cuda` and `hip`, without LLVM, and starts it; no such device is needed.
///
/// Uses the profile and features of the tests, so that only the parts specific to the two runtimes are compiled.
pub(crate) fn link(ws: &Workspace) -> Result<String> {
    let _stubs = llvm::stubbed(ws)?;
    let [flag, features] = FEATURES;
    let features = format!("{features},trike-cli/cuda,trike-cli/hip");
    cmd!(ws.sh, "cargo build --quiet --locked --workspace {flag} {features} --bin trike").run()?;
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

/// Builds the API docs of all crates with all features, with missing docs and broken links denied.
pub(crate) fn doc(ws: &Workspace) -> Result<String> {
    let _flags = ws.sh.push_env("RUSTDOCFLAGS", "-D warnings -D missing_docs");
    let _docs = llvm::none(ws);
    cmd!(ws.sh, "cargo doc --locked --workspace --all-features --no-deps").quiet().run()?;
    Ok(String::new())
}
