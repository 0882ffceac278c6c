//! Keys and values as 4-bit codes with one scale per head and position.
//!
//! The elements of a head are Hadamard-transformed before they are rounded. Otherwise an outlier channel would determine the scale
//! and leave few codes to the rest; transformed elements are nearly normally distributed. The transform is orthogonal: products of
//! transformed keys and transformed queries equal those of the originals, and a weighted sum of transformed values is transformed
//! back once (QuaRot, Ashkboos et al., 2024).

use trike_host::{Cpu, Loop};
use trike_trit::Hadamard;

use crate::error::CpuError;
use crate::rotate::{Rotate, rotate};

/// The largest code. Sixteen odd integers are symmetric and use all four bits: -7 to 7 would have 15 % more squared error on
/// normally distributed elements. Odd integers lack zero, which has no special role here.
const LARGEST: f32 = 15.0;

/// Bytes of one head at one position.
#[inline(always)]
pub(super) const fn bytes(head_dim: usize) -> usize {
    head_dim.div_ceil(2)
}

/// The transform of a head, in its largest power-of-two blocks; `None` for an odd number of elements.
pub(super) fn mixing(head_dim: usize) -> Option<Hadamard> {
    Hadamard::largest(head_dim, Hadamard::MAX)
}

/// Transforms whole heads in place; the transform is its own inverse.
pub(super) fn mix(cpu: &Cpu, heads: &mut [f32], head_dim: usize) -> Result<(), CpuError> {
    mixing(head_dim).map_or(Ok(()), |rotation| rotate(cpu, heads, rotation))
}

/// The odd integer of a 4-bit code.
#[inline(always)]
fn code(bits: u8) -> i8 {
    (2 * bits).cast_signed() - 15
}

/// Unpacks the codes of one head to integers.
#[inline(always)]
pub(super) fn unpack(packed: &[u8], to: &mut [i8]) {
    let (low, high) = to.split_at_mut(packed.len());
    // Blocks of constant length are vectorized.
    let (bytes, last) = packed.as_chunks::<32>();
    let (low, last_low) = low.as_chunks_mut::<32>();
    let mut high = high;
    for (bytes, low) in bytes.iter().zip(low) {
        for i in 0..32 {
            low[i] = code(bytes[i] & 15);
        }
        let (these, later) = high.split_at_mut(high.len().min(32));
        match these.as_chunks_mut::<32>().0 {
            [these] => {
                for i in 0..32 {
                    these[i] = code(bytes[i] >> 4);
                }
            }
            _ => these.iter_mut().zip(bytes).for_each(|(to, byte)| *to = code(byte >> 4)),
        }
        high = later;
    }
    last_low.iter_mut().zip(last).for_each(|(to, byte)| *to = code(byte & 15));
    high.iter_mut().zip(last).for_each(|(to, byte)| *to = code(byte >> 4));
}

/// Quantizes the key or value of one head at one position to 4-bit codes, and returns their scale.
///
/// `y = H x` with the normalized Hadamard transform `H` of the largest power-of-two blocks of the head (the whole head of 64 or 128
/// elements, blocks of 16 for 80, nothing for an odd number), `s = max|y| / 15`, and the code of an element is the nearest of the odd
/// integers from -15 to 15 to `y / s`. The error of an element of `y` is at most `s`, and so is the root mean square error of `x`,
/// because `H` is orthogonal.
///
/// ```text
/// byte i of ceil(head_dim / 2)    bits 0..4: (code i + 15) / 2    bits 4..8: (code i + ceil(head_dim / 2) + 15) / 2
/// ```
///
/// For an odd number of elements, the last four bits are zero. Non-finite values are handled as in
/// [`quantize_head`](crate::quantize_head): a vector of zeros has scale 0, and one with an element that is NaN, infinite or so
/// large that its transform overflows has a scale of NaN. `codes` has `ceil(head_dim / 2)` bytes; missing or excess bytes are
/// ignored.
///
/// ```
/// use trike_cpu::quantize_head_int4;
///
/// let mut codes = [0; 2];
/// // Mixed: 30, 10, 10, -2.
/// assert_eq!(quantize_head_int4(&[24.0, 16.0, 16.0, 4.0], &mut codes), 2.0);
/// // Codes 15, 5, 5, -1.
/// assert_eq!(codes, [15 | 10 << 4, 10 | 7 << 4]);
/// assert!(quantize_head_int4(&[1.0, f32::INFINITY, 0.0], &mut codes).is_nan());
/// ```
pub fn quantize_head_int4(values: &[f32], codes: &mut [u8]) -> f32 {
    let mut mixed = values.to_vec();
    if let Some(rotation) = mixing(values.len()) {
        Rotate { x: &mut mixed, rotation }.run();
    }
    // As integers, magnitudes sort like the floats, and non-finite values sort above all others.
    let largest = mixed.iter().fold(0, |most, v| most.max(v.to_bits() & 0x7FFF_FFFF));
    let scale = if largest < 0x7F80_0000 { f32::from_bits(largest) / LARGEST } else { f32::NAN };
    codes.fill(0);
    if scale > 0.0 {
        let (low, high) = mixed.split_at(bytes(values.len()));
        for (code, value) in codes.iter_mut().zip(low) {
            *code = bits(value / scale);
        }
        for (code, value) in codes.iter_mut().zip(high) {
            *code |= bits(value / scale) << 4;
        }
    }
    scale
}

