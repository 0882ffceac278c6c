//! Properties of the quantizers, over seeded and random weights.

use proptest::prelude::*;
use trike_cpu::Cpu;
use trike_quant::{
    CalibrationMethod, ColumnOrder, CompensateConfig, Hessian, HessianFactor, MatrixView, PrunePattern,
    PruneScore, QuantError, QuantizeConfig, Rounding, ScaleRule, ScaleType, SquareMatrix, TritLayout,
    compensate, hessian_error, prune, quantize_matrix,
};
use trike_testkit::{Rng, assert_close, assert_near};
use trike_trit::{Coupling, Encoding, Granularity, GroupSize};

fn layout(depth: usize, coupling: Coupling, granularity: Granularity) -> TritLayout {
    TritLayout::default()
        .with_depth(depth)
        .with_coupling(coupling)
        .with_granularity(granularity)
        .with_scales(ScaleType::F32)
}

fn config(rule: ScaleRule, layout: TritLayout) -> QuantizeConfig {
    QuantizeConfig::default().with_rule(rule).with_layout(layout)
}

fn laplace(rng: &mut Rng, n: usize) -> Vec<f32> {
    (0..n).map(|_| rng.f32_unit() - 0.5).map(|u| -u.signum() * (1.0 - 2.0 * u.abs()).max(1e-9).ln()).collect()
}

/// Relative RMS errors in groups of 128, from the literature and from independent computations: Gaussian, then Laplace.
#[test]
fn errors_on_known_distributions_are_the_known_ones() {
    let table = [
        (ScaleRule::AbsMean, 1, Coupling::Free, 0.511, 0.625),
        (ScaleRule::Twn, 1, Coupling::Free, 0.436, 0.528),
        (ScaleRule::LeastSquares, 1, Coupling::Tied, 0.433, 0.508),
        (ScaleRule::LeastSquares, 2, Coupling::Tied, 0.169, 0.226),
        (ScaleRule::LeastSquares, 3, Coupling::Tied, 0.060, 0.084),
    ];
    let mut rng = Rng::new(1);
    let (rows, cols) = (64, 1024);
    let (gauss, heavy) = (rng.normals(rows * cols), laplace(&mut rng, rows * cols));
    for (rule, depth, coupling, on_gauss, on_laplace) in table {
        for (weights, want) in [(&gauss, on_gauss), (&heavy, on_laplace)] {
            let config = config(rule, layout(depth, coupling, Granularity::Group(GroupSize::G128)));
            let (_, stats) = quantize_matrix(MatrixView::new(rows, cols, weights).unwrap(), &config).unwrap();
            let got = stats.relative_error;
            assert_near!(got, want, rel = 0.02, "{rule:?} x{depth}");
        }
    }
}

#[test]
fn tied_planes_are_no_worse_than_five_percent_over_free_ones() {
    let mut rng = Rng::new(2);
    for weights in [rng.normals(64 * 256), laplace(&mut rng, 64 * 256)] {
        let view = MatrixView::new(64, 256, &weights).unwrap();
        for depth in 1..=4 {
            let error = |coupling| {
                let layout = layout(depth, coupling, Granularity::Group(GroupSize::G128));
                quantize_matrix(view, &config(ScaleRule::LeastSquares, layout)).unwrap().1.relative_error
            };
            let (tied, free) = (error(Coupling::Tied), error(Coupling::Free));
            assert!(free <= tied * (1.0 + 1e-5) && tied <= 1.05 * free, "x{depth}: tied {tied}, free {free}");
        }
    }
}

