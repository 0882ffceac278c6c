//! The archive of one target: made, unpacked again, and run as a user would.

use super::{Release, binstall, size};
use crate::workspace::Workspace;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use xshell::cmd;

/// List of the artefacts' digests, in the format of `sha256sum`.
pub(super) const CHECKSUMS: &str = "SHA256SUMS";
/// Files of the repository that every archive contains.
const DOCUMENTS: &[&str] = &["LICENSE-APACHE", "LICENSE-MIT", "README.md", "CHANGELOG.md"];
/// Shells with a completion script, and the script's name where each of them looks for one.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "trike.bash"),
    ("elvish", "trike.elv"),
    ("fish", "trike.fish"),
    ("powershell", "_trike.ps1"),
    ("zsh", "_trike"),
];
/// A larger release binary was not stripped, or gained a large dependency.
const MAX_STRIPPED_BYTES: u64 = 32 * 1024 * 1024;

/// Makes the archive in an empty output folder; the unpacked folder stays beside it, for the container image.
pub(super) fn make(ws: &Workspace, release: &Release) -> Result<PathBuf> {
    let out = &release.out;
    let name = release.name();
    let folder = out.join(&name);
    if out.exists() {
        std::fs::remove_dir_all(out).with_context(|| format!("cannot empty {}", out.display()))?;
    }
    let (completions, man) = (folder.join("completions"), folder.join("man"));
    std::fs::create_dir_all(&completions).with_context(|| format!("cannot create {}", folder.display()))?;
    let command = folder.join(release.command());
    std::fs::copy(&release.binary, &command)
        .with_context(|| format!("cannot copy {}", release.binary.display()))?;
    for document in DOCUMENTS {
        std::fs::copy(ws.root.join(document), folder.join(document))
            .with_context(|| format!("cannot copy {document}"))?;
    }
    for (shell, file) in COMPLETIONS {
        let script = cmd!(ws.sh, "{command} completions {shell}").quiet().read()?;
        std::fs::write(completions.join(file), script + "\n")?;
    }
    cmd!(ws.sh, "{command} man {man}").quiet().ignore_stdout().run()?;

    let file = release.archive();
    let archive = out.join(&file);
    // Only GNU tar can make the same archive from the same files; others keep the order and dates of the disk.
    let about = cmd!(ws.sh, "tar --version").quiet().read()?;
    let time = cmd!(ws.sh, "git log -1 --format=--mtime=@%ct").quiet().read().unwrap_or_default();
    let mut flags = Vec::new();
    if about.contains("GNU tar") {
        flags.extend(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=u=rwX,go=rX"]);
        flags.extend(Some(time.trim()).filter(|time| !time.is_empty()));
    }
    // Relative names: `C:` in front of a path is a host for some implementations of tar.
    let _folder = ws.sh.push_dir(out);
    cmd!(ws.sh, "tar {flags...} -czf {file} {name}").quiet().run()?;
    Ok(archive)
}

/// Writes the digests of all files of the output folder.
pub(super) fn write_checksums(ws: &Workspace, out: &Path) -> Result<()> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(out)? {
        let entry = entry?;
        if entry.file_type()?.is_file() && entry.file_name() != CHECKSUMS {
            files.push(entry.file_name());
        }
    }
    files.sort();
    let files = &files;
    let _folder = ws.sh.push_dir(out);
    let sums = cmd!(ws.sh, "sha256sum {files...}").quiet().read();
    // Older versions of macOS have only this one.
    let sums = sums.or_else(|_| cmd!(ws.sh, "shasum -a 256 {files...}").quiet().read())?;
    // On Windows a `*` marks binary files.
    let sums = sums.replace(" *", "  ").replace('\r', "");
    std::fs::write(out.join(CHECKSUMS), sums + "\n").context("cannot write the checksums")
}

/// Unpacks the archive elsewhere, checks its files, and generates text with the bundled model in an empty home.
pub(super) fn check(ws: &Workspace, release: &Release, archive: &Path) -> Result<()> {
    let temporary = ws.sh.create_temp_dir()?;
    let root = temporary.path();
    let unpacked = unpack(ws, archive, root)?;
    binstall::check(ws, release, archive, &unpacked)?;
    let folder = unpacked.join(release.name());
    let mut expected: Vec<PathBuf> = DOCUMENTS.iter().map(PathBuf::from).collect();
    expected.extend(COMPLETIONS.iter().map(|(_, file)| Path::new("completions").join(file)));
    expected.push("man/trike.1".into());
    expected.push("man/trike-run.1".into());
    for file in &expected {
        ensure!(size(&folder.join(file))? > 0, "{} is empty", file.display());
    }
    let command = folder.join(release.command());
    let version = runs(&command, root, &release.version)?;
    let bytes = size(&command)?;
    let profile = release.binary.parent().and_then(Path::file_name).unwrap_or_default();
    ensure!(
        profile != "release" || bytes <= MAX_STRIPPED_BYTES,
        "{bytes} bytes, at most {MAX_STRIPPED_BYTES}: was it stripped?"
    );
    println!("{version}: unpacked and run");
    Ok(())
}

/// Unpacks an archive below a folder.
pub(super) fn unpack(ws: &Workspace, archive: &Path, root: &Path) -> Result<PathBuf> {
    let folder = root.join("unpacked");
    std::fs::create_dir_all(&folder)?;
    let name = archive.file_name().context("an archive has a name")?;
    std::fs::copy(archive, folder.join(name))?;
    let _folder = ws.sh.push_dir(&folder);
    cmd!(ws.sh, "tar -xzf {name}").quiet().run()?;
    Ok(folder)
}

/// Runs an installed command with an empty home: it must report this version and generate text with the bundled model.
pub(super) fn runs(command: &Path, root: &Path, version: &str) -> Result<String> {
    let home = root.join("home");
    std::fs::create_dir_all(&home)?;
    let run = |args: &[&str]| -> Result<(String, String)> {
        let mut command = Command::new(command);
        command.args(args).current_dir(&home);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TRIKE_") {
                command.env_remove(name);
            }
        }
        for name in ["HOME", "USERPROFILE", "LOCALAPPDATA"] {
            command.env(name, &home);
        }
        for name in ["CACHE", "CONFIG", "DATA", "STATE"] {
            command.env(format!("XDG_{name}_HOME"), home.join(name.to_lowercase()));
        }
        let output =
            command.output().with_context(|| format!("cannot start {}", command.get_program().display()))?;
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let (out, errors) = (text(&output.stdout), text(&output.stderr));
        ensure!(output.status.success(), "trike {} ended with {}: {errors}", args.join(" "), output.status);
        Ok((out, errors))
    };
    let (said, _) = run(&["--version"])?;
    ensure!(
        said.trim() == format!("trike {version}"),
        "trike --version: {}, expected {version}",
        said.trim()
    );
    let (story, report) = run(&["run", "-p", "Once upon a time", "-n", "8", "--temperature", "0"])?;
    ensure!(story.split_whitespace().count() >= 8, "trike run printed only `{story}`");
    println!("{}\n{}", story.trim(), report.trim());
    Ok(said.trim().to_owned())
}
