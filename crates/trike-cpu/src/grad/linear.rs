//! Gradients of a matrix product.

use trike_core::ProductPrecision;
use trike_host::Cpu;

use crate::error::{CpuError, check_len, check_rows};
use crate::matmul::{MatrixRef, Store, matmul_rounded};

/// A matrix `W`, `out x in`, for products in both directions: `y = x W^T` and `dx = dy W`.
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
    rows: usize,
    cols: usize,
    values: Vec<f32>,
    gradients: ProductPrecision,
}

impl Linear {
    /// Takes `values`, `rows x cols` (out x in).
    ///
    /// # Errors
    ///
    /// [`CpuError::Length`] and [`CpuError::Shape`].
    pub fn new(rows: usize, cols: usize, values: Vec<f32>) -> Result<Self, CpuError> {
        let shape = CpuError::Shape { what: "matrix", rows, cols };
        let wanted = rows.checked_mul(cols).filter(|wanted| *wanted > 0).ok_or(shape)?;
        check_len("matrix", wanted, values.len())?;
        Ok(Self { rows, cols, values, gradients: ProductPrecision::F32 })
    }

    /// Rounds the operands of the products of gradients.
    #[must_use]
    pub fn with_gradients(self, gradients: ProductPrecision) -> Self {
        Self { gradients, ..self }
    }

    /// `y = x W^T` for `x` of `tokens x in`.
    ///
    /// # Errors
    ///
    /// [`CpuError::NotMultiple`] when `x` is not a whole number of rows.
    pub fn forward(&self, cpu: &Cpu, x: &[f32]) -> Result<Vec<f32>, CpuError> {
        product(cpu, MatrixRef::new(x, self.cols)?, self.matrix()?.t(), ProductPrecision::F32)
    }

    /// Gradient with respect to the input, `dx = dy W`, for `dy` of `tokens x out`.
    ///
    /// # Errors
    ///
    /// [`CpuError::NotMultiple`] when `dy` is not a whole number of rows.
    pub fn input(&self, cpu: &Cpu, dy: &[f32]) -> Result<Vec<f32>, CpuError> {
        product(cpu, MatrixRef::new(dy, self.rows)?, self.matrix()?, self.gradients)
    }

    /// Gradient with respect to the weights, `dW = dy^T x` (`out x in`), for `x` of `tokens x in` and `dy` of `tokens
    /// x out`.
    ///
    /// # Errors
    ///
    /// [`CpuError::NotMultiple`] and [`CpuError::Length`] when these are not whole rows of the same number of tokens.
    pub fn weight(&self, cpu: &Cpu, x: &[f32], dy: &[f32]) -> Result<Vec<f32>, CpuError> {
        let tokens = check_rows("input of a matrix", self.cols, x.len())?;
        check_len("gradient of a matrix's output", tokens * self.rows, dy.len())?;
        product(cpu, MatrixRef::new(dy, self.rows)?.t(), MatrixRef::new(x, self.cols)?, self.gradients)
    }

    fn matrix(&self) -> Result<MatrixRef<'_>, CpuError> {
        MatrixRef::new(&self.values, self.cols)
    }
}

fn product(
    cpu: &Cpu,
    a: MatrixRef<'_>,
    b: MatrixRef<'_>,
    precision: ProductPrecision,
) -> Result<Vec<f32>, CpuError> {
    let mut out = vec![0.0; a.rows() * b.cols()];
    matmul_rounded(cpu, a, b, &mut out, Store::Overwrite, precision)?;
    Ok(out)
}
