//! The Adam optimizer, for weights and scales that are tuned.

use crate::{
    QuantError,
    error::{check_finite, check_len},
};

/// `beta1` and `beta2`.
const MOMENTA: (f32, f32) = (0.9, 0.98);

/// Adam (Kingma and Ba, 1412.6980) without a learning rate: exponential moving averages of the gradients and of their squares, with
/// beta1 = 0.9 and beta2 = 0.98.
///
/// ```
/// use trike_quant::Adam;
///
/// let (mut adam, mut x) = (Adam::new(1), 3.0f32);
/// for _ in 0..200 {
///     // The gradient of (x - 1)^2.
///     adam.update(&[2.0 * (x - 1.0)], |_, direction| x -= 0.05 * direction)?;
/// }
/// assert!((x - 1.0).abs() < 0.1);
/// # Ok::<(), trike_quant::QuantError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Adam {
    pub(crate) mean: Vec<f32>,
    pub(crate) square: Vec<f32>,
    updates: i32,
}

impl Adam {
    /// The initial state for `len` parameters.
    pub fn new(len: usize) -> Self {
        Self { mean: vec![0.0; len], square: vec![0.0; len], updates: 0 }
    }

    /// Updates the moments with a gradient, and calls `step` for each parameter with the normalized update direction, about -1 to
    /// 1.
    ///
    /// # Errors
    ///
    /// [`QuantError::Length`], [`QuantError::NonFinite`]; in both cases the state is unchanged.
    pub fn update(&mut self, gradient: &[f32], mut step: impl FnMut(usize, f32)) -> Result<(), QuantError> {
        check_len("gradient", self.mean.len(), gradient.len())?;
        check_finite("gradient", gradient)?;
        let unbias = self.begin();
        let moments = self.mean.iter_mut().zip(&mut self.square);
        for (i, ((mean, square), &g)) in moments.zip(gradient).enumerate() {
            step(i, Self::direction(mean, square, g, unbias));
        }
        Ok(())
    }

    /// Begins an update and returns the bias correction factors of both moments.
    pub(crate) fn begin(&mut self) -> (f32, f32) {
        self.updates = self.updates.saturating_add(1);
        (1.0 / (1.0 - MOMENTA.0.powi(self.updates)), 1.0 / (1.0 - MOMENTA.1.powi(self.updates)))
    }

    // Inlined into the loops that call it: a separate function would be compiled without their instruction set.
    #[inline(always)]
    pub(crate) fn direction(mean: &mut f32, square: &mut f32, gradient: f32, unbias: (f32, f32)) -> f32 {
        *mean += (1.0 - MOMENTA.0) * (gradient - *mean);
        *square += (1.0 - MOMENTA.1) * (gradient * gradient - *square);
        // The epsilon makes the result 0 without gradients.
        *mean * unbias.0 / ((*square * unbias.1).sqrt() + 1e-30)
    }
}
