//! Times many kernels for one problem: the measurements from which plans are made.
//!
//! A plan chooses a kernel by a predicted time ([`trike_cube::linear`], [`trike_cube::attention`]). `trike-gpu-test explore` times
//! kernels of every kind, whether a plan would choose them or not, and prints a line for each, so that the rates behind the
//! predictions can be fitted and a choice can be compared with the best of all.

use anyhow::{Context, Result};
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::time::Duration;
use trike_bench::{Attention, Heads, Shape, Zeros, median};
use trike_cube::linear::{
    Activations, DecodeBlueprint, LinearBlueprint, MmaShape, SplitBlueprint, TernaryProblem,
};
use trike_cube::{Buffer, CubeDevice, DeviceSpec, KernelProblem, Strategy};
use trike_testkit::Rng;

use super::catalogue::{Case, G128, ROW};
use super::operands::{Copies, Prepared, activations, asked};

/// Options of a run.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Device, such as `cuda:0`.
    #[arg(long, default_value = "auto")]
    device: DeviceSpec,
    /// Numbers of tokens of products, comma-separated.
    #[arg(long, value_delimiter = ',', required_unless_present = "positions", value_parser = count)]
    tokens: Vec<usize>,
    /// Scales for groups of 128 weights instead of rows.
    #[arg(long)]
    groups: bool,
    /// Numbers of positions of attention, comma-separated.
    #[arg(long, value_delimiter = ',', value_parser = count)]
    positions: Vec<usize>,
    /// Only shapes whose name contains this.
    #[arg(long)]
    filter: Option<String>,
    /// One kernel of so many is timed, in addition to the inferred one.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    sample: u64,
    /// File that is locked while kernels are timed, so that several processes compile at once and time one after another.
    #[arg(long)]
    lock: Option<PathBuf>,
}

fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=1_048_576) => Ok(count),
        _ => Err("expected a number from 1 to 1048576".to_owned()),
    }
}

/// Turns of a kernel; the median counts.
const TURNS: usize = 3;
/// Length of a turn at least.
const TURN: Duration = Duration::from_micros(1200);
/// Bytes of all copies of a matrix: three times the last cache of an H200.
const ROTATED: usize = 160 << 20;
/// Shapes of products.
const SHAPES: [Shape; 5] =
    [Shape::ATTENTION_2B, Shape::DOWN_2B, Shape::GATE_UP_2B, Shape::SQUARE, Shape::DOWN_8B];

/// A kernel that is compiled and was launched once.
struct Trial<'a> {
    problem: String,
    kernel: String,
    inferred: bool,
    copies: usize,
    launch: Box<dyn Fn(usize) -> trike_cube::Result<()> + Sync + 'a>,
}

/// Times the kernels; `say` is called with a line for each: problem, kernel, nanoseconds, and whether it is the inferred one.
///
/// # Errors
/// If the device cannot be opened or the lock cannot be taken. A kernel that fails has a line with its error.
pub fn run(options: &Options, mut say: impl FnMut(&str)) -> Result<()> {
    let device = &CubeDevice::open(options.device)?;
    let wanted = |name: &str| options.filter.as_ref().is_none_or(|part| name.contains(part.as_str()));
    let weights = if options.groups { G128 } else { ROW };
    let mut cases = Vec::new();
    for shape in SHAPES.into_iter().filter(|shape| wanted(shape.name)) {
        cases.push(Case { shape, zeros: Zeros::Trained, weights: vec![(weights, &[])] });
    }
    let most = options.tokens.iter().max().copied().unwrap_or(0);
    let rotated = if most > 512 { 1 } else { ROTATED };
    let mut held = Vec::new();
    if most > 0 {
        for case in &cases {
            held.push((case, Copies::new(device, case, weights, rotated)?));
        }
    }
    let mut prepared = Vec::new();
    for heads in [Heads::B7, Heads::B8, Heads::B2] {
        for &positions in &options.positions {
            for batch in [1, 8] {
                prepared.push((
                    Attention { heads, tokens: 1, positions, batch },
                    Prepared::new(device, &Attention { heads, tokens: 1, positions, batch })?,
                ));
            }
        }
    }
    let mut trials = Vec::new();
    for (case, copies) in &held {
        for &tokens in &options.tokens {
            products(device, options, case, copies, tokens, &mut trials, &mut say)?;
        }
    }
    for (case, operands) in &prepared {
        attention(device, options, case, operands, &mut trials, &mut say)?;
    }
    say(&format!("# {} kernels are compiled", trials.len()));
    let lock = options.lock.as_ref().map(File::create).transpose().context("cannot create the lock")?;
    if let Some(lock) = &lock {
        lock.lock().context("cannot take the lock")?;
    }
    for trial in &trials {
        let time = time(device, trial).map(|time| format!("{time:.0}"));
        let time = time.unwrap_or_else(|e| format!("{e:#}"));
        let inferred = if trial.inferred { "inferred" } else { "" };
        say(&format!("{}\t{}\t{time}\t{inferred}", trial.problem, trial.kernel));
    }
    Ok(())
}

