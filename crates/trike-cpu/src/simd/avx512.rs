//! One 512-bit register for sixteen rows; `vpdpbusd` adds four products of a code and an activation to an i32.
//!
//! The 2-bit fields of a line are used in place: masked, field `f` is the code times `4^f`, and its sum is divided by
//! `4^f` at the end. A step adds at most `4 * 2 * 64 * 128 = 2^16`, so an i32 holds `2^15 - 1` lines.

use std::arch::asm;
use std::arch::x86_64::*;

use half::f16;

use super::Simd;
use crate::line::{CodeLine, FloatLine, IntLine};
use trike_host::isa::Avx512;

/// Calls an intrinsic.
macro_rules! op {
    ($call:expr) => {
        // SAFETY: `Avx512::detect` creates `self` only on a CPU with AVX-512 F, BW, VL and VNNI.
        unsafe { $call }
    };
}

/// `vpdpwssd`. For the intrinsic the compiler emits a product and a sum, and these sums compete with other products for ports.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn add_pairs(mut acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: one instruction on registers, of a feature that this function has.
    unsafe {
        asm!(
            "vpdpwssd {acc}, {a}, {b}",
            acc = inout(zmm_reg) acc,
            a = in(zmm_reg) a,
            b = in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    acc
}

impl Simd for Avx512 {
    type Bytes = __m512i;
    type Fields = [__m512i; 4];
    type Sums = [__m512i; 4];
    type Acc = __m512i;
    type Ints = __m512i;
    type Floats = __m512;

    const LINES: usize = 1 << 12;
    const WIDE: bool = true;
    const UNROLLED: usize = 16;
    /// 2 tiles by 12 tokens: 24 of the 32 registers hold sums.
    const TILES: usize = 2;
    const TOKENS: &'static [usize] = &[12, 8, 4, 2, 1];
    const PAIR_SUMS: usize = 24;

    #[inline(always)]
    fn load(self, line: &CodeLine) -> __m512i {
        // SAFETY: a line is 64 readable bytes, aligned to 64 by its type; the token proves the instruction.
        unsafe { _mm512_load_si512(line.0.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store(self, bytes: __m512i, line: &mut CodeLine) {
        // SAFETY: a line is 64 writable bytes, aligned to 64 by its type; the token proves the instruction.
        unsafe { _mm512_store_si512(line.0.as_mut_ptr().cast(), bytes) };
    }

    #[inline(always)]
    fn prefetch<T>(self, place: &T, bytes: usize) {
        let ahead = std::ptr::from_ref(place).wrapping_byte_add(bytes);
        op!(_mm_prefetch::<_MM_HINT_T0>(ahead.cast()));
    }

    #[inline(always)]
    fn fields(self, line: __m512i) -> [__m512i; 4] {
        [
            self.and_bytes(line, self.splat_byte(0x03)),
            self.and_bytes(line, self.splat_byte(0x0C)),
            self.and_bytes(line, self.splat_byte(0x30)),
            self.and_bytes(line, self.splat_byte(0xC0)),
        ]
    }

    #[inline(always)]
    fn no_sums(self) -> [__m512i; 4] {
        [op!(_mm512_setzero_si512()); 4]
    }

    #[inline(always)]
    fn line(self, mut sums: [__m512i; 4], fields: [__m512i; 4], x: &[i8; 16]) -> [__m512i; 4] {
        let x = x.as_chunks().0;
        for f in 0..4 {
            sums[f] = self.dot(sums[f], fields[f], self.four(x[f]));
        }
        sums
    }

    #[inline(always)]
    fn finish(self, s: [__m512i; 4]) -> __m512i {
        // Every summand of field f is a multiple of 4^f, so the shifts are exact.
        let low = self.add_ints(s[0], op!(_mm512_srai_epi32::<2>(s[1])));
        let high = self.add_ints(op!(_mm512_srai_epi32::<4>(s[2])), op!(_mm512_srai_epi32::<6>(s[3])));
        self.add_ints(low, high)
    }

    #[inline(always)]
    fn unpack(self, line: __m512i) -> [__m512i; 4] {
        let mask = self.splat_byte(3);
        [
            self.and_bytes(line, mask),
            self.and_bytes(op!(_mm512_srli_epi16::<2>(line)), mask),
            self.and_bytes(op!(_mm512_srli_epi16::<4>(line)), mask),
            self.and_bytes(op!(_mm512_srli_epi16::<6>(line)), mask),
        ]
    }

    #[inline(always)]
    fn fold(self, high: __m512i, low: __m512i) -> __m512i {
        let twice = op!(_mm512_add_epi8(high, high));
        let thrice = op!(_mm512_add_epi8(twice, high));
        op!(_mm512_add_epi8(thrice, low))
    }

    #[inline(always)]
    fn sub_bytes(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_sub_epi8(a, b))
    }

    #[inline(always)]
    fn min_bytes(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_min_epu8(a, b))
    }

    #[inline(always)]
    fn and_bytes(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_and_si512(a, b))
    }

    #[inline(always)]
    fn splat_byte(self, value: u8) -> __m512i {
        op!(_mm512_set1_epi8(value.cast_signed()))
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], index: __m512i) -> __m512i {
        // SAFETY: the array is 16 readable bytes, and the load has no alignment requirement.
        let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
        let table = op!(_mm512_broadcast_i32x4(table));
        op!(_mm512_shuffle_epi8(table, index))
    }

    #[inline(always)]
    fn four(self, x: [i8; 4]) -> __m512i {
        op!(_mm512_set1_epi32(bytemuck::cast(x)))
    }

    #[inline(always)]
    fn steps(_: u8) -> usize {
        // `4 * 255 * 128` per step.
        1 << 13
    }

    #[inline(always)]
    fn no_acc(self) -> __m512i {
        op!(_mm512_setzero_si512())
    }

    #[inline(always)]
    fn dot(self, acc: __m512i, codes: __m512i, x: __m512i) -> __m512i {
        op!(_mm512_dpbusd_epi32(acc, codes, x))
    }

    #[inline(always)]
    fn to_ints(self, acc: __m512i) -> __m512i {
        acc
    }

    #[inline(always)]
    fn splat_int(self, value: i32) -> __m512i {
        op!(_mm512_set1_epi32(value))
    }

    #[inline(always)]
    fn add_ints(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_add_epi32(a, b))
    }

    #[inline(always)]
    fn scale_add(self, a: __m512i, factor: i32, b: __m512i) -> __m512i {
        self.add_ints(op!(_mm512_mullo_epi32(a, self.splat_int(factor))), b)
    }

    #[inline(always)]
    fn dot_pairs(self, acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
        op!(add_pairs(acc, a, b))
    }

    #[inline(always)]
    fn load_pairs(self, line: &CodeLine, half: usize) -> __m512i {
        let halves = line.0.as_chunks::<32>().0;
        // SAFETY: half a line is 32 readable bytes, aligned to 32 by the type of the line; the token proves AVX.
        let bytes = unsafe { _mm256_load_si256(halves[half].as_ptr().cast()) };
        op!(_mm512_cvtepi8_epi16(bytes))
    }

    #[inline(always)]
    fn load_ints(self, line: &IntLine) -> __m512i {
        // SAFETY: a line is 64 readable bytes, aligned to 64 by its type; the token proves the instruction.
        unsafe { _mm512_load_si512(line.0.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store_ints(self, ints: __m512i, line: &mut IntLine) {
        // SAFETY: a line is 64 writable bytes, aligned to 64 by its type; the token proves the instruction.
        unsafe { _mm512_store_si512(line.0.as_mut_ptr().cast(), ints) };
    }

    #[inline(always)]
    fn to_floats(self, ints: __m512i) -> __m512 {
        op!(_mm512_cvtepi32_ps(ints))
    }

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        op!(_mm512_set1_ps(value))
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_mul_ps(a, b))
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_add_ps(a, b))
    }

    #[inline(always)]
    fn round(self, floats: __m512) -> __m512i {
        op!(_mm512_cvtps_epi32(floats))
    }

    #[inline(always)]
    fn load_any(self, floats: &[f32; 16]) -> __m512 {
        // SAFETY: the array is 16 readable f32, and the load has no alignment requirement; the token proves the
        // instruction.
        unsafe { _mm512_loadu_ps(floats.as_ptr()) }
    }

    #[inline(always)]
    fn load_halves(self, halves: &[f16; 16]) -> __m512 {
        // SAFETY: the array is 32 readable bytes, and the load has no alignment requirement; the token proves the
        // instruction.
        let halves = unsafe { _mm256_loadu_si256(halves.as_ptr().cast()) };
        op!(_mm512_cvtph_ps(halves))
    }

    #[inline(always)]
    fn load_floats(self, line: &FloatLine) -> __m512 {
        // SAFETY: a line is 64 readable bytes, aligned to 64 by its type; the token proves the instruction.
        unsafe { _mm512_load_ps(line.0.as_ptr()) }
    }

    #[inline(always)]
    fn store_floats(self, floats: __m512, line: &mut FloatLine) {
        // SAFETY: a line is 64 writable bytes, aligned to 64 by its type; the token proves the instruction.
        unsafe { _mm512_store_ps(line.0.as_mut_ptr(), floats) };
    }
}
