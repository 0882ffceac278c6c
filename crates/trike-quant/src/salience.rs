//! Activation-aware scales for the inputs of a layer (AWQ).

use crate::{
    QuantError, SquareMatrix,
    error::{check_finite, check_len, check_whole},
};

/// Exponents that [`salience`] tries in addition to 0.
const ALPHAS: [f32; 9] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9, 1.0];
/// Largest scale, and the reciprocal of the smallest: limits the norm gains, which are stored divided by the scales.
const LARGEST: f32 = 32.0;

/// Result of [`salience`].
#[derive(Clone, Debug, PartialEq)]
pub struct Salience {
    /// Per input: divisor of the input and factor of its column of the weights; all 1 if no scales reduce the loss.
    pub scales: Vec<f32>,
    /// The exponent.
    pub alpha: f32,
    /// The loss without scales.
    pub before: f64,
    /// The loss with the scales.
    pub after: f64,
}

/// Searches for the scales of a layer's inputs with the smallest `loss`, of the form `magnitude^alpha`.
///
/// `W x` equals `(W diag(s)) (x / s)`. Weights that share a quantization scale have rounding errors of similar size; a large `s`
/// reduces the error of the product of weight and input by that factor (AWQ, Lin et al., 2306.00978). `magnitudes` are the mean
/// absolute values of the inputs. Scales are divided by their geometric mean and clamped to 1/32 to 32; inputs that were always
/// zero have scale 1.
///
/// ```
/// use trike_quant::salience;
///
/// // A loss with its minimum where the first scale is four times the second.
/// let found = salience(&[16.0, 1.0], &mut |s| Ok(f64::from((s[0] / s[1]).log2() - 2.0).powi(2)))?;
/// assert_eq!((found.alpha, found.scales), (0.5, vec![2.0, 0.5]));
/// # Ok::<(), trike_quant::QuantError>(())
/// ```
///
/// # Errors
///
/// [`QuantError::Empty`], [`QuantError::Negative`] or [`QuantError::NonFinite`] for the magnitudes; the errors of `loss`.
pub fn salience(
    magnitudes: &[f32],
    loss: &mut dyn FnMut(&[f32]) -> Result<f64, QuantError>,
) -> Result<Salience, QuantError> {
    check_finite("magnitudes of inputs", magnitudes)?;
    if magnitudes.is_empty() {
        return Err(QuantError::Empty { what: "magnitudes of inputs" });
    }
    if let Some((index, &value)) = magnitudes.iter().enumerate().find(|(_, m)| **m < 0.0) {
        return Err(QuantError::Negative { what: "magnitudes of inputs", index, value });
    }
    let ones = vec![1.0; magnitudes.len()];
    let before = loss(&ones)?;
    let mut best = Salience { scales: ones, alpha: 0.0, before, after: before };
    for alpha in ALPHAS {
        let scales = powers(magnitudes, alpha);
        let after = loss(&scales)?;
        if after < best.after {
            best = Salience { scales, alpha, before, after };
        }
    }
    Ok(best)
}

/// `magnitude^alpha` divided by the geometric mean.
fn powers(magnitudes: &[f32], alpha: f32) -> Vec<f32> {
    let logs: Vec<Option<f32>> = magnitudes.iter().map(|&m| (m > 0.0).then(|| m.log2())).collect();
    let count = logs.iter().flatten().count().max(1);
    let mean = logs.iter().flatten().map(|l| f64::from(*l)).sum::<f64>() / count as f64;
    let scale = |log: &f32| (alpha * (log - mean as f32)).exp2().clamp(LARGEST.recip(), LARGEST);
    logs.iter().map(|log| log.as_ref().map_or(1.0, scale)).collect()
}

