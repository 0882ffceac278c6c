//! Independent Python scripts, run by the interpreter `TRIKE_PYTHON`, or `python3`.
//!
//! If it lacks a package, the test prints `skipped: no python gguf package`; `cargo xtask ci` accepts no such skip.

use std::{path::Path, process::Command};

use trike_testkit::skip;

fn python() -> Command {
    Command::new(std::env::var_os("TRIKE_PYTHON").unwrap_or_else(|| "python3".into()))
}

pub(crate) fn has_package(package: &str) -> bool {
    let import = format!("import {package}");
    let found = python().args(["-c", &import]).output().is_ok_and(|o| o.status.success());
    if !found {
        skip(&format!("no python {package} package"));
    }
    found
}

pub(crate) fn run(script: &str, arguments: &[&Path]) {
    let output = python().args(["-c", script]).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

pub(crate) fn read_floats(path: &Path) -> Vec<f32> {
    let bytes = std::fs::read(path).unwrap();
    bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}
