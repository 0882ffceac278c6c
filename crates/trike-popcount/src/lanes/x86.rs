//! Lanes of 256 and 512 bits.

use std::arch::x86_64::*;

use super::Lanes;
use trike_host::{
    Loop,
    isa::{Avx2, Avx512},
};

/// AVX2, which has no population count instruction: set bits are counted with a lookup per nibble.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nibbles(());

impl Nibbles {
    pub(crate) fn of_avx2(_: Avx2) -> Self {
        Self(())
    }

    /// [`Avx512`] includes everything in [`Avx2`].
    pub(crate) fn of_avx512(_: Avx512) -> Self {
        Self(())
    }
}

/// [`Avx512`] with VPOPCNTDQ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512Popcnt(());

impl Avx512Popcnt {
    #[inline]
    pub(crate) fn detect(_: Avx512) -> Option<Self> {
        is_x86_feature_detected!("avx512vpopcntdq").then_some(Self(()))
    }
}

/// Calls a function with target features from a method of a token.
macro_rules! with_token {
    ($call:expr) => {
        // SAFETY: `self` exists, and the tokens in this file are only made from an `Avx2` or `Avx512` token (and, for
        // `Avx512Popcnt`, after detecting VPOPCNTDQ), so the CPU has every feature that the callee is compiled for.
        unsafe { $call }
    };
}

impl Lanes for Nibbles {
    type Bits = __m256i;
    type Tally = __m256i;
    const WORDS: usize = 4;
    const MANY_REGISTERS: bool = false;

    #[inline(always)]
    fn run<L: Loop>(self, task: L) -> L::Output {
        with_token!(run_256(task))
    }

    #[inline(always)]
    fn load(self, words: &[u64]) -> __m256i {
        if let Some(words) = words.first_chunk::<4>() {
            return with_token!(load_256(words));
        }
        let mut padded = [0; 4];
        padded[..words.len()].copy_from_slice(words);
        with_token!(load_256(&padded))
    }

    #[inline(always)]
    fn store(self, bits: __m256i, words: &mut [u64]) {
        if let Some(words) = words.first_chunk_mut::<4>() {
            return with_token!(store_256(bits, words));
        }
        let mut padded = [0; 4];
        with_token!(store_256(bits, &mut padded));
        words.copy_from_slice(&padded[..words.len()]);
    }

    #[inline(always)]
    fn splat(self, word: u64) -> __m256i {
        with_token!(_mm256_set1_epi64x(word as i64))
    }

    #[inline(always)]
    fn and(self, a: __m256i, b: __m256i) -> __m256i {
        with_token!(_mm256_and_si256(a, b))
    }

    #[inline(always)]
    fn or(self, a: __m256i, b: __m256i) -> __m256i {
        with_token!(_mm256_or_si256(a, b))
    }

    #[inline(always)]
    fn xor(self, a: __m256i, b: __m256i) -> __m256i {
        with_token!(_mm256_xor_si256(a, b))
    }

    #[inline(always)]
    fn and_not(self, a: __m256i, b: __m256i) -> __m256i {
        with_token!(_mm256_andnot_si256(b, a))
    }

    #[inline(always)]
    fn none(self) -> __m256i {
        with_token!(_mm256_setzero_si256())
    }

    #[inline(always)]
    fn tally(self, tally: __m256i, bits: __m256i) -> __m256i {
        with_token!(tally_256(tally, bits))
    }

    #[inline(always)]
    fn less(self, a: __m256i, b: __m256i) -> __m256i {
        with_token!(_mm256_sub_epi64(a, b))
    }

    #[inline(always)]
    fn total(self, tally: __m256i) -> i64 {
        with_token!(total_256(tally))
    }

    #[inline(always)]
    fn prefetch(self, words: &[u64], ahead: usize) {
        prefetch(words, ahead);
    }
}

impl Lanes for Avx512Popcnt {
    type Bits = __m512i;
    type Tally = __m512i;
    const WORDS: usize = 8;
    const MANY_REGISTERS: bool = true;

    #[inline(always)]
    fn run<L: Loop>(self, task: L) -> L::Output {
        with_token!(run_512(task))
    }

    #[inline(always)]
    fn load(self, words: &[u64]) -> __m512i {
        match words.first_chunk::<8>() {
            Some(words) => with_token!(load_512(words)),
            None => with_token!(load_some_512(words)),
        }
    }

    #[inline(always)]
    fn store(self, bits: __m512i, words: &mut [u64]) {
        match words.first_chunk_mut::<8>() {
            Some(words) => with_token!(store_512(bits, words)),
            None => with_token!(store_some_512(bits, words)),
        }
    }