/// The bits of the odd integer nearest to a quotient. A subnormal scale may be rounded down so far that a quotient exceeds 15.
#[inline(always)]
fn bits(quotient: f32) -> u8 {
    (0.5 * quotient + 0.5 * LARGEST).clamp(0.0, 15.0).round_ties_even() as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use trike_testkit::{Rng, assert_near};

    /// The codes of a head, decoded from the documented layout.
    fn codes_of(packed: &[u8], d: usize) -> Vec<i8> {
        let bits = |i: usize| if i < packed.len() { packed[i] & 15 } else { packed[i - packed.len()] >> 4 };
        (0..d).map(|i| 2 * bits(i) as i8 - 15).collect()
    }

    #[test]
    fn unpacked_codes_are_those_of_the_layout() {
        for d in [1, 2, 3, 15, 16, 63, 64, 65, 80, 126, 127, 128, 129, 200] {
            let packed: Vec<u8> = (0..bytes(d)).map(|i| (37 * i + 11) as u8).collect();
            let mut got = vec![55; d];
            unpack(&packed, &mut got);
            assert_eq!(got, codes_of(&packed, d), "{d}");
        }
    }

    /// The error of every element is at most the scale: half a step. Rounding in the transform and in the quotient adds a little.
    #[test]
    fn codes_are_the_nearest_odd_integers_of_mixed_elements() {
        let mut rng = Rng::new(71);
        for d in [1, 2, 5, 8, 37, 64, 80, 128, 254, 600] {
            for outlier in [1.0, 100.0] {
                let mut x = rng.normals(d);
                x[d / 2] *= outlier;
                let mut packed = vec![0xFF; bytes(d)];
                let scale = quantize_head_int4(&x, &mut packed);
                if let Some(rotation) = mixing(d) {
                    rotation.apply(&mut x).expect("whole blocks");
                }
                let codes = codes_of(&packed, d);
                assert_eq!(codes.iter().map(|code| code.abs()).max(), Some(15), "{d}");
                for (code, x) in codes.iter().zip(&x) {
                    assert_near!(f32::from(*code) * scale, *x, abs = 1.000_01 * scale, "{d}");
                }
                assert!(d % 2 == 0 || packed[d / 2] >> 4 == 0, "{d}");
            }
        }
    }

    /// A channel a hundred times larger than the others hardly costs precision: their error is that of a head of the same norm, a
    /// fifteenth of the largest transformed element, instead of a fifteenth of the outlier.
    #[test]
    fn outliers_are_spread() {
        let mut x = Rng::new(72).normals(128);
        x[17] = 100.0;
        let scale = quantize_head_int4(&x, &mut [0; 64]);
        // The outlier contributes 100 / sqrt(128) to every transformed element; the rest is normal, below 4.5.
        assert!(scale < (100.0 / 128f32.sqrt() + 4.5) / 15.0, "{scale}");
    }

    #[test]
    fn every_size_of_vector_is_safe() {
        for exponent in -149..=127 {
            // Odd, so that the transform is the identity.
            let largest = 2f32.powi(exponent);
            let x = [largest, -largest, largest / 2.0, 0.0, -largest / 4.0];
            let mut packed = [0xFF; 3];
            let scale = quantize_head_int4(&x, &mut packed);
            for (code, x) in codes_of(&packed, 5).iter().zip(x) {
                let back = f64::from(*code) * f64::from(scale);
                // Half a step, plus half the subnormal spacing for each of 15 scales.
                let bound = f64::from(scale) * 1.000_01 + 8.0 * 2f64.powi(-149);
                assert_near!(back, f64::from(x), abs = bound, "2^{exponent}: {x} as {code} x {scale}");
            }
        }
    }

    #[test]
    fn zeros_have_scale_zero_and_faults_a_scale_of_nan() {
        let mut codes = [55; 2];
        assert_eq!(quantize_head_int4(&[0.0, -0.0, 0.0, 0.0], &mut codes), 0.0);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(quantize_head_int4(&[1.0, bad, 0.0, 2.0], &mut codes).is_nan());
        }
        assert!(quantize_head_int4(&[f32::MAX; 4], &mut codes).is_nan(), "the transform overflows");
    }
}
