//! The default number of threads.
//!
//! Two hardware threads of one core share its vector units and caches, so the kernels gain nothing from the second, and every
//! hand-over waits for both. The default is therefore one thread per physical core.

use std::fs;
use std::num::NonZero;
use std::thread;

/// Larger CPU numbers are rejected: far above any machine, but it bounds the memory of a parsed list.
const MAX_CPU: usize = 1 << 16;

/// Number of physical cores within the process's affinity mask and control-group quota; at least one.
///
/// Only Linux reports which CPUs share a core. Elsewhere, and if the files cannot be read, logical CPUs are counted.
pub(crate) fn default_threads() -> usize {
    // On Linux this number already respects the mask and the quota.
    let logical = thread::available_parallelism().map_or(1, NonZero::get);
    physical_cores().map_or(logical, |cores| cores.clamp(1, logical))
}

/// Number of physical cores with at least one CPU in the affinity mask.
fn physical_cores() -> Option<usize> {
    // The mask is a property of a thread. New threads inherit it from the thread that starts them, which is this one.
    let status = fs::read_to_string("/proc/thread-self/status").ok()?;
    let siblings = |cpu: usize| {
        let folder = format!("/sys/devices/system/cpu/cpu{cpu}/topology");
        // The second is an older name of the same list.
        ["core_cpus_list", "thread_siblings_list"]
            .iter()
            .find_map(|name| parse_list(&fs::read_to_string(format!("{folder}/{name}")).ok()?))
    };
    count_cores(&parse_list(allowed_list(&status)?)?, siblings)
}

/// The affinity mask in the text of a `status` file.
fn allowed_list(status: &str) -> Option<&str> {
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
}

/// Parses the kernel's format of CPU sets, such as `0-3,8`, into numbers in the order of the text.
fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last > MAX_CPU || cpus.len() > MAX_CPU {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// Number of distinct cores of these CPUs, given the siblings of each; `None` if they are unknown for any CPU.
fn count_cores(allowed: &[usize], siblings: impl Fn(usize) -> Option<Vec<usize>>) -> Option<usize> {
    let mut cores = Vec::with_capacity(allowed.len());
    for &cpu in allowed {
        // The lowest CPU represents its core. A list that lacks the CPU itself is invalid.
        let siblings = siblings(cpu).filter(|siblings| siblings.contains(&cpu))?;
        cores.extend(siblings.into_iter().min());
    }
    cores.sort_unstable();
    cores.dedup();
    (!cores.is_empty()).then_some(cores.len())
}

#[cfg(test)]
mod tests {
    use super::{MAX_CPU, allowed_list, count_cores, default_threads, parse_list};

    #[test]
    fn lists_of_cpus() {
        let above = format!("0-{}", MAX_CPU + 1);
        let many = vec![format!("0-{MAX_CPU}"); 3].join(",");
        for (text, want) in [
            ("0\n", Some(vec![0])),
            ("0-1", Some(vec![0, 1])),
            ("\t0-2,8,10-11\n", Some(vec![0, 1, 2, 8, 10, 11])),
            ("", None),
            ("\n", None),
            ("a", None),
            ("1-", None),
            ("-1", None),
            ("3-1", None),
            ("1,,2", None),
            ("0-18446744073709551616", None),
            (above.as_str(), None),
            (many.as_str(), None),
        ] {
            assert_eq!(parse_list(text), want, "{text:?}");
        }
        assert_eq!(parse_list(&MAX_CPU.to_string()), Some(vec![MAX_CPU]));
    }

    #[test]
    fn the_mask_of_a_status_file() {
        let status = "Name:\tcat\nCpus_allowed:\t3\nCpus_allowed_list:\t0-1,4\nMems_allowed_list:\t0\n";
        assert_eq!(allowed_list(status).and_then(parse_list), Some(vec![0, 1, 4]));
        assert_eq!(allowed_list("Name:\tcat\nCpus_allowed:\t3\n"), None);
    }

    #[test]
    fn cores_are_counted_once() {
        // Four cores with two CPUs each, numbered as on most servers: CPU n and n + 4 share a core.
        let servers = |cpu: usize| Some(vec![cpu % 4, cpu % 4 + 4]);
        // Numbered as on most laptops: two performance cores with two CPUs each, and two with one.
        let laptop = |cpu: usize| parse_list(["0-1", "0-1", "2-3", "2-3", "4", "5"].get(cpu)?);
        for (allowed, want) in
            [("0-7", Some(4)), ("0-3", Some(4)), ("4-7", Some(4)), ("1,5", Some(1)), ("1,5,6", Some(2))]
        {
            assert_eq!(count_cores(&parse_list(allowed).expect("a list"), servers), want, "{allowed}");
        }
        for (allowed, want) in [("0-5", Some(4)), ("0-1", Some(1)), ("1,3-4", Some(3)), ("0-6", None)] {
            assert_eq!(count_cores(&parse_list(allowed).expect("a list"), laptop), want, "{allowed}");
        }
        assert_eq!(count_cores(&[], servers), None);
        assert_eq!(count_cores(&[0], |_| Some(vec![1])), None, "a list without the CPU itself");
    }

    #[test]
    fn the_default_is_at_most_the_logical_cpus() {
        let logical = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        assert!((1..=logical).contains(&default_threads()));
    }
}
