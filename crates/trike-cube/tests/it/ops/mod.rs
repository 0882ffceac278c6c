//! Plans of operations other than linear layers.

mod rows;

use trike_cube::linear::{DenseForm, DenseKind, DenseProblem};
use trike_cube::ops::{
    Elementwise, ElementwiseBlueprint, ElementwiseProblem, GatedActivation, LookupProblem, MOST, RopePairing,
    RopeProblem, TopProblem,
};
use trike_cube::{Capabilities, Cost, KernelProblem};

fn fits<P: KernelProblem + std::fmt::Debug>(problem: &P, cost: Cost) {
    let device = Capabilities::smallest();
    problem.validate().unwrap_or_else(|e| panic!("{problem:?}: {e}"));
    let candidates = problem.candidates(&device);
    assert!(!candidates.is_empty(), "{problem:?}");
    for blueprint in candidates {
        let settings = problem.settings(&blueprint, &device).expect("its own candidate");
        settings.check(P::NAME, &device).unwrap_or_else(|e| panic!("{problem:?} {blueprint:?}: {e}"));
    }
    assert_eq!(problem.cost(), cost, "{problem:?}");
}

#[test]
fn every_candidate_fits_the_smallest_device() {
    let gated = Elementwise::Gated(GatedActivation::SquaredReLu);
    fits(&ElementwiseProblem { operation: gated, len: 1001 }, Cost::of_operations(3003, 12_012));
    let sum = ElementwiseProblem { operation: Elementwise::Add(8), len: 1 << 20 };
    fits(&sum, Cost::of_operations(1 << 20, (8 << 20) + 32));
    let table = DenseForm { rows: 128_256, cols: 100, kind: DenseKind::Int8, group: 32 };
    for (rows, tokens) in [(131_070, 1), (131_072, 1), (262_145, 9)] {
        let head = DenseForm { rows, ..table };
        let bytes = rows * (112 + 16) + 4 * tokens * (100 + rows);
        let macs = (tokens * rows * 100) as u64;
        fits(&DenseProblem { tokens, w: head, add: false }, Cost { macs, bytes: bytes as u64 });
    }
    let lookup = LookupProblem { count: 3, table };
    fits(&lookup, Cost { macs: 150, bytes: 3 * (100 + 16 + 4 + 400) });
    let pairing = RopePairing::Halves;
    let rope = RopeProblem { tokens: 2, heads: 3, head_dim: 80, rotated: 64, pairing };
    fits(&rope, Cost { macs: 3 * 192, bytes: 16 * 192 + 4 * 2 * 65 });
    let top = TopProblem { rows: 2, cols: 151_936, k: 40 };
    fits(&top, Cost { macs: 151_936 * 40, bytes: 2 * 4 * 151_936 + 8 * 80 });
    fits(&TopProblem { k: MOST, ..top }, Cost { macs: 151_936 * 256, bytes: 2 * 4 * 151_936 + 8 * 512 });
}

#[test]
fn limits_are_refused_at_their_edge() {
    let top = TopProblem { rows: 1, cols: 1000, k: MOST };
    top.validate().expect("at the limit");
    for (cols, k) in [(1000, MOST + 1), (1000, 0), (100, 101), (0, 1)] {
        TopProblem { cols, k, ..top }.validate().expect_err("out of range");
    }
    let pairing = RopePairing::Adjacent;
    let rope = RopeProblem { tokens: 1, heads: 1, head_dim: 8, rotated: 8, pairing };
    rope.validate().expect("all of a head");
    for rotated in [0, 3, 10] {
        RopeProblem { rotated, ..rope }.validate().expect_err("no pairs of this head");
    }
    for (len, period) in [(8, 3), (8, 0), (0, 1)] {
        let sum = ElementwiseProblem { operation: Elementwise::Add(period), len };
        sum.validate().expect_err("no whole number of rows");
    }
    let odd = ElementwiseProblem { operation: Elementwise::Add(6), len: 12 };
    odd.settings(&ElementwiseBlueprint { lanes: 4 }, &Capabilities::smallest()).expect_err("no vectors");
}
