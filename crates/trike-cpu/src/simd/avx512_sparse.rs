//! Sparse weights with AVX-512: 64 slots looked up by one byte permute, and columns added for 64 tokens at a time.

#![allow(
    clippy::needless_range_loop,
    reason = "the indices are rows, windows and lines, and each walks several arrays"
)]

use std::arch::x86_64::*;

use super::Simd;
use crate::activations::{BESIDE, Beside};
use crate::line::{CodeLine, ROWS, TableLine};
use crate::matrix::sparse::{EMPTY, NEGATIVE, list_slots};
use trike_host::isa::{Avx512, Vbmi};

/// Calls an intrinsic.
macro_rules! op {
    ($call:expr) => {
        // SAFETY: the token exists, and `Avx512::detect` makes one only where the processor has AVX-512 F, BW, VL and VNNI.
        unsafe { $call }
    };
}

/// Bytes that the prefetch runs ahead of the reading.
const AHEAD: usize = 4096;

/// [`Simd::find`] for lines of `W` windows.
///
/// A line adds at most `4 * 128` to a sum of all slots, and `4 * 128 * 128 = 2^16` to one of the negative ones; a unit has
/// at most 16,320 lines, one for each column, so the sums stay below `2^30`.
#[inline(always)]
pub(super) fn find<const T: usize, const W: usize>(
    s: Avx512,
    vbmi: Vbmi,
    lines: &[CodeLine],
    tables: [&[TableLine]; T],
) -> [__m512i; T] {
    let mut windows: [&[[TableLine; W]]; T] = [&[]; T];
    for t in 0..T {
        windows[t] = &tables[t].as_chunks().0[..lines.len()];
    }
    let (ones, sign) = (s.splat_byte(1), s.splat_byte(128));
    // Every other line has sums of its own, so that an addition does not wait for the one before.
    let mut all = [[op!(_mm512_setzero_si512()); T]; 2];
    let mut negative = all;
    let (pairs, last) = lines.as_chunks::<2>();
    for (i, pair) in pairs.iter().enumerate() {
        for half in 0..2 {
            s.prefetch(&pair[half], AHEAD);
            let slots = s.load(&pair[half]);
            let signs = s.and_bytes(slots, sign);
            for t in 0..T {
                let values = look_up::<W>(s, vbmi, slots, &windows[t][2 * i + half]);
                all[half][t] = s.dot(all[half][t], ones, values);
                negative[half][t] = s.dot(negative[half][t], signs, values);
            }
        }
    }
    if let [line] = last {
        let slots = s.load(line);
        let signs = s.and_bytes(slots, sign);
        for t in 0..T {
            let values = look_up::<W>(s, vbmi, slots, &windows[t][lines.len() - 1]);
            all[0][t] = s.dot(all[0][t], ones, values);
            negative[0][t] = s.dot(negative[0][t], signs, values);
        }
    }
    let mut found = [op!(_mm512_setzero_si512()); T];
    for t in 0..T {
        // What is negative was added once and is taken back twice; the sum of its products is a multiple of 128.
        let twice = op!(_mm512_srai_epi32::<6>(s.add_ints(negative[0][t], negative[1][t])));
        found[t] = op!(_mm512_sub_epi32(s.add_ints(all[0][t], all[1][t]), twice));
    }
    found
}

/// The activations that the slots of a line point at.
#[inline(always)]
fn look_up<const W: usize>(s: Avx512, _: Vbmi, slots: __m512i, windows: &[TableLine; W]) -> __m512i {
    // The slots of each row that belong to a window: four, two or one of every four bytes.
    let mask = match W {
        1 => u64::MAX,
        2 => 0x3333_3333_3333_3333,
        _ => 0x1111_1111_1111_1111,
    };
    let mut values = slots;
    for w in 0..W {
        let [low, high] = halves(s, &windows[w]);
        let mask = mask << (w * 4 / W);
        // What is not in the mask stays: the slots of later windows, and what was found in earlier ones.
        // SAFETY: an argument of type `Vbmi` exists, which only detection makes.
        values = unsafe { _mm512_mask2_permutex2var_epi8(low, values, mask, high) };
    }
    values
}

