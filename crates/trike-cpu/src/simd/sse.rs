//! Four 128-bit registers for sixteen rows: SSSE3 provides `pmaddubsw`, SSE4.1 the 32-bit product.
//!
//! The i16 sums are those of the AVX2 kernel, at most seven lines.

use std::arch::x86_64::*;

use half::f16;

use super::Simd;
use crate::line::{CodeLine, FloatLine, IntLine};
use trike_host::isa::Sse41;

/// Calls an intrinsic.
macro_rules! op {
    ($call:expr) => {
        // SAFETY: `Sse41::detect` creates `self` only on a CPU with SSSE3 and SSE4.1.
        unsafe { $call }
    };
}

/// The expression for all quarters. Not a closure, which would be a separate function without the target features.
macro_rules! quarters {
    ($quarter:ident => $call:expr) => {
        [
            {
                let $quarter = 0;
                $call
            },
            {
                let $quarter = 1;
                $call
            },
            {
                let $quarter = 2;
                $call
            },
            {
                let $quarter = 3;
                $call
            },
        ]
    };
}

impl Simd for Sse41 {
    type Bytes = [__m128i; 4];
    type Fields = [[__m128i; 4]; 4];
    type Sums = [[__m128i; 4]; 2];
    type Acc = [__m128i; 4];
    type Ints = [__m128i; 4];
    type Floats = [__m128; 4];

    const LINES: usize = 4;
    const TWO_STEPS: bool = false;
    const THREE_ROWS: bool = false;
    const TILES: usize = 1;
    const TOKENS: &'static [usize] = &[2, 1];
    const PAIR_SUMS: usize = 2;

    #[inline(always)]
    fn load(self, line: &CodeLine) -> [__m128i; 4] {
        let quarters = line.0.as_chunks::<16>().0;
        // SAFETY: a quarter of a line is 16 readable bytes, aligned to 16 by the type of the line.
        quarters!(q => unsafe { _mm_load_si128(quarters[q].as_ptr().cast()) })
    }

    #[inline(always)]
    fn store(self, bytes: [__m128i; 4], line: &mut CodeLine) {
        for (quarter, bytes) in line.0.as_chunks_mut::<16>().0.iter_mut().zip(bytes) {
            // SAFETY: a quarter of a line is 16 writable bytes, aligned to 16 by the type of the line.
            unsafe { _mm_store_si128(quarter.as_mut_ptr().cast(), bytes) };
        }
    }

    #[inline(always)]
    fn prefetch<T>(self, place: &T, bytes: usize) {
        let ahead = std::ptr::from_ref(place).wrapping_byte_add(bytes);
        op!(_mm_prefetch::<_MM_HINT_T0>(ahead.cast()));
    }

    #[inline(always)]
    fn fields(self, line: [__m128i; 4]) -> [[__m128i; 4]; 4] {
        let (first, second) = (self.splat_byte(3), self.splat_byte(12));
        let upper = quarters!(q => op!(_mm_srli_epi16::<4>(line[q])));
        [
            self.and_bytes(line, first),
            self.and_bytes(line, second),
            self.and_bytes(upper, first),
            self.and_bytes(upper, second),
        ]
    }

    #[inline(always)]
    fn no_sums(self) -> [[__m128i; 4]; 2] {
        [self.no_acc(); 2]
    }

    #[inline(always)]
    fn line(self, mut sums: [[__m128i; 4]; 2], fields: [[__m128i; 4]; 4], x: &[i8; 16]) -> [[__m128i; 4]; 2] {
        let x = x.as_chunks().0;
        for f in 0..4 {
            sums[f % 2] = self.dot(sums[f % 2], fields[f], self.four(x[f]));
        }
        sums
    }

    #[inline(always)]
    fn finish(self, sums: [[__m128i; 4]; 2]) -> [__m128i; 4] {
        // Every summand of the second sum is a multiple of four, so the shift is exact.
        let second = self.to_ints(sums[1]);
        self.add_ints(self.to_ints(sums[0]), quarters!(q => op!(_mm_srai_epi32::<2>(second[q]))))
    }

