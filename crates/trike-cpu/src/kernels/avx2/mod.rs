//! AVX2 with FMA and F16C: dense weights.

#![allow(
    clippy::needless_range_loop,
    reason = "the indices are rows, tokens and fields, and each walks several arrays"
)]

use std::arch::x86_64::*;

use super::product::product;
use trike_host::Loop;

use super::{Element, FloatKernels, Kernels, Rows};
use trike_host::isa::Avx2;

/// Wraps a call of a function with target features.
macro_rules! enter {
    ($call:expr) => {
        // SAFETY: `Avx2::detect` creates `self` only on a CPU with AVX2, FMA and F16C.
        unsafe { $call }
    };
}

mod dense;
mod floats;

use dense::widen;

impl FloatKernels for Avx2 {
    fn product<E: Element>(self, w: Rows<'_, E>, x: &[f32], out: &mut [&mut [f32]]) {
        product(self, w, x, out);
    }

    fn widen<E: Element>(self, from: &[E], to: &mut [f32]) {
        enter!(widen(from, to));
    }
}

impl Kernels for Avx2 {
    fn run<L: Loop>(self, task: L) -> L::Output {
        enter!(run(task))
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn run<L: Loop>(task: L) -> L::Output {
    task.run()
}

/// Eight values of any element type.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn load<E: Element>(chunk: &[E; 8]) -> __m256 {
    // SAFETY: this function has the target features that `load8` requires.
    unsafe { E::load8(chunk) }
}
