//! Rounding of operands, in code that the compiler vectorizes.

use trike_core::ProductPrecision;

/// A rounding that a kernel is compiled for.
pub(crate) trait Rounding: Copy + Send + Sync {
    /// The precision that it rounds to.
    const TO: ProductPrecision;

    /// The nearest value, ties to even.
    fn round(value: f32) -> f32;
}

/// No rounding.
#[derive(Clone, Copy)]
pub(crate) struct Exact;

/// To bf16.
#[derive(Clone, Copy)]
pub(crate) struct ToBf16;

/// To f16.
#[derive(Clone, Copy)]
pub(crate) struct ToF16;

impl Rounding for Exact {
    const TO: ProductPrecision = ProductPrecision::F32;

    #[inline(always)]
    fn round(value: f32) -> f32 {
        value
    }
}

impl Rounding for ToBf16 {
    const TO: ProductPrecision = ProductPrecision::Bf16;

    #[inline(always)]
    fn round(value: f32) -> f32 {
        f32::from_bits(bf16_bits(value) & 0xFFFF_0000)
    }
}

/// A bf16 in the upper 16 bits; the lower ones are arbitrary.
#[inline(always)]
pub(crate) fn bf16_bits(value: f32) -> u32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1));
    // A NaN could become infinite or lose its sign.
    if value.is_nan() { bits | 0x0040_0000 } else { rounded }
}

impl Rounding for ToF16 {
    const TO: ProductPrecision = ProductPrecision::F16;

    #[inline(always)]
    fn round(value: f32) -> f32 {
        let bits = value.to_bits();
        let size = f32::from_bits(bits & 0x7FFF_FFFF);
        let normal = f32::from_bits((size.to_bits().wrapping_add(0xFFF + (bits >> 13 & 1))) & !0x1FFF);
        // Subnormals are multiples of 2^-24, which is the distance of floats from 0.5 on.
        let small = (size + 0.5) - 0.5;
        let near = if size < 6.103_515_6e-5 { small } else { normal };
        let limited = if near > 65504.0 { f32::INFINITY } else { near };
        let rounded = if size.is_nan() { size } else { limited };
        f32::from_bits(rounded.to_bits() | bits & 0x8000_0000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<R: Rounding>() {
        // Every exponent, mantissas around ties, infinities and NaN.
        for high in 0..=0xFFFF_u32 {
            for low in [0, 1, 0x0FFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0xEFFF, 0xF000, 0xF001, 0xFFFF]
            {
                let value = f32::from_bits(high << 16 | low);
                let (got, want) = (R::round(value), R::TO.round(value));
                let same = if want.is_nan() { got.is_nan() } else { got.to_bits() == want.to_bits() };
                assert!(same, "{value:e} ({:#x}): {got:e}, not {want:e}", value.to_bits());
            }
        }
    }

    #[test]
    fn every_value_is_rounded_as_the_format_says() {
        check::<Exact>();
        check::<ToBf16>();
        check::<ToF16>();
    }
}
