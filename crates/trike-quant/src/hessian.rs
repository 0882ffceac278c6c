//! Calibration statistics of the inputs of a layer.

use trike_core::ProductPrecision;
use trike_cpu::{Cpu, MatrixRef, Store, matmul_rounded};

use crate::{
    QuantError,
    error::{check_finite, check_len, check_whole},
    linalg::{product, product_rounded},
    square::SquareMatrix,
};

/// Rows of the matrix that are computed together, each up to the diagonal of the last row.
const STRIPE: usize = 512;
/// Maximum relative difference between the f32 sum and the f64 sum of a diagonal element.
const DRIFT: f64 = 1e-3;
/// Maximum absolute difference of the same sums: below it, f32 squares may underflow, and inputs of 1e-16 are negligible in any
/// model.
const NOTHING: f64 = 1e-30;

/// `X^T X` of the inputs `X` (`tokens x width`) of a layer, with the range of each input. Up to a factor, it is the Hessian of
/// the layer's squared output error with respect to one row of its weights.
///
/// Products are summed in f32, over 256 tokens and then over these sums; the upper triangle is a copy of the lower one. The diagonal
/// is also accumulated in f64; it replaces the f32 diagonal and serves to detect drift of the f32 sums.
///
/// ```
/// use trike_cpu::Cpu;
/// use trike_quant::Hessian;
///
/// let mut hessian = Hessian::new(2)?;
/// hessian.add(&Cpu::new(1)?, &[1.0, 2.0, 3.0, -4.0])?;
/// let (matrix, inputs) = hessian.into_matrix()?;
/// assert_eq!(matrix.values(), [10.0, -10.0, -10.0, 20.0]);
/// assert_eq!((inputs.tokens(), inputs.largest()), (2, &[3.0, 4.0][..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Hessian {
    sum: Vec<f32>,
    inputs: InputStatistics,
    products: ProductPrecision,
}

/// Statistics of each input of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct InputStatistics {
    diagonal: Vec<f64>,
    largest: Vec<f32>,
    tokens: u64,
}

impl InputStatistics {
    /// Number of inputs.
    pub fn width(&self) -> usize {
        self.diagonal.len()
    }

    /// Number of accumulated tokens.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The largest magnitude of each input.
    pub fn largest(&self) -> &[f32] {
        &self.largest
    }

    /// The sum of the squares of each input.
    pub fn diagonal(&self) -> &[f64] {
        &self.diagonal
    }

    /// Fraction of the inputs whose largest magnitude exceeds `times` their root mean square, that is, which are dominated by
    /// outliers.
    pub fn outliers(&self, times: f64) -> f64 {
        let rms = |i: usize| (self.diagonal[i] / self.tokens.max(1) as f64).sqrt();
        let count = (0..self.width()).filter(|&i| f64::from(self.largest[i]) > times * rms(i)).count();
        count as f64 / self.width() as f64
    }
}

impl Hessian {
    /// Empty statistics of `width` inputs.
    ///
    /// # Errors
    ///
    /// [`QuantError::Shape`] for a width of zero or one whose square is not addressable.
    pub fn new(width: usize) -> Result<Self, QuantError> {
        let len = square(width)?;
        let inputs = InputStatistics { diagonal: vec![0.0; width], largest: vec![0.0; width], tokens: 0 };
        Ok(Self { sum: vec![0.0; len], inputs, products: ProductPrecision::F32 })
    }

    /// Sets the rounding of activations before they are multiplied; none by default. The [`InputStatistics`] are computed from the
    /// unrounded activations.
    #[must_use]
    pub fn with_products(self, products: ProductPrecision) -> Self {
        Self { products, ..self }
    }

    /// Accumulates the activations `x`, `tokens x width`.
    ///
    /// # Errors
    ///
    /// [`QuantError::Partial`] for a partial token, [`QuantError::NonFinite`]; in both cases nothing is added.
    pub fn add(&mut self, cpu: &Cpu, x: &[f32]) -> Result<(), QuantError> {
        let n = self.width();
        check_whole("activations", n, x.len())?;
        check_finite("activations x", x)?;
        let inputs = MatrixRef::new(x, n)?;
        for start in (0..n).step_by(STRIPE) {
            let end = (start + STRIPE).min(n);
            let part =
                product_rounded(cpu, inputs.columns(start..end).t(), inputs.columns(0..end), self.products)?;
            for (sum, part) in self.sum[start * n..].chunks_mut(n).zip(part.chunks_exact(end)) {
                sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
            }
        }
        for values in x.chunks_exact(n) {
            let InputStatistics { diagonal, largest, .. } = &mut self.inputs;
            for ((sum, largest), value) in diagonal.iter_mut().zip(largest).zip(values) {
                *sum += f64::from(*value) * f64::from(*value);
                *largest = largest.max(value.abs());
            }
        }
        self.inputs.tokens += (x.len() / n) as u64;
        Ok(())
    }

