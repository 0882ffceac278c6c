//! Times of the operations on one device, as lines of JSON: a record.
//!
//! Weights are rotated through more copies than the last cache holds, so that each launch reads them from memory; a figure
//! is the median of several windows by the device's own clock, and each window is many launches. What the device can do at
//! most is measured in the same run, by kernels that only copy or only multiply.
//!
//! The first line says where and how, the last one how many figures there are: a record without it is of a run that did not
//! end. A problem that fails is a line too, and the others go on. Rivals come after Trike's own figures, in the same run.

mod catalogue;
mod models;
mod operands;
pub mod predict;
pub mod report;
mod rivals;
mod timer;

pub use catalogue::{Attention, Catalogue, Model, Product, Weights, Zeros};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};
use timer::{Sample, Timer};
use trike_cube::{Buffer, Cost, CubeError, Device, DeviceSpec, Products, Runtime};

/// The version of the records' schema.
pub const SCHEMA: u64 = 1;

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

/// What a device can do at most, as this run measured it.
#[derive(Clone, Copy, Debug, Default)]
struct Ceilings {
    /// Bytes a second of a copy, reads and writes together.
    bytes: Option<f64>,
    /// Operations a second of int8 matrix instructions, or of dot products of four bytes where there are none.
    int8: Option<f64>,
    /// Operations a second of f16 matrix instructions.
    f16: Option<f64>,
}

/// Which arithmetic a figure is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arithmetic {
    Int8,
    F16,
}

/// Writes a record.
struct Record<'a> {
    say: &'a mut dyn FnMut(&str),
    ceilings: Ceilings,
    figures: usize,
    failures: usize,
    not_run: usize,
}

