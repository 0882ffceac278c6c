//! Low-rank approximations of matrices.

use crate::codec::{Carry, Codec, Saved, check_gradient, elements, mix, sums};
use crate::sum::{mean, mean_bytes};
use crate::{CommError, Communicator};

/// A column counts as linearly dependent if orthogonalization leaves at most this fraction of its length: the f32 rounding errors
/// of the products. They are not NaN, but with them the next `q` would point in the directions of the other columns.
const DEPENDENT: f64 = 1e-4;

/// Low-rank approximations (PowerSGD, Vogels et al., 1905.13727): one step of subspace iteration per exchange.
///
/// With `m` a matrix of the gradient plus the residual, and `q` the factor of the previous step, with unit columns:
///
/// 1. `p = m q` is averaged over the ranks and its columns are orthonormalized on each rank.
/// 2. `q = m^T p` is averaged over the ranks. The result is `p q^T`.
///
/// Each rank subtracts `p q^T` with its own `q` from its residual. That is a projection of its own gradients: residuals of
/// different ranks do not drift apart, and their mean is the error of the mean gradient. Vectors, and matrices with no more
/// elements than their factors, are sent whole.
#[derive(Clone, Debug)]
pub struct LowRank {
    rank: usize,
    tensors: Vec<Tensor>,
    /// Length of the first round's message, in floats.
    first: usize,
    residual: Vec<f32>,
    /// The factors of all matrices, column-major.
    q: Vec<f32>,
}

/// A tensor of the gradient.
#[derive(Clone, Copy, Debug)]
struct Tensor {
    rows: usize,
    cols: usize,
    /// Index of its first element in a gradient.
    start: usize,
    /// Offset of its `p`, or of its elements, in the first round.
    p: usize,
    /// Offset of its `q` in the second round; `None` if it is sent whole.
    q: Option<usize>,
}

impl LowRank {
    /// A codec of rank `rank`, at least 1, for tensors of these shapes, rows and columns.
    ///
    /// # Errors
    ///
    /// [`CommError::Range`], and [`CommError::Shape`] for tensors that do not fit in memory.
    pub fn new(shapes: &[[usize; 2]], rank: usize) -> Result<Self, CommError> {
        if rank == 0 {
            return Err(CommError::Range { what: "rank", expected: "1 or more", got: 0.0 });
        }
        let len = elements(shapes)?;
        let (mut tensors, mut start, mut first, mut second) = (Vec::new(), 0, 0, 0);
        for [rows, cols] in shapes.iter().copied() {
            // Factors as large as their matrix save nothing.
            let is_low = rank.saturating_mul(rows.saturating_add(cols)) < rows * cols;
            tensors.push(Tensor { rows, cols, start, p: first, q: is_low.then_some(second) });
            start += rows * cols;
            first += if is_low { rank * rows } else { rows * cols };
            second += if is_low { rank * cols } else { 0 };
        }
        let mut codec = Self { rank, tensors, first, residual: vec![0.0; len], q: vec![0.0; second] };
        let q = std::mem::take(&mut codec.q);
        codec.q = codec.unit_columns(q);
        Ok(codec)
    }

    /// The factorized matrices, each with the offset of its `q`.
    fn matrices(&self) -> impl Iterator<Item = (Tensor, usize)> + '_ {
        self.tensors.iter().filter_map(|tensor| Some((*tensor, tensor.q?)))
    }

    /// Normalizes the columns of the factors; zero columns are reinitialized with random values, the same on all ranks.
    fn unit_columns(&self, mut q: Vec<f32>) -> Vec<f32> {
        for (number, (tensor, start)) in self.matrices().enumerate() {
            for (k, column) in q[start..][..self.rank * tensor.cols].chunks_mut(tensor.cols).enumerate() {
                if !normalize(column, 0.0) {
                    let seed = mix(mix(number as u32).wrapping_add(k as u32));
                    for (j, x) in (0u32..).zip(column.iter_mut()) {
                        *x = mix(seed.wrapping_add(j)) as i32 as f32;
                    }
                    normalize(column, 0.0);
                }
            }
        }
        q
    }
}

impl Tensor {
    /// `m q`, by columns.
    fn times(&self, m: &[f32], q: &[f32], p: &mut [f32]) {
        for (p, q) in p.chunks_mut(self.rows).zip(q.chunks(self.cols)) {
            for (p, row) in p.iter_mut().zip(m.chunks(self.cols)) {
                *p = dot(row, q);
            }
        }
    }

    /// `q = m^T p`, column-major; `q` must be zero.
    fn transposed_times(&self, m: &[f32], p: &[f32], q: &mut [f32]) {
        for (i, row) in m.chunks(self.cols).enumerate() {
            for (p, q) in p.chunks(self.rows).zip(q.chunks_mut(self.cols)) {
                q.iter_mut().zip(row).for_each(|(q, m)| *q += p[i] * m);
            }
        }
    }

    /// `m += sign p q^T`.
    fn add_product(&self, sign: f32, p: &[f32], q: &[f32], m: &mut [f32]) {
        for (i, row) in m.chunks_mut(self.cols).enumerate() {
            for (p, q) in p.chunks(self.rows).zip(q.chunks(self.cols)) {
                let p = sign * p[i];
                row.iter_mut().zip(q).for_each(|(m, q)| *m += p * q);
            }
        }
    }