#[test]
fn every_option_changes_something() {
    let mut rng = Rng::new(3);
    let weights: Vec<f32> = rng.normals(8 * 96).iter().map(|w| 0.02 * (w + 0.3 * w * w)).collect();
    let view = MatrixView::new(8, 96, &weights).unwrap();
    let base = config(ScaleRule::LeastSquares, layout(1, Coupling::Tied, Granularity::Row));
    let (first, stats) = quantize_matrix(view, &base).unwrap();
    type Change = fn(&mut QuantizeConfig);
    let changes: [(&str, Change); 13] = [
        ("absmean", |c| c.rule = ScaleRule::AbsMean),
        ("twn", |c| c.rule = ScaleRule::Twn),
        ("absmax", |c| c.rule = ScaleRule::Calibrated(CalibrationMethod::AbsMax)),
        ("percentile", |c| c.rule = ScaleRule::Calibrated(CalibrationMethod::Percentile(80.0))),
        ("mean + k sd", |c| c.rule = ScaleRule::Calibrated(CalibrationMethod::MeanStd(1.0))),
        ("manual", |c| c.rule = ScaleRule::Calibrated(CalibrationMethod::Manual(0.03))),
        ("stochastic", |c| c.rounding = Rounding::Stochastic { seed: 7 }),
        ("planes", |c| c.layout.depth = 2),
        ("coupling", |c| (c.layout.depth, c.layout.coupling) = (2, Coupling::Free)),
        ("granularity", |c| c.layout.granularity = Granularity::Group(GroupSize::G32)),
        ("mean", |c| c.layout.with_mean = true),
        ("encoding", |c| c.layout.encoding = Encoding::Base3),
        ("scales", |c| c.layout.scales = ScaleType::F16),
    ];
    for (name, change) in changes {
        let mut other = base;
        change(&mut other);
        let (tensor, other_stats) = quantize_matrix(view, &other).unwrap();
        assert_ne!(tensor, first, "{name}");
        let expected = other.layout.bits_per_weight(8, 96);
        assert_near!(
            tensor.bits_per_weight(),
            expected,
            abs = 1e-9,
            "{name}: {} {expected}",
            tensor.bits_per_weight()
        );
        assert!(name != "absmax" || other_stats.clipped == 0.0);
        assert!(name != "manual" || other_stats.clipped > 0.01);
    }
    assert!(stats.clipped > 0.0 && stats.density > 0.3 && stats.density < 0.8);
    let mut layout = base.layout;
    layout.granularity = Granularity::Tensor;
    assert_eq!(
        quantize_matrix(view, &config(ScaleRule::AbsMean, layout)).unwrap().0.scales().values().len(),
        1
    );
}

#[test]
fn stochastic_rounding_is_right_on_average() {
    let weights = vec![0.3f32; 20_000];
    let view = MatrixView::new(1, weights.len(), &weights).unwrap();
    for (depth, manual) in [(1, 1.0), (2, 1.0)] {
        let config = QuantizeConfig::default()
            .with_rule(ScaleRule::Calibrated(CalibrationMethod::Manual(manual)))
            .with_rounding(Rounding::Stochastic { seed: 5 })
            .with_layout(layout(depth, Coupling::Tied, Granularity::Row));
        let (tensor, _) = quantize_matrix(view, &config).unwrap();
        let mean = tensor.dequantize().iter().sum::<f32>() / weights.len() as f32;
        assert_near!(mean, 0.3, abs = 0.015, "{depth}");
        assert_eq!(quantize_matrix(view, &config).unwrap().0, tensor, "the same seed");
        let other = config.with_rounding(Rounding::Stochastic { seed: 6 });
        assert_ne!(quantize_matrix(view, &other).unwrap().0, tensor, "another seed");
    }
}

#[test]
fn options_that_do_not_go_together_are_refused_by_name() {
    let weights = [1.0, 2.0];
    let view = MatrixView::new(1, 2, &weights).unwrap();
    let two = layout(2, Coupling::Tied, Granularity::Row);
    let free = two.with_coupling(Coupling::Free);
    let mean = two.with_mean(true).with_depth(1);
    let calibrated = |method| config(ScaleRule::Calibrated(method), two.with_depth(1));
    for (bad, field) in [
        (config(ScaleRule::LeastSquares, two.with_depth(0)), "depth"),
        (config(ScaleRule::LeastSquares, two.with_depth(7)), "depth"),
        (config(ScaleRule::AbsMean, two), "rule"),
        (config(ScaleRule::Twn, mean), "rule"),
        (config(ScaleRule::Calibrated(CalibrationMethod::AbsMax), free), "rule"),
        (calibrated(CalibrationMethod::Percentile(0.0)), "percentile"),
        (calibrated(CalibrationMethod::Percentile(100.1)), "percentile"),
        (calibrated(CalibrationMethod::MeanStd(f32::NAN)), "mean_std"),
        (calibrated(CalibrationMethod::Manual(0.0)), "range"),
    ] {
        match quantize_matrix(view, &bad) {
            Err(QuantError::Option(e)) => assert_eq!(e.field(), field),
            other => panic!("{bad:?}: {other:?}"),
        }
    }
}

