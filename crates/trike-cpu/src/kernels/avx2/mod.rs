//! AVX2 with FMA and F16C: two 256-bit registers stand for the sixteen lanes of the specification.
//!
//! `vpmaddubsw` adds two products of a code (0, 1, 2) and an activation: at most `2 * 2 * 128 = 2^9` in an i16. The four
//! fields of a line add up to `2^11`, and `vpmaddwd` widens before anything grows further.

#![allow(
    clippy::needless_range_loop,
    reason = "the indices are rows, tokens and fields, and each walks several arrays"
)]

use std::arch::x86_64::*;

use super::product::product;
use super::{ByteToken, Element, Kernels, Loop, Rows};
use crate::isa::Avx2;
use crate::line::{CodeLine, FloatLine, TILE};
use crate::probe::{Peak, WordLine};

/// Writes the safe method that enters a function with the target features on.
macro_rules! enter {
    ($call:expr) => {
        // SAFETY: `self` exists, and `Avx2::detect` makes one only where the processor has AVX2, FMA and F16C.
        unsafe { $call }
    };
}

mod dense;
mod peak;
mod simd;
mod ternary;

use dense::{accumulate_rows, dense_rows, widen};
use peak::read;
use ternary::{rows_f32, rows_i8, units_f32, units_i8};

impl Kernels for Avx2 {
    fn ternary_rows_i8<const T: usize>(self, tile: &[CodeLine], x: [ByteToken<'_>; T]) -> [[i32; TILE]; T] {
        enter!(rows_i8(tile, x))
    }

    fn ternary_units_i8<const T: usize, const UNIT: usize, const FACTORS: bool>(
        self,
        tile: &[CodeLine],
        scales: &[[f32; TILE]],
        x: [ByteToken<'_>; T],
    ) -> [[f32; TILE]; T] {
        enter!(units_i8::<T, UNIT, FACTORS>(tile, scales, x))
    }

    fn ternary_rows_f32<const T: usize>(self, tile: &[CodeLine], x: [&[FloatLine]; T]) -> [[f32; TILE]; T] {
        enter!(rows_f32(tile, x))
    }

    fn ternary_units_f32<const T: usize, const UNIT: usize>(
        self,
        tile: &[CodeLine],
        scales: &[[f32; TILE]],
        x: [&[FloatLine]; T],
    ) -> [[f32; TILE]; T] {
        enter!(units_f32::<T, UNIT>(tile, scales, x))
    }

    fn product<E: Element>(self, w: Rows<'_, E>, x: &[f32], out: &mut [&mut [f32]]) {
        product(self, w, x, out);
    }

    fn dense_rows<E: Element>(self, rows: &[E], x: &[f32], out: &mut [f32]) {
        enter!(dense_rows(rows, x, out));
    }

    fn accumulate_rows<E: Element>(self, weights: &[f32], rows: &[E], out: &mut [f32]) {
        enter!(accumulate_rows(weights, rows, out));
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

/// The fold of the specification, for the lower and the upper eight lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn fold(v: [__m256; 2]) -> f32 {
    let v8 = _mm256_add_ps(v[0], v[1]);
    let v4 = _mm_add_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps::<1>(v8));
    let v2 = _mm_add_ps(v4, _mm_movehl_ps(v4, v4));
    _mm_cvtss_f32(_mm_add_ss(v2, _mm_movehdup_ps(v2)))
}

/// Eight values of any element type.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn load<E: Element>(chunk: &[E; 8]) -> __m256 {
    // SAFETY: this function's own target features are the ones that `load8` asks for.
    unsafe { E::load8(chunk) }
}
