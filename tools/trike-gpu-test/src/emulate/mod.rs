//! The emulate phase: CUDA C++ of kernels that no driver here can run, compiled by g++ and compared with the oracles.
//!
//! Software drivers have no int8 or FP16 matrix instructions that CubeCL supports, and no PTX, so without a GPU the kernels with
//! such instructions could not be tested. The code that CubeCL generates for CUDA is plain C++ except for some
//! functions and instructions; with these implemented from NVIDIA's documentation, a launch becomes a program that
//! reads and writes buffers. A device whose server starts such programs runs the same suites as a real one.
//!
//! This is not a simulator: nothing is timed, float arithmetic is the host's, cubes run one after another, and tensor maps and
//! clusters are rejected. Each case runs without and with contraction of products and sums. It detects the errors listed in `runtime.cpp`: wrong results, out-of-bounds accesses,
//! missing or divergent barriers, and sums that overflow 32 bits.

mod host;
mod server;
mod source;

use anyhow::Result;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::session::Session;
use crate::share::Share;
use crate::suites::{
    self, attention::attention, linear::linear, masks::masks, matrices::matrices, probe::probe,
    several::several,
};
use crate::tally::{Outcome, Tally};
use host::{Contraction, Host};
use server::{Change, Emulation};
use trike_cube::{CubeDevice, DeviceOptions, DeviceSpec, Runtime};

/// Options of the emulate phase.
#[derive(Clone, Debug)]
pub struct Options {
    /// Only cases whose name contains this, of every suite; default: those with matrix instructions.
    pub filter: Option<String>,
    /// The part of the cases and mutations to run; default: all.
    pub share: Option<Share>,
    /// The folder for sources and programs; cleared first.
    pub out: PathBuf,
}

