//! A table of shapes and weights on every instruction set, with several thread counts and precisions.
#![allow(clippy::print_stdout, reason = "the run says which instruction sets it covered")]

use crate::common::{GRANULARITIES, PRECISIONS, Weights, as_quantized, bits, cpus, describe, oracle};
use half::{bf16, f16};
use trike_cpu::{
    ActivationPrecision, Cpu, CpuError, CpuOps, DenseData, DenseMatrix, Int8Matrix, Isa, Layout, MAX_COLS,
    Matrix, TernaryMatrix,
};
use trike_testkit::{Rng, assert_close, assert_near};
use trike_trit::{Coupling, Encoding, Granularity, GroupSize, Hadamard, ScaleValues, Scales, TritTensor};

/// Bound of `max|got - want| / max|want|` for everything that sums in f32.
const BOUND: f32 = 1e-5;

fn pack(tensor: &TritTensor) -> Matrix {
    TernaryMatrix::pack(tensor).expect("a packable tensor").into()
}

/// Runs on poisoned outputs.
fn linear(cpu: &Cpu, x: &[f32], w: &Matrix, precision: ActivationPrecision) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.len() / w.cols() * w.rows()];
    cpu.linear(x, w, precision, &mut out).expect("valid shapes");
    out
}

/// Every `Cpu` compared with the oracle, and bit by bit with the scalar specification.
fn check_ternary(cpus: &[Cpu], spec: &Weights, tokens: usize, precision: ActivationPrecision, rng: &mut Rng) {
    let tensor = spec.make(rng);
    let x = rng.normals(tokens * spec.cols);
    let want = oracle(&as_quantized(&x, spec.cols, precision), &tensor.dequantize(), spec.cols);
    let scalar = linear(&cpus[0], &x, &pack(&tensor), precision);
    assert_close(&scalar, &want, BOUND);
    for layout in LAYOUTS {
        let w = Matrix::from(TernaryMatrix::pack_as(&tensor, layout).expect("a packable tensor"));
        for cpu in cpus {
            let got = linear(cpu, &x, &w, precision);
            let same = bits(&got) == bits(&scalar);
            assert!(same, "{}: {layout:?}, {spec:?}, {tokens} tokens, {precision:?}", describe(cpu));
        }
    }
}

#[test]
fn rotated_weights_rotate_their_inputs() {
    let (cpus, mut rng) = (cpus(), Rng::new(6));
    for (cols, block) in [(2, 2), (12, 4), (160, 32), (192, 64), (768, 256), (2048, 1024)] {
        let rotation = Some(Hadamard::new(block).expect("a power of two"));
        for granularity in [GRANULARITIES[1], GRANULARITIES[3]] {
            let spec =
                Weights { depth: 2, coupling: Coupling::Tied, ..Weights::plain(19, cols, granularity) };
            let plain = spec.make(&mut rng);
            let tensor = plain.clone().with_rotation(rotation).expect("whole blocks");
            let x = rng.normals(7 * cols);
            let mut rotated = x.clone();
            cpus[0]
                .rotate(&mut rotated, Hadamard::new(block).expect("a power of two"))
                .expect("whole blocks");
            for precision in PRECISIONS {
                let want = oracle(&as_quantized(&rotated, cols, precision), &plain.dequantize(), cols);
                if precision == ActivationPrecision::F32 {
                    assert_close(&want, &oracle(&x, &tensor.dequantize(), cols), BOUND);
                }
                for layout in LAYOUTS {
                    let w = Matrix::from(TernaryMatrix::pack_as(&tensor, layout).expect("a packable tensor"));
                    let plain =
                        Matrix::from(TernaryMatrix::pack_as(&plain, layout).expect("a packable tensor"));
                    for cpu in &cpus {
                        let got = linear(cpu, &x, &w, precision);
                        assert_close(&got, &want, BOUND);
                        let apart = linear(cpu, &rotated, &plain, precision);
                        assert_eq!(bits(&got), bits(&apart), "{}: {layout:?}, {cols}", describe(cpu));
                        // Together with a matrix that does not rotate its inputs.
                        let mut outs = [vec![f32::NAN; 7 * 19], vec![f32::NAN; 7 * 19]];
                        let [first, second] = &mut outs;
                        cpu.linear_many(&x, &[&plain, &w], precision, &mut [first, second])
                            .expect("valid shapes");
                        assert_eq!(bits(&outs[1]), bits(&got));
                        assert_eq!(bits(&outs[0]), bits(&linear(cpu, &x, &plain, precision)));
                    }
                    let mut rows = vec![f32::NAN; 2 * cols];
                    cpus[0].embed(&w, &[18, 3], &mut rows).expect("rows of the table");
                    let all = tensor.dequantize();
                    assert_close(&rows, &[&all[18 * cols..], &all[3 * cols..4 * cols]].concat(), 1e-6);
                }
            }
        }
    }
}

