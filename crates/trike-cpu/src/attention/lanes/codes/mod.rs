//! Operations on stored codes: sixteen bytes of each of four rows at a time, as pairs of 16-bit integers.

use crate::kernels::Kernels;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;
#[cfg(target_arch = "x86_64")]
mod sse;

/// Sixteen bytes of each of four rows.
pub(in crate::attention) type Four<'a> = [&'a [u8; 16]; 4];

/// Bytes of four rows as operands of [`Simd::dot_pairs`](crate::simd::Simd::dot_pairs). Everything is exact, so all implementations
/// give the same integers.
pub(in crate::attention) trait CodeLanes: Kernels {
    /// The bytes of the rows, consecutively: integer `4 r + i` is bytes `4 i..4 i + 4` of row `r`.
    fn load_rows(self, rows: Four<'_>) -> Self::Bytes;

    /// The bytes of the rows, column by column: integer `c` is byte `c` of rows 0, 2, 1 and 3.
    fn load_columns(self, rows: Four<'_>) -> Self::Bytes;

    /// Signed bytes as pairs: bytes 0 and 2 of each integer for part 0, bytes 1 and 3 for part 1.
    fn widen_bytes(self, bytes: Self::Bytes, part: usize) -> Self::Ints;

    /// Unsigned nibbles as pairs: the low nibbles of bytes 0 and 2 of each integer for part 0, their high nibbles for part 1, the
    /// low and the high nibbles of bytes 1 and 3 for parts 2 and 3.
    fn widen_nibbles(self, bytes: Self::Bytes, part: usize) -> Self::Ints;

    /// 64 times the integers of [`widen_bytes`](Self::widen_bytes).
    fn widen_bytes_64(self, bytes: Self::Bytes, part: usize) -> Self::Ints;

    /// 64 times the integers of [`widen_nibbles`](Self::widen_nibbles).
    fn widen_nibbles_64(self, bytes: Self::Bytes, part: usize) -> Self::Ints;

    /// The high nibble of each byte.
    fn high_halves(self, bytes: Self::Bytes) -> Self::Bytes;

    /// Adds four products per integer, wrapping: unsigned bytes of `codes` with signed ones of `x`, from -64 to 64.
    fn dot_small(self, acc: Self::Ints, codes: Self::Bytes, x: Self::Bytes) -> Self::Ints;

    /// Sums of four neighbours: integer `4 r + i` is the wrapping sum of integers `4 r..4 r + 4` of `sums[i]`.
    fn add_fours(self, sums: [Self::Ints; 4]) -> Self::Ints;
}

#[cfg(test)]
mod tests {
    use super::{CodeLanes, Four};
    use crate::kernels::{Kernels as _, with_kernels};
    use crate::line::CodeLine;
    use trike_host::{CacheLine, Isa, Loop};
    use trike_testkit::Rng;

    /// Operands of [`CodeLanes::dot_small`], including the extremes.
    const SMALL: CodeLine = {
        let (mut line, mut i) = ([0; 64], 0);
        while i < 64 {
            line[i] =
                if i < 32 { [64, 64, 192, 192][i / 2 % 4] } else { ((i * 37 % 129) as u8).wrapping_sub(64) };
            i += 1;
        }
        CacheLine(line)
    };

    /// The results of all operations, as 16 integers each.
    struct Everything<'a, S>(S, Four<'a>, [[i32; 16]; 4]);

    impl<S: CodeLanes> Loop for Everything<'_, S> {
        type Output = Vec<[i32; 16]>;

        #[inline(always)]
        fn run(self) -> Vec<[i32; 16]> {
            let Self(s, rows, sums) = self;
            let mut out = Vec::new();
            for bytes in [s.load_rows(rows), s.load_columns(rows)] {
                let mut line: CodeLine = CacheLine([0xEE; 64]);
                s.store(bytes, &mut line);
                out.push(bytemuck::cast::<[u8; 64], [i32; 16]>(line.0).map(i32::from_le));
                let parts = [
                    s.widen_bytes(bytes, 0),
                    s.widen_bytes(bytes, 1),
                    s.widen_nibbles(bytes, 0),
                    s.widen_nibbles(bytes, 1),
                    s.widen_nibbles(bytes, 2),
                    s.widen_nibbles(bytes, 3),
                ];
                let parts_64 = [
                    s.widen_bytes_64(bytes, 0),
                    s.widen_bytes_64(bytes, 1),
                    s.widen_nibbles_64(bytes, 0),
                    s.widen_nibbles_64(bytes, 1),
                    s.widen_nibbles_64(bytes, 2),
                    s.widen_nibbles_64(bytes, 3),
                ];
                for i in 0..6 {
                    let mut line = CacheLine([-7; 16]);
                    s.store_ints(parts[i], &mut line);
                    out.push(line.0);
                    s.store_ints(parts_64[i], &mut line);
                    out.push(line.0);
                }
                let mut line: CodeLine = CacheLine([0xEE; 64]);
                s.store(s.high_halves(bytes), &mut line);
                out.push(bytemuck::cast::<[u8; 64], [i32; 16]>(line.0).map(i32::from_le));
                let mut line = CacheLine([-7; 16]);
                s.store_ints(s.dot_small(s.load_ints(&CacheLine(sums[0])), bytes, s.load(&SMALL)), &mut line);
                out.push(line.0);
            }
            let mut four = [s.splat_int(0); 4];
            for i in 0..4 {
                four[i] = s.load_ints(&CacheLine(sums[i]));
            }
            let mut line = CacheLine([-7; 16]);
            s.store_ints(s.add_fours(four), &mut line);
            out.push(line.0);
            out
        }
    }

