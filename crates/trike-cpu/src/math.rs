//! Elementary functions that vectorize, bit-identical on every instruction set.

/// `e^x` within 2 ulp; zero below -87, saturated above 88, NaN stays NaN.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Within these limits, the powers of two below are normal numbers.
    const LARGEST: f32 = 88.0;
    const SMALLEST: f32 = -87.0;
    // 355/512 has ten bits, so its product with a small integer is exact; the second constant is the remainder of ln 2.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Floats near 1.5 * 2^23 are 1 apart, so adding it rounds to an integer.
    const MAGIC: f32 = 12_582_912.0;
    // Comparisons, not `clamp` or `min`, so that NaN propagates.
    let limited = if x > LARGEST { LARGEST } else { x };
    let limited = if limited < SMALLEST { SMALLEST } else { limited };
    let shifted = limited * std::f32::consts::LOG2_E + MAGIC;
    let n = shifted - MAGIC;
    let r = (limited - n * LN2_HIGH) - n * LN2_LOW;
    // Taylor series: the first omitted term is below 2^-27 for |r| <= ln(2) / 2.
    let p = 1.0 / 5040.0;
    let p = p * r + 1.0 / 720.0;
    let p = p * r + 1.0 / 120.0;
    let p = p * r + 1.0 / 24.0;
    let p = p * r + 1.0 / 6.0;
    let p = p * r + 0.5;
    let p = (p * r) * r + r + 1.0;
    let exponent = shifted.to_bits().wrapping_sub(MAGIC.to_bits()).wrapping_add(127);
    let power = f32::from_bits(exponent << 23);
    if x < SMALLEST { 0.0 } else { p * power }
}

/// `2^x` for `x` up to 0, with a relative error below `4e-6`; the result of less than -125 is zero.
#[inline(always)]
pub(crate) fn exp2(x: f32) -> f32 {
    // Products of at least half of 2^-125 are normal numbers.
    const SMALLEST: f32 = -125.0;
    // As in `exp`.
    const MAGIC: f32 = 12_582_912.0;
    // A comparison, not `max`, so that NaN propagates.
    let limited = if x < SMALLEST { SMALLEST } else { x };
    let shifted = limited + MAGIC;
    let r = limited - (shifted - MAGIC);
    // Taylor series of `exp(r ln 2)`: the first omitted term is below 2.5e-6 for |r| <= 1 / 2.
    let p = 1.333_355_8e-3;
    let p = p * r + 9.618_129e-3;
    let p = p * r + 5.550_411e-2;
    let p = p * r + 2.402_265e-1;
    let p = p * r + std::f32::consts::LN_2;
    let p = p * r + 1.0;
    // The bits of the magic number above the integer are shifted out.
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    if x < SMALLEST { 0.0 } else { p * power }
}

#[cfg(test)]
mod tests {
    use super::{exp, exp2};
    use trike_testkit::assert_near;

    #[test]
    fn exp_follows_the_double_precision_one() {
        for i in -87_000..=88_000 {
            let x = i as f32 / 1000.0;
            assert_near!(f64::from(exp(x)), f64::from(x).exp(), rel = 2.4e-7, "exp({x})");
        }
    }

    #[test]
    fn exp_at_the_edges() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-87.5), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::INFINITY), exp(88.0));
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn exp2_follows_the_double_precision_one() {
        for i in -125_000..=0 {
            let x = i as f32 / 1000.0;
            assert_near!(f64::from(exp2(x)), f64::from(x).exp2(), rel = 4e-6, "exp2({x})");
        }
        assert_eq!(
            [0.0, -1.0, -125.0, -125.5, f32::NEG_INFINITY].map(exp2),
            [1.0, 0.5, 2f32.powi(-125), 0.0, 0.0]
        );
        assert!(exp2(f32::NAN).is_nan());
    }
}
