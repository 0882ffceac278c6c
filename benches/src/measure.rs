//! Times the matrix products of the catalogue, interleaved, after checking their results.

use anyhow::{Context, Result, anyhow};
use rayon::ThreadPool;
use trike_bench::{Ceiling, Contender, Launching, Limit, Measured, clock, interleave};
use trike_cpu::{Cpu, CpuOps, Isa, Matrix};
use trike_testkit::Rng;

use crate::catalogue::{CASES, Case, Problem};
use crate::ceilings::raise_all;
use crate::expected::{BOUND, Expected, as_quantized};
use crate::kernel::{DENSE, Kernel};
use crate::plan::Plan;
use crate::rival::{Input, Rival, RivalKind};
use crate::weights::Weights;

/// Shape at which slower instruction sets are timed too.
const ISA_SHAPE: &str = "square";
/// Ceilings of a product.
pub const LIMITS: &[Limit] = &[Limit::Memory, Limit::Int8];
/// Instruction set in the rows of rivals, which choose their own.
pub const RIVAL_ISA: &str = "gemm";

/// Times the products of the plan. The ceilings are measured again before each case and merged into `ceilings`, because
/// other load may disturb a single probe.
///
/// # Errors
///
/// If a kernel or rival returns a wrong result, threads cannot be started, or memory is insufficient.
pub fn products(
    plan: &Plan,
    ceilings: &mut Vec<Ceiling>,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Measured>> {
    let threads = Plan::threads(Cpu::new(0)?.threads());
    let best = threads.iter().map(|&threads| Cpu::new(threads)).collect::<Result<Vec<_>, _>>()?;
    let slower = Isa::available().into_iter().filter(|&isa| isa != Isa::detect());
    let slower = slower.map(|isa| Cpu::with_isa(isa, 1)).collect::<Result<Vec<_>, _>>()?;
    let mut rng = Rng::new(1);
    let mut measured = Vec::new();
    for case in CASES.iter().filter(|case| plan.has_case(case)) {
        let mut cpus = best.clone();
        if case.name() == ISA_SHAPE {
            cpus.extend(slower.iter().cloned());
        }
        let rows: Vec<(Problem, Vec<Row>)> = case
            .problems()
            .map(|problem| (problem, rows(plan, &problem, &cpus, &threads)))
            .filter(|(_, rows)| !rows.is_empty())
            .collect();
        if rows.is_empty() {
            continue;
        }
        raise_all(ceilings, &threads)?;
        progress(&format!("{}: packing", case.name()));
        let bench = Bench::new(case, &rows, &mut rng)?;
        for (problem, rows) in rows {
            progress(&problem.to_string());
            measured.extend(bench.time(plan, problem, &rows)?);
        }
    }
    Ok(measured)
}

/// A kernel with its `Cpu`, or a rival with its number of threads.
enum Row {
    Ours(Kernel, Cpu),
    Rival(RivalKind, usize),
}

impl Row {
    fn facts(&self) -> (&'static str, &'static str, usize) {
        match self {
            Self::Ours(kernel, cpu) => (kernel.name, cpu.isa().name(), cpu.threads()),
            Self::Rival(kind, threads) => (kind.name(), RIVAL_ISA, *threads),
        }
    }
}

/// The rows of a problem that the plan selects, with their references.
fn rows(plan: &Plan, problem: &Problem, cpus: &[Cpu], threads: &[usize]) -> Vec<Row> {
    let cpus = cpus.iter().filter(|cpu| problem.is_for(cpu.isa()));
    let ours = cpus.flat_map(|cpu| problem.case.kernels.iter().map(|kernel| Row::Ours(*kernel, cpu.clone())));
    let rivals = threads
        .iter()
        .flat_map(|&threads| Plan::rivals(problem).iter().map(move |&kind| Row::Rival(kind, threads)));
    let mut rows: Vec<Row> = ours.chain(rivals).collect();
    let name = problem.to_string();
    let is_asked_for = |row: &Row| {
        let (kernel, isa, threads) = row.facts();
        plan.has_row(&name, kernel, isa, threads)
    };
    let any = rows.iter().any(is_asked_for);
    rows.retain(|row| is_asked_for(row) || any && Plan::is_reference(row.facts().0));
    rows
}

/// The weights of a case in every format that its rows need.
struct Bench {
    weights: Weights,
    x: Vec<f32>,
    /// Copies of each kernel's matrix, so that each call can read its weights from memory.
    matrices: Vec<(&'static str, Vec<Matrix>)>,
    rivals: Vec<(RivalKind, Vec<Rival>)>,
}

impl Bench {
    fn new(case: &Case, rows: &[(Problem, Vec<Row>)], rng: &mut Rng) -> Result<Self> {
        let weights = Weights::random(case, rng);
        let x = rng.normals(case.tokens.iter().copied().max().unwrap_or(0) * case.shape.cols);
        let mut bench = Self { weights, x, matrices: Vec::new(), rivals: Vec::new() };
        for (problem, row) in
            rows.iter().flat_map(|(problem, rows)| rows.iter().map(move |row| (problem, row)))
        {
            match row {
                Row::Ours(kernel, _) => {
                    let at = bench.matrices.iter().position(|(name, _)| *name == kernel.name);
                    let at = at.unwrap_or_else(|| {
                        bench.matrices.push((kernel.name, Vec::new()));
                        bench.matrices.len() - 1
                    });
                    let held = &mut bench.matrices[at].1;
                    if held.is_empty() {
                        held.push(bench.weights.matrix(kernel).with_context(|| kernel.name)?);
                    }
                    let copies = problem.copies(held[0].bytes()).max(held.len());
                    held.resize(copies, held[0].clone());
                }
                Row::Rival(kind, _) => {
                    let at = bench.rivals.iter().position(|(other, _)| other == kind);
                    let at = at.unwrap_or_else(|| {
                        bench.rivals.push((*kind, Vec::new()));
                        bench.rivals.len() - 1
                    });
                    let held = &mut bench.rivals[at].1;
                    if held.is_empty() {
                        held.push(Rival::new(
                            *kind,
                            &bench.weights.integers(&DENSE),
                            case.shape.rows,
                            case.shape.cols,
                        )?);
                    }
                    while held.len() < problem.copies(held[0].bytes()) {
                        held.push(held[0].duplicate()?);
                    }
                }
            }
        }
        Ok(bench)
    }

    fn matrices(&self, kernel: &Kernel) -> &[Matrix] {
        self.matrices.iter().find(|(name, _)| *name == kernel.name).map_or(&[], |(_, held)| held)
    }

    fn rivals(&self, kind: RivalKind) -> &[Rival] {
        self.rivals.iter().find(|(other, _)| *other == kind).map_or(&[], |(_, held)| held)
    }

    /// Checks the result of each row, then times the rows interleaved.
    fn time(&self, plan: &Plan, problem: Problem, rows: &[Row]) -> Result<Vec<Measured>> {
        let x = &self.x[..problem.tokens * problem.case.shape.cols];
        self.check(problem, rows, x)?;
        let mut inputs: Vec<Option<Input>> = Vec::new();
        let mut pools: Vec<Option<ThreadPool>> = Vec::new();
        for row in rows {
            let Row::Rival(kind, threads) = row else {
                inputs.push(None);
                pools.push(None);
                continue;
            };
            inputs.push(Some(self.rivals(*kind)[0].activations(x)?));
            // A dedicated pool gives the rival as many threads as the kernels.
            pools.push(Some(rayon::ThreadPoolBuilder::new().num_threads(*threads).build()?));
        }
        let mut contenders: Vec<Contender<'_>> = Vec::new();
        for (row, (input, pool)) in rows.iter().zip(inputs.iter().zip(&pools)) {
            contenders.push(match (row, input, pool) {
                (Row::Rival(kind, threads), Some(input), Some(pool)) => {
                    let held = self.rivals(*kind);
                    let (held, threads) = (&held[..problem.copies(held[0].bytes())], *threads);
                    let mut turn = 0;
                    Contender::by(move |calls| {
                        Ok(pool.install(|| {
                            clock(calls, || {
                                turn = (turn + 1) % held.len();
                                held[turn].linear(input, threads).expect("shapes that were checked")
                            })
                        }))
                    })
                }
                (Row::Ours(kernel, cpu), ..) => {
                    let held = self.matrices(kernel);
                    let held = &held[..problem.copies(held[0].bytes())];
                    let mut out = vec![f32::NAN; problem.tokens * problem.case.shape.rows];
                    let mut turn = 0;
                    Contender::new(move || {
                        turn = (turn + 1) % held.len();
                        cpu.linear(x, &held[turn], kernel.activations, &mut out)
                            .expect("shapes that were checked");
                    })
                }
                (Row::Rival(..), ..) => return Err(anyhow!("rival without activations")),
            });
        }
        let (rounds, burst) = plan.turns(problem.tokens);
        interleave(&mut contenders, rounds, burst);
        let measured = rows.iter().zip(contenders).map(|(row, contender)| {
            let (kernel, isa, threads) = row.facts();
            let bytes = match row {
                Row::Ours(kernel, _) => self.matrices(kernel)[0].bytes(),
                Row::Rival(kind, _) => self.rivals(*kind)[0].bytes(),
            };
            Ok(Measured {
                problem: problem.to_string(),
                kernel: kernel.to_owned(),
                isa: isa.to_owned(),
                threads,
                rival: matches!(row, Row::Rival(..)),
                blueprint: String::new(),
                samples: contender.into_samples()?,
                cost: problem.cost(bytes),
                limits: LIMITS,
                launching: Launching::default(),
            })
        });
        measured.collect()
    }

    /// Runs every row once and compares it with the exact result.
    fn check(&self, problem: Problem, rows: &[Row], x: &[f32]) -> Result<()> {
        let cols = problem.case.shape.cols;
        let mut expected: Vec<(&'static str, Expected)> = Vec::new();
        for row in rows {
            let (kernel, isa, threads) = row.facts();
            let (known, bound) = match row {
                Row::Ours(kernel, _) => (kernel, BOUND),
                Row::Rival(kind, _) => (&DENSE, kind.bound()),
            };
            let at = expected.iter().position(|(name, _)| *name == known.name).unwrap_or_else(|| {
                let x = as_quantized(x, cols, known.activations);
                expected.push((known.name, Expected::new(&self.weights.integers(known), cols, &x)));
                expected.len() - 1
            });
            let out = match row {
                Row::Ours(kernel, cpu) => {
                    let mut out = vec![f32::NAN; problem.tokens * problem.case.shape.rows];
                    cpu.linear(x, &self.matrices(kernel)[0], kernel.activations, &mut out)?;
                    out
                }
                Row::Rival(kind, threads) => {
                    let rival = &self.rivals(*kind)[0];
                    rival.linear(&rival.activations(x)?, *threads)?.into_floats()?
                }
            };
            expected[at].1.check(&out, bound).map_err(|place| {
                anyhow!("{problem}, {kernel}, {isa}, {threads} threads: wrong result: {place}")
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filtered_problem_is_timed_with_its_references() {
        let plan = Plan { quick: true, filters: vec!["square-95 m=1 / ternary x int8".into()] };
        let mut ceilings = Vec::new();
        let mut said = Vec::new();
        let found =
            products(&plan, &mut ceilings, &mut |what| said.push(what.to_owned())).expect("right answers");
        assert!(!found.is_empty() && found.iter().all(|row| row.problem == "square-95 m=1" && !row.rival));
        assert!(found.iter().all(|row| row.samples.len() == 9 && row.samples.iter().all(|&s| s > 0.0)));
        assert_eq!(ceilings.len(), 2 * Plan::threads(Cpu::new(0).expect("threads").threads()).len());
        assert_eq!(said, ["square-95: packing", "square-95 m=1"]);

        let square = CASES.iter().find(|case| case.name() == "square").expect("in the catalogue");
        let problem = square.problems().next().expect("decode");
        let cpus = [Cpu::new(1).expect("a thread")];
        let asked = Plan { quick: false, filters: vec!["square m=1 / f16".into()] };
        let names: Vec<_> = rows(&asked, &problem, &cpus, &[1]).iter().map(|row| row.facts().0).collect();
        assert_eq!(names, ["ternary x int8", "f16 x f32", "candle f32"]);
        let none = Plan { quick: false, filters: vec!["no such row".into()] };
        assert!(rows(&none, &problem, &cpus, &[1]).is_empty());
    }
}
