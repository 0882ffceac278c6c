//! Eight lanes.

use std::arch::x86_64::*;

use super::Lanes;
use crate::isa::Avx2;
use crate::kernels::Element;

/// Writes an operation of a token.
macro_rules! enter {
    ($call:expr) => {
        // SAFETY: `self` exists, and `Avx2::detect` makes one only where the processor has AVX2, FMA and F16C.
        unsafe { $call }
    };
}

impl Lanes for Avx2 {
    type Vector = __m256;
    const LANES: usize = 8;

    #[inline(always)]
    fn splat_lanes(self, value: f32) -> __m256 {
        enter!(_mm256_set1_ps(value))
    }

    #[inline(always)]
    fn load_lanes<E: Element>(self, from: &[E; 16], at: usize) -> __m256 {
        enter!(E::load8(&from.as_chunks::<8>().0[at / 8]))
    }

    #[inline(always)]
    fn store_lanes(self, to: &mut [f32; 16], at: usize, floats: __m256) {
        let half = &mut to.as_chunks_mut::<8>().0[at / 8];
        // SAFETY: the half has room for eight f32, the store takes any alignment, and `self` exists, which only
        // `Avx2::detect` makes where the processor has AVX2.
        unsafe { _mm256_storeu_ps(half.as_mut_ptr(), floats) };
    }

    #[inline(always)]
    fn mul_lanes(self, a: __m256, b: __m256) -> __m256 {
        enter!(_mm256_mul_ps(a, b))
    }

    #[inline(always)]
    fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        enter!(_mm256_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn fold_lanes(self, floats: [__m256; 4]) -> [f32; 4] {
        enter!(fold(floats))
    }
}

/// Four folds side by side.
#[inline]
#[target_feature(enable = "avx2")]
fn fold(v: [__m256; 4]) -> [f32; 4] {
    let pairs = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    let sums = _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps::<1>(pairs));
    let mut out = [0.0; 4];
    // SAFETY: the array has room for four f32, and the store takes any alignment.
    unsafe { _mm_storeu_ps(out.as_mut_ptr(), sums) };
    out
}
