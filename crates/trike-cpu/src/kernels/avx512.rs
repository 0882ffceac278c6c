//! AVX-512 with VNNI.
//!
//! `vpdpbusd` multiplies unsigned codes (0, 1, 2) with signed activations and adds four neighbours, exact in i32. With
//! the code kept in place (shifted by 2, 4 or 6 bits) one step adds at most `4 * 128 * 128 = 2^16` to a lane, so a lane
//! holds `2^15 - 1` blocks; `MAX_COLS` allows `2^12`.

#![allow(
    clippy::needless_range_loop,
    reason = "the indices are rows, tokens and fields, and each walks several arrays"
)]

use std::arch::x86_64::*;
use std::hint::black_box;

use super::{ByteToken, Element, Kernels, Loop, streams};
use crate::isa::Avx512;
use crate::line::{ByteLine, CodeLine, FloatLine, Line, SumLine, TILE};
use crate::probe::{Peak, WordLine};

/// Writes the safe method that enters a function with the target features on.
macro_rules! enter {
    ($call:expr) => {
        // SAFETY: `self` exists, and `Avx512::detect` makes one only where the processor has every feature named below.
        unsafe { $call }
    };
}

impl Kernels for Avx512 {
    fn ternary_rows_i8<const T: usize>(self, tile: &[CodeLine], x: [ByteToken<'_>; T]) -> [[i32; TILE]; T] {
        if T == 1 { [enter!(rows_i8_one(tile, x[0])); T] } else { enter!(rows_i8(tile, x)) }
    }

    fn ternary_units_i8<const T: usize, const UNIT: usize, const FACTORS: bool>(
        self,
        tile: &[CodeLine],
        scales: &[[f32; TILE]],
        x: [ByteToken<'_>; T],
    ) -> [[f32; TILE]; T] {
        enter!(units_i8::<T, UNIT, FACTORS>(tile, scales, x))
    }

    fn ternary_rows_f32<const T: usize>(self, tile: &[CodeLine], x: [&[FloatLine]; T]) -> [[f32; TILE]; T] {
        enter!(rows_f32(tile, x))
    }

    fn ternary_units_f32<const T: usize, const UNIT: usize>(
        self,
        tile: &[CodeLine],
        scales: &[[f32; TILE]],
        x: [&[FloatLine]; T],
    ) -> [[f32; TILE]; T] {
        enter!(units_f32::<T, UNIT>(tile, scales, x))
    }

    fn dense<E: Element, const R: usize, const T: usize>(
        self,
        w: [&[E]; R],
        x: [&[f32]; T],
    ) -> [[f32; R]; T] {
        enter!(dense(w, x))
    }

    fn int8<const T: usize>(self, codes: &[i8], scales: &[f32], group: usize, x: [&[f32]; T]) -> [f32; T] {
        enter!(int8(codes, scales, group, x))
    }

    fn dense_rows<E: Element>(self, rows: &[E], x: &[f32], out: &mut [f32]) {
        enter!(dense_rows(rows, x, out));
    }

    fn accumulate_rows<E: Element>(self, weights: &[f32], rows: &[E], out: &mut [f32]) {
        enter!(accumulate_rows(weights, rows, out));
    }

    fn widen<E: Element>(self, from: &[E], to: &mut [f32]) {
        enter!(widen(from, to));
    }

    fn read<const S: usize>(self, lines: &[WordLine], ahead: usize) -> u64 {
        enter!(read::<S>(lines, ahead))
    }

    fn peaks(self) -> &'static [Peak<Self>] {
        &[
            Peak { name: "vpdpbusd, 512 bits", macs: 16 * 64, run: |token, steps| token.peak_512(steps) },
            Peak { name: "vpdpbusd, 256 bits", macs: 16 * 32, run: |token, steps| token.peak_256(steps) },
        ]
    }

    fn run<L: Loop>(self, task: L) -> L::Output {
        enter!(run(task))
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
fn run<L: Loop>(task: L) -> L::Output {
    task.run()
}

#[inline]
#[target_feature(enable = "avx512f")]
fn codes(line: &CodeLine) -> __m512i {
    // SAFETY: a line is 64 readable bytes, aligned to 64 by its type.
    unsafe { _mm512_load_si512(line.0.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn bytes(line: &ByteLine) -> __m512i {
    // SAFETY: a line is 64 readable bytes, aligned to 64 by its type.
    unsafe { _mm512_load_si512(line.0.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn sums(line: &SumLine) -> __m512i {
    // SAFETY: a line is 64 readable bytes, aligned to 64 by its type.
    unsafe { _mm512_load_si512(line.0.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn floats(line: &FloatLine) -> __m512 {
    // SAFETY: a line is 64 readable bytes, aligned to 64 by its type.
    unsafe { _mm512_load_ps(line.0.as_ptr()) }
}

/// Sixteen bytes of a line, each widened to 32 bits.
#[inline]
#[target_feature(enable = "avx512f")]
fn chunk(line: &CodeLine, c: usize) -> __m512i {
    let (chunks, _) = line.0.as_chunks::<16>();
    // SAFETY: the chunk is sixteen readable bytes, and the load takes any alignment.
    let chunk = unsafe { _mm_loadu_si128(chunks[c].as_ptr().cast()) };
    _mm512_cvtepu8_epi32(chunk)
}

/// Asks for the line that lies `lines` after this one; asking for memory that does not exist does nothing.
#[inline]
#[target_feature(enable = "avx512f")]
fn prefetch<T>(line: &Line<T>, lines: usize) {
    let ahead = std::ptr::from_ref(line).wrapping_add(lines);
    _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
}

/// The fold of the specification: halves added until one lane is left.
#[inline]
#[target_feature(enable = "avx512f,avx2")]
fn fold(v: __m512) -> f32 {
    let v8 = _mm256_add_ps(_mm512_castps512_ps256(v), upper(v));
    let v4 = _mm_add_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps::<1>(v8));
    let v2 = _mm_add_ps(v4, _mm_movehl_ps(v4, v4));
    _mm_cvtss_f32(_mm_add_ss(v2, _mm_movehdup_ps(v2)))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn upper(v: __m512) -> __m256 {
    _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(v)))
}

/// The lines that a token's prefetch runs ahead of the reading: 4 KiB.
const AHEAD: usize = 64;

/// One token: the codes stay in place, each field with its own sums, which are scaled back once a row.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn rows_i8_one(tile: &[CodeLine], x: ByteToken<'_>) -> [i32; TILE] {
    let masks = [
        _mm512_set1_epi8(0x03),
        _mm512_set1_epi8(0x0C),
        _mm512_set1_epi8(0x30),
        _mm512_set1_epi8(0xC0u8 as i8),
    ];
    let mut acc = [[_mm512_setzero_si512(); 4]; TILE];
    let (blocks, _) = tile.as_chunks::<TILE>();
    let (lines, _) = x.codes.as_chunks::<4>();
    for (block, lines) in blocks.iter().zip(lines) {
        let x = [bytes(&lines[0]), bytes(&lines[1]), bytes(&lines[2]), bytes(&lines[3])];
        for r in 0..TILE {
            prefetch(&block[r], AHEAD);
            let v = codes(&block[r]);
            for f in 0..4 {
                acc[r][f] = _mm512_dpbusd_epi32(acc[r][f], _mm512_and_si512(v, masks[f]), x[f]);
            }
        }
    }
    let mut out = [0; TILE];
    for r in 0..TILE {
        // Every summand of field f is a multiple of 4^f, so the shifts lose nothing.
        let low = _mm512_add_epi32(acc[r][0], _mm512_srai_epi32::<2>(acc[r][1]));
        let high = _mm512_add_epi32(_mm512_srai_epi32::<4>(acc[r][2]), _mm512_srai_epi32::<6>(acc[r][3]));
        out[r] = _mm512_reduce_add_epi32(_mm512_add_epi32(low, high)) - x.sum;
    }
    out
}

/// The four fields of a line, each shifted down to 0, 1 or 2 in its byte.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn fields(line: &CodeLine) -> [__m512i; 4] {
    let v = codes(line);
    let mask = _mm512_set1_epi8(3);
    [
        _mm512_and_si512(v, mask),
        _mm512_and_si512(_mm512_srli_epi16::<2>(v), mask),
        _mm512_and_si512(_mm512_srli_epi16::<4>(v), mask),
        _mm512_and_si512(_mm512_srli_epi16::<6>(v), mask),
    ]
}

/// Several tokens: a line is unpacked once for all of them.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn rows_i8<const T: usize>(tile: &[CodeLine], x: [ByteToken<'_>; T]) -> [[i32; TILE]; T] {
    let mut acc = [[_mm512_setzero_si512(); T]; TILE];
    let (blocks, _) = tile.as_chunks::<TILE>();
    let mut lines: [&[[ByteLine; 4]]; T] = [&[]; T];
    for t in 0..T {
        lines[t] = &x[t].codes.as_chunks::<4>().0[..blocks.len()];
    }
    for (b, block) in blocks.iter().enumerate() {
        for r in 0..TILE {
            let w = fields(&block[r]);
            for t in 0..T {
                for f in 0..4 {
                    acc[r][t] = _mm512_dpbusd_epi32(acc[r][t], w[f], bytes(&lines[t][b][f]));
                }
            }
        }
    }
    let mut out = [[0; TILE]; T];
    for t in 0..T {
        for r in 0..TILE {
            out[t][r] = _mm512_reduce_add_epi32(acc[r][t]) - x[t].sum;
        }
    }
    out
}

/// `sum += scale * value`, rounded twice as the specification says.
#[inline]
#[target_feature(enable = "avx512f")]
fn add_scaled(sum: &mut __m512, scale: __m512, value: __m512) {
    *sum = _mm512_add_ps(*sum, _mm512_mul_ps(scale, value));
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2")]
fn units_i8<const T: usize, const UNIT: usize, const FACTORS: bool>(
    tile: &[CodeLine],
    scales: &[[f32; TILE]],
    x: [ByteToken<'_>; T],
) -> [[f32; TILE]; T] {
    let mut acc = [[_mm512_setzero_ps(); T]; TILE];
    let (blocks, _) = tile.as_chunks::<TILE>();
    let units = 256 / UNIT;
    for (b, block) in blocks.iter().enumerate() {
        let scales = &scales[b * units..][..units];
        // One token's lines stay in registers for all four rows; more would not fit.
        let mut held = [[_mm512_setzero_si512(); 2]; 4];
        if T == 1 {
            for f in 0..4 {
                held[f] = [sums(&x[0].negated[4 * b + f]), bytes(&x[0].codes[4 * b + f])];
            }
        }
        for r in 0..TILE {
            if T == 1 {
                prefetch(&block[r], AHEAD);
            }
            let w = fields(&block[r]);
            for t in 0..T {
                let lines = &x[t].codes[4 * b..][..4];
                let negated = &x[t].negated[4 * b..][..4];
                let factors = &x[t].factors[8 * b..][..8];
                let scale = |unit: usize| {
                    if FACTORS { scales[unit][r] * factors[unit * UNIT / 32] } else { scales[unit][r] }
                };
                // The sums start from the bias, so that they count trits and not codes.
                let mut dots = [_mm512_setzero_si512(); 4];
                for f in 0..4 {
                    let [start, x] = if T == 1 { held[f] } else { [sums(&negated[f]), bytes(&lines[f])] };
                    dots[f] = _mm512_dpbusd_epi32(start, w[f], x);
                }
                let acc = &mut acc[r][t];
                match UNIT {
                    32 => {
                        for f in 0..4 {
                            let (low, high) =
                                (_mm512_set1_ps(scale(2 * f)), _mm512_set1_ps(scale(2 * f + 1)));
                            let both = _mm512_mask_blend_ps(0xFF00, low, high);
                            add_scaled(acc, both, _mm512_cvtepi32_ps(dots[f]));
                        }
                    }
                    64 => {
                        for f in 0..4 {
                            add_scaled(acc, _mm512_set1_ps(scale(f)), _mm512_cvtepi32_ps(dots[f]));
                        }
                    }
                    128 => {
                        for h in 0..2 {
                            let dots = _mm512_add_epi32(dots[2 * h], dots[2 * h + 1]);
                            add_scaled(acc, _mm512_set1_ps(scale(h)), _mm512_cvtepi32_ps(dots));
                        }
                    }
                    _ => {
                        let low = _mm512_add_epi32(dots[0], dots[1]);
                        let high = _mm512_add_epi32(dots[2], dots[3]);
                        let dots = _mm512_add_epi32(low, high);
                        add_scaled(acc, _mm512_set1_ps(scale(0)), _mm512_cvtepi32_ps(dots));
                    }
                }
            }
        }
    }
    let mut out = [[0.0; TILE]; T];
    for t in 0..T {
        for r in 0..TILE {
            out[t][r] = fold(acc[r][t]);
        }
    }
    out
}

/// The trits of one chunk's four fields as f32: a lookup by the two lowest bits; the table repeats every four entries,
/// so the bits above need no mask.
#[inline]
#[target_feature(enable = "avx512f")]
fn trits(chunk: __m512i) -> [__m512; 4] {
    let table =
        _mm512_setr_ps(-1.0, 0.0, 1.0, 0.0, -1.0, 0.0, 1.0, 0.0, -1.0, 0.0, 1.0, 0.0, -1.0, 0.0, 1.0, 0.0);
    [
        _mm512_permutexvar_ps(chunk, table),
        _mm512_permutexvar_ps(_mm512_srli_epi32::<2>(chunk), table),
        _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(chunk), table),
        _mm512_permutexvar_ps(_mm512_srli_epi32::<6>(chunk), table),
    ]
}

/// `(p0 + p1) + (p2 + p3)`.
#[inline]
#[target_feature(enable = "avx512f")]
fn join(p: [__m512; 4]) -> __m512 {
    _mm512_add_ps(_mm512_add_ps(p[0], p[1]), _mm512_add_ps(p[2], p[3]))
}

/// A trit times an activation is exact, so the fused operation rounds as the specification's separate ones do.
#[target_feature(enable = "avx512f,avx2")]
fn rows_f32<const T: usize>(tile: &[CodeLine], x: [&[FloatLine]; T]) -> [[f32; TILE]; T] {
    let (blocks, _) = tile.as_chunks::<TILE>();
    let mut lines: [&[[FloatLine; 16]]; T] = [&[]; T];
    for t in 0..T {
        lines[t] = &x[t].as_chunks::<16>().0[..blocks.len()];
    }
    let mut out = [[0.0; TILE]; T];
    // Four fields times T tokens of running sums fit the registers for one row, not for four.
    for r in 0..TILE {
        let mut parts = [[_mm512_setzero_ps(); 4]; T];
        for (b, block) in blocks.iter().enumerate() {
            for c in 0..4 {
                let w = trits(chunk(&block[r], c));
                for t in 0..T {
                    for f in 0..4 {
                        parts[t][f] = _mm512_fmadd_ps(w[f], floats(&lines[t][b][4 * f + c]), parts[t][f]);
                    }
                }
            }
        }
        for t in 0..T {
            out[t][r] = fold(join(parts[t]));
        }
    }
    out
}

#[target_feature(enable = "avx512f,avx2")]
fn units_f32<const T: usize, const UNIT: usize>(
    tile: &[CodeLine],
    scales: &[[f32; TILE]],
    x: [&[FloatLine]; T],
) -> [[f32; TILE]; T] {
    let (blocks, _) = tile.as_chunks::<TILE>();
    let units = 256 / UNIT;
    let halves = if UNIT == 32 { 2 } else { 1 };
    let mut lines: [&[[FloatLine; 16]]; T] = [&[]; T];
    for t in 0..T {
        lines[t] = &x[t].as_chunks::<16>().0[..blocks.len()];
    }
    let mut out = [[0.0; TILE]; T];
    for r in 0..TILE {
        let mut acc = [_mm512_setzero_ps(); T];
        for (b, block) in blocks.iter().enumerate() {
            let scales = &scales[b * units..][..units];
            for h in 0..halves {
                let mut parts = [[_mm512_setzero_ps(); 4]; T];
                for c in 4 / halves * h..4 / halves * (h + 1) {
                    let w = trits(chunk(&block[r], c));
                    for t in 0..T {
                        for f in 0..4 {
                            parts[t][f] = _mm512_fmadd_ps(w[f], floats(&lines[t][b][4 * f + c]), parts[t][f]);
                        }
                    }
                }
                for t in 0..T {
                    let (acc, p) = (&mut acc[t], parts[t]);
                    match UNIT {
                        128 => {
                            add_scaled(acc, _mm512_set1_ps(scales[0][r]), _mm512_add_ps(p[0], p[1]));
                            add_scaled(acc, _mm512_set1_ps(scales[1][r]), _mm512_add_ps(p[2], p[3]));
                        }
                        256 => add_scaled(acc, _mm512_set1_ps(scales[0][r]), join(p)),
                        _ => {
                            for f in 0..4 {
                                add_scaled(acc, _mm512_set1_ps(scales[halves * f + h][r]), p[f]);
                            }
                        }
                    }
                }
            }
        }
        for t in 0..T {
            out[t][r] = fold(acc[t]);
        }
    }
    out
}

/// Sixteen values of any element type.
#[inline]
#[target_feature(enable = "avx512f")]
fn load<E: Element>(chunk: &[E; 16]) -> __m512 {
    // SAFETY: this function's own target feature is the one that `load16` asks for.
    unsafe { E::load16(chunk) }
}

/// The elements after the last whole chunk, padded with zeros.
#[inline]
#[target_feature(enable = "avx512f")]
fn load_tail<E: Element>(tail: &[E]) -> __m512 {
    let mut padded = [E::ZERO; 16];
    padded[..tail.len()].copy_from_slice(tail);
    load(&padded)
}

#[inline]
#[target_feature(enable = "avx512f,avx2,f16c")]
fn dense_lanes<E: Element, const R: usize, const T: usize>(w: [&[E]; R], x: [&[f32]; T]) -> [[__m512; R]; T] {
    let n = x[0].len() / 16;
    let mut wc: [&[[E; 16]]; R] = [&[]; R];
    let mut xc: [&[[f32; 16]]; T] = [&[]; T];
    for r in 0..R {
        wc[r] = &w[r].as_chunks().0[..n];
    }
    for t in 0..T {
        xc[t] = &x[t].as_chunks().0[..n];
    }
    let mut acc = [[_mm512_setzero_ps(); R]; T];
    for i in 0..n {
        let mut xv = [_mm512_setzero_ps(); T];
        for t in 0..T {
            xv[t] = load(&xc[t][i]);
        }
        for r in 0..R {
            let wv = load(&wc[r][i]);
            for t in 0..T {
                acc[t][r] = _mm512_fmadd_ps(wv, xv[t], acc[t][r]);
            }
        }
    }
    if !x[0].len().is_multiple_of(16) {
        for t in 0..T {
            let xv = load_tail(&x[t][16 * n..]);
            for r in 0..R {
                acc[t][r] = _mm512_fmadd_ps(load_tail(&w[r][16 * n..]), xv, acc[t][r]);
            }
        }
    }
    acc
}

#[target_feature(enable = "avx512f,avx2,f16c")]
fn dense<E: Element, const R: usize, const T: usize>(w: [&[E]; R], x: [&[f32]; T]) -> [[f32; R]; T] {
    let acc = dense_lanes(w, x);
    let mut out = [[0.0; R]; T];
    for t in 0..T {
        for r in 0..R {
            out[t][r] = fold(acc[t][r]);
        }
    }
    out
}

#[target_feature(enable = "avx512f,avx2,f16c")]
fn int8<const T: usize>(codes: &[i8], scales: &[f32], group: usize, x: [&[f32]; T]) -> [f32; T] {
    if codes.len().is_multiple_of(group) {
        // The groups of the usual formats are unrolled.
        match group {
            32 => return int8_groups::<T, 2>(codes, scales, x),
            64 => return int8_groups::<T, 4>(codes, scales, x),
            128 => return int8_groups::<T, 8>(codes, scales, x),
            _ => {}
        }
    }
    let mut acc = [_mm512_setzero_ps(); T];
    for (g, (codes, scale)) in codes.chunks(group).zip(scales).enumerate() {
        let mut xg: [&[f32]; T] = [&[]; T];
        for t in 0..T {
            xg[t] = &x[t][g * group..][..codes.len()];
        }
        let part = dense_lanes([codes], xg);
        for t in 0..T {
            acc[t] = _mm512_fmadd_ps(_mm512_set1_ps(*scale), part[t][0], acc[t]);
        }
    }
    let mut out = [0.0; T];
    for t in 0..T {
        out[t] = fold(acc[t]);
    }
    out
}

/// [`int8`] for whole groups of `N` chunks.
#[inline]
#[target_feature(enable = "avx512f,avx2,f16c")]
fn int8_groups<const T: usize, const N: usize>(codes: &[i8], scales: &[f32], x: [&[f32]; T]) -> [f32; T] {
    let groups = codes.as_chunks::<16>().0.as_chunks::<N>().0;
    let n = groups.len();
    let mut xg: [&[[[f32; 16]; N]]; T] = [&[]; T];
    for t in 0..T {
        xg[t] = &x[t].as_chunks::<16>().0.as_chunks::<N>().0[..n];
    }
    let mut acc = [_mm512_setzero_ps(); T];
    for (g, scale) in scales[..n].iter().enumerate() {
        let mut part = [_mm512_setzero_ps(); T];
        for c in 0..N {
            let w = load(&groups[g][c]);
            for t in 0..T {
                part[t] = _mm512_fmadd_ps(w, load(&xg[t][g][c]), part[t]);
            }
        }
        for t in 0..T {
            acc[t] = _mm512_fmadd_ps(_mm512_set1_ps(*scale), part[t], acc[t]);
        }
    }
    let mut out = [0.0; T];
    for t in 0..T {
        out[t] = fold(acc[t]);
    }
    out
}

#[target_feature(enable = "avx512f,avx2,f16c")]
fn dense_rows<E: Element>(rows: &[E], x: &[f32], out: &mut [f32]) {
    let k = x.len();
    let (fours, rest) = out.as_chunks_mut::<4>();
    let (head, tail) = rows.split_at(4 * k * fours.len());
    for (out, rows) in fours.iter_mut().zip(head.chunks_exact(4 * k)) {
        let acc = dense_lanes([&rows[..k], &rows[k..2 * k], &rows[2 * k..3 * k], &rows[3 * k..]], [x]);
        for r in 0..4 {
            out[r] = fold(acc[0][r]);
        }
    }
    for (out, row) in rest.iter_mut().zip(tail.chunks_exact(k)) {
        *out = fold(dense_lanes([row], [x])[0][0]);
    }
}

/// Sixty-four outputs at a time stay in registers while the rows pass.
#[target_feature(enable = "avx512f,avx2,f16c")]
fn accumulate_rows<E: Element>(weights: &[f32], rows: &[E], out: &mut [f32]) {
    let d = out.len();
    for (i, columns) in out.chunks_mut(64).enumerate() {
        if columns.len() == 64 {
            accumulate_columns::<E, 4>(weights, rows, d, 64 * i, columns);
        } else {
            for (j, piece) in columns.chunks_mut(16).enumerate() {
                accumulate_columns::<E, 1>(weights, rows, d, 64 * i + 16 * j, piece);
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx2,f16c")]
fn accumulate_columns<E: Element, const N: usize>(
    weights: &[f32],
    rows: &[E],
    d: usize,
    start: usize,
    out: &mut [f32],
) {
    let width = out.len();
    let mut acc = [_mm512_setzero_ps(); N];
    for (weight, row) in weights.iter().zip(rows.chunks_exact(d)) {
        let weight = _mm512_set1_ps(*weight);
        let row = &row[start..start + width];
        if width == 16 * N {
            let (chunks, _) = row.as_chunks::<16>();
            for n in 0..N {
                acc[n] = _mm512_fmadd_ps(weight, load(&chunks[n]), acc[n]);
            }
        } else {
            acc[0] = _mm512_fmadd_ps(weight, load_tail(row), acc[0]);
        }
    }
    for (out, acc) in out.chunks_mut(16).zip(acc) {
        let mut lanes = [0.0; 16];
        store(&mut lanes, acc);
        for (out, lane) in out.iter_mut().zip(lanes) {
            *out += lane;
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(to: &mut [f32; 16], lanes: __m512) {
    // SAFETY: the array has room for sixteen f32, and the store takes any alignment.
    unsafe { _mm512_storeu_ps(to.as_mut_ptr(), lanes) };
}

#[target_feature(enable = "avx512f,avx2,f16c")]
fn widen<E: Element>(from: &[E], to: &mut [f32]) {
    let (chunks, tail) = from.as_chunks::<16>();
    let (to, rest) = to.as_chunks_mut::<16>();
    for (from, to) in chunks.iter().zip(to) {
        store(to, load(from));
    }
    let mut last = [0.0; 16];
    store(&mut last, load_tail(tail));
    rest.copy_from_slice(&last[..rest.len()]);
}

impl Avx512 {
    fn peak_512(self, steps: u64) {
        enter!(peak_512(steps));
    }

    fn peak_256(self, steps: u64) {
        enter!(peak_256(steps));
    }
}

/// Sixteen independent sums: more than latency times throughput.
#[target_feature(enable = "avx512f,avx512vnni")]
fn peak_512(steps: u64) {
    let (w, x) = (black_box(_mm512_set1_epi8(2)), black_box(_mm512_set1_epi8(3)));
    let mut acc = [_mm512_setzero_si512(); 16];
    for _ in 0..steps {
        for acc in &mut acc {
            *acc = _mm512_dpbusd_epi32(*acc, w, x);
        }
    }
    black_box(acc);
}

/// [`peak_512`] in half the width, for processors that split or slow down wide instructions.
#[target_feature(enable = "avx512vl,avx512vnni")]
fn peak_256(steps: u64) {
    let (w, x) = (black_box(_mm256_set1_epi8(2)), black_box(_mm256_set1_epi8(3)));
    let mut acc = [_mm256_setzero_si256(); 16];
    for _ in 0..steps {
        for acc in &mut acc {
            *acc = _mm256_dpbusd_epi32(*acc, w, x);
        }
    }
    black_box(acc);
}

#[target_feature(enable = "avx512f")]
fn read<const S: usize>(lines: &[WordLine], ahead: usize) -> u64 {
    let (streams, len) = streams::<S>(lines);
    let mut acc = [_mm512_setzero_si512(); S];
    for i in 0..len {
        for s in 0..S {
            let line = &streams[s][i];
            if ahead > 0 {
                prefetch(line, ahead);
            }
            // SAFETY: a line is 64 readable bytes, aligned to 64 by its type.
            let words = unsafe { _mm512_load_si512(line.0.as_ptr().cast()) };
            acc[s] = _mm512_add_epi64(acc[s], words);
        }
    }
    acc.iter().fold(0, |sum, acc| sum ^ _mm512_reduce_add_epi64(*acc) as u64)
}