const LAYOUTS: [Layout; 4] = [Layout::TwoBit, Layout::Base3, Layout::Sparse, Layout::Blocks];

/// A token's result does not depend on the other tokens of the call, so neither on the kernel.
#[test]
fn output_is_independent_of_batch() {
    let (cpus, mut rng) = (cpus(), Rng::new(5));
    for (depth, coupling) in
        [(1, Coupling::Free), (2, Coupling::Free), (3, Coupling::Tied), (6, Coupling::Tied)]
    {
        for granularity in GRANULARITIES {
            let means = depth == 2;
            let spec = Weights { depth, coupling, means, ..Weights::plain(37, 700, granularity) };
            let tensor = spec.make(&mut rng);
            let x = rng.normals(29 * 700);
            for precision in PRECISIONS {
                for layout in LAYOUTS {
                    let w = Matrix::from(TernaryMatrix::pack_as(&tensor, layout).expect("a packable tensor"));
                    for cpu in &cpus {
                        let some = [0, 6, 11, 15, 28];
                        let alone = some.map(|t| linear(cpu, &x[t * 700..][..700], &w, precision));
                        // For every kernel and precision.
                        for count in [7, 16, 29] {
                            let all = linear(cpu, &x[..count * 700], &w, precision);
                            for (t, alone) in some.iter().zip(&alone).filter(|(t, _)| **t < count) {
                                let same = bits(alone) == bits(&all[t * 37..][..37]);
                                assert!(
                                    same,
                                    "{}: {layout:?}, {spec:?}, token {t} of {count}, {precision:?}",
                                    describe(cpu)
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn the_instruction_sets_that_ran_are_those_that_the_machine_has() {
    let ran: Vec<&str> = Isa::available().iter().map(|isa| isa.name()).collect();
    println!("instruction sets under test: {}", ran.join(", "));
    assert_eq!(ran.first(), Some(&"scalar"));
    assert_eq!(ran.last(), Some(&Isa::detect().name()));
    // The operating system reports the flags independently.
    let Ok(info) = std::fs::read_to_string("/proc/cpuinfo") else { return };
    let Some(flags) = info.lines().find_map(|line| line.strip_prefix("flags")) else { return };
    let has = |names: &[&str]| names.iter().all(|name| flags.split_whitespace().any(|flag| flag == *name));
    let mut expected = vec!["scalar"];
    if has(&["ssse3", "sse4_1"]) {
        expected.push("sse4.1");
    }
    if has(&["avx2", "fma", "f16c"]) {
        expected.push("avx2");
        if has(&["avx_vnni"]) {
            expected.push("avx-vnni");
        }
        if has(&["avx512f", "avx512bw", "avx512vl", "avx512_vnni"]) {
            expected.push("avx512-vnni");
        }
    }
    assert_eq!(ran, expected);
}

#[test]
fn ternary_at_every_width_granularity_and_precision() {
    let (cpus, mut rng) = (cpus(), Rng::new(1));
    for cols in [1, 3, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 768, 1000] {
        for granularity in GRANULARITIES {
            for precision in PRECISIONS {
                check_ternary(&cpus, &Weights::plain(7, cols, granularity), 5, precision, &mut rng);
                if [1, 33, 256, 1000].contains(&cols) {
                    // Enough for a panel, and two tiles with a partial one.
                    check_ternary(&cpus, &Weights::plain(23, cols, granularity), 26, precision, &mut rng);
                }
            }
        }
    }
    check_ternary(&cpus, &Weights::plain(33, 2560, GRANULARITIES[0]), 1, PRECISIONS[1], &mut rng);
}

#[test]
fn ternary_in_every_depth_coupling_encoding_and_with_means() {
    let (cpus, mut rng) = (cpus(), Rng::new(2));
    for (depth, encoding) in (1..=6).zip(Encoding::ALL.into_iter().cycle()) {
        for coupling in [Coupling::Free, Coupling::Tied] {
            for granularity in GRANULARITIES {
                for (means, halves) in [(false, true), (true, false), (true, true)] {
                    let (rows, cols) = (6, 300);
                    let spec = Weights { rows, cols, depth, coupling, granularity, means, halves, encoding };
                    for precision in [PRECISIONS[0], PRECISIONS[1], PRECISIONS[3]] {
                        check_ternary(&cpus, &spec, 6, precision, &mut rng);
                    }
                }
            }
        }
    }
}

#[test]
fn ternary_with_every_number_of_rows_and_tokens() {
    let (cpus, mut rng) = (cpus(), Rng::new(3));
    for rows in 1..=13 {
        for tokens in 1..=9 {
            for precision in [PRECISIONS[0], PRECISIONS[1]] {
                check_ternary(
                    &cpus,
                    &Weights::plain(rows, 40, Granularity::Row),
                    tokens,
                    precision,
                    &mut rng,
                );
            }
        }
    }
}

#[test]
fn a_thousand_random_ternary_problems() {
    let (cpus, mut rng) = (cpus(), Rng::new(4));
    for case in 0..1000 {
        let granularity = GRANULARITIES[rng.below(6)];
        let spec = Weights {
            rows: 2 + rng.below(30),
            cols: 1 + rng.below(600),
            depth: 1 + rng.below(3),
            coupling: if case % 2 == 0 { Coupling::Free } else { Coupling::Tied },
            granularity,
            means: rng.below(4) == 0,
            halves: rng.below(2) == 0,
            encoding: Encoding::ALL[rng.below(5)],
        };
        let precision = PRECISIONS[rng.below(PRECISIONS.len())];
        let most = if case % 10 == 0 { 40 } else { 9 };
        check_ternary(&cpus, &spec, 1 + rng.below(most), precision, &mut rng);
    }
}

/// Rows so long, and codes so large, that a sum one bit too narrow would overflow.
#[test]
fn ternary_extremes_are_exact() {
    for cols in [65_536, 65_537, MAX_COLS] {
        for (trit, x) in [(1i8, 1.0f32), (1, -1.0), (-1, 1.0), (-1, -1.0), (0, 1.0)] {
            for granularity in [Granularity::Tensor, Granularity::Group(GroupSize::G256)] {
                let count = granularity.count(1, cols).expect("small");
                let scales = Scales::new(granularity, vec![1.0f32; count], None);
                let trits = vec![trit; cols];
                let tensor =
                    TritTensor::from_trits(1, cols, &trits, Encoding::TwoBit, scales).expect("valid");
                let w = pack(&tensor);
                let want = f32::from(trit) * x * cols as f32;
                for cpu in cpus().iter().filter(|cpu| cpu.threads() == 1) {
                    for tokens in if cols < MAX_COLS { &[1, 4, 5, 25][..] } else { &[1, 5] } {
                        for precision in [PRECISIONS[0], PRECISIONS[1]] {
                            // Every partial sum is an integer below 2^28 times a power of two, so f32 is exact.
                            for got in linear(cpu, &vec![x; tokens * cols], &w, precision) {
                                assert_near!(
                                    got,
                                    want,
                                    rel = 2e-7,
                                    "{}: {cols} x {trit} x {x}",
                                    describe(cpu)
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn zeros_stay_zeros() {
    for cpu in cpus() {
        for granularity in GRANULARITIES {
            let tensor = Weights::plain(5, 70, granularity).make(&mut Rng::new(5));
            for precision in PRECISIONS {
                let got = linear(&cpu, &[0.0; 140], &pack(&tensor), precision);
                assert!(got.iter().all(|&y| y == 0.0), "{}: {got:?}", describe(&cpu));
            }
        }
    }
}

#[test]
fn what_is_not_finite_is_passed_on_or_refused() {
    let mut rng = Rng::new(6);
    let tensor = Weights::plain(5, 70, Granularity::Row).make(&mut rng);
    let w = pack(&tensor);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = rng.normals(3 * 70);
        x[70 + 13] = bad;
        for cpu in cpus() {
            let got = linear(&cpu, &x, &w, ActivationPrecision::F32);
            let finite: Vec<bool> = got.chunks(5).map(|y| y.iter().all(|v| v.is_finite())).collect();
            assert_eq!(finite, [true, false, true], "{}", describe(&cpu));
            assert!(got[5..10].iter().all(|v| !v.is_finite()));
            for precision in PRECISIONS.iter().filter(|p| p.slices() == 1) {
                let mut out = vec![7.0; 15];
                let error = cpu.linear(&x, &w, *precision, &mut out).expect_err("not finite");
                assert!(matches!(error, CpuError::NonFinite { token: 1, index: 13, .. }), "{error}");
                assert_eq!(out, [7.0; 15], "nothing was written");
            }
        }
    }
}

#[test]
fn magnitudes_at_both_ends_of_f32() {
    let tensor = Weights::plain(4, 64, Granularity::Tensor).make(&mut Rng::new(7));
    for cpu in cpus() {
        for scale in [1e-45f32, 1e-38, 1e-6, 1e30] {
            let x: Vec<f32> = Rng::new(8).normals(64).iter().map(|v| v * scale).collect();
            for precision in PRECISIONS {
                let got = linear(&cpu, &x, &pack(&tensor), precision);
                assert!(got.iter().all(|v| v.is_finite()), "{}: {scale}: {got:?}", describe(&cpu));
            }
        }
    }
}

fn dense(rng: &mut Rng, rows: usize, cols: usize, kind: usize) -> (Matrix, Vec<f32>) {
    let w = rng.normals(rows * cols);
    let halves: Vec<f16> = w.iter().copied().map(f16::from_f32).collect();
    let brains: Vec<bf16> = w.iter().copied().map(bf16::from_f32).collect();
    let (data, w) = match kind {
        0 => (DenseData::F32(w.clone()), w),
        1 => (DenseData::F16(halves.clone()), halves.iter().map(|v| v.to_f32()).collect()),
        _ => (DenseData::Bf16(brains.clone()), brains.iter().map(|v| v.to_f32()).collect()),
    };
    (DenseMatrix::new(rows, cols, data).expect("valid").into(), w)
}

fn int8(rng: &mut Rng, rows: usize, cols: usize, group: usize) -> (Matrix, Vec<f32>) {
    let codes: Vec<i8> = (0..rows * cols).map(|_| rng.next_u64() as i8).collect();
    let groups = cols.div_ceil(group);
    let scales: Vec<f32> = (0..rows * groups).map(|_| 0.01 + 0.01 * rng.f32_unit()).collect();
    let weight = |i: usize| f32::from(codes[i]) * scales[i / cols * groups + i % cols / group];
    let w = (0..rows * cols).map(weight).collect();
    (Int8Matrix::new(rows, cols, group, codes, scales).expect("valid").into(), w)
}

#[test]
fn a_thousand_random_dense_and_int8_problems() {
    let (cpus, mut rng) = (cpus(), Rng::new(9));
    for case in 0..2000 {
        let (rows, cols, tokens) = (2 + rng.below(30), 1 + rng.below(300), 1 + rng.below(9));
        // Usual groups have specialized loops, for whole rows and for ragged ones.
        let usual = [32, 64, 128][rng.below(3)];
        let (cols, group) = match rng.below(3) {
            0 => (cols.max(usual) / usual * usual, usual),
            1 => (cols.max(usual), usual),
            _ => (cols, 1 + rng.below(cols)),
        };
        let (w, values) = if case % 2 == 0 {
            dense(&mut rng, rows, cols, case / 2 % 3)
        } else {
            int8(&mut rng, rows, cols, group)
        };
        let x = rng.normals(tokens * cols);
        let want = oracle(&x, &values, cols);
        for cpu in &cpus {
            // Int8 weights are exact only with f32 activations; other precisions are tested in `int8.rs`.
            let precision = if case % 2 == 0 { PRECISIONS[case % 6] } else { ActivationPrecision::F32 };
            assert_close(&linear(cpu, &x, &w, precision), &want, BOUND);
        }
    }
}

#[test]
fn threads_and_tokens_together_change_no_bit() {
    let mut rng = Rng::new(10);
    // Large enough that every thread gets a slice.
    let (rows, cols, tokens) = (515, 1030, 7);
    let tensor = Weights::plain(rows, cols, Granularity::Group(GroupSize::G128)).make(&mut rng);
    let matrices = [
        pack(&tensor),
        int8(&mut rng, rows, cols, 64).0,
        dense(&mut rng, rows, cols, 0).0,
        dense(&mut rng, 3, cols, 1).0,
    ];
    let x = rng.normals(tokens * cols);
    for isa in Isa::available() {
        let one = Cpu::with_isa(isa, 1).expect("one thread");
        for threads in [2, 3, 8] {
            let many = Cpu::with_isa(isa, threads).expect("a few threads");
            for precision in [PRECISIONS[0], PRECISIONS[1], PRECISIONS[2]] {
                let refs: Vec<&Matrix> = matrices.iter().collect();
                let mut outs: Vec<Vec<f32>> =
                    matrices.iter().map(|w| vec![f32::NAN; tokens * w.rows()]).collect();
                let mut slices: Vec<&mut [f32]> = outs.iter_mut().map(Vec::as_mut_slice).collect();
                many.linear_many(&x, &refs, precision, &mut slices).expect("valid");
                for (w, out) in matrices.iter().zip(&outs) {
                    assert_eq!(bits(out), bits(&linear(&one, &x, w, precision)), "{isa}, {threads} threads");
                    let single: Vec<f32> =
                        x.chunks(cols).flat_map(|x| linear(&one, x, w, precision)).collect();
                    assert_eq!(bits(out), bits(&single), "{isa}: one token at a time");
                }
            }
        }
    }
}

#[test]
fn embedding_rows_are_the_weights() {
    let mut rng = Rng::new(11);
    for case in 0..1000 {
        let (rows, cols) = (1 + rng.below(20), 1 + rng.below(600));
        let (w, values) = match case % 4 {
            0 => dense(&mut rng, rows, cols, case / 4 % 3),
            1 => int8(&mut rng, rows, cols, cols.div_ceil(3)),
            _ => {
                let spec = Weights {
                    depth: 1 + case % 6,
                    means: case % 3 == 0,
                    coupling: if case % 8 < 4 { Coupling::Free } else { Coupling::Tied },
                    ..Weights::plain(rows, cols, GRANULARITIES[case % 6])
                };
                let tensor = spec.make(&mut rng);
                (pack(&tensor), tensor.dequantize())
            }
        };
        let ids: Vec<u32> = (0..rng.below(6)).map(|_| rng.below(rows) as u32).collect();
        let want: Vec<f32> =
            ids.iter().flat_map(|&id| values[id as usize * cols..][..cols].to_vec()).collect();
        for isa in Isa::available() {
            let mut out = vec![f32::NAN; ids.len() * cols];
            let cpu = Cpu::with_isa(isa, 1).expect("one thread");
            cpu.embed(&w, &ids, &mut out).expect("valid");
            assert_eq!(out, want, "{isa}");
        }
    }
}

#[test]
fn wrong_shapes_are_named() {
    let cpu = Cpu::new(1).expect("one thread");
    let mut rng = Rng::new(12);
    let (w, _) = dense(&mut rng, 4, 6, 0);
    let mut out = [0.0; 9];
    for (len, good) in [(5, false), (6, true), (7, false), (11, false)] {
        let result = cpu.linear(&[0.0; 12][..len], &w, PRECISIONS[0], &mut out[..4]);
        assert_eq!(result.is_ok(), good, "{len} activations: {result:?}");
    }
    for (len, good) in [(7, false), (8, true), (9, false)] {
        let result = cpu.linear(&[0.0; 12], &w, PRECISIONS[0], &mut out[..len]);
        assert_eq!(result.is_ok(), good, "{len} outputs: {result:?}");
    }
    assert!(cpu.linear(&[], &w, PRECISIONS[1], &mut []).is_ok(), "no tokens, no outputs");
    let (other, _) = dense(&mut rng, 4, 5, 0);
    let mut second = [0.0; 4];
    let outs = &mut [&mut out[..4], &mut second[..]];
    let error =
        cpu.linear_many(&[0.0; 6], &[&w, &other], PRECISIONS[0], outs).expect_err("six and five columns");
    assert!(matches!(error, CpuError::Length { expected: 6, got: 5, .. }), "{error}");
    assert!(cpu.linear_many(&[0.0; 6], &[&w], PRECISIONS[0], outs).is_err());
    assert!(cpu.linear_many(&[], &[], PRECISIONS[0], &mut []).is_ok());
    for (id, good) in [(3, true), (4, false), (u32::MAX, false)] {
        let result = cpu.embed(&w, &[0, id], &mut [0.0; 12]);
        assert_eq!(result.is_ok(), good, "{id}: {result:?}");
        if let Err(error) = result {
            assert!(matches!(error, CpuError::IdOutOfRange { position: 1, rows: 4, .. }));
        }
    }
    assert!(matches!(cpu.embed(&w, &[0], &mut [0.0; 5]), Err(CpuError::Length { expected: 6, got: 5, .. })));
}

#[test]
fn matrices_at_their_limits() {
    for (cols, good) in [(MAX_COLS - 1, true), (MAX_COLS, true), (MAX_COLS + 1, false)] {
        let tensor = TritTensor::from_trits(1, cols, &vec![1; cols], Encoding::Planes, Scales::tensor(1.0));
        let packed = TernaryMatrix::pack(&tensor.expect("valid"));
        assert_eq!(packed.is_ok(), good, "{cols}");
        if let Err(error) = packed {
            assert!(matches!(error, CpuError::Range { maximum: MAX_COLS, .. }), "{error}");
        }
    }
    for (len, good) in [(5, false), (6, true), (7, false)] {
        assert_eq!(DenseMatrix::new(2, 3, DenseData::F16(vec![f16::ONE; len])).is_ok(), good);
        assert_eq!(Int8Matrix::new(2, 3, 3, vec![0; len], vec![1.0; 2]).is_ok(), good);
    }
    for (scales, good) in [(3, false), (4, true), (5, false)] {
        assert_eq!(Int8Matrix::new(2, 3, 2, vec![0; 6], vec![1.0; scales]).is_ok(), good);
    }
    for (group, good) in [(0, false), (1, true), (3, true), (4, false)] {
        let scales = vec![1.0; if group == 0 { 0 } else { 2 * 3usize.div_ceil(group) }];
        assert_eq!(Int8Matrix::new(2, 3, group, vec![0; 6], scales).is_ok(), good, "group {group}");
    }
    let bad = Int8Matrix::new(1, 2, 1, vec![0; 2], vec![1.0, f32::NAN]).expect_err("a scale is NaN");
    assert!(matches!(bad, CpuError::NonFiniteParameter { index: 1, .. }));
    for (rows, cols) in [(0, 3), (3, 0), (usize::MAX, 2)] {
        let dense = DenseMatrix::new(rows, cols, DenseData::F32(Vec::new()));
        assert!(matches!(dense, Err(CpuError::Shape { .. })));
        assert!(matches!(
            Int8Matrix::new(rows, cols, 1, Vec::new(), Vec::new()),
            Err(CpuError::Shape { .. })
        ));
    }
}

#[test]
fn bytes_and_costs_are_counted() {
    let scales =
        Scales::new(Granularity::Group(GroupSize::G128), ScaleValues::F16(vec![f16::ONE; 4096 * 32]), None);
    let tensor =
        TritTensor::from_trits(4096, 4096, &vec![1; 4096 * 4096], Encoding::Base3, scales).expect("valid");
    let w = pack(&tensor);
    assert_eq!(w.bytes() * 8, 4096 * 4096 * 2 + 4096 * 32 * 16, "2.125 bits a weight");
    let cost = w.problem(3, ActivationPrecision::Int8PerToken).cost();
    assert_eq!(cost.macs, 3 * 4096 * 4096);
    assert_eq!(cost.bytes, w.bytes() as u64 + 4 * 3 * (4096 + 4096));
    assert_eq!([cost, cost].into_iter().sum::<trike_cpu::Cost>().macs, 2 * cost.macs);
}
