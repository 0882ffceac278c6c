//! Four registers of 128 bits.

use std::arch::x86_64::*;

use super::{CodeLanes, Four};
use trike_host::isa::Sse41;

/// Calls a function with target features.
macro_rules! op {
    ($call:expr) => {
        // SAFETY: `Sse41::detect` creates `self` only on a CPU with SSSE3 and SSE4.1.
        unsafe { $call }
    };
}

#[inline]
#[target_feature(enable = "sse4.1")]
fn load(rows: Four<'_>) -> [__m128i; 4] {
    let mut parts = [_mm_setzero_si128(); 4];
    for r in 0..4 {
        // SAFETY: the array is 16 readable bytes, and the load has no alignment requirement.
        parts[r] = unsafe { _mm_loadu_si128(rows[r].as_ptr().cast()) };
    }
    parts
}

/// The bytes of four rows in the order of the columns.
#[inline]
#[target_feature(enable = "sse4.1")]
fn columns(rows: Four<'_>) -> [__m128i; 4] {
    let [a, b, c, d] = load(rows);
    let (low_even, low_odd) = (_mm_unpacklo_epi8(a, c), _mm_unpacklo_epi8(b, d));
    let (high_even, high_odd) = (_mm_unpackhi_epi8(a, c), _mm_unpackhi_epi8(b, d));
    [
        _mm_unpacklo_epi16(low_even, low_odd),
        _mm_unpackhi_epi16(low_even, low_odd),
        _mm_unpacklo_epi16(high_even, high_odd),
        _mm_unpackhi_epi16(high_even, high_odd),
    ]
}

#[inline]
#[target_feature(enable = "sse4.1")]
fn bytes_of(mut bytes: [__m128i; 4], part: usize) -> [__m128i; 4] {
    for q in 0..4 {
        let at_top = if part == 0 { _mm_slli_epi16::<8>(bytes[q]) } else { bytes[q] };
        bytes[q] = _mm_srai_epi16::<8>(at_top);
    }
    bytes
}

#[inline]
#[target_feature(enable = "sse4.1")]
fn nibbles_of(mut bytes: [__m128i; 4], part: usize) -> [__m128i; 4] {
    let mask = _mm_set1_epi16(15);
    for q in 0..4 {
        bytes[q] = match part {
            0 => _mm_and_si128(bytes[q], mask),
            1 => _mm_and_si128(_mm_srli_epi16::<4>(bytes[q]), mask),
            2 => _mm_and_si128(_mm_srli_epi16::<8>(bytes[q]), mask),
            _ => _mm_srli_epi16::<12>(bytes[q]),
        };
    }
    bytes
}

/// Sums of four neighbours of four registers.
#[inline]
#[target_feature(enable = "ssse3,sse4.1")]
fn fours(sums: [[__m128i; 4]; 4]) -> [__m128i; 4] {
    let mut out = [_mm_setzero_si128(); 4];
    for q in 0..4 {
        let (a, b) = (_mm_hadd_epi32(sums[0][q], sums[1][q]), _mm_hadd_epi32(sums[2][q], sums[3][q]));
        out[q] = _mm_hadd_epi32(a, b);
    }
    out
}

#[inline]
#[target_feature(enable = "sse4.1")]
fn bytes_64(mut bytes: [__m128i; 4], part: usize) -> [__m128i; 4] {
    for q in 0..4 {
        let mask = _mm_set1_epi16(-256);
        let at_top = if part == 0 { _mm_slli_epi16::<8>(bytes[q]) } else { _mm_and_si128(bytes[q], mask) };
        bytes[q] = _mm_srai_epi16::<2>(at_top);
    }
    bytes
}

#[inline]
#[target_feature(enable = "sse4.1")]
fn nibbles_64(mut bytes: [__m128i; 4], part: usize) -> [__m128i; 4] {
    for q in 0..4 {
        let shifted = match part {
            0 => _mm_slli_epi16::<6>(bytes[q]),
            1 => _mm_slli_epi16::<2>(bytes[q]),
            2 => _mm_srli_epi16::<2>(bytes[q]),
            _ => _mm_srli_epi16::<6>(bytes[q]),
        };
        bytes[q] = _mm_and_si128(shifted, _mm_set1_epi16(15 << 6));
    }
    bytes
}

#[inline]
#[target_feature(enable = "sse4.1")]
fn upper(mut bytes: [__m128i; 4]) -> [__m128i; 4] {
    for q in 0..4 {
        bytes[q] = _mm_and_si128(_mm_srli_epi16::<4>(bytes[q]), _mm_set1_epi8(15));
    }
    bytes
}

#[inline]
#[target_feature(enable = "ssse3,sse4.1")]
fn add_small(mut acc: [__m128i; 4], codes: [__m128i; 4], x: [__m128i; 4]) -> [__m128i; 4] {
    for q in 0..4 {
        // Two products are at most `2 * 255 * 64`.
        let twos = _mm_maddubs_epi16(codes[q], x[q]);
        acc[q] = _mm_add_epi32(acc[q], _mm_madd_epi16(twos, _mm_set1_epi16(1)));
    }
    acc
}

impl CodeLanes for Sse41 {
    #[inline(always)]
    fn load_rows(self, rows: Four<'_>) -> [__m128i; 4] {
        op!(load(rows))
    }

    #[inline(always)]
    fn load_columns(self, rows: Four<'_>) -> [__m128i; 4] {
        op!(columns(rows))
    }

    #[inline(always)]
    fn widen_bytes(self, bytes: [__m128i; 4], part: usize) -> [__m128i; 4] {
        op!(bytes_of(bytes, part))
    }

    #[inline(always)]
    fn widen_nibbles(self, bytes: [__m128i; 4], part: usize) -> [__m128i; 4] {
        op!(nibbles_of(bytes, part))
    }

    #[inline(always)]
    fn widen_bytes_64(self, bytes: [__m128i; 4], part: usize) -> [__m128i; 4] {
        op!(bytes_64(bytes, part))
    }

    #[inline(always)]
    fn widen_nibbles_64(self, bytes: [__m128i; 4], part: usize) -> [__m128i; 4] {
        op!(nibbles_64(bytes, part))
    }

    #[inline(always)]
    fn high_halves(self, bytes: [__m128i; 4]) -> [__m128i; 4] {
        op!(upper(bytes))
    }

    #[inline(always)]
    fn dot_small(self, acc: [__m128i; 4], codes: [__m128i; 4], x: [__m128i; 4]) -> [__m128i; 4] {
        op!(add_small(acc, codes, x))
    }

    #[inline(always)]
    fn add_fours(self, sums: [[__m128i; 4]; 4]) -> [__m128i; 4] {
        op!(fours(sums))
    }
}
