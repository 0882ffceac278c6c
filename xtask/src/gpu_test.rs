//! GPU kernel tests: the kernels of `trike-cube` compiled for every target, emulated, and run on every device found.
//!
//! NVIDIA's compilers are installed from PyPI into `target/gpu-venv`: machine code can be checked without a GPU,
//! driver or toolkit.

use crate::cargo::Call;
use crate::llvm;
use crate::share::Share;
use crate::workspace::Workspace;
use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;
use xshell::cmd;

/// NVIDIA's compilers and the headers included by generated sources. Pinned, so that the register limits in the tables
/// are reproducible.
const WHEELS: &[&str] = &[
    "nvidia-cuda-nvrtc-cu12==12.9.86",
    "nvidia-cuda-nvcc-cu12==12.9.86",
    "nvidia-cuda-runtime-cu12==12.9.79",
    "nvidia-cuda-cccl-cu12==12.9.27",
];

/// NVIDIA's disassembler, which reads the machine code of older versions; there is none of version 12.
const DISASSEMBLER: &str = "nvidia-cuda-nvdisasm==13.5.37";

/// The table of counts.
const COUNTS: &str = "tools/trike-gpu-test/src/counts/counts.tsv";

/// Options; by default all phases.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// Phases to run, comma-separated: compile, emulate, run.
    #[arg(long = "phase", value_delimiter = ',', value_parser = ["compile", "emulate", "run"])]
    phases: Vec<String>,
    /// Runtimes of the run phase, comma-separated: cuda, hip, metal, vulkan, wgpu. Default: wgpu, plus cuda with
    /// NVIDIA's driver and hip with AMD's.
    #[arg(long = "runtime", value_delimiter = ',', value_parser = ["cuda", "hip", "metal", "vulkan", "wgpu"])]
    runtimes: Vec<String>,
    /// Targets of the compile phase whose name contains this.
    #[arg(long)]
    target: Option<String>,
    /// Only cases whose name contains this.
    #[arg(long)]
    filter: Option<String>,
    /// Compile a part of the kernels' forms, and run a part of the cases without a GPU, such as 0/8. Default: all of them.
    #[arg(long)]
    share: Option<String>,
    /// Replace the table of counts of machine code by those of this run.
    #[arg(long)]
    accept_counts: bool,
}

/// The step of `ci`: of the kernels' forms, and of the cases that are emulated or run on a software device, it takes a share. Every
/// kernel is generated for every target, and every case runs on every GPU found, in each share.
pub(crate) fn step(ws: &Workspace, share: Share) -> Result<String> {
    let share = (share != Share::WHOLE).then(|| share.to_string());
    // A machine without any driver, software drivers included, would test nothing.
    all(ws, &Options { share, ..Options::default() }, true)
}

/// The subcommand.
pub(crate) fn run(ws: &Workspace, options: &Options) -> Result<()> {
    all(ws, options, false).map(drop)
}

fn all(ws: &Workspace, options: &Options, device_required: bool) -> Result<String> {
    let found;
    let runtimes: &[String] = if options.runtimes.is_empty() {
        found = drivers(ws);
        &found
    } else {
        &options.runtimes
    };
    let binary = build(ws, runtimes)?;
    phases(ws, &binary, options, device_required)
}

/// GPU runtimes other than wgpu whose driver is installed, so that no device goes untested because its runtime is not
/// built.
pub(crate) fn drivers(ws: &Workspace) -> Vec<String> {
    let libraries = [("cuda", "libcuda.so.1"), ("hip", "libamdhip64.so")];
    let known = cmd!(ws.sh, "ldconfig -p").quiet().ignore_stderr().read().unwrap_or_default();
    let mut folders = vec![PathBuf::from("/usr/lib/wsl/lib"), PathBuf::from("/opt/rocm/lib")];
    folders.extend(std::env::var_os("LD_LIBRARY_PATH").iter().flat_map(|list| std::env::split_paths(list)));
    let is_there = |library: &str| {
        let in_folders = folders.iter().any(|folder| folder.join(library).exists());
        in_folders || known.lines().any(|line| line.trim_start().starts_with(library))
    };
    let mut found = Vec::new();
    for (runtime, library) in libraries.into_iter().filter(|(_, library)| is_there(library)) {
        println!("found {library}: building with {runtime}");
        found.push(runtime.to_owned());
    }
    found
}

