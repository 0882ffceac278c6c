//! The specification: what every other implementation must compute.

use std::hint::black_box;

use super::{Element, Kernels, Loop, Rows, fold, streams};
use crate::isa::Scalar;
use crate::probe::{Peak, WordLine};

impl Kernels for Scalar {
    fn product<E: Element>(self, w: Rows<'_, E>, x: &[f32], out: &mut [&mut [f32]]) {
        let mut weights = vec![0.0; w.cols];
        for row in 0..w.count() {
            weights.iter_mut().zip(w.weights(row)).for_each(|(to, weight)| *to = weight);
            for (x, out) in x.chunks_exact(w.cols).zip(out.iter_mut()) {
                out[row] = dot(&weights, x);
            }
        }
    }

    fn widen<E: Element>(self, from: &[E], to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.widen();
        }
    }

    fn read<const S: usize>(self, lines: &[WordLine], ahead: usize) -> u64 {
        // Portable code cannot prefetch.
        let _ = ahead;
        let (streams, len) = streams::<S>(lines);
        let mut sums = [0u64; 8];
        for i in 0..len {
            for stream in streams {
                for (sum, word) in sums.iter_mut().zip(stream[i].0) {
                    *sum = sum.wrapping_add(word);
                }
            }
        }
        sums.iter().fold(0, |a, &b| a.wrapping_add(b))
    }

    fn peaks(self) -> &'static [Peak<Self>] {
        &[Peak { name: "portable", macs: 256, run: |_, steps| peak(steps) }]
    }

    fn run<L: Loop>(self, task: L) -> L::Output {
        task.run()
    }
}

/// Sixteen running sums, so that a long row loses no more than a short one.
#[inline(always)]
fn dot_lanes<E: Element>(w: &[E], x: &[f32]) -> [f32; 16] {
    let mut sums = [0.0; 16];
    for (w, x) in w.chunks(16).zip(x.chunks(16)) {
        for ((sum, &w), &x) in sums.iter_mut().zip(w).zip(x) {
            *sum += w.widen() * x;
        }
    }
    sums
}

#[inline(always)]
fn dot<E: Element>(w: &[E], x: &[f32]) -> f32 {
    fold(dot_lanes(w, x))
}

/// 256 multiply-adds a step, from the first cache.
fn peak(steps: u64) {
    let (w, x) = ([1i8; 256], [2i8; 256]);
    let mut sum = 0i32;
    for _ in 0..steps {
        let (w, x) = (black_box(&w), black_box(&x));
        let dot: i32 = w.iter().zip(x).map(|(&w, &x)| i32::from(w) * i32::from(x)).sum();
        sum = sum.wrapping_add(dot);
    }
    black_box(sum);
}
