//! The steps that are one cargo command each: format, clippy, features, API docs.

use crate::{llvm, workspace::Workspace};
use anyhow::{Result, ensure};
use xshell::cmd;

/// What the steps that run the workspace turn on: the runtime with a software driver, also for Candle modules, and downloads. One set of features,
/// so that nothing is compiled twice; `features` and `readme` see to the default ones.
pub(crate) const FEATURES: [&str; 2] = ["--features", "trike-cli/wgpu,trike-cli/hub,trike-candle/wgpu"];

/// Formatting equals what rustfmt prints.
pub(crate) fn fmt(ws: &Workspace) -> Result<String> {
    cmd!(ws.sh, "cargo fmt --all --check").quiet().run()?;
    Ok(String::new())
}

/// Clippy over libraries, binaries, tests, benches and examples with every feature, warnings denied.
///
/// With every feature, because CubeCL is then checked once; without the optional ones is what `features` and `test` see.
pub(crate) fn clippy(ws: &Workspace) -> Result<String> {
    let _docs = llvm::none(ws);
    cmd!(ws.sh, "cargo clippy --locked --workspace --all-features --all-targets -- -D warnings")
        .quiet()
        .run()?;
    Ok(String::new())
}

/// Each published crate alone, so that no crate leans on a feature that another one turned on.
///
/// Clippy instead of `cargo check`: it stops at dead code that only exists without a feature, and shares its
/// compiled dependencies with the `clippy` step, which a different profile or `RUSTFLAGS` would not. That step checks
/// all features, in one command: one crate after the other would compile CubeCL with every runtime once for each, and
/// minutes are worth more than knowing that each compiles with all features alone.
pub(crate) fn features(ws: &Workspace) -> Result<String> {
    let _docs = llvm::none(ws);
    // What is never published is used by this workspace only, and `clippy` and `test` have seen it there.
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

/// The command with the features `cuda` and `hip`, linked without LLVM, and started: the machine need not have such a device.
///
/// In the profile of the tests and with their features beside, so that only what the two runtimes add is compiled.
pub(crate) fn link(ws: &Workspace) -> Result<String> {
    let _stubs = llvm::stubbed(ws)?;
    let [flag, features] = FEATURES;
    let features = format!("{features},trike-cli/cuda,trike-cli/hip");
    cmd!(ws.sh, "cargo build --quiet --locked --workspace {flag} {features} --bin trike").run()?;
    let command = ws.metadata.target_directory.as_std_path().join("debug/trike");
    for device in ["cuda:99", "hip:99"] {
        // The runtime looks for devices, which loads its driver if there is one; a build without it would say so instead.
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

/// API docs of every crate with every feature, with missing docs and broken links denied.
pub(crate) fn doc(ws: &Workspace) -> Result<String> {
    let _flags = ws.sh.push_env("RUSTDOCFLAGS", "-D warnings -D missing_docs");
    let _docs = llvm::none(ws);
    cmd!(ws.sh, "cargo doc --locked --workspace --all-features --no-deps").quiet().run()?;
    Ok(String::new())
}
