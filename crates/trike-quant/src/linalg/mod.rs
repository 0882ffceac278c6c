//! Dense linear algebra: Cholesky factorization in f64, and matrix products with the CPU kernels.

mod blocked;
mod tile;

use trike_core::ProductPrecision;
use trike_cpu::{Cpu, MatrixRef, Store, matmul_rounded};

use crate::QuantError;

pub(crate) use blocked::{cholesky_blocked, invert_lower_blocked};

/// Solves `a x = b` for a symmetric positive semidefinite `n x n` matrix `a`, `n = b.len()`, after adding `ridge` times the mean
/// diagonal to its diagonal. `a` is overwritten; `None` if it is still not positive definite.
pub(crate) fn solve_spd(a: &mut [f64], b: &[f64], ridge: f64) -> Option<Vec<f64>> {
    let n = b.len();
    let mean = (0..n).map(|i| a[i * n + i]).sum::<f64>() / n.max(1) as f64;
    if !(mean > 0.0 && mean.is_finite()) {
        return None;
    }
    for i in 0..n {
        a[i * n + i] += ridge * mean;
    }
    cholesky(a, n).ok()?;
    let mut x = b.to_vec();
    for i in 0..n {
        let (done, rest) = x.split_at_mut(i);
        rest[0] = (rest[0] - dot(&a[i * n..i * n + i], done)) / a[i * n + i];
    }
    for i in (0..n).rev() {
        x[i] /= a[i * n + i];
        let xi = x[i];
        for (x, l) in x[..i].iter_mut().zip(&a[i * n..i * n + i]) {
            *x -= l * xi;
        }
    }
    x.iter().all(|v| v.is_finite()).then_some(x)
}

/// `sum a_i b_i`, in eight lanes so that the compiler can vectorize.
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut lanes = [0f64; 8];
    let (heads_a, tail_a) = a.as_chunks::<8>();
    let (heads_b, tail_b) = b.as_chunks::<8>();
    for (a, b) in heads_a.iter().zip(heads_b) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    lanes.iter().sum::<f64>() + tail_a.iter().zip(tail_b).map(|(a, b)| a * b).sum::<f64>()
}

/// Cholesky factorization `a = l l^T` of a symmetric `n x n` matrix: `l` replaces the lower triangle of `a`; the strict upper
/// triangle is unchanged.
///
/// # Errors
///
/// The column of the first pivot that is not positive, and that pivot.
pub(crate) fn cholesky(a: &mut [f64], n: usize) -> Result<(), (usize, f64)> {
    for i in 0..n {
        let (above, row) = a.split_at_mut(i * n);
        for j in 0..i {
            let other = &above[j * n..j * n + j + 1];
            row[j] = (row[j] - dot(&row[..j], &other[..j])) / other[j];
        }
        let pivot = row[i] - dot(&row[..i], &row[..i]);
        if !(pivot > 0.0 && pivot.is_finite()) {
            return Err((i, pivot));
        }
        row[i] = pivot.sqrt();
    }
    Ok(())
}

/// Inverts the lower triangular `l` in place.
pub(crate) fn invert_lower(l: &mut [f64], n: usize) {
    // Row i of the inverse: (e_i - sum_{j<i} l_ij inverse_j) / l_ii.
    let mut row = vec![0f64; n];
    for i in 0..n {
        let (done, rest) = l.split_at_mut(i * n);
        row[..=i].fill(0.0);
        for j in 0..i {
            let factor = rest[j];
            for (sum, v) in row[..=j].iter_mut().zip(&done[j * n..=j * n + j]) {
                *sum -= factor * v;
            }
        }
        let pivot = rest[i];
        row[i] = 1.0;
        for (out, v) in rest[..=i].iter_mut().zip(&row) {
            *out = v / pivot;
        }
    }
}

/// `a b`.
pub(crate) fn product(cpu: &Cpu, a: MatrixRef<'_>, b: MatrixRef<'_>) -> Result<Vec<f32>, QuantError> {
    product_rounded(cpu, a, b, ProductPrecision::F32)
}

