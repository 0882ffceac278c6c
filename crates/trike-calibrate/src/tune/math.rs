//! What the forward and backward passes of a block are made of, in f32 on the host.

use trike_cpu::{
    ActivationPrecision, Cpu, CpuError, CpuOps, DenseData, DenseMatrix, GatedActivation, Matrix,
};

/// A matrix of a block, `out x in`, ready to be multiplied both ways.
pub(super) struct Dense {
    ahead: Matrix,
    back: Matrix,
}

fn matrix(rows: usize, cols: usize, values: Vec<f32>) -> Result<Matrix, CpuError> {
    Ok(DenseMatrix::new(rows, cols, DenseData::F32(values))?.into())
}

/// `x w^T` of `x`, `tokens x in`.
pub(super) fn apply(cpu: &Cpu, x: &[f32], w: &Matrix) -> Result<Vec<f32>, CpuError> {
    let mut out = vec![0.0; x.len() / w.cols() * w.rows()];
    cpu.linear(x, w, ActivationPrecision::F32, &mut out)?;
    Ok(out)
}

impl Dense {
    pub(super) fn new(rows: usize, cols: usize, values: Vec<f32>) -> Result<Self, CpuError> {
        let back = matrix(cols, rows, transpose(&values, cols))?;
        Ok(Self { ahead: matrix(rows, cols, values)?, back })
    }

    /// `x w^T`.
    pub(super) fn ahead(&self, cpu: &Cpu, x: &[f32]) -> Result<Vec<f32>, CpuError> {
        apply(cpu, x, &self.ahead)
    }

    /// `dy w`: the gradient by the input.
    pub(super) fn back(&self, cpu: &Cpu, dy: &[f32]) -> Result<Vec<f32>, CpuError> {
        apply(cpu, dy, &self.back)
    }

    /// `dy^T x`: the gradient by the weights, of this shape.
    pub(super) fn gradient(&self, cpu: &Cpu, dy: &[f32], x: &[f32]) -> Result<Vec<f32>, CpuError> {
        let (rows, cols) = (self.ahead.rows(), self.ahead.cols());
        let tokens = x.len() / cols;
        apply(cpu, &transpose(dy, rows), &matrix(cols, tokens, transpose(x, cols))?)
    }
}

/// The columns of a row-major matrix as rows.
pub(super) fn transpose(a: &[f32], cols: usize) -> Vec<f32> {
    let rows = a.len() / cols.max(1);
    let mut out = vec![0.0; a.len()];
    // In tiles, so that both sides stay in the cache.
    const TILE: usize = 16;
    for r0 in (0..rows).step_by(TILE) {
        for c0 in (0..cols).step_by(TILE) {
            for c in c0..(c0 + TILE).min(cols) {
                for r in r0..(r0 + TILE).min(rows) {
                    out[c * rows + r] = a[r * cols + c];
                }
            }
        }
    }
    out
}

/// `e^x` to a few units in the last place, in operations that a compiler can do for several numbers at once; 0 below what a
/// normal number holds.
#[inline]
pub(super) fn exp(x: f32) -> f32 {
    // e^x = 2^n 2^f with n whole and |f| <= 1/2; adding 1.5 * 2^23 rounds to the nearest whole number.
    const ROUND: f32 = 12_582_912.0;
    let x = x.clamp(-87.0, 88.0);
    let n = (x * std::f32::consts::LOG2_E + ROUND) - ROUND;
    // ln 2 in two parts (Cody and Waite): n times the first one, which has few bits, is exact.
    let f = (x - n * 0.693_359_4) + n * 2.121_944_4e-4;
    // The Taylor series of e^f: the first term left out is under 2e-7 for |f| <= ln 2 / 2.
    let series = 1.0
        + f * (1.0 + f * (0.5 + f * (1.0 / 6.0 + f * (1.0 / 24.0 + f * (1.0 / 120.0 + f * (1.0 / 720.0))))));
    series * f32::from_bits(((n as i32 + 127) << 23) as u32)
}