    #[inline(always)]
    fn unpack(self, line: [__m128i; 4]) -> [[__m128i; 4]; 4] {
        let mask = self.splat_byte(3);
        [
            self.and_bytes(line, mask),
            self.and_bytes(quarters!(q => op!(_mm_srli_epi16::<2>(line[q]))), mask),
            self.and_bytes(quarters!(q => op!(_mm_srli_epi16::<4>(line[q]))), mask),
            self.and_bytes(quarters!(q => op!(_mm_srli_epi16::<6>(line[q]))), mask),
        ]
    }

    #[inline(always)]
    fn fold(self, high: [__m128i; 4], low: [__m128i; 4]) -> [__m128i; 4] {
        quarters!(q => {
            let twice = op!(_mm_add_epi8(high[q], high[q]));
            let thrice = op!(_mm_add_epi8(twice, high[q]));
            op!(_mm_add_epi8(thrice, low[q]))
        })
    }

    #[inline(always)]
    fn sub_bytes(self, a: [__m128i; 4], b: [__m128i; 4]) -> [__m128i; 4] {
        quarters!(q => op!(_mm_sub_epi8(a[q], b[q])))
    }

    #[inline(always)]
    fn min_bytes(self, a: [__m128i; 4], b: [__m128i; 4]) -> [__m128i; 4] {
        quarters!(q => op!(_mm_min_epu8(a[q], b[q])))
    }

    #[inline(always)]
    fn and_bytes(self, a: [__m128i; 4], b: [__m128i; 4]) -> [__m128i; 4] {
        quarters!(q => op!(_mm_and_si128(a[q], b[q])))
    }

