//! The forward passes in f64, as their definitions say.

use trike_cpu::{
    AttentionSpec, GatedActivation, RopePairing,
    grad::{BlockShape, BlockVectors},
};

use super::wide;

pub(crate) fn rms_norm(x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    let n = weight.len();
    let row = |x: &[f64]| {
        let r = (x.iter().map(|v| v * v).sum::<f64>() / n as f64 + eps).sqrt();
        x.iter().zip(weight).map(|(x, w)| x / r * w).collect::<Vec<_>>()
    };
    x.chunks_exact(n).flat_map(row).collect()
}

pub(crate) fn gated(activation: GatedActivation, gate: f64, up: f64) -> f64 {
    match activation {
        GatedActivation::SiLu => gate / (1.0 + (-gate).exp()) * up,
        GatedActivation::SquaredReLu => gate.max(0.0).powi(2) * up,
    }
}

/// The heads of one token.
pub(crate) fn rope(
    x: &[f64],
    head_dim: usize,
    position: u32,
    frequencies: &[f64],
    pairing: RopePairing,
) -> Vec<f64> {
    let mut out = x.to_vec();
    for head in out.chunks_exact_mut(head_dim) {
        for (i, f) in frequencies.iter().enumerate() {
            let (a, b) = match pairing {
                RopePairing::Adjacent => (2 * i, 2 * i + 1),
                RopePairing::Halves => (i, i + head_dim / 2),
            };
            let (sin, cos) = (f64::from(position) * f).sin_cos();
            (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
        }
    }
    out
}

pub(crate) fn attention(spec: &AttentionSpec, [q, k, v]: [&[f64]; 3], lengths: &[usize]) -> Vec<f64> {
    let d = spec.head_dim;
    let mut out = vec![0.0; q.len()];
    let mut first = 0;
    for &length in lengths {
        for t in 0..length {
            for head in 0..spec.heads {
                let kv = head / (spec.heads / spec.kv_heads);
                let query = ((first + t) * spec.heads + head) * d;
                let key = |j: usize| ((first + j) * spec.kv_heads + kv) * d;
                let from = spec.window.map_or(0, |w| (t + 1).saturating_sub(w));
                let score = |j: usize| (0..d).map(|i| q[query + i] * k[key(j) + i]).sum::<f64>();
                let weights: Vec<f64> =
                    (from..=t).map(|j| (f64::from(spec.scale) * score(j)).exp()).collect();
                let total: f64 = weights.iter().sum();
                for i in 0..d {
                    let each = (from..=t).zip(&weights);
                    out[query + i] = each.map(|(j, w)| w / total * v[key(j) + i]).sum();
                }
            }
        }
        first += length;
    }
    out
}

/// `x w^T`.
pub(crate) fn linear(x: &[f64], w: &[f64], cols: usize) -> Vec<f64> {
    let row = |x: &[f64]| {
        w.chunks_exact(cols).map(|w| w.iter().zip(x).map(|(w, x)| w * x).sum()).collect::<Vec<f64>>()
    };
    x.chunks_exact(cols).flat_map(row).collect()
}

pub(crate) fn divergence(out: &[f64], target: &[f64], vocab: usize) -> f64 {
    let softmax = |row: &[f64]| {
        let total: f64 = row.iter().map(|v| v.exp()).sum();
        row.iter().map(|v| v.exp() / total).collect::<Vec<_>>()
    };
    let rows = out.chunks_exact(vocab).zip(target.chunks_exact(vocab));
    rows.map(|(q, p)| softmax(p).iter().zip(softmax(q)).map(|(p, q)| p * (p / q).ln()).sum::<f64>()).sum()
}

/// A block over some sequences.
#[derive(Clone)]
pub(crate) struct BlockOracle<'a> {
    shape: &'a BlockShape,
    vectors: &'a BlockVectors,
    lengths: &'a [usize],
    /// In the order of [`BlockVectors::norms`].
    pub(crate) norms: [Option<Vec<f64>>; BlockVectors::NORMS],
}

impl<'a> BlockOracle<'a> {
    pub(crate) fn new(shape: &'a BlockShape, vectors: &'a BlockVectors, lengths: &'a [usize]) -> Self {
        Self { shape, vectors, lengths, norms: vectors.norms().map(|norm| norm.map(wide)) }
    }

    fn linear(&self, x: &[f64], matrices: &[Vec<f64>], i: usize) -> Vec<f64> {
        let (rows, cols) = self.shape.matrices()[i];
        let mut y = linear(x, &matrices[i], cols);
        if let Some(bias) = &self.vectors.biases[i] {
            for row in y.chunks_exact_mut(rows) {
                row.iter_mut().zip(bias).for_each(|(y, b)| *y += f64::from(*b));
            }
        }
        y
    }

    /// The norm of this number, if there is one.
    fn norm(&self, x: Vec<f64>, i: usize) -> Vec<f64> {
        match &self.norms[i] {
            Some(weight) => rms_norm(&x, weight, f64::from(self.shape.rms_eps)),
            None => x,
        }
    }

    fn rotated(&self, x: &[f64], heads: usize) -> Vec<f64> {
        let (d, frequencies) = (self.shape.attention.head_dim, wide(self.shape.rope.frequencies()));
        let positions = self.lengths.iter().flat_map(|&n| 0..n as u32);
        let rows = x.chunks_exact(heads * d).zip(positions);
        rows.flat_map(|(x, p)| rope(x, d, p, &frequencies, self.shape.pairing)).collect()
    }

    pub(crate) fn forward(&self, matrices: &[Vec<f64>], x: &[f64]) -> Vec<f64> {
        let Self { shape, lengths, .. } = *self;
        let sum = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a + b).collect::<Vec<f64>>();
        let normed = self.norm(x.to_vec(), 0);
        let q = self.norm(self.linear(&normed, matrices, 0), 1);
        let k = self.norm(self.linear(&normed, matrices, 1), 2);
        let v = self.linear(&normed, matrices, 2);
        let (q, k) = (self.rotated(&q, shape.attention.heads), self.rotated(&k, shape.attention.kv_heads));
        let attended = self.norm(attention(&shape.attention, [&q, &k, &v], lengths), 3);
        let middle = sum(x, &self.linear(&attended, matrices, 3));
        let normed = self.norm(middle.clone(), 4);
        let (gate, up) = (self.linear(&normed, matrices, 4), self.linear(&normed, matrices, 5));
        let joined = gate.iter().zip(&up).map(|(g, u)| gated(shape.activation, *g, *u)).collect();
        let joined = self.norm(joined, 5);
        sum(&middle, &self.linear(&joined, matrices, 6))
    }
}
