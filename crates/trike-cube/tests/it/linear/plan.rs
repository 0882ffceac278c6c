//! Kernel selection for ternary linears, and refusals.

use trike_cube::linear::ActivationPrecision::{F32, Int8PerToken};
use trike_cube::linear::{
    ActivationShape, BLOCK, DecodeBlueprint, LinearBlueprint, MAX_SPLIT_CUBES, MAX_STAGES, MmaShape,
    SplitBlueprint, TILE, TernaryForm, TernaryLayout, TernaryProblem, WmmaElement, WmmaShape,
};
use trike_cube::{Capabilities, CubeError, KernelProblem, Strategy};

/// A device with more units and buffers than the smallest.
fn roomy() -> Capabilities {
    let mut device = Capabilities::smallest();
    (device.max_units, device.max_bindings) = (1024, 16);
    device
}

/// A device like an H200.
fn large() -> Capabilities {
    let mut device = roomy();
    (device.max_unit_sides, device.max_shared_bytes) = ([1024; 3], 232_448);
    (device.int8_mma, device.async_copy, device.planes) = (true, true, Some((32, 32)));
    device.multiprocessors = Some(132);
    device
}

/// The inferred kernel of a plain matrix on a device with matrix instructions and `multiprocessors` multiprocessors.
fn inferred(rows: usize, cols: usize, tokens: usize, multiprocessors: Option<u32>) -> LinearBlueprint {
    let device = &mut large();
    device.multiprocessors = multiprocessors;
    let (w, x) = problem(rows, cols, tokens);
    TernaryProblem { x, w, add: false }.candidates(device)[0]
}

/// A plain matrix and its activations.
fn problem(rows: usize, cols: usize, tokens: usize) -> (TernaryForm, ActivationShape) {
    let w = TernaryForm {
        parts: vec![rows],
        cols,
        sets: 1,
        planes: 1,
        group: None,
        means: false,
        f16_scales: true,
        layout: TernaryLayout::TwoBit,
        stored: rows.div_ceil(TILE) * cols.div_ceil(BLOCK),
    };
    (w, ActivationShape { tokens, cols, precision: Int8PerToken })
}

#[test]
fn few_tiles_of_long_rows_get_more_groups_on_large_devices() {
    for (rows, cols, multiprocessors, splits) in [
        (4096, 14336, Some(132), 16),
        (640, 14336, Some(132), 32),
        // 864 cubes of eight groups would need two rounds.
        (13824, 14336, Some(132), 4),
        (13824, 14336, None, 8),
        // Every unit processes two blocks.
        (4096, 2560, Some(132), 8),
        (4096, 128 * 31, Some(132), 8),
        (4096, 128 * 32, Some(132), 16),
        (16, 14336, None, 8),
    ] {
        let expected = LinearBlueprint::Decode(DecodeBlueprint { rows: 1, splits });
        assert_eq!(
            inferred(rows, cols, 1, multiprocessors),
            expected,
            "{rows} x {cols}, {multiprocessors:?}"
        );
    }
}

#[test]
fn cubes_share_columns_where_a_second_launch_is_predicted_to_pay() {
    // Sixteen tiles of long rows leave most multiprocessors of a large device without a cube.
    let split = inferred(256, 114_688, 1, Some(132));
    assert!(matches!(split, LinearBlueprint::Split(SplitBlueprint { cubes: 8, .. })), "{split:?}");
    // With three blocks in flight, one cube per tile is as fast as several plus a second launch.
    let one = inferred(256, 57_344, 1, Some(132));
    assert!(matches!(one, LinearBlueprint::Decode(_)), "{one:?}");
    // Shorter rows, more rows, few multiprocessors, and a device that does not report their number.
    for (rows, cols, multiprocessors) in
        [(256, 4096, Some(132)), (8192, 57344, Some(132)), (256, 57344, Some(8)), (256, 57344, None)]
    {
        let found = inferred(rows, cols, 1, multiprocessors);
        assert!(!matches!(found, LinearBlueprint::Split(_)), "{rows} x {cols}: {found:?}");
    }
}

