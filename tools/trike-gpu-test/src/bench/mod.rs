//! Times of the operations on one device, as a record.
//!
//! Weights are rotated through more copies than the last cache holds, so that each launch reads them from memory; a figure
//! is the median of several windows by the device's own clock, and each window is many launches. Kernels and rivals of a
//! problem take turns as on the host ([`trike_bench::interleave`]), when the operands of all of them fit. What the device can
//! do at most is measured in the same run, by kernels that only copy or only multiply.
//!
//! The record is written after each problem, and is complete at the end: a run that was cut short leaves what it timed. A
//! problem that fails is in it too, and the others go on.

mod catalogue;
mod entrant;
mod models;
mod operands;
pub mod predict;
pub mod report;
mod rivals;
mod run;
mod targets;

pub use catalogue::{Case, Catalogue, Weights};

use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use trike_bench::{Bases, Record, Zeros};
use trike_cube::{CubeError, Device, DeviceSpec, Runtime};

use entrant::{Absent, Operands};
use operands::Matrices;
use rivals::Library;
use run::Run;

/// What every row is compared with.
pub(crate) const BASES: Bases = Bases { rival: rivals::CUBLAS, kernel: catalogue::ROW_NAME };

/// What to time.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The device, as `cuda:0`; the first one that is not software by default.
    #[arg(long, default_value = "auto")]
    pub device: DeviceSpec,
    /// Only problems whose name contains this.
    #[arg(long)]
    pub filter: Option<String>,
    /// Windows of which the median is taken.
    #[arg(long, default_value_t = 9)]
    pub windows: usize,
    /// Length of a window, in milliseconds.
    #[arg(long, default_value_t = 20)]
    pub window_ms: u64,
    /// Bytes that the rotated weights of a problem take together, in MiB; more than the last cache of the device.
    #[arg(long, default_value_t = 256)]
    pub rotate_mib: usize,
    /// Allow a device that computes on the host: figures of it mean nothing.
    #[arg(long)]
    pub software: bool,
    /// A few tiny problems instead of the catalogue: to try the timing itself.
    #[arg(long)]
    pub tiny: bool,
    /// Write the record to this file, again after each problem.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

impl Options {
    fn wants(&self, problem: &str) -> bool {
        self.filter.as_ref().is_none_or(|part| problem.contains(part.as_str()))
    }

    /// What is timed.
    pub fn catalogue(&self) -> Catalogue {
        if self.tiny { Catalogue::tiny() } else { Catalogue::full() }
    }
}

/// The device to time: `auto` is never software, unless that was asked for and there is nothing else.
fn open(options: &Options) -> trike_cube::Result<Device> {
    match (Device::open(options.device), options.device) {
        (Err(CubeError::NoDevice { .. }), DeviceSpec::Auto) if options.software => {
            Device::open(DeviceSpec::Numbered(Runtime::Wgpu, 0))
        }
        (opened, _) => opened,
    }
}

/// Times the problems; `say` takes tables of figures while they are made.
///
/// # Errors
/// When there is no such device, or the record cannot be written. Problems that fail are in the record.
pub fn run(options: &Options, mut say: impl FnMut(&str)) -> Result<Record> {
    let device = open(options).context("cannot open a device to time")?;
    if device.is_software() && !options.software {
        bail!("{} computes on the host; --software times it all the same", device.name());
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
    for model in &catalogue.models {
        if model.problems().iter().any(|problem| options.wants(problem)) {
            models::time(&mut run, model)?;
            run.settle();
        }
    }
    run.finish()
}

/// A kernel of ours or a rival, before it has operands.
#[derive(Clone, Copy)]
enum Who<'a> {
    Ours(Weights, &'static [usize]),
    Theirs(&'a dyn Library),
}

impl Who<'_> {
    /// Whether it is timed with so many tokens.
    fn is_asked(&self, tokens: usize) -> bool {
        match self {
            Self::Ours(_, own) => own.contains(&tokens),
            Self::Theirs(_) => true,
        }
    }
}

/// The products of a case. Operands are made once for all numbers of tokens.
fn products(run: &mut Run<'_>, rivals: &[Box<dyn Library>], case: &Case) -> Result<()> {
    let mut tokens = case.tokens();
    tokens.retain(|&tokens| run.options.wants(&case.product(tokens).to_string()));
    let Some(&most) = tokens.last() else { return Ok(()) };
    let rotate = run.options.rotate_mib << 20;
    let mut all: Vec<Who<'_>> =
        case.weights.iter().map(|&(weights, tokens)| Who::Ours(weights, tokens)).collect();
    // Zeros are nothing special to rivals.
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

/// Whether the operands of all fit into half of the device's memory at once, so that all can take turns.
fn fits(device: &Device, case: &Case, all: &[Who<'_>], most_tokens: usize, rotate: usize) -> bool {
    /// What a device has that does not say.
    const UNKNOWN: u64 = 4 << 30;
    // Two copies at least, of halves at most; activations and outputs in f32 at most.
    let halves = 2 * case.shape.rows * case.shape.cols;
    let each = rotate.max(2 * halves) + halves + 4 * most_tokens * (case.shape.rows + case.shape.cols);
    let memory = device.capabilities().memory_bytes.unwrap_or(UNKNOWN);
    (all.len() * each) as u64 <= memory / 2
}
