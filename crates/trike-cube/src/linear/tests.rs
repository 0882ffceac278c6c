//! Every kernel of the ternary linears against sums in f64, on the software driver.

use trike_testkit::{Rng, assert_close};
use trike_trit::{Coupling, Encoding, Granularity, GroupSize, ScaleValues, Scales, TritTensor};

use super::quantize::quantize;
use super::*;
use crate::{Capabilities, Device, Plan, Strategy, testing};
use ActivationPrecision::{F32, Int8PerGroup, Int8PerToken, Int16};
use Coupling::{Free, Tied};

/// What one case is about.
struct Case {
    parts: &'static [usize],
    cols: usize,
    tokens: &'static [usize],
    precision: ActivationPrecision,
    granularity: Granularity,
    depth: usize,
    coupling: Coupling,
    means: bool,
    add: bool,
}

const BASE: Case = Case {
    parts: &[16],
    cols: 128,
    tokens: &[1],
    precision: Int8PerToken,
    granularity: Granularity::Row,
    depth: 1,
    coupling: Free,
    means: false,
    add: false,
};

/// One case for each thing that kernels tell apart; `cargo xtask gpu-test` has the whole table.
const CASES: &[Case] = &[
    Case { parts: &[1], cols: 1, granularity: Granularity::Tensor, tokens: &[1, 40], ..BASE },
    Case { parts: &[37, 5, 18], cols: 300, tokens: &[3], precision: F32, add: true, ..BASE },
    Case { cols: 257, tokens: &[2], granularity: Granularity::Group(GroupSize::G128), means: true, ..BASE },
    Case {
        parts: &[20],
        cols: 600,
        tokens: &[1],
        granularity: Granularity::Group(GroupSize::G256),
        precision: Int8PerGroup(GroupSize::G64),
        depth: 2,
        ..BASE
    },
    Case { parts: &[17], cols: 130, tokens: &[1], precision: Int16, depth: 6, coupling: Tied, ..BASE },
];

fn tensor(rng: &mut Rng, case: &Case, rows: usize) -> TritTensor {
    let mut trits: Vec<Vec<i8>> = (0..case.depth).map(|_| rng.trits(rows * case.cols, 0.6)).collect();
    // The second block of the first tile is zero.
    for plane in &mut trits {
        let columns = 128.min(case.cols)..256.min(case.cols);
        plane.chunks_mut(case.cols).take(16).for_each(|row| row[columns.clone()].fill(0));
    }
    let planes: Vec<&[i8]> = trits.iter().map(Vec::as_slice).collect();
    let set = case.granularity.count(rows, case.cols).expect("a count");
    let sets = if case.coupling == Free { case.depth } else { 1 };
    // Values that halves hold, so that scales are f16 where the device has them.
    let values = |n: usize, rng: &mut Rng| {
        ScaleValues::exact(
            &rng.normals(n).iter().map(|v| half::f16::from_f32(*v).to_f32()).collect::<Vec<_>>(),
        )
    };
    let means = case.means.then(|| values(set, rng));
    let scales = Scales::new(case.granularity, values(set * sets, rng), means);
    TritTensor::from_planes(rows, case.cols, &planes, Encoding::TwoBit, case.coupling, scales)
        .expect("a tensor")
}

/// The activations that the codes stand for.
fn rounded(shape: ActivationShape, x: &[f32]) -> Vec<f64> {
    let made = quantize(shape, x);
    let (slices, words) = (shape.precision.slices(), shape.blocks() * 32);
    let mut out = Vec::with_capacity(x.len());
    for token in 0..shape.tokens {
        for col in 0..shape.cols {
            let digit = |s: usize| {
                let word = made.codes[(token * slices + s) * words + ActivationShape::word_of(col / 4 * 4)];
                f64::from(word.to_le_bytes()[col % 4] as i8)
            };
            let factor = match shape.precision.group() {
                None => made.factors[token],
                Some(_) => made.factors[token * shape.blocks() * 4 + col / SEGMENT],
            };
            out.push((0..slices).map(|s| digit(s) * 256f64.powi(s as i32)).sum::<f64>() * f64::from(factor));
        }
    }
    out
}

fn run(device: &Device, case: &Case, seed: u64) {
    let mut rng = Rng::new(seed);
    let tensors: Vec<TritTensor> = case.parts.iter().map(|&rows| tensor(&mut rng, case, rows)).collect();
    let parts: Vec<&TritTensor> = tensors.iter().collect();
    let mut layouts = vec![TernaryMatrix::pack(device, &parts).expect("packed")];
    if case.coupling == Free {
        layouts.push(TernaryMatrix::pack_as(device, &parts, TernaryLayout::Base3).expect("packed"));
    }
    if !case.means {
        layouts.push(TernaryMatrix::pack_as(device, &parts, TernaryLayout::Blocks).expect("packed"));
    }
    for w in &layouts {
        run_packed(device, case, &tensors, w, &mut rng);
    }
}

