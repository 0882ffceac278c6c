//! An exponential that gives the same bits on every machine.

/// ln 2 in two parts: the first has trailing zeros, so that small multiples of it are exact.
const LN2_HIGH: f64 = 6.931_471_803_691_238_2e-1;
const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;

/// `e^x` for `x` in [-700, 0], within four units in the last place; 1 for 0.
///
/// The system's `exp` may round differently from one C library to the next; additions, multiplications and
/// divisions may not.
pub(super) fn exp(x: f64) -> f64 {
    debug_assert!((-700.0..=0.0).contains(&x), "{x}");
    let k = (x * std::f64::consts::LOG2_E).round();
    let r = (x - k * LN2_HIGH) - k * LN2_LOW;
    // |r| <= ln 2 / 2: the fourteenth term of the series is below 2^-57.
    let mut sum = 1.0;
    for n in (1..=14).rev() {
        sum = 1.0 + sum * r / f64::from(n);
    }
    // 2^k: k is at least -1010, so the exponent field is in range.
    let power = f64::from_bits(((k as i64 + 1023) as u64) << 52);
    sum * power
}

#[cfg(test)]
mod tests {
    use super::exp;

    #[test]
    fn it_is_the_exponential() {
        assert_eq!(exp(0.0), 1.0);
        for i in 0..70_000 {
            let x = -f64::from(i) * 0.01;
            let want = x.exp();
            assert!((exp(x) - want).abs() <= 4.0 * f64::EPSILON * want, "{x}: {} {want}", exp(x));
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
