//! Rows: norms, gates and quantizers.

use trike_cube::linear::{ActivationPrecision, MAX_COLS};
use trike_cube::ops::{GatedActivation, RowBlueprint, RowProblem, RowSource, RowTarget};
use trike_cube::{Capabilities, CubeError, KernelProblem};
use trike_trit::{GroupSize, Hadamard};

const INT8: RowTarget = RowTarget::Codes(ActivationPrecision::Int8PerToken);

fn problem() -> RowProblem {
    RowProblem { rows: 3, cols: 2560, source: RowSource::Plain, norm: true, target: INT8, rotation: None }
}

#[test]
fn every_candidate_fits_the_smallest_device() {
    let device = Capabilities::smallest();
    let group = RowTarget::Codes(ActivationPrecision::Int8PerGroup(GroupSize::G256));
    let exact = RowTarget::Codes(ActivationPrecision::F32);
    for target in [RowTarget::Floats, INT8, group, exact] {
        for (cols, block) in [(1, 1), (64, 2), (130, 1), (2560, 512), (28_672, 32)] {
            let rotation = Hadamard::largest(cols, block).filter(|_| target != RowTarget::Floats);
            let problem = RowProblem { cols, target, rotation, ..problem() };
            let candidates = problem.candidates(&device);
            assert!(!candidates.is_empty());
            for blueprint in candidates {
                let settings = problem.settings(&blueprint, &device).expect("its own candidate");
                settings.check("rows", &device).unwrap_or_else(|e| panic!("{problem:?} {blueprint:?}: {e}"));
            }
        }
    }
}

#[test]
fn limits_are_refused_at_their_edge() {
    problem().validate().expect("fine");
    for (rows, cols) in [(0, 8), (8, 0), (1 << 16, 1 << 16), (1, MAX_COLS + 1)] {
        RowProblem { rows, cols, ..problem() }.validate().expect_err("out of range");
    }
    RowProblem { cols: MAX_COLS, rows: 1, ..problem() }.validate().expect("at the limit");
    let idle = RowProblem { norm: false, target: RowTarget::Floats, ..problem() };
    assert!(matches!(idle.validate(), Err(CubeError::Unsupported { .. })), "rows that stay what they are");
    let rotation = Hadamard::new(1024).ok();
    let cut = RowProblem { rotation, ..problem() }.validate();
    assert!(matches!(cut, Err(CubeError::NotMultiple { unit: 1024, got: 2560, .. })));
    let rotation = Hadamard::new(512).ok();
    RowProblem { rotation, ..problem() }.validate().expect("whole blocks");
    let floats = RowProblem { rotation, target: RowTarget::Floats, ..problem() }.validate();
    assert!(matches!(floats, Err(CubeError::Unsupported { .. })), "rotated floats");
    let mut device = Capabilities::smallest();
    device.planes = Some((8, 64));
    let with = |units, planes, lanes| problem().settings(&RowBlueprint { units, planes, lanes }, &device);
    with(64, true, 4).expect("a whole plane");
    assert!(matches!(with(32, true, 4), Err(CubeError::NotMultiple { unit: 64, got: 32, .. })));
    assert!(matches!(with(64, false, 2), Err(CubeError::NotMultiple { unit: 2, .. })));
    let odd = RowProblem { cols: 2562, ..problem() };
    let refused = odd.settings(&RowBlueprint { units: 64, planes: false, lanes: 4 }, &device);
    assert!(matches!(refused, Err(CubeError::NotMultiple { unit: 4, got: 2562, .. })));
    let without = RowBlueprint { units: 64, planes: true, lanes: 4 };
    let refused = problem().settings(&without, &Capabilities::smallest());
    assert!(matches!(refused, Err(CubeError::Feature { .. })));
}

#[test]
fn costs_count_every_byte_once() {
    let floats = RowProblem { rows: 2, cols: 128, target: RowTarget::Floats, ..problem() };
    assert_eq!(floats.cost().bytes, 4 * (2 * 128 + 2 * 128 + 128));
    let codes = RowProblem { norm: false, target: INT8, ..floats };
    assert_eq!(codes.cost().bytes, 4 * 2 * 128 + 2 * 128 + 2 * 4 * 8 + 2 * 4);
    let gated = RowProblem { source: RowSource::Gated(GatedActivation::SquaredReLu), ..codes };
    assert_eq!(gated.cost().bytes - codes.cost().bytes, 4 * 2 * 128);
}
