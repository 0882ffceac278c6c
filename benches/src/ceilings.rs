//! Peak rates of the host, measured in the same run as the kernels, and the check that invalidates disturbed runs.

use trike_bench::{Ceiling, Limit, Machine, raise, rounded, threads_text};
use trike_cpu::{Cpu, CpuError, probe};

/// Read bandwidth of one thread on an AMD Zen 5 core with AVX-512, in bytes per second.
const ZEN5_BYTES: f64 = 41e9;
/// Its int8 multiply-adds per second.
const ZEN5_MACS: f64 = 541e9;
/// Fraction of these that the ceilings of a valid run must reach.
const ZEN5_SHARE: f64 = 0.9;
/// CPU family of Zen 5.
const ZEN5_FAMILY: u32 = 26;

/// Measures the ceilings for each number of threads and merges them into `found`, keeping the higher values: the best of
/// several variants of each probe, with the best instruction set; about one second each.
///
/// # Errors
///
/// If threads cannot be started or the probe's buffer cannot be allocated.
pub fn raise_all(found: &mut Vec<Ceiling>, threads: &[usize]) -> Result<(), CpuError> {
    for &threads in threads {
        let cpu = Cpu::new(threads)?;
        let (bandwidth, peak) = (probe::memory_bandwidth(&cpu)?, probe::int8_peak(&cpu));
        for (limit, best) in [(Limit::Memory, bandwidth.best()), (Limit::Int8, peak.best())] {
            let (per_second, variant) = (rounded(best.figure), best.name.to_owned());
            raise(found, Ceiling { limit, threads: cpu.threads(), per_second, variant });
        }
    }
    Ok(())
}

/// Reasons why a run is void. On Zen 5 with AVX-512 the ceilings must reach 90 % of the known peak per thread; lower values
/// mean that the machine was busy. Other machines are not checked.
#[must_use]
pub fn void_reasons(machine: &Machine, ceilings: &[Ceiling]) -> Vec<String> {
    let zen5 = machine.vendor == "AuthenticAMD" && machine.family == ZEN5_FAMILY;
    if !zen5 || !machine.isa.starts_with("avx512") {
        return Vec::new();
    }
    let mut reasons = Vec::new();
    for c in ceilings {
        let (what, one, unit) = match c.limit {
            Limit::Memory => ("memory bandwidth", ZEN5_BYTES, "GB/s"),
            Limit::Int8 => ("int8 peak", ZEN5_MACS, "GMAC/s"),
            Limit::F16 => continue,
        };
        let least = ZEN5_SHARE * one * c.threads as f64;
        if c.per_second < least {
            reasons.push(format!(
                "{what} with {}: {:.1} {unit}, expected at least {:.1}",
                threads_text(c.threads),
                c.per_second / 1e9,
                least / 1e9
            ));
        }
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ceilings(threads: usize, bytes: f64, macs: f64) -> [Ceiling; 2] {
        [(Limit::Memory, bytes), (Limit::Int8, macs)].map(|(limit, per_second)| Ceiling {
            limit,
            threads,
            per_second,
            variant: String::new(),
        })
    }

    /// What the system says of a core of Zen 5.
    fn zen5() -> Machine {
        Machine {
            vendor: "AuthenticAMD".to_owned(),
            family: 26,
            isa: "avx512-vnni".to_owned(),
            ..Machine::detect("")
        }
    }

    #[test]
    fn ceilings_are_positive_numbers() {
        let mut found = Vec::new();
        raise_all(&mut found, &[1, 1]).expect("one thread and 256 MiB");
        let limits: Vec<_> = found.iter().map(|c| (c.limit, c.threads)).collect();
        assert_eq!(limits, [(Limit::Memory, 1), (Limit::Int8, 1)]);
        assert!(found.iter().all(|c| c.per_second > 1e6), "{found:?}");
    }

    #[test]
    fn a_run_is_void_below_nine_tenths_a_thread_of_a_known_core() {
        let machine = zen5();
        let (bytes, macs) = (0.9 * 41e9, 0.9 * 541e9);
        for threads in [1, 2] {
            let n = threads as f64;
            assert_eq!(void_reasons(&machine, &ceilings(threads, n * bytes, n * macs)), [""; 0]);
            assert_eq!(void_reasons(&machine, &ceilings(threads, n * bytes + 1.0, n * macs + 1.0)), [""; 0]);
            assert_eq!(void_reasons(&machine, &ceilings(threads, n * bytes - 1.0, n * macs)).len(), 1);
            assert_eq!(void_reasons(&machine, &ceilings(threads, n * bytes, n * macs - 1e3)).len(), 1);
        }
        assert_eq!(
            void_reasons(&machine, &ceilings(2, 50e9, 1080e9)),
            ["memory bandwidth with 2 threads: 50.0 GB/s, expected at least 73.8"]
        );
        for other in [
            Machine { vendor: "GenuineIntel".to_owned(), ..machine.clone() },
            Machine { family: 25, ..machine.clone() },
            Machine { isa: "avx2".to_owned(), ..machine },
        ] {
            assert_eq!(void_reasons(&other, &ceilings(1, 1.0, 1.0)), [""; 0], "nothing is known of it");
        }
    }
}
