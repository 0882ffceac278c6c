//! Inputs of the rivals, and the check of their outputs.

use anyhow::{Result, ensure};
use half::f16;
use trike_bench::{Attention, Heads, Product, Shape};
use trike_testkit::Rng;

use crate::bench::operands::MOST_COPIES;

/// Upper bound of the number of distinct random values, which are repeated to fill an operand.
const DISTINCT: usize = 1 << 20;

/// Normally distributed FP16 values, repeated with a period of `DISTINCT - 1`, which is not a multiple of any row length.
pub(super) fn halves(seed: u64, len: usize) -> Vec<f16> {
    let some = Rng::new(seed).normals(len.min(DISTINCT - 1));
    let some: Vec<f16> = some.into_iter().map(f16::from_f32).collect();
    some.iter().copied().cycle().take(len).collect()
}

/// Number type of a rival's operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Numbers {
    /// FP16, as are the outputs.
    F16,
    /// f32, as are the outputs.
    F32,
    /// Signed bytes; outputs are 32-bit integers.
    Int8,
}

impl Numbers {
    /// Bytes of an operand's element.
    pub(super) fn size(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
            Self::Int8 => 1,
        }
    }

    /// Bytes of an output.
    pub(super) fn output_size(self) -> usize {
        if self == Self::F16 { 2 } else { 4 }
    }

    /// Operands in this type: the values, or 16 times as much rounded to bytes.
    pub(super) fn bytes(self, values: &[f16]) -> Vec<u8> {
        match self {
            Self::F16 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Self::F32 => values.iter().flat_map(|x| x.to_f32().to_le_bytes()).collect(),
            Self::Int8 => values.iter().map(|x| byte(*x).cast_unsigned()).collect(),
        }
    }

    /// Outputs of this type.
    pub(super) fn outputs(self, bytes: &[u8]) -> Vec<f64> {
        let words = || bytes.as_chunks::<4>().0.iter();
        match self {
            Self::F16 => bytes.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f64()).collect(),
            Self::F32 => words().map(|b| f64::from(f32::from_le_bytes(*b))).collect(),
            Self::Int8 => words().map(|b| f64::from(i32::from_le_bytes(*b))).collect(),
        }
    }

    fn value(self, x: f16) -> f64 {
        if self == Self::Int8 { f64::from(byte(x)) } else { x.to_f64() }
    }

    /// Tolerance of a sum of products, with the sum of their squares: an f32 sum, rounded to f16 where outputs are.
    fn allowed(self, sum: f64, squares: f64) -> f64 {
        match self {
            Self::F16 => sum.abs() / 1024.0 + 2e-3 * squares.sqrt() + 1e-3,
            Self::F32 => 1e-4 * squares.sqrt() + 1e-5,
            Self::Int8 => 0.0,
        }
    }
}

fn byte(x: f16) -> i8 {
    (16.0 * x.to_f32()).round().clamp(-127.0, 127.0) as i8
}

/// Weights and activations of a shape, for all numbers of tokens.
pub(super) struct Operands {
    numbers: Numbers,
    /// `rows x cols`.
    pub(super) w: Vec<f16>,
    /// `tokens x cols`, for the largest number of tokens.
    pub(super) x: Vec<f16>,
    /// Number of copies of the weights, together larger than the caches.
    pub(super) copies: usize,
}

impl Operands {
    /// Operands for products with these numbers of tokens.
    pub(super) fn new(shape: Shape, tokens: &[usize], rotate: usize, numbers: Numbers) -> Self {
        let Shape { rows, cols, .. } = shape;
        let most = tokens.iter().copied().max().unwrap_or(1);
        let copies = rotate.div_ceil(numbers.size() * rows * cols).clamp(2, MOST_COPIES);
        Self { numbers, w: halves(1, rows * cols), x: halves(2, most * cols), copies }
    }

    /// Compares some of the outputs (`tokens x rows`) with exact sums.
    ///
    /// # Errors
    /// The first output that is out of tolerance, or a wrong number of outputs.
    pub(super) fn check(&self, product: &Product, y: &[f64]) -> Result<()> {
        let &Product { shape: Shape { rows, cols, .. }, tokens, .. } = product;
        ensure!(y.len() == rows * tokens, "expected {} outputs, got {}", rows * tokens, y.len());
        for token in some_of(tokens) {
            for row in some_of(rows) {
                let (w, x) = (&self.w[row * cols..][..cols], &self.x[token * cols..][..cols]);
                let terms = w.iter().zip(x).map(|(w, x)| self.numbers.value(*w) * self.numbers.value(*x));
                let (sum, squares) = terms.fold((0.0, 0.0), |(sum, squares), t| (sum + t, squares + t * t));
                let got = y[token * rows + row];
                let allowed = self.numbers.allowed(sum, squares);
                let fits = (got - sum).abs() <= allowed;
                ensure!(fits, "output {row} of token {token}: expected {sum} +- {allowed}, got {got}");
            }
        }
        Ok(())
    }
}

