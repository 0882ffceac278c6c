//! Root-mean-square normalization.

use crate::error::{CpuError, check_len, check_rows};
use crate::kernels::Kernels;
use crate::kernels::with_float_kernels;
use trike_host::Cpu;
use trike_host::Loop;

/// [`CpuOps::rms_norm`](crate::CpuOps::rms_norm).
pub(crate) fn rms_norm(
    cpu: &Cpu,
    x: &[f32],
    weight: &[f32],
    eps: f32,
    out: &mut [f32],
) -> Result<(), CpuError> {
    let cols = weight.len();
    check_rows("input of rms_norm", cols, x.len())?;
    check_len("output of rms_norm", x.len(), out.len())?;
    cpu.pool().for_each_chunk(out, cols, 4 * x.len(), |first, out| {
        for (x, out) in x[first * cols..].chunks_exact(cols).zip(out.chunks_exact_mut(cols)) {
            with_float_kernels!(cpu.isa(), kernels => kernels.run(RmsNorm { x, weight, eps, out }));
        }
    });
    Ok(())
}

/// One row.
struct RmsNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Loop for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let mut sums = [0f64; 8];
        let (chunks, tail) = self.x.as_chunks::<8>();
        for x in chunks {
            for (sum, &x) in sums.iter_mut().zip(x) {
                *sum += f64::from(x) * f64::from(x);
            }
        }
        let last: f64 = tail.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        let mean = (sums.iter().sum::<f64>() + last) / self.x.len() as f64;
        let factor = (1.0 / (mean + f64::from(self.eps)).sqrt()) as f32;
        for ((out, x), weight) in self.out.iter_mut().zip(self.x).zip(self.weight) {
            *out = x * factor * weight;
        }
    }
}
