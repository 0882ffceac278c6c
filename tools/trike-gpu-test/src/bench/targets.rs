//! Performance targets on an H200, as data, and their predicted values.

use trike_bench::{Measure, Target};

use super::catalogue::{Catalogue, G128_NAME, ROW_NAME, TRIKE};
use super::predict;

const TWO_BITS: &[&str] = &[ROW_NAME, G128_NAME];

/// An entry of [`TARGETS`].
const fn target(
    what: &'static str,
    (problem, kernels): (&'static str, &'static [&'static str]),
    measure: Measure,
    least: f64,
) -> Target {
    Target { what, problem, kernels, isa: None, threads: 0, measure, least }
}

/// All targets.
pub(super) const TARGETS: &[Target] = &[
    target("4096 x 14336, one token, over cuBLAS f16", ("down-8b m=1", TWO_BITS), Measure::Rival, 5.0),
    target("13824 x 2560, one token, over cuBLAS f16", ("gate-up-2b m=1", TWO_BITS), Measure::Rival, 3.2),
    target("4096 x 14336, 8 tokens, over cuBLAS f16", ("down-8b m=8", TWO_BITS), Measure::Rival, 4.5),
    target("4096 x 14336, 16 tokens, over cuBLAS f16", ("down-8b m=16", TWO_BITS), Measure::Rival, 4.0),
    target("4096 x 14336, 32 tokens, over cuBLAS f16", ("down-8b m=32", TWO_BITS), Measure::Rival, 3.0),
    target("4096 x 14336, 64 tokens, over cuBLAS f16", ("down-8b m=64", TWO_BITS), Measure::Rival, 1.9),
    target("4096 x 14336, 128 tokens, over cuBLAS f16", ("down-8b m=128", TWO_BITS), Measure::Rival, 1.2),
    target("4096 x 14336, 8192 tokens, over cuBLAS f16", ("down-8b m=8192", TWO_BITS), Measure::Rival, 1.0),
    target(
        "4096 x 14336, 8192 tokens, groups of 128, over cuBLAS f16",
        ("down-8b m=8192", &[G128_NAME]),
        Measure::Rival,
        0.9,
    ),
    target(
        "attention, heads of 128, causal, 2048 tokens, TFLOP/s",
        ("attention-7b prefill 2048 batch 8", &[TRIKE]),
        Measure::TeraOperations,
        200.0,
    ),
    target("decode of `2b`, tokens/s", ("2b decode", &[TRIKE]), Measure::Rate, 1000.0),
    target(
        "decode of `2b` with 128,256 tokens in the vocabulary, tokens/s",
        ("2b-128k decode", &[TRIKE]),
        Measure::Rate,
        800.0,
    ),
];

/// Predicted value of a target; `None` if there is no prediction for its problem or measure.
pub(super) fn predicted(target: &Target, catalogue: &Catalogue) -> Option<f64> {
    let mut rows = predict::all(catalogue);
    rows.retain(|(problem, kernel, _)| {
        problem == target.problem && target.kernels.contains(&kernel.as_str())
    });
    let seconds = rows.iter().map(|(_, _, prediction)| prediction.seconds).reduce(f64::min)?;
    match target.measure {
        Measure::Rival => {
            let (product, _) = catalogue.products().find(|(p, _)| p.to_string() == target.problem)?;
            Some(predict::cublas(&product).seconds / seconds)
        }
        Measure::TeraOperations => {
            let case = catalogue.attention.iter().find(|a| a.to_string() == target.problem)?;
            Some(case.cost().operations() as f64 / seconds / 1e12)
        }
        Measure::Rate => Some(1.0 / seconds),
        // There are no predictions relative to another kernel or to a measured ceiling.
        Measure::Bandwidth | Measure::Int8Peak | Measure::Ternary | Measure::Kernel(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_ask_for_problems_of_the_catalogue() {
        let catalogue = Catalogue::full();
        for target in TARGETS {
            assert!(predicted(target, &catalogue).is_some(), "{}", target.what);
        }
    }
}
