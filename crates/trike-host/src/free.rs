//! Memory available to this process: limited by the machine, its control group, and its address space.

use std::{fs, path::Path};

/// A limit on the memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryLimit {
    /// The machine: memory that is free or used only as file cache.
    Machine,
    /// A control group, such as a container's.
    Group,
    /// The address space of the process (`ulimit -v`). Mapped files count too.
    AddressSpace,
}

impl MemoryLimit {
    /// A short name: `this machine`, `its control group`, `its address space (ulimit -v)`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Machine => "this machine",
            Self::Group => "its control group",
            Self::AddressSpace => "its address space (ulimit -v)",
        }
    }
}

/// The bytes still available to this process under each limit that the system reports; currently on Linux only.
///
/// ```
/// for (limit, bytes) in trike_host::free_memory() {
///     println!("{}: {bytes} bytes", limit.name());
/// }
/// ```
pub fn free_memory() -> Vec<(MemoryLimit, u64)> {
    let read = |path: &Path| fs::read_to_string(path).ok();
    let machine = read(Path::new("/proc/meminfo")).and_then(|text| kilobytes(&text, "MemAvailable:"));
    let group = read(Path::new("/proc/self/cgroup")).and_then(|groups| group(&groups, &read));
    let limits = read(Path::new("/proc/self/limits")).and_then(|text| address_space(&text));
    let used = read(Path::new("/proc/self/status")).and_then(|text| kilobytes(&text, "VmSize:"));
    let space = limits.zip(used).map(|(limit, used)| limit.saturating_sub(used));
    let all =
        [(MemoryLimit::Machine, machine), (MemoryLimit::Group, group), (MemoryLimit::AddressSpace, space)];
    all.into_iter().filter_map(|(limit, bytes)| Some((limit, bytes?))).collect()
}

/// The bytes of a line such as `MemAvailable:  123 kB`.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The soft limit of the address space, in bytes; `None` without one.
fn address_space(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The bytes available in the tightest of the process's control groups.
fn group(groups: &str, read: &dyn Fn(&Path) -> Option<String>) -> Option<u64> {
    let number = |path: &Path| read(path)?.trim().parse::<u64>().ok();
    // File cache is reclaimed when memory is short.
    let files = |path: &Path, names: [&str; 2]| {
        let stat = read(path).unwrap_or_default();
        let of = |name| stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        names.into_iter().filter_map(of).sum::<u64>()
    };
    let mut least: Option<u64> = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, Some(kinds), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let (root, limit, used, names) = match kinds {
            "" => ("/sys/fs/cgroup", "memory.max", "memory.current", ["inactive_file ", "active_file "]),
            _ if kinds.split(',').any(|kind| kind == "memory") => (
                "/sys/fs/cgroup/memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                ["total_inactive_file ", "total_active_file "],
            ),
            _ => continue,
        };
        // A group is also limited by its ancestors. In a container, the path may be that of the host, with its own group mounted as
        // the root.
        let own = Path::new(root).join(path.trim_start_matches('/'));
        for folder in own.ancestors().take_while(|folder| folder.starts_with(root)) {
            let Some(limit) = number(&folder.join(limit)) else { continue };
            let used = number(&folder.join(used)).unwrap_or(0);
            let files = files(&folder.join("memory.stat"), names);
            let left = limit.saturating_sub(used.saturating_sub(files));
            least = Some(least.map_or(left, |least| least.min(left)));
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_from_what_linux_prints() {
        let meminfo = "MemTotal:       24000000 kB\nMemFree:  1 kB\nMemAvailable:   20000000 kB\n";
        assert_eq!(kilobytes(meminfo, "MemAvailable:"), Some(20_000_000 * 1024));
        assert_eq!(kilobytes(meminfo, "SwapFree:"), None);
        let limits = |value| {
            format!(
                "Max cpu time     unlimited  unlimited  seconds\nMax address space         {value}   unlimited   bytes\n"
            )
        };
        assert_eq!(address_space(&limits("1228800000")), Some(1_228_800_000));
        assert_eq!(address_space(&limits("unlimited")), None);
    }

    #[test]
    fn the_tightest_group_counts_without_cached_files() {
        let files = |path: &Path| {
            let text = match path.to_str()? {
                "/sys/fs/cgroup/a/b/memory.max" => "max\n",
                "/sys/fs/cgroup/a/memory.max" => "1000\n",
                "/sys/fs/cgroup/a/memory.current" => "900\n",
                "/sys/fs/cgroup/a/memory.stat" => "anon 500\ninactive_file 300\nactive_file 100\n",
                "/sys/fs/cgroup/memory/c/memory.limit_in_bytes" => "5000",
                _ => return None,
            };
            Some(text.to_owned())
        };
        assert_eq!(group("0::/a/b\n", &files), Some(500));
        assert_eq!(group("5:cpu,memory:/c\n1:cpu:/a\n", &files), Some(5000));
        assert_eq!(group("5:cpu,memory:/c\n0::/a\n", &files), Some(500));
        assert_eq!(group("0::/d\n", &files), None);
        assert_eq!(group("nonsense", &files), None);
    }
}
