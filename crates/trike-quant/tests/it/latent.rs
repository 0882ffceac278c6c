//! Weights learned through rounding.

use trike_cpu::Cpu;
use trike_quant::{
    LatentLearningRates, LatentScales, LatentWeights, MatrixView, QuantError, QuantizeConfig, ScaleRule,
    TritLayout, quantize_matrix,
};
use trike_testkit::{Rng, assert_all_near};
use trike_trit::{Coupling, Encoding, Granularity, GroupSize, ScaleValues, Scales, TritTensor};

const ROWS: usize = 3;
const COLS: usize = 77;

fn cpu() -> Cpu {
    Cpu::new(1).expect("a thread")
}

fn layouts() -> Vec<TritLayout> {
    let mut all = Vec::new();
    for granularity in [Granularity::Tensor, Granularity::Row, Granularity::Group(GroupSize::G32)] {
        for (depth, with_mean, encoding) in
            [(1, false, Encoding::TwoBit), (2, true, Encoding::Base3), (4, false, Encoding::Base3)]
        {
            all.push(
                TritLayout::default()
                    .with_depth(depth)
                    .with_mean(with_mean)
                    .with_encoding(encoding)
                    .with_granularity(granularity),
            );
        }
    }
    all
}

fn rounded(weights: &[f32], layout: TritLayout) -> TritTensor {
    let view = MatrixView::new(ROWS, COLS, weights).unwrap();
    let config = QuantizeConfig::default().with_layout(layout);
    quantize_matrix(view, &config).unwrap().0
}

#[test]
fn it_starts_where_the_tensor_is() {
    let weights = Rng::new(1).normals(ROWS * COLS);
    let other = Rng::new(2).normals(ROWS * COLS);
    for layout in layouts() {
        let trits = rounded(&weights, layout);
        // Also if the weights round to other codes.
        for near in [&weights, &other] {
            let latent =
                LatentWeights::new(MatrixView::new(ROWS, COLS, near).unwrap(), &trits, None).unwrap();
            assert_eq!(latent.tensor().unwrap(), trits, "{layout:?}");
            let values = trits.dequantize();
            let largest = values.iter().fold(0f32, |m, v| m.max(v.abs()));
            assert_all_near!(&latent.values(&cpu()), &values, abs = 1e-5 * largest, "{layout:?}");
        }
    }
}

/// With the weights themselves as the target and a loss over correlated inputs, training gets closer to them than rounding.
#[test]
fn learning_lowers_a_loss() {
    let mut rng = Rng::new(3);
    let weights = rng.normals(ROWS * COLS);
    let mix = rng.normals(COLS * 12);
    let image = |w: &[f32]| -> Vec<f32> {
        let each = w.chunks_exact(COLS).flat_map(|row| {
            (0..12).map(|i| row.iter().zip(&mix[i * COLS..]).map(|(w, m)| w * m).sum::<f32>())
        });
        each.collect()
    };
    let aim = image(&weights);
    let loss = |w: &[f32]| image(w).iter().zip(&aim).map(|(a, b)| (a - b).powi(2)).sum::<f32>();
    for layout in layouts() {
        let trits = rounded(&weights, layout);
        let mut latent =
            LatentWeights::new(MatrixView::new(ROWS, COLS, &weights).unwrap(), &trits, None).unwrap();
        let steps = 200;
        for i in 0..steps {
            let error: Vec<f32> =
                image(&latent.values(&cpu())).iter().zip(&aim).map(|(a, b)| a - b).collect();
            let by = |r: usize, c: usize| (0..12).map(|i| error[r * 12 + i] * mix[i * COLS + c]).sum::<f32>();
            let gradient: Vec<f32> = (0..ROWS * COLS).map(|k| by(k / COLS, k % COLS)).collect();
            let left = 1.0 - i as f32 / steps as f32;
            latent
                .update(
                    &cpu(),
                    &gradient,
                    LatentLearningRates::default().with_codes(0.03 * left).with_scales(3e-3 * left),
                )
                .unwrap();
        }
        let (before, after) = (loss(&trits.dequantize()), loss(&latent.tensor().unwrap().dequantize()));
        assert!(after < 0.5 * before, "{layout:?}: {before} to {after}");
    }
}

/// A matrix large enough for several threads, with spans of whole and partial vectors.
#[test]
fn threads_and_instruction_sets_change_no_bit() {
    const ROWS: usize = 96;
    const COLS: usize = 2 * 1024 + 5;
    let mut rng = Rng::new(6);
    let (weights, gradient) = (rng.normals(ROWS * COLS), rng.normals(ROWS * COLS));
    let view = MatrixView::new(ROWS, COLS, &weights).unwrap();
    let rates = LatentLearningRates::default().with_codes(0.1).with_scales(0.02);
    for layout in layouts() {
        let config = QuantizeConfig::default().with_layout(layout);
        let (trits, _) = quantize_matrix(view, &config).unwrap();
        let keep: Vec<bool> = trits.dequantize().iter().map(|v| *v > -0.5).collect();
        let tuned = |cpu: Cpu| {
            let mut latent = LatentWeights::new(view, &trits, Some(&keep)).unwrap();
            for _ in 0..3 {
                latent.update(&cpu, &gradient, rates).unwrap();
            }
            latent.values(&cpu)
        };
        let want = tuned(cpu());
        assert!(want != trits.dequantize() && want == tuned(Cpu::new(3).unwrap()), "{layout:?}");
        for isa in trike_cpu::Isa::available() {
            assert!(want == tuned(Cpu::with_isa(isa, 2).unwrap()), "{layout:?} {isa:?}");
        }
    }
}

