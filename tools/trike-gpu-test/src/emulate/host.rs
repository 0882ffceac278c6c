//! The host's C++ compiler, and kernels compiled to programs.

use anyhow::{Context, Result, anyhow, bail, ensure};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::source::Source;

const HEADER: &str = include_str!("runtime.h");
const RUNTIME: &str = include_str!("runtime.cpp");

/// No optimization: kernels run for milliseconds but compile for seconds. All accesses and shifts are checked.
/// Emulated threads have their own stacks, which the address sanitizer would report as corrupted.
const FLAGS: &[&str] = &[
    "-std=c++17",
    "-w",
    "-fno-strict-aliasing",
    "-fsanitize=address,alignment,bounds,signed-integer-overflow,shift,integer-divide-by-zero",
    "-fno-sanitize-recover=all",
    "--param",
    "asan-stack=0",
    "-fno-stack-protector",
];

/// What a compiler may do with a product that is added to something: NVRTC joins the two to one operation that rounds once, where
/// it sees them, and rounds twice where it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Contraction {
    /// Every operation rounds, but for those that are written as `fma`.
    Off,
    /// The compiler joins what it can, which takes it an optimization.
    On,
}

impl Contraction {
    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Off => &["-O0", "-ffp-contract=off"],
            Self::On => &["-O1", "-ffp-contract=fast", "-mfma"],
        }
    }
}

/// The compiler, the runtime, and the compiled programs.
pub(super) struct Host {
    folder: PathBuf,
    contraction: Contraction,
    programs: Mutex<HashMap<u64, Program>>,
    times: Mutex<Times>,
}

/// A program, or the reason why it is missing; concurrent requests wait.
type Program = Arc<OnceLock<std::result::Result<PathBuf, String>>>;

/// Time breakdown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    /// Number of compiled kernels.
    pub(super) kernels: usize,
    /// Compile time, summed over threads.
    pub(super) compile: Duration,
    /// Number of launches.
    pub(super) launches: usize,
    /// Run time, summed over threads.
    pub(super) run: Duration,
}

/// One launch, in the input format of the runtime.
pub(super) struct Run<'a> {
    /// Contents of the distinct buffers.
    pub(super) buffers: &'a [&'a [u8]],
    /// The buffer index of each argument.
    pub(super) arguments: &'a [usize],
    /// The by-value argument.
    pub(super) info: &'a [u8],
    pub(super) cubes: [u32; 3],
    pub(super) threads: [u32; 3],
    /// Bytes of shared memory.
    pub(super) shared: usize,
}

impl Host {
    /// Compiles the runtime into a folder, which is cleared first.
    ///
    /// # Errors
    /// When g++ or its sanitizers are missing, or the runtime does not support the machine: the reason why nothing can
    /// be emulated.
    pub(super) fn new(folder: &Path, contraction: Contraction) -> Result<Self> {
        ensure!(cfg!(target_arch = "x86_64"), "emulation requires x86-64");
        let version = Command::new("g++").arg("--version").output();
        ensure!(version.is_ok_and(|v| v.status.success()), "g++ not found");
        let _ = std::fs::remove_dir_all(folder);
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        std::fs::write(folder.join("runtime.h"), HEADER)?;
        std::fs::write(folder.join("runtime.cpp"), RUNTIME)?;
        let (programs, times) = (Mutex::default(), Mutex::default());
        let host = Self { folder: folder.to_owned(), contraction, programs, times };
        host.compile(&["-c", "runtime.cpp", "-o", "runtime.o"])
            .context("g++ does not compile the runtime")?;
        Ok(host)
    }

    /// The program of a kernel; identical sources are compiled once.
    pub(super) fn program(&self, source: &Source) -> Result<PathBuf> {
        let mut hasher = DefaultHasher::new();
        source.text.hash(&mut hasher);
        let key = hasher.finish();
        let cell = lock(&self.programs).entry(key).or_default().clone();
        let program = cell.get_or_init(|| self.build(key, &source.text).map_err(|e| format!("{e:#}")));
        program.clone().map_err(|e| anyhow!("{e}"))
    }

    fn build(&self, key: u64, text: &str) -> Result<PathBuf> {
        let (cpp, program) = (format!("{key:016x}.cpp"), format!("{key:016x}"));
        std::fs::write(self.folder.join(&cpp), text)?;
        let start = Instant::now();
        self.compile(&[&cpp, "runtime.o", "-o", &program])?;
        let mut times = lock(&self.times);
        times.kernels += 1;
        times.compile += start.elapsed();
        Ok(self.folder.join(program))
    }

    fn compile(&self, arguments: &[&str]) -> Result<()> {
        let output = Command::new("g++")
            .args(FLAGS)
            .args(self.contraction.flags())
            .args(arguments)
            .current_dir(&self.folder)
            .output()?;
        if !output.status.success() {
            bail!("g++ {}: {}", arguments.join(" "), beginning(&output.stderr));
        }
        Ok(())
    }

