//! Loops that reach for the ceilings of the machine.

use std::arch::x86_64::*;
use std::hint::black_box;

use super::prefetch;
use crate::isa::Avx512;
use crate::kernels::streams;
use crate::probe::WordLine;

impl Avx512 {
    pub(super) fn peak_512(self, steps: u64) {
        enter!(peak_512(steps));
    }

    pub(super) fn peak_256(self, steps: u64) {
        enter!(peak_256(steps));
    }
}

/// Sixteen independent sums: more than latency times throughput.
#[target_feature(enable = "avx512f,avx512vnni")]
fn peak_512(steps: u64) {
    let (w, x) = (black_box(_mm512_set1_epi8(2)), black_box(_mm512_set1_epi8(3)));
    let mut acc = [_mm512_setzero_si512(); 16];
    for _ in 0..steps {
        for acc in &mut acc {
            *acc = _mm512_dpbusd_epi32(*acc, w, x);
        }
    }
    black_box(acc);
}

/// [`peak_512`] in half the width, for processors that split or slow down wide instructions.
#[target_feature(enable = "avx512vl,avx512vnni")]
fn peak_256(steps: u64) {
    let (w, x) = (black_box(_mm256_set1_epi8(2)), black_box(_mm256_set1_epi8(3)));
    let mut acc = [_mm256_setzero_si256(); 16];
    for _ in 0..steps {
        for acc in &mut acc {
            *acc = _mm256_dpbusd_epi32(*acc, w, x);
        }
    }
    black_box(acc);
}

#[target_feature(enable = "avx512f")]
pub(super) fn read<const S: usize>(lines: &[WordLine], ahead: usize) -> u64 {
    let (streams, len) = streams::<S>(lines);
    let mut acc = [_mm512_setzero_si512(); S];
    for i in 0..len {
        for s in 0..S {
            let line = &streams[s][i];
            if ahead > 0 {
                prefetch(line, ahead);
            }
            // SAFETY: a line is 64 readable bytes, aligned to 64 by its type.
            let words = unsafe { _mm512_load_si512(line.0.as_ptr().cast()) };
            acc[s] = _mm512_add_epi64(acc[s], words);
        }
    }
    acc.iter().fold(0, |sum, acc| sum ^ _mm512_reduce_add_epi64(*acc) as u64)
}
