//! Float operations on eight lanes.

use std::arch::x86_64::*;

use super::load;
use crate::kernels::Element;
use crate::kernels::floats::{FloatLanes, Streaming};
use trike_host::isa::Avx2;

impl FloatLanes for Avx2 {
    type Lanes = __m256;
    const LANES: usize = 8;

    #[inline(always)]
    fn splat_lanes(self, value: f32) -> __m256 {
        enter!(_mm256_set1_ps(value))
    }

    #[inline(always)]
    fn load_lanes<E: Element, const N: usize>(self, from: &[E; N], at: usize) -> __m256 {
        let chunk = from[at..].first_chunk().expect("a whole vector");
        enter!(load(chunk))
    }

    #[inline(always)]
    fn store_lanes<const N: usize>(self, to: &mut [f32; N], at: usize, lanes: __m256) {
        let chunk: &mut [f32; 8] = to[at..].first_chunk_mut().expect("a whole vector");
        // SAFETY: the array has room for eight f32, the store has no alignment requirement, and `Avx2::detect` creates
        // `self` only on a CPU with AVX2.
        unsafe { _mm256_storeu_ps(chunk.as_mut_ptr(), lanes) };
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
    fn fold_lanes(self, lanes: [__m256; 4]) -> [f32; 4] {
        enter!(fold_four(lanes))
    }
}

impl Streaming for Avx2 {
    // 12 sums, 3 activations and 1 weight in 16 registers.
    const SIDE_TOKENS: usize = 3;

    #[inline(always)]
    fn prefetch_lanes<const FIRST: bool>(self, line: *const u8) {
        if FIRST {
            // SAFETY: a prefetch accepts any address and reads nothing; every x86-64 CPU has the instruction.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
        } else {
            // SAFETY: as above.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) };
        }
    }
}

/// The folds of four vectors at once: the same additions as one at a time, in fewer instructions.
#[inline]
#[target_feature(enable = "avx2")]
fn fold_four(v: [__m256; 4]) -> [f32; 4] {
    // Add the halves of each vector; then pairs within a half, so that each half holds two sums of two.
    let halves =
        |a, b| _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b));
    let (a, b) = (halves(v[0], v[1]), halves(v[2], v[3]));
    let v2 = _mm256_add_ps(_mm256_shuffle_ps::<0x44>(a, b), _mm256_shuffle_ps::<0xEE>(a, b));
    let v1 = _mm256_add_ps(v2, _mm256_permute_ps::<0xB1>(v2));
    let mut out = [0.0; 8];
    // SAFETY: the array has room for eight f32, and the store has no alignment requirement.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), v1) };
    // The lower half holds vectors 0 and 2, the upper one 1 and 3.
    [out[0], out[4], out[2], out[6]]
}
