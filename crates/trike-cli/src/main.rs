//! The program `trike`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(trike_cli::run(std::env::args_os()))
}
