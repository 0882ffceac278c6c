//! What the machine can do at most, measured in the run that is judged by it, and when such a run is void.

use serde::{Deserialize, Serialize};
use trike_cpu::{Cpu, CpuError, probe};

use crate::machine::Machine;
use crate::timing::rounded;

/// What the machine can do at most with a number of threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    /// Threads that the probes ran on.
    pub threads: usize,
    /// Bytes a second from memory.
    pub bytes_per_second: f64,
    /// The loop that reached it.
    pub bytes_variant: String,
    /// Int8 multiply-adds a second.
    pub macs_per_second: f64,
    /// The loop that reached it.
    pub macs_variant: String,
}

/// What one thread of an AVX-512 core of AMD's Zen 5 reads from memory, in bytes a second.
const ZEN5_BYTES: f64 = 41e9;
/// Its int8 multiply-adds a second.
const ZEN5_MACS: f64 = 541e9;
/// The share of these that the ceilings of a run must reach.
const ZEN5_SHARE: f64 = 0.9;
/// AMD's number of the family.
const ZEN5_FAMILY: u32 = 26;

impl Ceilings {
    /// The best of several variants of each probe, with the best instruction set; takes about a second.
    ///
    /// # Errors
    ///
    /// No threads, or no memory for the buffer that the probe reads.
    pub fn measure(threads: usize) -> Result<Self, CpuError> {
        let cpu = Cpu::new(threads)?;
        let (bandwidth, peak) = (probe::memory_bandwidth(&cpu)?, probe::int8_peak(&cpu));
        Ok(Self {
            threads: cpu.threads(),
            bytes_per_second: rounded(bandwidth.best().figure),
            bytes_variant: bandwidth.best().name.to_owned(),
            macs_per_second: rounded(peak.best().figure),
            macs_variant: peak.best().name.to_owned(),
        })
    }

    /// Keeps the higher of two measurements of each figure; a ceiling that was not reached once is still one.
    pub fn raise(&mut self, other: Self) {
        if other.bytes_per_second > self.bytes_per_second {
            (self.bytes_per_second, self.bytes_variant) = (other.bytes_per_second, other.bytes_variant);
        }
        if other.macs_per_second > self.macs_per_second {
            (self.macs_per_second, self.macs_variant) = (other.macs_per_second, other.macs_variant);
        }
    }
}

/// Measures the ceilings of each number of threads and raises what `found` has of it.
///
/// # Errors
///
/// As [`Ceilings::measure`].
pub fn raise_all(found: &mut Vec<Ceilings>, threads: &[usize]) -> Result<(), CpuError> {
    for &threads in threads {
        let now = Ceilings::measure(threads)?;
        match found.iter_mut().find(|c| c.threads == now.threads) {
            Some(best) => best.raise(now),
            None => found.push(now),
        }
    }
    Ok(())
}

/// Why a run says nothing: on a Zen 5 core with AVX-512 its ceilings must reach nine tenths of what such a core can do,
/// for each thread, or something else had the machine.
#[must_use]
pub fn void_reasons(machine: &Machine, ceilings: &[Ceilings]) -> Vec<String> {
    let zen5 = machine.vendor == "AuthenticAMD" && machine.family == ZEN5_FAMILY;
    if !zen5 || !machine.isa.starts_with("avx512") {
        return Vec::new();
    }
    let mut reasons = Vec::new();
    for c in ceilings {
        for (what, got, one, unit) in [
            ("memory bandwidth", c.bytes_per_second, ZEN5_BYTES, "GB/s"),
            ("int8 peak", c.macs_per_second, ZEN5_MACS, "GMAC/s"),
        ] {
            let least = ZEN5_SHARE * one * c.threads as f64;
            if got < least {
                reasons.push(format!(
                    "{what} with {}: {:.1} {unit}, expected at least {:.1}",
                    threads(c.threads),
                    got / 1e9,
                    least / 1e9
                ));
            }
        }
    }
    reasons
}

/// `1 thread`, `2 threads`.
pub(crate) fn threads(n: usize) -> String {
    format!("{n} thread{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ceilings(threads: usize, bytes_per_second: f64, macs_per_second: f64) -> Ceilings {
        let (bytes_variant, macs_variant) = ("a".to_owned(), "b".to_owned());
        Ceilings { threads, bytes_per_second, bytes_variant, macs_per_second, macs_variant }
    }

    #[test]
    fn the_higher_figure_of_each_kind_counts() {
        let mut best = ceilings(2, 3.0, 4.0);
        best.raise(Ceilings {
            bytes_variant: "c".to_owned(),
            macs_variant: "d".to_owned(),
            ..ceilings(2, 2.0, 5.0)
        });
        assert_eq!(best, Ceilings { macs_variant: "d".to_owned(), ..ceilings(2, 3.0, 5.0) });
    }

    #[test]
    fn ceilings_are_positive_numbers() {
        let mut found = Vec::new();
        raise_all(&mut found, &[1, 1]).expect("one thread and 256 MiB");
        assert_eq!((found.len(), found[0].threads), (1, 1));
        assert!(found[0].bytes_per_second > 1e6 && found[0].macs_per_second > 1e6, "{found:?}");
    }

    #[test]
    fn a_run_is_void_below_nine_tenths_a_thread_of_a_known_core() {
        let machine = Machine::example();
        let (bytes, macs) = (0.9 * 41e9, 0.9 * 541e9);
        for threads in [1, 2] {
            let n = threads as f64;
            assert_eq!(void_reasons(&machine, &[ceilings(threads, n * bytes, n * macs)]), [""; 0]);
            assert_eq!(
                void_reasons(&machine, &[ceilings(threads, n * bytes + 1.0, n * macs + 1.0)]),
                [""; 0]
            );
            let slow =
                [ceilings(threads, n * bytes - 1.0, n * macs), ceilings(threads, n * bytes, n * macs - 1e3)];
            assert_eq!(void_reasons(&machine, &slow).len(), 2);
        }
        assert_eq!(
            void_reasons(&machine, &[ceilings(2, 50e9, 1080e9)]),
            ["memory bandwidth with 2 threads: 50.0 GB/s, expected at least 73.8"]
        );
        for other in [
            Machine { vendor: "GenuineIntel".to_owned(), ..machine.clone() },
            Machine { family: 25, ..machine.clone() },
            Machine { isa: "avx2".to_owned(), ..machine },
        ] {
            assert_eq!(void_reasons(&other, &[ceilings(1, 1.0, 1.0)]), [""; 0], "nothing is known of it");
        }
    }
}
