//! `trike doctor`.

use std::collections::BTreeMap;

use clap::CommandFactory;
use serde::Serialize;
use trike::{
    Isa,
    cpu::probe::{self, Probe},
    llm::DeviceReport,
};

use super::shipped;
use crate::{
    args::{Cli, DoctorArgs},
    progress::Progress,
};

/// Capabilities of this machine. The field names are the schema of `trike doctor --json`.
#[derive(Debug, Serialize)]
pub(crate) struct Diagnosis {
    pub(crate) version: &'static str,
    /// CPU model name, if the system reports it.
    pub(crate) processor: Option<String>,
    /// Instruction sets that Trike has kernels for and the machine supports.
    pub(crate) isa_available: Vec<&'static str>,
    /// The instruction set in use.
    pub(crate) isa: &'static str,
    pub(crate) threads: usize,
    /// Memory bandwidth in bytes per second.
    pub(crate) bandwidth: Measured,
    /// Int8 multiply-adds per second.
    pub(crate) int8_peak: Measured,
    /// GPUs supported by this build, including software drivers.
    pub(crate) devices: Vec<DeviceReport>,
    /// Path of the bundled model.
    pub(crate) shipped_model: Option<String>,
    /// Environment variables that the command reads and that are set.
    pub(crate) environment: BTreeMap<String, String>,
    /// Whether the text has all variants of the peaks.
    #[serde(skip)]
    pub(crate) verbose: bool,
}

/// A measured peak rate.
#[derive(Debug, Serialize)]
pub(crate) struct Measured {
    pub(crate) unit: &'static str,
    pub(crate) best: f64,
    pub(crate) best_variant: &'static str,
    /// Results of all variants.
    pub(crate) variants: BTreeMap<&'static str, f64>,
}

impl From<Probe> for Measured {
    fn from(probe: Probe) -> Self {
        Self {
            unit: probe.unit,
            best: probe.best().figure,
            best_variant: probe.best().name,
            variants: probe.variants.iter().map(|v| (v.name, v.figure)).collect(),
        }
    }
}

/// Inspects the machine and measures its peak rates.
pub(crate) fn doctor(args: &DoctorArgs, quiet: bool) -> anyhow::Result<Diagnosis> {
    let cpu = args.cpu.cpu()?;
    let progress = Progress::start("measuring", quiet);
    let bandwidth = probe::memory_bandwidth(&cpu)?;
    progress.set(1, 2);
    Ok(Diagnosis {
        version: env!("CARGO_PKG_VERSION"),
        processor: processor(),
        isa_available: Isa::available().into_iter().map(Isa::name).collect(),
        isa: cpu.isa().name(),
        threads: cpu.threads(),
        bandwidth: bandwidth.into(),
        int8_peak: probe::int8_peak(&cpu).into(),
        devices: trike::devices(),
        shipped_model: shipped::find().ok().map(|path| path.display().to_string()),
        environment: environment(),
        verbose: args.verbose,
    })
}

/// The model name of the first logical CPU, as reported by Linux.
fn processor() -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'))?.1;
    Some(name.trim().to_owned())
}

/// All set variables among those read by an option of some command, those of the hub, and `NO_COLOR`.
fn environment() -> BTreeMap<String, String> {
    let cli = Cli::command();
    let commands = std::iter::once(&cli).chain(cli.get_subcommands());
    let options = commands.flat_map(clap::Command::get_arguments).filter_map(clap::Arg::get_env);
    options
        .filter_map(|name| name.to_str())
        .chain(["NO_COLOR"])
        .chain(trike::hub::Hub::VARIABLES)
        .filter_map(|name| Some((name.to_owned(), std::env::var_os(name)?.to_string_lossy().into_owned())))
        .collect()
}
