//! The steps that are one cargo command each: format, clippy, features, API docs.

use crate::workspace::Workspace;
use anyhow::Result;
use std::collections::BTreeMap;
use xshell::cmd;

/// What the steps that compile the whole workspace turn on: the runtime with a software driver, and downloads. One set
/// of features, so that nothing is compiled twice; `features` and `readme` see to the default ones.
pub(crate) const FEATURES: [&str; 2] = ["--features", "trike-cli/wgpu,trike-cli/hub"];

/// Formatting equals what rustfmt prints.
pub(crate) fn fmt(ws: &Workspace) -> Result<String> {
    cmd!(ws.sh, "cargo fmt --all --check").quiet().run()?;
    Ok(String::new())
}

/// Clippy over libraries, binaries, tests, benches and examples, warnings denied.
pub(crate) fn clippy(ws: &Workspace) -> Result<String> {
    cmd!(ws.sh, "cargo clippy --locked --workspace {FEATURES...} --all-targets -- -D warnings")
        .quiet()
        .run()?;
    Ok(String::new())
}

/// Each crate alone, so that no crate leans on a feature that another one turned on.
///
/// Clippy instead of `cargo check`: it stops at dead code that only exists without a feature, and shares its
/// compiled dependencies with the `clippy` step, which a different profile or `RUSTFLAGS` would not. Crates with
/// features that are off by default are checked with all of them too, and their tests with them, in one command:
/// one crate after the other would compile CubeCL with every runtime once for each, and minutes are worth more
/// than knowing that each compiles with all features alone.
pub(crate) fn features(ws: &Workspace) -> Result<String> {
    // The build scripts of CubeCL's LLVM parts download LLVM unless they see this; checking needs none of it.
    let _docs = ws.sh.push_env("DOCS_RS", "1");
    let crates = ws.crates();
    let mut whole = Vec::new();
    for package in &crates {
        let name = package.name.as_str();
        let has_default = package.features.get("default").is_some_and(|list| !list.is_empty());
        let ways = if has_default { &[&["--no-default-features"][..], &[]][..] } else { &[&[][..]] };
        for flags in ways {
            println!("-- {name} {}", if flags.is_empty() { "(default features)" } else { flags[0] });
            let flags = *flags;
            cmd!(ws.sh, "cargo clippy --quiet --locked -p {name} {flags...} -- -D warnings").quiet().run()?;
        }
        if has_more_than_default(&package.features) {
            whole.extend(["-p", name]);
        }
    }
    println!("-- {} --all-features", whole.join(" "));
    cmd!(ws.sh, "cargo clippy --quiet --locked {whole...} --all-features --all-targets -- -D warnings")
        .quiet()
        .run()?;
    Ok(format!("{} crates alone", crates.len()))
}

/// Whether there are features that `default` does not turn on by name.
fn has_more_than_default(features: &BTreeMap<String, Vec<String>>) -> bool {
    let default = features.get("default").map_or(&[][..], Vec::as_slice);
    features.keys().any(|name| name != "default" && !default.contains(name))
}

/// API docs of every crate, with missing docs and broken links denied.
pub(crate) fn doc(ws: &Workspace) -> Result<String> {
    let _flags = ws.sh.push_env("RUSTDOCFLAGS", "-D warnings -D missing_docs");
    cmd!(ws.sh, "cargo doc --locked --workspace {FEATURES...} --no-deps").quiet().run()?;
    Ok(String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_beside_the_default_ones_are_noticed() {
        let table = |rows: &[(&str, &[&str])]| {
            let own = |list: &[&str]| list.iter().map(|&name| name.to_owned()).collect();
            rows.iter().map(|(name, list)| ((*name).to_owned(), own(list))).collect()
        };
        assert!(!has_more_than_default(&table(&[])));
        assert!(!has_more_than_default(&table(&[("default", &["a"]), ("a", &["dep:b"])])));
        assert!(has_more_than_default(&table(&[("a", &["dep:b"])])));
        assert!(has_more_than_default(&table(&[("default", &["a"]), ("a", &[]), ("c", &["dep:b"])])));
    }
}
