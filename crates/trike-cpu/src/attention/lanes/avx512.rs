//! Sixteen lanes.

use std::arch::x86_64::*;

use super::Lanes;
use crate::isa::Avx512;
use crate::kernels::Element;

/// Writes an operation of a token.
macro_rules! enter {
    ($call:expr) => {
        // SAFETY: `self` exists, and `Avx512::detect` makes one only where the processor has AVX-512 F.
        unsafe { $call }
    };
}

impl Lanes for Avx512 {
    type Vector = __m512;
    const LANES: usize = 16;

    #[inline(always)]
    fn splat_lanes(self, value: f32) -> __m512 {
        enter!(_mm512_set1_ps(value))
    }

    #[inline(always)]
    fn load_lanes<E: Element>(self, from: &[E; 16], at: usize) -> __m512 {
        debug_assert_eq!(at, 0, "one vector");
        enter!(E::load16(from))
    }

    #[inline(always)]
    fn store_lanes(self, to: &mut [f32; 16], at: usize, floats: __m512) {
        debug_assert_eq!(at, 0, "one vector");
        // SAFETY: the array has room for sixteen f32, the store takes any alignment, and `self` exists, which only
        // `Avx512::detect` makes where the processor has AVX-512 F.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), floats) };
    }

    #[inline(always)]
    fn mul_lanes(self, a: __m512, b: __m512) -> __m512 {
        enter!(_mm512_mul_ps(a, b))
    }

    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        enter!(_mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn fold_lanes(self, floats: [__m512; 4]) -> [f32; 4] {
        enter!(fold(floats))
    }

    #[inline(always)]
    fn transpose(self, square: &mut [[f32; 16]; 16]) {
        enter!(transpose(square));
    }
}

/// Four perfect shuffles: each sends row `i` and row `i + 8`, lane by lane in turn, to rows `2 i` and `2 i + 1`.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose(square: &mut [[f32; 16]; 16]) {
    let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    let high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    let mut rows = [_mm512_setzero_ps(); 16];
    for (row, from) in rows.iter_mut().zip(square.iter()) {
        // SAFETY: the row is sixteen readable f32, and the load takes any alignment.
        *row = unsafe { _mm512_loadu_ps(from.as_ptr()) };
    }
    for _ in 0..4 {
        let old = rows;
        for i in 0..8 {
            rows[2 * i] = _mm512_permutex2var_ps(old[i], low, old[i + 8]);
            rows[2 * i + 1] = _mm512_permutex2var_ps(old[i], high, old[i + 8]);
        }
    }
    for (to, row) in square.iter_mut().zip(rows) {
        // SAFETY: the row has room for sixteen f32, and the store takes any alignment.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), row) };
    }
}

/// Four folds side by side.
#[inline]
#[target_feature(enable = "avx512f,avx2")]
fn fold(v: [__m512; 4]) -> [f32; 4] {
    // Within each quarter: lane `i` becomes the sum of the quarter of vector `i`.
    let low = _mm512_add_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
    let high = _mm512_add_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
    let (low, high) = (_mm512_castps_pd(low), _mm512_castps_pd(high));
    let (even, odd) = (_mm512_unpacklo_pd(low, high), _mm512_unpackhi_pd(low, high));
    let quarters = _mm512_add_ps(_mm512_castpd_ps(even), _mm512_castpd_ps(odd));
    let upper = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(quarters)));
    let halves = _mm256_add_ps(_mm512_castps512_ps256(quarters), upper);
    let sums = _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps::<1>(halves));
    let mut out = [0.0; 4];
    // SAFETY: the array has room for four f32, and the store takes any alignment.
    unsafe { _mm_storeu_ps(out.as_mut_ptr(), sums) };
    out
}
