//! Kernels of dense weights.

use trike_cube::linear::{DenseBlueprint, DenseForm, DenseKind, DenseProblem};
use trike_cube::{Capabilities, KernelProblem};

#[test]
fn matrix_instructions_are_for_prompts_and_exact_weights() {
    let mut device = Capabilities::smallest();
    (device.tf32_mma, device.ptx, device.async_copy, device.planes) = (true, true, true, Some((32, 32)));
    (device.max_units, device.max_unit_sides, device.max_shared_bytes) = (1024, [1024; 3], 99 << 10);
    let mma = |tokens| Some(DenseBlueprint::Mma { tokens });
    let w = |kind, cols, group| DenseForm { rows: 700, cols, kind, group };
    // Weights, tokens, and whether the first candidate uses matrix instructions.
    let table = [
        (w(DenseKind::F16, 64, 64), 9, mma(32)),
        (w(DenseKind::Bf16, 64, 64), 33, mma(64)),
        (w(DenseKind::Int8, 64, 64), 1000, mma(128)),
        (w(DenseKind::F16, 64, 64), 8, None),
        (w(DenseKind::Int8, 64, 32), 1000, None),
        (w(DenseKind::F32, 64, 64), 1000, None),
        (w(DenseKind::F16, 80, 80), 1000, None),
    ];
    for (w, tokens, want) in table {
        let problem = DenseProblem { tokens, w, add: false };
        let candidates = problem.candidates(&device);
        match want {
            Some(blueprint) => assert_eq!(candidates[0], blueprint, "{problem:?}"),
            None => assert!(!matches!(candidates[0], DenseBlueprint::Mma { .. }), "{problem:?}"),
        }
        for blueprint in candidates {
            let settings = problem.settings(&blueprint, &device).expect("its own candidate");
            settings.check("dense linear", &device).expect("it fits");
        }
        let mma = DenseBlueprint::Mma { tokens: 128 };
        assert!(problem.settings(&mma, &Capabilities::smallest()).is_err(), "{problem:?}");
    }
}
