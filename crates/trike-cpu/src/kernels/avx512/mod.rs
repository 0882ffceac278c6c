//! AVX-512 with VNNI: dense weights.

#![allow(
    clippy::needless_range_loop,
    reason = "the indices are rows, tokens and fields, and each walks several arrays"
)]

use std::arch::x86_64::*;

use super::product::product;
use trike_host::Loop;

use super::{Element, FloatKernels, Kernels, Rows};
use trike_host::isa::Avx512;

/// Wraps a call of a function with target features.
macro_rules! enter {
    ($call:expr) => {
        // SAFETY: `Avx512::detect` creates `self` only on a CPU with every feature named below.
        unsafe { $call }
    };
}

mod dense;
mod floats;

use dense::widen;

impl FloatKernels for Avx512 {
    fn product<E: Element>(self, w: Rows<'_, E>, x: &[f32], out: &mut [&mut [f32]]) {
        product(self, w, x, out);
    }

    fn widen<E: Element>(self, from: &[E], to: &mut [f32]) {
        enter!(widen(from, to));
    }
}

impl Kernels for Avx512 {
    fn run<L: Loop>(self, task: L) -> L::Output {
        enter!(run(task))
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
fn run<L: Loop>(task: L) -> L::Output {
    task.run()
}

/// Sixteen values of any element type.
#[inline]
#[target_feature(enable = "avx512f")]
fn load<E: Element>(chunk: &[E; 16]) -> __m512 {
    // SAFETY: this function has the target feature that `load16` requires.
    unsafe { E::load16(chunk) }
}
