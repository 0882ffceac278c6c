//! Operations of a decoder in f64, as their definitions say, and derivatives by differences.

/// RMSNorm of rows with as many elements as `weight`.
#[must_use]
pub fn rms_norm(x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    let n = weight.len();
    let row = |x: &[f64]| {
        let r = (x.iter().map(|v| v * v).sum::<f64>() / n as f64 + eps).sqrt();
        x.iter().zip(weight).map(|(x, w)| x / r * w).collect::<Vec<_>>()
    };
    x.chunks_exact(n).flat_map(row).collect()
}

/// `x / (1 + exp(-x))`.
#[must_use]
pub fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// `max(x, 0)^2`.
#[must_use]
pub fn squared_relu(x: f64) -> f64 {
    x.max(0.0).powi(2)
}

/// The heads of one token, rotated. Pairs are adjacent, or half a head apart.
#[must_use]
pub fn rope(x: &[f64], head_dim: usize, position: u32, frequencies: &[f64], adjacent: bool) -> Vec<f64> {
    let mut out = x.to_vec();
    for head in out.chunks_exact_mut(head_dim) {
        for (i, f) in frequencies.iter().enumerate() {
            let (a, b) = if adjacent { (2 * i, 2 * i + 1) } else { (i, i + head_dim / 2) };
            let (sin, cos) = (f64::from(position) * f).sin_cos();
            (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
        }
    }
    out
}

/// Sizes of causal attention.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Factor of the scores.
    pub scale: f64,
    /// Positions that a query attends to, its own included; all when `None`.
    pub window: Option<usize>,
}

/// Causal attention of concatenated sequences of `lengths` tokens.
#[must_use]
pub fn attention(spec: Heads, [q, k, v]: [&[f64]; 3], lengths: &[usize]) -> Vec<f64> {
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
                let weights: Vec<f64> = (from..=t).map(|j| (spec.scale * score(j)).exp()).collect();
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

/// `x w^T` for rows of `cols` elements.
#[must_use]
pub fn linear(x: &[f64], w: &[f64], cols: usize) -> Vec<f64> {
    let row = |x: &[f64]| {
        w.chunks_exact(cols).map(|w| w.iter().zip(x).map(|(w, x)| w * x).sum()).collect::<Vec<f64>>()
    };
    x.chunks_exact(cols).flat_map(row).collect()
}

/// The values in f64.
#[must_use]
pub fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}

/// Half the distance of a central difference; in f64 its error is some 1e-9.
pub const STEP: f64 = 1e-5;

/// The gradient of `sum f(x) dy` with respect to `x`, by central differences.
#[must_use]
pub fn gradient(x: &[f32], dy: &[f32], f: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    let mut x = wide(x);
    let loss = |x: &[f64]| f(x).iter().zip(dy).map(|(y, d)| y * f64::from(*d)).sum::<f64>();
    (0..x.len())
        .map(|i| {
            let at = x[i];
            let mut moved = |by: f64| {
                x[i] = at + by;
                let loss = loss(&x);
                x[i] = at;
                loss
            };
            (moved(STEP) - moved(-STEP)) / (2.0 * STEP)
        })
        .collect()
}

/// Checks `got`, the gradient of `sum f(x) dy` with respect to `x`, element by element: within a thousandth of the largest, far over
/// the rounding of f32 in small sizes, far under a wrong term.
///
/// # Panics
///
/// When an element differs, or none is large enough to compare with.
#[track_caller]
pub fn assert_gradient(what: &str, got: &[f32], x: &[f32], dy: &[f32], f: impl Fn(&[f64]) -> Vec<f64>) {
    let want = gradient(x, dy, f);
    let largest = want.iter().fold(0f64, |m, v| m.max(v.abs()));
    assert!(largest > 1e-3, "{what}: nothing to compare with");
    crate::assert_all_near!(&wide(got), &want, abs = 1e-3 * largest, "{what}");
}
