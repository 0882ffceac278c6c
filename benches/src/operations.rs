//! The kernels that multiply no weights, as data, and timed: trits with trits, and attention.

use anyhow::{Context, Result};
use trike_bench::{Attention, Ceiling, Contender, Heads, Limit, Measured, interleave};
use trike_cpu::{Cost, Cpu, Isa};
use trike_testkit::Rng;

use crate::catalogue::{PORTABLE_MACS, STREAM_BYTES};
use crate::ceilings::raise_all;
use crate::operands::Operands;
use crate::plan::Plan;

/// A kernel beside the products, at one size.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// How reports call the kernel.
    pub kernel: &'static str,
    /// What is computed.
    pub work: Work,
}

/// What an [`Operation`] computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// The dot product of two vectors of trits, which stay in the cache.
    Dot {
        /// Elements of a vector.
        trits: usize,
    },
    /// The dot products of one vector of trits with the rows of a matrix of trits, which comes from memory.
    Scores {
        /// Rows of the matrix.
        rows: usize,
        /// Elements of the vector and of a row.
        trits: usize,
    },
    /// The signs of the sum of many vectors of trits.
    Bundle {
        /// How many.
        vectors: usize,
        /// Elements of a vector.
        trits: usize,
    },
    /// Causal attention over a cache; keys and values for one token come from memory.
    Attention(Attention),
}

/// The heads of the decoder with 2 billion weights: four query heads share a key head.
pub(crate) const HEADS: Heads = Heads::B2;

/// All of them: hypervectors of the usual length and a matrix that no cache holds, then decode and prefill.
///
/// ```
/// use trike_benches::OPERATIONS;
///
/// let names: Vec<String> = OPERATIONS.iter().map(|operation| operation.problem()).collect();
/// assert_eq!(names[..2], ["trits dot 10000", "trits 4096 x 10240 m=1"]);
/// assert_eq!(names[3..], ["attention decode 4096", "attention prefill 512"]);
/// ```
pub const OPERATIONS: &[Operation] = &[
    Operation { kernel: TRITS, work: Work::Dot { trits: 10_000 } },
    Operation { kernel: TRITS, work: Work::Scores { rows: 4096, trits: 10_240 } },
    Operation { kernel: "bundle of trits", work: Work::Bundle { vectors: 500, trits: 10_000 } },
    Operation { kernel: ATTENTION, work: attention(1, 4096) },
    Operation { kernel: ATTENTION, work: attention(512, 512) },
];

const fn attention(tokens: usize, positions: usize) -> Work {
    Work::Attention(Attention { heads: HEADS, tokens, positions, batch: 1 })
}

const TRITS: &str = "trits x trits";
const ATTENTION: &str = "attention, f16 cache";

/// Bytes of the two planes of a vector.
const fn plane_bytes(trits: usize) -> usize {
    2 * size_of::<u64>() * trits.div_ceil(64)
}

impl Operation {
    /// How reports call the size.
    #[must_use]
    pub fn problem(&self) -> String {
        match self.work {
            Work::Dot { trits } => format!("trits dot {trits}"),
            Work::Scores { rows, trits } => format!("trits {rows} x {trits} m=1"),
            Work::Bundle { vectors, trits } => format!("trits bundle {vectors} x {trits}"),
            Work::Attention(attention) => attention.to_string(),
        }
    }

    /// Work of one call: a multiply-add for each pair of elements that meet, for each trit that is added to a bundle; for
    /// attention see [`Attention::cost`].
    #[must_use]
    pub fn cost(&self) -> Cost {
        let (macs, bytes) = match self.work {
            Work::Dot { trits } => (trits, 2 * plane_bytes(trits)),
            Work::Scores { rows, trits } => {
                (rows * trits, (rows + 1) * plane_bytes(trits) + rows * size_of::<i32>())
            }
            Work::Bundle { vectors, trits } => (vectors * trits, (vectors + 1) * plane_bytes(trits)),
            Work::Attention(attention) => return attention.cost(),
        };
        Cost { macs: macs as u64, bytes: bytes as u64 }
    }

    /// Its ceilings.
    #[must_use]
    pub fn limits(&self) -> &'static [Limit] {
        if self.is_streamed() { &[Limit::Memory] } else { &[Limit::Int8] }
    }

    /// Whether an instruction set is asked to do it; see [`PORTABLE_MACS`].
    #[must_use]
    pub fn is_for(&self, isa: Isa) -> bool {
        isa.name() != "scalar" || self.cost().macs <= PORTABLE_MACS
    }

    /// How many equal matrices or caches take turns, so that each call finds its own in memory.
    pub(crate) fn copies(&self) -> usize {
        if self.is_streamed() { STREAM_BYTES.div_ceil(self.cost().bytes as usize) } else { 1 }
    }

    fn is_streamed(&self) -> bool {
        matches!(self.work, Work::Scores { .. } | Work::Attention(Attention { tokens: 1, .. }))
    }

    /// Whether more threads than the caller's have something to do.
    fn is_shared(&self) -> bool {
        matches!(self.work, Work::Scores { .. } | Work::Attention(_))
    }

    /// Whether it reads as many times as prefill does, so that a turn is a call or two.
    fn tokens(&self) -> usize {
        if let Work::Attention(attention) = self.work { attention.tokens } else { 1 }
    }
}

/// Times the operations of the plan, with the machine's best instructions, each answer checked before.
///
/// # Errors
///
/// A wrong answer, and no threads or no memory.
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
    use crate::catalogue::CASES;
    use crate::models::MODELS;
    use crate::rival::BASES;
    use trike_bench::figures;

    #[test]
    fn problems_are_unique_in_a_report() {
        let mut names: Vec<String> = OPERATIONS.iter().map(Operation::problem).collect();
        names.extend(
            CASES.into_iter().flat_map(|case| case.problems().map(|p| p.to_string()).collect::<Vec<_>>()),
        );
        names.extend(MODELS.iter().flat_map(|timed| timed.run.problems()));
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn costs_by_hand() {
        let found: Vec<(u64, u64, usize)> =
            OPERATIONS.iter().map(|op| (op.cost().macs, op.cost().bytes, op.copies())).collect();
        let words = 157;
        let want = [
            (10_000, 2 * 2 * 8 * words, 1),
            (4096 * 10_240, 4097 * 2 * 1280 + 4 * 4096, 26),
            (500 * 10_000, 501 * 2 * 8 * words, 1),
            (2 * 20 * 128 * 4096, 10_506_240, 26),
            (2 * 20 * 128 * (512 * 513 / 2), 512 * (2 * 2 * 5 * 128 + 2 * 4 * 20 * 128), 1),
        ];
        assert_eq!(found, want);
    }

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
