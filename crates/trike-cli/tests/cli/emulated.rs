//! The command on other processors: their instruction sets are emulated by QEMU.

use std::process::Command;

use serde_json::Value;
use trike_testkit::skip;

use crate::harness::{Trike, tiny, utf8};

/// QEMU's user-mode emulation; if it is missing, `None` after printing a line that the test runner counts.
fn emulator() -> Option<()> {
    if Command::new("qemu-x86_64").arg("--version").output().is_ok_and(|out| out.status.success()) {
        return Some(());
    }
    skip("no qemu-x86_64");
    None
}

/// One binary runs on every x86-64 processor, from the first ones with SSE2 on, with the best instruction set of each, and writes
/// the same text.
#[test]
fn one_binary_runs_on_old_and_new_processors() {
    if emulator().is_none() {
        return;
    }
    let trike = Trike::new();
    let model = tiny();
    for activations in ["auto", "f32"] {
        let args = [
            "run",
            "-m",
            &model,
            "-p",
            "Once upon a time",
            "-n",
            "12",
            "--temperature",
            "0",
            "--threads",
            "1",
            "--activations",
            activations,
            "--json",
        ];
        let here = trike.json(&args);
        // QEMU has no AVX-512, which this machine may have.
        for (cpu, isa) in
            [("kvm64", "scalar"), ("core2duo", "scalar"), ("Penryn", "sse4.1"), ("Haswell", "avx2")]
        {
            let output = trike.emulated(cpu, &args).output().expect("the emulator starts");
            let stderr = utf8(output.stderr);
            assert_eq!(output.status.code(), Some(0), "{cpu}: {stderr}");
            let there: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            assert_eq!(there["backend"], format!("cpu ({isa}, 1 threads)"), "{cpu}");
            assert_eq!(
                (&there["text"], &there["ids"]),
                (&here["text"], &here["ids"]),
                "{cpu}, {activations}"
            );
        }
    }
}
