//! The compile phase: which kernels each target launches, and what its compilers make of them.
//!
//! Suites run on a [recording device](crate::record) of every target; each kernel that was launched there, in each form that
//! it was launched in, is generated for that target. CUDA goes on to machine code, WGSL through wgpu's validator; HIP, Metal
//! and SPIR-V end with the generated source. A kernel that one target launches and another never does must stand in the
//! table of unsupported pairs.

mod cache;
mod cuda;
mod expect;
mod generate;
mod report;
mod wgsl;

pub use cuda::{Resources, Toolkit, occupancy};
pub use report::Report;

use anyhow::{Context, Result};
use cubecl_runtime::id::KernelId;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use self::cache::Cache;
use crate::record::{Launch, Recording};
use crate::session::{Origin, Session};
use crate::suites;
use crate::tally::Tally;
use crate::target::{Family, Target};
use trike_cube::{Device, DeviceOptions, DeviceSpec, Runtime};

/// What to compile, with what.
pub struct Options<'a> {
    /// Only targets whose name contains this.
    pub target: Option<&'a str>,
    /// Only cases whose name contains this; the tables are then not checked for what is missing.
    pub filter: Option<&'a str>,
    /// Whether to build less: one form of each kernel, and for the first target of each generator those that plans choose for
    /// the shapes of models. Forms that plans choose for small shapes only, and forms that tests force, are left out.
    pub quick: bool,
    /// NVIDIA's compilers, or why there are none.
    pub toolkit: std::result::Result<Toolkit, String>,
    /// The folder for the generated sources.
    pub out: &'a Path,
}

/// One kernel in one form, on one target.
pub struct Built {
    /// The target's name.
    pub target: &'static str,
    /// The path of the kernel's type.
    pub path: &'static str,
    /// Its form: everything that was fixed at compile time.
    pub form: String,
    /// Where its source lies.
    pub source: PathBuf,
    /// What came of it.
    pub outcome: std::result::Result<Code, String>,
}

/// A compiled kernel.
pub struct Code {
    /// Bytes of the generated source.
    pub source_bytes: usize,
    /// What the machine code costs; CUDA only, with NVIDIA's compilers.
    pub cuda: Option<Cuda>,
}

/// The machine code of a kernel for CUDA.
pub struct Cuda {
    /// Registers, spills and shared memory.
    pub resources: Resources,
    /// Shared memory that the launch adds, in bytes.
    pub dynamic_shared: usize,
    /// Units of a cube.
    pub units: u32,
    /// The share of a multiprocessor's warps that fit.
    pub occupancy: f64,
    /// The instructions of the PTX, each once, without operands.
    pub instructions: Vec<String>,
}

/// A kernel in one form.
struct Job {
    launch: Launch,
    /// Who chose the form first.
    origin: Origin,
}

/// The kernels of one target, each form once, those that plans choose first.
struct Captured {
    target: Target,
    jobs: Vec<Job>,
    /// What suites said on the recording device: a plan that fails there fails on the device too.
    tally: Tally,
}

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
    /// Of the threads together: NVRTC.
    pub nvrtc: Duration,
    /// Of the threads together: `ptxas`.
    pub ptxas: Duration,
    /// Of the threads together: validating WGSL.
    pub naga: Duration,
    /// Kernels that an earlier run had compiled for CUDA.
    pub cached: u64,
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [capture, build, generate, nvrtc, ptxas, naga] =
            [self.capture, self.build, self.generate, self.nvrtc, self.ptxas, self.naga]
                .map(|time| time.as_secs_f64());
        write!(
            f,
            "capture {capture:.1} s, build {build:.1} s with {} threads (of their time: sources {generate:.1} s, NVRTC \
             {nvrtc:.1} s, ptxas {ptxas:.1} s, naga {naga:.1} s; machine code of {} kernels kept from before)",
            self.threads, self.cached
        )
    }
}

/// A stage's time, added up by all threads.
#[derive(Default)]
struct Clock(AtomicU64);

