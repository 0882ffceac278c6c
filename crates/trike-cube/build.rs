//! Warns about the LLVM download that the features `cuda`, `hip` and `cpu` trigger.
//!
//! CubeCL's CUDA and HIP runtimes link LLVM for a code generator that Trike does not use. `tracel-llvm-bundler` downloads it in
//! its build script, and without a network panics with a message that names neither LLVM nor a remedy.
#![forbid(unsafe_code)]

use std::path::PathBuf;

/// Environment variable: directory of `libllvmstubs.a`, for a build without LLVM. `cargo xtask` creates the library.
const STUBS: &str = "TRIKE_LLVM_STUBS";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let feature = |name: &str| std::env::var_os(format!("CARGO_FEATURE_{name}")).is_some();
    if !["CUDA", "HIP", "CPU"].into_iter().any(feature) {
        return;
    }
    println!("cargo::rerun-if-env-changed={STUBS}");
    println!("cargo::rerun-if-env-changed=DOCS_RS");
    if let Some(folder) = std::env::var_os(STUBS) {
        if feature("CPU") {
            println!(
                "cargo::error=the feature `cpu` runs LLVM: unset {STUBS}, which replaces LLVM with stubs that abort"
            );
        }
        println!("cargo::rustc-link-search=native={}", PathBuf::from(folder).display());
        // Whole archive: a single-pass linker reads this archive before those that reference its functions.
        println!("cargo::rustc-link-lib=static:+whole-archive=llvmstubs");
    } else if std::env::var_os("DOCS_RS").is_none() && !llvm_is_installed() {
        println!(
            "cargo::warning=the features `cuda` and `hip` link LLVM, which the build script of tracel-llvm-bundler now downloads \
             from github.com. If the download fails, build on a machine with network access, or with the \
             feature `vulkan`, which needs no LLVM. See \"Building for CUDA and ROCm\" in docs/src/gpu.md."
        );
    }
}

/// Looks in the user's data folder for an LLVM that an earlier build downloaded.
fn llvm_is_installed() -> bool {
    let home = |below: &str| std::env::home_dir().map(|home| home.join(below));
    let folders = [
        std::env::var_os("XDG_DATA_HOME").map(PathBuf::from),
        home(".local/share"),
        home("Library/Application Support"),
        std::env::var_os("LOCALAPPDATA").map(PathBuf::from),
    ];
    let installations =
        folders.into_iter().flatten().filter_map(|data| std::fs::read_dir(data.join("tracel")).ok());
    installations.flatten().flatten().any(|entry| entry.path().join(".tracel-llvm-installed").exists())
}
