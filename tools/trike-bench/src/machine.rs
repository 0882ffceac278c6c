//! The machine and the device that a run belongs to, and the software that ran.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// What makes two runs comparable. What the system does not say is empty or 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Model of the processor.
    pub cpu: String,
    /// Who made it, as the processor says.
    pub vendor: String,
    /// Its family, as the processor says.
    pub family: u32,
    /// Cores that the system offers.
    pub cores: usize,
    /// The best instruction set that the kernels have for it.
    pub isa: String,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Operating system.
    pub os: String,
    /// Version of the kernel, without what a distribution appends.
    pub kernel: String,
    /// Policy of transparent huge pages.
    pub huge_pages: String,
}

/// A device that kernels ran on, and how its operands were kept out of its caches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceFacts {
    /// Name of the adapter.
    pub adapter: String,
    /// Which one it is, as `cuda:0`.
    pub spec: String,
    /// Version of the driver, where it says.
    pub driver: String,
    /// Whether it computes on the host.
    pub software: bool,
    /// Multiprocessors, where it says.
    pub multiprocessors: Option<u32>,
    /// Bytes of memory, where it says.
    pub memory_bytes: Option<u64>,
    /// Bytes that the rotated weights of a kernel take together, in MiB.
    pub rotate_mib: usize,
}

/// What ran, and beside what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Software {
    /// Version of Trike.
    pub version: String,
    /// Version of the compiler.
    pub rustc: String,
    /// Commit of the sources.
    pub commit: String,
    /// Whether the sources had changes that the commit lacks.
    pub modified: bool,
}

impl Machine {
    /// Asks the system; `isa` is the best instruction set that the kernels have for it.
    #[must_use]
    pub fn detect(isa: &str) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let release = read("/etc/os-release");
        let os = field(&release, "PRETTY_NAME", '=').trim_matches('"').to_owned();
        Self {
            cpu: field(&cpuinfo, "model name", ':').to_owned(),
            vendor: field(&cpuinfo, "vendor_id", ':').to_owned(),
            family: field(&cpuinfo, "cpu family", ':').parse().unwrap_or(0),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            isa: isa.to_owned(),
            memory_bytes: memory_bytes(&read("/proc/meminfo")),
            os: if os.is_empty() { std::env::consts::OS.to_owned() } else { os },
            kernel: version(&read("/proc/sys/kernel/osrelease")).to_owned(),
            huge_pages: chosen(&read("/sys/kernel/mm/transparent_hugepage/enabled")).to_owned(),
        }
    }

    /// The name of the folder of its records: processor, cores, instruction set.
    #[must_use]
    pub fn id(&self) -> String {
        let cpu = if self.cpu.is_empty() { std::env::consts::ARCH } else { &self.cpu };
        let family = if self.family == 0 { String::new() } else { format!(" family {}", self.family) };
        folder_name(&format!("{cpu}{family} {} cores {}", self.cores, self.isa))
    }

    /// A machine for tests.
    #[cfg(test)]
    pub(crate) fn example() -> Self {
        Self {
            cpu: "AMD EPYC".to_owned(),
            vendor: "AuthenticAMD".to_owned(),
            family: 26,
            cores: 2,
            isa: "avx512-vnni".to_owned(),
            memory_bytes: 24 << 30,
            os: "Debian GNU/Linux 12 (bookworm)".to_owned(),
            kernel: "6.1.0".to_owned(),
            huge_pages: "madvise".to_owned(),
        }
    }
}

impl DeviceFacts {
    /// Its runtime, which stands for the instruction set in rows.
    #[must_use]
    pub fn runtime(&self) -> &str {
        self.spec.split(':').next().unwrap_or_default()
    }

    /// The name of the folder of its records: adapter, runtime.
    #[must_use]
    pub fn id(&self) -> String {
        folder_name(&format!("{} {}", self.adapter, self.runtime()))
    }

