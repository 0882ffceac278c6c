//! What this machine can do at most: the ceilings that shares are taken of.
//!
//! Each probe runs several variants of the same idea, because which one is fastest depends on the machine, and reports
//! them all; the ceiling is the best. A probe takes a few tenths of a second.
//!
//! ```
//! use trike_cpu::{Cpu, probe};
//!
//! let peak = probe::int8_peak(&Cpu::new(1)?);
//! assert!(peak.best().figure > 0.0);
//! # Ok::<(), trike_cpu::CpuError>(())
//! ```

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::error::{CpuError, Result};
use crate::isa::with_kernels;
use crate::kernels::Kernels;
use crate::line::Line;
use crate::pool::{Cpu, ranges};

/// One way to reach for a ceiling.
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    /// What it does.
    pub name: &'static str,
    /// What it reached, in the unit of its [`Probe`].
    pub figure: f64,
}

/// The outcome of a probe: at least one variant.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// Unit of the figures: `bytes/s` or `MAC/s`.
    pub unit: &'static str,
    /// Threads that ran together.
    pub threads: usize,
    /// All that was tried, in a fixed order.
    pub variants: Vec<Variant>,
}

impl Probe {
    /// The fastest variant: the ceiling that shares are taken of. A probe without variants, which none made here is,
    /// reached nothing.
    #[must_use]
    pub fn best(&self) -> &Variant {
        const NOTHING: &Variant = &Variant { name: "none", figure: 0.0 };
        self.variants.iter().fold(NOTHING, |best, v| if v.figure > best.figure { v } else { best })
    }
}

/// Bytes that are read: far beyond any last-level cache that a core can fill alone.
const BUFFER_BYTES: usize = 256 << 20;
/// Times that the buffer is read by each variant; the fastest counts.
const PASSES: usize = 6;
/// How far the prefetching variants ask ahead, in lines.
const AHEAD: usize = 64;
/// How long a loop must take to be measured.
const LONG_ENOUGH: Duration = Duration::from_millis(8);

/// Eight u64: a line to be read.
pub(crate) type WordLine = Line<[u64; 8]>;

/// Bytes a second that all threads of `cpu` read from memory together.
///
/// # Errors
///
/// [`CpuError::Memory`] when the buffer of 256 MiB cannot be had.
pub fn memory_bandwidth(cpu: &Cpu) -> Result<Probe> {
    let lines = BUFFER_BYTES / size_of::<WordLine>();
    let mut buffer: Vec<WordLine> = Vec::new();
    buffer.try_reserve_exact(lines).map_err(|_| CpuError::Memory { requested: BUFFER_BYTES })?;
    // Written, because pages that were never written all are the same page of zeros.
    buffer.resize(lines, Line([1; 8]));
    let variants = with_kernels!(cpu.isa(), kernels => vec![
        Variant { name: "one stream", figure: read(cpu, &buffer, |part| kernels.read::<1>(part, 0)) },
        Variant { name: "one stream, prefetched", figure: read(cpu, &buffer, |part| kernels.read::<1>(part, AHEAD)) },
        Variant { name: "four streams, prefetched", figure: read(cpu, &buffer, |part| kernels.read::<4>(part, AHEAD)) },
        Variant { name: "eight streams", figure: read(cpu, &buffer, |part| kernels.read::<8>(part, 0)) },
    ]);
    Ok(Probe { unit: "bytes/s", threads: cpu.threads(), variants })
}

/// The best rate of a few passes over the buffer, a contiguous slice a thread.
fn read(cpu: &Cpu, buffer: &[WordLine], sum: impl Fn(&[WordLine]) -> u64 + Sync) -> f64 {
    let pass = || {
        let tasks: Vec<_> = ranges(buffer.len(), cpu.threads()).map(|range| &buffer[range]).collect();
        let start = Instant::now();
        cpu.pool().run(tasks, |part| {
            black_box(sum(black_box(part)));
        });
        size_of_val(buffer) as f64 / start.elapsed().as_secs_f64().max(f64::MIN_POSITIVE)
    };
    (0..PASSES).map(|_| pass()).fold(0.0, f64::max)
}

/// A loop of int8 multiply-adds that stays in registers.
pub(crate) struct Peak<K> {
    /// The instructions.
    pub(crate) name: &'static str,
    /// Multiply-adds of one step.
    pub(crate) macs: u64,
    /// Runs so many steps.
    pub(crate) run: fn(K, u64),
}

/// Int8 multiply-adds a second that all threads of `cpu` reach together, weights and activations in registers.
#[must_use]
pub fn int8_peak(cpu: &Cpu) -> Probe {
    let variants = with_kernels!(cpu.isa(), kernels => peaks(cpu, kernels));
    Probe { unit: "MAC/s", threads: cpu.threads(), variants }
}

fn peaks<K: Kernels>(cpu: &Cpu, kernels: K) -> Vec<Variant> {
    let measure = |peak: &Peak<K>| {
        let time = |steps: u64| {
            let start = Instant::now();
            cpu.pool().run(vec![(); cpu.threads()], |()| (peak.run)(kernels, steps));
            start.elapsed()
        };
        // Doubling also gives the clock time to rise.
        let mut steps = 1024;
        while time(steps) < LONG_ENOUGH {
            steps *= 2;
        }
        let fastest = (0..4).map(|_| time(steps).as_secs_f64()).fold(f64::INFINITY, f64::min);
        Variant { name: peak.name, figure: (steps * peak.macs) as f64 * cpu.threads() as f64 / fastest }
    };
    kernels.peaks().iter().map(measure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    #[test]
    fn every_variant_of_every_isa_reports_something() {
        for isa in Isa::available() {
            let cpu = Cpu::with_isa(isa, 2).expect("two threads");
            let peak = int8_peak(&cpu);
            assert!(peak.variants.iter().all(|v| v.figure.is_finite() && v.figure > 1e6), "{isa}: {peak:?}");
            assert!(peak.variants.iter().all(|v| v.figure <= peak.best().figure));
        }
        let bandwidth = memory_bandwidth(&Cpu::new(2).expect("two threads")).expect("256 MiB");
        assert_eq!(bandwidth.variants.len(), 4);
        assert!(bandwidth.variants.iter().all(|v| v.figure.is_finite() && v.figure > 1e6), "{bandwidth:?}");
    }
}