impl Record<'_> {
    fn line(&mut self, value: &Value) {
        (self.say)(&value.to_string());
    }

    /// Why a rival has no figure, of one problem or of all.
    fn not_run(&mut self, rival: &str, problem: Option<&str>, reason: &str) {
        self.not_run += 1;
        self.line(&json!({ "problem": problem, "kernel": rival, "not_run": reason }));
    }

    /// A figure, or why there is none.
    fn figure(
        &mut self,
        problem: &str,
        kernel: &str,
        arithmetic: Arithmetic,
        measured: Result<(Sample, Cost, String)>,
    ) {
        let (sample, cost, blueprint) = match measured {
            Ok(measured) => measured,
            Err(e) => {
                self.failures += 1;
                let error = format!("{e:#}");
                return self.line(&json!({ "problem": problem, "kernel": kernel, "error": error }));
            }
        };
        self.figures += 1;
        let rate = |count: u64| count as f64 / sample.seconds;
        let peak = match arithmetic {
            Arithmetic::Int8 => self.ceilings.int8,
            Arithmetic::F16 => self.ceilings.f16,
        };
        let share = |count: u64, most: Option<f64>| most.map(|most| rate(count) / most);
        self.line(&json!({
            "problem": problem,
            "kernel": kernel,
            "blueprint": blueprint,
            "microseconds": sample.seconds * 1e6,
            "spread": sample.spread,
            "gigabytes_per_second": rate(cost.bytes) / 1e9,
            "tera_operations_per_second": rate(cost.operations()) / 1e12,
            "share_of_copy": share(cost.bytes, self.ceilings.bytes),
            "share_of_arithmetic": share(cost.operations(), peak),
        }));
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

/// Times the problems; `say` takes the lines of the record.
///
/// # Errors
/// When there is no such device, or when a problem failed, after all others were timed.
pub fn run(options: &Options, mut say: impl FnMut(&str)) -> Result<()> {
    let device = open(options).context("cannot open a device to time")?;
    if device.is_software() && !options.software {
        bail!("{} computes on the host; --software times it all the same", device.name());
    }
    let capabilities = device.capabilities();
    let timer = Timer::new(&device, options.windows, options.window_ms);
    let ceilings = Ceilings::default();
    let mut record = Record { say: &mut say, ceilings, figures: 0, failures: 0, not_run: 0 };
    record.line(&json!({
        "schema": SCHEMA,
        "date": now(),
        "version": env!("CARGO_PKG_VERSION"),
        "adapter": device.name(),
        "spec": device.spec().to_string(),
        "driver": driver(),
        "software": device.is_software(),
        "multiprocessors": capabilities.multiprocessors,
        "memory_bytes": capabilities.memory_bytes,
        "windows": options.windows,
        "window_ms": options.window_ms,
        "rotate_mib": options.rotate_mib,
        "full": options.filter.is_none() && !options.tiny,
    }));
    measure_ceilings(&timer, options, &mut record);
    let catalogue = options.catalogue();
    products(&timer, options, &catalogue, &mut record);
    for attention in catalogue.attention.iter().filter(|a| options.wants(&a.name())) {
        let measured = operands::attention(&timer, attention);
        record.figure(&attention.name(), "trike", Arithmetic::F16, measured);
    }
    for model in &catalogue.models {
        if model.problems().iter().any(|problem| options.wants(problem)) {
            models::model(&device, model, options.windows, &mut record);
        }
    }
    rivals::all(&timer, options, &catalogue, &mut record);
    let Record { figures, failures, not_run, .. } = record;
    record.line(&json!({ "end": true, "figures": figures, "failures": failures, "not_run": not_run }));
    if failures > 0 {
        bail!("{failures} problems failed, {figures} were timed");
    }
    Ok(())
}

/// The products of the catalogue: operands of a shape are made once for all numbers of tokens.
fn products(timer: &Timer<'_>, options: &Options, catalogue: &Catalogue, record: &mut Record<'_>) {
    let wanted: Vec<_> =
        catalogue.products.iter().filter(|(product, _)| options.wants(&product.name())).collect();
    let same = |a: &&(Product, Weights), b: &&(Product, Weights)| {
        (a.0.rows, a.0.cols, a.0.zeros, a.1) == (b.0.rows, b.0.cols, b.0.zeros, b.1)
    };
    for group in wanted.chunk_by(same) {
        let (first, weights) = *group[0];
        let matrices = operands::Matrices::new(timer.device(), first, weights, options.rotate_mib << 20);
        for (product, _) in group {
            let name = product.name();
            let arithmetic = if weights == Weights::F16 { Arithmetic::F16 } else { Arithmetic::Int8 };
            let measured = match &matrices {
                Ok(matrices) => matrices.product(timer, product.tokens),
                Err(e) => Err(anyhow::anyhow!("{e:#}")),
            };
            record.figure(&name, &weights.name(), arithmetic, measured);
            let copied = matrices.as_ref().ok().and_then(|matrices| matrices.copied(timer, product.tokens));
            if let Some(copied) = copied {
                let kernel = format!("{}, asynchronous copies", weights.name());
                record.figure(&name, &kernel, arithmetic, copied);
            }
        }
    }
}

/// What the device can do at most. Always measured: every share needs it.
fn measure_ceilings(timer: &Timer<'_>, options: &Options, record: &mut Record<'_>) {
    let device = timer.device();
    let copy = || -> Result<(Sample, Cost, String)> {
        // A half is read, the other written.
        let words = (options.rotate_mib << 20) / 8;
        let words = words.min((device.capabilities().max_buffer_bytes / 4) as usize).next_multiple_of(4096);
        let from = device.upload(&vec![0x3f80_0000u32; words])?;
        let to: Buffer<u32> = device.empty(words)?;
        let cost = device.probe_copy(&from, &to)?;
        Ok((timer.median(|_| device.probe_copy(&from, &to).map(drop))?, cost, String::new()))
    };
    let measured = copy();
    record.ceilings.bytes =
        measured.as_ref().ok().map(|(sample, cost, _)| cost.bytes as f64 / sample.seconds);
    record.figure("copy", "probe", Arithmetic::Int8, measured);
    for products in Products::ALL.into_iter().filter(|p| p.is_supported(device.capabilities())) {
        let measure = || -> Result<(Sample, Cost, String)> {
            // Eight cubes a multiprocessor fill it with warps; a device that computes on the host gets few.
            let cubes = device.capabilities().multiprocessors.map_or(16, |n| 8 * n as usize);
            let out: Buffer<i32> = device.empty(256 * cubes)?;
            let rounds = if device.is_software() { 4 } else { 4096 };
            let cost = device.probe_products(products, rounds, &out)?;
            let sample = timer.median(|_| device.probe_products(products, rounds, &out).map(drop))?;
            Ok((sample, cost, String::new()))
        };
        let measured = measure();
        let rate = measured.as_ref().ok().map(|(sample, cost, _)| cost.operations() as f64 / sample.seconds);
        match products {
            // Matrix instructions come later and take the place of dot products.
            Products::Dp4a | Products::Int8Mma => record.ceilings.int8 = rate.or(record.ceilings.int8),
            Products::F16Mma => record.ceilings.f16 = rate,
        }
        record.figure(products.name(), "probe", Arithmetic::Int8, measured);
    }
}

/// The driver's version, where NVIDIA's says it without a tool.
fn driver() -> Option<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    text.lines().next().map(str::to_owned)
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