/// Correlated inputs, as in real layers.
fn inputs(tokens: usize, width: usize, seed: u64) -> Vec<f32> {
    let mut rng = Rng::new(seed);
    let mix = rng.normals(width * width);
    let mut x = Vec::with_capacity(tokens * width);
    for _ in 0..tokens {
        let hidden = rng.normals(width / 4);
        for c in 0..width {
            let sum: f32 = hidden.iter().zip(&mix[c * width..]).map(|(h, m)| h * m).sum();
            x.push((0.3 + c as f32 / width as f32) * (sum + 0.5 * rng.normal()));
        }
    }
    x
}

fn square(values: Vec<f32>) -> SquareMatrix {
    SquareMatrix::new(values.len().isqrt(), values).unwrap()
}

#[test]
fn compensation_loses_less_than_rounding_for_every_layout() {
    let cpu = Cpu::new(1).unwrap();
    let (rows, cols) = (19, 72);
    let mut hessian = Hessian::new(cols).unwrap();
    hessian.add(&cpu, &inputs(400, cols, 4)).unwrap();
    let hessian = hessian.into_matrix().unwrap().0;
    let weights = Rng::new(8).normals(rows * cols);
    let view = MatrixView::new(rows, cols, &weights).unwrap();
    for granularity in [Granularity::Row, Granularity::Group(GroupSize::G32)] {
        for depth in 1..=3 {
            for coupling in [Coupling::Tied, Coupling::Free] {
                for with_mean in [false, true] {
                    let layout = layout(depth, coupling, granularity).with_mean(with_mean);
                    let rounded = quantize_matrix(view, &config(ScaleRule::LeastSquares, layout)).unwrap().0;
                    let lost = |t: &trike_trit::TritTensor| {
                        hessian_error(&cpu, &weights, &t.dequantize(), &hessian).unwrap()
                    };
                    let factor =
                        |order| HessianFactor::new(&cpu, &hessian, granularity, order, 0.01).unwrap();
                    let run = |order, rounds| {
                        let config = CompensateConfig::default().with_layout(layout).with_rounds(rounds);
                        lost(&compensate(&cpu, view, &factor(order), None, &config).unwrap().0)
                    };
                    let (plain, best) = (run(ColumnOrder::Stored, 0), run(ColumnOrder::Activation, 3));
                    let rounded = lost(&rounded);
                    assert!(plain < 0.8 * rounded, "{layout:?}: {plain} of {rounded}");
                    assert!(best < 0.95 * plain, "{layout:?}: {best} of {plain}");
                }
            }
        }
    }
}

#[test]
fn compensation_does_not_depend_on_threads_and_stores_f16() {
    let cpu = Cpu::new(1).unwrap();
    let (rows, cols) = (50, 96);
    let mut hessian = Hessian::new(cols).unwrap();
    hessian.add(&cpu, &inputs(300, cols, 1)).unwrap();
    let granularity = Granularity::Group(GroupSize::G64);
    let factor = HessianFactor::new(
        &cpu,
        &hessian.into_matrix().unwrap().0,
        granularity,
        ColumnOrder::Activation,
        0.01,
    )
    .unwrap();
    let weights: Vec<f32> = Rng::new(3).normals(rows * cols).iter().map(|w| w * 0.02).collect();
    let view = MatrixView::new(rows, cols, &weights).unwrap();
    let layout = layout(2, Coupling::Tied, granularity).with_scales(ScaleType::F16);
    let run = |threads| {
        let cpu = Cpu::new(threads).unwrap();
        compensate(&cpu, view, &factor, None, &CompensateConfig::default().with_layout(layout).with_rounds(2))
            .unwrap()
    };
    let (one, stats) = run(1);
    assert_eq!(one, run(3).0);
    assert_eq!(one.scales().values().bytes(), 2 * rows * 2);
    assert!(stats.relative_error > 0.05 && stats.relative_error < 0.4, "{stats:?}");
    let wrong =
        CompensateConfig::default().with_layout(layout.with_granularity(Granularity::Row)).with_rounds(2);
    assert!(matches!(
        compensate(&cpu, view, &factor, None, &wrong),
        Err(QuantError::Option(e)) if e.field() == "granularity"
    ));
}

