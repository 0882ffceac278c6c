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
