//! Times of the operations on one device, as lines of JSON.
//!
//! Weights are rotated through more copies than the last cache holds, so that each launch reads them from memory; a figure
//! is the median of several windows by the device's own clock, and each window is many launches.

use anyhow::{Context, Result, bail};
use serde_json::json;
use std::time::Duration;
use trike_cube::linear::{ActivationPrecision, ActivationShape, Activations, LinearProblem, TernaryMatrix};
use trike_cube::{Buffer, Cost, Device, DeviceSpec, Plan, Strategy};
use trike_testkit::Rng;
use trike_trit::{Encoding, Granularity, GroupSize, ScaleValues, Scales, TritTensor};

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
    /// Bytes that the rotated weights of a problem take together, in MiB; more than the last cache of the device.
    #[arg(long, default_value_t = 512)]
    pub rotate_mib: usize,
    /// Allow a device that computes on the host: figures of it mean nothing.
    #[arg(long)]
    pub software: bool,
}

/// Rows and columns of the weights that are timed: those of the models and of the rivals' tables.
const SHAPES: &[(usize, usize)] =
    &[(2560, 2560), (2560, 6912), (13824, 2560), (4096, 4096), (4096, 14336), (8192, 28672)];
/// Tokens.
const TOKENS: &[usize] = &[1, 2, 4, 8, 16, 32, 64, 128, 2048, 8192];

/// Times the problems; `say` takes a line of JSON for the device and for each problem.
///
/// # Errors
/// When there is no such device, or a launch fails.
pub fn run(options: &Options, mut say: impl FnMut(&str)) -> Result<()> {
    let device = Device::open(options.device).context("cannot open a device to time")?;
    if device.is_software() && !options.software {
        bail!("{} computes on the host; --software times it all the same", device.name());
    }
    let capabilities = device.capabilities();
    say(&json!({
        "schema": 1,
        "device": device.name(),
        "spec": device.spec().to_string(),
        "software": device.is_software(),
        "multiprocessors": capabilities.multiprocessors,
        "memory_bytes": capabilities.memory_bytes,
        "windows": options.windows,
        "rotate_mib": options.rotate_mib,
    })
    .to_string());
    copy_bandwidth(&device, options, &mut say)?;
    for &(rows, cols) in SHAPES {
        if !TOKENS.iter().any(|&m| wanted(options, &name(rows, cols, m))) {
            continue;
        }
        let matrices = matrices(&device, rows, cols, options.rotate_mib << 20)?;
        for &tokens in TOKENS {
            let name = name(rows, cols, tokens);
            if wanted(options, &name) {
                say(&linear(&device, &matrices, tokens, options, &name)?);
            }
        }
    }
    Ok(())
}

fn name(rows: usize, cols: usize, tokens: usize) -> String {
    format!("ternary linear {rows}x{cols} m={tokens} int8 group128")
}

fn wanted(options: &Options, name: &str) -> bool {
    options.filter.as_ref().is_none_or(|part| name.contains(part.as_str()))
}

/// As many matrices as take `bytes`, with random codes: packed once, uploaded several times.
fn matrices(device: &Device, rows: usize, cols: usize, bytes: usize) -> Result<Vec<TernaryMatrix>> {
    let mut rng = Rng::new(7);
    let trits = rng.trits(rows * cols, 0.6);
    let granularity = Granularity::Group(GroupSize::G128);
    let scales = vec![0.5f32; rows * granularity.groups_per_row(cols)];
    let scales = Scales::new(granularity, ScaleValues::exact(&scales), None);
    let tensor = TritTensor::from_trits(rows, cols, &trits, Encoding::TwoBit, scales)?;
    let first = TernaryMatrix::pack(device, &[&tensor])?;
    let copies = bytes.div_ceil(first.bytes()).clamp(2, 64);
    let mut all = vec![first];
    for _ in 1..copies {
        all.push(TernaryMatrix::pack(device, &[&tensor])?);
    }
    Ok(all)
}

fn linear(
    device: &Device,
    matrices: &[TernaryMatrix],
    tokens: usize,
    options: &Options,
    name: &str,
) -> Result<String> {
    let form = matrices[0].form().clone();
    let (rows, cols) = (form.rows(), form.cols);
    let shape = ActivationShape { tokens, cols, precision: ActivationPrecision::Int8PerToken };
    let problem = LinearProblem { x: shape, w: form, add: false };
    let (blueprint, _) = problem.plan(&Strategy::Inferred, device.capabilities())?;
    let x = Activations::upload(device, shape, &Rng::new(3).normals(tokens * cols))?;
    let out: Buffer<f32> = device.empty(tokens * rows)?;
    let forced = Strategy::Forced(blueprint);
    let launch = |i: usize| device.linear(&x, &matrices[i % matrices.len()], &[&out], &forced);
    let time = median(device, options.windows, launch)?;
    Ok(line(name, &format!("{blueprint:?}"), &problem.cost(), time))
}

/// The bandwidth of filling memory, the only ceiling that needs no kernel of its own.
fn copy_bandwidth(device: &Device, options: &Options, say: &mut impl FnMut(&str)) -> Result<()> {
    let name = "write bandwidth";
    if !wanted(options, name) {
        return Ok(());
    }
    let len = (options.rotate_mib << 20) / 4;
    let buffer: Buffer<u32> = device.empty(len)?;
    let time = median(device, options.windows, |_| device.fill(&buffer, 0x3f80_0000))?;
    let cost = Cost { operations: 0, bytes: 4 * len as u64 };
    say(&line(name, "fill", &cost, time));
    Ok(())
}

fn line(name: &str, blueprint: &str, cost: &Cost, time: Duration) -> String {
    let seconds = time.as_secs_f64();
    json!({
        "problem": name,
        "blueprint": blueprint,
        "microseconds": seconds * 1e6,
        "gigabytes_per_second": cost.bytes as f64 / seconds / 1e9,
        "tera_operations_per_second": cost.operations as f64 / seconds / 1e12,
    })
    .to_string()
}

/// The median time of a launch by the device's clock, after one that compiles it.
fn median(
    device: &Device,
    windows: usize,
    launch: impl Fn(usize) -> trike_cube::Result<()> + Sync,
) -> Result<Duration> {
    launch(0)?;
    device.sync()?;
    // Enough launches in a window that its ends do not count: 20 ms, judged by a short window.
    let few = timed(device, 4, 0, &launch)?.max(Duration::from_nanos(100));
    let launches = (Duration::from_millis(20).as_nanos() / few.as_nanos()).clamp(2, 4096) as usize;
    let mut times = Vec::with_capacity(windows);
    for window in 0..windows.max(1) {
        times.push(timed(device, launches, window * launches, &launch)?);
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// The time of one of `launches` launches.
fn timed(
    device: &Device,
    launches: usize,
    first: usize,
    launch: &(impl Fn(usize) -> trike_cube::Result<()> + Sync),
) -> Result<Duration> {
    let time = device.timed(|| (first..first + launches).try_for_each(launch))?;
    Ok(time / u32::try_from(launches)?)
}