    /// Runs a program and returns the buffers that it wrote.
    ///
    /// # Errors
    /// Errors detected by the runtime or a sanitizer.
    pub(super) fn run(&self, program: &Path, name: &str, run: &Run<'_>) -> Result<Vec<Vec<u8>>> {
        let (from, to) = (self.folder.join(format!("{name}.in")), self.folder.join(format!("{name}.out")));
        let _ = std::fs::remove_file(&to);
        std::fs::write(&from, run.words()?)?;
        let start = Instant::now();
        let output =
            Command::new(program).arg(&from).arg(&to).env("ASAN_OPTIONS", "detect_leaks=0").output()?;
        let mut times = lock(&self.times);
        times.launches += 1;
        times.run += start.elapsed();
        drop(times);
        ensure!(output.status.success(), "{}: {}", output.status, beginning(&output.stderr));
        let mut rest = &*std::fs::read(&to)?;
        let mut buffers = Vec::with_capacity(run.buffers.len());
        for buffer in run.buffers {
            let (found, after) = rest.split_at_checked(buffer.len()).context("the output is too short")?;
            buffers.push(found.to_vec());
            rest = after;
        }
        Ok(buffers)
    }

    pub(super) fn times(&self) -> Times {
        *lock(&self.times)
    }
}

impl Run<'_> {
    /// Serializes the launch in the input format of `runtime.cpp`.
    fn words(&self) -> Result<Vec<u8>> {
        let head = [self.buffers.len(), self.arguments.len(), self.info.len()];
        let sizes = self.buffers.iter().map(|buffer| buffer.len());
        let geometry = self.cubes.into_iter().chain(self.threads).map(|n| n as usize);
        let words = head.into_iter().chain(geometry).chain([self.shared]).chain(sizes);
        let mut bytes = Vec::new();
        for word in words.chain(self.arguments.iter().copied()) {
            bytes.extend(u32::try_from(word).context("a number of a launch")?.to_le_bytes());
        }
        bytes.extend(self.info);
        self.buffers.iter().for_each(|buffer| bytes.extend(*buffer));
        Ok(bytes)
    }
}

/// The first lines of the error output of a program.
fn beginning(stderr: &[u8]) -> String {
    const LINES: usize = 6;
    let text = String::from_utf8_lossy(stderr);
    let lines = text.lines().map(str::trim).filter(|line| line.chars().any(char::is_alphanumeric));
    lines.take(LINES).collect::<Vec<_>>().join("; ")
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::super::source::{NEIGHBOUR, for_host};
    use super::*;

    /// Runs a change of [`NEIGHBOUR`] over 64 threads.
    fn neighbours(host: &Host, name: &str, change: impl Fn(&str) -> String) -> Result<Vec<u32>> {
        let text = for_host(&change(NEIGHBOUR))?;
        assert!(name == "unchanged" || text != for_host(NEIGHBOUR)?, "{name} changes nothing");
        let program = host.program(&Source { text, shared: 256 })?;
        let x: Vec<u8> = (0..64u32).flat_map(u32::to_le_bytes).collect();
        let poison = [0xab; 256];
        let run = Run {
            buffers: &[&x, &poison],
            arguments: &[0, 1],
            info: &64u32.to_le_bytes(),
            cubes: [1; 3],
            threads: [64, 1, 1],
            shared: 256,
        };
        let out = host.run(&program, name, &run)?;
        assert_eq!(out[0], x);
        Ok(out[1].chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect())
    }

    #[test]
    fn mistakes_in_kernels_are_noticed() {
        let folder = std::env::temp_dir().join(format!("trike-emulate-{}", std::process::id()));
        // A machine without a compiler has nothing to test here.
        let Ok(host) = Host::new(&folder, Contraction::Off) else { return };
        let right = neighbours(&host, "unchanged", str::to_owned).unwrap();
        assert!(right.iter().enumerate().all(|(i, &v)| v as usize == (i + 1) % 64), "{right:?}");
        let changes: [(&str, &str, &str, &str); 4] = [
            ("no barrier", "__syncthreads();", "", "order of the threads"),
            ("half a barrier", "__syncthreads();", "if (v5 < 32) __syncthreads();", "thread ended"),
            (
                "two barriers",
                "__syncthreads();",
                "if (v5 < 32) { __syncthreads(); } else {\n__syncthreads(); }",
                "different",
            ),
            ("beyond the end", "v1[v5];", "v1[v5 + 1];", "AddressSanitizer"),
        ];
        for (name, from, to, found) in changes {
            let error = neighbours(&host, name, |text| text.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(found), "{name}: {error}");
        }
        assert_eq!(host.times().kernels, 5);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