impl Clock {
    fn time<T>(&self, stage: impl FnOnce() -> T) -> T {
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

/// The stages of [`build`].
#[derive(Default)]
struct Clocks {
    generate: Clock,
    nvrtc: Clock,
    ptxas: Clock,
    naga: Clock,
    cached: AtomicU64,
}

/// Captures and compiles everything; `say` takes a line for each target as soon as its kernels are known.
///
/// # Errors
/// When a folder cannot be written or a recording device stops; what does not compile is in the report.
pub fn run(options: &Options, mut say: impl FnMut(&str)) -> Result<Report> {
    let start = Instant::now();
    let mut captured = Vec::new();
    for target in Target::all() {
        if options.target.is_none_or(|part| target.name.contains(part)) {
            let mut capture = capture(target, options.filter)?;
            let launched = capture.jobs.len();
            if options.quick {
                capture.thin();
            }
            let name = capture.target.name;
            say(&format!("{name}: {launched} kernels launched, {} of them built", capture.jobs.len()));
            captured.push(capture);
        }
    }
    let capture_time = start.elapsed();
    for target in captured.iter().map(|c| c.target.name) {
        let folder = options.out.join(target);
        // Sources of an earlier run that no kernel has any more would only mislead.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let jobs: Vec<(&Target, usize, &Job)> = captured
        .iter()
        .flat_map(|c| c.jobs.iter().enumerate().map(|(number, job)| (&c.target, number, job)))
        .collect();
    let start = Instant::now();
    let next = AtomicUsize::new(0);
    let built = Mutex::new(BTreeMap::new());
    let failed = Mutex::new(None);
    let clocks = Clocks::default();
    let cache = Cache::open(options.out.join("cache"))?;
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(&(target, number, job)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match build(target, number, job, options, &cache, &clocks) {
                        Ok(done) => {
                            lock(&built).insert((target.name, number), done);
                        }
                        Err(e) => *lock(&failed) = Some(e),
                    }
                }
            });
        }
    });
    if let Some(e) = failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        return Err(e);
    }
    let times = Times {
        capture: capture_time,
        build: start.elapsed(),
        threads,
        generate: clocks.generate.read(),
        nvrtc: clocks.nvrtc.read(),
        ptxas: clocks.ptxas.read(),
        naga: clocks.naga.read(),
        cached: clocks.cached.load(Ordering::Relaxed),
    };
    let all_targets = options.target.is_none() && options.filter.is_none();
    if all_targets && !options.quick && options.toolkit.is_ok() {
        cache.prune();
    }
    let built = built.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let targets: Vec<&'static str> = captured.iter().map(|c| c.target.name).collect();
    let mut tally = Tally::default();
    for (capture, name) in captured.into_iter().zip(&targets) {
        for (case, found) in capture.tally.failures() {
            tally.add(&format!("{name}: {case}"), crate::tally::Outcome::Fail(found.clone()));
        }
    }
    let scope = Scope {
        all_targets,
        all_forms: !options.quick,
        missing_tools: options.toolkit.as_ref().err().cloned(),
        times,
    };
    Ok(Report::new(built.into_values().collect(), targets, tally, scope))
}

