//! Float operations on sixteen lanes.

use std::arch::x86_64::*;

use super::load;
use crate::kernels::Element;
use crate::kernels::floats::{FloatLanes, Streaming};
use trike_host::isa::Avx512;

impl FloatLanes for Avx512 {
    type Lanes = __m512;
    const LANES: usize = 16;

    #[inline(always)]
    fn splat_lanes(self, value: f32) -> __m512 {
        enter!(_mm512_set1_ps(value))
    }

    #[inline(always)]
    fn load_lanes<E: Element, const N: usize>(self, from: &[E; N], at: usize) -> __m512 {
        let chunk = from[at..].first_chunk().expect("a whole vector");
        enter!(load(chunk))
    }

    #[inline(always)]
    fn store_lanes<const N: usize>(self, to: &mut [f32; N], at: usize, lanes: __m512) {
        let chunk: &mut [f32; 16] = to[at..].first_chunk_mut().expect("a whole vector");
        // SAFETY: the array has room for 16 f32, the store has no alignment requirement, and `Avx512::detect` creates
        // `self` only on a CPU with AVX-512 F.
        unsafe { _mm512_storeu_ps(chunk.as_mut_ptr(), lanes) };
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
    fn fold_lanes(self, lanes: [__m512; 4]) -> [f32; 4] {
        enter!(fold_four(lanes))
    }
}

impl Streaming for Avx512 {
    // 24 sums, 4 weights and 1 activation in 32 registers.
    const SIDE_TOKENS: usize = 6;

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

/// The folds of four vectors at once: the same additions as one at a time, in a third of the instructions.
#[inline]
#[target_feature(enable = "avx512f")]
fn fold_four(v: [__m512; 4]) -> [f32; 4] {
    // Add halves, then quarters (128 bits), so that quarter `r` holds the partial sums of vector `r`.
    let halves = |a, b| _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xEE>(a, b));
    let (a, b) = (halves(v[0], v[1]), halves(v[2], v[3]));
    let v4 = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xDD>(a, b));
    let v2 = _mm512_add_ps(v4, _mm512_permute_ps::<0x4E>(v4));
    let v1 = _mm512_add_ps(v2, _mm512_permute_ps::<0xB1>(v2));
    let firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    let sums = _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, v1));
    let mut out = [0.0; 4];
    // SAFETY: the array has room for four f32, and the store has no alignment requirement.
    unsafe { _mm_storeu_ps(out.as_mut_ptr(), sums) };
    out
}
