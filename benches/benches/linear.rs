//! `y = x W^T` at the shapes of the catalogue: ternary, int8 and dense kernels and rivals, as fractions of the peaks
//! measured in the same run. For development; recorded figures come from `cargo xtask bench-report`.
#![allow(clippy::print_stdout, reason = "a benchmark reports on stdout")]

mod common;

use std::error::Error;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion};
use trike_bench::{Ceiling, Launching, Measured, ceilings_text, clock, figure_table, figures};
use trike_benches::{
    BASES, CASES, DENSE, Kernel, LIMITS, Plan, Problem, RIVAL_ISA, Rival, Weights, raise_all,
};
use trike_cpu::{Cpu, CpuOps, Isa};
use trike_testkit::Rng;

/// Shapes at which slower instruction sets are timed too: one with round numbers, one without.
const ISA_SHAPES: [&str; 2] = ["attention-2b", "ugly"];
/// Shape that is timed with all threads too.
const THREADS_SHAPE: &str = "up-2b";

fn main() -> Result<(), Box<dyn Error>> {
    let mut c = common::criterion();
    let threads = Cpu::new(0)?.threads();
    let mut counts = vec![1, threads];
    counts.dedup();
    let mut ceilings: Vec<Ceiling> = Vec::new();
    let mut rows = Vec::new();
    let mut rng = Rng::new(1);
    for case in CASES {
        // Repeated before each case, because other load may disturb a single probe.
        raise_all(&mut ceilings, &counts)?;
        let weights = Weights::random(&case, &mut rng);
        let x = rng.normals(case.tokens.iter().copied().max().unwrap_or(0) * case.shape.cols);
        let best = Cpu::new(1)?;
        let mut cpus = vec![best.clone()];
        if ISA_SHAPES.contains(&case.shape.name) {
            let slower = Isa::available().into_iter().filter(|&isa| isa != best.isa());
            cpus.extend(slower.map(|isa| Cpu::with_isa(isa, 1)).collect::<Result<Vec<_>, _>>()?);
        }
        if case.shape.name == THREADS_SHAPE && threads > 1 {
            cpus.push(Cpu::new(threads)?);
        }
        for cpu in &cpus {
            for problem in case.problems().filter(|problem| problem.is_for(cpu.isa())) {
                let x = &x[..problem.tokens * case.shape.cols];
                run(&mut c, cpu, problem, &weights, x, &mut rows)?;
            }
        }
    }
    println!("\n{}\n{}", ceilings_text(&ceilings), figure_table(&figures(&rows, &ceilings, BASES), BASES));
    c.final_summary();
    Ok(())
}

/// Times all kernels on one problem, and the rivals if `cpu` has the best instruction set.
fn run(
    c: &mut Criterion,
    cpu: &Cpu,
    problem: Problem,
    weights: &Weights,
    x: &[f32],
    rows: &mut Vec<Measured>,
) -> Result<(), Box<dyn Error>> {
    let mut group = common::group(c, &format!("linear/{problem}"));
    for kernel in problem.case.kernels {
        time_kernel(&mut group, cpu, problem, weights, kernel, x, rows)?;
    }
    if cpu.isa() == Isa::detect() {
        // A dedicated pool gives the rival as many threads as the kernels.
        let pool = rayon::ThreadPoolBuilder::new().num_threads(cpu.threads()).build()?;
        for &kind in Plan::rivals(&problem) {
            let rival = Rival::new(kind, &weights.integers(&DENSE), weights.rows(), weights.cols())?;
            let copies = problem.copies(rival.bytes());
            let rivals = (0..copies).map(|_| rival.duplicate()).collect::<Result<Vec<_>, _>>()?;
            let x = rival.activations(x)?;
            let cost = problem.cost(rival.bytes());
            let mut turn = 0;
            let id = id(kind.name(), RIVAL_ISA, cpu.threads());
            let seconds = common::time_by(&mut group, id, cost.macs, |calls| {
                pool.install(|| {
                    clock(calls, || {
                        turn = (turn + 1) % copies;
                        rivals[turn].linear(&x, cpu.threads()).expect("shapes that match")
                    })
                })
            });
            rows.extend(seconds.map(|seconds| Measured {
                problem: problem.to_string(),
                kernel: kind.name().to_owned(),
                isa: RIVAL_ISA.to_owned(),
                threads: cpu.threads(),
                rival: true,
                blueprint: String::new(),
                samples: vec![seconds],
                cost,
                limits: LIMITS,
                launching: Launching::default(),
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
    kernel: &Kernel,
    x: &[f32],
    rows: &mut Vec<Measured>,
) -> Result<(), Box<dyn Error>> {
    let matrix = weights.matrix(kernel)?;
    let copies = problem.copies(matrix.bytes());
    let cost = problem.cost(matrix.bytes());
    let matrices = vec![matrix; copies];
    let mut out = vec![f32::NAN; problem.tokens * problem.case.shape.rows];
    let isa = cpu.isa().name();
    let mut turn = 0;
    let seconds = common::time(group, id(kernel.name, isa, cpu.threads()), cost.macs, || {
        turn = (turn + 1) % copies;
        cpu.linear(x, &matrices[turn], kernel.activations, &mut out).expect("shapes that match");
    });
    rows.extend(seconds.map(|seconds| Measured {
        problem: problem.to_string(),
        kernel: kernel.name.to_owned(),
        isa: isa.to_owned(),
        threads: cpu.threads(),
        rival: false,
        blueprint: String::new(),
        samples: vec![seconds],
        cost,
        limits: LIMITS,
        launching: Launching::default(),
    }));
    Ok(())
}

fn id(kernel: &str, isa: &str, threads: usize) -> BenchmarkId {
    BenchmarkId::new(kernel, format!("{isa}, t={threads}"))
}
