//! The Python package: builds its wheel, installs that where nothing else is, and runs its tests and examples.
//!
//! The subcommand makes the wheel that is published. The step of `ci` makes one with the profile of the tests: linking the
//! whole package at link time, once more beside the command, took longer than all its tests.
//! Tools come from PyPI into folders under `target`.

use crate::cargo::Call;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::time::Instant;
use xshell::cmd;

/// The builder of wheels, pinned, so that a wheel depends on the sources alone.
const MATURIN: &str = "maturin==1.16.0";
/// What tests need beside the package.
const TESTS: &[&str] = &["pytest==8.4.2"];
/// Interpreters that the wheel is tried with where they are installed, beside `python3`.
const INTERPRETERS: &[&str] =
    &["python3.9", "python3.10", "python3.11", "python3.12", "python3.13", "python3.14"];

/// The largest wheel that is published, so that a dependency that adds megabytes is noticed.
const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// How a wheel is compiled.
#[derive(Clone, Copy, PartialEq)]
enum Profile {
    Tests,
    Release,
}

/// The subcommand; its last line is the wheel's path.
pub(crate) fn run(ws: &Workspace, dev: bool) -> Result<()> {
    let (wheel, note) = all(ws, if dev { Profile::Tests } else { Profile::Release })?;
    println!("{note}");
    println!("{}", wheel.display());
    Ok(())
}

/// What maturin has cargo compile in the step of `ci`.
pub(crate) fn call() -> Call {
    Call::package("build", "trike-py").and(["--lib"])
}

/// The step of `ci`.
pub(crate) fn step(ws: &Workspace) -> Result<String> {
    all(ws, Profile::Tests).map(|(_, note)| note)
}

fn all(ws: &Workspace, profile: Profile) -> Result<(PathBuf, String)> {
    // Tests and examples are run where they lie.
    let _clean = ws.sh.push_env("PYTHONDONTWRITEBYTECODE", "1");
    let wheel = build(ws, profile)?;
    let bytes = std::fs::metadata(&wheel)?.len();
    ensure!(
        profile == Profile::Tests || bytes <= MAX_BYTES,
        "{}: {bytes} bytes, expected at most {MAX_BYTES}",
        wheel.display()
    );
    let mut tried = Vec::new();
    for interpreter in interpreters(ws)? {
        let version = test(ws, &wheel, &interpreter)?;
        tried.push(version);
    }
    with_torch(ws, &wheel)?;
    Ok((wheel, format!("{bytes} bytes, Python {}", tried.join(", "))))
}

/// Builds the wheel into `target/wheels`, that of the tests into `target/test-wheels`.
fn build(ws: &Workspace, profile: Profile) -> Result<PathBuf> {
    let target = ws.metadata.target_directory.as_std_path();
    let python = environment(ws, "python3", &target.join("wheel-build"), &[MATURIN])?;
    let (folder, flags) = match profile {
        Profile::Tests => ("test-wheels", &[][..]),
        // Deflate's best level: a smaller file for everybody who downloads it.
        Profile::Release => ("wheels", &["--profile", "wheel", "--compression-level", "9"][..]),
    };
    let folder = target.join(folder);
    ws.sh.remove_path(&folder)?;
    let manifest = ws.root.join("crates/trike-py/Cargo.toml");
    cmd!(ws.sh, "{python} -m maturin build {flags...} --locked --manifest-path {manifest} --out {folder}")
        .run()?;
    let found = ws.sh.read_dir(&folder)?;
    match found.as_slice() {
        [wheel] => Ok(wheel.clone()),
        other => bail!("expected one wheel in {}, got {}", folder.display(), other.len()),
    }
}

/// `python3`, and those of [`INTERPRETERS`] with other versions that work.
fn interpreters(ws: &Workspace) -> Result<Vec<String>> {
    let version = |name: &str| {
        let code = "import sys, venv, ensurepip; print(*sys.version_info[:2], sep='.')";
        cmd!(ws.sh, "{name} -c {code}").quiet().ignore_stderr().read().ok()
    };
    let first = version("python3").context("python3 with the module venv is not installed")?;
    let others = INTERPRETERS.iter().filter(|name| version(name).is_some_and(|found| found != first));
    Ok(std::iter::once("python3").chain(others.copied()).map(str::to_owned).collect())
}