#[test]
fn pruned_weights_are_zero_and_the_others_make_up_for_them() {
    let cpu = Cpu::new(1).unwrap();
    let (rows, cols) = (12, 64);
    let mut hessian = Hessian::new(cols).unwrap();
    hessian.add(&cpu, &inputs(300, cols, 6)).unwrap();
    let (matrix, inputs) = hessian.into_matrix().unwrap();
    let weights = Rng::new(4).normals(rows * cols);
    let view = MatrixView::new(rows, cols, &weights).unwrap();
    let granularity = Granularity::Group(GroupSize::G32);
    let factor = HessianFactor::new(&cpu, &matrix, granularity, ColumnOrder::Activation, 0.01).unwrap();
    let config =
        CompensateConfig::default().with_layout(layout(3, Coupling::Tied, granularity)).with_rounds(2);
    let lost = |score| {
        let keep = prune(view, score, PrunePattern::PerRow, 0.5).unwrap();
        let tensor = compensate(&cpu, view, &factor, Some(&keep), &config).unwrap().0;
        let values = tensor.dequantize();
        assert!(values.iter().zip(&keep).all(|(v, keep)| *keep || *v == 0.0));
        assert!(tensor.zeros() as usize >= 3 * rows * cols / 2);
        let cut: Vec<f32> = weights.iter().zip(&keep).map(|(w, keep)| if *keep { *w } else { 0.0 }).collect();
        let alone = hessian_error(&cpu, &weights, &cut, &matrix).unwrap();
        let got = hessian_error(&cpu, &weights, &values, &matrix).unwrap();
        assert!(got < 0.8 * alone, "{got} of {alone}");
        got
    };
    let magnitude = lost(PruneScore::Magnitude);
    assert!(lost(PruneScore::Wanda(inputs.diagonal())) < magnitude);
    assert!(lost(PruneScore::Compensated(&factor)) < magnitude);
    let mean = config.with_layout(config.layout.with_mean(true));
    let keep = vec![true; rows * cols];
    assert!(matches!(
        compensate(&cpu, view, &factor, Some(&keep), &mean),
        Err(QuantError::Option(e)) if e.field() == "with_mean"
    ));
    assert_eq!(
        compensate(&cpu, view, &factor, Some(&keep), &config).unwrap().0,
        compensate(&cpu, view, &factor, None, &config).unwrap().0
    );
}

/// Dead inputs, no inputs, constant and zero groups, a Hessian that is not positive definite.
#[test]
fn degenerate_input_is_rounded_and_not_broken() {
    let cpu = Cpu::new(1).unwrap();
    let (rows, cols) = (5, 64);
    let mut weights = Rng::new(1).normals(rows * cols);
    weights[..32].fill(0.0);
    weights[32..64].fill(0.25);
    let view = MatrixView::new(rows, cols, &weights).unwrap();
    let granularity = Granularity::Group(GroupSize::G32);
    let mut half_dead = vec![0f32; cols * cols];
    for i in 0..cols / 2 {
        half_dead[i * cols + i] = 1.0;
    }
    let ones = vec![1f32; cols * cols];
    let mut indefinite = ones.clone();
    indefinite[1] = 3.0;
    indefinite[cols] = 3.0;
    for (name, hessian) in [
        ("nothing", vec![0f32; cols * cols]),
        ("dead", half_dead),
        ("ones", ones),
        ("indefinite", indefinite),
    ] {
        let factor =
            HessianFactor::new(&cpu, &square(hessian), granularity, ColumnOrder::Activation, 0.01).unwrap();
        assert!(factor.damping() >= 0.01);
        assert_eq!(
            factor.dead_inputs(),
            match name {
                "nothing" => cols,
                "dead" => cols / 2,
                _ => 0,
            }
        );
        for depth in 1..=2 {
            for with_mean in [false, true] {
                let layout = layout(depth, Coupling::Tied, granularity).with_mean(with_mean);
                let config = CompensateConfig::default().with_layout(layout).with_rounds(2);
                let (tensor, _) = compensate(&cpu, view, &factor, None, &config).unwrap();
                let values = tensor.dequantize();
                assert!(values.iter().all(|v| v.is_finite()), "{name}");
                assert!(name != "nothing" || values[..32].iter().all(|v| *v == 0.0), "{name}");
            }
        }
    }
    let wrong =
        HessianFactor::new(&cpu, &square(vec![1.0; 4]), Granularity::Tensor, ColumnOrder::Stored, 0.01);
    assert!(matches!(wrong, Err(QuantError::Option(e)) if e.field() == "granularity"));
}

