//! Time breakdown of a compile phase.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time breakdown of a compile phase.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// Until all suites have run on the recording devices.
    pub capture: Duration,
    /// Generating and compiling sources, wall time.
    pub build: Duration,
    /// Number of threads.
    pub threads: usize,
    /// Expanding kernels and generating sources, summed over threads.
    pub generate: Duration,
    /// NVRTC including its `ptxas`, summed over threads.
    pub nvrtc: Duration,
    /// Disassembling machine code, summed over threads.
    pub disassemble: Duration,
    /// Validating WGSL, summed over threads.
    pub naga: Duration,
    /// Forms with a stored result of an earlier run.
    pub known: u64,
    /// Forms whose source was shared with another target of the same generator.
    pub shared: u64,
    /// Sources with stored CUDA machine code of an earlier run.
    pub compiled: u64,
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [capture, build, generate, nvrtc, disassemble, naga] =
            [self.capture, self.build, self.generate, self.nvrtc, self.disassemble, self.naga]
                .map(|time| time.as_secs_f64());
        write!(
            f,
            "capture {capture:.1} s, build {build:.1} s with {} threads (thread time: sources {generate:.1} s, NVRTC \
             {nvrtc:.1} s, nvdisasm {disassemble:.1} s, naga {naga:.1} s); {} forms cached, {} sources shared between targets, machine code of \
             {} sources cached",
            self.threads, self.known, self.shared, self.compiled
        )
    }
}

/// Time of a stage, summed over all threads.
#[derive(Default)]
pub(super) struct Clock(AtomicU64);

impl Clock {
    pub(super) fn time<T>(&self, stage: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let done = stage();
        let spent = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.0.fetch_add(spent, Ordering::Relaxed);
        done
    }

    fn read(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// Clocks of the stages of a build, and counters of cached work.
#[derive(Default)]
pub(super) struct Clocks {
    pub(super) generate: Clock,
    pub(super) nvrtc: Clock,
    pub(super) disassemble: Clock,
    pub(super) naga: Clock,
    pub(super) known: AtomicU64,
    pub(super) shared: AtomicU64,
    pub(super) compiled: AtomicU64,
}

impl Clocks {
    pub(super) fn read(&self, capture: Duration, build: Duration, threads: usize) -> Times {
        Times {
            capture,
            build,
            threads,
            generate: self.generate.read(),
            nvrtc: self.nvrtc.read(),
            disassemble: self.disassemble.read(),
            naga: self.naga.read(),
            known: self.known.load(Ordering::Relaxed),
            shared: self.shared.load(Ordering::Relaxed),
            compiled: self.compiled.load(Ordering::Relaxed),
        }
    }
}