    fn elements(&self) -> std::ops::Range<usize> {
        self.start..self.start + self.rows * self.cols
    }
}

impl Codec for LowRank {
    fn len(&self) -> usize {
        self.residual.len()
    }

    fn sent_bytes(&self, rank: usize, ranks: usize) -> usize {
        mean_bytes(self.first, rank, ranks) + mean_bytes(self.q.len(), rank, ranks)
    }

    fn check(&self, rank: usize, gradient: &[f32]) -> Result<(), CommError> {
        check_gradient(rank, self.len(), gradient, sums(&self.residual, gradient))
    }

    fn exchange(&mut self, comm: &dyn Communicator, gradient: &mut [f32]) -> Result<(), CommError> {
        self.check(comm.rank(), gradient)?;
        self.residual.iter_mut().zip(&*gradient).for_each(|(r, g)| *r += g);
        let r = self.rank;
        let mut p = vec![0.0; self.first];
        for tensor in &self.tensors {
            let m = &self.residual[tensor.elements()];
            match tensor.q {
                Some(q) => {
                    let q = &self.q[q..][..r * tensor.cols];
                    tensor.times(m, q, &mut p[tensor.p..][..r * tensor.rows]);
                }
                None => p[tensor.p..][..m.len()].copy_from_slice(m),
            }
        }
        mean(comm, &mut p)?;
        let mut own = vec![0.0; self.q.len()];
        for (tensor, start) in self.matrices() {
            let p = &mut p[tensor.p..][..r * tensor.rows];
            orthonormalize(p, tensor.rows);
            let m = &self.residual[tensor.elements()];
            tensor.transposed_times(m, p, &mut own[start..][..r * tensor.cols]);
        }
        let mut q = own.clone();
        mean(comm, &mut q)?;
        for tensor in &self.tensors {
            let residual = &mut self.residual[tensor.elements()];
            let out = &mut gradient[tensor.elements()];
            match tensor.q {
                Some(start) => {
                    let p = &p[tensor.p..][..r * tensor.rows];
                    tensor.add_product(-1.0, p, &own[start..][..r * tensor.cols], residual);
                    out.fill(0.0);
                    tensor.add_product(1.0, p, &q[start..][..r * tensor.cols], out);
                }
                None => {
                    out.copy_from_slice(&p[tensor.p..][..out.len()]);
                    residual.fill(0.0);
                }
            }
        }
        self.q = self.unit_columns(q);
        Ok(())
    }

    fn state(&self) -> Vec<Saved<'_>> {
        vec![
            Saved { name: "residual", carry: Carry::Mean, values: &self.residual },
            Saved { name: "q", carry: Carry::Same, values: &self.q },
        ]
    }

    fn state_mut(&mut self) -> Vec<&mut [f32]> {
        vec![&mut self.residual, &mut self.q]
    }
}

/// The dot product, in f32 lanes.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0f32; 16];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<16>(), b.as_chunks::<16>());
    for (a, b) in a.iter().zip(b) {
        for (lane, (a, b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane += a * b;
        }
    }
    lanes.iter().sum::<f32>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f32>()
}

/// The dot product in f64, in order.
fn dot_f64(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// Normalizes a column; returns `false` and zeroes it if its length is at most `least` or zero.
fn normalize(column: &mut [f32], least: f64) -> bool {
    let length = dot_f64(column, column).sqrt();
    let is_long = length > least && length.is_finite();
    column.iter_mut().for_each(|x| *x = if is_long { (f64::from(*x) / length) as f32 } else { 0.0 });
    is_long
}

/// Orthonormalizes the columns of `rows` elements by Gram-Schmidt. Each column is orthogonalized twice, since one pass leaves the
/// rounding errors of almost dependent columns (Giraud et al., 2005). Dependent columns become zero.
fn orthonormalize(p: &mut [f32], rows: usize) {
    for k in 0..p.len() / rows {
        let (before, column) = p.split_at_mut(k * rows);
        let column = &mut column[..rows];
        let length = dot_f64(column, column).sqrt();
        for other in [&*before, &*before].into_iter().flat_map(|before| before.chunks(rows)) {
            let along = dot_f64(other, column);
            column
                .iter_mut()
                .zip(other)
                .for_each(|(x, o)| *x = (f64::from(*x) - along * f64::from(*o)) as f32);
        }
        normalize(column, DEPENDENT * length);
    }
}

#[cfg(test)]
mod tests {
    use trike_testkit::{Rng, assert_near};

    use super::*;

    #[test]
    fn columns_are_orthonormal_or_zero() {
        let rows = 33;
        let mut p = Rng::new(1).normals(5 * rows);
        // The second column depends on the first up to rounding, the fourth is zero.
        for i in 0..rows {
            p[rows + i] = 3.1 * p[i];
            p[3 * rows + i] = 0.0;
        }
        orthonormalize(&mut p, rows);
        let columns: Vec<&[f32]> = p.chunks(rows).collect();
        for (i, a) in columns.iter().enumerate() {
            for (j, b) in columns.iter().enumerate() {
                let want = if i == j && i != 1 && i != 3 { 1.0 } else { 0.0 };
                assert_near!(dot_f64(a, b), want, abs = 1e-6, "columns {i} and {j}");
            }
        }
        assert!(columns[1].iter().chain(columns[3]).all(|x| *x == 0.0));
    }
}
