//! Merging adapters into the weights of their model.

use trike_autodiff::TernarizeSpec;
use trike_cpu::{Cpu, CpuOps};
use trike_nn::WeightName;

use super::Adapter;
use crate::{Parameters, TrainError};

/// The rounding error of a merged matrix. All sums are over its weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MergedMatrix {
    /// The matrix.
    pub name: WeightName,
    /// Sum of squares of `W + s B A`.
    pub squares: f64,
    /// Sum of squares of `s B A`.
    pub product: f64,
    /// Sum of squares of the ternarization error of `W + s B A`.
    pub error: f64,
}

impl MergedMatrix {
    /// The squared error relative to the sum of squares of `W + s B A`; 0 for an exact matrix.
    #[must_use]
    pub fn relative_error(&self) -> f64 {
        relative(self.error, self.squares)
    }

    /// The squared error relative to the sum of squares of `s B A`: above 1, ternarization loses more than the adapter added.
    #[must_use]
    pub fn error_of_product(&self) -> f64 {
        relative(self.error, self.product)
    }
}

/// Rounding error of a merge.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MergeReport {
    /// All targeted matrices, layer by layer.
    pub matrices: Vec<MergedMatrix>,
}

impl MergeReport {
    /// The total squared error, relative to the total of `squares`.
    #[must_use]
    pub fn relative_error(&self) -> f64 {
        let sum = |of: fn(&MergedMatrix) -> f64| self.matrices.iter().map(of).sum::<f64>();
        relative(sum(|matrix| matrix.error), sum(|matrix| matrix.squares))
    }
}

fn relative(error: f64, of: f64) -> f64 {
    if error == 0.0 { 0.0 } else { error / of }
}

impl Adapter {
    /// The model with the adapter's products added, in f32.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub fn merge_dense(&self, cpu: &Cpu, frozen: &Parameters) -> Result<Parameters, TrainError> {
        self.check(frozen)?;
        let mut merged = frozen.clone();
        for parameter in merged.all_mut() {
            if let Some(product) = self.product(cpu, parameter.name)? {
                cpu.add(&mut parameter.values, &product)?;
            }
        }
        Ok(merged)
    }

    /// Adds the adapter's products to the targeted matrices, ternarizes these again, and reports the rounding error. All other
    /// weights are unchanged.
    ///
    /// A trit changes only if the product moves its weight across a threshold, so the product of a short run is almost entirely
    /// lost: then [`MergedMatrix::error_of_product`] is near 1, and the adapter should stay separate.
    ///
    /// Packing the result with [`TernaryScale::LeastSquares`](trike_autodiff::TernaryScale::LeastSquares) and the same granularity
    /// changes no weight; the mean magnitude would give another scale, because it includes zeros.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check), and [`TrainError::Grad`] for learned scales, which the merged weights do not have, and for
    /// weights that are not finite.
    pub fn merge(
        &self,
        cpu: &Cpu,
        frozen: &Parameters,
        how: &TernarizeSpec,
    ) -> Result<(Parameters, MergeReport), TrainError> {
        self.check(frozen)?;
        let mut merged = frozen.clone();
        let mut report = MergeReport::default();
        for parameter in merged.all_mut() {
            let Some(product) = self.product(cpu, parameter.name)? else { continue };
            cpu.add(&mut parameter.values, &product)?;
            let sums = &parameter.values;
            let ternary = how.tensor(sums, parameter.cols, &[])?.dequantize();
            report.matrices.push(MergedMatrix {
                name: parameter.name,
                squares: squares(sums.iter().copied()),
                product: squares(product.into_iter()),
                error: squares(sums.iter().zip(&ternary).map(|(sum, value)| sum - value)),
            });
            parameter.values = ternary;
        }
        Ok((merged, report))
    }
}

fn squares(values: impl Iterator<Item = f32>) -> f64 {
    values.map(|v| f64::from(v) * f64::from(v)).sum()
}
