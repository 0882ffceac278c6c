//! Rounding of activations.

use trike_host::{Cpu, Loop};

use crate::error::{CpuError, check_len, check_rows};
use crate::kernels::{Kernels, with_shared_kernels};

/// Fake int8 quantization of activations, in f32: `y = a clamp(round(x / a), -128, 127)` with `a = max(max|x|, smallest) / 127` per
/// `group` consecutive elements of a token, of which the last group may be shorter. Ties are rounded to even.
///
/// `x` and `out` are `tokens x width`.
///
/// # Errors
///
/// [`CpuError::NotMultiple`] when `x` is not a whole number of rows, [`CpuError::Length`] when the slices differ in length.
///
/// ```
/// use trike_cpu::{Cpu, grad};
///
/// let mut y = [0.0; 3];
/// grad::round_int8(&Cpu::new(1)?, &[254.0, 3.0, 0.0], 3, 3, 1e-5, &mut y)?;
/// assert_eq!(y, [254.0, 4.0, 0.0]);
/// # Ok::<(), trike_cpu::CpuError>(())
/// ```
pub fn round_int8(
    cpu: &Cpu,
    x: &[f32],
    width: usize,
    group: usize,
    smallest: f32,
    out: &mut [f32],
) -> Result<(), CpuError> {
    check_rows("activations", width, x.len())?;
    check_len("rounded activations", x.len(), out.len())?;
    let group = group.clamp(1, width);
    let isa = cpu.isa();
    cpu.pool().for_each_chunk(out, width, 4 * x.len(), |first, out| {
        let rows = out.chunks_exact_mut(width).zip(x[first * width..].chunks_exact(width));
        for (out, x) in rows {
            with_shared_kernels!(isa, kernels => kernels.run(Round { x, group, smallest, out }));
        }
    });
    Ok(())
}

/// One token.
struct Round<'a> {
    x: &'a [f32],
    group: usize,
    smallest: f32,
    out: &'a mut [f32],
}

impl Loop for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (out, x) in self.out.chunks_mut(self.group).zip(self.x.chunks(self.group)) {
            // Comparisons in lanes, because the maximum of the standard library is not vectorized.
            let mut lanes = [self.smallest; 16];
            let (heads, tail) = x.as_chunks::<16>();
            for head in heads {
                for (lane, v) in lanes.iter_mut().zip(head) {
                    *lane = if v.abs() > *lane { v.abs() } else { *lane };
                }
            }
            let largest = lanes.iter().chain(tail).fold(self.smallest, |m, v| m.max(v.abs()));
            let scale = largest / 127.0;
            for (out, x) in out.iter_mut().zip(x) {
                *out = (x / scale).round_ties_even().clamp(-128.0, 127.0) * scale;
            }
        }
    }
}
