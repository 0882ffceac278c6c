//! AVX2 with FMA and F16C: two 256-bit registers stand for the sixteen lanes of the specification.
//!
//! `vpmaddubsw` adds two products of a code (0, 1, 2) and an activation: at most `2 * 2 * 128 = 2^9` in an i16. The four
//! fields of a line add up to `2^11`, and `vpmaddwd` widens before anything grows further.

#![allow(
    clippy::needless_range_loop,
    reason = "the indices are rows, tokens and fields, and each walks several arrays"
)]

use std::arch::x86_64::*;
use std::hint::black_box;

use super::{ByteToken, Element, Kernels, Loop, streams};
use crate::isa::Avx2;
use crate::line::{ByteLine, CodeLine, FloatLine, SumLine, TILE};
use crate::probe::{Peak, WordLine};

/// Writes the safe method that enters a function with the target features on.
macro_rules! enter {
    ($call:expr) => {
        // SAFETY: `self` exists, and `Avx2::detect` makes one only where the processor has AVX2, FMA and F16C.
        unsafe { $call }
    };
}

impl Kernels for Avx2 {
    fn ternary_rows_i8<const T: usize>(self, tile: &[CodeLine], x: [ByteToken<'_>; T]) -> [[i32; TILE]; T] {
        enter!(rows_i8(tile, x))
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
            Peak {
                name: "vpmaddubsw and vpmaddwd",
                macs: 8 * 32,
                run: |token, steps| token.peak_wide(steps),
            },
            Peak {
                name: "vpmaddubsw, widened every fourth",
                macs: 16 * 32,
                run: |token, steps| token.peak_merged(steps),
            },
        ]
    }

    fn run<L: Loop>(self, task: L) -> L::Output {
        enter!(run(task))
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn run<L: Loop>(task: L) -> L::Output {
    task.run()
}

/// Half `h` of a line of codes.
#[inline]
#[target_feature(enable = "avx2")]
fn codes(line: &CodeLine, h: usize) -> __m256i {
    let half = &line.0.as_chunks::<32>().0[h];
    // SAFETY: the half is 32 readable bytes, and the load takes any alignment.
    unsafe { _mm256_loadu_si256(half.as_ptr().cast()) }
}

/// Half `h` of a line of activations.
#[inline]
#[target_feature(enable = "avx2")]
fn bytes(line: &ByteLine, h: usize) -> __m256i {
    let half = &line.0.as_chunks::<32>().0[h];
    // SAFETY: the half is 32 readable bytes, and the load takes any alignment.
    unsafe { _mm256_loadu_si256(half.as_ptr().cast()) }
}

/// Half `h` of a line of sums.
#[inline]
#[target_feature(enable = "avx2")]
fn sums(line: &SumLine, h: usize) -> __m256i {
    let half = &line.0.as_chunks::<8>().0[h];
    // SAFETY: the half is 32 readable bytes, and the load takes any alignment.
    unsafe { _mm256_loadu_si256(half.as_ptr().cast()) }
}

/// Half `h` of a line of f32.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn floats(line: &FloatLine, h: usize) -> __m256 {
    load(&line.0.as_chunks::<8>().0[h])
}

/// Eight bytes of a line, each widened to 32 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn chunk(line: &CodeLine, c: usize) -> __m256i {
    let chunk = &line.0.as_chunks::<8>().0[c];
    // SAFETY: the chunk is eight readable bytes, all that the load reads.
    let chunk = unsafe { _mm_loadl_epi64(chunk.as_ptr().cast()) };
    _mm256_cvtepu8_epi32(chunk)
}

/// The fold of the specification, for the lower and the upper eight lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn fold(v: [__m256; 2]) -> f32 {
    let v8 = _mm256_add_ps(v[0], v[1]);
    let v4 = _mm_add_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps::<1>(v8));
    let v2 = _mm_add_ps(v4, _mm_movehl_ps(v4, v4));
    _mm_cvtss_f32(_mm_add_ss(v2, _mm_movehdup_ps(v2)))
}

/// The sum of eight i32.
#[inline]
#[target_feature(enable = "avx2")]
fn total(v: __m256i) -> i32 {
    let v4 = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
    let v2 = _mm_add_epi32(v4, _mm_shuffle_epi32::<0b01_00_11_10>(v4));
    _mm_cvtsi128_si32(_mm_add_epi32(v2, _mm_shuffle_epi32::<0b10_11_00_01>(v2)))
}