/// Compares some outputs of causal attention with the formula; all tensors are `[batch][head][token][head_dim]`.
///
/// # Errors
/// The first output that is out of tolerance, or a wrong number of outputs.
pub(super) fn check_attention(case: &Attention, [q, k, v]: [&[f16]; 3], out: &[f16]) -> Result<()> {
    let &Attention { heads: Heads { heads, head_dim: d, .. }, tokens, batch, .. } = case;
    ensure!(out.len() == q.len(), "expected {} outputs, got {}", q.len(), out.len());
    let scale = 1.0 / (d as f64).sqrt();
    for head in [0, batch * heads / 2, batch * heads - 1] {
        for token in some_of(tokens) {
            let row = |of: &[f16], at: usize| -> Vec<f64> {
                of[(head * tokens + at) * d..][..d].iter().map(|x| x.to_f64()).collect()
            };
            let query = row(q, token);
            let dot = |key: Vec<f64>| query.iter().zip(key).map(|(q, k)| q * k).sum::<f64>() * scale;
            let scores: Vec<f64> = (0..=token).map(|at| dot(row(k, at))).collect();
            let most = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mut exact = vec![0.0; d];
            for (at, weight) in weights.iter().enumerate() {
                exact.iter_mut().zip(row(v, at)).for_each(|(sum, v)| *sum += weight / total * v);
            }
            for (c, (got, exact)) in row(out, token).iter().zip(exact).enumerate() {
                // Attention weights are rounded to f16; values rarely exceed 4 in magnitude.
                let fits = (got - exact).abs() <= 4e-3 + exact.abs() / 256.0;
                ensure!(fits, "element {c} of token {token}, head {head}: expected {exact}, got {got}");
            }
        }
    }
    Ok(())
}

/// The first, the last, and some indices between them.
fn some_of(count: usize) -> impl Iterator<Item = usize> {
    const SOME: usize = 5;
    let step = (count - 1).div_ceil(SOME).max(1);
    (0..count).step_by(step).chain((count > 1).then_some(count - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use trike_bench::Zeros;

    #[test]
    fn a_product_of_the_transpose_is_noticed() {
        let shape = Shape { name: "square", rows: 12, cols: 12 };
        let product = Product { shape, tokens: 3, zeros: Zeros::Trained };
        for numbers in [Numbers::F16, Numbers::F32, Numbers::Int8] {
            let operands = Operands::new(shape, &[3], 1, numbers);
            let [w, x] = [&operands.w, &operands.x].map(|of| numbers.bytes(of));
            assert_eq!((w.len(), x.len()), (144 * numbers.size(), 36 * numbers.size()));
            // Operands are read back as outputs are, except for bytes.
            let read = |bytes: &[u8]| match numbers {
                Numbers::Int8 => bytes.iter().map(|b| f64::from(b.cast_signed())).collect(),
                _ => numbers.outputs(bytes),
            };
            let (w, x) = (read(&w), read(&x));
            let times = |at: fn(usize, usize) -> usize| -> Vec<f64> {
                let one = |i: usize| (0..12).map(|c| w[at(i % 12, c)] * x[i / 12 * 12 + c]).sum();
                (0..36).map(one).collect()
            };
            operands.check(&product, &times(|row, col| row * 12 + col)).unwrap();
            let wrong = operands.check(&product, &times(|row, col| col * 12 + row)).unwrap_err();
            assert!(wrong.to_string().contains("expected"), "{wrong}");
            assert!(operands.check(&product, &[]).is_err());
        }
        assert_eq!(Numbers::Int8.outputs(&(-70_000i32).to_le_bytes()), [-70_000.0]);
    }

    #[test]
    fn attention_without_a_mask_is_noticed() {
        let heads = Heads { heads: 1, kv_heads: 1, head_dim: 1, ..Heads::TINY };
        let case = Attention { heads, tokens: 2, positions: 2, batch: 1 };
        let [q, k] = [[1.0, 1.0].map(f16::from_f32), [0.0, 0.0].map(f16::from_f32)];
        let v = [1.0, 3.0].map(f16::from_f32);
        let causal = [1.0, 2.0].map(f16::from_f32);
        check_attention(&case, [&q, &k, &v], &causal).unwrap();
        let whole = [2.0, 2.0].map(f16::from_f32);
        assert!(check_attention(&case, [&q, &k, &v], &whole).is_err());
    }

    #[test]
    fn both_ends_are_looked_at() {
        for count in [1, 2, 5, 6, 7, 100] {
            let some: Vec<_> = some_of(count).collect();
            assert!(some.contains(&0) && some.contains(&(count - 1)) && some.len() <= 7, "{some:?}");
        }
    }
}