/// [`product`] with rounded operands.
pub(crate) fn product_rounded(
    cpu: &Cpu,
    a: MatrixRef<'_>,
    b: MatrixRef<'_>,
    precision: ProductPrecision,
) -> Result<Vec<f32>, QuantError> {
    let mut out = vec![0.0; a.rows() * b.cols()];
    matmul_rounded(cpu, a, b, &mut out, Store::Overwrite, precision)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use trike_testkit::Rng;
    use trike_testkit::assert_near;

    use super::*;

    fn spd(n: usize, seed: u64) -> Vec<f64> {
        let x = Rng::new(seed).normals(2 * n * n);
        let entry =
            |i: usize, j: usize| (0..2 * n).map(|t| f64::from(x[t * n + i]) * f64::from(x[t * n + j])).sum();
        (0..n * n).map(|k| entry(k / n, k % n)).collect()
    }

    #[test]
    fn factors_inverses_and_solutions() {
        for n in [1, 2, 7, 8, 9, 33] {
            let a = spd(n, n as u64);
            let mut l = a.clone();
            cholesky(&mut l, n).unwrap();
            let lower = |l: &[f64], i: usize, j: usize| if j <= i { l[i * n + j] } else { 0.0 };
            for i in 0..n {
                for j in 0..n {
                    let back: f64 = (0..n).map(|k| lower(&l, i, k) * lower(&l, j, k)).sum();
                    assert_near!(back, a[i * n + j], abs = 1e-9 * a[0], "{n}");
                }
            }
            let mut inverse = l.clone();
            invert_lower(&mut inverse, n);
            for i in 0..n {
                for j in 0..n {
                    let unit: f64 = (0..n).map(|k| lower(&l, i, k) * lower(&inverse, k, j)).sum();
                    assert_near!(unit, f64::from(u8::from(i == j)), abs = 1e-8, "{n} {i} {j} {unit}");
                }
            }
            let b: Vec<f64> = (0..n).map(|i| i as f64 - 1.5).collect();
            let x = solve_spd(&mut a.clone(), &b, 0.0).unwrap();
            for i in 0..n {
                let back: f64 = (0..n).map(|j| a[i * n + j] * x[j]).sum();
                assert_near!(back, b[i], abs = 1e-8, "{n}");
            }
        }
        assert!(solve_spd(&mut [0.0], &[1.0], 1e-9).is_none());
        assert_eq!(cholesky(&mut [1.0, 0.0, 2.0, 1.0], 2), Err((1, -3.0)));
    }

    #[test]
    fn blocks_give_what_rows_give() {
        let cpus = [1, 3].map(|threads| Cpu::new(threads).unwrap());
        for n in [1, 63, 64, 65, 130, 257, 700] {
            let a = spd(n, n as u64);
            let lower = |v: &[f64]| -> Vec<f64> {
                v.iter().enumerate().filter(|(i, _)| i % n <= i / n).map(|(_, v)| *v).collect()
            };
            let near = |got: &[f64], want: &[f64], what| {
                let size = want.iter().fold(0.0f64, |m, v| m.max(v.abs()));
                for (i, (got, want)) in got.iter().zip(want).enumerate() {
                    assert_near!(*got, *want, abs = 1e-10 * size, "{what} {n}: {i}");
                }
            };
            let mut factor = a.clone();
            cholesky(&mut factor, n).unwrap();
            let mut inverse = factor.clone();
            invert_lower(&mut inverse, n);
            let both = cpus.each_ref().map(|cpu| {
                let mut got = a.clone();
                cholesky_blocked(cpu, &mut got, n).unwrap();
                near(&lower(&got), &lower(&factor), "factor");
                let mut inverted = factor.clone();
                invert_lower_blocked(cpu, &mut inverted, n);
                near(&lower(&inverted), &lower(&inverse), "inverse");
                (lower(&got), lower(&inverted))
            });
            assert!(both[0] == both[1], "{n}: not bit-identical with other numbers of threads");
            if n > 60 {
                let mut broken = a;
                broken[60 * n + 60] = -1.0;
                let (column, pivot) = cholesky_blocked(&cpus[1], &mut broken.clone(), n).unwrap_err();
                let (same, other) = cholesky(&mut broken, n).unwrap_err();
                assert_eq!(column, same);
                assert_near!(pivot, other, rel = 1e-9);
            }
        }
    }
}