    /// Number of inputs.
    pub fn width(&self) -> usize {
        self.inputs.width()
    }

    /// The matrix `X^T X`, exactly symmetric, in the memory of the sums, and the statistics of each input.
    ///
    /// # Errors
    ///
    /// [`QuantError::Overflow`] if an f32 sum is not finite or has drifted from the f64 sum.
    pub fn into_matrix(self) -> Result<(SquareMatrix, InputStatistics), QuantError> {
        let Self { sum: mut out, inputs, products } = self;
        let n = inputs.width();
        // Both factors of a square have the same relative rounding error, at most half a unit in the last place each.
        let rounding = match products {
            ProductPrecision::F32 => 0.0,
            ProductPrecision::Bf16 => 2f64.powi(-7),
            ProductPrecision::F16 => 2f64.powi(-10),
        };
        for i in 0..n {
            let exact = inputs.diagonal[i];
            let drift = (f64::from(out[i * n + i]) - exact).abs();
            let sound = drift <= (DRIFT + rounding) * exact + NOTHING
                && exact.is_finite()
                && out[i * n..(i + 1) * n].iter().all(|v| v.is_finite());
            if !sound {
                return Err(QuantError::Overflow { index: i, value: exact });
            }
            // With rounded activations, the matrix is positive semidefinite only with its own diagonal.
            if products == ProductPrecision::F32 {
                out[i * n + i] = exact as f32;
            }
            for j in 0..i {
                // A stripe is summed only up to its own last column, so the upper triangle is incomplete.
                out[j * n + i] = out[i * n + j];
            }
        }
        Ok((SquareMatrix::new(n, out)?, inputs))
    }
}

/// `Y^T X` (`rows x cols`) of two activations of the same tokens, `Y` (`tokens x rows`) and `X` (`tokens x cols`).
#[derive(Clone, Debug)]
pub struct CrossProduct {
    rows: usize,
    cols: usize,
    sum: Vec<f32>,
    products: ProductPrecision,
}

impl CrossProduct {
    /// An empty sum of `rows x cols`.
    ///
    /// # Errors
    ///
    /// [`QuantError::Shape`] for a side of zero or too large a product.
    pub fn new(rows: usize, cols: usize) -> Result<Self, QuantError> {
        square(rows.max(cols)).and(square(rows.min(cols)))?;
        Ok(Self { rows, cols, sum: vec![0.0; rows * cols], products: ProductPrecision::F32 })
    }

    /// Sets the rounding of activations before they are multiplied; none by default.
    #[must_use]
    pub fn with_products(self, products: ProductPrecision) -> Self {
        Self { products, ..self }
    }

    /// Accumulates the products of `y` and `x` for the same number of tokens.
    ///
    /// # Errors
    ///
    /// [`QuantError::Partial`] for a partial token, [`QuantError::Length`] for different numbers of tokens,
    /// [`QuantError::NonFinite`].
    pub fn add(&mut self, cpu: &Cpu, y: &[f32], x: &[f32]) -> Result<(), QuantError> {
        check_whole("activations", self.cols, x.len())?;
        check_len("activations y", x.len() / self.cols * self.rows, y.len())?;
        check_finite("activations x", x)?;
        check_finite("activations y", y)?;
        let (y, x) = (MatrixRef::new(y, self.rows)?, MatrixRef::new(x, self.cols)?);
        Ok(matmul_rounded(cpu, y.t(), x, &mut self.sum, Store::Add, self.products)?)
    }

    /// The accumulated `Y^T X`, row-major.
    pub fn matrix(&self) -> &[f32] {
        &self.sum
    }

    /// The `shift` argument of [`HessianFactor::corrected`](crate::HessianFactor::corrected) for a layer with changed inputs:
    /// `self` is `X0^T X` of the original inputs `X0` and the current inputs `X`, and `hessian` is `X^T X`. The result is `weights
    /// (X0^T X - X^T X)`.
    ///
    /// # Errors
    ///
    /// [`QuantError::Length`] and [`QuantError::Partial`] if the shapes do not match.
    pub fn shift(&self, cpu: &Cpu, weights: &[f32], hessian: &SquareMatrix) -> Result<Vec<f32>, QuantError> {
        check_len("rows of the cross product", self.cols, self.rows)?;
        check_len("Hessian", self.sum.len(), hessian.values().len())?;
        check_whole("weights", self.cols, weights.len())?;
        let gap: Vec<f32> = self.sum.iter().zip(hessian.values()).map(|(k, h)| k - h).collect();
        product(cpu, MatrixRef::new(weights, self.cols)?, MatrixRef::new(&gap, self.cols)?)
    }