/// Installs the wheel into a bare environment, and runs the tests and examples there. Returns the interpreter's version.
fn test(ws: &Workspace, wheel: &Path, interpreter: &str) -> Result<String> {
    let target = ws.metadata.target_directory.as_std_path();
    let folder = target.join(format!("wheel-{interpreter}"));
    let wheel = wheel.display().to_string();
    ws.sh.remove_path(&folder)?;
    let python = environment(ws, interpreter, &folder, &[&wheel])?;
    let _home = ws.sh.push_dir(&folder);
    let code = "import resource, time; t = time.perf_counter(); import numpy; n = time.perf_counter(); \
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; import trike; \
                print(f'import trike: {1000 * (time.perf_counter() - n):.0f} ms and \
                {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before} kB after numpy')";
    cmd!(ws.sh, "{python} -c {code}").quiet().run()?;
    install(ws, &python, TESTS)?;
    let started = Instant::now();
    let tests = ws.root.join("crates/trike-py/tests");
    cmd!(ws.sh, "{python} -m pytest -q -rs -p no:cacheprovider {tests}").quiet().run()?;
    for example in examples(ws)? {
        println!("-- {}", example.display());
        cmd!(ws.sh, "{python} {example}").quiet().run()?;
    }
    let version = cmd!(ws.sh, "{python} -c {VERSION}").quiet().read()?;
    println!("Python {version}: tests and examples in {:.0} s", started.elapsed().as_secs_f64());
    Ok(version)
}

/// Prints the version of an interpreter.
const VERSION: &str = "import platform; print(platform.python_version())";

/// The tests of layers, with a Python that has PyTorch and transformers: the one that `TRIKE_TORCH_PYTHON` names.
fn with_torch(ws: &Workspace, wheel: &Path) -> Result<()> {
    let Some(torch) = std::env::var_os("TRIKE_TORCH_PYTHON") else {
        println!("skipped: no PyTorch (set TRIKE_TORCH_PYTHON to a Python that has it)");
        return Ok(());
    };
    let folder = ws.metadata.target_directory.as_std_path().join("wheel-torch");
    ws.sh.remove_path(&folder)?;
    // Beside that Python's packages, so that nothing is written into its environment.
    let packages = folder.join("packages");
    cmd!(
        ws.sh,
        "{torch} -m pip install --quiet --disable-pip-version-check --no-deps --target {packages} {wheel}"
    )
    .quiet()
    .run()?;
    install_into(ws, &torch, &packages, TESTS)?;
    let _path = ws.sh.push_env("PYTHONPATH", &packages);
    let tests = ["test_torch.py", "test_transformers.py"]
        .map(|name| ws.root.join("crates/trike-py/tests").join(name));
    cmd!(ws.sh, "{torch} -m pytest -q -rs -p no:cacheprovider {tests...}").quiet().run()?;
    Ok(())
}

fn install_into(ws: &Workspace, python: &std::ffi::OsStr, folder: &Path, packages: &[&str]) -> Result<()> {
    cmd!(
        ws.sh,
        "{python} -m pip install --quiet --disable-pip-version-check --target {folder} {packages...}"
    )
    .quiet()
    .run()?;
    Ok(())
}

/// The examples, in the order of their names; what they share has a name with an underscore.
fn examples(ws: &Workspace) -> Result<Vec<PathBuf>> {
    let mut found = ws.sh.read_dir(ws.root.join("crates/trike-py/examples"))?;
    let is_shared =
        |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('_'));
    found.retain(|path| path.extension().is_some_and(|end| end == "py") && !is_shared(path));
    found.sort();
    Ok(found)
}

/// The Python of an environment with these packages, which is made if it is missing.
fn environment(ws: &Workspace, interpreter: &str, folder: &Path, packages: &[&str]) -> Result<PathBuf> {
    let python = folder.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
    if !python.exists() {
        cmd!(ws.sh, "{interpreter} -m venv --clear {folder}").quiet().run()?;
    }
    install(ws, &python, packages)?;
    Ok(python)
}

fn install(ws: &Workspace, python: &Path, packages: &[&str]) -> Result<()> {
    cmd!(ws.sh, "{python} -m pip install --quiet --disable-pip-version-check {packages...}").quiet().run()?;
    Ok(())
}
