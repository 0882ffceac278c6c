//! Float and int8 weights on every instruction set: compared with f64, within the specified error, and independent of other tokens
//! in the call.

use crate::common::bits;
use half::{bf16, f16};
use trike_cpu::{ActivationPrecision, Cpu, CpuOps, DenseData, DenseMatrix, Int8Matrix, Isa, Matrix};
use trike_testkit::{Rng, assert_near};

/// Storage of the weights.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    F32,
    F16,
    Bf16,
    /// One scale per this many columns.
    Int8(usize),
    /// One scale per row.
    Int8Row,
}

/// Groups with specialized loops, groups without, and one that spans the row.
const KINDS: [Kind; 11] = [
    Kind::F32,
    Kind::F16,
    Kind::Bf16,
    Kind::Int8(32),
    Kind::Int8(64),
    Kind::Int8(128),
    Kind::Int8(256),
    Kind::Int8(1),
    Kind::Int8(24),
    Kind::Int8(192),
    Kind::Int8Row,
];

/// Around the widths of vectors, blocks and spans.
const COLS: [usize; 16] = [1, 2, 7, 15, 17, 31, 63, 64, 65, 127, 128, 129, 300, 769, 1600, 1999];
/// Few, some and many: every code path of the kernels, and its boundaries.
const TOKENS: [usize; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 16, 20, 24, 25, 27, 31];

/// Weights, and their values in f32.
fn weights(rng: &mut Rng, rows: usize, cols: usize, kind: Kind) -> (Matrix, Vec<f32>) {
    let values = rng.normals(rows * cols);
    let dense = |data| DenseMatrix::new(rows, cols, data).expect("valid");
    let int8 = |group: usize, rng: &mut Rng| {
        let codes = (0..rows * cols).map(|_| rng.next_u64() as i8).collect();
        let scales = (0..rows * cols.div_ceil(group)).map(|_| 0.01 + 0.01 * rng.f32_unit()).collect();
        let matrix = Int8Matrix::new(rows, cols, group, codes, scales).expect("valid");
        let values = matrix.dequantize();
        (matrix.into(), values)
    };
    let dense = match kind {
        Kind::F32 => dense(DenseData::F32(values)),
        Kind::F16 => dense(DenseData::F16(values.into_iter().map(f16::from_f32).collect())),
        Kind::Bf16 => dense(DenseData::Bf16(values.into_iter().map(bf16::from_f32).collect())),
        Kind::Int8(group) => return int8(group.min(cols), rng),
        Kind::Int8Row => return int8(cols, rng),
    };
    let values = dense.to_f32();
    (dense.into(), values)
}

/// Every instruction set with one thread.
fn cpus() -> Vec<Cpu> {
    Isa::available().into_iter().map(|isa| Cpu::with_isa(isa, 1).expect("one thread")).collect()
}

/// Runs on poisoned outputs.
fn linear(cpu: &Cpu, x: &[f32], w: &Matrix) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.len() / w.cols() * w.rows()];
    cpu.linear(x, w, ActivationPrecision::F32, &mut out).expect("valid shapes");
    out
}

/// The largest error of `got`, of a plain f32 sum, and the largest sum of magnitudes, against f64.
fn errors(x: &[f32], w: &[f32], cols: usize, got: &[f32]) -> (f64, f64, f64) {
    let pairs = x.chunks(cols).flat_map(|x| w.chunks(cols).map(move |w| x.iter().zip(w)));
    let (mut error, mut naive, mut size) = (0f64, 0f64, 0f64);
    for (pairs, &got) in pairs.zip(got) {
        let exact: f64 = pairs.clone().map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
        let plain: f32 = pairs.clone().map(|(x, w)| x * w).sum();
        // Keeps NaN, which `f64::max` would drop.
        let off = (f64::from(got) - exact).abs();
        error = if off <= error { error } else { off };
        naive = naive.max((f64::from(plain) - exact).abs());
        size = size.max(pairs.map(|(&x, &w)| (f64::from(x) * f64::from(w)).abs()).sum());
    }
    (error, naive, size)
}

/// The error is at most twice that of a plain f32 sum, plus one rounding of the result, since a short plain sum may happen to be
/// exact.
fn check(cpus: &[Cpu], rng: &mut Rng, rows: usize, cols: usize, tokens: usize, kind: Kind) {
    let (w, values) = weights(rng, rows, cols, kind);
    let x = rng.normals(tokens * cols);
    for cpu in cpus {
        let got = linear(cpu, &x, &w);
        let (error, naive, size) = errors(&x, &values, cols, &got);
        let bound = 2.0 * naive + f64::from(f32::EPSILON) * size;
        assert!(
            error <= bound,
            "{}: {rows} x {cols} {kind:?}, {tokens} tokens: {error} > {bound}",
            cpu.isa()
        );
    }
}

