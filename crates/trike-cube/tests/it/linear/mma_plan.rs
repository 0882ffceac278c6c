//! Shapes of the matrix-instruction kernel.

use trike_cube::linear::{ActivationPrecision, ActivationShape, TernaryForm, TernaryLayout, TernaryProblem};
use trike_cube::{Capabilities, DeviceFamily};

/// The table of the chapter on GPUs: 4096 x 14336 with one scale per row.
#[test]
fn shapes_grow_with_the_tokens() {
    let mut device = Capabilities::smallest();
    (device.int8_mma, device.async_copy, device.planes) = (true, true, Some((32, 32)));
    (device.multiprocessors, device.max_shared_bytes) = (Some(132), 232_448);
    (device.max_units, device.max_bindings, device.family) = (1024, 1024, DeviceFamily::Hopper);
    let shape = |tokens| {
        let w = TernaryForm {
            parts: vec![4096],
            cols: 14_336,
            group: None,
            sets: 1,
            planes: 1,
            means: false,
            f16_scales: true,
            layout: TernaryLayout::TwoBit,
            stored: 256 * 112,
        };
        let x = ActivationShape { tokens, cols: 14_336, precision: ActivationPrecision::Int8PerToken };
        TernaryProblem { x, w, add: false }.mma_candidate(&device).expect("a shape")
    };
    for (tokens, rows, code_rows, planes, splits, cubes) in TABLE {
        let found = shape(tokens);
        let side = (found.rows(), found.code_rows(), found.planes(), found.splits, found.cubes);
        assert_eq!(side, (rows, code_rows, planes, splits, cubes), "{tokens} tokens: {found:?}");
    }
}

/// Tokens; rows and code rows of a cube, its planes, splits in a cube, cubes.
const TABLE: [(usize, usize, usize, usize, usize, usize); 6] = [
    (8, 128, 8, 16, 4, 4),
    (16, 128, 16, 16, 4, 4),
    (32, 128, 32, 16, 4, 4),
    (64, 128, 32, 16, 4, 2),
    (128, 128, 64, 8, 2, 2),
    (8192, 128, 256, 8, 1, 1),
];