/// Multiplies each column of `values` (`rows x scales.len()`) by its scale.
///
/// # Errors
///
/// [`QuantError::Partial`] for a partial row.
pub fn scale_columns(values: &mut [f32], scales: &[f32]) -> Result<(), QuantError> {
    check_whole("rows to scale", scales.len(), values.len())?;
    for row in values.chunks_exact_mut(scales.len()) {
        row.iter_mut().zip(scales).for_each(|(v, s)| *v *= s);
    }
    Ok(())
}

/// The Hessian of the inputs divided by `scales`, from the Hessian of the unscaled inputs.
///
/// # Errors
///
/// [`QuantError::Length`] unless there is one scale per column of `hessian`.
pub fn scaled_hessian(hessian: &SquareMatrix, scales: &[f32]) -> Result<SquareMatrix, QuantError> {
    check_len("scales of a Hessian", hessian.side(), scales.len())?;
    let rows = hessian.values().chunks_exact(hessian.side()).zip(scales);
    let values = rows.flat_map(|(row, a)| row.iter().zip(scales).map(move |(h, b)| h / (a * b)));
    SquareMatrix::new(hessian.side(), values.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use trike_testkit::assert_near;

    #[test]
    fn the_exponent_of_least_loss_is_found() {
        let magnitudes = [8.0, 2.0, 0.5, 0.0];
        for (wanted, want) in [(0.0, 0.0), (0.29, 0.3), (1.5, 1.0), (-1.0, 0.0)] {
            let mut calls = 0;
            let found = salience(&magnitudes, &mut |s| {
                calls += 1;
                assert_near!(s.iter().map(|s| s.log2()).sum::<f32>(), 0.0, abs = 1e-4);
                assert_eq!(s[3], 1.0);
                // The first is four times the second.
                Ok(f64::from((s[0] / s[1]).log2() / 2.0 - wanted).powi(2))
            });
            let found = found.unwrap();
            assert_eq!((found.alpha, calls), (want, 1 + ALPHAS.len()), "{wanted}");
            assert!(found.after <= found.before);
        }
        // A NaN loss is never the minimum.
        let found = salience(&magnitudes, &mut |s| Ok(if s[0] == 1.0 { 1.0 } else { f64::NAN }));
        assert_eq!(found.unwrap().scales, [1.0; 4]);
    }

    #[test]
    fn scales_stay_in_bounds() {
        let s = powers(&[1e30, 1e-30, 1.0], 0.9);
        assert_eq!(s, [LARGEST, LARGEST.recip(), 1.0]);
        assert_eq!(powers(&[0.0, 0.0], 0.5), [1.0; 2]);
        for bad in [&[][..], &[-1.0], &[f32::NAN]] {
            assert!(salience(bad, &mut |_| Ok(0.0)).is_err());
        }
    }

    #[test]
    fn weights_times_inputs_stay_as_they_are() {
        let (scales, x) = ([2.0, 0.5, 4.0], [3.0f32, -1.0, 0.25]);
        let w = [1.0f32, 2.0, 3.0, -1.0, 0.5, 8.0];
        let mut scaled = w;
        scale_columns(&mut scaled, &scales).unwrap();
        for (row, scaled) in w.chunks(3).zip(scaled.chunks(3)) {
            let y: f32 = row.iter().zip(x).map(|(w, x)| w * x).sum();
            let ours: f32 = scaled.iter().zip(x).zip(scales).map(|((w, x), s)| w * (x / s)).sum();
            assert_eq!(y, ours);
        }
        let hessian = SquareMatrix::new(3, x.iter().flat_map(|a| x.map(|b| a * b)).collect()).unwrap();
        let divided: Vec<f32> = x.iter().zip(scales).map(|(x, s)| x / s).collect();
        let want: Vec<f32> = divided.iter().flat_map(|a| divided.iter().map(move |b| a * b)).collect();
        assert_eq!(scaled_hessian(&hessian, &scales).unwrap().values(), want);
        assert!(scaled_hessian(&hessian, &scales[..2]).is_err());
        assert!(scale_columns(&mut [1.0; 4], &scales).is_err() && scale_columns(&mut [1.0], &[]).is_err());
    }
}
