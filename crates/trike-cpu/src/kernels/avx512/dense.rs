//! Float and int8 weights, keys and values; multiply and add are fused.

use std::arch::x86_64::*;

use super::{fold, load};
use crate::kernels::Element;

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
pub(super) fn dense<E: Element, const R: usize, const T: usize>(
    w: [&[E]; R],
    x: [&[f32]; T],
) -> [[f32; R]; T] {
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
pub(super) fn int8<const T: usize>(codes: &[i8], scales: &[f32], group: usize, x: [&[f32]; T]) -> [f32; T] {
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
pub(super) fn dense_rows<E: Element>(rows: &[E], x: &[f32], out: &mut [f32]) {
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
pub(super) fn accumulate_rows<E: Element>(weights: &[f32], rows: &[E], out: &mut [f32]) {
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
pub(super) fn widen<E: Element>(from: &[E], to: &mut [f32]) {
    let (chunks, tail) = from.as_chunks::<16>();
    let (to, rest) = to.as_chunks_mut::<16>();
    for (from, to) in chunks.iter().zip(to) {
        store(to, load(from));
    }
    let mut last = [0.0; 16];
    store(&mut last, load_tail(tail));
    rest.copy_from_slice(&last[..rest.len()]);
}