fn run_packed(device: &Device, case: &Case, tensors: &[TritTensor], w: &TernaryMatrix, rng: &mut Rng) {
    for &tokens in case.tokens {
        let shape = ActivationShape { tokens, cols: case.cols, precision: case.precision };
        let x = rng.normals(tokens * case.cols);
        let resident = Activations::upload(device, shape, &x).expect("uploaded");
        let x = rounded(shape, &x);
        let before: Vec<Vec<f32>> = case.parts.iter().map(|rows| rng.normals(tokens * rows)).collect();
        let problem = TernaryProblem { x: shape, w: w.form().clone(), add: case.add };
        for blueprint in problem.candidates(device.capabilities()) {
            // What the outputs hold before is a poison, unless it is added to.
            let outs: Vec<_> = before
                .iter()
                .map(|b| {
                    device.upload(&if case.add { b.clone() } else { vec![f32::NAN; b.len()] }).expect("room")
                })
                .collect();
            let refs: Vec<_> = outs.iter().collect();
            let strategy = Strategy::Forced(blueprint);
            let done = if case.add {
                device.linear_add(&resident, w, &refs, &strategy)
            } else {
                device.linear(&resident, w, &refs, &strategy)
            };
            done.unwrap_or_else(|e| panic!("{blueprint:?}: {e}"));
            for ((tensor, out), before) in tensors.iter().zip(&outs).zip(&before) {
                let weights = tensor.dequantize();
                let mut want = Vec::new();
                for x in x.chunks(case.cols) {
                    for w in weights.chunks(case.cols) {
                        want.push(w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum::<f64>() as f32);
                    }
                }
                if case.add {
                    want.iter_mut().zip(before).for_each(|(want, b)| *want += b);
                }
                let got = device.read(out).expect("a device");
                assert_close(&got, &want, 2e-6);
            }
        }
    }
}

#[test]
fn every_kernel_agrees_with_sums_in_f64() {
    for device in testing::devices() {
        for (seed, case) in CASES.iter().enumerate() {
            run(&device, case, seed as u64);
        }
    }
}

#[test]
fn integers_are_exact_to_the_last_bit() {
    for device in testing::devices() {
        // The longest row, all extremes: the largest sums that there are.
        let cols = 4096;
        for (depth, sign) in [(1, -1i8), (5, 1), (5, -1)] {
            let trits = vec![sign; cols];
            let planes: Vec<&[i8]> = vec![&trits; depth];
            let tensor =
                TritTensor::from_planes(1, cols, &planes, Encoding::TwoBit, Tied, Scales::tensor(81.0))
                    .expect("a tensor");
            let w = TernaryMatrix::pack(&device, &[&tensor]).expect("packed");
            let shape = ActivationShape { tokens: 2, cols, precision: Int8PerToken };
            let mut x = vec![-127.0; 2 * cols];
            x[cols..]
                .iter_mut()
                .enumerate()
                .for_each(|(i, x)| *x = if i % 3 == 0 { 127.0 } else { -(i as f32 % 100.0) });
            let resident = Activations::upload(&device, shape, &x).expect("uploaded");
            let folded = if depth == 1 { 81.0 } else { 121.0 };
            let want: Vec<f32> =
                x.chunks(cols).map(|x| f32::from(sign) * folded * x.iter().sum::<f32>()).collect();
            let problem = TernaryProblem { x: shape, w: w.form().clone(), add: false };
            for blueprint in problem.candidates(device.capabilities()) {
                let out = device.upload(&[f32::NAN; 2]).expect("room");
                device.linear(&resident, &w, &[&out], &Strategy::Forced(blueprint)).expect("a launch");
                assert_eq!(device.read(&out).expect("a device"), want, "{blueprint:?} {depth} {sign}");
            }
        }
    }
}

