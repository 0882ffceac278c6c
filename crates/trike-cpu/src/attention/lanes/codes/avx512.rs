//! One register of 512 bits.

use std::arch::x86_64::*;

use super::{CodeLanes, Four};
use crate::simd::Simd as _;
use trike_host::isa::Avx512;

/// Calls an intrinsic.
macro_rules! op {
    ($call:expr) => {
        // SAFETY: `Avx512::detect` creates `self` only on a CPU with AVX-512 F, BW, VL and VNNI.
        unsafe { $call }
    };
}

/// Sixteen bytes in each quarter of a register.
#[inline]
#[target_feature(enable = "avx512f")]
fn quarters(rows: Four<'_>) -> __m512i {
    let mut parts = [_mm_setzero_si128(); 4];
    for r in 0..4 {
        // SAFETY: the array is 16 readable bytes, and the load has no alignment requirement.
        parts[r] = unsafe { _mm_loadu_si128(rows[r].as_ptr().cast()) };
    }
    let two = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(parts[0]), parts[1]);
    _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(two, parts[2]), parts[3])
}

/// The bytes of four rows in the order of the columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn columns(rows: __m512i) -> __m512i {
    // First columns `4 q..4 q + 4` of all rows to quarter `q`, then the bytes of a column together.
    let order = _mm512_setr_epi32(0, 8, 4, 12, 1, 9, 5, 13, 2, 10, 6, 14, 3, 11, 7, 15);
    let bytes = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_shuffle_epi8(_mm512_permutexvar_epi32(order, rows), _mm512_broadcast_i32x4(bytes))
}

/// Sums of four neighbours of four registers.
#[inline]
#[target_feature(enable = "avx512f")]
fn fours(sums: [__m512i; 4]) -> __m512i {
    let twos = |a, b| _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let (a, b) = (twos(sums[0], sums[1]), twos(sums[2], sums[3]));
    _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b))
}

impl CodeLanes for Avx512 {
    #[inline(always)]
    fn load_rows(self, rows: Four<'_>) -> __m512i {
        op!(quarters(rows))
    }

    #[inline(always)]
    fn load_columns(self, rows: Four<'_>) -> __m512i {
        op!(columns(quarters(rows)))
    }

    #[inline(always)]
    fn widen_bytes(self, bytes: __m512i, part: usize) -> __m512i {
        let at_top = if part == 0 { op!(_mm512_slli_epi16::<8>(bytes)) } else { bytes };
        op!(_mm512_srai_epi16::<8>(at_top))
    }

    #[inline(always)]
    fn widen_nibbles(self, bytes: __m512i, part: usize) -> __m512i {
        let mask = op!(_mm512_set1_epi16(15));
        match part {
            0 => self.and_bytes(bytes, mask),
            1 => self.and_bytes(op!(_mm512_srli_epi16::<4>(bytes)), mask),
            2 => self.and_bytes(op!(_mm512_srli_epi16::<8>(bytes)), mask),
            _ => op!(_mm512_srli_epi16::<12>(bytes)),
        }
    }

    #[inline(always)]
    fn widen_bytes_64(self, bytes: __m512i, part: usize) -> __m512i {
        let at_top = if part == 0 {
            op!(_mm512_slli_epi16::<8>(bytes))
        } else {
            self.and_bytes(bytes, op!(_mm512_set1_epi16(-256)))
        };
        op!(_mm512_srai_epi16::<2>(at_top))
    }

    #[inline(always)]
    fn widen_nibbles_64(self, bytes: __m512i, part: usize) -> __m512i {
        let mask = op!(_mm512_set1_epi16(15 << 6));
        let shifted = match part {
            0 => op!(_mm512_slli_epi16::<6>(bytes)),
            1 => op!(_mm512_slli_epi16::<2>(bytes)),
            2 => op!(_mm512_srli_epi16::<2>(bytes)),
            _ => op!(_mm512_srli_epi16::<6>(bytes)),
        };
        self.and_bytes(shifted, mask)
    }

    #[inline(always)]
    fn high_halves(self, bytes: __m512i) -> __m512i {
        self.and_bytes(op!(_mm512_srli_epi16::<4>(bytes)), self.splat_byte(15))
    }

    #[inline(always)]
    fn dot_small(self, acc: __m512i, codes: __m512i, x: __m512i) -> __m512i {
        op!(_mm512_dpbusd_epi32(acc, codes, x))
    }

    #[inline(always)]
    fn add_fours(self, sums: [__m512i; 4]) -> __m512i {
        op!(fours(sums))
    }
}
