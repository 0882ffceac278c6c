//! Values of ternarization.

use trike_autodiff::{Buffers, Tape, TernarizeSpec, TernaryScale};
use trike_cpu::Cpu;
use trike_testkit::{Rng, assert_all_near};
use trike_trit::{Granularity, GroupSize};

use super::{backward, forward, normals};

const GRANULARITIES: [Granularity; 4] = [
    Granularity::Tensor,
    Granularity::Row,
    Granularity::Group(GroupSize::G32),
    Granularity::Group(GroupSize::G128),
];

#[test]
fn packed_weights_are_bit_identical() {
    let (rows, cols) = (9, 75);
    let parameters = normals(1, &[(rows, cols)]);
    for cpu in super::cpus() {
        for granularity in GRANULARITIES {
            for scale in [TernaryScale::AbsMean, TernaryScale::LeastSquares] {
                let how = TernarizeSpec::default().with_granularity(granularity).with_scale(scale);
                let packed = how.tensor(&parameters[0].0, cols, &[]).expect("finite");
                let got = forward(&cpu, &parameters, &|tape, p| tape.ternarize(p[0], &how));
                assert_eq!(got, packed.dequantize(), "{how:?}");
            }
        }
    }
}

#[test]
fn least_squares_has_the_smallest_error() {
    let weights = Rng::new(2).normals(32);
    let how = TernarizeSpec::default().with_scale(TernaryScale::LeastSquares);
    let error = |q: &[f32]| q.iter().zip(&weights).map(|(q, w)| f64::from(q - w).powi(2)).sum::<f64>();
    let best = error(&how.tensor(&weights, 32, &[]).expect("finite").dequantize());
    // Every threshold, with its best scale.
    for threshold in &weights {
        let kept: Vec<f32> = weights.iter().filter(|w| w.abs() >= threshold.abs()).copied().collect();
        let scale = kept.iter().map(|w| w.abs()).sum::<f32>() / kept.len() as f32;
        let other = |w: &f32| if w.abs() >= threshold.abs() { scale * w.signum() } else { 0.0 };
        let other: Vec<f32> = weights.iter().map(other).collect();
        assert!(best <= error(&other) + 1e-6, "{threshold}");
    }
}

#[test]
fn lambda_goes_from_dense_to_ternary() {
    let cpu = Cpu::new(1).expect("a thread");
    let parameters = normals(3, &[(4, 40)]);
    let at = |lambda: f32| {
        let how = TernarizeSpec::default().with_lambda(lambda);
        forward(&cpu, &parameters, &|tape, p| tape.ternarize(p[0], &how))
    };
    let (dense, half, ternary) = (at(0.0), at(0.5), at(1.0));
    assert_eq!(dense, parameters[0].0);
    let mean: Vec<f32> = dense.iter().zip(&ternary).map(|(a, b)| 0.5 * (a + b)).collect();
    assert_all_near!(&half, &mean, abs = 1e-6);
}

#[test]
fn gradients_are_clipped_by_their_share() {
    let cpu = Cpu::new(1).expect("a thread");
    // The scale is 1: only the last weight is beyond 1.5.
    let parameters = vec![(vec![0.2, -1.0, 0.8, 2.0], 4)];
    let gradient = |lambda: f32| {
        let how = TernarizeSpec::default().with_lambda(lambda).with_clip(1.5);
        let ones = |len: usize| vec![1.0; len];
        backward(&cpu, &parameters, ones, &|tape, p| tape.ternarize(p[0], &how)).1.remove(0)
    };
    assert_eq!(gradient(1.0), [1.0, 1.0, 1.0, 0.0]);
    assert_eq!(gradient(0.25), [1.0, 1.0, 1.0, 0.75]);
}

#[test]
fn a_nan_is_not_hidden() {
    let cpu = Cpu::new(1).expect("a thread");
    for scale in [TernaryScale::AbsMean, TernaryScale::LeastSquares] {
        let how = TernarizeSpec::default().with_scale(scale).with_granularity(Granularity::Row);
        let parameters = vec![(vec![1.0, f32::NAN, 1.0, -1.0], 2)];
        let got = forward(&cpu, &parameters, &|tape, p| tape.ternarize(p[0], &how));
        assert!(got[0].is_nan() && got[1].is_nan() && got[2..] == [1.0, -1.0], "{got:?}");
        assert!(how.tensor(&parameters[0].0, 2, &[]).is_err());
    }
}

#[test]
fn a_zero_matrix_stays_zero() {
    let cpu = Cpu::new(1).expect("a thread");
    let zeros = [0.0; 6];
    let mut tape = Tape::new(&cpu, &Buffers::default());
    let w = tape.parameter(&zeros, 3).expect("rows");
    let y = tape.ternarize(w, &TernarizeSpec::default()).expect("it runs");
    assert_eq!(tape.value(y).expect("of this tape"), [0.0; 6]);
}