/// The four fields of half a line, each shifted down to 0, 1 or 2 in its byte.
#[inline]
#[target_feature(enable = "avx2")]
fn fields(line: &CodeLine, h: usize) -> [__m256i; 4] {
    let v = codes(line, h);
    let mask = _mm256_set1_epi8(3);
    [
        _mm256_and_si256(v, mask),
        _mm256_and_si256(_mm256_srli_epi16::<2>(v), mask),
        _mm256_and_si256(_mm256_srli_epi16::<4>(v), mask),
        _mm256_and_si256(_mm256_srli_epi16::<6>(v), mask),
    ]
}

#[target_feature(enable = "avx2")]
fn rows_i8<const T: usize>(tile: &[CodeLine], x: [ByteToken<'_>; T]) -> [[i32; TILE]; T] {
    let ones = _mm256_set1_epi16(1);
    let mut acc = [[_mm256_setzero_si256(); T]; TILE];
    let (blocks, _) = tile.as_chunks::<TILE>();
    let mut lines: [&[[ByteLine; 4]]; T] = [&[]; T];
    for t in 0..T {
        lines[t] = &x[t].codes.as_chunks::<4>().0[..blocks.len()];
    }
    for (b, block) in blocks.iter().enumerate() {
        for h in 0..2 {
            for r in 0..TILE {
                let w = fields(&block[r], h);
                for t in 0..T {
                    let x = &lines[t][b];
                    let low = _mm256_add_epi16(
                        _mm256_maddubs_epi16(w[0], bytes(&x[0], h)),
                        _mm256_maddubs_epi16(w[1], bytes(&x[1], h)),
                    );
                    let high = _mm256_add_epi16(
                        _mm256_maddubs_epi16(w[2], bytes(&x[2], h)),
                        _mm256_maddubs_epi16(w[3], bytes(&x[3], h)),
                    );
                    let wide = _mm256_madd_epi16(_mm256_add_epi16(low, high), ones);
                    acc[r][t] = _mm256_add_epi32(acc[r][t], wide);
                }
            }
        }
    }
    let mut out = [[0; TILE]; T];
    for t in 0..T {
        for r in 0..TILE {
            out[t][r] = total(acc[r][t]) - x[t].sum;
        }
    }
    out
}

/// `sum += scale * value`, rounded twice as the specification says.
#[inline]
#[target_feature(enable = "avx2")]
fn add_scaled(sum: &mut __m256, scale: f32, value: __m256) {
    *sum = _mm256_add_ps(*sum, _mm256_mul_ps(_mm256_set1_ps(scale), value));
}

#[target_feature(enable = "avx2")]
fn units_i8<const T: usize, const UNIT: usize, const FACTORS: bool>(
    tile: &[CodeLine],
    scales: &[[f32; TILE]],
    x: [ByteToken<'_>; T],
) -> [[f32; TILE]; T] {
    let ones = _mm256_set1_epi16(1);
    let mut acc = [[[_mm256_setzero_ps(); 2]; T]; TILE];
    let (blocks, _) = tile.as_chunks::<TILE>();
    let units = 256 / UNIT;
    for (b, block) in blocks.iter().enumerate() {
        let scales = &scales[b * units..][..units];
        for r in 0..TILE {
            for h in 0..2 {
                let w = fields(&block[r], h);
                for t in 0..T {
                    let lines = &x[t].codes[4 * b..][..4];
                    let negated = &x[t].negated[4 * b..][..4];
                    let factors = &x[t].factors[8 * b..][..8];
                    let scale = |unit: usize| {
                        if FACTORS { scales[unit][r] * factors[unit * UNIT / 32] } else { scales[unit][r] }
                    };
                    // The sums start from the bias, so that they count trits and not codes.
                    let mut dots = [_mm256_setzero_si256(); 4];
                    for f in 0..4 {
                        let pairs = _mm256_maddubs_epi16(w[f], bytes(&lines[f], h));
                        dots[f] = _mm256_add_epi32(sums(&negated[f], h), _mm256_madd_epi16(pairs, ones));
                    }
                    let acc = &mut acc[r][t][h];
                    match UNIT {
                        128 => {
                            for q in 0..2 {
                                let dots = _mm256_add_epi32(dots[2 * q], dots[2 * q + 1]);
                                add_scaled(acc, scale(q), _mm256_cvtepi32_ps(dots));
                            }
                        }
                        256 => {
                            let low = _mm256_add_epi32(dots[0], dots[1]);
                            let high = _mm256_add_epi32(dots[2], dots[3]);
                            add_scaled(acc, scale(0), _mm256_cvtepi32_ps(_mm256_add_epi32(low, high)));
                        }
                        _ => {
                            for f in 0..4 {
                                let unit = if UNIT == 32 { 2 * f + h } else { f };
                                add_scaled(acc, scale(unit), _mm256_cvtepi32_ps(dots[f]));
                            }
                        }
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
#[target_feature(enable = "avx2")]
fn trits(chunk: __m256i) -> [__m256; 4] {
    let table = _mm256_setr_ps(-1.0, 0.0, 1.0, 0.0, -1.0, 0.0, 1.0, 0.0);
    [
        _mm256_permutevar8x32_ps(table, chunk),
        _mm256_permutevar8x32_ps(table, _mm256_srli_epi32::<2>(chunk)),
        _mm256_permutevar8x32_ps(table, _mm256_srli_epi32::<4>(chunk)),
        _mm256_permutevar8x32_ps(table, _mm256_srli_epi32::<6>(chunk)),
    ]
}

/// `(p0 + p1) + (p2 + p3)`.
#[inline]
#[target_feature(enable = "avx2")]
fn join(p: [__m256; 4]) -> __m256 {
    _mm256_add_ps(_mm256_add_ps(p[0], p[1]), _mm256_add_ps(p[2], p[3]))
}

/// A trit times an activation is exact, so the fused operation rounds as the specification's separate ones do.
#[target_feature(enable = "avx2,fma,f16c")]
fn rows_f32<const T: usize>(tile: &[CodeLine], x: [&[FloatLine]; T]) -> [[f32; TILE]; T] {
    let (blocks, _) = tile.as_chunks::<TILE>();
    let mut lines: [&[[FloatLine; 16]]; T] = [&[]; T];
    for t in 0..T {
        lines[t] = &x[t].as_chunks::<16>().0[..blocks.len()];
    }
    let mut out = [[0.0; TILE]; T];
    for r in 0..TILE {
        // The lower and the upper eight lanes in turn: eight running sums at a time for every two tokens.
        let mut lanes = [[_mm256_setzero_ps(); 2]; T];
        for h in 0..2 {
            let mut parts = [[_mm256_setzero_ps(); 4]; T];
            for (b, block) in blocks.iter().enumerate() {
                for c in 0..4 {
                    let w = trits(chunk(&block[r], 2 * c + h));
                    for t in 0..T {
                        for f in 0..4 {
                            let x = floats(&lines[t][b][4 * f + c], h);
                            parts[t][f] = _mm256_fmadd_ps(w[f], x, parts[t][f]);
                        }
                    }
                }
            }
            for t in 0..T {
                lanes[t][h] = join(parts[t]);
            }
        }
        for t in 0..T {
            out[t][r] = fold(lanes[t]);
        }
    }
    out
}

#[target_feature(enable = "avx2,fma,f16c")]
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
        let mut lanes = [[_mm256_setzero_ps(); 2]; T];
        for lane in 0..2 {
            for (b, block) in blocks.iter().enumerate() {
                let scales = &scales[b * units..][..units];
                for h in 0..halves {
                    let mut parts = [[_mm256_setzero_ps(); 4]; T];
                    for c in 4 / halves * h..4 / halves * (h + 1) {
                        let w = trits(chunk(&block[r], 2 * c + lane));
                        for t in 0..T {
                            for f in 0..4 {
                                let x = floats(&lines[t][b][4 * f + c], lane);
                                parts[t][f] = _mm256_fmadd_ps(w[f], x, parts[t][f]);
                            }
                        }
                    }
                    for t in 0..T {
                        let (acc, p) = (&mut lanes[t][lane], parts[t]);
                        match UNIT {
                            128 => {
                                add_scaled(acc, scales[0][r], _mm256_add_ps(p[0], p[1]));
                                add_scaled(acc, scales[1][r], _mm256_add_ps(p[2], p[3]));
                            }
                            256 => add_scaled(acc, scales[0][r], join(p)),
                            _ => {
                                for f in 0..4 {
                                    add_scaled(acc, scales[halves * f + h][r], p[f]);
                                }
                            }
                        }
                    }
                }
            }
        }
        for t in 0..T {
            out[t][r] = fold(lanes[t]);
        }
    }
    out
}

/// Eight values of any element type.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn load<E: Element>(chunk: &[E; 8]) -> __m256 {
    // SAFETY: this function's own target features are the ones that `load8` asks for.
    unsafe { E::load8(chunk) }
}

/// The elements after the last whole chunk, padded with zeros.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn load_tail<E: Element>(tail: &[E]) -> __m256 {
    let mut padded = [E::ZERO; 8];
    padded[..tail.len()].copy_from_slice(tail);
    load(&padded)
}

/// Two registers of running sums a dot product, so that a long row loses no more than with sixteen lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dense_lanes<E: Element, const R: usize, const T: usize>(
    w: [&[E]; R],
    x: [&[f32]; T],
) -> [[[__m256; 2]; R]; T] {
    let n = x[0].len() / 8;
    let mut wc: [&[[E; 8]]; R] = [&[]; R];
    let mut xc: [&[[f32; 8]]; T] = [&[]; T];
    for r in 0..R {
        wc[r] = &w[r].as_chunks().0[..n];
    }
    for t in 0..T {
        xc[t] = &x[t].as_chunks().0[..n];
    }
    let mut acc = [[[_mm256_setzero_ps(); 2]; R]; T];
    for i in 0..n / 2 {
        for h in 0..2 {
            for r in 0..R {
                let wv = load(&wc[r][2 * i + h]);
                for t in 0..T {
                    acc[t][r][h] = _mm256_fmadd_ps(wv, load(&xc[t][2 * i + h]), acc[t][r][h]);
                }
            }
        }
    }
    // At most one whole chunk and one broken one are left.
    for start in (n / 2 * 16..x[0].len()).step_by(8) {
        let end = (start + 8).min(x[0].len());
        for t in 0..T {
            let xv = load_tail(&x[t][start..end]);
            for r in 0..R {
                acc[t][r][0] = _mm256_fmadd_ps(load_tail(&w[r][start..end]), xv, acc[t][r][0]);
            }
        }
    }
    acc
}

#[target_feature(enable = "avx2,fma,f16c")]
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

#[target_feature(enable = "avx2,fma,f16c")]
fn int8<const T: usize>(codes: &[i8], scales: &[f32], group: usize, x: [&[f32]; T]) -> [f32; T] {
    let mut acc = [[_mm256_setzero_ps(); 2]; T];
    for (g, (codes, scale)) in codes.chunks(group).zip(scales).enumerate() {
        let mut xg: [&[f32]; T] = [&[]; T];
        for t in 0..T {
            xg[t] = &x[t][g * group..][..codes.len()];
        }
        let part = dense_lanes([codes], xg);
        for t in 0..T {
            for h in 0..2 {
                acc[t][h] = _mm256_fmadd_ps(_mm256_set1_ps(*scale), part[t][0][h], acc[t][h]);
            }
        }
    }
    let mut out = [0.0; T];
    for t in 0..T {
        out[t] = fold(acc[t]);
    }
    out
}

#[target_feature(enable = "avx2,fma,f16c")]
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

/// Thirty-two outputs at a time stay in registers while the rows pass.
#[target_feature(enable = "avx2,fma,f16c")]
fn accumulate_rows<E: Element>(weights: &[f32], rows: &[E], out: &mut [f32]) {
    let d = out.len();
    for (i, columns) in out.chunks_mut(32).enumerate() {
        if columns.len() == 32 {
            accumulate_columns::<E, 4>(weights, rows, d, 32 * i, columns);
        } else {
            for (j, piece) in columns.chunks_mut(8).enumerate() {
                accumulate_columns::<E, 1>(weights, rows, d, 32 * i + 8 * j, piece);
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn accumulate_columns<E: Element, const N: usize>(
    weights: &[f32],
    rows: &[E],
    d: usize,
    start: usize,
    out: &mut [f32],
) {
    let width = out.len();
    let mut acc = [_mm256_setzero_ps(); N];
    for (weight, row) in weights.iter().zip(rows.chunks_exact(d)) {
        let weight = _mm256_set1_ps(*weight);
        let row = &row[start..start + width];
        if width == 8 * N {
            let (chunks, _) = row.as_chunks::<8>();
            for n in 0..N {
                acc[n] = _mm256_fmadd_ps(weight, load(&chunks[n]), acc[n]);
            }
        } else {
            acc[0] = _mm256_fmadd_ps(weight, load_tail(row), acc[0]);
        }
    }
    for (out, acc) in out.chunks_mut(8).zip(acc) {
        let mut lanes = [0.0; 8];
        store(&mut lanes, acc);
        for (out, lane) in out.iter_mut().zip(lanes) {
            *out += lane;
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(to: &mut [f32; 8], lanes: __m256) {
    // SAFETY: the array has room for eight f32, and the store takes any alignment.
    unsafe { _mm256_storeu_ps(to.as_mut_ptr(), lanes) };
}

#[target_feature(enable = "avx2,f16c")]
fn widen<E: Element>(from: &[E], to: &mut [f32]) {
    let (chunks, tail) = from.as_chunks::<8>();
    let (to, rest) = to.as_chunks_mut::<8>();
    for (from, to) in chunks.iter().zip(to) {
        store(to, load(from));
    }
    let mut last = [0.0; 8];
    store(&mut last, load_tail(tail));
    rest.copy_from_slice(&last[..rest.len()]);
}

impl Avx2 {
    fn peak_wide(self, steps: u64) {
        enter!(peak_wide(steps));
    }

    fn peak_merged(self, steps: u64) {
        enter!(peak_merged(steps));
    }
}

/// What int8 weights of any size need: every product pair is widened at once.
#[target_feature(enable = "avx2")]
fn peak_wide(steps: u64) {
    let (w, ones) = (black_box(_mm256_set1_epi8(2)), black_box(_mm256_set1_epi16(1)));
    let x = _mm256_set1_epi8(3);
    let mut acc = [_mm256_setzero_si256(); 8];
    for _ in 0..steps {
        for acc in &mut acc {
            // Read anew each time, so that the product cannot be moved out of the loop.
            let x = black_box(&x);
            *acc = _mm256_add_epi32(*acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, *x), ones));
        }
    }
    black_box(acc);
}

/// What ternary weights allow: four product pairs fit an i16 before they are widened.
#[target_feature(enable = "avx2")]
fn peak_merged(steps: u64) {
    let (w, ones) = (black_box(_mm256_set1_epi8(2)), black_box(_mm256_set1_epi16(1)));
    let x = black_box([_mm256_set1_epi8(3); 4]);
    let mut acc = [_mm256_setzero_si256(); 4];
    for _ in 0..steps {
        for acc in &mut acc {
            let x = black_box(&x);
            let low = _mm256_add_epi16(_mm256_maddubs_epi16(w, x[0]), _mm256_maddubs_epi16(w, x[1]));
            let high = _mm256_add_epi16(_mm256_maddubs_epi16(w, x[2]), _mm256_maddubs_epi16(w, x[3]));
            *acc = _mm256_add_epi32(*acc, _mm256_madd_epi16(_mm256_add_epi16(low, high), ones));
        }
    }
    black_box(acc);
}

#[target_feature(enable = "avx2")]
fn read<const S: usize>(lines: &[WordLine], ahead: usize) -> u64 {
    let (streams, len) = streams::<S>(lines);
    let mut acc = [_mm256_setzero_si256(); S];
    for i in 0..len {
        for s in 0..S {
            let line = &streams[s][i];
            if ahead > 0 {
                _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(line).wrapping_add(ahead).cast());
            }
            for half in line.0.as_chunks::<4>().0 {
                // SAFETY: the half is 32 readable bytes, and the load takes any alignment.
                let words = unsafe { _mm256_loadu_si256(half.as_ptr().cast()) };
                acc[s] = _mm256_add_epi64(acc[s], words);
            }
        }
    }
    let mut sum = _mm256_setzero_si256();
    for acc in acc {
        sum = _mm256_add_epi64(sum, acc);
    }
    total(sum) as u64
}
