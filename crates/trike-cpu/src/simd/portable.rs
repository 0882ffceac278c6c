//! Portable implementation on arrays: the specification, and the fallback.

use std::array::from_fn;

use half::f16;

use super::Simd;
use crate::line::{CodeLine, FloatLine, IntLine};
use trike_host::isa::Scalar;

impl Simd for Scalar {
    type Bytes = [u8; 64];
    type Fields = [u8; 64];
    type Sums = [i32; 16];
    type Acc = [i32; 16];
    type Ints = [i32; 16];
    type Floats = [f32; 16];

    /// `16 * 2 * 128` per line fits an i32 for `2^19` lines.
    const LINES: usize = 1 << 12;
    const WIDE: bool = true;
    /// On other architectures these are the only kernels.
    const THREE_ROWS: bool = cfg!(not(target_arch = "x86_64"));
    const TILES: usize = 1;
    const TOKENS: &'static [usize] = &[4, 1];
    const PAIR_SUMS: usize = 1;

    #[inline(always)]
    fn load(self, line: &CodeLine) -> [u8; 64] {
        line.0
    }

    #[inline(always)]
    fn store(self, bytes: [u8; 64], line: &mut CodeLine) {
        line.0 = bytes;
    }

    #[inline(always)]
    fn prefetch<T>(self, _: &T, _: usize) {
        // No portable prefetch.
    }

    #[inline(always)]
    fn fields(self, line: [u8; 64]) -> [u8; 64] {
        line
    }

    #[inline(always)]
    fn no_sums(self) -> [i32; 16] {
        [0; 16]
    }

    #[inline(always)]
    fn line(self, sums: [i32; 16], line: [u8; 64], x: &[i8; 16]) -> [i32; 16] {
        // At most `4 * 3 * 128` per byte. Sums of i16 vectorize even without byte instructions.
        let mut bytes = [0i16; 64];
        for field in 0..4 {
            for i in 0..64 {
                bytes[i] += i16::from((line[i] >> (2 * field)) & 3) * i16::from(x[4 * field + i % 4]);
            }
        }
        from_fn(|row| sums[row] + bytes[4 * row..4 * row + 4].iter().map(|&sum| i32::from(sum)).sum::<i32>())
    }

    #[inline(always)]
    fn finish(self, sums: [i32; 16]) -> [i32; 16] {
        sums
    }

    #[inline(always)]
    fn unpack(self, line: [u8; 64]) -> [[u8; 64]; 4] {
        from_fn(|field| line.map(|byte| (byte >> (2 * field)) & 3))
    }

    #[inline(always)]
    fn fold(self, high: [u8; 64], low: [u8; 64]) -> [u8; 64] {
        from_fn(|i| 3 * high[i] + low[i])
    }

    #[inline(always)]
    fn sub_bytes(self, a: [u8; 64], b: [u8; 64]) -> [u8; 64] {
        from_fn(|i| a[i].wrapping_sub(b[i]))
    }

    #[inline(always)]
    fn min_bytes(self, a: [u8; 64], b: [u8; 64]) -> [u8; 64] {
        from_fn(|i| a[i].min(b[i]))
    }

    #[inline(always)]
    fn and_bytes(self, a: [u8; 64], b: [u8; 64]) -> [u8; 64] {
        from_fn(|i| a[i] & b[i])
    }

    #[inline(always)]
    fn splat_byte(self, value: u8) -> [u8; 64] {
        [value; 64]
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], index: [u8; 64]) -> [u8; 64] {
        index.map(|i| table[usize::from(i % 16)])
    }

    #[inline(always)]
    fn digits(self, line: [u8; 64]) -> [[u8; 64]; 5] {
        [1, 3, 9, 27, 81].map(|power| line.map(|byte| byte / power % 3))
    }

    #[inline(always)]
    fn four(self, x: [i8; 4]) -> [u8; 64] {
        from_fn(|i| x[i % 4].cast_unsigned())
    }

    #[inline(always)]
    fn steps(_: u8) -> usize {
        // `4 * 255 * 128` per step.
        1 << 13
    }

    #[inline(always)]
    fn no_acc(self) -> [i32; 16] {
        [0; 16]
    }

    #[inline(always)]
    fn dot(self, acc: [i32; 16], codes: [u8; 64], x: [u8; 64]) -> [i32; 16] {
        let product = |i: usize| i32::from(codes[i]) * i32::from(x[i].cast_signed());
        from_fn(|row| acc[row] + (4 * row..4 * row + 4).map(product).sum::<i32>())
    }

    #[inline(always)]
    fn to_ints(self, acc: [i32; 16]) -> [i32; 16] {
        acc
    }

    #[inline(always)]
    fn splat_int(self, value: i32) -> [i32; 16] {
        [value; 16]
    }

    #[inline(always)]
    fn add_ints(self, a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        from_fn(|row| a[row].wrapping_add(b[row]))
    }

    #[inline(always)]
    fn scale_add(self, a: [i32; 16], factor: i32, b: [i32; 16]) -> [i32; 16] {
        from_fn(|row| a[row].wrapping_mul(factor).wrapping_add(b[row]))
    }

    #[inline(always)]
    fn dot_pairs(self, acc: [i32; 16], a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        let low = |x: i32| i32::from(x as i16);
        from_fn(|row| {
            let products = [low(a[row]) * low(b[row]), (a[row] >> 16) * (b[row] >> 16)];
            acc[row].wrapping_add(products[0]).wrapping_add(products[1])
        })
    }

    #[inline(always)]
    fn load_pairs(self, line: &CodeLine, half: usize) -> [i32; 16] {
        let widened = |code: u8| i32::from(code.cast_signed());
        let pairs = line.0[32 * half..][..32].as_chunks::<2>().0;
        from_fn(|row| widened(pairs[row][0]) & 0xFFFF | widened(pairs[row][1]) << 16)
    }

    #[inline(always)]
    fn load_ints(self, line: &IntLine) -> [i32; 16] {
        line.0
    }

    #[inline(always)]
    fn store_ints(self, ints: [i32; 16], line: &mut IntLine) {
        line.0 = ints;
    }

    #[inline(always)]
    fn to_floats(self, ints: [i32; 16]) -> [f32; 16] {
        ints.map(|v| v as f32)
    }

    #[inline(always)]
    fn splat(self, value: f32) -> [f32; 16] {
        [value; 16]
    }

    #[inline(always)]
    fn mul(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        from_fn(|row| a[row] * b[row])
    }

    #[inline(always)]
    fn add(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        from_fn(|row| a[row] + b[row])
    }

    #[inline(always)]
    fn round(self, floats: [f32; 16]) -> [i32; 16] {
        floats.map(|v| v.round_ties_even() as i32)
    }

    #[inline(always)]
    fn load_any(self, floats: &[f32; 16]) -> [f32; 16] {
        *floats
    }

    #[inline(always)]
    fn load_halves(self, halves: &[f16; 16]) -> [f32; 16] {
        halves.map(f16::to_f32)
    }

    #[inline(always)]
    fn load_floats(self, line: &FloatLine) -> [f32; 16] {
        line.0
    }

    #[inline(always)]
    fn store_floats(self, floats: [f32; 16], line: &mut FloatLine) {
        line.0 = floats;
    }
}
