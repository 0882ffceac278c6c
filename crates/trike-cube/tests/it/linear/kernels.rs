//! Every ternary linear kernel compared with f64 sums, on the software driver.

use trike_cube::internals::linear::quantize;
use trike_cube::linear::ActivationPrecision::{self, F32, Int8PerGroup, Int8PerToken, Int16};
use trike_cube::linear::{
    ActivationShape, Activations, CubeDenseMatrix, CubeTernaryMatrix, DecodeBlueprint, DenseProblem,
    DenseValues, LinearBlueprint, MmaShape, SEGMENT, TernaryLayout, TernaryProblem,
};
use trike_cube::{Buffer, CubeDevice, KernelProblem, Planes, Strategy};
use trike_testkit::{Rng, assert_close};
use trike_trit::Coupling::{self, Free, Tied};
use trike_trit::{Encoding, Granularity, GroupSize, ScaleValues, Scales, TritTensor};

use crate::testing;

/// Parameters of a test case.
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

/// One case per property that kernels distinguish; `cargo xtask gpu-test` has the complete table.
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
    // Values exact in f16, so that scales are f16 if the device supports it.
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

/// The dequantized activations.
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

fn run(device: &CubeDevice, case: &Case, seed: u64) {
    let mut rng = Rng::new(seed);
    let tensors: Vec<TritTensor> = case.parts.iter().map(|&rows| tensor(&mut rng, case, rows)).collect();
    let parts: Vec<&TritTensor> = tensors.iter().collect();
    let mut layouts = vec![CubeTernaryMatrix::pack(device, &parts).expect("packed")];
    if case.coupling == Free {
        layouts.push(CubeTernaryMatrix::pack_as(device, &parts, TernaryLayout::Base3).expect("packed"));
    }
    if !case.means {
        layouts.push(CubeTernaryMatrix::pack_as(device, &parts, TernaryLayout::Blocks).expect("packed"));
    }
    for w in &layouts {
        run_packed(device, case, &tensors, w, &mut rng);
    }
}

fn run_packed(
    device: &CubeDevice,
    case: &Case,
    tensors: &[TritTensor],
    w: &CubeTernaryMatrix,
    rng: &mut Rng,
) {
    for &tokens in case.tokens {
        let shape = ActivationShape { tokens, cols: case.cols, precision: case.precision };
        let x = rng.normals(tokens * case.cols);
        let resident = Activations::upload(device, shape, &x).expect("uploaded");
        let x = rounded(shape, &x);
        let before: Vec<Vec<f32>> = case.parts.iter().map(|rows| rng.normals(tokens * rows)).collect();
        let problem = TernaryProblem { x: shape, w: w.form().clone(), add: case.add };
        for blueprint in problem.candidates(device.capabilities()) {
            // Outputs are poisoned, unless they are added to.
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
        // The longest row with extreme values: the largest possible sums.
        let cols = 4096;
        for (depth, sign) in [(1, -1i8), (5, 1), (5, -1)] {
            let trits = vec![sign; cols];
            let planes: Vec<&[i8]> = vec![&trits; depth];
            let tensor =
                TritTensor::from_planes(1, cols, &planes, Encoding::TwoBit, Tied, Scales::tensor(81.0))
                    .expect("a tensor");
            let w = CubeTernaryMatrix::pack(&device, &[&tensor]).expect("packed");
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
        let w = CubeTernaryMatrix::pack(&device, &[&tensor]).expect("packed");
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
    // Rows, columns, tokens, group size of int8.
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
                let matrix = CubeDenseMatrix::upload(&device, rows, cols, values).expect("uploaded");
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
    let Some(device) = testing::device(Planes::Off) else { return };
    let tensor =
        TritTensor::from_trits(3, 40, &[1; 120], Encoding::TwoBit, Scales::tensor(1.0)).expect("a tensor");
    let w = CubeTernaryMatrix::pack(&device, &[&tensor, &tensor]).expect("packed");
    let x = |tokens, cols| {
        let shape = ActivationShape { tokens, cols, precision: Int8PerToken };
        Activations::upload(&device, shape, &vec![1.0; tokens * cols]).expect("uploaded")
    };
    let (a, b) = (device.upload(&[7.0f32; 6]).expect("room"), device.upload(&[7.0f32; 6]).expect("room"));
    let run = |x: &Activations, outs: &[&Buffer<f32>], s| device.linear(x, &w, outs, &s);
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
