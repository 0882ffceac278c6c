//! Loops that reach for the ceilings of the machine.

use std::arch::x86_64::*;
use std::hint::black_box;

use crate::isa::Avx2;
use crate::kernels::streams;
use crate::probe::WordLine;

impl Avx2 {
    pub(super) fn peak_wide(self, steps: u64) {
        enter!(peak_wide(steps));
    }

    pub(super) fn peak_merged(self, steps: u64) {
        enter!(peak_merged(steps));
    }
}

/// What int8 weights of any size need: every product pair is widened at once.
#[target_feature(enable = "avx2")]
fn peak_wide(steps: u64) {
    let (w, ones) = (black_box(_mm256_set1_epi8(2)), black_box(_mm256_set1_epi16(1)));
    let x = _mm256_set1_epi8(3);
    let mut acc = [_mm256_setzero_si256(); 8];
    for _ in 0..steps {
        for acc in &mut acc {
            // Read anew each time, so that the product cannot be moved out of the loop.
            let x = black_box(&x);
            *acc = _mm256_add_epi32(*acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, *x), ones));
        }
    }
    black_box(acc);
}

/// What ternary weights allow: four product pairs fit an i16 before they are widened.
#[target_feature(enable = "avx2")]
fn peak_merged(steps: u64) {
    let (w, ones) = (black_box(_mm256_set1_epi8(2)), black_box(_mm256_set1_epi16(1)));
    let x = black_box([_mm256_set1_epi8(3); 4]);
    let mut acc = [_mm256_setzero_si256(); 4];
    for _ in 0..steps {
        for acc in &mut acc {
            let x = black_box(&x);
            let low = _mm256_add_epi16(_mm256_maddubs_epi16(w, x[0]), _mm256_maddubs_epi16(w, x[1]));
            let high = _mm256_add_epi16(_mm256_maddubs_epi16(w, x[2]), _mm256_maddubs_epi16(w, x[3]));
            *acc = _mm256_add_epi32(*acc, _mm256_madd_epi16(_mm256_add_epi16(low, high), ones));
        }
    }
    black_box(acc);
}

#[target_feature(enable = "avx2")]
pub(super) fn read<const S: usize>(lines: &[WordLine], ahead: usize) -> u64 {
    let (streams, len) = streams::<S>(lines);
    let mut acc = [_mm256_setzero_si256(); S];
    for i in 0..len {
        for s in 0..S {
            let line = &streams[s][i];
            if ahead > 0 {
                _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(line).wrapping_add(ahead).cast());
            }
            for half in line.0.as_chunks::<4>().0 {
                // SAFETY: the half is 32 readable bytes, and the load takes any alignment.
                let words = unsafe { _mm256_loadu_si256(half.as_ptr().cast()) };
                acc[s] = _mm256_add_epi64(acc[s], words);
            }
        }
    }
    let mut sum = _mm256_setzero_si256();
    for acc in acc {
        sum = _mm256_add_epi64(sum, acc);
    }
    let pair = _mm_add_epi64(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
    (_mm_cvtsi128_si64(pair) as u64).wrapping_add(_mm_extract_epi64::<1>(pair) as u64)
}
