//! Keys and values as codes: one signed byte per element and one scale per head and position.

/// Quantizes the key or value of one head at one position to codes, and returns their scale: `s = max|x| / 127`, `code = round(x /
/// s)` (to nearest even). The error of an element is at most half the scale.
///
/// A vector of zeros, or one so small that the scale would round to zero (below about `2^-143`), has scale 0 and codes of 0. If an
/// element is NaN or infinite, the scale is NaN: attention to the position then gives NaN, where a saturated code would hide the
/// fault. `codes` should be as long as `values`; the excess of the longer one is ignored.
///
/// ```
/// use trike_cpu::quantize_head;
///
/// let mut codes = [0; 3];
/// assert_eq!(quantize_head(&[254.0, -3.0, 0.5], &mut codes), 2.0);
/// assert_eq!(codes, [127, -2, 0]);
/// assert!(quantize_head(&[1.0, f32::INFINITY, 0.0], &mut codes).is_nan());
/// ```
pub fn quantize_head(values: &[f32], codes: &mut [i8]) -> f32 {
    // As integers, magnitudes sort like the floats, and non-finite values sort above all others.
    let largest = values.iter().fold(0, |most, v| most.max(v.to_bits() & 0x7FFF_FFFF));
    let scale = if largest < 0x7F80_0000 { f32::from_bits(largest) / 127.0 } else { f32::NAN };
    if scale > 0.0 {
        for (code, value) in codes.iter_mut().zip(values) {
            // Adding this rounds to an integer, to nearest even: floats near 1.5 * 2^23 are 1 apart. The low byte of the
            // sum is the code. A subnormal scale may be rounded down so far that a quotient exceeds 127.
            let quotient = (value / scale).clamp(-127.0, 127.0);
            *code = (quotient + 12_582_912.0).to_bits() as i8;
        }
    } else {
        codes.fill(0);
    }
    scale
}

#[cfg(test)]
mod tests {
    use super::quantize_head;
    use trike_testkit::assert_near;

    #[test]
    fn codes_are_the_nearest_and_ties_are_even() {
        let mut codes = [0; 7];
        assert_eq!(quantize_head(&[127.0, 0.5, 1.5, -2.5, -127.0, 0.49, -0.51], &mut codes), 1.0);
        assert_eq!(codes, [127, 0, 2, -2, -127, 0, -1]);
    }

    #[test]
    fn every_size_of_vector_is_safe() {
        for exponent in -149..=127 {
            let largest = 2f32.powi(exponent);
            let values = [largest, -largest, largest / 2.0, 0.0];
            let mut codes = [55; 4];
            let scale = quantize_head(&values, &mut codes);
            for (code, value) in codes.iter().zip(values) {
                let back = f64::from(*code) * f64::from(scale);
                // Half a step, plus half the subnormal spacing for each of 127 steps.
                let bound = f64::from(scale) * 0.5001 + 64.0 * 2f64.powi(-149);
                assert_near!(
                    back,
                    f64::from(value),
                    abs = bound,
                    "2^{exponent}: {value} as {code} x {scale}"
                );
            }
        }
    }

    #[test]
    fn zeros_have_scale_zero_and_faults_a_scale_of_nan() {
        let mut codes = [55; 2];
        assert_eq!((quantize_head(&[0.0, -0.0], &mut codes), codes), (0.0, [0, 0]));
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            codes = [55; 2];
            assert!(quantize_head(&[1.0, bad], &mut codes).is_nan());
            assert_eq!(codes, [0, 0]);
        }
    }
}
