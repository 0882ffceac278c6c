//! Portable implementation on arrays: the specification, and the fallback.

use std::array::from_fn;

use super::{CodeLanes, Four};
use trike_host::isa::Scalar;

/// 64 times both integers of a pair, below `2^9`.
#[inline(always)]
fn times_64(pair: i32) -> i32 {
    pair << 6 & 0xFFFF | (pair >> 16) << 22
}

impl CodeLanes for Scalar {
    #[inline(always)]
    fn load_rows(self, rows: Four<'_>) -> [u8; 64] {
        from_fn(|i| rows[i / 16][i % 16])
    }

    #[inline(always)]
    fn load_columns(self, rows: Four<'_>) -> [u8; 64] {
        from_fn(|i| rows[[0, 2, 1, 3][i % 4]][i / 4])
    }

    #[inline(always)]
    fn widen_bytes(self, bytes: [u8; 64], part: usize) -> [i32; 16] {
        let widened = |i: usize| i32::from(bytes[i].cast_signed());
        from_fn(|i| widened(4 * i + part) & 0xFFFF | widened(4 * i + part + 2) << 16)
    }

    #[inline(always)]
    fn widen_nibbles(self, bytes: [u8; 64], part: usize) -> [i32; 16] {
        let widened = |i: usize| i32::from(bytes[i] >> (4 * (part % 2)) & 15);
        from_fn(|i| widened(4 * i + part / 2) | widened(4 * i + part / 2 + 2) << 16)
    }

    #[inline(always)]
    fn widen_bytes_64(self, bytes: [u8; 64], part: usize) -> [i32; 16] {
        self.widen_bytes(bytes, part).map(times_64)
    }

    #[inline(always)]
    fn widen_nibbles_64(self, bytes: [u8; 64], part: usize) -> [i32; 16] {
        self.widen_nibbles(bytes, part).map(times_64)
    }

    #[inline(always)]
    fn high_halves(self, bytes: [u8; 64]) -> [u8; 64] {
        bytes.map(|byte| byte >> 4)
    }

    #[inline(always)]
    fn dot_small(self, acc: [i32; 16], codes: [u8; 64], x: [u8; 64]) -> [i32; 16] {
        let product = |i: usize| i32::from(codes[i]) * i32::from(x[i].cast_signed());
        from_fn(|i| acc[i].wrapping_add((4 * i..4 * i + 4).map(product).sum::<i32>()))
    }

    #[inline(always)]
    fn add_fours(self, sums: [[i32; 16]; 4]) -> [i32; 16] {
        from_fn(|i| {
            let four = &sums[i % 4][i / 4 * 4..][..4];
            (four[0].wrapping_add(four[2])).wrapping_add(four[1].wrapping_add(four[3]))
        })
    }
}