#[test]
fn what_is_not_kept_stays() {
    let weights = Rng::new(4).normals(ROWS * COLS);
    let trits = rounded(&weights, TritLayout::default());
    let before = trits.dequantize();
    let keep: Vec<bool> = before.iter().map(|v| *v != 0.0).collect();
    let view = MatrixView::new(ROWS, COLS, &weights).unwrap();
    let mut latent = LatentWeights::new(view, &trits, Some(&keep)).unwrap();
    for _ in 0..80 {
        latent
            .update(&cpu(), &vec![-1.0; ROWS * COLS], LatentLearningRates::default().with_codes(0.05))
            .unwrap();
    }
    for (before, after) in before.iter().zip(latent.tensor().unwrap().dequantize()) {
        assert!(if *before == 0.0 { after == 0.0 } else { after > 0.0 }, "{before} {after}");
    }
}

/// Starting from the same codes with perturbed scales and means, training recovers the originals.
#[test]
fn scales_are_learned_alone() {
    let mut rng = Rng::new(6);
    let weights = rng.normals(ROWS * COLS);
    let free = TritLayout::default().with_depth(2).with_coupling(Coupling::Free).with_mean(true);
    for layout in layouts().into_iter().chain([free]) {
        let aim = rounded(&weights, layout);
        let mut moved = |values: &ScaleValues| -> Vec<f32> {
            values.iter().map(|v| v * (1.0 + 0.2 * rng.f32_unit())).collect()
        };
        let scales = moved(aim.scales().values());
        let means = aim.scales().means().map(|means| ScaleValues::F32(moved(means)));
        let start = aim.clone().with_scales(Scales::new(layout.granularity, scales, means)).unwrap();
        let mut latent = LatentScales::new(&start);
        assert_eq!(latent.tensor(&start).unwrap(), start);
        let (aimed, largest) = (aim.dequantize(), aim.scales().values().iter().fold(0f32, f32::max));
        for step in 0..400 {
            let now = latent.values(&start).unwrap();
            let gradient: Vec<f32> = now.iter().zip(&aimed).map(|(now, aim)| now - aim).collect();
            latent.update(&start, &gradient, 0.02 * (1.0 - step as f32 / 400.0)).unwrap();
        }
        let tuned = latent.tensor(&start).unwrap();
        assert_all_near!(&tuned.dequantize(), &aimed, abs = 2e-3 * largest, "{layout:?}");
        // The codes and the storage format of the scales are unchanged.
        assert_eq!(tuned.with_scales(start.scales().clone()).unwrap(), start);
        assert_eq!(latent.tensor(&aim).unwrap().scales().bytes(), aim.scales().bytes());
    }
    let trits = rounded(&weights, TritLayout::default());
    let mut latent = LatentScales::new(&trits);
    assert!(matches!(latent.update(&trits, &[0.0; 3], 0.1), Err(QuantError::Length { .. })));
    let bad = [f32::NAN; ROWS * COLS];
    assert!(matches!(latent.update(&trits, &bad, 0.1), Err(QuantError::NonFinite { .. })));
    assert_eq!(latent.tensor(&trits).unwrap(), trits);
}

#[test]
fn what_cannot_be_learned_is_refused() {
    let weights = Rng::new(5).normals(ROWS * COLS);
    let view = MatrixView::new(ROWS, COLS, &weights).unwrap();
    let layout = TritLayout::default().with_depth(2).with_coupling(Coupling::Free);
    let free = rounded(&weights, layout);
    assert!(
        matches!(LatentWeights::new(view, &free, None), Err(QuantError::Option(e)) if e.field() == "coupling")
    );
    let trits = rounded(&weights, TritLayout::default());
    let narrow = MatrixView::new(ROWS, COLS - 1, &weights[ROWS..]).unwrap();
    assert!(matches!(LatentWeights::new(narrow, &trits, None), Err(QuantError::Length { .. })));
    assert!(matches!(LatentWeights::new(view, &trits, Some(&[true])), Err(QuantError::Length { .. })));
    let mut latent = LatentWeights::new(view, &trits, None).unwrap();
    let rates = LatentLearningRates::default().with_codes(0.1).with_scales(0.1);
    assert!(matches!(latent.update(&cpu(), &[1.0], rates), Err(QuantError::Length { .. })));
    let mut bad = vec![0.0; ROWS * COLS];
    bad[7] = f32::NAN;
    assert!(matches!(latent.update(&cpu(), &bad, rates), Err(QuantError::NonFinite { index: 7, .. })));
    assert_eq!(latent.tensor().unwrap(), trits, "nothing has changed");
    // Without a gradient nothing changes, and an all-zero group stays zero.
    latent.update(&cpu(), &vec![0.0; ROWS * COLS], rates).unwrap();
    assert_eq!(latent.tensor().unwrap(), trits);
    let zeros = vec![0.0; ROWS * COLS];
    let config = QuantizeConfig::default().with_rule(ScaleRule::LeastSquares);
    let view = MatrixView::new(ROWS, COLS, &zeros).unwrap();
    let (trits, _) = quantize_matrix(view, &config).unwrap();
    let mut latent = LatentWeights::new(view, &trits, None).unwrap();
    latent.update(&cpu(), &weights, rates).unwrap();
    assert!(latent.tensor().unwrap().dequantize().iter().all(|v| *v == 0.0));
}
