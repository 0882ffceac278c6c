//! Benchmark of the kernels on one device, written as a record.
//!
//! Launches cycle through more copies of the weights than the last-level cache holds, so that each launch reads them from
//! memory; a figure is the median of several windows by the device's clock, and each window is many launches. Kernels and
//! rivals of a problem are interleaved as on the host ([`trike_bench::interleave`]) if the operands of all of them fit. The
//! peak rates of the device are measured in the same run, by kernels that only copy or only multiply.
//!
//! The record is written after each problem and marked complete at the end, so that an interrupted run keeps its results. A
//! problem that fails is recorded with its error, and the run continues.

mod catalogue;
pub(crate) mod counted;
mod entrant;
mod models;
mod operands;
mod operations;
pub mod predict;
pub mod report;
mod rivals;
mod run;
mod targets;

pub use catalogue::{Case, Catalogue, Weights};
pub use operations::Operation;

use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use trike_bench::{Bases, Record, Zeros};
use trike_cube::{CubeError, Device, DeviceSpec, Runtime};

use entrant::{Absent, Operands};
use operands::Matrices;
use rivals::Library;
use run::Run;

/// References of the speedup columns.
pub(crate) const BASES: Bases = Bases { rival: rivals::CUBLAS, kernel: catalogue::ROW_NAME };

/// Options of a run.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Device, such as `cuda:0` (default: the first that is not a software device).
    #[arg(long, default_value = "auto")]
    pub device: DeviceSpec,
    /// Time only problems whose name contains this text.
    #[arg(long)]
    pub filter: Option<String>,
    /// Number of timed windows; the median is reported.
    #[arg(long, default_value_t = 9)]
    pub windows: usize,
    /// Length of a window, in milliseconds.
    #[arg(long, default_value_t = 20)]
    pub window_ms: u64,
    /// Total size of the copies of the weights that launches cycle through, in MiB; must exceed the last-level cache.
    #[arg(long, default_value_t = 256)]
    pub rotate_mib: usize,
    /// Allow a software device, whose figures are meaningless.
    #[arg(long)]
    pub software: bool,
    /// Time a few tiny problems instead of the catalogue, to test the benchmark itself.
    #[arg(long)]
    pub tiny: bool,
    /// Write the record to this file after each problem.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

impl Options {
    fn wants(&self, problem: &str) -> bool {
        self.filter.as_ref().is_none_or(|part| problem.contains(part.as_str()))
    }

    /// The problems to time.
    pub fn catalogue(&self) -> Catalogue {
        if self.tiny { Catalogue::tiny() } else { Catalogue::full() }
    }
}

/// Opens the device. `auto` selects a software device only with `--software` and if there is no other.
fn open(options: &Options) -> trike_cube::Result<Device> {
    match (Device::open(options.device), options.device) {
        (Err(CubeError::NoDevice { .. }), DeviceSpec::Auto) if options.software => {
            Device::open(DeviceSpec::Numbered(Runtime::Wgpu, 0))
        }
        (opened, _) => opened,
    }
}

/// Times the problems; `say` receives the tables as they are finished.
///
/// # Errors
/// If the device cannot be opened or the record cannot be written. Failures of single problems are stored in the record.
pub fn run(options: &Options, mut say: impl FnMut(&str)) -> Result<Record> {
    let device = open(options).context("cannot open a device to time")?;
    if device.is_software() && !options.software {
        bail!("{} is a software device; pass --software to time it anyway", device.name());
    }
    let mut run = Run::new(&device, options, &mut say);
    run.ceilings()?;
    let rivals = rivals::open(&mut run);
    let catalogue = options.catalogue();
    for case in &catalogue.cases {
        products(&mut run, &rivals, case)?;
    }
    for attention in catalogue.attention.iter().filter(|a| options.wants(&a.to_string())) {
        let ours = operands::attention(&device, attention);
        let theirs = rivals.iter().filter_map(|rival| rival.attention(attention));
        run.time(std::iter::once(ours).chain(theirs).collect())?;
        run.settle();
    }
    for operation in catalogue.operations.iter().filter(|o| options.wants(&o.to_string())) {
        run.time(vec![operation.entrant(&device)])?;
        run.settle();
    }
    for model in &catalogue.models {
        if model.problems().iter().any(|problem| options.wants(problem)) {
            models::time(&mut run, model)?;
            run.settle();
        }
    }
    run.finish()
}

/// A kernel of Trike or a rival, before its operands are allocated.
#[derive(Clone, Copy)]
enum Who<'a> {
    Ours(Weights, &'static [usize]),
    Theirs(&'a dyn Library),
}

impl Who<'_> {
    /// Whether it is timed with this number of tokens.
    fn is_asked(&self, tokens: usize) -> bool {
        match self {
            Self::Ours(_, own) => own.contains(&tokens),
            Self::Theirs(_) => true,
        }
    }
}

/// Times the products of a case. Operands are allocated once for all numbers of tokens.
fn products(run: &mut Run<'_>, rivals: &[Box<dyn Library>], case: &Case) -> Result<()> {
    let mut tokens = case.tokens();
    tokens.retain(|&tokens| run.options.wants(&case.product(tokens).to_string()));
    let Some(&most) = tokens.last() else { return Ok(()) };
    let rotate = run.options.rotate_mib << 20;
    let mut all: Vec<Who<'_>> =
        case.weights.iter().map(|&(weights, tokens)| Who::Ours(weights, tokens)).collect();
    // The speed of rivals does not depend on zeros.
    if case.zeros == Zeros::Trained {
        all.extend(rivals.iter().map(|rival| Who::Theirs(rival.as_ref())));
    }
    let turns = if fits(run.device, case, &all, most, rotate) { all.len() } else { 1 };
    for party in all.chunks(turns) {
        let mut held: Vec<Box<dyn Operands + '_>> = Vec::new();
        for who in party {
            let (kernel, rival, made) = match *who {
                Who::Ours(weights, tokens) => {
                    let made = Matrices::new(run.device, case, weights, tokens, rotate);
                    (weights.name(), false, made.map(|made| Box::new(made) as Box<dyn Operands + '_>))
                }
                Who::Theirs(library) => {
                    (library.name().to_owned(), true, library.operands(case, &tokens, rotate))
                }
            };
            match made {
                Ok(operands) => held.push(operands),
                Err(error) => {
                    for &tokens in tokens.iter().filter(|&&tokens| who.is_asked(tokens)) {
                        let problem = Some(case.product(tokens).to_string());
                        let (kernel, error) = (kernel.clone(), anyhow::anyhow!("{error:#}"));
                        run.absent(Absent { problem, kernel, rival, error });
                    }
                }
            }
        }
        for &tokens in &tokens {
            run.time(held.iter().flat_map(|operands| operands.entrants(tokens)).collect())?;
        }
    }
    run.settle();
    Ok(())
}

/// Whether the operands of all entries fit into half of the device memory at once, so that they can be interleaved.
fn fits(device: &Device, case: &Case, all: &[Who<'_>], most_tokens: usize, rotate: usize) -> bool {
    /// Assumed memory of a device that does not report it.
    const UNKNOWN: u64 = 4 << 30;
    // Upper bounds: f32 weights in at least two copies, activations and outputs in f32.
    let floats = 4 * case.shape.rows * case.shape.cols;
    let each = rotate.max(2 * floats) + floats + 4 * most_tokens * (case.shape.rows + case.shape.cols);
    let memory = device.capabilities().memory_bytes.unwrap_or(UNKNOWN);
    (all.len() * each) as u64 <= memory / 2
}
