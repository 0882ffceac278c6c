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
pub mod explore;
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

use anyhow::{Context, Result, bail, ensure};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use trike_bench::{Bases, Record, Zeros};
use trike_cube::{Capabilities, CubeDevice, CubeError, DeviceSpec, Runtime, devices};

use entrant::{Absent, Operands};
use operands::Matrices;
use rivals::Library;
use run::Run;

/// References of the speedup columns.
pub(crate) const BASES: Bases = Bases { rival: rivals::CUBLAS, kernel: catalogue::ROW_NAME };

/// Options of a run.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Devices, comma-separated, such as `cuda:0,vulkan:1`; `cuda` for all of a runtime, `all` for all; by default the first.
    /// Software devices only with `--software`.
    #[arg(long = "device", value_name = "DEVICES", value_delimiter = ',', default_value = "auto")]
    pub devices: Vec<Choice>,
    /// Time only problems whose name contains this text.
    #[arg(long)]
    pub filter: Option<String>,
    /// Rivals to leave out, by a part of their names, comma-separated.
    #[arg(long, value_delimiter = ',')]
    pub without: Vec<String>,
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
    /// Write the record to this file after each problem; with several devices one for each, their names added to the file's.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Devices to time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Every device of every runtime.
    All,
    /// Those of one runtime.
    Of(Runtime),
    /// One device.
    One(DeviceSpec),
}

impl std::str::FromStr for Choice {
    type Err = <DeviceSpec as std::str::FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "all" {
            return Ok(Self::All);
        }
        match Runtime::ALL.into_iter().find(|runtime| runtime.name() == text) {
            Some(runtime) => Ok(Self::Of(runtime)),
            None => text.parse().map(Self::One),
        }
    }
}

impl Options {
    /// The devices to time, each once and with the file of its record.
    ///
    /// # Errors
    /// When no device is found.
    pub fn runs(&self) -> Result<Vec<(DeviceSpec, Option<PathBuf>)>> {
        let of = |of: Option<Runtime>| {
            let software = self.software;
            let timed = move |found: &Capabilities| software || !found.software;
            let found = devices().into_iter().filter(move |info| info.capabilities.as_ref().is_ok_and(timed));
            let specs = found.map(|info| info.spec);
            specs.filter(move |spec| {
                of.is_none_or(|of| matches!(spec, DeviceSpec::Numbered(r, _) if *r == of))
            })
        };
        let mut all = Vec::new();
        for choice in &self.devices {
            match *choice {
                Choice::One(spec) => all.push(spec),
                Choice::All => all.extend(of(None)),
                Choice::Of(runtime) => all.extend(of(Some(runtime))),
            }
        }
        let mut seen = HashSet::new();
        all.retain(|spec| seen.insert(*spec));
        ensure!(!all.is_empty(), "no GPU was found through the runtimes of this build");
        let several = all.len() > 1;
        let file = |spec: &DeviceSpec| {
            let file = self.output.as_ref()?;
            Some(if several { file_of(file, *spec) } else { file.clone() })
        };
        Ok(all.into_iter().map(|spec| (spec, file(&spec))).collect())
    }

    fn wants(&self, problem: &str) -> bool {
        self.filter.as_ref().is_none_or(|part| problem.contains(part.as_str()))
    }

    /// The problems to time.
    pub fn catalogue(&self) -> Catalogue {
        if self.tiny { Catalogue::tiny() } else { Catalogue::full() }
    }
}

/// `folder/bench.json` as `folder/bench-cuda-0.json`.
fn file_of(file: &Path, spec: DeviceSpec) -> PathBuf {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let name = format!("{stem}-{}", spec.to_string().replace(':', "-"));
    file.with_file_name(name).with_extension(file.extension().unwrap_or_default())
}

/// Opens a device. `auto` selects a software device only with `--software` and if there is no other.
fn open(spec: DeviceSpec, options: &Options) -> trike_cube::Result<CubeDevice> {
    match (CubeDevice::open(spec), spec) {
        (Err(CubeError::NoDevice { .. }), DeviceSpec::Auto) if options.software => {
            CubeDevice::open(DeviceSpec::Numbered(Runtime::Wgpu, 0))
        }
        (opened, _) => opened,
    }
}

/// Times the problems on a device; `say` receives the tables as they are finished, `file` the record.
///
/// # Errors
/// If the device cannot be opened or the record cannot be written. Failures of single problems are stored in the record.
pub fn run(
    options: &Options,
    spec: DeviceSpec,
    file: Option<PathBuf>,
    mut say: impl FnMut(&str),
) -> Result<Record> {
    let device = open(spec, options).with_context(|| format!("cannot open {spec} to time it"))?;
    if device.is_software() && !options.software {
        bail!("{} is a software device; pass --software to time it anyway", device.name());
    }
    let mut run = Run::new(&device, options, file, &mut say);
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
fn fits(device: &CubeDevice, case: &Case, all: &[Who<'_>], most_tokens: usize, rotate: usize) -> bool {
    /// Assumed memory of a device that does not report it.
    const UNKNOWN: u64 = 4 << 30;
    // Upper bounds: f32 weights in at least two copies, activations and outputs in f32.
    let floats = 4 * case.shape.rows * case.shape.cols;
    let each = rotate.max(2 * floats) + floats + 4 * most_tokens * (case.shape.rows + case.shape.cols);
    let memory = device.capabilities().memory_bytes.unwrap_or(UNKNOWN);
    (all.len() * each) as u64 <= memory / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn each_device_is_timed_once_into_a_file_of_its_own() {
        let of = |arguments: &[&str]| {
            Cli::try_parse_from(["bench"].iter().chain(arguments)).map(|cli| cli.options)
        };
        let one = of(&["--output", "a/b.json"]).unwrap().runs().unwrap();
        assert_eq!(one, [(DeviceSpec::Auto, Some("a/b.json".into()))]);
        let several = of(&["--device", "cuda:0,vulkan:1,cuda:0", "-o", "a/b.json"]).unwrap().runs().unwrap();
        let [cuda, vulkan] =
            [(Runtime::Cuda, 0), (Runtime::Vulkan, 1)].map(|(r, n)| DeviceSpec::Numbered(r, n));
        let files = ["a/b-cuda-0.json", "a/b-vulkan-1.json"].map(|file| Some(file.into()));
        assert_eq!(several, [cuda, vulkan].into_iter().zip(files).collect::<Vec<_>>());
        assert!(of(&["--device", "cuda:x"]).is_err());
    }
}