#[test]
fn what_cubes_cannot_share_is_refused() {
    let mut device = Capabilities::smallest();
    device.max_bindings = 16;
    (device.int8_mma, device.async_copy, device.planes) = (true, true, Some((32, 32)));
    device.max_shared_bytes = 48 << 10;
    let (w, x) = problem(256, 57344, 1);
    let problem = TernaryProblem { x, w, add: false };
    let decode = DecodeBlueprint { rows: 1, splits: 8 };
    let shape =
        MmaShape { tiles: 1, octets: 1, row_planes: 1, code_planes: 1, splits: 2, stages: 2, cubes: 1 };
    let of = [
        (|decode, _, cubes| LinearBlueprint::Split(SplitBlueprint { decode, cubes })) as fn(_, _, _) -> _,
        |_, shape, cubes| LinearBlueprint::Mma(MmaShape { cubes, ..shape }),
    ];
    for (kernel, fewest) in of.into_iter().zip([2, 1]) {
        let plan = |cubes| problem.plan(&Strategy::Forced(kernel(decode, shape, cubes)), &device);
        for cubes in [fewest, MAX_SPLIT_CUBES] {
            let (_, settings) = plan(cubes).expect("inside of the limits");
            assert_eq!(settings.cubes, [16, 1, cubes as u32]);
        }
        for cubes in [0, fewest - 1, MAX_SPLIT_CUBES + 1] {
            assert!(matches!(plan(cubes), Err(CubeError::Range { got, .. }) if got == cubes));
        }
    }
}

#[test]
fn cubes_of_matrix_instructions_fill_a_large_device() {
    for (rows, cols, tokens) in [
        (4096, 14336, 8),
        (4096, 14336, 16),
        (4096, 14336, 32),
        (4096, 14336, 64),
        (4096, 14336, 128),
        (13824, 2560, 16),
        (2560, 2560, 16),
        (4096, 14336, 8192),
    ] {
        let (w, x) = problem(rows, cols, tokens);
        let (chosen, settings) = TernaryProblem { x, w, add: false }
            .plan(&Strategy::Inferred, &large())
            .expect("there is a kernel");
        let LinearBlueprint::Mma(shape) = chosen else { panic!("{rows} x {cols}, {tokens}: {chosen:?}") };
        let cubes: u32 = settings.cubes.iter().product();
        assert!(cubes >= 80, "{rows} x {cols}, {tokens}: {cubes} cubes of {shape:?}");
        // Activations are read from the last-level cache once per cube row: less often than the weights if there are few rows.
        assert!(shape.rows() >= 64 || rows < 4096, "{rows} x {cols}, {tokens}: {shape:?}");
    }
}

#[test]
fn matrix_instructions_need_asynchronous_copies_and_memory_for_their_steps() {
    let device = large();
    let (w, x) = problem(4096, 2560, 2048);
    let problem = TernaryProblem { x, w, add: false };
    let shape =
        MmaShape { tiles: 4, octets: 4, row_planes: 2, code_planes: 4, splits: 1, stages: 2, cubes: 1 };
    let plan = |stages, device: &Capabilities| {
        problem.plan(&Strategy::Forced(LinearBlueprint::Mma(MmaShape { stages, ..shape })), device)
    };
    let mut without = large();
    without.async_copy = false;
    assert!(matches!(plan(2, &without), Err(CubeError::Feature { .. })));
    for (stages, fine) in [(1, false), (2, true), (MAX_STAGES, true), (MAX_STAGES + 1, false)] {
        let found = plan(stages, &device);
        assert_eq!(found.is_ok(), fine, "{stages}: {found:?}");
        // 128 rows of weights of 32 bytes, 128 rows of codes of 128 bytes, and a vector of padding each.
        if let Ok((_, settings)) = found {
            assert_eq!(settings.shared_bytes, stages * 128 * (32 + 144) + 12);
        }
    }
}

#[test]
fn cooperative_matrices_are_for_many_tokens_and_devices_without_other_matrices() {
    let mut device = roomy();
    (device.planes, device.max_shared_bytes, device.int8_cmma) = (Some((32, 64)), 48 << 10, vec![[16; 3]]);
    let chosen = |tokens: usize, device: &Capabilities| {
        let (w, x) = problem(4096, 2560, tokens);
        TernaryProblem { x, w, add: false }.plan(&Strategy::Inferred, device).expect("there is a kernel")
    };
    let wmma = |tokens: usize, device: &Capabilities| match chosen(tokens, device) {
        (LinearBlueprint::Wmma(shape), settings) => (shape, settings),
        (other, _) => panic!("{tokens}: {other:?}"),
    };
    let (shape, settings) = wmma(2048, &device);
    assert_eq!((shape.rows(), shape.code_rows(), settings.shared_bytes), (64, 64, 40 << 10));
    // Planes of up to 64 units: four of them, whatever the actual size.
    assert_eq!((settings.cubes, settings.units), ([64, 32, 1], [64, 4]));
    // Few tokens, and less shared memory.
    assert_eq!(wmma(17, &device).0.code_rows(), 32);
    device.max_shared_bytes = 32 << 10;
    assert_eq!((wmma(2048, &device).0.code_rows(), wmma(2048, &device).1.shared_bytes), (32, 32 << 10));
    device.max_shared_bytes = 16 << 10;
    assert_eq!(chosen(2048, &device).0, LinearBlueprint::Tiled);
    // As Intel's devices report.
    (device.max_shared_bytes, device.planes, device.int8_cmma) = (64 << 10, Some((8, 32)), vec![[8, 16, 32]]);
    assert_eq!((wmma(2048, &device).0.rows(), wmma(2048, &device).0.code_rows()), (64, 64));
    assert!(matches!(chosen(16, &device).0, LinearBlueprint::Decode(_)));
    (device.int8_mma, device.async_copy) = (true, true);
    device.planes = Some((32, 32));
    assert!(matches!(chosen(2048, &device).0, LinearBlueprint::Mma(_)));
    (device.int8_mma, device.planes) = (false, None);
    assert_eq!(chosen(2048, &device).0, LinearBlueprint::Tiled);
}

