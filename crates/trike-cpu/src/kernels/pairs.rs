//! `A B` for operands rounded to bf16, with AVX-512 BF16: as [`outer`](super::outer), with two steps of the inner dimension per
//! instruction.
//!
//! An element of a packed operand is a pair: the bf16 of an even step in the lower half of 32 bits, that of the next step in the
//! upper half, or zero past the last step.

use std::arch::x86_64::*;
use std::ops::Range;

use trike_host::isa::{Avx512, Bf16, IsaToken};
use trike_host::{Isa, Loop};

use super::FloatLanes;
use super::outer::{DEPTH, View, WIDTH, write};
use super::rounding::bf16_bits;

/// Rows of a tile and columns of a panel: 24 sums, 2 vectors of pairs and one broadcast.
const ROWS: usize = 12;
const COLS: usize = 32;
/// Pairs of steps that are summed in registers.
const PAIRS: usize = DEPTH / 2;

/// Pairs of two vectors of columns, aligned.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Step([u32; COLS]);

/// The instruction set with products of bf16.
pub(crate) fn available(isa: Isa) -> Option<(Avx512, Bf16)> {
    match isa.token() {
        IsaToken::Avx512(simd) => Some((simd, simd.bf16()?)),
        _ => None,
    }
}

/// Some rows of a product: `out = a[rows] b`, or `out += a[rows] b`.
pub(crate) fn multiply(
    simd: (Avx512, Bf16),
    a: View<'_>,
    b: View<'_>,
    rows: Range<usize>,
    out: &mut [f32],
    add: bool,
) {
    let share = Share { simd, a, b, rows, out, add };
    // SAFETY: arguments of types `Avx512` and `Bf16` exist, which only detection creates on a CPU with every feature of `run`.
    unsafe { run(share) };
}

/// [`Kernels::run`](super::Kernels::run) with one feature more.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni,avx512bf16")]
fn run(share: Share<'_>) {
    share.run();
}

struct Share<'a> {
    simd: (Avx512, Bf16),
    a: View<'a>,
    b: View<'a>,
    rows: Range<usize>,
    out: &'a mut [f32],
    add: bool,
}

impl Loop for Share<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { simd, a, b, rows, out, add } = self;
        let (inner, width) = (a.cols, b.cols);
        let most = DEPTH.min(inner).div_ceil(2);
        let mut panels = vec![Step([0; COLS]); most * WIDTH.min(width).div_ceil(COLS)];
        let mut tile = [[0; ROWS]; PAIRS];
        for first_col in (0..width).step_by(WIDTH) {
            let cols = first_col..(first_col + WIDTH).min(width);
            for start in (0..inner).step_by(DEPTH) {
                let depth = start..(start + DEPTH).min(inner);
                let pairs = depth.len().div_ceil(2);
                let add = add || start > 0;
                for (panel, col) in panels.chunks_exact_mut(pairs).zip(cols.clone().step_by(COLS)) {
                    pack_columns(b, depth.clone(), col..(col + COLS).min(width), panel);
                }
                for row in rows.clone().step_by(ROWS) {
                    let count = ROWS.min(rows.end - row);
                    let tile = &mut tile[..pairs];
                    pack_rows(a, row..row + count, depth.clone(), tile);
                    let out = &mut out[(row - rows.start) * width..][..count * width];
                    for (panel, col) in panels.chunks_exact(pairs).zip(cols.clone().step_by(COLS)) {
                        let sums = multiply_add(simd, tile, panel);
                        for (out, sums) in out.chunks_exact_mut(width).zip(&sums) {
                            write::<Avx512, COLS>(simd.0, sums, add, &mut out[col..(col + COLS).min(width)]);
                        }
                    }
                }
            }
        }
    }
}

/// Two steps as one element.
#[inline(always)]
fn pair(even: f32, odd: f32) -> u32 {
    bf16_bits(even) >> 16 | bf16_bits(odd) & 0xFFFF_0000
}

/// Packs a run of values along the inner dimension as pairs, in the same lane of all steps.
#[inline(always)]
fn pack_lane<'t>(from: &[f32], mut to: impl Iterator<Item = &'t mut u32>) {
    let (pairs, last) = from.as_chunks::<2>();
    for ([even, odd], to) in pairs.iter().zip(&mut to) {
        *to = pair(*even, *odd);
    }
    if let ([last], Some(to)) = (last, to.next()) {
        *to = pair(*last, 0.0);
    }
}

