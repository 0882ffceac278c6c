//! Columns of nonzeros with AVX-512: 16 slots listed at a time, and 64 tokens added at a time.

#![allow(
    clippy::needless_range_loop,
    reason = "the indices are lines and quarters, and each walks several arrays"
)]

use std::arch::x86_64::*;

use super::columns::{Columns, list_slots};
use crate::activations::{INTERLEAVE, Interleaved};
use crate::line::{CodeLine, ROWS};
use crate::matrix::sparse::{EMPTY, NEGATIVE};
use crate::simd::Simd;
use trike_host::isa::Avx512;

/// Calls an intrinsic.
macro_rules! op {
    ($call:expr) => {
        // SAFETY: `Avx512::detect` creates the token only on a CPU with AVX-512 F, BW, VL and VNNI.
        unsafe { $call }
    };
}

impl Columns for Avx512 {
    #[inline(always)]
    fn list(
        self,
        lines: &[CodeLine],
        row: usize,
        origins: &[[u32; 4]],
        positive: &mut [u32],
        negative: &mut [u32],
    ) -> (usize, usize) {
        list(self, lines, row, origins, positive, negative)
    }

    #[inline(always)]
    fn add_columns(
        self,
        x: &[[i8; INTERLEAVE]],
        positive: &[u32],
        negative: &[u32],
        sums: &mut Interleaved<i32>,
    ) {
        add_columns(self, x, positive, negative, sums);
    }
}

/// [`Columns::list`]: four lines at a time, split by sign with two compress instructions.
#[inline(always)]
fn list(
    s: Avx512,
    lines: &[CodeLine],
    row: usize,
    origins: &[[u32; 4]],
    positive: &mut [u32],
    negative: &mut [u32],
) -> (usize, usize) {
    let (quads, rest) = lines.as_chunks::<4>();
    let (origin_quads, origins_rest) = origins[..lines.len()].as_chunks::<4>();
    let (mut plus, mut minus) = (0, 0);
    for i in 0..quads.len() {
        let mut bytes = [[0u8; 4]; 4];
        for line in 0..4 {
            bytes[line] = quads[i][line].0.as_chunks().0[row % ROWS];
        }
        // SAFETY: 16 readable bytes, and the load has no alignment requirement; the token proves the instruction.
        let bytes = unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
        let slots = op!(_mm512_cvtepu8_epi32(bytes));
        let empty = s.splat_int(i32::from(EMPTY));
        let index = s.and_bytes(slots, empty);
        // SAFETY: 16 readable u32, and the load has no alignment requirement; the token proves the instruction.
        let origin = unsafe { _mm512_loadu_si512(origin_quads[i].as_ptr().cast()) };
        let cols = s.add_ints(index, origin);
        let set = op!(_mm512_cmpneq_epi32_mask(index, empty));
        let sign = op!(_mm512_test_epi32_mask(slots, s.splat_int(i32::from(NEGATIVE))));
        plus += put(cols, set & !sign, &mut positive[plus..plus + 16], s);
        minus += put(cols, set & sign, &mut negative[minus..minus + 16], s);
    }
    list_slots(rest, row, origins_rest, (positive, negative), (plus, minus))
}

/// Writes the columns selected by a mask, followed by arbitrary values; returns their number.
#[inline(always)]
fn put(cols: __m512i, mask: u16, place: &mut [u32], _: Avx512) -> usize {
    let packed = op!(_mm512_maskz_compress_epi32(mask, cols));
    if let Some(place) = place.first_chunk_mut::<16>() {
        // SAFETY: 16 writable u32, and the store has no alignment requirement; the token proves the instruction.
        unsafe { _mm512_storeu_si512(place.as_mut_ptr().cast(), packed) };
    }
    mask.count_ones() as usize
}

/// Maximum additions of int8 to an i16: `255 * 128 < 2^15`.
const ADDITIONS: usize = 255;

/// [`Columns::add_columns`].
#[inline(always)]
fn add_columns(
    s: Avx512,
    x: &[[i8; INTERLEAVE]],
    mut positive: &[u32],
    mut negative: &[u32],
    sums: &mut Interleaved<i32>,
) {
    let (quarters, _) = sums.0.as_chunks_mut::<16>();
    while !positive.is_empty() || !negative.is_empty() {
        let (some, rest) = positive.split_at(positive.len().min(ADDITIONS));
        positive = rest;
        let (less, rest) = negative.split_at(negative.len().min(ADDITIONS - some.len()));
        negative = rest;
        let mut low = op!(_mm512_setzero_si512());
        let mut high = low;
        for &col in some {
            let (a, b) = widen(s, &x[col as usize]);
            low = op!(_mm512_add_epi16(low, a));
            high = op!(_mm512_add_epi16(high, b));
        }
        for &col in less {
            let (a, b) = widen(s, &x[col as usize]);
            low = op!(_mm512_sub_epi16(low, a));
            high = op!(_mm512_sub_epi16(high, b));
        }
        let parts = [
            op!(_mm512_castsi512_si256(low)),
            op!(_mm512_extracti64x4_epi64::<1>(low)),
            op!(_mm512_castsi512_si256(high)),
            op!(_mm512_extracti64x4_epi64::<1>(high)),
        ];
        for q in 0..4 {
            let wide = op!(_mm512_cvtepi16_epi32(parts[q]));
            // SAFETY: 16 readable i32, and the load has no alignment requirement; the token proves the instruction.
            let sum = unsafe { _mm512_loadu_si512(quarters[q].as_ptr().cast()) };
            let sum = s.add_ints(sum, wide);
            // SAFETY: 16 writable i32, and the store has no alignment requirement; the token proves the instruction.
            unsafe { _mm512_storeu_si512(quarters[q].as_mut_ptr().cast(), sum) };
        }
    }
}

/// Widens 64 bytes to i16.
#[inline(always)]
fn widen(_: Avx512, x: &[i8; INTERLEAVE]) -> (__m512i, __m512i) {
    let (low, high) = x.split_at(INTERLEAVE / 2);
    // SAFETY: 32 readable bytes, and the load has no alignment requirement; the token proves the instruction.
    let low = unsafe { _mm256_loadu_si256(low.as_ptr().cast()) };
    // SAFETY: as above.
    let high = unsafe { _mm256_loadu_si256(high.as_ptr().cast()) };
    (op!(_mm512_cvtepi8_epi16(low)), op!(_mm512_cvtepi8_epi16(high)))
}
