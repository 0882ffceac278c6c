//! `MultiHeadAttention` over layers of every kind, and the options of its configuration.

use candle_core::{DType, Device, Tensor};
use candle_nn::{Linear, Module, VarBuilder, VarMap};
use trike_candle::{
    ActivationPrecision, Attention, AttentionConfig, AttentionMask, AttentionScores, AttentionSpec,
    AttentionWeights, BitLinear, CandleError, KvPrecision, LatentBitLinear, MultiHeadAttention, NnError,
    Projection, TernaryAttention,
};
use trike_cpu::Cpu;
use trike_testkit::Rng;

use super::{close, distance, loss, normal, softmax_attention, spec_error, tokens};

fn config() -> AttentionConfig {
    AttentionConfig::new(24, 4).with_kv_heads(2).with_head_dim(8).with_context(16)
}

fn weights(rng: &mut Rng) -> AttentionWeights<Linear> {
    let mut layer = |rows, cols| Linear::new(normal(rng, &[rows, cols]), Some(normal(rng, &[rows])));
    AttentionWeights {
        q_proj: layer(32, 24),
        k_proj: layer(16, 24),
        v_proj: layer(16, 24),
        o_proj: layer(24, 32),
    }
}

/// Projections and attention from Candle's operations, without positions.
fn reference(w: &AttentionWeights<Linear>, x: &Tensor, causal: bool, bias: Option<&Tensor>) -> Tensor {
    let spec = AttentionSpec { heads: 4, kv_heads: 2, head_dim: 8, scale: 1.0 / 8f32.sqrt(), window: None };
    let project = |layer: &Linear| layer.forward(x).expect("a projection");
    let (q, k, v) = (project(&w.q_proj), project(&w.k_proj), project(&w.v_proj));
    let y = softmax_attention(&q, &k, &v, &spec, causal, bias).expect("y");
    w.o_proj.forward(&y).expect("a projection")
}

#[test]
fn dense_projections_without_positions_are_candles() {
    let mut rng = Rng::new(81);
    let w = weights(&mut rng);
    let x = normal(&mut rng, &[2, 9, 24]);
    let bias = normal(&mut rng, &[2, 4, 9, 9]);
    for causal in [true, false] {
        let config = config().with_rope(None);
        let config = if causal { config } else { config.bidirectional() };
        let layer = MultiHeadAttention::new(config, w.clone()).expect("a layer");
        let layer = layer.with_cpu(Cpu::new(1).expect("one thread"));
        close(&layer.forward(&x).expect("y"), &reference(&w, &x, causal, None), 1e-5);
        let masked = layer.forward_with(&x, None, Some(AttentionMask::Dense(&bias))).expect("y");
        close(&masked, &reference(&w, &x, causal, Some(&bias)), 1e-5);
        assert_eq!(layer.weights().o_proj.in_features(), 32);
        let mut cache = layer.new_cache(2, 9, KvPrecision::F32).expect("a cache");
        let result = layer.forward_with_cache(&tokens(&x, 0, 4), &mut cache);
        if causal {
            let last = layer.forward_with_cache(&tokens(&x, 4, 5), &mut cache).expect("y");
            let all = Tensor::cat(&[result.expect("y"), last], 1).expect("y");
            close(&all, &reference(&w, &x, true, None), 1e-5);
        } else {
            spec_error(result, "attention with a cache");
        }
    }
    // Rotary positions are on by default.
    let turned = MultiHeadAttention::new(config(), w.clone()).expect("a layer").forward(&x).expect("y");
    assert!(distance(&turned, &reference(&w, &x, true, None)) > 1e-2);
}

/// The layer equals its projections, the rotary embedding and `Attention`, with any cache and scores.
#[test]
fn options_are_those_of_attention() {
    let mut rng = Rng::new(82);
    let w = weights(&mut rng);
    let x = normal(&mut rng, &[2, 12, 24]);
    let spec = AttentionSpec { heads: 4, kv_heads: 2, head_dim: 8, scale: 1.0 / 8f32.sqrt(), window: None };
    let project = |layer: &Linear, x: &Tensor| layer.forward(x).expect("a projection");
    let mut seen: Vec<Tensor> = Vec::new();
    for scores in [AttentionScores::Exact, AttentionScores::Popcount] {
        let layer = MultiHeadAttention::new(config().with_rope(None).with_scores(scores), w.clone());
        let layer = layer.expect("a layer");
        let attention = Attention::new(spec).expect("valid").with_scores(scores);
        for precision in KvPrecision::ALL {
            let mut caches = [(); 2].map(|()| layer.new_cache(2, 12, precision).expect("a cache"));
            assert_eq!((caches[0].precision(), caches[0].scores()), (precision, scores));
            let [of_layer, of_attention] = &mut caches;
            for (first, n) in [(0, 7), (7, 1), (8, 4)] {
                let x = tokens(&x, first, n);
                let got = layer.forward_with_cache(&x, of_layer).expect("y");
                let [q, k, v] = [&w.q_proj, &w.k_proj, &w.v_proj].map(|layer| project(layer, &x));
                let y = attention.forward(&q, &k, &v, Some(of_attention), None).expect("y");
                close(&got, &project(&w.o_proj, &y), 0.0);
                if first == 8 && scores == AttentionScores::Exact {
                    assert!(
                        seen.iter().all(|y| distance(y, &got) > 0.0),
                        "every precision changes something"
                    );
                    seen.push(got);
                }
            }
        }
    }
}

