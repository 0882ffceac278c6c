//! Two registers of 256 bits.

use std::arch::x86_64::*;

use super::{CodeLanes, Four};
use crate::simd::Simd as _;
use trike_host::isa::{Avx2, AvxVnni};

/// Calls an intrinsic.
macro_rules! op {
    ($call:expr) => {
        // SAFETY: `detect` creates `self` only on a CPU with AVX2.
        unsafe { $call }
    };
}

/// Sixteen bytes in each half of two registers.
#[inline]
#[target_feature(enable = "avx2")]
fn quarters(rows: Four<'_>) -> [__m256i; 2] {
    let parts = load(rows);
    [_mm256_set_m128i(parts[1], parts[0]), _mm256_set_m128i(parts[3], parts[2])]
}

#[inline]
#[target_feature(enable = "avx2")]
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
#[target_feature(enable = "avx2")]
fn columns(rows: Four<'_>) -> [__m256i; 2] {
    let [a, b, c, d] = load(rows);
    // Rows 0 and 1 with rows 2 and 3, byte by byte: columns 0 to 7 in the lower half, 8 to 15 in the upper one.
    let even = _mm256_set_m128i(_mm_unpackhi_epi8(a, c), _mm_unpacklo_epi8(a, c));
    let odd = _mm256_set_m128i(_mm_unpackhi_epi8(b, d), _mm_unpacklo_epi8(b, d));
    let (low, high) = (_mm256_unpacklo_epi16(even, odd), _mm256_unpackhi_epi16(even, odd));
    [_mm256_permute2x128_si256::<0x20>(low, high), _mm256_permute2x128_si256::<0x31>(low, high)]
}

/// Sums of four neighbours of four registers.
#[inline]
#[target_feature(enable = "avx2")]
fn fours(sums: [[__m256i; 2]; 4]) -> [__m256i; 2] {
    let mut out = [_mm256_setzero_si256(); 2];
    for h in 0..2 {
        let (a, b) = (_mm256_hadd_epi32(sums[0][h], sums[1][h]), _mm256_hadd_epi32(sums[2][h], sums[3][h]));
        out[h] = _mm256_hadd_epi32(a, b);
    }
    out
}

macro_rules! code_lanes {
    ($($token:ty),*) => {
        $(impl CodeLanes for $token {
            #[inline(always)]
            fn load_rows(self, rows: Four<'_>) -> [__m256i; 2] {
                op!(quarters(rows))
            }

            #[inline(always)]
            fn load_columns(self, rows: Four<'_>) -> [__m256i; 2] {
                op!(columns(rows))
            }

            #[inline(always)]
            fn widen_bytes(self, bytes: [__m256i; 2], part: usize) -> [__m256i; 2] {
                let [a, b] = bytes;
                let [a, b] = if part == 0 {
                    [op!(_mm256_slli_epi16::<8>(a)), op!(_mm256_slli_epi16::<8>(b))]
                } else {
                    [a, b]
                };
                [op!(_mm256_srai_epi16::<8>(a)), op!(_mm256_srai_epi16::<8>(b))]
            }

            #[inline(always)]
            fn widen_nibbles(self, bytes: [__m256i; 2], part: usize) -> [__m256i; 2] {
                let mask = op!(_mm256_set1_epi16(15));
                let [a, b] = bytes;
                let [a, b] = match part {
                    0 => [a, b],
                    1 => [op!(_mm256_srli_epi16::<4>(a)), op!(_mm256_srli_epi16::<4>(b))],
                    2 => [op!(_mm256_srli_epi16::<8>(a)), op!(_mm256_srli_epi16::<8>(b))],
                    _ => return [op!(_mm256_srli_epi16::<12>(a)), op!(_mm256_srli_epi16::<12>(b))],
                };
                [op!(_mm256_and_si256(a, mask)), op!(_mm256_and_si256(b, mask))]
            }

            #[inline(always)]
            fn widen_bytes_64(self, bytes: [__m256i; 2], part: usize) -> [__m256i; 2] {
                let [a, b] = bytes;
                let [a, b] = if part == 0 {
                    [op!(_mm256_slli_epi16::<8>(a)), op!(_mm256_slli_epi16::<8>(b))]
                } else {
                    let mask = op!(_mm256_set1_epi16(-256));
                    [op!(_mm256_and_si256(a, mask)), op!(_mm256_and_si256(b, mask))]
                };
                [op!(_mm256_srai_epi16::<2>(a)), op!(_mm256_srai_epi16::<2>(b))]
            }

            #[inline(always)]
            fn widen_nibbles_64(self, bytes: [__m256i; 2], part: usize) -> [__m256i; 2] {
                let mask = op!(_mm256_set1_epi16(15 << 6));
                let [a, b] = bytes;
                let [a, b] = match part {
                    0 => [op!(_mm256_slli_epi16::<6>(a)), op!(_mm256_slli_epi16::<6>(b))],
                    1 => [op!(_mm256_slli_epi16::<2>(a)), op!(_mm256_slli_epi16::<2>(b))],
                    2 => [op!(_mm256_srli_epi16::<2>(a)), op!(_mm256_srli_epi16::<2>(b))],
                    _ => [op!(_mm256_srli_epi16::<6>(a)), op!(_mm256_srli_epi16::<6>(b))],
                };
                [op!(_mm256_and_si256(a, mask)), op!(_mm256_and_si256(b, mask))]
            }

            #[inline(always)]
            fn high_halves(self, bytes: [__m256i; 2]) -> [__m256i; 2] {
                let mask = op!(_mm256_set1_epi8(15));
                let [a, b] = [op!(_mm256_srli_epi16::<4>(bytes[0])), op!(_mm256_srli_epi16::<4>(bytes[1]))];
                [op!(_mm256_and_si256(a, mask)), op!(_mm256_and_si256(b, mask))]
            }

            #[inline(always)]
            fn dot_small(self, acc: [__m256i; 2], codes: [__m256i; 2], x: [__m256i; 2]) -> [__m256i; 2] {
                // Two products are at most `2 * 255 * 64`.
                let ones = op!(_mm256_set1_epi16(1));
                let [a, b] = [op!(_mm256_maddubs_epi16(codes[0], x[0])), op!(_mm256_maddubs_epi16(codes[1], x[1]))];
                self.add_ints(acc, [op!(_mm256_madd_epi16(a, ones)), op!(_mm256_madd_epi16(b, ones))])
            }

            #[inline(always)]
            fn add_fours(self, sums: [[__m256i; 2]; 4]) -> [__m256i; 2] {
                op!(fours(sums))
            }
        })*
    };
}

code_lanes!(Avx2, AvxVnni);
