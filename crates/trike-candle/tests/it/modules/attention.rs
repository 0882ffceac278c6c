//! `attention`, `TernaryAttention` and `KvCache`.

use std::collections::HashMap;

use candle_core::{D, DType, Device, Tensor, Var};
use candle_nn::{Module, VarBuilder};
use trike_candle::{
    ActivationPrecision, AttentionSpec, BitLinear, CandleError, KvCache, KvPrecision, NnError, RopePairing,
    RopeScaling, RopeSpec, Ternarize, TernaryAttention, TernaryAttentionConfig, TernaryAttentionWeights,
    TernaryLinear, attention, quantize_tensor, shared_cpu,
};
use trike_cpu::Cpu;
use trike_testkit::Rng;
use trike_trit::Granularity;

use super::{close, distance, loss, normal};

fn config(kv_heads: usize, pairing: RopePairing, window: Option<usize>) -> TernaryAttentionConfig {
    let rope = RopeSpec::new(10_000.0, pairing);
    let config = TernaryAttentionConfig::new(24, 4).with_kv_heads(kv_heads).with_head_dim(8);
    let config = config.with_context(16).with_rope(rope);
    window.map_or(config.clone(), |window| config.with_window(window))
}

fn layer(config: &TernaryAttentionConfig, seed: u64) -> TernaryAttention {
    let mut rng = Rng::new(seed);
    let mut projection = |rows: usize, cols: usize| {
        let w = normal(&mut rng, &[rows, cols]);
        let (trits, _) = quantize_tensor(&w, Ternarize::AbsMean(Granularity::Row)).expect("trits");
        let bias = (normal(&mut rng, &[rows]) * 0.1).expect("a bias");
        TernaryLinear::new(&trits, Some(bias)).expect("a layer").with_activations(ActivationPrecision::F32)
    };
    let (q, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
    let weights = TernaryAttentionWeights {
        q_proj: projection(q, config.hidden),
        k_proj: projection(kv, config.hidden),
        v_proj: projection(kv, config.hidden),
        o_proj: projection(config.hidden, q),
    };
    TernaryAttention::new(config.clone(), weights).expect("a layer")
}

/// Attention of `[batch, tokens, heads * d]` from Candle's operations.
fn scores(q: &Tensor, k: &Tensor, v: &Tensor, spec: &AttentionSpec) -> candle_core::Result<Tensor> {
    let (batch, tokens, _) = q.dims3()?;
    let AttentionSpec { heads, kv_heads, head_dim: d, scale, window } = *spec;
    let split = |x: &Tensor, n: usize| x.reshape((batch, tokens, n, d))?.transpose(1, 2)?.contiguous();
    // Query head h reads key head h / (heads / kv_heads).
    let index: Vec<u32> = (0..heads).map(|h| (h / (heads / kv_heads)) as u32).collect();
    let index = Tensor::new(index, &Device::Cpu)?;
    let (k, v) = (split(k, kv_heads)?.index_select(&index, 1)?, split(v, kv_heads)?.index_select(&index, 1)?);
    let seen = |i: usize, j: usize| j <= i && window.is_none_or(|w| i - j < w);
    let mask: Vec<f32> = (0..tokens * tokens)
        .map(|i| if seen(i / tokens, i % tokens) { 0.0 } else { f32::NEG_INFINITY })
        .collect();
    let mask = Tensor::from_vec(mask, (tokens, tokens), &Device::Cpu)?;
    let scores = (split(q, heads)?.matmul(&k.t()?)? * f64::from(scale))?.broadcast_add(&mask)?;
    let y = candle_nn::ops::softmax(&scores, D::Minus1)?.matmul(&v)?;
    y.transpose(1, 2)?.contiguous()?.reshape((batch, tokens, heads * d))
}

fn rope(x: &Tensor, config: &TernaryAttentionConfig) -> candle_core::Result<Tensor> {
    let (batch, tokens, width) = x.dims3()?;
    let d = config.head_dim;
    let Some(spec) = &config.rope else { return Ok(x.clone()) };
    let positions: Vec<f32> = (0..tokens).map(|p| p as f32).collect();
    let frequencies = Tensor::from_vec(spec.frequencies(d), (1, d / 2), &Device::Cpu)?;
    let angles = Tensor::from_vec(positions, (tokens, 1), &Device::Cpu)?.matmul(&frequencies)?;
    let heads = x.reshape((batch, tokens, width / d, d))?.transpose(1, 2)?.contiguous()?;
    let turned = match spec.pairing {
        RopePairing::Halves => candle_nn::rotary_emb::rope_slow(&heads, &angles.cos()?, &angles.sin()?)?,
        RopePairing::Adjacent => candle_nn::rotary_emb::rope_i_slow(&heads, &angles.cos()?, &angles.sin()?)?,
    };
    turned.transpose(1, 2)?.contiguous()?.reshape((batch, tokens, width))
}

/// The same seeded layer from dense matrices and Candle's operations.
fn reference(config: &TernaryAttentionConfig, seed: u64, x: &Tensor) -> candle_core::Result<Tensor> {
    let mut rng = Rng::new(seed);
    let mut project = |x: &Tensor, rows: usize, cols: usize| {
        let w = normal(&mut rng, &[rows, cols]);
        let (trits, _) = quantize_tensor(&w, Ternarize::AbsMean(Granularity::Row))?;
        let w = Tensor::from_vec(trits.dequantize(), (rows, cols), &Device::Cpu)?;
        x.broadcast_matmul(&w.t()?)?.broadcast_add(&(normal(&mut rng, &[rows]) * 0.1)?)
    };
    let TernaryAttentionConfig { hidden, heads, kv_heads, head_dim, .. } = *config;
    let (q, kv) = (heads * head_dim, kv_heads * head_dim);
    let (queries, k, v) = (project(x, q, hidden)?, project(x, kv, hidden)?, project(x, kv, hidden)?);
    let factor = config.rope.as_ref().map_or(1.0, RopeSpec::attention_factor);
    let scale = factor * factor / (head_dim as f32).sqrt();
    let spec = AttentionSpec { heads, kv_heads, head_dim, scale, window: config.window };
    let y = scores(&rope(&queries, config)?, &rope(&k, config)?, &v, &spec)?;
    project(&y, hidden, q)
}

#[test]
fn whole_sequences_and_their_gradients_are_candles() {
    let mut rng = Rng::new(21);
    let mut seen: Vec<Tensor> = Vec::new();
    let x = Var::from_tensor(&normal(&mut rng, &[2, 9, 24])).expect("a variable");
    for kv_heads in [1, 2, 4] {
        for pairing in [RopePairing::Halves, RopePairing::Adjacent] {
            for window in [None, Some(3)] {
                let config = config(kv_heads, pairing, window);
                let layer = layer(&config, kv_heads as u64);
                assert_eq!(layer.config(), &config);
                let (got, want) = (layer.forward(&x).expect("y"), reference(&config, kv_heads as u64, &x));
                let want = want.expect("y");
                close(&got, &want, 1e-4);
                let grad = |y: &Tensor| loss(y).backward().expect("gradients").get(&x).expect("one").clone();
                close(&grad(&got), &grad(&want), 1e-4);
                assert!(seen.iter().all(|y| distance(y, &got) > 1e-3), "every option changes something");
                seen.push(got);
            }
        }
    }
    let half = x.to_dtype(DType::F16).expect("a cast");
    let y = layer(&config(2, RopePairing::Halves, None), 2).forward(&half).expect("y");
    assert_eq!(y.dtype(), DType::F16);
    close(&y.to_dtype(DType::F32).expect("a cast"), &seen[4], 5e-3);
}

#[test]
fn attention_passes_gradients_to_all_three() {
    let (mut rng, cpu) = (Rng::new(22), shared_cpu().expect("threads"));
    let spec = AttentionSpec { heads: 6, kv_heads: 2, head_dim: 4, scale: 0.7, window: None };
    let [q, k, v] = [24, 8, 8].map(|w| Var::from_tensor(&normal(&mut rng, &[2, 7, w])).expect("a variable"));
    for window in [None, Some(2)] {
        let spec = AttentionSpec { window, ..spec };
        let (got, want) = (attention(&cpu, &spec, &q, &k, &v), scores(&q, &k, &v, &spec).expect("y"));
        let got = got.expect("y");
        close(&got, &want, 1e-5);
        let grads = |y: &Tensor| loss(y).backward().expect("gradients");
        let (got, want) = (grads(&got), grads(&want));
        for var in [&q, &k, &v] {
            close(got.get(var).expect("a gradient"), want.get(var).expect("a gradient"), 1e-4);
        }
    }
    let refused = |spec: AttentionSpec| attention(&cpu, &spec, &q, &k, &v).expect_err("no");
    assert!(matches!(refused(AttentionSpec { heads: 5, ..spec }), CandleError::Nn(NnError::Shape { .. })));
    assert!(refused(AttentionSpec { window: Some(0), ..spec }).to_string().contains("window"));
    let short = k.narrow(1, 0, 3).expect("rows");
    assert!(matches!(attention(&cpu, &spec, &q, &short, &v), Err(CandleError::Nn(NnError::Shape { .. }))));
    let none = |width| Tensor::zeros((2, 0, width), DType::F32, &Device::Cpu).expect("nothing");
    let empty = attention(&cpu, &spec, &none(24), &none(8), &none(8));
    assert!(matches!(empty, Err(CandleError::Nn(NnError::EmptyStep))));
    let uneven = AttentionSpec { heads: 3, kv_heads: 2, ..spec };
    let q = normal(&mut rng, &[2, 7, 12]);
    assert!(attention(&cpu, &uneven, &q, &k, &v).is_err());
}

#[test]
fn steps_with_a_cache_are_the_whole_sequence() {
    let mut rng = Rng::new(23);
    let x = normal(&mut rng, &[2, 20, 24]);
    for pairing in [RopePairing::Halves, RopePairing::Adjacent] {
        for (kv_heads, window, capacity) in [(2, None, 20), (4, None, 64), (1, Some(4), 8)] {
            let layer = layer(&config(kv_heads, pairing, window), 5);
            let whole = layer.forward(&x).expect("y");
            for precision in [KvPrecision::F32, KvPrecision::F16] {
                let bound = if precision == KvPrecision::F32 { 1e-5 } else { 2e-3 };
                let mut cache = layer.new_cache(2, capacity, precision).expect("a cache");
                for round in 0..2 {
                    let mut outs = Vec::new();
                    for step in [5, 1, 1, 4, 3, 1, 5] {
                        let part = x.narrow(1, cache.len(), step).expect("tokens");
                        outs.push(layer.forward_with_cache(&part, &mut cache).expect("y"));
                    }
                    assert_eq!((cache.len(), cache.capacity()), (20, capacity));
                    close(&Tensor::cat(&outs, 1).expect("y"), &whole, bound);
                    // The second time in a cache that was cleared.
                    cache.clear();
                    assert!(cache.is_empty(), "round {round}");
                }
            }
        }
    }
}

#[test]
fn yarn_scales_the_scores() {
    let mut config = config(2, RopePairing::Halves, None);
    let yarn = |attention_factor| RopeScaling::Yarn {
        factor: 4.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        original_context: 16,
        attention_factor,
    };
    let x = normal(&mut Rng::new(24), &[1, 9, 24]);
    let mut outs = Vec::new();
    for factor in [1.0, 1.5] {
        config.rope.as_mut().expect("a rope").scaling = yarn(factor);
        let y = layer(&config, 6).forward(&x).expect("y");
        close(&y, &reference(&config, 6, &x).expect("y"), 1e-4);
        outs.push(y);
    }
    assert!(distance(&outs[0], &outs[1]) > 1e-3);
}

#[test]
fn a_cache_refuses_what_it_cannot_hold_and_stays_as_it_was() {
    let mut rng = Rng::new(25);
    let tokens = |n: usize| normal(&mut Rng::new(26), &[1, n, 24]);
    let full = layer(&config(2, RopePairing::Halves, None), 7);
    let mut cache = full.new_cache(1, 8, KvPrecision::F32).expect("a cache");
    full.forward_with_cache(&tokens(5), &mut cache).expect("y");
    for (n, good) in [(4, false), (3, true)] {
        let before = cache.clone();
        let result = full.forward_with_cache(&tokens(n), &mut cache);
        if !good {
            assert!(matches!(
                result,
                Err(CandleError::Nn(NnError::ContextFull { requested: 9, capacity: 8 }))
            ));
            assert_eq!(cache.len(), before.len());
        } else {
            assert_eq!((result.is_ok(), cache.len()), (true, 8));
        }
    }
    let rolling = layer(&config(2, RopePairing::Halves, Some(4)), 7);
    let mut cache = rolling.new_cache(1, 8, KvPrecision::F32).expect("a cache");
    rolling.forward_with_cache(&tokens(8), &mut cache).expect("y");
    let long = rolling.forward_with_cache(&tokens(6), &mut cache);
    assert!(matches!(long, Err(CandleError::Nn(NnError::StepTooLong { requested: 6, limit: 5 }))));
    rolling.forward_with_cache(&tokens(5), &mut cache).expect("y");

    cache.clear();
    let mut step = |x: &Tensor| rolling.forward_with_cache(x, &mut cache).expect_err("a refusal");
    assert!(matches!(step(&tokens(0)), CandleError::Nn(NnError::EmptyStep)));
    assert!(matches!(
        step(&normal(&mut rng, &[2, 1, 24])),
        CandleError::Nn(NnError::Shape { expected: 1, got: 2, .. })
    ));
    assert!(matches!(
        step(&normal(&mut rng, &[1, 1, 23])),
        CandleError::Nn(NnError::Shape { expected: 24, got: 23, .. })
    ));
    assert!(matches!(
        step(&normal(&mut rng, &[1, 24])),
        CandleError::Nn(NnError::Shape { expected: 3, got: 2, .. })
    ));
    let tracked = Var::from_tensor(&tokens(1)).expect("a variable");
    assert!(step(&tracked).to_string().contains("detach it"));
    rolling.forward_with_cache(&tracked.detach(), &mut cache).expect("y");
    let other = layer(&config(4, RopePairing::Halves, None), 7);
    let wrong = other.forward_with_cache(&tokens(1), &mut cache);
    assert!(matches!(wrong, Err(CandleError::Nn(NnError::Shape { what: "heads of a cache", .. }))));

    for sizes in [
        [0, 1, 1, 1],
        [1, 0, 1, 1],
        [1, 1, 0, 1],
        [1, 1, 1, 0],
        [1 << 31, 1 << 31, 2, 1],
        [(1 << 20) + 1, 1, 1, 1],
    ] {
        let [batch, heads, head_dim, capacity] = sizes;
        let refused = KvCache::new(batch, heads, head_dim, capacity, KvPrecision::F32);
        assert!(
            matches!(refused, Err(CandleError::Nn(NnError::Spec { field: "sizes of a cache", .. }))),
            "{sizes:?}"
        );
    }
}

#[test]
fn the_layer_loads_by_name_and_takes_bit_linears() {
    let mut rng = Rng::new(27);
    let config = config(2, RopePairing::Halves, None);
    let mut tensors = HashMap::new();
    for (name, shape) in
        [("q_proj", [32, 24]), ("k_proj", [16, 24]), ("v_proj", [16, 24]), ("o_proj", [24, 32])]
    {
        tensors.insert(format!("attn.{name}.weight"), normal(&mut rng, &shape));
    }
    let vb = |tensors: &HashMap<String, Tensor>| {
        VarBuilder::from_tensors(tensors.clone(), DType::F32, &Device::Cpu).pp("attn")
    };
    let how = Ternarize::AbsMean(Granularity::Tensor);
    let x = normal(&mut rng, &[1, 6, 24]);
    let loaded = TernaryAttention::load(&config, vb(&tensors), how).expect("a layer");
    let loaded = loaded.with_cpu(Cpu::new(1).expect("one"));
    let default = loaded.forward(&x).expect("y");
    let y = loaded.with_activations(ActivationPrecision::F32).forward(&x).expect("y");

    let bit = |name: &str| {
        let (layer, _) = BitLinear::from_weight(&tensors[&format!("attn.{name}.weight")], None).expect("one");
        layer.into()
    };
    let weights = TernaryAttentionWeights {
        q_proj: bit("q_proj"),
        k_proj: bit("k_proj"),
        v_proj: bit("v_proj"),
        o_proj: bit("o_proj"),
    };
    let int8 = TernaryAttention::new(config.clone(), weights.clone()).expect("a layer");
    let rounded = int8.forward(&x).expect("y");
    // The rule and the precision of a BitLinear are the defaults of a layer with one scale.
    close(&rounded, &default, 0.0);
    close(&rounded, &y, 0.05);
    assert!(distance(&rounded, &y) > 1e-4);

    let swapped = TernaryAttentionWeights { q_proj: weights.k_proj.clone(), ..weights };
    let refused = TernaryAttention::new(config.clone(), swapped);
    assert!(matches!(refused, Err(CandleError::Nn(NnError::WeightShape { name, .. })) if name == "q_proj"));
    for norm in ["q_norm", "k_norm", "attn_sub_norm"] {
        let mut normed = tensors.clone();
        normed.insert(format!("attn.{norm}.weight"), normal(&mut rng, &[8]));
        let refused = TernaryAttention::load(&config, vb(&normed), how).expect_err("a norm").to_string();
        assert!(refused.contains(norm), "{refused}");
    }
}

#[test]
fn every_rule_of_the_config_names_its_field() {
    assert!(config(2, RopePairing::Halves, None).validate().is_ok());
    type Spoil = fn(&mut TernaryAttentionConfig);
    let table: [(&str, Spoil); 6] = [
        ("hidden", |c| c.hidden = 0),
        ("heads", |c| c.heads = 0),
        ("kv_heads", |c| c.kv_heads = 3),
        ("head_dim", |c| c.head_dim = (1 << 20) + 1),
        ("kv_heads", |c| c.kv_heads = 0),
        ("window", |c| c.window = Some(0)),
    ];
    for (want, spoil) in table {
        let mut config = config(2, RopePairing::Halves, None);
        spoil(&mut config);
        assert!(
            matches!(config.validate(), Err(CandleError::Nn(NnError::Spec { field, .. })) if field == want),
            "{want}"
        );
    }
}
