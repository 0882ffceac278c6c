//! A bundle that tests and times the kernels on a machine with only a GPU driver: one binary and one script.

use crate::gpu_test::compilers;
use crate::llvm;
use crate::workspace::Workspace;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use xshell::cmd;

/// Maximum size of the folder in bytes, for slow links.
const LIMIT: u64 = 60_000_000;

/// The script of the bundle.
const SCRIPT: &str = include_str!("gpu_bundle.sh");

/// Headers included by generated sources (an empty name: the whole folder), from NVIDIA's packages: the machine may
/// have NVRTC without a toolkit.
const HEADERS: &[(&str, &[&str])] = &[
    ("cuda_runtime/include", &[""]),
    ("cuda_nvcc/include", &["crt"]),
    ("cuda_cccl/include", &["cuda", "nv"]),
];

/// Builds the folder `target/gpu-bundle`.
pub(crate) fn run(ws: &Workspace) -> Result<()> {
    let target = ws.metadata.target_directory.as_std_path().join("gpu-bundle-build");
    let folder = ws.metadata.target_directory.as_std_path().join("gpu-bundle");
    let binary = link(ws, &target)?;
    let linked = libraries(&cmd!(ws.sh, "readelf -d {binary}").quiet().read()?);
    println!("== linked with {}", linked.join(", "));
    let foreign: Vec<&String> = linked.iter().filter(|name| !is_of_c(name)).collect();
    ensure!(foreign.is_empty(), "linked with {foreign:?}, which another machine may not have");

    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder)?;
    std::fs::copy(&binary, folder.join("trike-gpu-test")).context("cannot copy the binary")?;
    let script = folder.join("run.sh");
    std::fs::write(&script, SCRIPT)?;
    cmd!(ws.sh, "chmod +x {script}").quiet().run()?;
    headers(ws, &compilers(ws)?, &target, &folder)?;
    let size = size_of(&folder)?;
    println!("{}: {:.1} MB", folder.display(), size as f64 / 1e6);
    ensure!(size <= LIMIT, "the bundle is {size} bytes, at most {LIMIT} are allowed");
    // The build machine has no GPU, so only check that the binary starts.
    let binary = folder.join("trike-gpu-test");
    cmd!(ws.sh, "{binary} --help").quiet().ignore_stdout().run()?;
    Ok(())
}

/// Builds the release binary with the runtimes that need no library at build time.
fn link(ws: &Workspace, target: &Path) -> Result<PathBuf> {
    let _stubs = llvm::stubbed(ws)?;
    let environment = [
        ("CARGO_TARGET_DIR", target.to_str().context("the target folder's name is not text")?),
        // A panic fails a test case instead of aborting the run.
        ("CARGO_PROFILE_RELEASE_PANIC", "unwind"),
        ("CARGO_PROFILE_RELEASE_DEBUG", "none"),
        // Host code is not performance-critical here.
        ("CARGO_PROFILE_RELEASE_LTO", "off"),
        ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    ];
    let _environment: Vec<_> = environment.iter().map(|(name, value)| ws.sh.push_env(name, value)).collect();
    let package = ["-p", "trike-gpu-test", "--bin", "trike-gpu-test"];
    let features = ["--features", "trike-cube/vulkan,trike-cube/cuda,trike-cube/hip,rivals"];
    // Position-dependent code: relocations are a fifth of the binary.
    let small = ["-Crelocation-model=static", "-Cstrip=symbols"];
    // Only types of `trike-cpu` are used, and its kernels take minutes to compile.
    let config = ["--config", "profile.release.package.trike-cpu.opt-level=1"];
    cmd!(
        ws.sh,
        "cargo rustc --quiet --locked --release {config...} {package...} {features...} -- {small...}"
    )
    .run()?;
    Ok(target.join("release/trike-gpu-test"))
}

/// The shared libraries that a binary needs, from the output of `readelf -d`.
fn libraries(listing: &str) -> Vec<String> {
    let names = listing.lines().filter(|line| line.contains("(NEEDED)"));
    names.filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0.to_owned())).collect()
}

/// Whether a library belongs to the C compiler or the C library, available on every machine.
fn is_of_c(name: &str) -> bool {
    let known = ["libc.so", "libm.so", "libgcc_s.so", "libdl.so", "libpthread.so", "librt.so", "ld-linux"];
    known.iter().any(|start| name.starts_with(start))
}

/// Packs the headers into an archive (a tenth of their size); the script unpacks them.
fn headers(ws: &Workspace, nvidia: &Path, target: &Path, folder: &Path) -> Result<()> {
    let include = target.join("cuda/include");
    let _ = std::fs::remove_dir_all(&include);
    for (package, parts) in HEADERS {
        for part in *parts {
            // The headers of barriers are searched in `include` and in `include/cccl`; the first is enough.
            copy_tree(&nvidia.join(package).join(part), &include.join(part))?;
        }
    }
    let archive = folder.join("cuda.tar.gz");
    cmd!(ws.sh, "tar -czf {archive} -C {target} cuda").quiet().run()?;
    Ok(())
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    for entry in std::fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), &target)
                .with_context(|| format!("cannot copy {} to {}", entry.path().display(), target.display()))?;
        }
    }
    Ok(())
}

fn size_of(folder: &Path) -> Result<u64> {
    let mut size = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        size += if meta.is_dir() { size_of(&entry.path())? } else { meta.len() };
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_libraries_of_c_are_asked_for() {
        let listing = " 0x0000000000000001 (NEEDED)             Shared library: [libgcc_s.so.1]\n\
                       \x200x0000000000000001 (NEEDED)             Shared library: [libcuda.so.1]\n\
                       \x200x000000000000000c (INIT)               0x1000\n";
        let found = libraries(listing);
        assert_eq!(found, ["libgcc_s.so.1", "libcuda.so.1"]);
        assert!(is_of_c(&found[0]) && !is_of_c(&found[1]));
    }
}
