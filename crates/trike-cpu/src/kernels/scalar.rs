//! The specification that all other implementations must match.

use trike_host::Loop;

use super::{Element, FloatKernels, Kernels, Rows, fold};
use trike_host::isa::Scalar;

impl FloatKernels for Scalar {
    fn product<E: Element>(self, w: Rows<'_, E>, x: &[f32], out: &mut [&mut [f32]]) {
        for row in 0..w.count() {
            for (x, out) in x.chunks_exact(w.cols).zip(out.iter_mut()) {
                out[row] = dot(w.row(row), x);
            }
        }
    }

    fn widen<E: Element>(self, from: &[E], to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.widen();
        }
    }
}

impl Kernels for Scalar {
    // Without target features to separate it, a loop would be compiled again in each function that runs it.
    #[inline(never)]
    fn run<L: Loop>(self, task: L) -> L::Output {
        task.run()
    }
}

/// Sixteen running sums, so that long rows are as precise as short ones.
#[inline(always)]
fn dot_lanes<E: Element>(w: &[E], x: &[f32]) -> [f32; 16] {
    let mut sums = [0.0; 16];
    // Whole chunks separately, so that compilers vectorize them.
    let ((w, w_tail), (x, x_tail)) = (w.as_chunks::<16>(), x.as_chunks::<16>());
    for (w, x) in w.iter().zip(x) {
        for lane in 0..16 {
            sums[lane] += w[lane].widen() * x[lane];
        }
    }
    for ((sum, &w), &x) in sums.iter_mut().zip(w_tail).zip(x_tail) {
        *sum += w.widen() * x;
    }
    sums
}

#[inline(always)]
fn dot<E: Element>(w: &[E], x: &[f32]) -> f32 {
    fold(dot_lanes(w, x))
}