fn phases(ws: &Workspace, binary: &Path, options: &Options, device_required: bool) -> Result<String> {
    let phase = |name: &str| options.phases.is_empty() || options.phases.iter().any(|one| one == name);
    let mut total = Counts::default();
    let mut green = true;
    let mut times = Vec::new();
    if phase("compile") {
        let start = Instant::now();
        let mut compile = Command::new(binary);
        compile.arg("compile").arg("--out").arg(ws.root.join("target/gpu-test"));
        match compilers(ws) {
            Ok(nvidia) => {
                if let Err(e) = disassembler(ws, &nvidia) {
                    let reason = format!("NVIDIA's disassembler could not be installed: {e}");
                    compile.arg(format!("--why-no-nvdisasm={}", one_line(&reason)));
                }
                // The loader reads the variable at process start, so the binary cannot set it for itself.
                compile.env("LD_LIBRARY_PATH", nvidia.join("cuda_nvrtc/lib")).arg("--nvidia").arg(nvidia);
            }
            Err(e) => {
                let reason = format!("NVIDIA's compilers could not be installed: {e}");
                compile.arg(format!("--why-no-nvidia={}", one_line(&reason)));
            }
        }
        let values =
            [("--target", &options.target), ("--filter", &options.filter), ("--share", &options.share)];
        for (flag, value) in values {
            compile.args(value.iter().flat_map(|v| [flag, v.as_str()]));
        }
        if options.accept_counts {
            compile.arg("--accept-counts").arg(ws.root.join(COUNTS));
        }
        green &= counted(compile, &mut total)?;
        times.push(format!("compile {:.0} s", start.elapsed().as_secs_f64()));
    }
    if phase("emulate") {
        let start = Instant::now();
        let mut emulate = Command::new(binary);
        emulate.arg("emulate").arg("--out").arg(ws.root.join("target/gpu-test/emulate"));
        emulate.args(options.filter.iter().flat_map(|filter| ["--filter", filter]));
        emulate.args(options.share.iter().flat_map(|share| ["--share", share]));
        green &= counted(emulate, &mut total)?;
        times.push(format!("emulate {:.0} s", start.elapsed().as_secs_f64()));
    }
    if phase("run") {
        let start = Instant::now();
        let mut run = Command::new(binary);
        run.arg("run");
        if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
            // A layer of Mesa's Vulkan would complain that there is no display.
            run.env("NODEVICE_SELECT", "1");
        }
        run.args(options.runtimes.iter().flat_map(|runtime| ["--runtime", runtime]));
        run.args(options.filter.iter().flat_map(|filter| ["--filter", filter]));
        run.args(options.share.iter().flat_map(|share| ["--share", share]));
        if device_required {
            run.arg("--device-required");
        }
        green &= counted(run, &mut total)?;
        times.push(format!("run {:.0} s", start.elapsed().as_secs_f64()));
    }
    println!("{}", times.join(", "));
    let totals = format!("{} passed, {} failed, {} skipped", total.passed, total.failed, total.skipped);
    println!("{totals}");
    ensure!(green, "kernels failed: {totals}");
    Ok(totals)
}

/// The test binary with these runtimes in addition to wgpu, with the features of the tests, whose dependencies it shares. What these
/// runtimes add to a feature set is compiled for it once more.
pub(crate) fn call(runtimes: &[&str]) -> Call {
    let call = Call::workspace("build").and(["--bin", "trike-gpu-test"]).with_dev_features();
    runtimes.iter().fold(call, |call, runtime| call.and(["--features", &format!("trike-cube/{runtime}")]))
}