#[test]
fn a_token_that_is_not_finite_spoils_its_own_outputs_only() {
    for device in testing::devices() {
        let tensor = TritTensor::from_trits(3, 40, &[0; 120], Encoding::TwoBit, Scales::tensor(1.0))
            .expect("a tensor");
        let w = TernaryMatrix::pack(&device, &[&tensor]).expect("packed");
        for precision in [F32, Int8PerToken] {
            let mut x = vec![1.0; 80];
            x[41] = f32::INFINITY;
            let resident =
                Activations::upload(&device, ActivationShape { tokens: 2, cols: 40, precision }, &x)
                    .expect("uploaded");
            let out = device.upload(&[7.0f32; 6]).expect("room");
            device.linear(&resident, &w, &[&out], &Strategy::Inferred).expect("a launch");
            let got = device.read(&out).expect("a device");
            assert_eq!(got[..3], [0.0; 3]);
            assert!(got[3..].iter().all(|v| v.is_nan()), "{got:?}");
        }
    }
}

#[test]
fn dense_kernels_agree_with_sums_in_f64() {
    let mut rng = Rng::new(11);
    // Rows, columns, tokens, columns of a group of bytes.
    let table: [(usize, usize, &[usize], usize); 4] =
        [(1, 1, &[1], 1), (5, 70, &[1, 3, 9], 7), (66, 100, &[1, 65], 20), (7, 64, &[2], 64)];
    for device in testing::devices() {
        for (rows, cols, many, group) in table {
            let w = rng.normals(rows * cols);
            // Every other one subnormal.
            let small = |(i, v): (usize, &f32)| half::f16::from_f32(if i % 2 == 0 { v * 1e-5 } else { *v });
            let f16s: Vec<half::f16> = w.iter().enumerate().map(small).collect();
            let bf16s: Vec<half::bf16> = w.iter().map(|v| half::bf16::from_f32(*v)).collect();
            let codes: Vec<i8> = (0..rows * cols).map(|_| rng.next_u64() as i8).collect();
            let scales = rng.normals(rows * cols.div_ceil(group));
            let of_bytes =
                |i: usize| scales[i / cols * cols.div_ceil(group) + i % cols / group] * f32::from(codes[i]);
            let kinds: [(DenseValues<'_>, Vec<f32>); 4] = [
                (DenseValues::F32(&w), w.clone()),
                (DenseValues::F16(&f16s), f16s.iter().map(|v| v.to_f32()).collect()),
                (DenseValues::Bf16(&bf16s), bf16s.iter().map(|v| v.to_f32()).collect()),
                (
                    DenseValues::Int8 { codes: &codes, scales: &scales, group },
                    (0..rows * cols).map(of_bytes).collect(),
                ),
            ];
            for (values, weights) in kinds {
                let matrix = DenseMatrix::upload(&device, rows, cols, values).expect("uploaded");
                for &tokens in many {
                    let x = rng.normals(tokens * cols);
                    let before = rng.normals(tokens * rows);
                    let want: Vec<f32> = (0..tokens * rows)
                        .map(|i| {
                            let (w, x) = (&weights[i % rows * cols..][..cols], &x[i / rows * cols..][..cols]);
                            w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>() as f32
                        })
                        .collect();
                    let x = device.upload(&x).expect("room");
                    let problem = DenseProblem { tokens, w: matrix.form(), add: false };
                    for blueprint in problem.candidates(device.capabilities()) {
                        let out = device.upload(&vec![f32::NAN; tokens * rows]).expect("room");
                        device.dense(&x, &matrix, &out, &Strategy::Forced(blueprint)).expect("a launch");
                        assert_close(&device.read(&out).expect("a device"), &want, 4e-6);
                    }
                    if tokens == 1 {
                        let out = device.upload(&before).expect("room");
                        device.dense_add(&x, &matrix, &out, &Strategy::Inferred).expect("a launch");
                        let sum: Vec<f32> = want.iter().zip(&before).map(|(w, b)| w + b).collect();
                        assert_close(&device.read(&out).expect("a device"), &sum, 4e-6);
                    }
                }
            }
        }
    }
}

#[test]
fn wrong_lengths_are_refused_before_anything_is_written() {
    let Some(device) = testing::device(crate::Planes::Off) else { return };
    let tensor =
        TritTensor::from_trits(3, 40, &[1; 120], Encoding::TwoBit, Scales::tensor(1.0)).expect("a tensor");
    let w = TernaryMatrix::pack(&device, &[&tensor, &tensor]).expect("packed");
    let x = |tokens, cols| {
        let shape = ActivationShape { tokens, cols, precision: Int8PerToken };
        Activations::upload(&device, shape, &vec![1.0; tokens * cols]).expect("uploaded")
    };
    let (a, b) = (device.upload(&[7.0f32; 6]).expect("room"), device.upload(&[7.0f32; 6]).expect("room"));
    let run = |x: &Activations, outs: &[&crate::Buffer<f32>], s| device.linear(x, &w, outs, &s);
    let forced = |b| Strategy::Forced(b);
    let table = [
        (run(&x(2, 41), &[&a, &b], Strategy::Inferred), "expected 40 elements, got 41"),
        (run(&x(1, 40), &[&a, &b], Strategy::Inferred), "expected 3 elements, got 6"),
        (run(&x(2, 40), &[&a], Strategy::Inferred), "expected 2 elements, got 1"),
        (run(&x(2, 40), &[&a, &a], Strategy::Inferred), "share memory"),
        (
            run(
                &x(2, 40),
                &[&a, &b],
                forced(LinearBlueprint::Decode(DecodeBlueprint { rows: 3, splits: 1 })),
            ),
            "rows of codes of a cube",
        ),
        (
            run(
                &x(2, 40),
                &[&a, &b],
                forced(LinearBlueprint::Decode(DecodeBlueprint { rows: 1, splits: 33 })),
            ),
            "expected 1 to 32, got 33",
        ),
        (
            run(
                &x(2, 40),
                &[&a, &b],
                forced(LinearBlueprint::Mma(MmaShape {
                    tiles: 1,
                    octets: 1,
                    row_planes: 1,
                    code_planes: 1,
                    splits: 1,
                    stages: 2,
                    cubes: 1,
                })),
            ),
            "which llvmpipe",
        ),
    ];
    for (result, message) in table {
        let error = result.expect_err(message).to_string();
        assert!(error.contains(message), "{error}");
    }
    assert_eq!(device.read(&a).expect("a device"), [7.0; 6]);
}

/// What is inferred for a plain matrix on a device with matrix instructions and so many multiprocessors.
fn inferred(rows: usize, cols: usize, tokens: usize, multiprocessors: Option<u32>) -> LinearBlueprint {
    let device = Capabilities { multiprocessors, ..large() };
    let (w, x) = problem(rows, cols, tokens);
    TernaryProblem { x, w, add: false }.candidates(&device)[0]
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
        // Every unit walks two blocks.
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
    // With three blocks in flight, one cube of a tile is as fast as several and a second launch.
    let one = inferred(256, 57_344, 1, Some(132));
    assert!(matches!(one, LinearBlueprint::Decode(_)), "{one:?}");
    // Shorter rows, more rows, few multiprocessors, and a device that does not say how many it has.
    for (rows, cols, multiprocessors) in
        [(256, 4096, Some(132)), (8192, 57344, Some(132)), (256, 57344, Some(8)), (256, 57344, None)]
    {
        let found = inferred(rows, cols, 1, multiprocessors);
        assert!(!matches!(found, LinearBlueprint::Split(_)), "{rows} x {cols}: {found:?}");
    }
}

#[test]
fn what_cubes_cannot_share_is_refused() {
    let mut device = Capabilities { max_bindings: 16, ..Capabilities::smallest() };
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
            assert!(matches!(plan(cubes), Err(crate::CubeError::Range { got, .. }) if got == cubes));
        }
    }
}