    /// As [`shift`](Self::shift), for a layer with target outputs `Y`: `self` is `Y^T X`, and `hessian` is `X^T X`. The result is
    /// `Y^T X - weights X^T X`.
    ///
    /// # Errors
    ///
    /// [`QuantError::Length`] if the shapes do not match.
    pub fn shift_of_outputs(
        &self,
        cpu: &Cpu,
        weights: &[f32],
        hessian: &SquareMatrix,
    ) -> Result<Vec<f32>, QuantError> {
        check_len("Hessian", self.cols * self.cols, hessian.values().len())?;
        check_len("weights", self.sum.len(), weights.len())?;
        let (weights, hessian) =
            (MatrixRef::new(weights, self.cols)?, MatrixRef::new(hessian.values(), self.cols)?);
        let mut out = product(cpu, weights, hessian)?;
        out.iter_mut().zip(&self.sum).for_each(|(out, aim)| *out = aim - *out);
        Ok(out)
    }
}

fn square(side: usize) -> Result<usize, QuantError> {
    let len = side.checked_mul(side).filter(|n| *n > 0 && *n <= isize::MAX as usize / 8);
    len.ok_or(QuantError::Shape { what: "sum of products", rows: side, cols: side })
}

#[cfg(test)]
mod tests {
    use trike_testkit::{Rng, assert_close};

    use super::*;

    #[test]
    fn sums_over_pieces_and_stripes_are_sums() {
        let cpu = Cpu::new(2).unwrap();
        let precisions = [ProductPrecision::F32, ProductPrecision::Bf16, ProductPrecision::F16];
        for ((tokens, n, m), products) in
            [(1061, 9, 4), (37, STRIPE + 5, 3)].into_iter().flat_map(|of| precisions.map(|to| (of, to)))
        {
            let mut rng = Rng::new(3);
            let (x, y) = (rng.normals(tokens * n), rng.normals(tokens * m));
            let mut hessian = Hessian::new(n).unwrap().with_products(products);
            let mut cross = CrossProduct::new(m, n).unwrap().with_products(products);
            for (x, y) in x.chunks(100 * n).zip(y.chunks(100 * m)) {
                hessian.add(&cpu, x).unwrap();
                cross.add(&cpu, y, x).unwrap();
            }
            let entry = |a: &[f32], i: usize, wa: usize, b: &[f32], j: usize, wb: usize| -> f32 {
                (0..tokens).map(|t| f64::from(a[t * wa + i]) * f64::from(b[t * wb + j])).sum::<f64>() as f32
            };
            let largest = (0..n).map(|i| x.iter().skip(i).step_by(n).fold(0f32, |m, x| m.max(x.abs())));
            let largest: Vec<f32> = largest.collect();
            let [x, y] = [x, y].map(|x| x.into_iter().map(|x| products.round(x)).collect::<Vec<f32>>());
            let want: Vec<f32> = (0..n * n).map(|k| entry(&x, k / n, n, &x, k % n, n)).collect();
            let (got, inputs) = hessian.into_matrix().unwrap();
            let got = got.values();
            assert_close(got, &want, 1e-5);
            assert!((0..n * n).all(|k| got[k] == got[k % n * n + k / n]));
            let want: Vec<f32> = (0..m * n).map(|k| entry(&y, k / n, m, &x, k % n, n)).collect();
            assert_close(cross.matrix(), &want, 1e-4);
            assert_eq!((inputs.width(), inputs.tokens()), (n, tokens as u64));
            // Nothing is rounded there.
            assert_eq!(inputs.largest(), largest);
            assert_eq!((inputs.outliers(0.9), inputs.outliers(100.0)), (1.0, 0.0));
        }
    }

    #[test]
    fn what_cannot_be_summed_is_refused() {
        let cpu = Cpu::new(1).unwrap();
        assert!(Hessian::new(0).is_err() && CrossProduct::new(0, 3).is_err());
        let mut hessian = Hessian::new(2).unwrap();
        assert!(matches!(hessian.add(&cpu, &[1.0; 3]), Err(QuantError::Partial { .. })));
        assert!(matches!(hessian.add(&cpu, &[1.0, f32::NAN]), Err(QuantError::NonFinite { index: 1, .. })));
        assert_eq!(hessian.clone().into_matrix().unwrap().1.tokens(), 0);
        hessian.add(&cpu, &[1e30, 1.0]).unwrap();
        assert!(matches!(hessian.into_matrix(), Err(QuantError::Overflow { index: 0, .. })));
        let mut cross = CrossProduct::new(1, 2).unwrap();
        assert!(matches!(cross.add(&cpu, &[1.0; 2], &[1.0; 2]), Err(QuantError::Length { .. })));
    }
}