/// Packs two neighbouring steps as pairs, lane by lane; `odd` is `None` past the last step.
#[inline(always)]
fn pack_step<const N: usize>(even: &[f32], odd: Option<&[f32]>, to: &mut [u32; N]) {
    match odd {
        Some(odd) => {
            if let (Ok(even), Ok(odd)) = (<&[f32; N]>::try_from(even), <&[f32; N]>::try_from(odd)) {
                for i in 0..N {
                    to[i] = pair(even[i], odd[i]);
                }
                return;
            }
            for ((to, even), odd) in to.iter_mut().zip(even).zip(odd) {
                *to = pair(*even, *odd);
            }
        }
        None => {
            for (to, even) in to.iter_mut().zip(even) {
                *to = pair(*even, 0.0);
            }
        }
    }
}

/// Packs columns of `B`. The unused columns of a partial panel are stale; no kernel reads them.
#[inline(always)]
fn pack_columns(b: View<'_>, depth: Range<usize>, cols: Range<usize>, panel: &mut [Step]) {
    if b.transposed {
        for (lane, col) in cols.enumerate() {
            pack_lane(&b.values[col * b.stride..][depth.clone()], panel.iter_mut().map(|to| &mut to.0[lane]));
        }
    } else {
        for (step, p) in panel.iter_mut().zip(depth.clone().step_by(2)) {
            let even = &b.values[p * b.stride..][cols.clone()];
            let odd = (p + 1 < depth.end).then(|| &b.values[(p + 1) * b.stride..][cols.clone()]);
            pack_step(even, odd, &mut step.0);
        }
    }
}

/// Packs rows of `A`. The unused rows of a partial tile are stale; no kernel reads them.
#[inline(always)]
fn pack_rows(a: View<'_>, rows: Range<usize>, depth: Range<usize>, tile: &mut [[u32; ROWS]]) {
    if a.transposed {
        for (step, p) in tile.iter_mut().zip(depth.clone().step_by(2)) {
            let even = &a.values[p * a.stride..][rows.clone()];
            let odd = (p + 1 < depth.end).then(|| &a.values[(p + 1) * a.stride..][rows.clone()]);
            pack_step(even, odd, step);
        }
    } else {
        for (lane, row) in rows.enumerate() {
            pack_lane(&a.values[row * a.stride..][depth.clone()], tile.iter_mut().map(|to| &mut to[lane]));
        }
    }
}

/// The products of a tile and a panel.
#[inline(always)]
fn multiply_add(simd: (Avx512, Bf16), tile: &[[u32; ROWS]], panel: &[Step]) -> [[__m512; 2]; ROWS] {
    let mut sums = [[simd.0.splat_lanes(0.0); 2]; ROWS];
    for (a, b) in tile.iter().zip(panel) {
        let (first, second) = b.0.split_at(16);
        let b = [load(simd, first), load(simd, second)];
        for r in 0..ROWS {
            let a = splat(simd, a[r]);
            sums[r] = [dot(simd, sums[r][0], a, b[0]), dot(simd, sums[r][1], a, b[1])];
        }
    }
    sums
}

#[inline(always)]
fn load(_: (Avx512, Bf16), pairs: &[u32]) -> __m512i {
    let pairs: &[u32; 16] = pairs.first_chunk().expect("a whole vector");
    // SAFETY: the array has 16 elements, the load has no alignment requirement, and an argument of type `Avx512` exists, which
    // only detection creates.
    unsafe { _mm512_loadu_si512(pairs.as_ptr().cast()) }
}

#[inline(always)]
fn splat(_: (Avx512, Bf16), pair: u32) -> __m512i {
    // SAFETY: an argument of type `Avx512` exists, which only detection creates.
    unsafe { _mm512_set1_epi32(pair.cast_signed()) }
}

/// `sum + a b` for pairs.
#[inline(always)]
fn dot(_: (Avx512, Bf16), sum: __m512, a: __m512i, b: __m512i) -> __m512 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    fn dot(sum: __m512, a: __m512i, b: __m512i) -> __m512 {
        // SAFETY: both types are 64 bytes of any contents.
        let a = unsafe { std::mem::transmute::<__m512i, __m512bh>(a) };
        // SAFETY: both types are 64 bytes of any contents.
        let b = unsafe { std::mem::transmute::<__m512i, __m512bh>(b) };
        _mm512_dpbf16_ps(sum, a, b)
    }
    // SAFETY: arguments of types `Avx512` and `Bf16` exist, which only detection creates on a CPU with AVX-512 F and BF16.
    unsafe { dot(sum, a, b) }
}
