//! AVX-512 VBMI: base-3 bytes unpacked by one permute, and 64 slots of sparse weights looked up by one.

#![allow(
    clippy::needless_range_loop,
    reason = "the indices are rows, windows and lines, and each walks several arrays"
)]

use std::arch::x86_64::*;

use super::{Bound, PermuteLoop, Permutes, RunPermuting};
use crate::line::{CodeLine, TableLine};
use crate::simd::Simd;
use trike_host::isa::{Avx512, Vbmi};
use trike_host::{CacheLine, Loop};

/// Calls an intrinsic.
macro_rules! op {
    ($call:expr) => {
        // SAFETY: the token is created only on a CPU with AVX-512 F, BW, VL and VNNI.
        unsafe { $call }
    };
}

impl RunPermuting for Avx512 {
    type Plain = Self;

    fn plain(self) -> Self {
        self
    }

    fn try_permuting<L: PermuteLoop<Self>>(self, task: L) -> Result<L::Output, L> {
        match self.vbmi() {
            // SAFETY: both tokens are created only on a CPU with every feature below.
            Some(vbmi) => Ok(unsafe { run_vbmi(Bound { s: self, permutes: vbmi, task }) }),
            None => Err(task),
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
fn run_vbmi<L: Loop>(task: L) -> L::Output {
    task.run()
}

impl Permutes<Avx512> for Vbmi {
    #[inline(always)]
    fn digits(self, s: Avx512, line: __m512i) -> [__m512i; 5] {
        let (four, fifth) = spread(s, self, line);
        let [a, b, c, d] = s.unpack(four);
        // The lowest two bits of 81 and 162 are 1 and 2.
        [a, b, c, d, s.and_bytes(fifth, s.splat_byte(3))]
    }

    #[inline(always)]
    fn scaled_digits(self, s: Avx512, line: __m512i) -> [__m512i; 5] {
        let (four, fifth) = spread(s, self, line);
        let [a, b, c, d] = s.fields(four);
        [a, b, c, d, fifth]
    }

    #[inline(always)]
    fn finish_digits(self, s: Avx512, sums: [__m512i; 5]) -> [__m512i; 5] {
        // Every sum is a multiple of the scale of its digit. The fifth grows by at most `4 * 162 * 128` per line,
        // below 2^31 for `LINES` lines; multiplication by the inverse of 81 modulo 2^32 divides it.
        const INVERSE_OF_81: i32 = 0x7819_48B1;
        [
            sums[0],
            op!(_mm512_srai_epi32::<2>(sums[1])),
            op!(_mm512_srai_epi32::<4>(sums[2])),
            op!(_mm512_srai_epi32::<6>(sums[3])),
            op!(_mm512_mullo_epi32(sums[4], s.splat_int(INVERSE_OF_81))),
        ]
    }

    #[inline(always)]
    fn find<const T: usize>(
        self,
        s: Avx512,
        lines: &[CodeLine],
        windows: usize,
        tables: [&[TableLine]; T],
    ) -> Option<[__m512i; T]> {
        Some(match windows {
            1 => find::<T, 1>(s, self, lines, tables),
            2 => find::<T, 2>(s, self, lines, tables),
            _ => find::<T, 4>(s, self, lines, tables),
        })
    }
}

/// Maps `c = d0 + 3 d1 + 9 d2 + 27 d3` to `d0 + 4 d1 + 16 d2 + 64 d3`.
static SPREAD: [CodeLine; 2] = {
    let mut lines = [CacheLine([0; 64]); 2];
    let mut c = 0;
    while c < 81 {
        lines[c / 64].0[c % 64] = (c % 3 + 4 * (c / 3 % 3) + 16 * (c / 9 % 3) + 64 * (c / 27)) as u8;
        c += 1;
    }
    lines
};

/// Splits a line of base-3 bytes in six instructions: the first four digits as 2-bit fields, and 81 times the fifth.
#[inline(always)]
fn spread(s: Avx512, _: Vbmi, line: __m512i) -> (__m512i, __m512i) {
    let step = s.splat_byte(81);
    // Below 81 the difference wraps around and the minimum is the byte itself; two rounds give the remainder.
    let once = s.min_bytes(line, s.sub_bytes(line, step));
    let rest = s.min_bytes(once, s.sub_bytes(once, step));
    let [low, high] = [s.load(&SPREAD[0]), s.load(&SPREAD[1])];
    // SAFETY: an argument of type `Vbmi` exists, which only detection creates.
    let four = unsafe { _mm512_permutex2var_epi8(low, rest, high) };
    (four, s.sub_bytes(line, rest))
}

/// Prefetch distance in bytes.
const AHEAD: usize = 4096;

/// [`Permutes::find`] for lines of `W` windows.
///
/// A line adds at most `4 * 128` to a sum of all slots, and `4 * 128 * 128 = 2^16` to one of the negative ones; a unit
/// has at most 16,320 lines, one per column, so the sums stay below `2^30`.
#[inline(always)]
fn find<const T: usize, const W: usize>(
    s: Avx512,
    vbmi: Vbmi,
    lines: &[CodeLine],
    tables: [&[TableLine]; T],
) -> [__m512i; T] {
    let mut windows: [&[[TableLine; W]]; T] = [&[]; T];
    for t in 0..T {
        windows[t] = &tables[t].as_chunks().0[..lines.len()];
    }
    let (ones, sign) = (s.splat_byte(1), s.splat_byte(128));
    // Even and odd lines have separate sums, so that consecutive additions are independent.
    let mut all = [[op!(_mm512_setzero_si512()); T]; 2];
    let mut negative = all;
    let (pairs, last) = lines.as_chunks::<2>();
    for (i, pair) in pairs.iter().enumerate() {
        for half in 0..2 {
            s.prefetch(&pair[half], AHEAD);
            let slots = s.load(&pair[half]);
            let signs = s.and_bytes(slots, sign);
            for t in 0..T {
                let values = look_up::<W>(s, vbmi, slots, &windows[t][2 * i + half]);
                all[half][t] = s.dot(all[half][t], ones, values);
                negative[half][t] = s.dot(negative[half][t], signs, values);
            }
        }
    }
    if let [line] = last {
        let slots = s.load(line);
        let signs = s.and_bytes(slots, sign);
        for t in 0..T {
            let values = look_up::<W>(s, vbmi, slots, &windows[t][lines.len() - 1]);
            all[0][t] = s.dot(all[0][t], ones, values);
            negative[0][t] = s.dot(negative[0][t], signs, values);
        }
    }
    let mut found = [op!(_mm512_setzero_si512()); T];
    for t in 0..T {
        // Negative slots were added, so twice their sum is subtracted; the sum of their products is a multiple of 128.
        let twice = op!(_mm512_srai_epi32::<6>(s.add_ints(negative[0][t], negative[1][t])));
        found[t] = op!(_mm512_sub_epi32(s.add_ints(all[0][t], all[1][t]), twice));
    }
    found
}

/// The activations addressed by the slots of a line.
#[inline(always)]
fn look_up<const W: usize>(s: Avx512, _: Vbmi, slots: __m512i, windows: &[TableLine; W]) -> __m512i {
    // The slots of each row that belong to a window: four, two or one of every four bytes.
    let mask = match W {
        1 => u64::MAX,
        2 => 0x3333_3333_3333_3333,
        _ => 0x1111_1111_1111_1111,
    };
    let mut values = slots;
    for w in 0..W {
        let [low, high] = halves(s, &windows[w]);
        let mask = mask << (w * 4 / W);
        // Bytes outside the mask are unchanged: the slots of later windows, and the results of earlier ones.
        // SAFETY: an argument of type `Vbmi` exists, which only detection creates.
        values = unsafe { _mm512_mask2_permutex2var_epi8(low, values, mask, high) };
    }
    values
}

/// The two registers of a table.
#[inline(always)]
fn halves(_: Avx512, table: &TableLine) -> [__m512i; 2] {
    let [low, high] = bytemuck::cast_ref::<[i8; 128], [[i8; 64]; 2]>(&table.0);
    // SAFETY: 64 readable bytes, and the load has no alignment requirement; the token proves the instruction.
    let low = unsafe { _mm512_loadu_si512(low.as_ptr().cast()) };
    // SAFETY: as above.
    let high = unsafe { _mm512_loadu_si512(high.as_ptr().cast()) };
    [low, high]
}
