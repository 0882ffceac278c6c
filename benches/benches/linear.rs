//! `y = x W^T` at the shapes of the catalogue: ternary, int8 and dense kernels beside candle, with their shares of the
//! ceilings that the same run measured.
#![allow(clippy::print_stdout, reason = "a benchmark reports on stdout")]

mod common;
#[path = "common/rival.rs"]
mod rival;

use std::error::Error;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion};
use rival::Rival;
use trike_benches::{Ceilings, Kernel, Problem, Row, SHAPES, Shape, Weights, table};
use trike_cpu::{Cpu, Isa};
use trike_testkit::Rng;

/// The rival that the last column of the report is relative to.
const BASE: &str = "candle f32";
/// The shapes at which slower instruction sets are timed too: one with round numbers, one without.
const ISA_SHAPES: [&str; 2] = ["attention-2b", "ugly"];
/// The shape at which all threads are timed too.
const THREADS_SHAPE: &str = "up-2b";

fn main() -> Result<(), Box<dyn Error>> {
    let mut c = common::criterion();
    let threads = Cpu::new(0)?.threads();
    let mut ceilings: Vec<Ceilings> = Vec::new();
    let mut rows = Vec::new();
    let mut rng = Rng::new(1);
    for shape in SHAPES {
        // Between the problems too, because another program may have the machine while one probe runs.
        for (i, threads) in [1, threads].into_iter().take(threads.min(2)).enumerate() {
            let now = Ceilings::measure(threads)?;
            match ceilings.get_mut(i) {
                Some(best) => *best = best.best_of(now),
                None => ceilings.push(now),
            }
        }
        let weights = Weights::new(shape.rows, shape.cols, rng.trits(shape.rows * shape.cols, 0.6));
        let x = rng.normals(shape.tokens.iter().copied().max().unwrap_or(0) * shape.cols);
        let best = Cpu::new(1)?;
        let mut cpus = vec![best.clone()];
        if ISA_SHAPES.contains(&shape.name) {
            let slower = Isa::available().into_iter().filter(|&isa| isa != best.isa());
            cpus.extend(slower.map(|isa| Cpu::with_isa(isa, 1)).collect::<Result<Vec<_>, _>>()?);
        }
        if shape.name == THREADS_SHAPE && threads > 1 {
            cpus.push(Cpu::new(threads)?);
        }
        for cpu in &cpus {
            for problem in shape.problems().filter(|problem| problem.is_for(cpu.isa())) {
                let x = &x[..problem.tokens * shape.cols];
                run(&mut c, cpu, problem, &weights, x, &mut rows)?;
            }
        }
    }
    println!("\n{}", table(&rows, &ceilings, BASE));
    c.final_summary();
    Ok(())
}

/// Times all kernels on one problem, and the rival beside those with the best instructions.
fn run(
    c: &mut Criterion,
    cpu: &Cpu,
    problem: Problem,
    weights: &Weights,
    x: &[f32],
    rows: &mut Vec<Row>,
) -> Result<(), Box<dyn Error>> {
    let mut group = common::group(c, &format!("linear/{problem}"));
    for kernel in Kernel::ALL {
        time_kernel(&mut group, cpu, problem, weights, kernel, x, rows)?;
    }
    if cpu.isa() == Isa::detect() {
        // Inside a pool of its own, so that it has as many threads as the kernels beside it.
        let pool = rayon::ThreadPoolBuilder::new().num_threads(cpu.threads()).build()?;
        for (dtype, name) in Rival::DTYPES {
            let Shape { rows: n, cols: k, .. } = problem.shape;
            let rival = Rival::new(&weights.integers(Kernel::F32), n, k, dtype)?;
            let copies = problem.copies(rival.bytes());
            let rivals = (0..copies).map(|_| rival.duplicate()).collect::<Result<Vec<_>, _>>()?;
            let x = rival.activations(x)?;
            let cost = problem.cost(rival.bytes());
            let mut turn = 0;
            let id = id(name, "gemm", cpu.threads());
            let seconds = common::time_by(&mut group, id, cost.macs, |calls| {
                pool.install(|| {
                    common::clock(calls, || {
                        turn = (turn + 1) % copies;
                        rivals[turn].linear(&x).expect("shapes that match")
                    })
                })
            });
            rows.extend(seconds.map(|seconds| Row {
                problem: problem.to_string(),
                kernel: name.to_owned(),
                isa: "gemm".to_owned(),
                threads: cpu.threads(),
                seconds,
                cost,
            }));
        }
    }
    group.finish();
    Ok(())
}

fn time_kernel(
    group: &mut BenchmarkGroup<'_, WallTime>,
    cpu: &Cpu,
    problem: Problem,
    weights: &Weights,
    kernel: Kernel,
    x: &[f32],
    rows: &mut Vec<Row>,
) -> Result<(), Box<dyn Error>> {
    let matrix = weights.matrix(kernel)?;
    let copies = problem.copies(matrix.bytes());
    let cost = problem.cost(matrix.bytes());
    let matrices = vec![matrix; copies];
    let mut out = vec![f32::NAN; problem.tokens * problem.shape.rows];
    let isa = cpu.isa().name();
    let mut turn = 0;
    let seconds = common::time(group, id(kernel.name(), isa, cpu.threads()), cost.macs, || {
        turn = (turn + 1) % copies;
        cpu.linear(x, &matrices[turn], kernel.precision(), &mut out).expect("shapes that match");
    });
    rows.extend(seconds.map(|seconds| Row {
        problem: problem.to_string(),
        kernel: kernel.name().to_owned(),
        isa: isa.to_owned(),
        threads: cpu.threads(),
        seconds,
        cost,
    }));
    Ok(())
}

fn id(kernel: &str, isa: &str, threads: usize) -> BenchmarkId {
    BenchmarkId::new(kernel, format!("{isa}, t={threads}"))
}
