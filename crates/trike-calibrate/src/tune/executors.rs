//! The executors of tuning.

use trike_autodiff::TapeEngine;
use trike_cpu::Cpu;

/// The executors of tuning: tapes and losses run on `engine`; rounding and updates of latent weights, scales and norms on `cpu`. On
/// the host both are the same.
#[derive(Debug)]
pub(crate) struct Executors<'a, E: TapeEngine> {
    pub(crate) cpu: &'a Cpu,
    pub(crate) engine: &'a E,
}

impl<E: TapeEngine> Clone for Executors<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E: TapeEngine> Copy for Executors<'_, E> {}

impl<'a> Executors<'a, Cpu> {
    /// Everything on the host.
    pub(crate) fn host(cpu: &'a Cpu) -> Self {
        Self { cpu, engine: cpu }
    }
}
