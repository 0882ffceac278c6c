//! Performance targets on the host, as data: one line each.

use trike_bench::{Measure, Target};

use crate::kernel::{BASE3, SKIPPING, SLOTS, TERNARY};
use crate::models::MODEL_KERNEL;

use Measure::{Bandwidth, Int8Peak, Rival, Ternary};

/// An entry of [`TARGETS`].
const fn target(
    what: &'static str,
    (problem, kernels, threads): (&'static str, &'static [&'static str], usize),
    measure: Measure,
    least: f64,
) -> Target {
    Target { what, problem, kernels, isa: None, threads, measure, least }
}

const ONE: &str = "square m=1";
const MANY: &str = "square m=128";
const TWO_BITS: &[&str] = &[TERNARY.name];
const MODEL: &[&str] = &[MODEL_KERNEL];
/// Speedup over the kernel with groups of 256, as in `TQ2_0`.
const TQ2: Measure = Measure::Kernel("ternary/256 x int8");

/// All targets.
pub const TARGETS: &[Target] = &[
    target("one token, 4096 x 4096, of bandwidth", (ONE, TWO_BITS, 1), Bandwidth, 0.85),
    target("one token, 4096 x 4096, of bandwidth", (ONE, TWO_BITS, 2), Bandwidth, 0.88),
    target("128 tokens, 4096 x 4096, of int8 peak", (MANY, TWO_BITS, 1), Int8Peak, 0.85),
    target("128 tokens, 4096 x 4096, of int8 peak", (MANY, TWO_BITS, 2), Int8Peak, 0.85),
    target("decode of 2b, of bandwidth", ("2b decode", MODEL, 1), Bandwidth, 0.8),
    target("decode of 2b, of bandwidth", ("2b decode", MODEL, 2), Bandwidth, 0.8),
    target("prefill 512 of 2b, of int8 peak", ("2b prefill 512", MODEL, 1), Int8Peak, 0.72),
    target("prefill 512 of 2b, of int8 peak", ("2b prefill 512", MODEL, 2), Int8Peak, 0.72),
    target("decode of 125m, of bandwidth", ("125m decode", MODEL, 2), Bandwidth, 0.45),
    target("groups of 64 over groups of 256, one token", (ONE, &["ternary/64 x int8"], 1), TQ2, 0.9),
    target("groups of 128 over groups of 256, one token", (ONE, &["ternary/128 x int8"], 1), TQ2, 0.9),
    target("groups of 64 over groups of 256, 128 tokens", (MANY, &["ternary/64 x int8"], 1), TQ2, 0.9),
    target("groups of 128 over groups of 256, 128 tokens", (MANY, &["ternary/128 x int8"], 1), TQ2, 0.9),
    target("95 % zeros over dense 2 bits, one token", ("square-95 m=1", &[SLOTS], 2), Ternary, 1.8),
    target("99 % zeros over dense 2 bits, one token", ("square-99 m=1", &[SLOTS], 2), Ternary, 5.0),
    target(
        "half of the blocks zero over dense 2 bits",
        ("square-blocks-50 m=1", &[SKIPPING], 2),
        Ternary,
        1.6,
    ),
    target(
        "90 % of the blocks zero over dense 2 bits",
        ("square-blocks-90 m=1", &[SKIPPING], 2),
        Ternary,
        5.0,
    ),
    target("1.6 bits over 2 bits, one token", (ONE, &[BASE3], 2), Ternary, 1.1),
    Target { isa: Some("avx2"), ..target("avx2 over candle f32, one token", (ONE, TWO_BITS, 1), Rival, 5.0) },
    Target {
        isa: Some("avx2"),
        ..target("avx2 over candle f32, 128 tokens", (MANY, TWO_BITS, 1), Rival, 1.5)
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::CASES;
    use crate::models::MODELS;

    #[test]
    fn every_target_asks_for_rows_that_are_timed() {
        for target in TARGETS {
            let problems = CASES.iter().flat_map(|case| case.problems());
            let kernels = problems.filter(|p| p.to_string() == target.problem).flat_map(|p| p.case.kernels);
            let names: Vec<&str> = kernels.map(|kernel| kernel.name).collect();
            let is_timed = |name: &str| {
                names.contains(&name)
                    || MODELS.iter().any(|m| m.run.problems().contains(&target.problem.to_owned()))
            };
            assert!(target.kernels.iter().all(|kernel| is_timed(kernel)), "{target:?}");
            if let Measure::Kernel(other) = target.measure {
                assert!(is_timed(other), "{target:?}");
            }
        }
    }
}