/// The two registers of a table.
#[inline(always)]
fn halves(_: Avx512, table: &TableLine) -> [__m512i; 2] {
    let [low, high] = bytemuck::cast_ref::<[i8; 128], [[i8; 64]; 2]>(&table.0);
    // SAFETY: sixty-four readable bytes, and the load takes any alignment; the token proves the instruction.
    let low = unsafe { _mm512_loadu_si512(low.as_ptr().cast()) };
    // SAFETY: as above.
    let high = unsafe { _mm512_loadu_si512(high.as_ptr().cast()) };
    [low, high]
}

/// [`Simd::list`]: four lines at a time, whose columns are sorted out by two compressions.
#[inline(always)]
pub(super) fn list(
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
        // SAFETY: sixteen readable bytes, and the load takes any alignment; the token proves the instruction.
        let bytes = unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
        let slots = op!(_mm512_cvtepu8_epi32(bytes));
        let empty = s.splat_int(i32::from(EMPTY));
        let index = s.and_bytes(slots, empty);
        // SAFETY: sixteen readable u32, and the load takes any alignment; the token proves the instruction.
        let origin = unsafe { _mm512_loadu_si512(origin_quads[i].as_ptr().cast()) };
        let cols = s.add_ints(index, origin);
        let set = op!(_mm512_cmpneq_epi32_mask(index, empty));
        let sign = op!(_mm512_test_epi32_mask(slots, s.splat_int(i32::from(NEGATIVE))));
        plus += put(cols, set & !sign, &mut positive[plus..plus + 16], s);
        minus += put(cols, set & sign, &mut negative[minus..minus + 16], s);
    }
    list_slots(rest, row, origins_rest, (positive, negative), (plus, minus))
}

/// Writes the columns in a mask, and rubbish after them; how many they are.
#[inline(always)]
fn put(cols: __m512i, mask: u16, place: &mut [u32], _: Avx512) -> usize {
    let packed = op!(_mm512_maskz_compress_epi32(mask, cols));
    if let Some(place) = place.first_chunk_mut::<16>() {
        // SAFETY: sixteen writable u32, and the store takes any alignment; the token proves the instruction.
        unsafe { _mm512_storeu_si512(place.as_mut_ptr().cast(), packed) };
    }
    mask.count_ones() as usize
}

/// Additions of int8 after which an i16 may be full: `255 * 128 < 2^15`.
const ADDITIONS: usize = 255;

/// [`Simd::add_columns`].
#[inline(always)]
pub(super) fn add_columns(
    s: Avx512,
    x: &[[i8; BESIDE]],
    mut positive: &[u32],
    mut negative: &[u32],
    sums: &mut Beside<i32>,
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
            // SAFETY: sixteen readable i32, and the load takes any alignment; the token proves the instruction.
            let sum = unsafe { _mm512_loadu_si512(quarters[q].as_ptr().cast()) };
            let sum = s.add_ints(sum, wide);
            // SAFETY: sixteen writable i32, and the store takes any alignment; the token proves the instruction.
            unsafe { _mm512_storeu_si512(quarters[q].as_mut_ptr().cast(), sum) };
        }
    }
}

/// Sixty-four bytes as i16.
#[inline(always)]
fn widen(_: Avx512, x: &[i8; BESIDE]) -> (__m512i, __m512i) {
    let (low, high) = x.split_at(BESIDE / 2);
    // SAFETY: thirty-two readable bytes, and the load takes any alignment; the token proves the instruction.
    let low = unsafe { _mm256_loadu_si256(low.as_ptr().cast()) };
    // SAFETY: as above.
    let high = unsafe { _mm256_loadu_si256(high.as_ptr().cast()) };
    (op!(_mm512_cvtepi8_epi16(low)), op!(_mm512_cvtepi8_epi16(high)))
}
