//! Float and int8 weights, keys and values; multiply and add are fused.

use std::arch::x86_64::*;

use super::{fold, load};
use crate::kernels::Element;

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

/// Thirty-two outputs at a time stay in registers while the rows pass.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn accumulate_rows<E: Element>(weights: &[f32], rows: &[E], out: &mut [f32]) {
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
pub(super) fn widen<E: Element>(from: &[E], to: &mut [f32]) {
    let (chunks, tail) = from.as_chunks::<8>();
    let (to, rest) = to.as_chunks_mut::<8>();
    for (from, to) in chunks.iter().zip(to) {
        store(to, load(from));
    }
    let mut last = [0.0; 8];
    store(&mut last, load_tail(tail));
    rest.copy_from_slice(&last[..rest.len()]);
}