#[test]
fn cooperative_matrices_that_do_not_fit_are_refused() {
    let mut device = roomy();
    (device.planes, device.max_shared_bytes) = (Some((32, 32)), 64 << 10);
    device.int8_cmma = vec![[16; 3], [8, 8, 16], [16, 16, 8], [16, 2, 16], [16, 16, 64]];
    let (w, mut x) = problem(4096, 2560, 2048);
    x.precision = F32;
    let problem = TernaryProblem { x, w, add: false };
    let one = WmmaShape {
        m: 16,
        n: 16,
        k: 16,
        row_matrices: 1,
        code_matrices: 1,
        row_planes: 1,
        code_planes: 1,
        element: WmmaElement::I8,
    };
    let plan = |shape| problem.plan(&Strategy::Forced(LinearBlueprint::Wmma(shape)), &device);
    plan(one).expect("inside of the limits");
    let table = [
        (WmmaShape { k: 32, ..one }, "cooperative matrices of bytes of this shape"),
        (WmmaShape { row_matrices: 0, ..one }, "expected 1 to 8, got 0"),
        (WmmaShape { code_matrices: 9, ..one }, "expected 1 to 8, got 9"),
        (WmmaShape { code_planes: 17, ..one }, "expected 1 to 16, got 17"),
        // A scale lasts 32 columns, and a row of a matrix fills 16 bytes.
        (WmmaShape { k: 64, ..one }, "columns that share a scale"),
        (WmmaShape { k: 8, ..one }, "bytes of a row of a matrix"),
        // Half a tile; two digits of four; fewer sums than units that combine digits.
        (WmmaShape { m: 8, n: 8, ..one }, "rows of weights of a cube"),
        (WmmaShape { n: 2, ..one }, "rows of codes of a matrix"),
        (WmmaShape { m: 8, n: 8, row_matrices: 2, ..one }, "sums of a matrix"),
        (WmmaShape { element: WmmaElement::F16, ..one }, "cooperative matrices of f16 of this shape"),
    ];
    for (shape, message) in table {
        let error = plan(shape).expect_err(message).to_string();
        assert!(error.contains(message), "{shape:?}: {error}");
    }
}

#[test]
fn cooperative_matrices_of_f16_are_for_devices_without_those_of_bytes() {
    // A CDNA device: planes of 64, 64 KiB.
    let mut device = roomy();
    (device.planes, device.max_shared_bytes) = (Some((64, 64)), 64 << 10);
    device.f16_cmma = vec![[32, 32, 32], [16, 16, 32]];
    let chosen = |cols: usize, planes: usize, device: &Capabilities| {
        let (mut w, x) = problem(4096, cols, 2048);
        w.planes = planes;
        TernaryProblem { x, w, add: false }.plan(&Strategy::Inferred, device).expect("there is a kernel").0
    };
    let LinearBlueprint::Wmma(shape) = chosen(2560, 1, &device) else { panic!("no cooperative matrices") };
    assert_eq!((shape.element, shape.rows(), shape.code_rows()), (WmmaElement::F16, 64, 64));
    // One block of f16 is as large as two of bytes.
    assert_eq!(shape.shared_bytes(), 2 * 128 * (64 + 64) + 2 * 4 * 4 * 32 * 32);
    // Sums of up to 2^24 are exact: 131,072 columns of trits, and 1,083 of five folded planes.
    assert!(matches!(chosen(131_072, 1, &device), LinearBlueprint::Wmma(_)));
    assert!(matches!(chosen(1083, 5, &device), LinearBlueprint::Wmma(_)));
    assert_eq!(chosen(1084, 5, &device), LinearBlueprint::Tiled);
    device.int8_cmma = vec![[16; 3]];
    let LinearBlueprint::Wmma(shape) = chosen(2560, 1, &device) else { panic!("no cooperative matrices") };
    assert_eq!(shape.element, WmmaElement::I8);
}