/// Nanoseconds per call.
fn time(device: &CubeDevice, trial: &Trial<'_>) -> Result<f64> {
    let calls = 16usize.next_multiple_of(trial.copies);
    let (graph, ()) = device.capture(|| (0..calls).try_for_each(&trial.launch))?;
    let once = device.timed(|| graph.replay())?;
    let replays = (TURN.as_nanos() / once.as_nanos().max(1)).clamp(1, 1000) as u64;
    let turn = || -> Result<f64> {
        let all = device.timed(|| (0..replays).try_for_each(|_| graph.replay()))?;
        Ok(all.as_nanos() as f64 / (replays * calls as u64) as f64)
    };
    let turns = std::iter::repeat_with(turn).take(TURNS).collect::<Result<Vec<f64>>>()?;
    median(&turns).context("no turns")
}

fn in_sample(options: &Options, kernel: &impl Hash) -> bool {
    let mut hasher = DefaultHasher::new();
    kernel.hash(&mut hasher);
    hasher.finish().is_multiple_of(options.sample)
}

fn products<'a>(
    device: &'a CubeDevice,
    options: &Options,
    case: &Case,
    copies: &'a Copies,
    tokens: usize,
    trials: &mut Vec<Trial<'a>>,
    say: &mut impl FnMut(&str),
) -> Result<()> {
    let product = case.product(tokens);
    let Copies::Ternary(all) = copies else { return Ok(()) };
    let problem = TernaryProblem { x: activations(&product), w: all[0].form().clone(), add: false };
    let (inferred, _) = problem.plan(&Strategy::Inferred, device.capabilities())?;
    let values = Rng::new(3).normals(tokens * case.shape.cols);
    let mut blueprints = vec![inferred];
    let others = blueprints_for(tokens).into_iter().filter(|b| *b != inferred && in_sample(options, b));
    blueprints.extend(others);
    for blueprint in blueprints {
        let settings = problem.settings(&blueprint, device.capabilities());
        if settings.and_then(|s| s.check(TernaryProblem::NAME, device.capabilities())).is_err() {
            continue;
        }
        let x = Activations::upload(device, problem.x, &values)?;
        let out: Buffer<f32> = device.empty(tokens * case.shape.rows)?;
        let forced = Strategy::Forced(blueprint);
        let launch = move |i: usize| device.linear(&x, &all[i % all.len()], &[&out], &forced);
        let problem = format!("{product}, {}", case.weights[0].0.name());
        let trial = Trial {
            problem,
            kernel: blueprint.name(),
            inferred: blueprint == inferred,
            copies: all.len(),
            launch: Box::new(launch),
        };
        keep(device, trial, trials, say);
    }
    Ok(())
}

/// Compiles a kernel by a launch, and keeps it if that works.
fn keep<'a>(device: &CubeDevice, trial: Trial<'a>, trials: &mut Vec<Trial<'a>>, say: &mut impl FnMut(&str)) {
    match (trial.launch)(0).and_then(|()| device.sync()) {
        Ok(()) => trials.push(trial),
        Err(e) => say(&format!("{}\t{}\t{e}\t", trial.problem, trial.kernel)),
    }
}

/// Kernels of every kind for a number of tokens.
fn blueprints_for(tokens: usize) -> Vec<LinearBlueprint> {
    let mut all = Vec::new();
    if tokens <= 8 {
        for splits in [1, 2, 4, 8, 16, 32] {
            let decode = DecodeBlueprint { rows: tokens.next_power_of_two(), splits };
            all.push(LinearBlueprint::Decode(decode));
            for cubes in [2, 4, 8] {
                all.push(LinearBlueprint::Split(SplitBlueprint { decode, cubes }));
            }
        }
    }
    let most = tokens.div_ceil(8).next_power_of_two();
    for octets in [1, 2, 4, 8] {
        for code_planes in [1, 2, 4] {
            for tiles in [1, 2, 4] {
                for row_planes in [1, 2, 4] {
                    for splits in [1, 2, 4, 8, 16] {
                        for cubes in [1, 2, 4, 8] {
                            for stages in [2, 3, 4] {
                                let shape = MmaShape {
                                    tiles,
                                    octets,
                                    row_planes,
                                    code_planes,
                                    splits,
                                    stages,
                                    cubes,
                                };
                                let wide = octets * code_planes;
                                if tokens > 1
                                    && wide <= most
                                    && 4 * wide >= most.min(16)
                                    && shape.planes() >= 2
                                {
                                    all.push(LinearBlueprint::Mma(shape));
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    all
}

fn attention<'a>(
    device: &'a CubeDevice,
    options: &Options,
    case: &Attention,
    operands: &'a Prepared,
    trials: &mut Vec<Trial<'a>>,
    say: &mut impl FnMut(&str),
) -> Result<()> {
    let problem = asked(device, case);
    let (inferred, _) = problem.plan(&Strategy::Inferred, device.capabilities())?;
    let mut blueprints = vec![inferred];
    for units in [64, 128, 256, 512] {
        for heads in [1, 2, 4] {
            for splits in [1, 2, 4, 8, 16, 32, 64, 128] {
                let blueprint = trike_cube::attention::AttentionBlueprint::Decode { units, heads, splits };
                if blueprint != inferred && in_sample(options, &blueprint) {
                    blueprints.push(blueprint);
                }
            }
        }
    }
    for blueprint in blueprints {
        let settings = problem.settings(&blueprint, device.capabilities());
        if settings.and_then(|s| s.check("attention", device.capabilities())).is_err() {
            continue;
        }
        let trial = Trial {
            problem: case.to_string(),
            kernel: format!("{blueprint:?}"),
            inferred: blueprint == inferred,
            copies: 1,
            launch: Box::new(move |_| operands.launch(device, &Strategy::Forced(blueprint))),
        };
        keep(device, trial, trials, say);
    }
    Ok(())
}
