//! Root-mean-square normalization.
//!
//! With `r = 1 / sqrt(mean(x^2) + eps)` a row is `y_i = x_i r w_i`, and `dr / dx_i = -r^3 x_i / n` (Zhang and
//! Sennrich, 1910.07467).

use trike_host::{Cpu, Loop};

use super::lanes::dot;
use crate::error::{CpuError, check_len, check_rows};
use crate::kernels::{Kernels, with_float_kernels};

/// Gradient of [`CpuOps::rms_norm`](crate::CpuOps::rms_norm) with respect to its input. For each row of `n =
/// weight.len()` elements, `dx_i = r w_i dy_i - x_i r^3 (sum_j w_j dy_j x_j) / n` with `r = 1 / sqrt(mean(x^2) +
/// eps)`.
///
/// `x`, `dy` and `dx` are `tokens x n`.
///
/// # Errors
///
/// [`CpuError::NotMultiple`] when `x` is not a whole number of rows, [`CpuError::Length`] when the slices differ in
/// length.
pub fn rms_norm(
    cpu: &Cpu,
    x: &[f32],
    weight: &[f32],
    eps: f32,
    dy: &[f32],
    dx: &mut [f32],
) -> Result<(), CpuError> {
    let n = weight.len();
    check_rows("input of rms_norm", n, x.len())?;
    check_len("gradient of rms_norm's output", x.len(), dy.len())?;
    check_len("gradient of rms_norm's input", x.len(), dx.len())?;
    let isa = cpu.isa();
    cpu.pool().for_each_chunk(dx, n, 8 * x.len(), |first, dx| {
        let len = dx.len();
        let (x, dy) = (&x[first * n..][..len], &dy[first * n..][..len]);
        with_float_kernels!(isa, kernels => kernels.run(OfInput { x, weight, eps, dy, dx }));
    });
    Ok(())
}

/// The gradient of some rows.
struct OfInput<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    dy: &'a [f32],
    dx: &'a mut [f32],
}

impl Loop for OfInput<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { x, weight, eps, dy, dx } = self;
        let n = weight.len();
        for (dx, (x, dy)) in dx.chunks_exact_mut(n).zip(x.chunks_exact(n).zip(dy.chunks_exact(n))) {
            let r = inverse_rms(x, eps);
            for ((dx, dy), w) in dx.iter_mut().zip(dy).zip(weight) {
                *dx = dy * w;
            }
            let along = dot(dx, x) * r * r * r / n as f32;
            for (dx, x) in dx.iter_mut().zip(x) {
                *dx = *dx * r - x * along;
            }
        }
    }
}

/// Gradient of [`CpuOps::rms_norm`](crate::CpuOps::rms_norm) with respect to its weight, `dw_i = sum_t dy_ti x_ti
/// r_t`, summed over tokens in f64.
///
/// `x` and `dy` are `tokens x dw.len()`.
///
/// # Errors
///
/// As [`rms_norm`].
pub fn rms_norm_weight(cpu: &Cpu, x: &[f32], eps: f32, dy: &[f32], dw: &mut [f32]) -> Result<(), CpuError> {
    let n = dw.len();
    check_rows("input of rms_norm", n, x.len())?;
    check_len("gradient of rms_norm's output", x.len(), dy.len())?;
    with_float_kernels!(cpu.isa(), kernels => kernels.run(OfWeight { x, eps, dy, dw }));
    Ok(())
}

/// The gradient of the weight.
struct OfWeight<'a> {
    x: &'a [f32],
    eps: f32,
    dy: &'a [f32],
    dw: &'a mut [f32],
}

impl Loop for OfWeight<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { x, eps, dy, dw } = self;
        let n = dw.len();
        let mut sums = vec![0f64; n];
        for (x, dy) in x.chunks_exact(n).zip(dy.chunks_exact(n)) {
            let r = f64::from(inverse_rms(x, eps));
            for ((sum, x), dy) in sums.iter_mut().zip(x).zip(dy) {
                *sum += f64::from(*dy) * f64::from(*x) * r;
            }
        }
        for (dw, sum) in dw.iter_mut().zip(sums) {
            *dw = sum as f32;
        }
    }
}

#[inline(always)]
fn inverse_rms(row: &[f32], eps: f32) -> f32 {
    1.0 / (dot(row, row) / row.len() as f32 + eps).sqrt()
}
