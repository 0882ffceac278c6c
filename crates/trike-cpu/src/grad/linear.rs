//! Gradients of a matrix product.

use trike_core::{ActivationPrecision, DenseData};
use trike_host::Cpu;

use crate::error::{CpuError, check_len, check_rows};
use crate::matrix::{DenseMatrix, Matrix};
use crate::ops::CpuOps;
use crate::transpose::transpose;

/// A matrix `W`, `out x in`, packed for products in both directions: `y = x W^T` and `dx = dy W`.
///
/// ```
/// use trike_cpu::{Cpu, grad::Linear};
///
/// let cpu = Cpu::new(1)?;
/// let w = Linear::new(2, 3, vec![1.0, 0.0, 2.0, 0.0, -1.0, 0.0])?;
/// assert_eq!(w.forward(&cpu, &[1.0, 2.0, 3.0])?, [7.0, -2.0]);
/// assert_eq!(w.input(&cpu, &[1.0, 10.0])?, [1.0, -10.0, 2.0]);
/// assert_eq!(w.weight(&cpu, &[1.0, 2.0, 3.0], &[1.0, 10.0])?, [1.0, 2.0, 3.0, 10.0, 20.0, 30.0]);
/// # Ok::<(), trike_cpu::CpuError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Linear {
    forward: Matrix,
    transposed: Matrix,
}

fn matrix(rows: usize, cols: usize, values: Vec<f32>) -> Result<Matrix, CpuError> {
    Ok(DenseMatrix::new(rows, cols, DenseData::F32(values))?.into())
}

/// `x w^T` for `x` of `tokens x in`.
fn product(cpu: &Cpu, x: &[f32], w: &Matrix) -> Result<Vec<f32>, CpuError> {
    let tokens = check_rows("input of a matrix", w.cols(), x.len())?;
    let mut out = vec![0.0; tokens * w.rows()];
    cpu.linear(x, w, ActivationPrecision::F32, &mut out)?;
    Ok(out)
}

impl Linear {
    /// Packs `values`, `rows x cols` (out x in).
    ///
    /// # Errors
    ///
    /// [`CpuError::Length`] and [`CpuError::Shape`].
    pub fn new(rows: usize, cols: usize, values: Vec<f32>) -> Result<Self, CpuError> {
        let transposed = matrix(cols, rows, transpose(&values, cols))?;
        Ok(Self { forward: matrix(rows, cols, values)?, transposed })
    }

    /// `y = x W^T` for `x` of `tokens x in`.
    ///
    /// # Errors
    ///
    /// [`CpuError::NotMultiple`] when `x` is not a whole number of rows.
    pub fn forward(&self, cpu: &Cpu, x: &[f32]) -> Result<Vec<f32>, CpuError> {
        product(cpu, x, &self.forward)
    }

    /// Gradient with respect to the input, `dx = dy W`, for `dy` of `tokens x out`.
    ///
    /// # Errors
    ///
    /// [`CpuError::NotMultiple`] when `dy` is not a whole number of rows.
    pub fn input(&self, cpu: &Cpu, dy: &[f32]) -> Result<Vec<f32>, CpuError> {
        product(cpu, dy, &self.transposed)
    }

    /// Gradient with respect to the weights, `dW = dy^T x` (`out x in`), for `x` of `tokens x in` and `dy` of `tokens
    /// x out`.
    ///
    /// # Errors
    ///
    /// [`CpuError::NotMultiple`] and [`CpuError::Length`] when these are not whole rows of the same number of tokens.
    pub fn weight(&self, cpu: &Cpu, x: &[f32], dy: &[f32]) -> Result<Vec<f32>, CpuError> {
        let (rows, cols) = (self.forward.rows(), self.forward.cols());
        let tokens = check_rows("input of a matrix", cols, x.len())?;
        check_len("gradient of a matrix's output", tokens * rows, dy.len())?;
        product(cpu, &transpose(dy, rows), &matrix(cols, tokens, transpose(x, cols))?)
    }
}
