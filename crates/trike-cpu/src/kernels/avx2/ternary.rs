//! Ternary weights with int8 and with f32 activations.

use std::arch::x86_64::*;

use super::{fold, load};
use crate::kernels::ByteToken;
use crate::line::{ByteLine, CodeLine, FloatLine, SumLine, TILE};

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
pub(super) fn rows_i8<const T: usize>(tile: &[CodeLine], x: [ByteToken<'_>; T]) -> [[i32; TILE]; T] {
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
pub(super) fn units_i8<const T: usize, const UNIT: usize, const FACTORS: bool>(
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
pub(super) fn rows_f32<const T: usize>(tile: &[CodeLine], x: [&[FloatLine]; T]) -> [[f32; TILE]; T] {
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
