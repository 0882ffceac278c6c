//! The measured loops with vector instructions.

use std::arch::x86_64::*;
use std::hint::black_box;

use super::{Loops, Peak, WordLine, streams};
use crate::isa::{Avx2, Avx512, AvxVnni, Scalar, Sse41};

/// Calls a function with target features from a method of a token.
macro_rules! enter {
    ($call:expr) => {
        // SAFETY: a token exists, and detection creates one only if the CPU has its instructions.
        unsafe { $call }
    };
}

impl Loops for Sse41 {
    fn read<const S: usize>(self, lines: &[WordLine], ahead: usize) -> u64 {
        Scalar::portable().read::<S>(lines, ahead)
    }

    fn peaks(self) -> &'static [Peak<Self>] {
        &[Peak { name: "4 pmaddubsw per pmaddwd", macs: 16 * 16, run: |_, steps| enter!(peak_sse(steps)) }]
    }
}

impl Loops for Avx2 {
    fn read<const S: usize>(self, lines: &[WordLine], ahead: usize) -> u64 {
        enter!(read_256::<S>(lines, ahead))
    }

    fn peaks(self) -> &'static [Peak<Self>] {
        &[
            Peak {
                name: "vpmaddubsw and vpmaddwd",
                macs: 8 * 32,
                run: |_, steps| enter!(peak_wide_256(steps)),
            },
            Peak {
                name: "4 vpmaddubsw per vpmaddwd",
                macs: 16 * 32,
                run: |_, steps| enter!(peak_merged_256(steps)),
            },
        ]
    }
}

impl Loops for AvxVnni {
    fn read<const S: usize>(self, lines: &[WordLine], ahead: usize) -> u64 {
        self.avx2().read::<S>(lines, ahead)
    }

    fn peaks(self) -> &'static [Peak<Self>] {
        &[Peak { name: "vpdpbusd, 256 bits", macs: 12 * 32, run: |_, steps| enter!(peak_avx_vnni(steps)) }]
    }
}

impl Loops for Avx512 {
    fn read<const S: usize>(self, lines: &[WordLine], ahead: usize) -> u64 {
        enter!(read_512::<S>(lines, ahead))
    }

    fn peaks(self) -> &'static [Peak<Self>] {
        &[
            Peak { name: "vpdpbusd, 512 bits", macs: 16 * 64, run: |_, steps| enter!(peak_vnni_512(steps)) },
            Peak { name: "vpdpbusd, 256 bits", macs: 16 * 32, run: |_, steps| enter!(peak_vnni_256(steps)) },
        ]
    }
}

/// Four sums of four products each: sixteen multiplying instructions per step.
#[target_feature(enable = "ssse3")]
fn peak_sse(steps: u64) {
    let (w, x) = (black_box(_mm_set1_epi8(2)), black_box(_mm_set1_epi8(3)));
    let ones = _mm_set1_epi16(1);
    let mut acc = [_mm_setzero_si128(); 4];
    for _ in 0..steps {
        for acc in &mut acc {
            let mut pairs = _mm_maddubs_epi16(w, x);
            for _ in 0..3 {
                pairs = _mm_add_epi16(pairs, _mm_maddubs_epi16(black_box(w), x));
            }
            *acc = _mm_add_epi32(*acc, _mm_madd_epi16(pairs, ones));
        }
    }
    black_box(acc);
}

/// As int8 weights of any magnitude require: every product pair is widened immediately.
#[target_feature(enable = "avx2")]
fn peak_wide_256(steps: u64) {
    let (w, ones) = (black_box(_mm256_set1_epi8(2)), black_box(_mm256_set1_epi16(1)));
    let x = _mm256_set1_epi8(3);
    let mut acc = [_mm256_setzero_si256(); 8];
    for _ in 0..steps {
        for acc in &mut acc {
            // Reloaded each time, so that the product cannot be hoisted out of the loop.
            let x = black_box(&x);
            *acc = _mm256_add_epi32(*acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, *x), ones));
        }
    }
    black_box(acc);
}

/// As ternary weights allow: four product pairs fit an i16 before they are widened.
#[target_feature(enable = "avx2")]
fn peak_merged_256(steps: u64) {
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
fn read_256<const S: usize>(lines: &[WordLine], ahead: usize) -> u64 {
    let (streams, len) = streams::<S>(lines);
    let mut acc = [_mm256_setzero_si256(); S];
    for i in 0..len {
        for (stream, acc) in streams.iter().zip(&mut acc) {
            let line = &stream[i];
            if ahead > 0 {
                _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(line).wrapping_add(ahead).cast());
            }
            for half in line.0.as_chunks::<4>().0 {
                // SAFETY: the half is 32 readable bytes, and the load takes any alignment.
                let words = unsafe { _mm256_loadu_si256(half.as_ptr().cast()) };
                *acc = _mm256_add_epi64(*acc, words);
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

/// Twelve independent sums: more than latency times throughput.
#[target_feature(enable = "avx2,avxvnni")]
fn peak_avx_vnni(steps: u64) {
    let (w, x) = (black_box(_mm256_set1_epi8(2)), black_box(_mm256_set1_epi8(3)));
    let mut acc = [_mm256_setzero_si256(); 12];
    for _ in 0..steps {
        for acc in &mut acc {
            *acc = _mm256_dpbusd_avx_epi32(*acc, w, x);
        }
    }
    black_box(acc);
}

/// Sixteen independent sums: more than latency times throughput.
#[target_feature(enable = "avx512f,avx512vnni")]
fn peak_vnni_512(steps: u64) {
    let (w, x) = (black_box(_mm512_set1_epi8(2)), black_box(_mm512_set1_epi8(3)));
    let mut acc = [_mm512_setzero_si512(); 16];
    for _ in 0..steps {
        for acc in &mut acc {
            *acc = _mm512_dpbusd_epi32(*acc, w, x);
        }
    }
    black_box(acc);
}

/// [`peak_vnni_512`] at half the width, for CPUs that split wide instructions or reduce their clock for them.
#[target_feature(enable = "avx512vl,avx512vnni")]
fn peak_vnni_256(steps: u64) {
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
fn read_512<const S: usize>(lines: &[WordLine], ahead: usize) -> u64 {
    let (streams, len) = streams::<S>(lines);
    let mut acc = [_mm512_setzero_si512(); S];
    for i in 0..len {
        for (stream, acc) in streams.iter().zip(&mut acc) {
            let line = &stream[i];
            if ahead > 0 {
                _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(line).wrapping_add(ahead).cast());
            }
            // SAFETY: a line is 64 readable bytes, aligned to 64 by its type.
            let words = unsafe { _mm512_load_si512(line.0.as_ptr().cast()) };
            *acc = _mm512_add_epi64(*acc, words);
        }
    }
    acc.iter().fold(0, |sum, acc| sum ^ _mm512_reduce_add_epi64(*acc) as u64)
}
