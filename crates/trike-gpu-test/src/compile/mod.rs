//! The compile phase: which kernels each target launches, and what its compilers make of them.
//!
//! Suites run on a [recording device](crate::record) of every target; each kernel that was launched there, in each form that
//! it was launched in, is generated for that target. CUDA goes on to machine code, WGSL through wgpu's validator; HIP, Metal
//! and SPIR-V end with the generated source. A kernel that one target launches and another never does must stand in the
//! table of unsupported pairs.

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
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::record::{Launch, Recording};
use crate::session::Session;
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
    /// Whether the second and third target of a generator compile only what the shapes of models lead to, and each kernel in
    /// at least one form.
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
    /// What the machine code costs; CUDA only, and only with NVIDIA's compilers.
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

/// The kernels of one target, each form once.
struct Captured {
    target: Target,
    launches: Vec<Launch>,
    /// How many of the launches, from the first on, the shapes of models lead to.
    of_models: usize,
    /// What suites said on the recording device: a plan that fails there fails on the device too.
    tally: Tally,
}

/// Captures and compiles everything; `say` takes a line for each target as soon as its kernels are known.
///
/// # Errors
/// When a folder cannot be written or a recording device stops; what does not compile is in the report.
pub fn run(options: &Options, mut say: impl FnMut(&str)) -> Result<Report> {
    let mut captured = Vec::new();
    for target in Target::all() {
        if options.target.is_none_or(|part| target.name.contains(part)) {
            let mut capture = capture(target, options.filter)?;
            if options.quick && !capture.target.is_thorough() {
                capture.thin();
            }
            say(&format!("{}: {} kernels launched", capture.target.name, capture.launches.len()));
            captured.push(capture);
        }
    }
    let jobs: Vec<(&Target, usize, &Launch)> = captured
        .iter()
        .flat_map(|c| c.launches.iter().enumerate().map(|(number, launch)| (&c.target, number, launch)))
        .collect();
    for target in captured.iter().map(|c| c.target.name) {
        let folder = options.out.join(target);
        // Sources of an earlier run that no kernel has any more would only mislead.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let next = AtomicUsize::new(0);
    let built = Mutex::new(BTreeMap::new());
    let failed = Mutex::new(None);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(&(target, number, launch)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match build(target, number, launch, options) {
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
    let built = built.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let targets: Vec<&'static str> = captured.iter().map(|c| c.target.name).collect();
    let mut tally = Tally::default();
    for (capture, name) in captured.into_iter().zip(&targets) {
        for (case, found) in capture.tally.failures() {
            tally.add(&format!("{name}: {case}"), crate::tally::Outcome::Fail(found.clone()));
        }
    }
    let complete = options.target.is_none() && options.filter.is_none();
    let missing_tools = options.toolkit.as_ref().err().cloned();
    Ok(Report::new(built.into_values().collect(), targets, tally, complete, missing_tools))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Captured {
    /// Keeps what models need, and the first form of every kernel that they do not.
    fn thin(&mut self) {
        let mut seen = HashSet::new();
        let mut number = 0;
        let of_models = self.of_models;
        self.launches.retain(|launch| {
            number += 1;
            seen.insert(launch.path()) || number <= of_models
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
    let mut session = Session::recording(&device).filtered(filter);
    let mut seen: HashSet<KernelId> = HashSet::new();
    suites::shapes(&mut session);
    let mut launches = recording.take()?;
    launches.retain(|launch| seen.insert(launch.id.clone()));
    let of_models = launches.len();
    suites::all(&mut session);
    launches.extend(recording.take()?.into_iter().filter(|launch| seen.insert(launch.id.clone())));
    let tally = session.finish();
    drop(device);
    recording.close();
    Ok(Captured { target, launches, of_models, tally })
}

/// Generates and compiles one kernel. An error is a folder that cannot be written; what does not compile is an outcome.
fn build(target: &Target, number: usize, launch: &Launch, options: &Options) -> Result<Built> {
    let extension = match target.family {
        Family::Cuda(_) => "cu",
        Family::Hip(_) => "hip",
        Family::Metal => "metal",
        Family::Vulkan => "spv",
        Family::WebGpu | Family::WebGpuMinimal => "wgsl",
    };
    let name = launch.path().rsplit("::").next().unwrap_or("kernel");
    let file = options.out.join(target.name).join(format!("{number:03}-{name}.{extension}"));
    let outcome = match generate::generate(target, launch.kernel.as_ref()) {
        Err(e) => Err(format!("{e:#}")),
        Ok(source) => {
            std::fs::write(&file, &source.bytes)
                .with_context(|| format!("cannot write {}", file.display()))?;
            check(target, launch, &source, &file, options).map_err(|e| format!("{e:#}"))
        }
    };
    let form = launch.id.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    Ok(Built { target: target.name, path: launch.path(), form, source: file, outcome })
}

/// Compiles or validates a source as far as its target allows here.
fn check(
    target: &Target,
    launch: &Launch,
    source: &generate::Source,
    file: &Path,
    options: &Options,
) -> Result<Code> {
    let text = || std::str::from_utf8(&source.bytes).context("the source is not text");
    let mut code = Code { source_bytes: source.bytes.len(), cuda: None };
    match (target.family, &options.toolkit) {
        (Family::Cuda(sm), Ok(toolkit)) => {
            let ptx = toolkit.ptx(text()?, sm)?;
            let ptx_file = file.with_extension("ptx");
            std::fs::write(&ptx_file, &ptx)
                .with_context(|| format!("cannot write {}", ptx_file.display()))?;
            let resources = toolkit.resources(&ptx_file, sm)?;
            let units = launch.id.cube_dim.num_elems();
            code.cuda = Some(Cuda {
                resources,
                dynamic_shared: source.dynamic_shared,
                units,
                occupancy: occupancy(sm, units, &resources, source.dynamic_shared),
                instructions: instructions(&ptx),
            });
        }
        (Family::WebGpu, _) => wgsl::validate(text()?, true)?,
        (Family::WebGpuMinimal, _) => wgsl::validate(text()?, false)?,
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
