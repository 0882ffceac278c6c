//! Ternarization of latent weights, with straight-through gradients.

use std::borrow::{Borrow, BorrowMut};

use trike_core::absmean;
use trike_trit::{Encoding, Granularity, Scales, TritTensor};

use super::check_shape;
use crate::engine::{Elements, ScaleGroups, TapeEngine, least_squares, trit};
use crate::error::{GradError, check_len, check_range};
use crate::tape::{Backward, Operation, Tape};
use crate::var::Var;

/// How the scale of a group of weights is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum TernaryScale {
    /// The mean magnitude (BitNet b1.58, 2402.17764).
    #[default]
    AbsMean,
    /// The least-squares scale over all ternary values.
    LeastSquares,
    /// A parameter with one element per scale, in the order of [`Scales`] (LSQ, Esser et al., 1902.08153): `rows x groups`,
    /// `1 x rows` or `1 x 1`.
    Learned(Var),
}

/// How weights are ternarized.
///
/// With the scale `s` of its group, a weight `w` becomes `q = s t`, where `t` is 0 if `|w| <= s / 2`, else the sign of `w`; the
/// layer uses `w + lambda (q - w)`.
///
/// The gradient with respect to `w` is that of the identity (straight-through estimator); with `clip`, the share `lambda` of it is
/// zero for weights with `|w| > clip s`. The gradient with respect to a learned scale is `lambda` times the sum of `dy (t - w / s)`
/// over the weights with `|w| <= s` and of `dy t` over the rest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TernarizeSpec {
    /// The weights that share a scale.
    pub granularity: Granularity,
    /// Their scale.
    pub scale: TernaryScale,
    /// Interpolation from dense (0) to ternary (1).
    pub lambda: f32,
    /// Magnitude, in units of the scale, above which gradients are zero; infinite by default.
    pub clip: f32,
}

impl Default for TernarizeSpec {
    fn default() -> Self {
        Self {
            granularity: Granularity::Tensor,
            scale: TernaryScale::AbsMean,
            lambda: 1.0,
            clip: f32::INFINITY,
        }
    }
}

impl TernarizeSpec {
    /// The same with another granularity.
    #[must_use]
    pub fn with_granularity(self, granularity: Granularity) -> Self {
        Self { granularity, ..self }
    }

    /// The same with another scale.
    #[must_use]
    pub fn with_scale(self, scale: TernaryScale) -> Self {
        Self { scale, ..self }
    }

    /// The same with another `lambda`.
    #[must_use]
    pub fn with_lambda(self, lambda: f32) -> Self {
        Self { lambda, ..self }
    }

    /// The same with another `clip`.
    #[must_use]
    pub fn with_clip(self, clip: f32) -> Self {
        Self { clip, ..self }
    }

    /// Whether gradients depend on the scales: learned scales, or a finite `clip`, which is in units of the scale. Otherwise the
    /// gradient of the ternarized weights is that of the weights.
    #[must_use]
    pub fn needs_scales(&self) -> bool {
        self.clip.is_finite() || matches!(self.scale, TernaryScale::Learned(_))
    }

    /// Trained weights as trits: dequantized, they are bit-identical to what [`Tape::ternarize`] computes with a `lambda` of
    /// 1. `learned` are the values of learned scales.
    ///
    /// # Errors
    ///
    /// [`GradError::Length`] for partial rows or a wrong length of `learned`, [`GradError::Trit`] for weights that are not finite.
    ///
    /// ```
    /// use trike_autodiff::TernarizeSpec;
    ///
    /// let tensor = TernarizeSpec::default().tensor(&[0.75, -1.0, 0.125, 1.0, 0.0, -0.125], 3, &[])?;
    /// assert_eq!(tensor.dequantize(), [0.5, -0.5, 0.0, 0.5, 0.0, 0.0]);
    /// # Ok::<(), trike_autodiff::GradError>(())
    /// ```
    pub fn tensor(&self, weights: &[f32], cols: usize, learned: &[f32]) -> Result<TritTensor, GradError> {
        let rows = weights.len() / cols.max(1);
        check_len("weights", rows * cols, weights.len())?;
        let groups = ScaleGroups::new(self.granularity, rows, cols);
        let scales = match self.scale {
            TernaryScale::Learned(_) => {
                check_len("learned scales", groups.count(), learned.len())?;
                learned.to_vec()
            }
            scale => {
                let parts = weights.chunks(groups.span()).flat_map(|row| row.chunks(groups.len));
                parts.map(|weights| fit(scale, weights)).collect()
            }
        };
        let trits: Vec<i8> = groups
            .each(weights, &scales)
            .flat_map(|(part, s)| part.iter().map(move |w| trit(*w, s) as i8))
            .collect();
        let scales = Scales::new(self.granularity, scales, None);
        Ok(TritTensor::from_trits(rows, cols, &trits, Encoding::TwoBit, scales)?)
    }
}

/// The scale of a group by a fixed rule.
fn fit(rule: TernaryScale, weights: &[f32]) -> f32 {
    match rule {
        TernaryScale::LeastSquares => least_squares(weights),
        TernaryScale::AbsMean | TernaryScale::Learned(_) => absmean(weights),
    }
}

impl<E: TapeEngine> Tape<'_, E> {
    /// Ternarized weights, see [`TernarizeSpec`].
    ///
    /// # Errors
    ///
    /// [`GradError::Range`] for a `lambda` outside 0 to 1 or a `clip` that is not positive, [`GradError::Shape`] for learned
    /// scales of a wrong shape.
    pub fn ternarize(&mut self, weight: Var, how: &TernarizeSpec) -> Result<Var, GradError> {
        check_range("lambda", 0.0, 1.0, how.lambda)?;
        check_range("clip", f32::MIN_POSITIVE, f32::INFINITY, how.clip)?;
        let (rows, cols) = self.shape(weight)?;
        let groups = ScaleGroups::new(how.granularity, rows, cols);
        let mut inputs = vec![weight];
        let (engine, weights) = (self.engine(), self.value(weight)?);
        let scales = match how.scale {
            TernaryScale::Learned(scales) => {
                let (scale_rows, scale_cols) = self.shape(scales)?;
                check_shape("learned scales", (1, groups.count()), (1, scale_rows * scale_cols))?;
                inputs.push(scales);
                self.to_tensor(scales)?
            }
            rule => engine.scales(weights, groups, rule == TernaryScale::LeastSquares)?,
        };
        let mut y = self.take(weights.elements())?;
        engine.ternarize(weights, scales.borrow(), groups, how.lambda, y.borrow_mut())?;
        self.record(&inputs, y, cols, Straight::<E> { weight, how: *how, groups, scales })
    }
}

struct Straight<E: TapeEngine> {
    weight: Var,
    how: TernarizeSpec,
    groups: ScaleGroups,
    scales: E::Tensor,
}

impl<E: TapeEngine> Operation<E> for Straight<E> {
    fn backward(self: Box<Self>, pass: &mut Backward<'_, E>, mut dy: E::Tensor) -> Result<(), GradError> {
        let Self { weight, how, groups, scales } = *self;
        let (engine, scales) = (pass.engine(), scales.borrow());
        if let TernaryScale::Learned(learned) = how.scale {
            let weights = pass.value(weight)?;
            let gradient = engine.scales_back(weights, scales, groups, how.lambda, dy.borrow())?;
            pass.add(learned, gradient)?;
        }
        if how.clip.is_finite() {
            let weights = pass.value(weight)?;
            engine.clip(weights, scales, groups, how.clip, 1.0 - how.lambda, dy.borrow_mut())?;
        }
        pass.add(weight, dy)
    }
}
