//! Sparse weights as bitmaps: one bit per weight of a chunk, and one sign per nonzero.

use cubecl::prelude::*;

use super::sparse::{ROWS, UNITS, finish};

/// Bits of a chunk's header that hold the sign count; the others hold the chunk number.
pub(in crate::linear) const SIGN_BITS: u32 = 17;

/// Cube `(x, y)` computes four rows for `each` code rows; unit `(u, r)` processes every 32nd word of the chunks of row `r`, so
/// that neighbouring units read the four words of a chunk.
///
/// Bit `4 s + b` of word `t` of a chunk is column `16 s + 4 t + b`, so that a word of bits pairs with eight words of the
/// activations in memory order. For one or two code rows a unit iterates over the set bits. For more it first moves the signs
/// to the positions of their bits, then processes four weights at a time with a 4-byte dot product: the dot products cost the
/// same for zeros and nonzeros, and the unpacking is shared by all rows.
#[cube(launch_unchecked)]
pub(in crate::linear) fn bitmap(
    starts: &[u32],
    headers: &[u32],
    bits: &[u32],
    signs: &[u32],
    scales: &[f32],
    x: &[u32],
    factors: &[f32],
    out: &mut [f32],
    rows: u32,
    code_rows: u32,
    blocks: u32,
    #[comptime] slices: usize,
    #[comptime] add: bool,
    #[comptime] each: usize,
) {
    let (unit, r) = (UNIT_POS_X as usize, UNIT_POS_Y as usize);
    let first = CUBE_POS_Y as usize * each;
    let (last_row, last) = (rows as usize - 1, code_rows as usize - 1);
    let stride = blocks as usize * 32;

    let mut sums = Array::<i32>::new(each);
    #[unroll]
    for m in 0..each {
        sums[m] = 0;
    }
    // Rows and code rows past the last repeat the last one and are not stored.
    let row = clamp_max(CUBE_POS_X as usize * ROWS + r, last_row);
    let signs_of_row = starts[2 * row + 1];
    let end = starts[2 * row + 2] as usize * 4;
    let mut item = starts[2 * row] as usize * 4 + unit;
    while item < end {
        let t = item % 4;
        let header = headers[item / 4];
        let word = bits[item];
        let mut before = header % comptime!(1u32 << SIGN_BITS);
        #[unroll]
        for earlier in 0..3usize {
            before += select(earlier < t, bits[item / 4 * 4 + earlier].count_ones(), 0u32);
        }
        // The signs of the word, the first in bit 0; they may span two words.
        let at = signs_of_row as usize + before as usize / 32;
        let shift = before % 32;
        let mut sign = signs[at] >> shift;
        if shift > 0 {
            sign |= signs[at + 1] << (32 - shift);
        }
        let meets = (header >> SIGN_BITS) as usize * 32 + t * 8;
        let mut rest = word;
        if comptime!(each <= 2) {
            while rest != 0 {
                let bit = rest.trailing_zeros();
                let at = meets + bit as usize / 4;
                let left = 24 - 8 * (bit % 4);
                #[unroll]
                for m in 0..each {
                    let four = x[clamp_max(first + m, last) * stride + at];
                    let value = i32::reinterpret(four << left) >> 24;
                    sums[m] += select(sign % 2 == 1, -value, value);
                }
                sign >>= 1;
                rest &= rest - 1;
            }
        } else if word != 0 {
            let mut negative = 0u32;
            while rest != 0 {
                let lower = rest & (rest - 1);
                negative |= select(sign % 2 == 1, rest ^ lower, 0u32);
                sign >>= 1;
                rest = lower;
            }
            #[unroll]
            for s in 0..8usize {
                // Four bits spread to the lowest bits of four bytes; a byte is 1, or 255 (-1) if the sign is set too.
                let codes = i32::reinterpret(four_bytes(word, s) + four_bytes(negative, s) * 254);
                #[unroll]
                for m in 0..each {
                    let four = x[clamp_max(first + m, last) * stride + meets + s];
                    sums[m] = dp4a(codes, i32::reinterpret(four), sums[m]);
                }
            }
        }
        item += UNITS;
    }
    finish(&sums, scales, factors, out, rows, code_rows, slices, add, each);
}

/// Bits `4 s` to `4 s + 3` of a word, each as the lowest bit of a byte.
#[cube]
fn four_bytes(word: u32, #[comptime] s: usize) -> u32 {
    // The multiplication makes copies of the four bits at distance 7, so that bit `b` of one copy is at bit `8 b`.
    (((word >> comptime!(4 * s as u32)) & 0xF) * 0x0020_4081) & 0x0101_0101
}
