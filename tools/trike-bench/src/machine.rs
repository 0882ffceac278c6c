//! Machine, device and software of a run.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// The machine of a run; only runs on the same machine are compared. Unknown fields are empty or 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// CPU model name.
    pub cpu: String,
    /// CPU vendor (`vendor_id`).
    pub vendor: String,
    /// CPU family.
    pub family: u32,
    /// Available logical CPUs.
    pub cores: usize,
    /// Best instruction set supported by the CPU and the kernels.
    pub isa: String,
    /// Main memory, in bytes.
    pub memory_bytes: u64,
    /// Operating system.
    pub os: String,
    /// OS kernel version, without the distribution's suffix.
    pub kernel: String,
    /// Policy of transparent huge pages.
    pub huge_pages: String,
}

/// The device that kernels ran on, and how weights were kept out of its caches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceFacts {
    /// Name of the adapter.
    pub adapter: String,
    /// Runtime and index, such as `cuda:0`.
    pub spec: String,
    /// Driver version; empty if unknown.
    pub driver: String,
    /// True for a software device, which computes on the host.
    pub software: bool,
    /// Number of multiprocessors, if known.
    pub multiprocessors: Option<u32>,
    /// Device memory in bytes, if known.
    pub memory_bytes: Option<u64>,
    /// Total size of the copies of the weights that launches cycle through, in MiB.
    pub rotate_mib: usize,
}

/// Versions of Trike and of the compiler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Software {
    /// Version of Trike.
    pub version: String,
    /// Version of rustc.
    pub rustc: String,
    /// Commit of the sources.
    pub commit: String,
    /// Whether the sources had uncommitted changes.
    pub modified: bool,
}

impl Machine {
    /// Queries the system; `isa` is the best instruction set supported by the CPU and the kernels.
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

    /// Folder name of its records: CPU, cores, instruction set.
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
    /// Its runtime, used as the instruction set in rows.
    #[must_use]
    pub fn runtime(&self) -> &str {
        self.spec.split(':').next().unwrap_or_default()
    }

    /// Folder name of its records: adapter, runtime.
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

/// The alphanumeric words of `text` in lower case, joined by hyphens.
fn folder_name(text: &str) -> String {
    let text = text.to_lowercase();
    let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-")
}

impl Software {
    /// Queries rustc and git in the source folder `root`; without them only `version` is known.
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
            // Files written by the report itself do not affect the measurement.
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

/// Load average over the last minute, or 0 if unknown.
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

/// The leading numeric part of a version.
fn version(release: &str) -> &str {
    let end = release.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(release.len());
    release[..end].trim_end_matches('.')
}

/// The choice in brackets in a list of choices.
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
