//! The emulate phase: the CUDA C++ of kernels that no driver here can run, compiled by g++ and compared with the oracles.
//!
//! Drivers that compute on the host have no matrix instructions on bytes or halves that CubeCL could use, and a machine without
//! a GPU would run the kernels made of them nowhere. What CubeCL generates for CUDA is plain C++ but for a handful of functions
//! and a few instructions; with these written down from NVIDIA's documentation, a launch is a program that takes buffers and
//! leaves buffers. A device whose server starts such programs runs the same suites as a real one.
//!
//! It is no simulator: nothing is timed, the arithmetic of floats is the host's, and tensor maps, clusters and barriers in memory
//! are refused. What it does find is in `runtime.cpp`: wrong results, accesses out of bounds, missing or divergent
//! barriers, sums that leave 32 bits.

mod host;
mod server;
mod source;

use anyhow::Result;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::session::Session;
use crate::suites::{self, attention::attention, linear::linear, probe::probe};
use crate::tally::{Outcome, Tally};
use host::Host;
use server::{Change, Emulation};
use trike_cube::{Device, DeviceOptions, DeviceSpec, Runtime};

/// What to emulate, and where its programs go.
#[derive(Clone, Debug)]
pub struct Options {
    /// Only cases whose name contains this, of every suite; by default those with matrix instructions.
    pub filter: Option<String>,
    /// The folder for sources and programs; it is emptied first.
    pub out: PathBuf,
}

type Suite = fn(&mut Session<'_>);

/// Cases of one suite, which one thread runs.
#[derive(Clone, Debug)]
struct Job {
    suite: Suite,
    filter: String,
    /// A change of the kernels that must be noticed, with what it does.
    change: Option<(&'static str, Change)>,
    /// Whether some case must have run.
    required: bool,
}

/// The cases with matrix instructions, in parts that take about the same time.
const CASES: &[(Suite, &str)] = &[
    (linear, "staging: Direct"),
    (linear, "staging: Registers"),
    (linear, "staging: Async"),
    (linear, "Wmma"),
    (attention, "Mma { planes: 8 }"),
    (attention, "Mma { planes: 4 }"),
    (attention, "Mma { planes: 2 }"),
    (probe, "mma"),
];

/// Changes of kernels that must make these cases fail: without them a run that compares nothing would look like success.
const CHANGES: &[(Suite, &str, &str, Change)] = &[
    (linear, "[70] x 130 m=66 Int8PerToken, row x1, Mma", "a product without barriers", without_barriers),
    (linear, LONG_ASYNC, "copies that nobody waits for", without_waits),
    (linear, LONG_ASYNC, "a wait for the copies of one block too few", waiting_late),
    (linear, LONG_WMMA, "cooperative matrices without barriers", without_barriers),
    (linear, LONG_WMMA, "cooperative matrices by columns instead of rows", by_columns),
    (linear, "[48, 31] x 257 m=16 Int8PerToken, row x1, added, Mma", "exchanged sums of bytes", exchanged),
    (
        attention,
        "2/1 heads of 128, 40 at 60 in 100, window None, F16, Mma { planes: 2 }",
        "exchanged sums of halves",
        exchanged,
    ),
];

/// More blocks than there are in shared memory, and rows of codes that end inside of a cube.
const LONG_ASYNC: &str = "[37] x 700 m=21 Int8PerToken, row x1, Mma";
/// The same with cooperative matrices.
const LONG_WMMA: &str = "[37] x 700 m=21 Int8PerToken, row x1, Wmma";

fn without_barriers(text: &str) -> String {
    text.replace("__syncthreads();", "")
}

fn without_waits(text: &str) -> String {
    text.replace("emu_wait_group(", "// ")
}

/// Each wait leaves one group more on its way.
fn waiting_late(text: &str) -> String {
    text.replace("emu_wait_group(__LINE__, ", "emu_wait_group(__LINE__, 1 + ")
}

/// The matrix of codes as if its rows were columns.
fn by_columns(text: &str) -> String {
    text.replace("nvcuda::wmma::col_major", "nvcuda::wmma::row_major")
}

/// The first two numbers that each matrix instruction leaves.
fn exchanged(text: &str) -> String {
    text.replace("(__LINE__, result.i_0, result.i_1,", "(__LINE__, result.i_1, result.i_0,")
}

/// Runs the cases; `say` takes a line for each part of them. Where nothing can be emulated, that is a skip with its reason.
///
/// # Errors
/// When a device cannot be registered.
pub fn run(options: &Options, mut say: impl FnMut(&str)) -> Result<Tally> {
    let start = Instant::now();
    let mut tally = Tally::default();
    let host = match Host::new(&options.out) {
        Ok(host) => Arc::new(host),
        Err(e) => {
            tally.skip(&format!("nothing is emulated: {e:#}"), 1);
            return Ok(tally);
        }
    };
    let jobs: Vec<Job> = match &options.filter {
        Some(filter) => {
            vec![Job { suite: suites::all, filter: filter.clone(), change: None, required: false }]
        }
        None => {
            let job = |suite, filter: &str, change| Job {
                suite,
                filter: filter.to_owned(),
                change,
                required: true,
            };
            let cases = CASES.iter().map(|&(suite, filter)| job(suite, filter, None));
            let changes =
                CHANGES.iter().map(|&(suite, filter, what, change)| job(suite, filter, Some((what, change))));
            cases.chain(changes).collect()
        }
    };
    let queue = Mutex::new(VecDeque::from(jobs));
    let done = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(job) = lock(&queue).pop_front() {
                    let found = job.run(&host);
                    lock(&done).push((job, found));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(job, _)| job.name());
    for (job, found) in done {
        let found = found?;
        say(&format!("{}: {found}", job.name()));
        tally.merge(found);
    }
    let times = host.times();
    say(&format!(
        "{} kernels compiled in {:.0} s, {} launches in {:.0} s, {:.0} s in all",
        times.kernels,
        times.compile.as_secs_f64(),
        times.launches,
        times.run.as_secs_f64(),
        start.elapsed().as_secs_f64(),
    ));
    Ok(tally)
}

impl Job {
    fn name(&self) -> String {
        match self.change {
            None => format!("cases with {:?}", self.filter),
            Some((what, _)) => format!("a change is noticed: {what}"),
        }
    }

    /// Runs the cases on a device of their own.
    fn run(&self, host: &Arc<Host>) -> Result<Tally> {
        let emulation = Emulation::new(host, self.change.map(|(_, change)| change))?;
        let spec = DeviceSpec::Numbered(Runtime::Cuda, 0);
        let device = Device::over(emulation.client(), spec, false, DeviceOptions::default());
        let mut session = Session::new(&device).filtered(Some(&self.filter));
        (self.suite)(&mut session);
        let found = session.finish();
        drop(device);
        emulation.close();
        Ok(self.judged(found))
    }

    /// What came of the cases; of a change that it was noticed.
    fn judged(&self, found: Tally) -> Tally {
        let ran = found.passed() + found.failures().len();
        let mut tally = Tally::default();
        if ran == 0 && self.required {
            // A table that names no case any more would make a run that looks like success.
            tally.add(&self.name(), Outcome::Fail(format!("no case ran: {found}")));
        } else if self.change.is_some() {
            let unnoticed = || Outcome::Fail(format!("nobody noticed: {found}"));
            let outcome = if found.passed() == 0 { Outcome::Pass } else { unnoticed() };
            tally.add(&self.name(), outcome);
        } else {
            tally.merge(found);
        }
        tally
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
