//! Times the operations without weights.

use anyhow::{Context, Result};
use trike_bench::{Ceiling, Contender, Launching, Measured, interleave};
use trike_cpu::Cpu;
use trike_testkit::Rng;

use crate::ceilings::raise_all;
use crate::operands::Operands;
use crate::operation::OPERATIONS;
use crate::plan::Plan;

/// Times the operations of the plan with the machine's best instruction set, after checking each result.
///
/// # Errors
///
/// If a result is wrong, threads cannot be started, or memory is insufficient.
pub fn operations(
    plan: &Plan,
    ceilings: &mut Vec<Ceiling>,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Measured>> {
    let threads = Plan::threads(Cpu::new(0)?.threads());
    let cpus = threads.iter().map(|&threads| Cpu::new(threads)).collect::<Result<Vec<_>, _>>()?;
    let mut rng = Rng::new(2);
    let mut measured = Vec::new();
    for operation in OPERATIONS {
        let (problem, kernel) = (operation.problem(), operation.kernel);
        let is_timed = |cpu: &&Cpu| {
            (cpu.threads() == 1 || operation.is_shared())
                && plan.has_row(&problem, kernel, cpu.isa().name(), cpu.threads())
        };
        let cpus: Vec<&Cpu> = cpus.iter().filter(is_timed).collect();
        if cpus.is_empty() {
            continue;
        }
        progress(&problem);
        let operands = Operands::new(operation, operation.copies(), &mut rng)?;
        let mut contenders = Vec::new();
        for cpu in &cpus {
            operands.check(cpu).with_context(|| format!("{problem}, {} threads", cpu.threads()))?;
            let (operands, mut out, mut turn) = (&operands, operands.output()?, 0);
            contenders.push(Contender::new(move || {
                turn += 1;
                operands.call(cpu, turn, &mut out).expect("operands that were checked");
            }));
        }
        let (rounds, burst) = plan.turns(operation.tokens());
        interleave(&mut contenders, rounds, burst);
        for (cpu, contender) in cpus.iter().zip(contenders) {
            measured.push(Measured {
                problem: problem.clone(),
                kernel: kernel.to_owned(),
                isa: cpu.isa().name().to_owned(),
                threads: cpu.threads(),
                rival: false,
                blueprint: String::new(),
                samples: contender.into_samples()?,
                cost: operation.cost(),
                limits: operation.limits(),
                launching: Launching::default(),
            });
        }
    }
    if !measured.is_empty() {
        raise_all(ceilings, &threads)?;
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::Operation;
    use crate::rival::BASES;
    use trike_bench::figures;

    #[test]
    fn rows_have_the_share_of_their_ceiling() {
        let plan = Plan { quick: true, filters: vec!["trits".into(), "attention".into()] };
        let (mut ceilings, mut said) = (Vec::new(), Vec::new());
        let found =
            operations(&plan, &mut ceilings, &mut |what| said.push(what.to_owned())).expect("right answers");
        assert_eq!(said, OPERATIONS.iter().map(Operation::problem).collect::<Vec<_>>());
        assert!(found.iter().all(|row| row.samples.iter().all(|&s| s > 0.0)));
        let threads = Plan::threads(Cpu::new(0).expect("threads").threads()).len();
        assert_eq!((found.len(), ceilings.len()), (2 + 3 * threads, 2 * threads));

        let rows = figures(&found, &ceilings, BASES);
        for row in &rows {
            let is_from_memory =
                row.problem == "trits 4096 x 10240 m=1" || row.problem == "attention decode 4096";
            assert_eq!(row.share_of_bandwidth.is_some(), is_from_memory, "{}", row.name());
            assert_eq!(row.share_of_int8_peak.is_some(), !is_from_memory, "{}", row.name());
            assert!(row.gmac_per_second > 0.0 && row.gb_per_second > 0.0);
        }

        let none = Plan { quick: true, filters: vec!["no such row".into()] };
        let mut ceilings = Vec::new();
        assert!(operations(&none, &mut ceilings, &mut |_| ()).expect("nothing to do").is_empty());
        assert!(ceilings.is_empty(), "no probe without a row");
    }
}