    /// The same results from the documentation of the operations.
    fn described(rows: Four<'_>, sums: [[i32; 16]; 4]) -> Vec<[i32; 16]> {
        let by_rows: [[u8; 4]; 16] =
            std::array::from_fn(|i| std::array::from_fn(|b| rows[i / 4][4 * (i % 4) + b]));
        let by_columns: [[u8; 4]; 16] = std::array::from_fn(|c| [0, 2, 1, 3].map(|row: usize| rows[row][c]));
        let pair = |low: i32, high: i32| low & 0xFFFF | high << 16;
        let mut out = Vec::new();
        for bytes in [by_rows, by_columns] {
            out.push(bytes.map(i32::from_le_bytes));
            let mut parts = Vec::new();
            for at in [0, 1] {
                let signed = |byte: u8| i32::from(byte.cast_signed());
                parts.push(bytes.map(|four| [signed(four[at]), signed(four[at + 2])]));
            }
            for (at, shift) in [(0, 0), (0, 4), (1, 0), (1, 4)] {
                let half = |byte: u8| i32::from(byte >> shift & 15);
                parts.push(bytes.map(|four| [half(four[at]), half(four[at + 2])]));
            }
            for part in parts {
                out.push(part.map(|[low, high]| pair(low, high)));
                out.push(part.map(|[low, high]| pair(64 * low, 64 * high)));
            }
            out.push(bytes.map(|four| i32::from_le_bytes(four.map(|byte| byte >> 4))));
            out.push(std::array::from_fn(|i| {
                let small = |b: usize| i32::from(SMALL.0[4 * i + b].cast_signed());
                let products = (0..4).map(|b| i32::from(bytes[i][b]) * small(b));
                products.fold(sums[0][i], i32::wrapping_add)
            }));
        }
        let sum = |i: usize| sums[i % 4][i / 4 * 4..][..4].iter().fold(0i32, |sum, x| sum.wrapping_add(*x));
        out.push(std::array::from_fn(sum));
        out
    }

    #[test]
    fn every_operation_is_as_described() {
        let mut rng = Rng::new(6);
        for case in 0..100 {
            // The largest bytes, too.
            let byte = |rng: &mut Rng| if case == 0 { 255 } else { rng.next_u64() as u8 };
            let rows: [[u8; 16]; 4] = std::array::from_fn(|_| std::array::from_fn(|_| byte(&mut rng)));
            let sums = std::array::from_fn(|_| std::array::from_fn(|_| rng.next_u64() as i32));
            let four = [&rows[0], &rows[1], &rows[2], &rows[3]];
            let want = described(four, sums);
            for isa in Isa::available() {
                let got = with_kernels!(isa, s => s.run(Everything(s, four, sums)));
                assert_eq!(got, want, "{isa}");
            }
        }
    }
}
