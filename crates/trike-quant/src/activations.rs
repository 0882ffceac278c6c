//! Int8 quantization of activations.

use trike_core::{Bounds, OptionError};

use crate::{
    QuantError,
    error::{check_finite, check_whole},
};

/// Lower bound of the largest magnitude in the scale formula, as in BitNet's layers.
const SMALLEST: f32 = 1e-5;

/// Quantizes `tokens x width` activations to int8 codes with one scale per `group` values along a token (`group = width` for one
/// scale per token; the last group of a token may be shorter). A value is approximately `code * scale`. As in BitNet's layers, the
/// scale is `max(|x|, 1e-5) / 127` over the group, and codes are rounded to nearest even.
///
/// ```
/// use trike_quant::quantize_activations;
///
/// let (codes, scales) = quantize_activations(&[1.27, -0.5, 0.0, 254.0], 2, 2)?;
/// assert_eq!(codes, [127, -50, 0, 127]);
/// assert_eq!(scales, [1.27f32 / 127.0, 2.0]);
/// # Ok::<(), trike_quant::QuantError>(())
/// ```
///
/// # Errors
///
/// [`QuantError::Option`] for a width or group of zero, [`QuantError::Partial`] for a partial token,
/// [`QuantError::NonFinite`].
pub fn quantize_activations(
    x: &[f32],
    width: usize,
    group: usize,
) -> Result<(Vec<i8>, Vec<f32>), QuantError> {
    OptionError::check("width", Bounds::at_least(1usize), width)?;
    OptionError::check("group", Bounds::at_least(1usize), group)?;
    check_whole("activations", width, x.len())?;
    check_finite("activations x", x)?;
    let (mut codes, mut scales) = (Vec::with_capacity(x.len()), Vec::new());
    for values in x.chunks_exact(width).flat_map(|token| token.chunks(group)) {
        let scale = values.iter().fold(SMALLEST, |m, v| m.max(v.abs())) / 127.0;
        scales.push(scale);
        codes.extend(values.iter().map(|v| (v / scale).round_ties_even().clamp(-128.0, 127.0) as i8));
    }
    Ok((codes, scales))
}
