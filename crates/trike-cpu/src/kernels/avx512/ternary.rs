//! Ternary weights with int8 and with f32 activations.

use std::arch::x86_64::*;

use super::{fold, prefetch};
use crate::kernels::ByteToken;
use crate::line::{ByteLine, CodeLine, FloatLine, SumLine, TILE};

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

/// The lines that a token's prefetch runs ahead of the reading: 4 KiB.
const AHEAD: usize = 64;

/// One token: the codes stay in place, each field with its own sums, which are scaled back once a row.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) fn rows_i8_one(tile: &[CodeLine], x: ByteToken<'_>) -> [i32; TILE] {
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
pub(super) fn rows_i8<const T: usize>(tile: &[CodeLine], x: [ByteToken<'_>; T]) -> [[i32; TILE]; T] {
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
pub(super) fn units_i8<const T: usize, const UNIT: usize, const FACTORS: bool>(
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
pub(super) fn rows_f32<const T: usize>(tile: &[CodeLine], x: [&[FloatLine]; T]) -> [[f32; TILE]; T] {
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
pub(super) fn units_f32<const T: usize, const UNIT: usize>(
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
