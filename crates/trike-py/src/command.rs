//! The command `trike`.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs a command line, whose first word is the name of the program, and returns its exit code. It may exit the process.
#[pyfunction]
fn _command(py: Python<'_>, args: Vec<OsString>) -> u8 {
    py.detach(|| trike_cli::run(args))
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(_command, m)?)
}
