//! The vector operations of the ternary kernels, implemented once per instruction set.
//!
//! Every type covers sixteen rows, independent of the register width: `Bytes` holds four neighbouring columns of each
//! row, row after row; `Ints` and `Floats` hold one value per row. An instruction set with narrower registers uses two
//! or four of them. The methods are safe because their token exists only if the instructions do, and
//! `#[inline(always)]` so that they are inlined into the function with the target features
//! ([`Kernels::run`](crate::kernels::Kernels::run)). For the same reason code over these operations must not be in
//! closures: a closure is a separate function without the features, where every operation would become a call.
//!
//! Integer operations are exact and float operations are rounded individually, so all implementations are
//! bit-identical.

use half::f16;

use crate::line::{CodeLine, FloatLine, IntLine};

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;
#[cfg(target_arch = "x86_64")]
mod sse;

/// Sixteen rows at a time.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    /// Four bytes per row.
    type Bytes: Copy;
    /// The four 2-bit fields of a line, in the representation of [`Simd::line`].
    type Fields: Copy;
    /// Running sums over lines, for one token.
    type Sums: Copy;
    /// Running sums over panel steps, for one token.
    type Acc: Copy;
    /// One i32 per row.
    type Ints: Copy;
    /// One f32 per row.
    type Floats: Copy;

    /// Maximum lines added by [`Simd::line`] before [`Simd::finish`], for codes up to 2 and any int8 activations.
    const LINES: usize;
    /// Whether the sums of two lines fit the registers, so that consecutive lines can be independent.
    const TWO_LINES: bool = true;
    /// Whether the registers suffice for two steps of a panel at a time.
    const TWO_STEPS: bool = true;
    /// Whether kernels for few rows of activations are also compiled for three rows; otherwise those for four are used.
    const THREE_ROWS: bool = true;
    /// Lines of a unit of two-bit codes that are unrolled, if it has that many; a multiple of four.
    const UNROLLED: usize = 4;
    /// Tiles per panel kernel call.
    const TILES: usize;
    /// Token counts supported by the panel kernel, descending to 1.
    const TOKENS: &'static [usize];
    /// Sums of [`Simd::dot_pairs`] that fit the registers together with its operands.
    const PAIR_SUMS: usize;

    /// Loads a line.
    fn load(self, line: &CodeLine) -> Self::Bytes;
    /// Stores a line.
    fn store(self, bytes: Self::Bytes, line: &mut CodeLine);
    /// Prefetches the cache line `bytes` after `place`; invalid addresses are allowed.
    fn prefetch<T>(self, place: &T, bytes: usize);

    /// Splits a line of 2-bit codes: field `f` of row `r` holds columns `4 f..4 f + 4`.
    fn fields(self, line: Self::Bytes) -> Self::Fields;
    /// Zero sums.
    fn no_sums(self) -> Self::Sums;
    /// Adds the products of a line's sixteen columns.
    fn line(self, sums: Self::Sums, fields: Self::Fields, x: &[i8; 16]) -> Self::Sums;
    /// The sums of code times activation.
    fn finish(self, sums: Self::Sums) -> Self::Ints;

    /// The four fields of a line as bytes of 0, 1 or 2.
    fn unpack(self, line: Self::Bytes) -> [Self::Bytes; 4];
    /// `3 high + low`, byte by byte; at most 255.
    fn fold(self, high: Self::Bytes, low: Self::Bytes) -> Self::Bytes;

    /// `a - b`, byte by byte, wrapping.
    fn sub_bytes(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// The smaller of two unsigned bytes.
    fn min_bytes(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Bitwise and.
    fn and_bytes(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// `value` in all bytes.
    fn splat_byte(self, value: u8) -> Self::Bytes;
    /// `table[index & 15]` for indices below 128.
    fn lookup(self, table: &[u8; 16], index: Self::Bytes) -> Self::Bytes;

    /// The five base-3 digits of each byte of a line, as bytes of 0, 1 or 2, the least significant first.
    #[inline(always)]
    fn digits(self, line: Self::Bytes) -> [Self::Bytes; 5] {
        digits_by_remainders(self, line)
    }
    /// Four activations, broadcast to all rows.
    fn four(self, x: [i8; 4]) -> Self::Bytes;
    /// Maximum steps added by [`Simd::dot`] before [`Simd::to_ints`], for codes up to `largest` and any int8
    /// activations.
    fn steps(largest: u8) -> usize;
    /// Zero sums.
    fn no_acc(self) -> Self::Acc;
    /// Whether sums are i32 from the start, so that a panel of any length needs no intermediate widening.
    const WIDE: bool = false;
    /// Adds four products per row: unsigned codes with signed activations.
    fn dot(self, acc: Self::Acc, codes: Self::Bytes, x: Self::Bytes) -> Self::Acc;
    /// The sums of [`Simd::dot`].
    fn to_ints(self, acc: Self::Acc) -> Self::Ints;

    /// `value` in all rows.
    fn splat_int(self, value: i32) -> Self::Ints;
    /// `a + b`, wrapping.
    fn add_ints(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// `factor * a + b`, wrapping.
    fn scale_add(self, a: Self::Ints, factor: i32, b: Self::Ints) -> Self::Ints;
    /// Adds the sums of the products of two pairs of i16, one pair in each row; wrapping.
    fn dot_pairs(self, acc: Self::Ints, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// Loads the half of a line of int8 codes, two columns of each row, as pairs of i16.
    fn load_pairs(self, line: &CodeLine, half: usize) -> Self::Ints;
    /// Loads integers.
    fn load_ints(self, line: &IntLine) -> Self::Ints;
    /// Stores integers.
    fn store_ints(self, ints: Self::Ints, line: &mut IntLine);

    /// Converts to the nearest floats.
    fn to_floats(self, ints: Self::Ints) -> Self::Floats;
    /// `value` in all rows.
    fn splat(self, value: f32) -> Self::Floats;
    /// `a * b`.
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a + b`.
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// Rounds to the nearest integers, ties to even; magnitudes are below `2^31`.
    fn round(self, floats: Self::Floats) -> Self::Ints;
    /// Loads 16 floats from any address.
    fn load_any(self, floats: &[f32; 16]) -> Self::Floats;
    /// Loads f16 as f32.
    fn load_halves(self, halves: &[f16; 16]) -> Self::Floats;
    /// Loads floats.
    fn load_floats(self, line: &FloatLine) -> Self::Floats;
    /// Stores floats.
    fn store_floats(self, floats: Self::Floats, line: &mut FloatLine);
}

/// [`Simd::digits`] by conditional subtraction of each power of three, up to twice.
#[inline(always)]
fn digits_by_remainders<S: Simd>(s: S, line: S::Bytes) -> [S::Bytes; 5] {
    let rest81 = modulo(s, line, 81);
    let rest27 = modulo(s, rest81, 27);
    let rest9 = modulo(s, rest27, 9);
    let three = s.splat_byte(3);
    [
        s.lookup(&[0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0], rest9),
        s.lookup(&[0, 0, 0, 1, 1, 1, 2, 2, 2, 0, 0, 0, 0, 0, 0, 0], rest9),
        // The lowest two bits of 9 and 18 are 1 and 2.
        s.and_bytes(s.sub_bytes(rest27, rest9), three),
        // The lowest four bits of 27 and 54 are 11 and 6.
        s.lookup(&[0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 1, 0, 0, 0, 0], s.sub_bytes(rest81, rest27)),
        // The lowest two bits of 81 and 162 are 1 and 2.
        s.and_bytes(s.sub_bytes(line, rest81), three),
    ]
}

/// `value % step` for values below three times the step.
#[inline(always)]
fn modulo<S: Simd>(s: S, value: S::Bytes, step: u8) -> S::Bytes {
    let step = s.splat_byte(step);
    // Below the step the difference wraps around and the minimum is the value itself; two rounds give the remainder.
    let once = s.min_bytes(value, s.sub_bytes(value, step));
    s.min_bytes(once, s.sub_bytes(once, step))
}

/// Whether the panel kernel of an instruction set supports these numbers of tiles and tokens.
pub(crate) const fn takes<S: Simd>(tiles: usize, tokens: usize) -> bool {
    let (mut i, mut found) = (0, false);
    while i < S::TOKENS.len() {
        found |= S::TOKENS[i] == tokens;
        i += 1;
    }
    found && tiles <= S::TILES
}