#[test]
fn the_correction_is_the_damped_least_squares_solution() {
    // One input, H = 2: weight 1 and a residual correlation of 1 with the input: 1 + 1 / (2 + damping 2 * 0.5).
    let factor = HessianFactor::new(
        &Cpu::new(1).unwrap(),
        &square(vec![2.0]),
        Granularity::Row,
        ColumnOrder::Stored,
        0.5,
    )
    .unwrap();
    let got = factor.corrected(&Cpu::new(1).unwrap(), &[1.0], &[1.0]).unwrap();
    assert_near!(got[0], 1.0 + 1.0 / 3.0, abs = 1e-6);
    // Several inputs: a change of the inputs is compensated as far as the new inputs predict the old ones.
    let cpu = Cpu::new(1).unwrap();
    let (rows, cols, tokens) = (3, 8, 200);
    let x = inputs(tokens, cols, 9);
    let weights = Rng::new(2).normals(rows * cols);
    let seen: Vec<f32> =
        x.iter().zip(Rng::new(5).normals(x.len())).map(|(x, e)| 0.8 * x + 0.01 * e).collect();
    let mut hessian = Hessian::new(cols).unwrap();
    hessian.add(&cpu, &seen).unwrap();
    let mut cross = trike_quant::CrossProduct::new(cols, cols).unwrap();
    cross.add(&cpu, &x, &seen).unwrap();
    let h = hessian.into_matrix().unwrap().0;
    let shift = cross.shift(&cpu, &weights, &h).unwrap();
    let factor = HessianFactor::new(&cpu, &h, Granularity::Row, ColumnOrder::Activation, 1e-4).unwrap();
    let corrected = factor.corrected(&cpu, &weights, &shift).unwrap();
    let output = |w: &[f32], x: &[f32]| -> Vec<f32> {
        (0..tokens * rows)
            .map(|i| (0..cols).map(|c| w[i % rows * cols + c] * x[i / rows * cols + c]).sum())
            .collect()
    };
    let want = output(&weights, &x);
    let error = |w: &[f32]| output(w, &seen).iter().zip(&want).map(|(a, b)| (a - b).powi(2)).sum::<f32>();
    assert!(error(&corrected) < 0.05 * error(&weights), "{} {}", error(&corrected), error(&weights));
    // The correlation with the original outputs gives the same shift.
    let mut cross = trike_quant::CrossProduct::new(rows, cols).unwrap();
    cross.add(&cpu, &want, &seen).unwrap();
    assert_close(&cross.shift_of_outputs(&cpu, &weights, &h).unwrap(), &shift, 1e-4);
    assert!(cross.shift_of_outputs(&cpu, &weights[1..], &h).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// No other rule has a smaller least-squares error, for any weights.
    #[test]
    fn least_squares_is_never_worse(weights in proptest::collection::vec(-4f32..4.0, 1..80), small in any::<bool>()) {
        let scale = if small { 1e-3 } else { 1.0 };
        let weights: Vec<f32> = weights.iter().map(|w| w * scale).collect();
        let view = MatrixView::new(1, weights.len(), &weights).unwrap();
        let one = layout(1, Coupling::Tied, Granularity::Group(GroupSize::G32));
        let error = |rule| quantize_matrix(view, &config(rule, one)).unwrap().1.relative_error;
        let best = error(ScaleRule::LeastSquares);
        for rule in [
            ScaleRule::AbsMean,
            ScaleRule::Twn,
            ScaleRule::Calibrated(CalibrationMethod::AbsMax),
            ScaleRule::Calibrated(CalibrationMethod::Percentile(90.0)),
            ScaleRule::Calibrated(CalibrationMethod::MeanStd(1.0)),
        ] {
            prop_assert!(best <= error(rule) + 1e-6, "{rule:?}: {best} over {}", error(rule));
        }
    }
}
