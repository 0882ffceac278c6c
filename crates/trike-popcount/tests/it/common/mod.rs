//! Shared by the tests of trit planes: the executors that they run on.
use trike_host::{Cpu, Isa};

/// Every instruction set, with one thread and with three.
pub(crate) fn cpus() -> Vec<Cpu> {
    let cpu = |isa, threads| Cpu::with_isa(isa, threads).expect("a few threads");
    Isa::available().into_iter().flat_map(|isa| [cpu(isa, 1), cpu(isa, 3)]).collect()
}

pub(crate) fn describe(cpu: &Cpu) -> String {
    format!("{} with {} threads", cpu.isa(), cpu.threads())
}