/// What a report is about.
struct Scope {
    /// Whether no target and no case was filtered out, so that what is missing is missed.
    all_targets: bool,
    /// Whether every form went as far as it can, so that a row that none needs is stale.
    all_forms: bool,
    /// Why CUDA ends with its source, if it does.
    missing_tools: Option<String>,
    times: Times,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Captured {
    /// Keeps what [`Options::quick`] says.
    fn thin(&mut self) {
        let mut seen = HashSet::new();
        let thorough = self.target.is_thorough();
        self.jobs.retain(|job| {
            // Forms for models come first, and the first one of those that an instruction is expected of stays too.
            let (path, form) = (job.launch.path(), form_of(&job.launch));
            let mut first = seen.insert((path, ""));
            for row in expect::EXPECTED {
                if !row.form.is_empty() && expect::is_kernel(path, row.kernel) && form.contains(row.form) {
                    first |= seen.insert((path, row.form));
                }
            }
            first || (thorough && job.origin == Origin::Models)
        });
    }
}

/// Runs every suite on a recording device of a target.
fn capture(target: Target, filter: Option<&str>) -> Result<Captured> {
    let recording = Recording::new(&target)?;
    let runtime = match target.family {
        Family::Cuda(_) => Runtime::Cuda,
        Family::Hip(_) => Runtime::Hip,
        Family::Metal => Runtime::Metal,
        Family::Vulkan => Runtime::Vulkan,
        Family::WebGpu | Family::WebGpuMinimal => Runtime::Wgpu,
    };
    let spec = DeviceSpec::Numbered(runtime, 0);
    let device = Device::over(recording.client(), spec, false, DeviceOptions::default());
    let mut launches: Vec<(Origin, Launch)> = Vec::new();
    let mut stopped = None;
    let mut tally = Tally::default();
    for (of_models, suite) in [(true, suites::shapes as fn(&mut Session)), (false, suites::all)] {
        let mut after = |origin| match recording.take() {
            Ok(taken) => {
                let origin = if of_models { Origin::Models } else { origin };
                launches.extend(taken.into_iter().map(|launch| (origin, launch)));
            }
            Err(e) => stopped = Some(e),
        };
        let mut session = Session::recording(&device, &mut after).filtered(filter);
        suite(&mut session);
        tally.merge(session.finish());
    }
    if let Some(e) = stopped {
        return Err(e);
    }
    drop(device);
    recording.close();
    launches.sort_by_key(|(origin, _)| *origin);
    let mut seen: HashSet<KernelId> = HashSet::new();
    launches.retain(|(_, launch)| seen.insert(launch.id.clone()));
    let jobs = launches.into_iter().map(|(origin, launch)| Job { launch, origin });
    Ok(Captured { target, jobs: jobs.collect(), tally })
}

/// Everything that was fixed at compile time, in one line.
fn form_of(launch: &Launch) -> String {
    launch.id.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Generates and compiles one kernel. An error is a folder that cannot be written; what does not compile is an outcome.
fn build(
    target: &Target,
    number: usize,
    job: &Job,
    options: &Options,
    cache: &Cache,
    clocks: &Clocks,
) -> Result<Built> {
    let launch = &job.launch;
    let extension = match target.family {
        Family::Cuda(_) => "cu",
        Family::Hip(_) => "hip",
        Family::Metal => "metal",
        Family::Vulkan => "spv",
        Family::WebGpu | Family::WebGpuMinimal => "wgsl",
    };
    let name = launch.path().rsplit("::").next().unwrap_or("kernel");
    let file = options.out.join(target.name).join(format!("{number:03}-{name}.{extension}"));
    let outcome = match clocks.generate.time(|| generate::generate(target, launch.kernel.as_ref())) {
        Err(e) => Err(format!("{e:#}")),
        Ok(source) => {
            std::fs::write(&file, &source.bytes)
                .with_context(|| format!("cannot write {}", file.display()))?;
            check(target, job, &source, &file, options, cache, clocks).map_err(|e| format!("{e:#}"))
        }
    };
    Ok(Built { target: target.name, path: launch.path(), form: form_of(launch), source: file, outcome })
}

/// Compiles or validates a source as far as its target allows here.
fn check(
    target: &Target,
    job: &Job,
    source: &generate::Source,
    file: &Path,
    options: &Options,
    cache: &Cache,
    clocks: &Clocks,
) -> Result<Code> {
    let text = || std::str::from_utf8(&source.bytes).context("the source is not text");
    let mut code = Code { source_bytes: source.bytes.len(), cuda: None };
    match (target.family, &options.toolkit) {
        (Family::Cuda(sm), Ok(toolkit)) => {
            let ptx_file = file.with_extension("ptx");
            let write = |ptx: &str| {
                std::fs::write(&ptx_file, ptx).with_context(|| format!("cannot write {}", ptx_file.display()))
            };
            let key = cache::key(toolkit, text()?, sm);
            let (resources, ptx) = match cache.get(&key) {
                Some(kept) => {
                    clocks.cached.fetch_add(1, Ordering::Relaxed);
                    write(&kept.1)?;
                    kept
                }
                None => {
                    let ptx = clocks.nvrtc.time(|| toolkit.ptx(text()?, sm))?;
                    write(&ptx)?;
                    let resources = clocks.ptxas.time(|| toolkit.resources(&ptx_file, sm))?;
                    cache.put(&key, &resources, &ptx)?;
                    (resources, ptx)
                }
            };
            let units = job.launch.id.cube_dim.num_elems();
            code.cuda = Some(Cuda {
                resources,
                dynamic_shared: source.dynamic_shared,
                units,
                occupancy: occupancy(sm, units, &resources, source.dynamic_shared),
                instructions: instructions(&ptx),
            });
        }
        (Family::WebGpu, _) => clocks.naga.time(|| wgsl::validate(text()?, true))?,
        (Family::WebGpuMinimal, _) => clocks.naga.time(|| wgsl::validate(text()?, false))?,
        _ => {}
    }
    Ok(code)
}

/// The instructions of a PTX text, each once and without operands: `dp4a.s32.s32`.
fn instructions(ptx: &str) -> Vec<String> {
    let mut found: Vec<String> = ptx
        .lines()
        .filter_map(|line| {
            let line = line.trim_start();
            // A guard before the instruction: `@%p1 bra`.
            let line = line.strip_prefix('@').and_then(|l| l.split_once(' ')).map_or(line, |(_, rest)| rest);
            let word = line.split([' ', '\t', ';']).next()?;
            (word.starts_with(|c: char| c.is_ascii_lowercase()) && !word.ends_with(':'))
                .then(|| word.to_owned())
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_listed_once_without_operands() {
        let ptx = "//\n.version 8.8\n.visible .entry k(\n$L1:\n\tld.param.u64 %rd1, [k_0];\n\t@%p1 bra $L1;\n\
                   \tdp4a.s32.s32 %r1, %r2, %r3, %r4;\n\tdp4a.s32.s32 %r1, %r2, %r3, %r4;\n\tret;\n}";
        assert_eq!(instructions(ptx), ["bra", "dp4a.s32.s32", "ld.param.u64", "ret"]);
    }
}