#[test]
fn trained_projections_are_packed() {
    let mut rng = Rng::new(83);
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
    let layer = |name: &str, rows, cols| LatentBitLinear::load(cols, rows, vb.pp(name)).expect("a layer");
    let weights = AttentionWeights {
        q_proj: layer("q_proj", 32, 24),
        k_proj: layer("k_proj", 16, 24),
        v_proj: layer("v_proj", 16, 24),
        o_proj: layer("o_proj", 24, 32),
    };
    let latent = MultiHeadAttention::new(config(), weights).expect("a layer");
    let x = normal(&mut rng, &[1, 6, 24]);
    let y = latent.forward(&x).expect("y");
    let gradients = loss(&y).backward().expect("gradients");
    assert_eq!(variables.all_vars().len(), 4);
    assert!(variables.all_vars().iter().all(|var| gradients.get(var).is_some()));
    // Weights tracked for gradients are refused with a cache; packed ones are accepted.
    let mut cache = latent.new_cache(1, 8, KvPrecision::F32).expect("a cache");
    spec_error(latent.forward_with_cache(&x, &mut cache), "an input with a cache");
    let bits = latent.map(|layer| layer.to_bit_linear()).expect("a layer");
    let of_bits: Tensor = bits.with_cpu(Cpu::new(1).expect("one thread")).forward(&x).expect("y");
    // If a sum differs in its last bit, the input of the last projection may be rounded to the adjacent of its 127 steps.
    close(&of_bits, &y, 2e-2);

    let mut rng = Rng::new(84);
    let bit = |rows: usize, cols: usize, rng: &mut Rng| {
        BitLinear::from_weight(&normal(rng, &[rows, cols]), None).expect("a layer").0
    };
    let weights = AttentionWeights {
        q_proj: bit(32, 24, &mut rng),
        k_proj: bit(16, 24, &mut rng),
        v_proj: bit(16, 24, &mut rng),
        o_proj: bit(24, 32, &mut rng),
    };
    let bits = MultiHeadAttention::new(config(), weights).expect("a layer");
    let want = bits.forward(&x).expect("y");
    let packed: TernaryAttention = bits.map(|layer| Ok(layer.into())).expect("a layer");
    close(&packed.forward(&x).expect("y"), &want, 0.0);
    let exact = packed.with_activations(ActivationPrecision::F32).forward(&x).expect("y");
    assert!(distance(&exact, &want) > 1e-4);
}

#[test]
fn projections_and_options_that_do_not_fit_are_refused() {
    let mut rng = Rng::new(85);
    let w = weights(&mut rng);
    let swapped = AttentionWeights { v_proj: w.q_proj.clone(), ..w.clone() };
    assert!(matches!(
        MultiHeadAttention::new(config(), swapped),
        Err(CandleError::Nn(NnError::WeightShape { name, expected_rows: 16, got_rows: 32, .. })) if name == "v_proj"
    ));
    let flat = Linear::new(normal(&mut rng, &[24]), None);
    let flat = AttentionWeights { o_proj: flat, ..w.clone() };
    assert!(matches!(
        MultiHeadAttention::new(config(), flat),
        Err(CandleError::Nn(NnError::WeightShape { got_cols: 0, .. }))
    ));
    let odd = AttentionConfig::new(24, 4).with_head_dim(7);
    spec_error(MultiHeadAttention::new(odd, w.clone()), "head_dim");
    let windowed = config().with_window(4).bidirectional();
    spec_error(windowed.validate(), "window");
    spec_error(MultiHeadAttention::new(windowed, w.clone()), "window");

    let layer = MultiHeadAttention::new(config(), w).expect("a layer");
    let refused = |x: &Tensor| layer.forward_with(x, None, None).expect_err("a refusal").to_string();
    let x = normal(&mut rng, &[2, 3, 24]);
    assert_eq!(refused(&x.narrow(2, 0, 23).expect("a part")), "input of attention: expected 24, got 23");
    assert_eq!(
        refused(&x.reshape((6, 24)).expect("a shape")),
        "axes of the input of attention: expected 3, got 2"
    );
    assert_eq!(refused(&x.narrow(1, 0, 0).expect("none")), "a step needs at least one token per sequence");
}
