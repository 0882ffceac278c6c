//! Two 256-bit registers for sixteen rows, with and without VNNI.
//!
//! Without VNNI, `vpmaddubsw` adds two products in an i16. A pair of 2-bit fields is used in place, as the code and
//! four times the code, so a line adds at most `2 * 2 * 128 * 2` to the sums of the first and four times that, `2^12`,
//! to those of the second: seven lines fit an i16.

use std::arch::x86_64::*;

use half::f16;

use super::Simd;
use crate::line::{CodeLine, FloatLine, IntLine};
use trike_host::isa::{Avx2, AvxVnni};

/// Calls an intrinsic.
macro_rules! op {
    ($call:expr) => {
        // SAFETY: `detect` creates `self` only on a CPU with AVX2, and for `AvxVnni` with AVX-VNNI.
        unsafe { $call }
    };
}

/// The expression for both halves. Not a closure, which would be a separate function without the target features.
macro_rules! halves {
    ($half:ident => $call:expr) => {
        [
            {
                let $half = 0;
                $call
            },
            {
                let $half = 1;
                $call
            },
        ]
    };
}

/// Operations that do not depend on the accumulation of products.
macro_rules! common {
    () => {
        type Bytes = [__m256i; 2];
        type Ints = [__m256i; 2];
        type Floats = [__m256; 2];

        #[inline(always)]
        fn load(self, line: &CodeLine) -> [__m256i; 2] {
            let halves = line.0.as_chunks::<32>().0;
            // SAFETY: half a line is 32 readable bytes, aligned to 32 by the type of the line; the token proves AVX.
            halves!(h => unsafe { _mm256_load_si256(halves[h].as_ptr().cast()) })
        }

        #[inline(always)]
        fn store(self, bytes: [__m256i; 2], line: &mut CodeLine) {
            for (half, bytes) in line.0.as_chunks_mut::<32>().0.iter_mut().zip(bytes) {
                // SAFETY: half a line is 32 writable bytes, aligned to 32 by the type of the line; the token proves AVX.
                unsafe { _mm256_store_si256(half.as_mut_ptr().cast(), bytes) };
            }
        }

        #[inline(always)]
        fn prefetch<T>(self, place: &T, bytes: usize) {
            let ahead = std::ptr::from_ref(place).wrapping_byte_add(bytes);
            op!(_mm_prefetch::<_MM_HINT_T0>(ahead.cast()));
        }

        #[inline(always)]
        fn unpack(self, line: [__m256i; 2]) -> [[__m256i; 2]; 4] {
            let mask = self.splat_byte(3);
            [
                self.and_bytes(line, mask),
                self.and_bytes(halves!(h => op!(_mm256_srli_epi16::<2>(line[h]))), mask),
                self.and_bytes(halves!(h => op!(_mm256_srli_epi16::<4>(line[h]))), mask),
                self.and_bytes(halves!(h => op!(_mm256_srli_epi16::<6>(line[h]))), mask),
            ]
        }

        #[inline(always)]
        fn fold(self, high: [__m256i; 2], low: [__m256i; 2]) -> [__m256i; 2] {
            let twice = halves!(h => op!(_mm256_add_epi8(high[h], high[h])));
            let thrice = halves!(h => op!(_mm256_add_epi8(twice[h], high[h])));
            halves!(h => op!(_mm256_add_epi8(thrice[h], low[h])))
        }

        #[inline(always)]
        fn sub_bytes(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
            halves!(h => op!(_mm256_sub_epi8(a[h], b[h])))
        }

        #[inline(always)]
        fn min_bytes(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
            halves!(h => op!(_mm256_min_epu8(a[h], b[h])))
        }

        #[inline(always)]
        fn and_bytes(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
            halves!(h => op!(_mm256_and_si256(a[h], b[h])))
        }

        #[inline(always)]
        fn splat_byte(self, value: u8) -> [__m256i; 2] {
            [op!(_mm256_set1_epi8(value.cast_signed())); 2]
        }

        #[inline(always)]
        fn lookup(self, table: &[u8; 16], index: [__m256i; 2]) -> [__m256i; 2] {
            // SAFETY: the array is 16 readable bytes, and the load has no alignment requirement.
            let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
            let table = op!(_mm256_broadcastsi128_si256(table));
            halves!(h => op!(_mm256_shuffle_epi8(table, index[h])))
        }

        #[inline(always)]
        fn four(self, x: [i8; 4]) -> [__m256i; 2] {
            [op!(_mm256_set1_epi32(bytemuck::cast(x))); 2]
        }

        #[inline(always)]
        fn splat_int(self, value: i32) -> [__m256i; 2] {
            [op!(_mm256_set1_epi32(value)); 2]
        }

        #[inline(always)]
        fn add_ints(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
            halves!(h => op!(_mm256_add_epi32(a[h], b[h])))
        }

        #[inline(always)]
        fn scale_add(self, a: [__m256i; 2], factor: i32, b: [__m256i; 2]) -> [__m256i; 2] {
            let factor = self.splat_int(factor);
            let product = halves!(h => op!(_mm256_mullo_epi32(a[h], factor[h])));
            self.add_ints(product, b)
        }

        #[inline(always)]
        fn load_pairs(self, line: &CodeLine, half: usize) -> [__m256i; 2] {
            let quarters = line.0.as_chunks::<16>().0;
            // SAFETY: a quarter of a line is 16 readable bytes, aligned to 16 by the type of the line; the token proves
            // AVX.
            let bytes = halves!(h => unsafe { _mm_load_si128(quarters[2 * half + h].as_ptr().cast()) });
            halves!(h => op!(_mm256_cvtepi8_epi16(bytes[h])))
        }

        #[inline(always)]
        fn load_ints(self, line: &IntLine) -> [__m256i; 2] {
            let halves = line.0.as_chunks::<8>().0;
            // SAFETY: half a line is 32 readable bytes, aligned to 32 by the type of the line; the token proves AVX.
            halves!(h => unsafe { _mm256_load_si256(halves[h].as_ptr().cast()) })
        }

        #[inline(always)]
        fn store_ints(self, ints: [__m256i; 2], line: &mut IntLine) {
            for (half, ints) in line.0.as_chunks_mut::<8>().0.iter_mut().zip(ints) {
                // SAFETY: half a line is 32 writable bytes, aligned to 32 by the type of the line; the token proves AVX.
                unsafe { _mm256_store_si256(half.as_mut_ptr().cast(), ints) };
            }
        }

        #[inline(always)]
        fn to_floats(self, ints: [__m256i; 2]) -> [__m256; 2] {
            halves!(h => op!(_mm256_cvtepi32_ps(ints[h])))
        }

        #[inline(always)]
        fn splat(self, value: f32) -> [__m256; 2] {
            [op!(_mm256_set1_ps(value)); 2]
        }

        #[inline(always)]
        fn mul(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            halves!(h => op!(_mm256_mul_ps(a[h], b[h])))
        }

        #[inline(always)]
        fn add(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            halves!(h => op!(_mm256_add_ps(a[h], b[h])))
        }

        #[inline(always)]
        fn round(self, floats: [__m256; 2]) -> [__m256i; 2] {
            halves!(h => op!(_mm256_cvtps_epi32(floats[h])))
        }

        #[inline(always)]
        fn load_any(self, floats: &[f32; 16]) -> [__m256; 2] {
            let parts = floats.as_chunks::<8>().0;
            // SAFETY: the array is eight readable f32, and the load has no alignment requirement; the token proves the
            // instruction.
            halves!(h => unsafe { _mm256_loadu_ps(parts[h].as_ptr()) })
        }

        #[inline(always)]
        fn load_halves(self, halves: &[f16; 16]) -> [__m256; 2] {
            let parts = halves.as_chunks::<8>().0;
            // SAFETY: the array is 16 readable bytes, and the load has no alignment requirement; the token proves the
            // instruction.
            let bits = halves!(h => unsafe { _mm_loadu_si128(parts[h].as_ptr().cast()) });
            halves!(h => op!(_mm256_cvtph_ps(bits[h])))
        }

        #[inline(always)]
        fn load_floats(self, line: &FloatLine) -> [__m256; 2] {
            let halves = line.0.as_chunks::<8>().0;
            // SAFETY: half a line is 32 readable bytes, aligned to 32 by the type of the line; the token proves AVX.
            halves!(h => unsafe { _mm256_load_ps(halves[h].as_ptr()) })
        }

        #[inline(always)]
        fn store_floats(self, floats: [__m256; 2], line: &mut FloatLine) {
            for (half, floats) in line.0.as_chunks_mut::<8>().0.iter_mut().zip(floats) {
                // SAFETY: half a line is 32 writable bytes, aligned to 32 by the type of the line; the token proves AVX.
                unsafe { _mm256_store_ps(half.as_mut_ptr(), floats) };
            }
        }
    };
}

