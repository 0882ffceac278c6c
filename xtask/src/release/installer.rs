//! The installer, run against the artefacts on disk: a good archive is installed, a changed one is refused.

use super::{Release, archive};
use crate::workspace::Workspace;
use anyhow::{Result, ensure};
use std::path::Path;
use std::process::{Command, Output};

pub(super) fn check(ws: &Workspace, release: &Release, archive: &Path) -> Result<()> {
    let temporary = ws.sh.create_temp_dir()?;
    let root = temporary.path();
    let (bin, mirror) = (root.join("bin"), root.join("mirror"));
    let output = install(&release.out, &release.out, &release.target, &bin)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "the installer failed: {said}");
    let command = bin.join(release.command());
    ensure!(
        std::fs::read(&command)? == std::fs::read(&release.binary)?,
        "the installed command is not the one that was built"
    );
    archive::runs(&command, root, &release.version)?;

    // One byte of the archive differs from what the checksums say.
    std::fs::create_dir_all(&mirror)?;
    for file in [archive::CHECKSUMS, "install.sh"] {
        std::fs::copy(release.out.join(file), mirror.join(file))?;
    }
    let mut bytes = std::fs::read(archive)?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(mirror.join(archive.file_name().unwrap_or_default()), bytes)?;
    let elsewhere = root.join("elsewhere");
    refused(&install(&release.out, &mirror, &release.target, &elsewhere)?, "checksum")?;
    refused(&install(&release.out, &mirror, "sparc-unknown-none", &elsewhere)?, "no archive for")?;
    ensure!(!elsewhere.exists(), "a refused archive was installed");
    println!("installed from disk; a changed archive and an unknown target are refused");
    Ok(())
}

/// Runs the script of `from` with the files of `base`, without any setting of the user.
fn install(from: &Path, base: &Path, target: &str, bin: &Path) -> Result<Output> {
    let url = format!("file://{}", base.display());
    let mut command = Command::new("sh");
    command.arg(from.join("install.sh")).args(["--base-url", &url, "--target", target, "--to"]).arg(bin);
    for name in ["TRIKE_BASE_URL", "TRIKE_TARGET", "TRIKE_INSTALL_DIR"] {
        command.env_remove(name);
    }
    Ok(command.output()?)
}

fn refused(output: &Output, reason: &str) -> Result<()> {
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success() && said.contains(reason), "expected a refusal ({reason}), got: {said}");
    Ok(())
}
