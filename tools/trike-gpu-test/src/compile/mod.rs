//! The compile phase: the kernels that each target launches, and the results of its compilers.
//!
//! Suites run on a [recording device](crate::record) of every target; each form of each kernel launched there is
//! generated for that target. CUDA is compiled to machine code, WGSL is validated by wgpu's validator; HIP, Metal and
//! SPIR-V stop at the generated source. A kernel that is launched on one target but not on another must be listed in
//! the table of unsupported pairs.
//!
//! For CUDA the main loops of the kernels behind the benchmark are counted in the machine code, and compared with a table.

mod build;
mod cache;
mod capture;
mod count;
mod cuda;
mod disassemble;
mod expect;
mod generate;
mod report;
mod shared;
mod times;
mod wgsl;

pub use cuda::{Compiled, Resources, Toolkit, occupancy};
pub use disassemble::Disassembler;
pub use report::Report;
pub use times::Times;

use anyhow::{Context, Result};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use self::build::Builder;
use self::cache::Outcomes;
use self::capture::{Captured, capture};
use self::shared::Sources;
use self::times::Clocks;
use crate::counts::{self, Row};
use crate::record::Launch;
use crate::share::Share;
use crate::tally::{Outcome, Tally};
use crate::target::{Family, Target};

/// Options of the compile phase.
pub struct Options<'a> {
    /// Only targets whose name contains this.
    pub target: Option<&'a str>,
    /// Only cases whose name contains this; the tables are then not checked for missing entries.
    pub filter: Option<&'a str>,
    /// The part of the forms to build; of each kernel one form is generated in every part.
    pub share: Option<Share>,
    /// NVIDIA's compilers, or the reason why they are missing.
    pub toolkit: std::result::Result<Toolkit, String>,
    /// NVIDIA's disassembler, or the reason why it is missing.
    pub disassembler: std::result::Result<Disassembler, String>,
    /// The table of counts to replace by those of this run, instead of comparing with it.
    pub accept_counts: Option<&'a Path>,
    /// The folder for generated sources and caches.
    pub out: &'a Path,
}

impl Options<'_> {
    /// Whether neither targets nor cases are filtered, so that missing entries are reported.
    fn everything(&self) -> bool {
        self.target.is_none() && self.filter.is_none()
    }

    /// Whether also every form is built, so that what is not there belongs to nothing.
    fn whole(&self) -> bool {
        self.everything() && self.share.is_none()
    }
}

/// The build of one form of a kernel for one target.
pub struct Built {
    /// The target's name.
    pub target: &'static str,
    /// The path of the kernel's type.
    pub path: &'static str,
    /// Its form: all compile-time parameters.
    pub form: String,
    /// Units per cube.
    pub units: u32,
    /// Path of the generated source, if any.
    pub source: Option<PathBuf>,
    /// Why the build ended before machine code for CUDA or before the source, if it did.
    pub stopped: Option<String>,
    /// The build result.
    pub outcome: std::result::Result<Code, String>,
}

/// A compiled kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// Bytes of the generated source.
    pub source_bytes: usize,
    /// Dynamic shared memory of the launch, in bytes.
    pub dynamic_shared: usize,
    /// The machine code; CUDA only, with NVIDIA's compilers.
    pub machine: Option<Machine>,
}

/// The machine code of a kernel for CUDA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Registers, spills and shared memory.
    pub resources: Resources,
    /// The distinct instructions of the PTX, without operands.
    pub instructions: Vec<String>,
}

/// Scope of a report.
struct Scope {
    /// Whether neither targets nor cases were filtered, so that missing entries are reported.
    everything: bool,
    /// Why CUDA stops at the generated source, if it does.
    missing_tools: Option<String>,
    /// The part of the forms that was built, if not all.
    share: Option<Share>,
    times: Times,
    /// Counts of main loops.
    rows: Vec<Row>,
}