impl Simd for Avx2 {
    /// Code and four times the code, for the lower two fields, then for the upper two.
    type Fields = [[__m256i; 2]; 4];
    /// i16 sums of the codes, and of four times the codes.
    type Sums = [[__m256i; 2]; 2];
    /// i16 sums.
    type Acc = [__m256i; 2];

    const LINES: usize = 4;
    const TILES: usize = 1;
    const TOKENS: &'static [usize] = &[4, 2, 1];
    const PAIR_SUMS: usize = 6;

    common!();

    #[inline(always)]
    fn fields(self, line: [__m256i; 2]) -> [[__m256i; 2]; 4] {
        let (first, second) = (self.splat_byte(3), self.splat_byte(12));
        let upper = halves!(h => op!(_mm256_srli_epi16::<4>(line[h])));
        [
            self.and_bytes(line, first),
            self.and_bytes(line, second),
            self.and_bytes(upper, first),
            self.and_bytes(upper, second),
        ]
    }

    #[inline(always)]
    fn no_sums(self) -> [[__m256i; 2]; 2] {
        [self.no_acc(); 2]
    }

    #[inline(always)]
    fn line(self, mut sums: [[__m256i; 2]; 2], fields: [[__m256i; 2]; 4], x: &[i8; 16]) -> [[__m256i; 2]; 2] {
        let x = x.as_chunks().0;
        for f in 0..4 {
            sums[f % 2] = self.dot(sums[f % 2], fields[f], self.four(x[f]));
        }
        sums
    }

