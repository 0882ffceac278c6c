//! AVX2 with FMA and F16C: dense and int8 weights, and the ceilings of the machine.

#![allow(
    clippy::needless_range_loop,
    reason = "the indices are rows, tokens and fields, and each walks several arrays"
)]

use std::arch::x86_64::*;

use super::product::product;
use super::{Element, Kernels, Loop, Rows};
use crate::isa::Avx2;
use crate::probe::{Peak, WordLine};

/// Writes the safe method that enters a function with the target features on.
macro_rules! enter {
    ($call:expr) => {
        // SAFETY: `self` exists, and `Avx2::detect` makes one only where the processor has AVX2, FMA and F16C.
        unsafe { $call }
    };
}

mod dense;
mod floats;
mod peak;

use dense::widen;
use peak::read;

impl Kernels for Avx2 {
    fn product<E: Element>(self, w: Rows<'_, E>, x: &[f32], out: &mut [&mut [f32]]) {
        product(self, w, x, out);
    }

    fn widen<E: Element>(self, from: &[E], to: &mut [f32]) {
        enter!(widen(from, to));
    }

    fn read<const S: usize>(self, lines: &[WordLine], ahead: usize) -> u64 {
        enter!(read::<S>(lines, ahead))
    }

    fn peaks(self) -> &'static [Peak<Self>] {
        &[
            Peak {
                name: "vpmaddubsw and vpmaddwd",
                macs: 8 * 32,
                run: |token, steps| token.peak_wide(steps),
            },
            Peak {
                name: "vpmaddubsw, widened every fourth",
                macs: 16 * 32,
                run: |token, steps| token.peak_merged(steps),
            },
        ]
    }

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
    // SAFETY: this function's own target features are the ones that `load8` asks for.
    unsafe { E::load8(chunk) }
}