    #[inline(always)]
    fn splat_byte(self, value: u8) -> [__m128i; 4] {
        [op!(_mm_set1_epi8(value.cast_signed())); 4]
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], index: [__m128i; 4]) -> [__m128i; 4] {
        // SAFETY: the array is 16 readable bytes, and the load has no alignment requirement.
        let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
        quarters!(q => op!(_mm_shuffle_epi8(table, index[q])))
    }

    #[inline(always)]
    fn four(self, x: [i8; 4]) -> [__m128i; 4] {
        [op!(_mm_set1_epi32(bytemuck::cast(x))); 4]
    }

    #[inline(always)]
    fn steps(largest: u8) -> usize {
        // Two products per i16; at least one step for the maximum of 80 of four folded planes.
        (i16::MAX as usize / (2 * 128 * usize::from(largest).max(1))).max(1)
    }

    #[inline(always)]
    fn no_acc(self) -> [__m128i; 4] {
        [op!(_mm_setzero_si128()); 4]
    }

    #[inline(always)]
    fn dot(self, acc: [__m128i; 4], codes: [__m128i; 4], x: [__m128i; 4]) -> [__m128i; 4] {
        quarters!(q => {
            let products = op!(_mm_maddubs_epi16(codes[q], x[q]));
            op!(_mm_add_epi16(acc[q], products))
        })
    }

    #[inline(always)]
    fn to_ints(self, acc: [__m128i; 4]) -> [__m128i; 4] {
        let ones = op!(_mm_set1_epi16(1));
        quarters!(q => op!(_mm_madd_epi16(acc[q], ones)))
    }

    #[inline(always)]
    fn splat_int(self, value: i32) -> [__m128i; 4] {
        [op!(_mm_set1_epi32(value)); 4]
    }

    #[inline(always)]
    fn add_ints(self, a: [__m128i; 4], b: [__m128i; 4]) -> [__m128i; 4] {
        quarters!(q => op!(_mm_add_epi32(a[q], b[q])))
    }

    #[inline(always)]
    fn scale_add(self, a: [__m128i; 4], factor: i32, b: [__m128i; 4]) -> [__m128i; 4] {
        let factor = op!(_mm_set1_epi32(factor));
        let product = quarters!(q => op!(_mm_mullo_epi32(a[q], factor)));
        self.add_ints(product, b)
    }

    #[inline(always)]
    fn dot_pairs(self, acc: [__m128i; 4], a: [__m128i; 4], b: [__m128i; 4]) -> [__m128i; 4] {
        quarters!(q => {
            let products = op!(_mm_madd_epi16(a[q], b[q]));
            op!(_mm_add_epi32(acc[q], products))
        })
    }

    #[inline(always)]
    fn load_pairs(self, line: &CodeLine, half: usize) -> [__m128i; 4] {
        let eighths = line.0.as_chunks::<8>().0;
        // SAFETY: an eighth of a line is eight readable bytes, and the load has no alignment requirement.
        let bytes = quarters!(q => unsafe { _mm_loadl_epi64(eighths[4 * half + q].as_ptr().cast()) });
        quarters!(q => op!(_mm_cvtepi8_epi16(bytes[q])))
    }

    #[inline(always)]
    fn load_ints(self, line: &IntLine) -> [__m128i; 4] {
        let quarters = line.0.as_chunks::<4>().0;
        // SAFETY: a quarter of a line is 16 readable bytes, aligned to 16 by the type of the line.
        quarters!(q => unsafe { _mm_load_si128(quarters[q].as_ptr().cast()) })
    }

    #[inline(always)]
    fn store_ints(self, ints: [__m128i; 4], line: &mut IntLine) {
        for (quarter, ints) in line.0.as_chunks_mut::<4>().0.iter_mut().zip(ints) {
            // SAFETY: a quarter of a line is 16 writable bytes, aligned to 16 by the type of the line.
            unsafe { _mm_store_si128(quarter.as_mut_ptr().cast(), ints) };
        }
    }

    #[inline(always)]
    fn to_floats(self, ints: [__m128i; 4]) -> [__m128; 4] {
        quarters!(q => op!(_mm_cvtepi32_ps(ints[q])))
    }

    #[inline(always)]
    fn splat(self, value: f32) -> [__m128; 4] {
        [op!(_mm_set1_ps(value)); 4]
    }

    #[inline(always)]
    fn mul(self, a: [__m128; 4], b: [__m128; 4]) -> [__m128; 4] {
        quarters!(q => op!(_mm_mul_ps(a[q], b[q])))
    }

    #[inline(always)]
    fn add(self, a: [__m128; 4], b: [__m128; 4]) -> [__m128; 4] {
        quarters!(q => op!(_mm_add_ps(a[q], b[q])))
    }

    #[inline(always)]
    fn round(self, floats: [__m128; 4]) -> [__m128i; 4] {
        quarters!(q => op!(_mm_cvtps_epi32(floats[q])))
    }

    #[inline(always)]
    fn load_any(self, floats: &[f32; 16]) -> [__m128; 4] {
        let parts = floats.as_chunks::<4>().0;
        // SAFETY: the array is four readable f32, and the load has no alignment requirement.
        quarters!(q => unsafe { _mm_loadu_ps(parts[q].as_ptr()) })
    }

    #[inline(always)]
    fn load_halves(self, halves: &[f16; 16]) -> [__m128; 4] {
        self.load_any(&halves.map(f16::to_f32))
    }

    #[inline(always)]
    fn load_floats(self, line: &FloatLine) -> [__m128; 4] {
        let quarters = line.0.as_chunks::<4>().0;
        // SAFETY: a quarter of a line is 16 readable bytes, aligned to 16 by the type of the line.
        quarters!(q => unsafe { _mm_load_ps(quarters[q].as_ptr()) })
    }

    #[inline(always)]
    fn store_floats(self, floats: [__m128; 4], line: &mut FloatLine) {
        for (quarter, floats) in line.0.as_chunks_mut::<4>().0.iter_mut().zip(floats) {
            // SAFETY: a quarter of a line is 16 writable bytes, aligned to 16 by the type of the line.
            unsafe { _mm_store_ps(quarter.as_mut_ptr(), floats) };
        }
    }
}