    #[inline(always)]
    fn splat(self, word: u64) -> __m512i {
        with_token!(_mm512_set1_epi64(word as i64))
    }

    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        with_token!(_mm512_and_si512(a, b))
    }

    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        with_token!(_mm512_or_si512(a, b))
    }

    #[inline(always)]
    fn xor(self, a: __m512i, b: __m512i) -> __m512i {
        with_token!(_mm512_xor_si512(a, b))
    }

    #[inline(always)]
    fn and_not(self, a: __m512i, b: __m512i) -> __m512i {
        with_token!(_mm512_andnot_si512(b, a))
    }

    #[inline(always)]
    fn none(self) -> __m512i {
        with_token!(_mm512_setzero_si512())
    }

    #[inline(always)]
    fn tally(self, tally: __m512i, bits: __m512i) -> __m512i {
        with_token!(tally_512(tally, bits))
    }

    #[inline(always)]
    fn less(self, a: __m512i, b: __m512i) -> __m512i {
        with_token!(_mm512_sub_epi64(a, b))
    }

    #[inline(always)]
    fn total(self, tally: __m512i) -> i64 {
        with_token!(_mm512_reduce_add_epi64(tally))
    }

    #[inline(always)]
    fn prefetch(self, words: &[u64], ahead: usize) {
        prefetch(words, ahead);
    }

    #[inline(always)]
    fn add3(self, a: __m512i, b: __m512i, c: __m512i) -> (__m512i, __m512i) {
        with_token!(add3_512(a, b, c))
    }
}

#[target_feature(enable = "avx2")]
fn run_256<L: Loop>(task: L) -> L::Output {
    task.run()
}

#[target_feature(enable = "avx2,avx512f,avx512vpopcntdq")]
fn run_512<L: Loop>(task: L) -> L::Output {
    task.run()
}

#[inline(always)]
fn prefetch(words: &[u64], ahead: usize) {
    let ahead = words.as_ptr().wrapping_add(ahead);
    // SAFETY: every x86-64 CPU has the instruction, and prefetching an unmapped address has no effect.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(ahead.cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_256(words: &[u64; 4]) -> __m256i {
    // SAFETY: four words are 32 readable bytes; the instruction requires no alignment.
    unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store_256(bits: __m256i, words: &mut [u64; 4]) {
    // SAFETY: four words are 32 writable bytes; the instruction requires no alignment.
    unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), bits) }
}

/// A byte has at most 8 set bits, so the sum of the two lookups fits a byte; `vpsadbw` sums eight bytes into a u64.
#[inline]
#[target_feature(enable = "avx2")]
fn tally_256(tally: __m256i, bits: __m256i) -> __m256i {
    let ones = _mm256_setr_epi8(
        0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4, 0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4,
    );
    let nibble = _mm256_set1_epi8(15);
    let low = _mm256_shuffle_epi8(ones, _mm256_and_si256(bits, nibble));
    let high = _mm256_shuffle_epi8(ones, _mm256_and_si256(_mm256_srli_epi16::<4>(bits), nibble));
    let bytes = _mm256_add_epi8(low, high);
    _mm256_add_epi64(tally, _mm256_sad_epu8(bytes, _mm256_setzero_si256()))
}

#[inline]
#[target_feature(enable = "avx2")]
fn total_256(tally: __m256i) -> i64 {
    let two = _mm_add_epi64(_mm256_castsi256_si128(tally), _mm256_extracti128_si256::<1>(tally));
    _mm_cvtsi128_si64(_mm_add_epi64(two, _mm_unpackhi_epi64(two, two)))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_512(words: &[u64; 8]) -> __m512i {
    // SAFETY: eight words are 64 readable bytes; the instruction requires no alignment.
    unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_some_512(words: &[u64]) -> __m512i {
    // SAFETY: the mask selects as many words as the slice has, and the others are not read.
    unsafe { _mm512_maskz_loadu_epi64(first(words.len()), words.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_512(bits: __m512i, words: &mut [u64; 8]) {
    // SAFETY: eight words are 64 writable bytes; the instruction requires no alignment.
    unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), bits) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_some_512(bits: __m512i, words: &mut [u64]) {
    // SAFETY: the mask selects as many words as the slice has, and the others are not written.
    unsafe { _mm512_mask_storeu_epi64(words.as_mut_ptr().cast(), first(words.len()), bits) }
}

/// A mask of the first `n` of eight words; all eight if `n` is larger.
#[inline(always)]
fn first(n: usize) -> u8 {
    ((1u32 << n.min(8)) - 1) as u8
}

#[inline]
#[target_feature(enable = "avx512f,avx512vpopcntdq")]
fn tally_512(tally: __m512i, bits: __m512i) -> __m512i {
    _mm512_add_epi64(tally, _mm512_popcnt_epi64(bits))
}

/// Full adder by the truth tables of `a ^ b ^ c` and of the majority.
#[inline]
#[target_feature(enable = "avx512f")]
fn add3_512(a: __m512i, b: __m512i, c: __m512i) -> (__m512i, __m512i) {
    (_mm512_ternarylogic_epi64::<0x96>(a, b, c), _mm512_ternarylogic_epi64::<0xE8>(a, b, c))
}
