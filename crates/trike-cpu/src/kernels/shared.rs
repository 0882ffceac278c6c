//! Instruction sets that differ from another one only in integer products: loops are compiled for them, float kernels are shared.

use trike_host::Loop;
use trike_host::isa::{AvxVnni, Sse41};

use super::Kernels;

impl Kernels for AvxVnni {
    fn run<L: Loop>(self, task: L) -> L::Output {
        // SAFETY: the token is created only on a CPU with every feature below.
        unsafe { run_vnni(task) }
    }
}

#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn run_vnni<L: Loop>(task: L) -> L::Output {
    task.run()
}

impl Kernels for Sse41 {
    fn run<L: Loop>(self, task: L) -> L::Output {
        // SAFETY: the token is created only on a CPU with every feature below.
        unsafe { run_sse(task) }
    }
}

#[target_feature(enable = "ssse3,sse4.1")]
fn run_sse<L: Loop>(task: L) -> L::Output {
    task.run()
}