    /// A device for tests.
    #[cfg(test)]
    pub(crate) fn example() -> Self {
        Self {
            adapter: "NVIDIA H200".to_owned(),
            spec: "cuda:0".to_owned(),
            driver: "580".to_owned(),
            software: false,
            multiprocessors: Some(132),
            memory_bytes: Some(141 << 30),
            rotate_mib: 256,
        }
    }
}

/// Words of letters and digits, joined by hyphens.
fn folder_name(text: &str) -> String {
    let text = text.to_lowercase();
    let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-")
}

impl Software {
    /// Asks the compiler and git, in the folder of the sources; a machine without it knows the version alone.
    #[must_use]
    pub fn detect(root: &Path) -> Self {
        let run = |program: &str, args: &[&str]| -> Option<String> {
            let output = Command::new(program).args(args).current_dir(root).output().ok()?;
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            rustc: run("rustc", &["--version"]).unwrap_or_default(),
            commit: run("git", &["rev-parse", "--short=12", "HEAD"]).unwrap_or_default(),
            // What the report itself writes does not change what it measured.
            modified: run(
                "git",
                &[
                    "status",
                    "--porcelain",
                    "--",
                    "crates",
                    "tools",
                    "benches/src",
                    "Cargo.toml",
                    "Cargo.lock",
                ],
            )
            .is_none_or(|changes| !changes.is_empty()),
        }
    }
}

/// Mean number of runnable tasks over the last minute, 0 where the system does not say.
#[must_use]
pub fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|load| load.parse().ok()).unwrap_or(0.0)
}

/// The value of the first line `name SEPARATOR value`.
fn field<'a>(text: &'a str, name: &str, separator: char) -> &'a str {
    let values = text.lines().filter_map(|line| line.split_once(separator));
    values
        .map(|(key, value)| (key.trim(), value.trim()))
        .find(|(key, _)| *key == name)
        .map_or("", |(_, value)| value)
}

fn memory_bytes(meminfo: &str) -> u64 {
    let kib = field(meminfo, "MemTotal", ':').split(' ').next().and_then(|n| n.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

/// The numbers that a version starts with.
fn version(release: &str) -> &str {
    let end = release.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(release.len());
    release[..end].trim_end_matches('.')
}

/// What stands in brackets in a list of choices.
fn chosen(choices: &str) -> &str {
    choices.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or("", |(choice, _)| choice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_s_files_are_read() {
        let cpuinfo =
            "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel name\t: AMD EPYC: x\n";
        assert_eq!(field(cpuinfo, "model name", ':'), "AMD EPYC: x");
        assert_eq!(field(cpuinfo, "cpu family", ':'), "26");
        assert_eq!(field(cpuinfo, "stepping", ':'), "");
        assert_eq!(memory_bytes("MemFree:  1 kB\nMemTotal:       24576 kB\n"), 24 << 20);
        assert_eq!(memory_bytes(""), 0);
        assert_eq!(version("6.1.0-28-amd64\n"), "6.1.0");
        assert_eq!(version("6.1.\n"), "6.1");
        assert_eq!(version(""), "");
        assert_eq!(chosen("always [madvise] never\n"), "madvise");
        assert_eq!(chosen("nothing"), "");
    }

    #[test]
    fn the_name_of_a_machine_is_the_name_of_a_folder() {
        assert_eq!(Machine::example().id(), "amd-epyc-family-26-2-cores-avx512-vnni");
        let intel = Machine { cpu: "Intel(R) Xeon(R) @ 2.10GHz".to_owned(), family: 6, ..Machine::example() };
        assert_eq!(intel.id(), "intel-r-xeon-r-2-10ghz-family-6-2-cores-avx512-vnni");
        assert_eq!(DeviceFacts::example().id(), "nvidia-h200-cuda");
        let here = Machine::detect("scalar");
        assert!(here.cores > 0 && !here.id().contains(['/', '.', ' ']), "{here:?}");
    }
}
