//! Which ranks share a machine.

use crate::{CommError, Communicator};

/// Maximum size of a host name with a CPU set, in bytes.
const MOST: usize = 1 << 16;

/// Where a rank runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankPlace {
    /// Host name; empty if unknown.
    pub host: String,
    /// Number of ranks on that host, including this one.
    pub on_host: usize,
    /// Number of ranks with the same CPU set on that host, including this one: each should use that fraction of the CPUs for its
    /// threads.
    pub sharing: usize,
}

/// Host and CPU sharing of each rank. A collective call.
///
/// # Errors
///
/// Errors of messages.
pub fn rank_places<C: Communicator + ?Sized>(comm: &C) -> Result<Vec<RankPlace>, CommError> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let (host, status) = (read("/proc/sys/kernel/hostname"), read("/proc/self/status"));
    let processors = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed:")).unwrap_or("");
    let own = [host.trim(), processors.trim()].join("\n");
    let all = comm.all_gather(own.as_bytes(), MOST)?;
    let all: Vec<String> = all.iter().map(|one| String::from_utf8_lossy(one).into_owned()).collect();
    let host = |one: &str| one.split('\n').next().unwrap_or("").to_owned();
    let places = all.iter().map(|one| RankPlace {
        host: host(one),
        on_host: all.iter().filter(|other| host(other) == host(one)).count(),
        sharing: all.iter().filter(|other| *other == one).count(),
    });
    Ok(places.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_a_process_share_it() {
        for places in crate::Threads::run(3, |comm| rank_places(&comm).expect("places")) {
            assert_eq!(places.iter().map(|p| (p.on_host, p.sharing)).collect::<Vec<_>>(), [(3, 3); 3]);
        }
    }
}
