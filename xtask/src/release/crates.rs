//! The crates of a release: a dry run of their publication, and a build from nothing but their packages.

use crate::package;
use crate::workspace::Workspace;
use anyhow::{Context, Result, ensure};
use std::fmt::Write as _;
use xshell::cmd;

/// Runs `cargo publish --dry-run` for all crates, which asks the registry whether their versions are free, and checks
/// the order of their uploads.
pub(super) fn publish_dry_run(ws: &Workspace) -> Result<()> {
    let output = cmd!(ws.sh, "cargo publish --workspace --dry-run --no-verify --locked --allow-dirty")
        .quiet()
        .ignore_status()
        .output()?;
    let messages = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo publish --dry-run failed:\n{messages}");
    let order = uploads(&messages);
    let position = |name: &str| order.iter().position(|upload| *upload == name);
    for package in ws.published() {
        let at =
            position(&package.name).with_context(|| format!("{} would not be uploaded", package.name))?;
        for dependency in package.dependencies.iter().filter(|d| d.path.is_some()) {
            // Without a version the dependency is left out of the package: tests only.
            let is_published = !dependency.req.comparators.is_empty();
            let before = position(&dependency.name).is_some_and(|its| its < at);
            ensure!(before || !is_published, "{} would be uploaded before {}", package.name, dependency.name);
        }
    }
    println!("cargo publish --dry-run would upload: {}", order.join(", "));
    Ok(())
}

/// The names of the uploads in cargo's messages, in order.
fn uploads(messages: &str) -> Vec<&str> {
    let lines = messages.lines().filter_map(|line| line.trim_start().strip_prefix("Uploading "));
    lines.filter_map(|line| line.split_whitespace().next()).collect()
}

/// Builds the command from unpacked packages and nothing else of the repository, as `cargo install trike-cli` would.
///
/// With the profiles and the lock file of the workspace, so that the registry crates of the release build are reused:
/// packages have no profiles, and lock files of their own.
pub(super) fn build_from_packages(ws: &Workspace, version: &str) -> Result<()> {
    let packages = package::package_all(ws)?;
    let target = ws.metadata.target_directory.as_std_path();
    // Always the same folder, because its name is part of what cargo keeps, and every new one would be kept too.
    let root = target.join("unpacked-packages");
    if root.exists() {
        std::fs::remove_dir_all(&root).with_context(|| format!("cannot empty {}", root.display()))?;
    }
    std::fs::create_dir_all(&root)?;
    let _folder = ws.sh.push_dir(&root);
    let mut folders = Vec::new();
    for (file, _) in &packages {
        let name = file.file_name().context("a package has a name")?;
        std::fs::copy(file, root.join(name))?;
        // Files in packages are all of 2006: with their dates cargo would take changed ones for compiled ones.
        cmd!(ws.sh, "tar -xzmf {name}").quiet().run()?;
        folders.push(file.file_stem().unwrap_or_default().to_string_lossy().into_owned());
    }
    let manifest = std::fs::read_to_string(ws.root.join("Cargo.toml"))?;
    std::fs::write(root.join("Cargo.toml"), workspace_of(&folders, version, &manifest)?)?;
    std::fs::copy(ws.root.join("Cargo.lock"), root.join("Cargo.lock"))?;
    let _target = ws.sh.push_env("CARGO_TARGET_DIR", target);
    cmd!(ws.sh, "cargo build --release -p trike-cli").quiet().run()?;
    let command = target.join("release").join(if cfg!(windows) { "trike.exe" } else { "trike" });
    let temporary = ws.sh.create_temp_dir()?;
    super::archive::runs(&command, temporary.path(), version)?;
    println!("built and run from {} packages", packages.len());
    Ok(())
}

/// A workspace of unpacked packages: they find each other through a patch of the registry.
fn workspace_of(folders: &[String], version: &str, manifest: &str) -> Result<String> {
    let profiles = manifest.find("[profile.").context("Cargo.toml has no profiles")?;
    let mut text = "[workspace]\nresolver = \"3\"\nmembers = [".to_owned();
    for folder in folders {
        let _ = write!(text, "\"{folder}\", ");
    }
    text.push_str("]\n\n[patch.crates-io]\n");
    for folder in folders {
        let name = folder.strip_suffix(version).and_then(|name| name.strip_suffix('-'));
        let name = name.with_context(|| format!("{folder} is not of version {version}"))?;
        let _ = writeln!(text, "{name} = {{ path = \"{folder}\" }}");
    }
    let _ = write!(text, "\n{}", &manifest[profiles..]);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uploads_are_read_in_their_order() {
        let messages = "    Updating crates.io index\n   Uploading b v0.1.0 (x)\nwarning: aborting upload due to dry run\n   \
                        Uploading a v0.1.0 (y)\n";
        assert_eq!(uploads(messages), ["b", "a"]);
    }

    #[test]
    fn packages_replace_those_of_the_registry() {
        let folders = ["a-b-1.0.0".to_owned()];
        let manifest = "[workspace]\n[profile.release]\nlto = \"thin\"\n";
        let expected = "[workspace]\nresolver = \"3\"\nmembers = [\"a-b-1.0.0\", ]\n\n[patch.crates-io]\n\
                        a-b = { path = \"a-b-1.0.0\" }\n\n[profile.release]\nlto = \"thin\"\n";
        assert_eq!(workspace_of(&folders, "1.0.0", manifest).unwrap(), expected);
        assert!(workspace_of(&folders, "1.0.1", manifest).is_err());
    }
}
