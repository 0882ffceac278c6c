//! What the project wants to reach, as data: one line each.

use crate::figure::Figure;
use crate::kernel::{BASE3, SKIPPING, SLOTS, TERNARY};
use crate::models::MODEL_KERNEL;
use crate::record::Record;

/// A figure that a record answers, and what it should be at least.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// What the figure is.
    pub what: &'static str,
    /// The row: problem.
    pub problem: &'static str,
    /// The row: kernel.
    pub kernel: &'static str,
    /// The row: instruction set, or the machine's best.
    pub isa: Option<&'static str>,
    /// The row: threads.
    pub threads: usize,
    /// What is asked of the row.
    pub measure: Measure,
    /// What it should be at least.
    pub least: f64,
}

/// What is asked of a row.
#[derive(Clone, Copy, Debug)]
pub enum Measure {
    /// Its share of the memory bandwidth.
    Bandwidth,
    /// Its share of the int8 peak.
    Int8Peak,
    /// How many times as fast as candle's f32 product.
    Rival,
    /// How many times as fast as two-bit weights.
    Ternary,
    /// How many times as fast as another kernel at the same problem, instructions and threads.
    Kernel(&'static str),
}

use Measure::{Bandwidth, Int8Peak, Rival, Ternary};

/// A line of [`TARGETS`].
const fn target(
    what: &'static str,
    (problem, kernel, threads): (&'static str, &'static str, usize),
    measure: Measure,
    least: f64,
) -> Target {
    Target { what, problem, kernel, isa: None, threads, measure, least }
}

const ONE: &str = "square m=1";
const MANY: &str = "square m=128";
/// The group scales of `TQ2_0`.
const TQ2: Measure = Measure::Kernel("ternary/256 x int8");

/// All targets.
pub const TARGETS: &[Target] = &[
    target("one token, 4096 x 4096, of bandwidth", (ONE, TERNARY.name, 1), Bandwidth, 0.85),
    target("one token, 4096 x 4096, of bandwidth", (ONE, TERNARY.name, 2), Bandwidth, 0.88),
    target("128 tokens, 4096 x 4096, of int8 peak", (MANY, TERNARY.name, 1), Int8Peak, 0.85),
    target("128 tokens, 4096 x 4096, of int8 peak", (MANY, TERNARY.name, 2), Int8Peak, 0.85),
    target("decode of 2b, of bandwidth", ("2b decode", MODEL_KERNEL, 1), Bandwidth, 0.8),
    target("decode of 2b, of bandwidth", ("2b decode", MODEL_KERNEL, 2), Bandwidth, 0.8),
    target("prefill 512 of 2b, of int8 peak", ("2b prefill 512", MODEL_KERNEL, 1), Int8Peak, 0.72),
    target("prefill 512 of 2b, of int8 peak", ("2b prefill 512", MODEL_KERNEL, 2), Int8Peak, 0.72),
    target("decode of 125m, of bandwidth", ("125m decode", MODEL_KERNEL, 2), Bandwidth, 0.45),
    target("groups of 64 over groups of 256, one token", (ONE, "ternary/64 x int8", 1), TQ2, 0.9),
    target("groups of 128 over groups of 256, one token", (ONE, "ternary/128 x int8", 1), TQ2, 0.9),
    target("groups of 64 over groups of 256, 128 tokens", (MANY, "ternary/64 x int8", 1), TQ2, 0.9),
    target("groups of 128 over groups of 256, 128 tokens", (MANY, "ternary/128 x int8", 1), TQ2, 0.9),
    target("95 % zeros over dense 2 bits, one token", ("square-95 m=1", SLOTS, 2), Ternary, 1.8),
    target("99 % zeros over dense 2 bits, one token", ("square-99 m=1", SLOTS, 2), Ternary, 5.0),
    target("half of the blocks zero over dense 2 bits", ("square-blocks-50 m=1", SKIPPING, 2), Ternary, 1.6),
    target("90 % of the blocks zero over dense 2 bits", ("square-blocks-90 m=1", SKIPPING, 2), Ternary, 5.0),
    target("1.6 bits over 2 bits, one token", (ONE, BASE3, 2), Ternary, 1.1),
    Target {
        isa: Some("avx2"),
        ..target("avx2 over candle f32, one token", (ONE, TERNARY.name, 1), Rival, 5.0)
    },
    Target {
        isa: Some("avx2"),
        ..target("avx2 over candle f32, 128 tokens", (MANY, TERNARY.name, 1), Rival, 1.5)
    },
];

impl Target {
    /// What the record says; `None` when it lacks the row.
    #[must_use]
    pub fn measured(&self, record: &Record) -> Option<f64> {
        let isa = self.isa.unwrap_or(&record.machine.isa);
        let row = record.row(self.problem, self.kernel, isa, self.threads)?;
        match self.measure {
            Measure::Bandwidth => row.share_of_bandwidth,
            Measure::Int8Peak => row.share_of_int8_peak,
            Measure::Rival => row.x_rival,
            Measure::Ternary => row.x_ternary,
            Measure::Kernel(other) => {
                let other = record.row(self.problem, other, isa, self.threads)?;
                // Both were compared with the same kernel in the same rounds.
                let relative = |row: &Figure| row.x_ternary.unwrap_or(1.0);
                Some(relative(row) / relative(other))
            }
        }
    }

    /// A value as it reads best.
    #[must_use]
    pub fn text(&self, value: f64) -> String {
        match self.measure {
            Measure::Bandwidth | Measure::Int8Peak => format!("{:.1} %", 100.0 * value),
            Measure::Rival | Measure::Ternary | Measure::Kernel(_) => format!("{value:.2}x"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::SHAPES;
    use crate::models::MODELS;
    use crate::record::tests::example;
    use trike_testkit::assert_near;

    #[test]
    fn every_target_asks_for_rows_that_are_timed() {
        for target in TARGETS {
            let shapes = SHAPES.iter().flat_map(|shape| shape.problems());
            let kernels = shapes.filter(|p| p.to_string() == target.problem).flat_map(|p| p.shape.kernels);
            let names: Vec<&str> = kernels.map(|kernel| kernel.name).collect();
            let is_timed = |name: &str| {
                names.contains(&name)
                    || MODELS.iter().any(|m| m.problems().contains(&target.problem.to_owned()))
            };
            assert!(is_timed(target.kernel), "{target:?}");
            if let Measure::Kernel(other) = target.measure {
                assert!(is_timed(other), "{target:?}");
            }
        }
    }

    #[test]
    fn records_answer_targets() {
        let record = example();
        let first = TARGETS[0].measured(&record).unwrap();
        assert_near!(first, 0.8248, abs = 1e-4);
        assert_eq!(TARGETS[0].text(first), "82.5 %");
        assert!(TARGETS.iter().any(|target| target.measured(&record).is_none()), "the example lacks rows");
        let over = target("", (ONE, "ternary/128 x int8", 1), Measure::Kernel(TERNARY.name), 0.9);
        assert_eq!(over.measured(&record).map(|x| over.text(x)), Some("0.90x".into()));
    }
}
