//! Where the time of a compile phase went.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Where the time of a compile phase went.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// Until all suites had run on the recording devices.
    pub capture: Duration,
    /// Generating sources and compiling them, with all threads.
    pub build: Duration,
    /// Threads that did so.
    pub threads: usize,
    /// Of the threads together: expanding kernels and generating sources.
    pub generate: Duration,
    /// Of the threads together: NVRTC, its `ptxas` included.
    pub nvrtc: Duration,
    /// Of the threads together: validating WGSL.
    pub naga: Duration,
    /// Forms of which an earlier run of this program knew everything.
    pub known: u64,
    /// Forms whose source another target of the same generator had.
    pub shared: u64,
    /// Sources that an earlier run had compiled for CUDA.
    pub compiled: u64,
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [capture, build, generate, nvrtc, naga] =
            [self.capture, self.build, self.generate, self.nvrtc, self.naga].map(|time| time.as_secs_f64());
        write!(
            f,
            "capture {capture:.1} s, build {build:.1} s with {} threads (of their time: sources {generate:.1} s, NVRTC \
             {nvrtc:.1} s, naga {naga:.1} s); {} forms known from before, {} sources shared between targets, machine code of \
             {} sources kept",
            self.threads, self.known, self.shared, self.compiled
        )
    }
}

/// A stage's time, added up by all threads.
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

/// The stages of a build, and what it did not have to do.
#[derive(Default)]
pub(super) struct Clocks {
    pub(super) generate: Clock,
    pub(super) nvrtc: Clock,
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
            naga: self.naga.read(),
            known: self.known.load(Ordering::Relaxed),
            shared: self.shared.load(Ordering::Relaxed),
            compiled: self.compiled.load(Ordering::Relaxed),
        }
    }
}
