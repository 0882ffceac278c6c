//! Training of the scales with fixed codes.

use trike_trit::{Coupling, ScaleValues, Scales, TritTensor};

use crate::{
    Adam, QuantError,
    error::{check_finite, check_len},
    latent::move_scales,
    tensor::stored_as,
};

/// The trainable scales and means of a ternary matrix with fixed codes: the second stage of EfficientQAT (Chen et al., 2407.11062).
/// The codes are not stored here, so that only one matrix at a time needs its codes in memory.
///
/// ```
/// use trike_quant::{LatentScales, MatrixView, QuantizeConfig, quantize_matrix};
///
/// let w = [0.9, -1.0, 0.3, 0.0];
/// let (trits, _) = quantize_matrix(MatrixView::new(1, 4, &w)?, &QuantizeConfig::default())?;
/// let mut scales = LatentScales::new(&trits);
/// // A loss that falls as the first weight grows.
/// for _ in 0..60 {
///     scales.update(&trits, &[-1.0, 0.0, 0.0, 0.0], 0.01)?;
/// }
/// let tuned = scales.tensor(&trits)?;
/// assert!(tuned.dequantize()[0] > 1.5 * trits.dequantize()[0]);
/// assert_eq!(tuned.dequantize()[2], 0.0);
/// # Ok::<(), trike_quant::QuantError>(())
/// ```
#[derive(Clone, Debug)]
pub struct LatentScales {
    /// In the order of [`Scales`]; with tied planes, the undivided scale.
    scales: Vec<f32>,
    means: Vec<f32>,
    of_scales: Adam,
    of_means: Adam,
}

impl LatentScales {
    /// Starts from the scales and means of `trits`.
    pub fn new(trits: &TritTensor) -> Self {
        let scales: Vec<f32> = trits.scales().values().iter().collect();
        let means: Vec<f32> = trits.scales().means().into_iter().flat_map(ScaleValues::iter).collect();
        let (of_scales, of_means) = (Adam::new(scales.len()), Adam::new(means.len()));
        Self { scales, means, of_scales, of_means }
    }

    /// The dequantized weights of `trits`, the tensor that this was created from, with the current scales, row-major.
    ///
    /// # Errors
    ///
    /// [`QuantError::Trit`] if a scale is not finite or the number of scales differs.
    pub fn values(&self, trits: &TritTensor) -> Result<Vec<f32>, QuantError> {
        Ok(trits.clone().with_scales(self.stored(trits, false))?.dequantize())
    }

    /// `trits`, the tensor that this was created from, with the current scales in the storage format of `trits`.
    ///
    /// # Errors
    ///
    /// As [`values`](Self::values).
    pub fn tensor(&self, trits: &TritTensor) -> Result<TritTensor, QuantError> {
        let half = matches!(trits.scales().values(), ScaleValues::F16(_));
        Ok(trits.clone().with_scales(self.stored(trits, half))?)
    }

    fn stored(&self, trits: &TritTensor, half: bool) -> Scales {
        let means = trits.scales().means().map(|_| self.means.clone());
        stored_as(trits.scales().granularity(), self.scales.clone(), means, half)
    }

    /// Performs one Adam step. `gradient` is the gradient of a loss with respect to the [`values`](Self::values), before a rotation
    /// of the inputs; a step changes a scale by up to about the fraction `rate`, and a mean by up to about that fraction of the
    /// scale.
    ///
    /// # Errors
    ///
    /// [`QuantError::Length`], [`QuantError::NonFinite`]; in both cases nothing changes.
    pub fn update(&mut self, trits: &TritTensor, gradient: &[f32], rate: f32) -> Result<(), QuantError> {
        let (rows, cols) = (trits.rows(), trits.cols());
        check_len("gradient", rows * cols, gradient.len())?;
        check_finite("gradient", gradient)?;
        let (len, groups) = (trits.group_len(), trits.groups_per_row());
        let per_row = if self.grids(trits) == 1 { 0 } else { groups };
        let free = trits.coupling() == Coupling::Free;
        let grids = self.grids(trits);
        let mut by_scale = vec![0f32; self.scales.len()];
        let mut by_mean = vec![0f32; self.means.len()];
        let mut plane = vec![0i8; cols];
        for (row, gradient) in gradient.chunks_exact(cols).enumerate() {
            for p in 0..trits.depth() {
                trits.read_row(p, row, &mut plane)?;
                let (set, factor) = if free { (p, 1.0) } else { (0, 3f32.powi(-(p as i32))) };
                for (group, (trits, gradient)) in plane.chunks(len).zip(gradient.chunks(len)).enumerate() {
                    let sum: f32 = trits.iter().zip(gradient).map(|(&t, g)| f32::from(t) * g).sum();
                    by_scale[set * grids + row * per_row + group] += factor * sum;
                }
            }
            for (group, gradient) in gradient.chunks(len).enumerate() {
                if let Some(mean) = by_mean.get_mut(row * per_row + group) {
                    *mean += gradient.iter().sum::<f32>();
                }
            }
        }
        move_scales(
            [&mut self.scales, &mut self.means],
            [&mut self.of_scales, &mut self.of_means],
            [&by_scale, &by_mean],
            rate,
        )
    }

    /// Number of grids: the number of means, if there are any, and the number of scales per plane.
    fn grids(&self, trits: &TritTensor) -> usize {
        let free = trits.coupling() == Coupling::Free;
        self.scales.len() / if free { trits.depth() } else { 1 }
    }
}