/// Captures and compiles everything; `say` is called with a line per target as soon as its kernels are known.
///
/// # Errors
/// When a folder cannot be written or a recording device stops; compilation failures are part of the report.
pub fn run(options: &Options, mut say: impl FnMut(&str)) -> Result<Report> {
    let start = Instant::now();
    let mut captured = Vec::new();
    for target in Target::all() {
        if options.target.is_none_or(|part| target.name.contains(part)) {
            let capture = capture(target, options.filter)?;
            say(&format!("{}: {} kernels launched", capture.target.name, capture.launches.len()));
            captured.push(capture);
        }
    }
    let capture_time = start.elapsed();
    let folders: Vec<PathBuf> = captured.iter().map(|c| options.out.join(c.target.name)).collect();
    for folder in &folders {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let start = Instant::now();
    let compilers = options.toolkit.as_ref().map_or("no compilers", Toolkit::identity);
    let outcomes = Outcomes::open(&options.out.join("outcomes"), compilers)?;
    let clocks = Clocks::default();
    let sources = Sources::of(&captured);
    let of_target = |c: &Captured| -> Vec<_> {
        c.counted.iter().map(|counted| (c.target.name, c.launches[counted.launch].id.clone())).collect()
    };
    let counted = captured.iter().flat_map(of_target).collect();
    let first_of = |c: &Captured| -> Vec<_> {
        let mut seen = HashSet::new();
        let first = c.launches.iter().filter(|launch| seen.insert(launch.path()));
        first.map(|launch| (c.target.name, launch.id.clone())).collect()
    };
    let firsts = captured.iter().flat_map(first_of).collect();
    let builder = Builder {
        options,
        outcomes: &outcomes,
        sources: &sources,
        clocks: &clocks,
        counted: &counted,
        firsts: &firsts,
    };
    let (built, threads) = build_all(&captured, &builder)?;
    let times = clocks.read(capture_time, start.elapsed(), threads);
    let targets: Vec<&'static str> = captured.iter().map(|c| c.target.name).collect();
    let mut tally = Tally::default();
    let rows = count_all(options, &captured, &built, &mut tally)?;
    for (capture, name) in captured.into_iter().zip(&targets) {
        for (case, found) in capture.tally.failures() {
            tally.add(&format!("{name}: {case}"), Outcome::Fail(found.clone()));
        }
    }
    for found in sources.differences() {
        tally.add("sources of targets that share a generator", Outcome::Fail(found));
    }
    if options.whole() {
        let used: HashSet<&Path> = built.iter().filter_map(|b| b.source.as_deref()).collect();
        folders.iter().for_each(|folder| remove_unused(folder, &used));
        outcomes.prune();
    }
    let missing_tools = options.toolkit.as_ref().err().cloned();
    Ok(Report::new(
        built,
        targets,
        tally,
        Scope { everything: options.everything(), missing_tools, share: options.share, times, rows },
    ))
}

/// Counts the kernels behind the benchmark, and compares them with the table or replaces it.
fn count_all(
    options: &Options,
    captured: &[Captured],
    built: &[Built],
    tally: &mut Tally,
) -> Result<Vec<Row>> {
    let tools = options.disassembler.as_ref().err();
    let mut found = Tally::default();
    let mut rows = Vec::new();
    let mut first = 0;
    for Captured { target, launches, counted, .. } in captured {
        // Builds are in the order of launches.
        let of_target = &built[first..first + launches.len()];
        first += launches.len();
        if let Family::Cuda(sm) = target.family {
            rows.extend(count::check(of_target, counted, sm, tools.map(String::as_str), &mut found));
        }
    }
    if options.everything() {
        for row in count::stale() {
            found.add(
                &format!("counts.tsv: {row}"),
                Outcome::Fail("stale row: not counted any more".to_owned()),
            );
        }
    }
    match options.accept_counts {
        Some(file) => counts::accept(file, &rows, options.whole())?,
        None => tally.merge(found),
    }
    Ok(rows)
}

/// Builds every launch of every target on all logical CPUs, and returns the number of threads.
fn build_all(captured: &[Captured], builder: &Builder) -> Result<(Vec<Built>, usize)> {
    let jobs: Vec<(&Target, &Launch)> =
        captured.iter().flat_map(|c| c.launches.iter().map(|launch| (&c.target, launch))).collect();
    let next = AtomicUsize::new(0);
    let built = Mutex::new(BTreeMap::new());
    let failed = Mutex::new(None);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&(target, launch)) = jobs.get(number) else { break };
                    match builder.build(target, launch) {
                        Ok(done) => {
                            lock(&built).insert(number, done);
                        }
                        Err(e) => *lock(&failed) = Some(e),
                    }
                }
            });
        }
    });
    match failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        Some(e) => Err(e),
        None => {
            let built = built.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
            Ok((built.into_values().collect(), threads))
        }
    }
}

/// Removes sources, with their PTX and listings, that no kernel uses.
fn remove_unused(folder: &Path, used: &HashSet<&Path>) {
    for path in std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let source = if path.extension().is_some_and(|end| end == "ptx" || end == "sass") {
            path.with_extension("cu")
        } else {
            path.clone()
        };
        if !used.contains(source.as_path()) {
            // Errors are ignored: leftovers only take up space.
            let _ = std::fs::remove_file(&path);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