/// A device like an H200.
fn large() -> Capabilities {
    let mut device = Capabilities { max_units: 1024, max_bindings: 16, ..Capabilities::smallest() };
    (device.max_unit_sides, device.max_shared_bytes) = ([1024; 3], 232_448);
    (device.int8_mma, device.async_copy, device.planes) = (true, true, Some((32, 32)));
    device.multiprocessors = Some(132);
    device
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
        // Activations are read from the last cache once for as many rows: less often than the weights where rows are few.
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
    let without = Capabilities { async_copy: false, ..large() };
    assert!(matches!(plan(2, &without), Err(crate::CubeError::Feature { .. })));
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
    let mut device = Capabilities { max_units: 1024, max_bindings: 16, ..Capabilities::smallest() };
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
    // Planes of 64 at most: four of them, whatever size they turn out to have.
    assert_eq!((settings.cubes, settings.units), ([64, 32, 1], [64, 4]));
    // Few tokens, and less shared memory.
    assert_eq!(wmma(17, &device).0.code_rows(), 32);
    device.max_shared_bytes = 32 << 10;
    assert_eq!((wmma(2048, &device).0.code_rows(), wmma(2048, &device).1.shared_bytes), (32, 32 << 10));
    device.max_shared_bytes = 16 << 10;
    assert_eq!(chosen(2048, &device).0, LinearBlueprint::Tiled);
    // What Intel's devices list.
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
    let mut device = Capabilities { max_units: 1024, max_bindings: 16, ..Capabilities::smallest() };
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
        // Half a tile; two digits of four; fewer sums than units have digits to take.
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
    let mut device = Capabilities { max_units: 1024, max_bindings: 16, ..Capabilities::smallest() };
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