/// `sum a b`, in lanes.
#[inline]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0f32; 8];
    let (heads_a, tail_a) = a.as_chunks::<8>();
    let (heads_b, tail_b) = b.as_chunks::<8>();
    for (a, b) in heads_a.iter().zip(heads_b) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    lanes.iter().sum::<f32>() + tail_a.iter().zip(tail_b).map(|(a, b)| a * b).sum::<f32>()
}

/// `to += factor from`.
#[inline]
pub(super) fn add_scaled(to: &mut [f32], factor: f32, from: &[f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += factor * from;
    }
}

pub(super) fn add(to: &mut [f32], from: &[f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += from;
    }
}

/// `x / rms(x) * weight` of every row as long as `weight`.
pub(super) fn norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks_exact(weight.len()) {
        let scale = inverse_rms(row, eps);
        out.extend(row.iter().zip(weight).map(|(x, w)| x * scale * w));
    }
    out
}

fn inverse_rms(row: &[f32], eps: f32) -> f32 {
    1.0 / (dot(row, row) / row.len() as f32 + eps).sqrt()
}

/// The gradient by the input of [`norm`], from that by its output.
pub(super) fn norm_back(x: &[f32], weight: &[f32], eps: f32, dy: &[f32]) -> Vec<f32> {
    let n = weight.len();
    let mut out = Vec::with_capacity(x.len());
    let mut scaled = vec![0f32; n];
    for (row, dy) in x.chunks_exact(n).zip(dy.chunks_exact(n)) {
        let scale = inverse_rms(row, eps);
        for ((s, d), w) in scaled.iter_mut().zip(dy).zip(weight) {
            *s = d * w;
        }
        let along = dot(&scaled, row) * scale * scale * scale / n as f32;
        out.extend(scaled.iter().zip(row).map(|(s, x)| s * scale - x * along));
    }
    out
}

/// `activation(gate) up`.
pub(super) fn gated(activation: GatedActivation, gate: &[f32], up: &[f32]) -> Vec<f32> {
    let pairs = gate.iter().zip(up);
    match activation {
        GatedActivation::SiLu => pairs.map(|(g, u)| g / (1.0 + exp(-g)) * u).collect(),
        GatedActivation::SquaredReLu => pairs.map(|(g, u)| g.max(0.0).powi(2) * u).collect(),
    }
}

/// The gradients by gate and up of [`gated`].
pub(super) fn gated_back(
    activation: GatedActivation,
    gate: &[f32],
    up: &[f32],
    dy: &[f32],
) -> (Vec<f32>, Vec<f32>) {
    let each = gate.iter().zip(up).zip(dy);
    match activation {
        GatedActivation::SiLu => each
            .map(|((g, u), d)| {
                let sigmoid = 1.0 / (1.0 + exp(-g));
                (d * u * sigmoid * (1.0 + g * (1.0 - sigmoid)), d * g * sigmoid)
            })
            .unzip(),
        GatedActivation::SquaredReLu => {
            each.map(|((g, u), d)| (d * u * 2.0 * g.max(0.0), d * g.max(0.0).powi(2))).unzip()
        }
    }
}

/// Does `work` on each item, on at most `threads` threads; which thread does what makes no difference.
pub(super) fn on_threads<T: Send>(threads: usize, items: Vec<T>, work: impl Fn(T) + Sync) {
    if threads.min(items.len()) <= 1 {
        return items.into_iter().for_each(work);
    }
    let count = items.len();
    let queue = std::sync::Mutex::new(items.into_iter());
    let run = || {
        // A panic in another thread ends this one as well: the scope passes it on.
        while let Some(item) = queue.lock().ok().and_then(|mut items| items.next()) {
            work(item);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(count) {
            scope.spawn(run);
        }
        run();
    });
}
