//! Quantization of activations on the host.

use trike_cube::internals::linear::{Codes, quantize};
use trike_cube::linear::ActivationPrecision::{self, F32, Int8PerGroup, Int8PerToken, Int16};
use trike_cube::linear::{ActivationShape, BLOCK, SEGMENT};
use trike_testkit::{Rng, assert_near};
use trike_trit::GroupSize;

/// The dequantized value of a code.
fn value(shape: ActivationShape, made: &Codes, token: usize, col: usize) -> f64 {
    let slices = shape.precision.slices();
    let words = shape.blocks() * (BLOCK / 4);
    let digit = |slice: usize| {
        let word = made.codes[(token * slices + slice) * words + ActivationShape::word_of(col / 4 * 4)];
        f64::from(word.to_le_bytes()[col % 4] as i8)
    };
    let factor = match shape.precision.group() {
        None => made.factors[token],
        Some(_) => made.factors[token * shape.blocks() * 4 + col / SEGMENT],
    };
    (0..slices).map(|s| digit(s) * 256f64.powi(s as i32)).sum::<f64>() * f64::from(factor)
}

#[test]
fn values_come_back_within_a_step() {
    let mut rng = Rng::new(3);
    let table: [(ActivationPrecision, f64); 5] = [
        (F32, 2f64.powi(-29)),
        (Int16, 2f64.powi(-13)),
        (Int8PerToken, 0.5 / 127.0 * 1.0001),
        (Int8PerGroup(GroupSize::G32), 0.5 / 127.0 * 1.0001),
        (Int8PerGroup(GroupSize::G256), 0.5 / 127.0 * 1.0001),
    ];
    for (precision, step) in table {
        for cols in [1, 4, 31, 128, 129, 300] {
            let shape = ActivationShape { tokens: 3, cols, precision };
            let mut x = rng.normals(3 * cols);
            x[..cols].fill(0.0);
            x[cols] = -30.0;
            let made = quantize(shape, &x);
            for (token, x) in x.chunks(cols).enumerate() {
                let group = precision.group().unwrap_or(cols);
                for (g, x) in x.chunks(group).enumerate() {
                    let max = x.iter().fold(1e-5f32, |m, v| m.max(v.abs()));
                    for (i, &want) in x.iter().enumerate() {
                        let got = value(shape, &made, token, g * group + i);
                        let bound = step * f64::from(max);
                        assert_near!(got, f64::from(want), abs = bound, "{precision:?}, {cols} columns");
                    }
                }
            }
        }
    }
}

#[test]
fn sums_are_those_of_the_codes_and_padding_is_zero() {
    let x: Vec<f32> = (0..2 * 200).map(|i| (i % 11) as f32 - 5.0).collect();
    let shape = ActivationShape { tokens: 2, cols: 200, precision: F32 };
    let made = quantize(shape, &x);
    for row in 0..8 {
        let sums = &made.sums[row * 12..][..12];
        let words = &made.codes[row * 64..][..64];
        let bytes = |word: &u32| word.to_le_bytes().map(|b| i32::from(b as i8)).iter().sum::<i32>();
        assert_eq!(sums[8], words.iter().map(bytes).sum::<i32>());
        assert_eq!(sums[8], sums[..8].iter().sum::<i32>());
        assert_eq!((sums[7], &sums[9..]), (0, &[0; 3][..]));
        for segment in 0..8 {
            let of = (0..8).map(|quad| bytes(&words[ActivationShape::word_of(32 * segment + 4 * quad)]));
            assert_eq!(sums[segment], of.sum::<i32>());
        }
    }
}

#[test]
fn what_is_not_finite_makes_the_factor_nan() {
    for precision in [F32, Int16, Int8PerToken, Int8PerGroup(GroupSize::G32)] {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = vec![1.0; 80];
            x[50] = bad;
            let made = quantize(ActivationShape { tokens: 2, cols: 40, precision }, &x);
            assert!(made.factors.iter().any(|f| f.is_nan()), "{precision:?} {bad}");
            assert!(!made.factors[0].is_nan(), "the first token is fine");
        }
    }
}
