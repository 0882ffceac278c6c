//! Location of test data: of the repository, and of the shared data with skips when it or a tool is missing.

use std::path::{Path, PathBuf};

/// The directory of the model that comes with Trike.
pub fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny").canonicalize().expect("the bundled model")
}

/// Prints `skipped: reason`, which the test runner counts; the test then returns.
///
/// `cargo xtask test` lists the reasons; `cargo xtask ci` fails on those that it does not know.
#[expect(clippy::print_stdout, reason = "the test runner counts these lines")]
pub fn skip(reason: &str) {
    println!("skipped: {reason}");
}

/// The path of `rel` in the shared data directory next to the repository, or `None` after a [`skip`] where there is no such
/// directory: the data is not part of the product.
///
/// # Panics
///
/// When the directory is there and lacks the file.
pub fn shared(rel: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let path = root.join(rel);
    if path.exists() {
        return Some(path);
    }
    // Another folder of this name may lie beside a clone.
    assert!(!root.join("data/README.md").exists(), "the shared data lacks {rel}");
    skip(&format!("no shared data ({rel})"));
    None
}

/// A Python interpreter that can import `module`, or `None` after a [`skip`].
///
/// The interpreter is `$TRIKE_PYTHON`, default `python3`. Tests use it to run independent reference implementations.
pub fn python(module: &str) -> Option<std::process::Command> {
    let interpreter = std::env::var("TRIKE_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let probe = std::process::Command::new(&interpreter).args(["-c", &format!("import {module}")]).output();
    if probe.is_ok_and(|out| out.status.success()) {
        return Some(std::process::Command::new(interpreter));
    }
    skip(&format!("no python {module} package"));
    None
}