type Suite = fn(&mut Session<'_>);

/// Cases of one suite, run by one thread.
#[derive(Clone, Debug)]
struct Job {
    suite: Suite,
    filter: String,
    contraction: Contraction,
    /// A mutation of the kernels that must be detected, with its description.
    change: Option<(&'static str, Change)>,
    /// Whether at least one case must run.
    required: bool,
    /// The part of the cases to run.
    share: Option<Share>,
}

/// The cases with matrix instructions and other PTX, in parts of similar duration.
const CASES: &[(Suite, &str)] = &[
    (linear, "stages: 2"),
    (linear, "stages: 3"),
    (linear, "stages: 4"),
    (linear, "Wmma"),
    (attention, "Mma { planes: 8 }"),
    (attention, "Mma { planes: 4 }"),
    (attention, "Mma { planes: 2 }"),
    (attention, "F16, Decode"),
    (attention, "Int8, Decode"),
    (masks, "Mma { planes: 8 }"),
    (masks, "Mma { planes: 4 }"),
    (masks, "Mma { planes: 2 }"),
    (several, "F16, Decode"),
    (several, "Int8, Decode"),
    (matrices, "Mma { tokens: "),
    (probe, "mma"),
];

/// Mutations of kernels that must make these cases fail; otherwise a run that compares nothing would pass.
const CHANGES: &[(Suite, &str, &str, Change)] = &[
    (linear, "[70] x 130 m=66 Int8PerToken, row x1, Mma", "a product without barriers", without_barriers),
    (linear, LONG_ASYNC, "copies without waits", without_waits),
    (linear, LONG_ASYNC, "waits one block too late", waiting_late),
    (
        linear,
        "[17] x 2049 m=16 Int8PerToken, tensor, 16 cubes share columns, Mma",
        "cubes that nobody counts",
        uncounted,
    ),
    (
        linear,
        "[17] x 2049 m=16 Int8PerToken, tensor, 16 cubes share columns, Mma",
        "counters left behind",
        unreset,
    ),
    (linear, LONG_WMMA, "cooperative matrices without barriers", without_barriers),
    (linear, LONG_WMMA, "cooperative matrices column-major instead of row-major", by_columns),
    (linear, "[48, 31] x 257 m=16 Int8PerToken, row x1, added, Mma", "swapped int8 sums", exchanged),
    (
        attention,
        "2/1 heads of 128, 40 at 60 in 100, window None, F16, Mma { planes: 2 }",
        "swapped FP16 sums",
        exchanged,
    ),
    (
        attention,
        "6/2 heads of 64, 1 at 250 in 300, window None, F16, Decode",
        "a group of units without barriers",
        without_barriers_of_planes,
    ),
    (matrices, "f16 130 x 160 m=35, Mma", "dense copies without waits", without_waits),
    (
        attention,
        // Positions in one part are not counted.
        "6/2 heads of 64, 1 at 250 in 300, window None, F16, Decode { units: 128, heads: 3, splits: 4 }",
        "parts of attention that nobody counts",
        uncounted,
    ),
];

/// More blocks than fit in shared memory, and rows of codes that end inside a cube.
const LONG_ASYNC: &str = "[37] x 700 m=21 Int8PerToken, row x1, Mma";
/// The same with cooperative matrices.
const LONG_WMMA: &str = "[37] x 700 m=21 Int8PerToken, row x1, Wmma";

fn without_barriers(text: &str) -> String {
    text.replace("__syncthreads();", "")
}

fn without_barriers_of_planes(text: &str) -> String {
    text.replace("__syncwarp();", "")
}

fn without_waits(text: &str) -> String {
    text.replace("emu_wait_group(", "// ")
}

/// Each wait leaves one more group pending.
fn waiting_late(text: &str) -> String {
    text.replace("emu_wait_group(__LINE__, ", "emu_wait_group(__LINE__, 1 + ")
}

/// No cube finds itself the last.
fn uncounted(text: &str) -> String {
    text.replace("emu_atomic_add(__LINE__, ", "emu_atomic_read(__LINE__, ")
}

/// The next launch starts with the counts of this one.
fn unreset(text: &str) -> String {
    text.replace("atomicExch(", "emu_exchange_nothing(")
}

/// Loads the matrix of codes with rows and columns swapped.
fn by_columns(text: &str) -> String {
    text.replace("nvcuda::wmma::col_major", "nvcuda::wmma::row_major")
}

/// Swaps the first two results of each matrix instruction.
fn exchanged(text: &str) -> String {
    text.replace("(__LINE__, result.i_0, result.i_1,", "(__LINE__, result.i_1, result.i_0,")
}

/// Runs the cases; `say` is called with a line for each part. If emulation is not possible, the result is a skip with
/// its reason.
///
/// # Errors
/// When a device cannot be registered.
pub fn run(options: &Options, mut say: impl FnMut(&str)) -> Result<Tally> {
    let start = Instant::now();
    let mut tally = Tally::default();
    let ways = [(Contraction::Off, "separate"), (Contraction::On, "contracted")];
    let host = |(contraction, folder)| Host::new(&options.out.join(folder), contraction).map(Arc::new);
    let hosts = match ways.map(host).into_iter().collect::<Result<Vec<_>>>() {
        Ok(hosts) => hosts,
        Err(e) => {
            tally.skip(&format!("emulation is not available: {e:#}"), 1);
            return Ok(tally);
        }
    };
    let job = |(suite, filter, change): (Suite, &str, _), contraction, required| Job {
        suite,
        filter: filter.to_owned(),
        contraction,
        change,
        required: required && options.share.is_none(),
        share: options.share,
    };
    let jobs: Vec<Job> = match &options.filter {
        Some(filter) => {
            ways.iter().map(|&(way, _)| job((suites::all, filter.as_str(), None), way, false)).collect()
        }
        None => {
            let both = |&(suite, filter): &(Suite, &'static str)| {
                [Contraction::On, Contraction::Off].map(|way| job((suite, filter, None), way, true))
            };
            let changes = CHANGES.iter().map(|&(suite, filter, what, change)| {
                job((suite, filter, Some((what, change))), Contraction::Off, true)
            });
            CASES.iter().flat_map(both).chain(changes).collect()
        }
    };
    let queue = Mutex::new(VecDeque::from(jobs));
    let done = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(job) = lock(&queue).pop_front() {
                    let found = job.run(&hosts[job.contraction as usize]);
                    lock(&done).push((job, found));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(job, _)| (job.contraction, job.name()));
    for (job, found) in done {
        let found = found?;
        say(&format!("{}: {found}", job.name()));
        tally.merge(found);
    }
    for (host, (_, way)) in hosts.iter().zip(ways) {
        let times = host.times();
        say(&format!(
            "products and sums {way}: {} kernels compiled in {:.0} s, {} launches in {:.0} s",
            times.kernels,
            times.compile.as_secs_f64(),
            times.launches,
            times.run.as_secs_f64(),
        ));
    }
    say(&format!("{:.0} s in all", start.elapsed().as_secs_f64()));
    Ok(tally)
}

impl Job {
    fn name(&self) -> String {
        match self.change {
            None if self.contraction == Contraction::On => {
                format!("cases with {:?}, products and sums contracted", self.filter)
            }
            None => format!("cases with {:?}", self.filter),
            Some((what, _)) => format!("mutation is detected: {what}"),
        }
    }

    /// Runs the cases on a separate device.
    fn run(&self, host: &Arc<Host>) -> Result<Tally> {
        // A mutation is one case of its own: the cases that it must fail are not chosen again.
        let share = match (self.share, self.change) {
            (Some(share), Some((what, _))) if !share.has(what) => {
                let mut tally = Tally::default();
                tally.skip(&share.reason(), 1);
                return Ok(tally);
            }
            (_, Some(_)) => None,
            (share, None) => share,
        };
        let emulation = Emulation::new(host, self.change.map(|(_, change)| change))?;
        let spec = DeviceSpec::Numbered(Runtime::Cuda, 0);
        let device = CubeDevice::over(emulation.client(), spec, false, DeviceOptions::default());
        let way = match self.contraction {
            Contraction::On => "contracted",
            Contraction::Off => "separate",
        };
        let mut session = Session::new(&device).filtered(Some(&self.filter)).shared(share, way);
        (self.suite)(&mut session);
        let found = session.finish();
        drop(device);
        emulation.close();
        Ok(self.judged(found))
    }

    /// The outcomes of the cases; for a mutation, whether it was detected.
    fn judged(&self, found: Tally) -> Tally {
        let ran = found.passed() + found.failures().len();
        let mut tally = Tally::default();
        if ran == 0 && self.required {
            // A table whose filters match no case would otherwise pass.
            tally.add(&self.name(), Outcome::Fail(format!("no case ran: {found}")));
        } else if self.change.is_some() {
            let unnoticed = || Outcome::Fail(format!("not detected: {found}"));
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
