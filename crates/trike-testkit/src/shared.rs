//! Location of test data: of the repository, and of the shared data with skips when it is missing.

use std::path::{Path, PathBuf};

/// The directory of the model that comes with Trike.
pub fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny").canonicalize().expect("the bundled model")
}

/// The path of `rel` in the shared data directory next to the repository, or `None` after printing one line `skipped:
/// no shared data`, which the test runner counts.
///
/// The data is not part of the product, so on a user's machine its absence is a skip. With `CI=true` it is a failure,
/// so that a run that tested nothing cannot pass.
///
/// # Panics
///
/// When the data is missing and `CI=true` is set.
pub fn shared(rel: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let path = root.join(rel);
    if path.exists() {
        return Some(path);
    }
    assert!(
        std::env::var("CI").as_deref() != Ok("true"),
        "no shared data ({rel}), and CI=true makes that a failure"
    );
    announce_skip(rel);
    None
}

#[expect(clippy::print_stdout, reason = "the test runner counts these lines")]
fn announce_skip(rel: &str) {
    println!("skipped: no shared data ({rel})");
}

/// A Python interpreter that can import `module`, or `None` after printing one `skipped:` line.
///
/// The interpreter is `$TRIKE_PYTHON`, default `python3`. Tests use it to run independent reference implementations.
///
/// # Panics
///
/// When there is none and `CI=true` is set.
pub fn python(module: &str) -> Option<std::process::Command> {
    let interpreter = std::env::var("TRIKE_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let probe = std::process::Command::new(&interpreter).args(["-c", &format!("import {module}")]).output();
    if probe.is_ok_and(|out| out.status.success()) {
        return Some(std::process::Command::new(interpreter));
    }
    assert!(
        std::env::var("CI").as_deref() != Ok("true"),
        "no Python with {module} ({interpreter}), and CI=true makes that a failure"
    );
    announce_no_python(module);
    None
}

#[expect(clippy::print_stdout, reason = "the test runner counts these lines")]
fn announce_no_python(module: &str) {
    println!("skipped: no python {module} package");
}