/// Builds the test binary with these runtimes in addition to wgpu.
fn build(ws: &Workspace, runtimes: &[String]) -> Result<PathBuf> {
    let others: Vec<&str> =
        runtimes.iter().map(String::as_str).filter(|runtime| *runtime != "wgpu").collect();
    let _stubs = if others.is_empty() { None } else { Some(llvm::stubbed(ws)?) };
    call(&others).run(ws)?;
    let target = ws.metadata.target_directory.as_std_path();
    Ok(target.join("debug").join(format!("trike-gpu-test{}", std::env::consts::EXE_SUFFIX)))
}

/// The folder `nvidia` with the compilers, which are installed if missing.
pub(crate) fn compilers(ws: &Workspace) -> Result<PathBuf> {
    let venv = ws.metadata.target_directory.as_std_path().join("gpu-venv");
    if let Some(found) = packages(&venv) {
        return Ok(found);
    }
    println!("installing NVIDIA's compilers into {}", venv.display());
    cmd!(ws.sh, "python3 -m venv --clear {venv}").quiet().ignore_stderr().run()?;
    let python = venv.join("bin/python");
    let wheels = WHEELS;
    let pip = cmd!(
        ws.sh,
        "{python} -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 20 {wheels...}"
    );
    pip.quiet().run()?;
    packages(&venv).with_context(|| format!("the packages are not under {}", venv.display()))
}

/// Installs the disassembler beside the compilers, if it is missing. Some platforms have the compilers alone.
fn disassembler(ws: &Workspace, nvidia: &Path) -> Result<()> {
    let program = nvidia.join("cu13/bin/nvdisasm");
    if program.exists() {
        return Ok(());
    }
    println!("installing NVIDIA's disassembler");
    let python = ws.metadata.target_directory.as_std_path().join("gpu-venv/bin/python");
    let pip = cmd!(
        ws.sh,
        "{python} -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 20 {DISASSEMBLER}"
    );
    pip.quiet().run()?;
    ensure!(program.exists(), "the package has no {}", program.display());
    Ok(())
}

/// Path of the compilers in an environment, if all are present.
fn packages(venv: &Path) -> Option<PathBuf> {
    let lib = std::fs::read_dir(venv.join("lib")).ok()?;
    lib.flatten().map(|python| python.path().join("site-packages/nvidia")).find(|nvidia| {
        ["cuda_nvrtc/lib", "cuda_nvcc/include", "cuda_runtime/include", "cuda_cccl/include"]
            .iter()
            .all(|part| nvidia.join(part).exists())
    })
}

#[derive(Debug, Default, PartialEq)]
struct Counts {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl Counts {
    /// Reads `3 passed, 0 failed, 1 skipped`.
    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.split(", ");
        let mut next = |name: &str| parts.next()?.strip_suffix(name)?.trim_end().parse().ok();
        Some(Self { passed: next("passed")?, failed: next("failed")?, skipped: next("skipped")? })
    }
}

/// Runs a phase, echoes its output, adds its totals, and returns whether it succeeded.
fn counted(mut command: Command, total: &mut Counts) -> Result<bool> {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot start trike-gpu-test")?;
    let stdout = child.stdout.take().context("trike-gpu-test has no stdout")?;
    let mut last = None;
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        println!("{line}");
        last = Counts::parse(&line).or(last);
    }
    let status = child.wait()?;
    // A phase that ends without totals was aborted.
    let counts = last.with_context(|| format!("trike-gpu-test ended early: {status}"))?;
    total.passed += counts.passed;
    total.failed += counts.failed;
    total.skipped += counts.skipped;
    Ok(status.success())
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_read() {
        let expected = Counts { passed: 12, failed: 0, skipped: 3 };
        assert_eq!(Counts::parse("12 passed, 0 failed, 3 skipped"), Some(expected));
        for other in ["", "12 skipped: no planes", "12 passed", "x passed, 0 failed, 3 skipped"] {
            assert_eq!(Counts::parse(other), None, "{other}");
        }
    }
}
