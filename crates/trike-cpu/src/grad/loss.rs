//! Losses.

use trike_host::Cpu;

use crate::error::{CpuError, check_len, check_rows};
use crate::math::exp;

/// The Kullback-Leibler divergence `sum p ln(p / q)` in nats, summed over tokens, with `p = softmax(target)` and `q =
/// softmax(out)`. `out` is overwritten with the gradient with respect to its logits, `q - p`, and `target` with `p`
/// (distillation, Hinton et al., 1503.02531).
///
/// Both are `tokens x vocab`.
///
/// # Errors
///
/// [`CpuError::NotMultiple`] when `out` is not a whole number of rows, [`CpuError::Length`] when the slices differ in
/// length.
///
/// ```
/// use trike_cpu::{Cpu, grad};
///
/// let (mut out, mut target) = ([0.0, 3f32.ln()], [0.0, 0.0]);
/// let loss = grad::divergence(&Cpu::new(1)?, &mut out, &mut target, 2)?;
/// assert!((loss - (0.5 * 2f64.ln() + 0.5 * (2.0f64 / 3.0).ln())).abs() < 1e-6);
/// assert!((out[0] + 0.25).abs() < 1e-6 && (out[1] - 0.25).abs() < 1e-6);
/// # Ok::<(), trike_cpu::CpuError>(())
/// ```
pub fn divergence(cpu: &Cpu, out: &mut [f32], target: &mut [f32], vocab: usize) -> Result<f64, CpuError> {
    let tokens = check_rows("logits", vocab, out.len())?;
    check_len("logits to aim at", out.len(), target.len())?;
    let mut sums = vec![0f64; tokens];
    let tasks = out.chunks_exact_mut(vocab).zip(target.chunks_exact_mut(vocab)).zip(&mut sums).collect();
    cpu.pool().run(tasks, |((q, p), sum): ((&mut [f32], &mut [f32]), &mut f64)| {
        softmax(q);
        softmax(p);
        for (q, p) in q.iter_mut().zip(p) {
            // Smaller terms are negligible, and their logarithm may be infinite.
            if *p > 1e-12 {
                *sum += f64::from(*p) * f64::from(*p / q.max(1e-30)).ln();
            }
            *q -= *p;
        }
    });
    // In token order, independent of the thread that computed each.
    Ok(sums.iter().sum())
}

/// Replaces logits by probabilities.
fn softmax(row: &mut [f32]) {
    let largest = row.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v));
    for v in row.iter_mut() {
        *v = exp(*v - largest);
    }
    let factor = 1.0 / row.iter().sum::<f32>();
    for v in row.iter_mut() {
        *v *= factor;
    }
}
