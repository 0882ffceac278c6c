//! An exponential function with bit-identical results on every machine.

/// ln 2 in two parts: the first ends in 21 zero bits, so that its small multiples are exact.
const LN2_HIGH: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
const LN2_LOW: f64 = f64::from_bits(0x3dea_39ef_3579_3c76);

/// `1 / n!`, the coefficients of the series; the next term is below 2^-57 for |r| <= ln 2 / 2.
const COEFFICIENTS: [f64; 15] = {
    let mut coefficients = [1.0; 15];
    let mut factorial = 1.0;
    let mut n = 1;
    while n < coefficients.len() {
        factorial *= n as f64;
        coefficients[n] = 1.0 / factorial;
        n += 1;
    }
    coefficients
};

/// `e^x` for `x` in [-700, 0], within four units in the last place; 1 for 0.
///
/// The system's `exp` may round differently in each C library; additions and multiplications are exactly specified.
pub(super) fn exp(x: f64) -> f64 {
    debug_assert!((-700.0..=0.0).contains(&x), "{x}");
    let k = (x * std::f64::consts::LOG2_E).round();
    let r = (x - k * LN2_HIGH) - k * LN2_LOW;
    let sum = COEFFICIENTS.iter().rev().fold(0.0, |sum, c| sum * r + c);
    // 2^k: k is at least -1010, so the exponent field is in range.
    let power = f64::from_bits(((k as i64 + 1023) as u64) << 52);
    sum * power
}

#[cfg(test)]
mod tests {
    use super::exp;
    use trike_testkit::assert_near;

    #[test]
    fn it_is_the_exponential() {
        assert_eq!(exp(0.0), 1.0);
        for i in 0..70_000 {
            let x = -f64::from(i) * 0.01;
            let want = x.exp();
            assert_near!(exp(x), want, abs = 4.0 * f64::EPSILON * want, "{x}: {} {want}", exp(x));
        }
    }

    #[test]
    fn its_bits_are_fixed() {
        let bits = [-0.1, -1.0, -7.5, -59.9].map(|x| exp(x).to_bits());
        assert_eq!(
            bits,
            [0x3fec_f46d_99d5_2b3a, 0x3fd7_8b56_362c_ef38, 0x3f42_1f9b_a40f_31d5, 0x3a87_f5ce_95a2_19a3]
        );
    }
}
