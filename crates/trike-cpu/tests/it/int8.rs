//! Int8 weights: bit-identical to the documented formula on every instruction set.

use crate::common::bits;
use half::f16;
use trike_core::{DenseData, DenseTensor, Int8Tensor};
use trike_cpu::{ActivationPrecision, Cpu, CpuOps, Int8Matrix, Isa, Matrix};
use trike_testkit::Rng;
use trike_trit::ScaleValues;

const PRECISIONS: [ActivationPrecision; 2] = [ActivationPrecision::Int16, ActivationPrecision::F32];

/// The components of a matrix.
struct Parts {
    rows: usize,
    cols: usize,
    group: usize,
    codes: Vec<i8>,
    scales: Vec<f32>,
}

impl Parts {
    fn random(rng: &mut Rng, rows: usize, cols: usize, group: usize) -> Self {
        let group = group.min(cols);
        let codes = (0..rows * cols).map(|_| rng.next_u64() as i8).collect();
        let scales =
            (0..rows * cols.div_ceil(group)).map(|_| f16::from_f32(rng.normal() * 0.01).to_f32()).collect();
        Self { rows, cols, group, codes, scales }
    }

    /// With f32 scales, and with f16 scales if those are equal.
    fn matrices(&self) -> [Matrix; 2] {
        let (codes, scales) = (self.codes.clone(), self.scales.clone());
        let half = ScaleValues::F16(scales.iter().map(|&scale| f16::from_f32(scale)).collect());
        let tensor = Int8Tensor::new(self.rows, self.cols, self.group, codes.clone(), half).expect("valid");
        let full = Int8Matrix::new(self.rows, self.cols, self.group, codes, scales).expect("valid");
        [full, Int8Matrix::from_tensor(&tensor).expect("memory")].map(Matrix::from)
    }

    /// Exact sums over at most 256 columns of a group, times the scale, in order; the high half of a fixed-point number is summed
    /// separately from the low one.
    fn linear(&self, x: &[f32], precision: ActivationPrecision) -> Vec<f32> {
        let largest = x.iter().fold(0f32, |m, v| m.max(v.abs()));
        let exponent = (largest.log2().floor() as i32).max(29 - 120);
        let (scale, step) = match precision {
            ActivationPrecision::F32 => (2f32.powi(29 - exponent), 2f32.powi(exponent - 29)),
            _ => (32_767.0 / largest.max(1e-5), 1.0 / (32_767.0 / largest.max(1e-5))),
        };
        let fixed: Vec<i64> = x.iter().map(|&x| (x * scale).round_ties_even() as i64).collect();
        let dot = |row: usize, digit: fn(i64) -> i64| {
            let groups = self.cols.div_ceil(self.group);
            let group = |g: usize| g * self.group..((g + 1) * self.group).min(self.cols);
            let units = (0..groups).flat_map(|g| group(g).step_by(256).map(move |start| (g, start)));
            units.fold(0f32, |sum, (g, start)| {
                let end = (start + 256).min(group(g).end);
                let exact: i64 = (start..end)
                    .map(|col| i64::from(self.codes[row * self.cols + col]) * digit(fixed[col]))
                    .sum();
                sum + self.scales[row * groups + g] * exact as f32
            })
        };
        let rows = 0..self.rows;
        match precision {
            ActivationPrecision::F32 => rows
                .map(|row| {
                    let (high, low) =
                        (dot(row, |v| (v - i64::from(v as i16)) >> 16), dot(row, |v| i64::from(v as i16)));
                    high * (step * 65536.0) + low * step
                })
                .collect(),
            _ => rows.map(|row| dot(row, |v| v) * step).collect(),
        }
    }
}

/// All instruction sets compared with the formula, on poisoned outputs.
fn check(rng: &mut Rng, parts: &Parts, tokens: usize) {
    let mut x = rng.normals(tokens * parts.cols);
    // Tokens of different magnitudes: each has its own step.
    for (t, x) in x.chunks_mut(parts.cols).enumerate() {
        x.iter_mut().for_each(|x| *x *= 10f32.powi(t as i32 % 7 - 3));
    }
    let matrices = parts.matrices();
    for (precision, w) in PRECISIONS.iter().flat_map(|p| matrices.iter().map(move |w| (*p, w))) {
        let want: Vec<f32> = x.chunks(parts.cols).flat_map(|x| parts.linear(x, precision)).collect();
        for isa in Isa::available() {
            for threads in [1, 2] {
                let cpu = Cpu::with_isa(isa, threads).expect("threads");
                let mut out = vec![f32::NAN; want.len()];
                cpu.linear(&x, w, precision, &mut out).expect("valid shapes");
                let (rows, cols, group) = (parts.rows, parts.cols, parts.group);
                assert_eq!(
                    bits(&out),
                    bits(&want),
                    "{isa}, {threads} threads, {precision:?}: {rows} x {cols} by {group}, {tokens} tokens"
                );
            }
        }
    }
}

/// Whole lines, partial lines, and one scale per row of less and of more than an exact sum.
const GROUPS: [usize; 11] = [32, 64, 96, 256, 320, 1, 3, 6, 24, 130, usize::MAX];

#[test]
fn every_group_at_every_width() {
    let mut rng = Rng::new(1);
    for group in GROUPS {
        for cols in [1, 2, 3, 4, 5, 31, 64, 65, 255, 256, 257, 300, 640, 1100] {
            let parts = Parts::random(&mut rng, 17, cols, group);
            check(&mut rng, &parts, 2);
        }
    }
}

#[test]
fn every_number_of_tokens_and_rows() {
    let mut rng = Rng::new(2);
    for tokens in (1..=20).chain([24, 31]) {
        for (rows, group) in [(1, 32), (16, 64), (33, 32), (48, 24), (70, usize::MAX)] {
            let parts = Parts::random(&mut rng, rows, 600, group);
            check(&mut rng, &parts, tokens);
        }
    }
}

#[test]
fn the_largest_sums_are_exact() {
    let mut rng = Rng::new(3);
    for (cols, group) in [(256, 256), (1024, usize::MAX), (512, 32)] {
        let mut parts = Parts::random(&mut rng, 16, cols, group);
        parts.codes.fill(-128);
        // Just below a power of two: the largest fixed-point numbers.
        let x = vec![-1.999_999_9f32; cols];
        for precision in PRECISIONS {
            let want = parts.linear(&x, precision);
            for isa in Isa::available() {
                let mut out = vec![f32::NAN; want.len()];
                let cpu = Cpu::with_isa(isa, 1).expect("one thread");
                cpu.linear(&x, &parts.matrices()[1], precision, &mut out).expect("valid shapes");
                assert_eq!(bits(&out), bits(&want), "{isa}, {precision:?}: {cols} by {group}");
            }
        }
    }
}

#[test]
fn packing_on_threads_changes_nothing() {
    let mut rng = Rng::new(4);
    for (rows, cols, group) in [(16, 64, 32), (1000, 130, 24), (4100, 96, 96)] {
        let dense =
            DenseTensor::new(vec![rows, cols], DenseData::F32(rng.normals(rows * cols))).expect("valid");
        let tensor = Int8Tensor::quantize(&dense, group, true).expect("finite");
        let want = tensor.dequantize();
        let threads = Cpu::new(2).expect("two threads");
        for matrix in [Int8Matrix::from_tensor(&tensor), threads.pack_int8(&tensor)] {
            assert_eq!(bits(&matrix.expect("memory").dequantize()), bits(&want), "{rows} x {cols}");
        }
    }
}