#[test]
fn every_kind_at_every_width_and_number_of_tokens() {
    let (cpus, mut rng) = (cpus(), Rng::new(1));
    for kind in KINDS {
        for cols in COLS {
            for tokens in [1, 2, 7, 25] {
                check(&cpus, &mut rng, 5, cols, tokens, kind);
            }
        }
        for tokens in TOKENS {
            check(&cpus, &mut rng, 9, 130, tokens, kind);
        }
    }
}

#[test]
fn every_number_of_rows() {
    let (cpus, mut rng) = (cpus(), Rng::new(2));
    for rows in (1..=70).chain([127, 128, 129, 131]) {
        for (tokens, kind) in [(1, Kind::Int8(64)), (3, Kind::F16), (6, Kind::F32), (26, Kind::Int8(32))] {
            check(&cpus, &mut rng, rows, 97, tokens, kind);
        }
    }
}

#[test]
fn a_thousand_random_products() {
    let (cpus, mut rng) = (cpus(), Rng::new(3));
    for _ in 0..1000 {
        let (rows, cols) = (1 + rng.below(70), 1 + rng.below(300));
        let (tokens, kind) = (1 + rng.below(30), KINDS[rng.below(KINDS.len())]);
        check(&cpus, &mut rng, rows, cols, tokens, kind);
    }
}

#[test]
fn output_is_independent_of_other_tokens() {
    let mut rng = Rng::new(4);
    for kind in KINDS {
        for (rows, cols) in [(7, 100), (66, 1601)] {
            let (w, _) = weights(&mut rng, rows, cols, kind);
            let x = rng.normals(31 * cols);
            for cpu in cpus() {
                let single: Vec<f32> = x.chunks(cols).flat_map(|x| linear(&cpu, x, &w)).collect();
                for tokens in TOKENS {
                    let got = linear(&cpu, &x[..tokens * cols], &w);
                    assert_eq!(
                        bits(&got),
                        bits(&single[..tokens * rows]),
                        "{}: {kind:?}, {tokens}",
                        cpu.isa()
                    );
                }
            }
        }
    }
}

#[test]
fn what_is_not_finite_reaches_its_token_and_no_other() {
    let mut rng = Rng::new(5);
    for kind in KINDS {
        for cols in [1, 64, 100] {
            // Zero weights propagate non-finite values as well.
            let (rows, bad_token) = (6, 1);
            let (w, _) = if let Kind::Int8(group) = kind {
                let group = group.min(cols);
                let scales = vec![0.5; rows * cols.div_ceil(group)];
                (
                    Int8Matrix::new(rows, cols, group, vec![0; rows * cols], scales).expect("valid").into(),
                    vec![],
                )
            } else {
                weights(&mut rng, rows, cols, kind)
            };
            for tokens in [2, 8, 26] {
                let clean = rng.normals(tokens * cols);
                for (bad, at) in [(f32::NAN, 0), (f32::INFINITY, cols - 1), (f32::NEG_INFINITY, cols / 2)] {
                    let mut x = clean.clone();
                    x[bad_token * cols + at] = bad;
                    for cpu in cpus() {
                        let (got, want) = (linear(&cpu, &x, &w), linear(&cpu, &clean, &w));
                        for (t, (got, want)) in got.chunks(rows).zip(want.chunks(rows)).enumerate() {
                            if t == bad_token {
                                assert!(
                                    got.iter().all(|y| !y.is_finite()),
                                    "{}: {kind:?} {got:?}",
                                    cpu.isa()
                                );
                            } else {
                                assert_eq!(bits(got), bits(want), "{}: {kind:?}, token {t}", cpu.isa());
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn the_ends_of_int8_and_of_f32() {
    for cols in [64, 100] {
        for (code, scale, x) in
            [(-128i8, 1e30f32, 1e4f32), (127, 1e-30, 1e-5), (-128, 1e-38, 1.0), (127, 0.0, 1e38)]
        {
            let w = Int8Matrix::new(3, cols, 32, vec![code; 3 * cols], vec![scale; 3 * cols.div_ceil(32)]);
            let w: Matrix = w.expect("valid").into();
            let want = f64::from(scale * f32::from(code)) * f64::from(x) * cols as f64;
            for cpu in cpus() {
                for tokens in [1, 7, 25] {
                    for got in linear(&cpu, &vec![x; tokens * cols], &w) {
                        let bound = 1e-5 * want.abs() + 1e-44;
                        assert_near!(
                            f64::from(got),
                            want,
                            abs = bound,
                            "{}: {code} * {scale} * {x}",
                            cpu.isa()
                        );
                    }
                }
            }
        }
    }
}