    #[inline(always)]
    fn finish(self, sums: [[__m256i; 2]; 2]) -> [__m256i; 2] {
        // Every summand of the second sum is a multiple of four, so the shift is exact.
        let second = self.to_ints(sums[1]);
        self.add_ints(self.to_ints(sums[0]), halves!(h => op!(_mm256_srai_epi32::<2>(second[h]))))
    }

    #[inline(always)]
    fn steps(largest: u8) -> usize {
        // Two products per i16; at least one step for the maximum of 80 of four folded planes.
        (i16::MAX as usize / (2 * 128 * usize::from(largest).max(1))).max(1)
    }

    #[inline(always)]
    fn no_acc(self) -> [__m256i; 2] {
        [op!(_mm256_setzero_si256()); 2]
    }

    #[inline(always)]
    fn dot(self, acc: [__m256i; 2], codes: [__m256i; 2], x: [__m256i; 2]) -> [__m256i; 2] {
        let products = halves!(h => op!(_mm256_maddubs_epi16(codes[h], x[h])));
        halves!(h => op!(_mm256_add_epi16(acc[h], products[h])))
    }

    #[inline(always)]
    fn to_ints(self, acc: [__m256i; 2]) -> [__m256i; 2] {
        let ones = op!(_mm256_set1_epi16(1));
        halves!(h => op!(_mm256_madd_epi16(acc[h], ones)))
    }

    #[inline(always)]
    fn dot_pairs(self, acc: [__m256i; 2], a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        let products = halves!(h => op!(_mm256_madd_epi16(a[h], b[h])));
        self.add_ints(acc, products)
    }
}

impl Simd for AvxVnni {
    type Fields = [[__m256i; 2]; 4];
    type Sums = [[__m256i; 2]; 4];
    type Acc = [__m256i; 2];

    /// As in the 512-bit kernel: at most `2^16` per line.
    const LINES: usize = 1 << 12;
    /// Sixteen sums would take all sixteen registers.
    const TWO_LINES: bool = false;
    const WIDE: bool = true;
    const TILES: usize = 1;
    const TOKENS: &'static [usize] = &[6, 4, 2, 1];
    const PAIR_SUMS: usize = 6;

    common!();

    #[inline(always)]
    fn fields(self, line: [__m256i; 2]) -> [[__m256i; 2]; 4] {
        [
            self.and_bytes(line, self.splat_byte(0x03)),
            self.and_bytes(line, self.splat_byte(0x0C)),
            self.and_bytes(line, self.splat_byte(0x30)),
            self.and_bytes(line, self.splat_byte(0xC0)),
        ]
    }

    #[inline(always)]
    fn no_sums(self) -> [[__m256i; 2]; 4] {
        [self.no_acc(); 4]
    }

    #[inline(always)]
    fn line(self, mut sums: [[__m256i; 2]; 4], fields: [[__m256i; 2]; 4], x: &[i8; 16]) -> [[__m256i; 2]; 4] {
        let x = x.as_chunks().0;
        for f in 0..4 {
            sums[f] = self.dot(sums[f], fields[f], self.four(x[f]));
        }
        sums
    }

    #[inline(always)]
    fn finish(self, s: [[__m256i; 2]; 4]) -> [__m256i; 2] {
        // Every summand of field f is a multiple of 4^f, so the shifts are exact.
        let low = self.add_ints(s[0], halves!(h => op!(_mm256_srai_epi32::<2>(s[1][h]))));
        let third = halves!(h => op!(_mm256_srai_epi32::<4>(s[2][h])));
        let fourth = halves!(h => op!(_mm256_srai_epi32::<6>(s[3][h])));
        self.add_ints(low, self.add_ints(third, fourth))
    }

    #[inline(always)]
    fn steps(_: u8) -> usize {
        // `4 * 255 * 128` per step.
        1 << 13
    }

    #[inline(always)]
    fn no_acc(self) -> [__m256i; 2] {
        [op!(_mm256_setzero_si256()); 2]
    }

    #[inline(always)]
    fn dot(self, acc: [__m256i; 2], codes: [__m256i; 2], x: [__m256i; 2]) -> [__m256i; 2] {
        [
            op!(_mm256_dpbusd_avx_epi32(acc[0], codes[0], x[0])),
            op!(_mm256_dpbusd_avx_epi32(acc[1], codes[1], x[1])),
        ]
    }

    #[inline(always)]
    fn to_ints(self, acc: [__m256i; 2]) -> [__m256i; 2] {
        acc
    }

    #[inline(always)]
    fn dot_pairs(self, acc: [__m256i; 2], a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        [op!(_mm256_dpwssd_avx_epi32(acc[0], a[0], b[0])), op!(_mm256_dpwssd_avx_epi32(acc[1], a[1], b[1]))]
    }
}
