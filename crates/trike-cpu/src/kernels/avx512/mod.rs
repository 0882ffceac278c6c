//! AVX-512 with VNNI: dense and int8 weights, and the ceilings of the machine.

#![allow(
    clippy::needless_range_loop,
    reason = "the indices are rows, tokens and fields, and each walks several arrays"
)]

use std::arch::x86_64::*;

use super::product::product;
use super::{Element, Kernels, Loop, Rows};
use crate::isa::Avx512;
use crate::line::Line;
use crate::probe::{Peak, WordLine};

/// Writes the safe method that enters a function with the target features on.
macro_rules! enter {
    ($call:expr) => {
        // SAFETY: `self` exists, and `Avx512::detect` makes one only where the processor has every feature named below.
        unsafe { $call }
    };
}

mod dense;
mod floats;
mod peak;

use dense::widen;
use peak::read;

impl Kernels for Avx512 {
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
            Peak { name: "vpdpbusd, 512 bits", macs: 16 * 64, run: |token, steps| token.peak_512(steps) },
            Peak { name: "vpdpbusd, 256 bits", macs: 16 * 32, run: |token, steps| token.peak_256(steps) },
        ]
    }

    fn run<L: Loop>(self, task: L) -> L::Output {
        match self.vbmi() {
            // SAFETY: `self` exists, and so does a token of the byte permutes: the processor has every feature below.
            Some(_) => unsafe { run_permuting(task) },
            None => enter!(run(task)),
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
fn run<L: Loop>(task: L) -> L::Output {
    task.run()
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
fn run_permuting<L: Loop>(task: L) -> L::Output {
    task.run()
}

/// Asks for the line that lies `lines` after this one; asking for memory that does not exist does nothing.
#[inline]
#[target_feature(enable = "avx512f")]
fn prefetch<T>(line: &Line<T>, lines: usize) {
    let ahead = std::ptr::from_ref(line).wrapping_add(lines);
    _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
}

/// Sixteen values of any element type.
#[inline]
#[target_feature(enable = "avx512f")]
fn load<E: Element>(chunk: &[E; 16]) -> __m512 {
    // SAFETY: this function's own target feature is the one that `load16` asks for.
    unsafe { E::load16(chunk) }
}
