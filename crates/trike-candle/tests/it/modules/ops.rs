//! RMSNorm, rotary embedding and the gated MLP.

use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{Module, VarBuilder};
use trike_candle::{
    ActivationPrecision, CandleError, GatedActivation, NnError, RmsNorm, RopePairing, RopeScaling, RopeSpec,
    RotaryEmbedding, SwiGlu, Ternarize, TernaryLinear, gated, quantize_tensor, rms_norm, shared_cpu,
};
use trike_cpu::Cpu;
use trike_testkit::Rng;
use trike_trit::Granularity;

use super::{close, distance, loss, normal};

const DTYPES: [(DType, f32); 3] = [(DType::F32, 1e-5), (DType::F16, 2e-3), (DType::BF16, 2e-2)];

/// Gradients of `vars` under `f`.
fn grads(vars: &[&Var], f: impl Fn() -> Tensor) -> Vec<Tensor> {
    let grads = loss(&f()).backward().expect("gradients");
    vars.iter().map(|var| grads.get(var).expect("a gradient").clone()).collect()
}

#[track_caller]
fn same_grads(vars: &[&Var], got: impl Fn() -> Tensor, want: impl Fn() -> Tensor) {
    for (got, want) in grads(vars, got).iter().zip(grads(vars, want)) {
        close(got, &want, 1e-4);
    }
}

fn var(rng: &mut Rng, shape: &[usize]) -> Var {
    Var::from_tensor(&normal(rng, shape)).expect("a variable")
}

#[test]
fn rms_norm_is_candles() {
    let (mut rng, cpu) = (Rng::new(11), shared_cpu().expect("threads"));
    let (x, w) = (var(&mut rng, &[2, 3, 37]), var(&mut rng, &[37]));
    for (dtype, bound) in DTYPES {
        let (x, w) = (x.to_dtype(dtype).expect("a cast"), w.to_dtype(dtype).expect("a cast"));
        let want = candle_nn::ops::rms_norm_slow(&x, &w, 1e-5).expect("y");
        close(&rms_norm(&cpu, &x, &w, 1e-5).expect("y"), &want, bound);
        let norm = RmsNorm::new(w, 1e-5).expect("a norm").with_cpu(Cpu::new(1).expect("one"));
        close(&norm.forward(&x).expect("y"), &want, bound);
    }
    same_grads(
        &[&x, &w],
        || rms_norm(&cpu, &x, &w, 1e-5).expect("y"),
        || candle_nn::ops::rms_norm_slow(&x, &w, 1e-5).expect("y"),
    );
    let large = rms_norm(&cpu, &x, &w, 0.5).expect("y");
    assert!(distance(&large, &rms_norm(&cpu, &x, &w, 1e-5).expect("y")) > 0.1, "eps matters");

    assert!(matches!(
        rms_norm(&cpu, &x, &normal(&mut rng, &[36]), 1e-5),
        Err(CandleError::Nn(NnError::Shape { .. }))
    ));
    assert!(matches!(
        RmsNorm::new(normal(&mut rng, &[2, 2]), 1e-5),
        Err(CandleError::Nn(NnError::Shape { .. }))
    ));
    assert!(matches!(
        RmsNorm::new(normal(&mut rng, &[2]), -1.0),
        Err(CandleError::Nn(NnError::Spec { field: "eps", .. }))
    ));
    let tensors = [("n.weight".to_owned(), normal(&mut rng, &[37]))].into();
    let vb = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
    assert!(RmsNorm::load(37, 1e-5, vb.pp("n")).is_ok());
    assert!(matches!(RmsNorm::load(36, 1e-5, vb.pp("n")), Err(CandleError::Candle(_))));
}

/// Candle's rotary embeddings of `[batch, tokens, heads * head_dim]`.
fn candle_rope(x: &Tensor, spec: &RopeSpec, head_dim: usize, first: usize) -> candle_core::Result<Tensor> {
    let (batch, tokens, width) = x.dims3()?;
    let pairs = head_dim / 2;
    let frequencies = Tensor::from_vec(spec.frequencies(head_dim), (1, pairs), x.device())?;
    let positions: Vec<f32> = (first..first + tokens).map(|p| p as f32).collect();
    let angles = Tensor::from_vec(positions, (tokens, 1), x.device())?.matmul(&frequencies)?;
    let heads = x.reshape((batch, tokens, width / head_dim, head_dim))?.transpose(1, 2)?.contiguous()?;
    let (cos, sin) = (angles.cos()?, angles.sin()?);
    let turned = match spec.pairing {
        RopePairing::Halves => candle_nn::rotary_emb::rope_slow(&heads, &cos, &sin)?,
        RopePairing::Adjacent => candle_nn::rotary_emb::rope_i_slow(&heads, &cos, &sin)?,
    };
    turned.transpose(1, 2)?.contiguous()?.reshape((batch, tokens, width))
}

#[test]
fn rope_is_candles_in_both_pairings() {
    let mut rng = Rng::new(12);
    let x = var(&mut rng, &[2, 5, 3 * 16]);
    let mut seen: Vec<Tensor> = Vec::new();
    for pairing in [RopePairing::Halves, RopePairing::Adjacent] {
        for scaling in [RopeScaling::None, RopeScaling::Linear { factor: 4.0 }] {
            let spec = RopeSpec { scaling, ..RopeSpec::new(10_000.0, pairing) };
            let rotary = RotaryEmbedding::new(&spec, 16, 8).expect("an embedding");
            // Within the kept positions, across their end, and past it.
            for first in [0, 6, 1000] {
                let turned = rotary.forward(&x, first).expect("y");
                close(&turned, &candle_rope(&x, &spec, 16, first).expect("y"), 1e-4);
                assert!(seen.iter().all(|y| distance(y, &turned) > 0.01), "every option turns otherwise");
                seen.push(turned);
            }
            same_grads(
                &[&x],
                || rotary.forward(&x, 7).expect("y"),
                || candle_rope(&x, &spec, 16, 7).expect("y"),
            );
        }
    }
    let spec = RopeSpec::new(10_000.0, RopePairing::Halves);
    for head_dim in [0, 3, (1 << 16) + 2] {
        assert!(matches!(
            RotaryEmbedding::new(&spec, head_dim, 8),
            Err(CandleError::Nn(NnError::Spec { field: "head_dim", .. }))
        ));
    }
    assert!(RotaryEmbedding::new(&RopeSpec::new(0.5, RopePairing::Halves), 16, 8).is_err());
    let rotary =
        RotaryEmbedding::new(&spec, 16, 8).expect("an embedding").with_cpu(Cpu::new(1).expect("one"));
    assert!(matches!(
        rotary.forward(&normal(&mut rng, &[16]), 0),
        Err(CandleError::Nn(NnError::Shape { .. }))
    ));
    assert!(matches!(
        rotary.forward(&normal(&mut rng, &[2, 24]), 0),
        Err(CandleError::Nn(NnError::Heads { width: 24, head_dim: 16 }))
    ));
    assert!(rotary.forward(&normal(&mut rng, &[2, 16]), u32::MAX as usize - 2).is_ok());
    let past = rotary.forward(&normal(&mut rng, &[2, 16]), u32::MAX as usize - 1);
    assert!(matches!(past, Err(CandleError::Nn(NnError::Spec { field: "position", .. }))));
}

fn candle_gated(gate: &Tensor, up: &Tensor, activation: GatedActivation) -> Tensor {
    let gate = match activation {
        GatedActivation::SiLu => gate.silu(),
        GatedActivation::SquaredReLu => gate.relu().and_then(|g| g.sqr()),
    };
    (gate.expect("f(g)") * up).expect("y")
}

#[test]
fn gates_are_candles() {
    let (mut rng, cpu) = (Rng::new(13), shared_cpu().expect("threads"));
    let (gate, up) = (var(&mut rng, &[3, 50]), var(&mut rng, &[3, 50]));
    for activation in [GatedActivation::SiLu, GatedActivation::SquaredReLu] {
        for (dtype, bound) in DTYPES {
            let (gate, up) = (gate.to_dtype(dtype).expect("a cast"), up.to_dtype(dtype).expect("a cast"));
            let want = candle_gated(&gate, &up, activation);
            close(&gated(&cpu, &gate, &up, activation).expect("y"), &want, bound);
        }
        same_grads(
            &[&gate, &up],
            || gated(&cpu, &gate, &up, activation).expect("y"),
            || candle_gated(&gate, &up, activation),
        );
    }
    let half = up.to_dtype(DType::F16).expect("a cast");
    for other in [half, normal(&mut rng, &[50, 3])] {
        let refused = gated(&cpu, &gate, &other, GatedActivation::SiLu);
        assert!(matches!(refused, Err(CandleError::Candle(_))));
    }
}

fn ternary(w: &Tensor) -> TernaryLinear {
    let (trits, _) = quantize_tensor(w, Ternarize::AbsMean(Granularity::Row)).expect("trits");
    TernaryLinear::new(&trits, None).expect("a layer").with_activations(ActivationPrecision::F32)
}

#[test]
fn the_mlp_is_its_formula() {
    let mut rng = Rng::new(14);
    let [gate, up, down] = [(40, 24), (40, 24), (24, 40)].map(|(r, c)| ternary(&normal(&mut rng, &[r, c])));
    let dense = [&gate, &up, &down].map(|l| l.dequantize().and_then(|w| Ok(w.t()?)).expect("weights"));
    let mlp = SwiGlu::new(gate.clone(), up.clone(), down.clone()).expect("an MLP");
    let x = var(&mut rng, &[2, 3, 24]);
    for activation in [GatedActivation::SiLu, GatedActivation::SquaredReLu] {
        let mlp = mlp.clone().with_activation(activation).with_cpu(Cpu::new(2).expect("two"));
        let formula = || {
            let [gate, up] = [0, 1].map(|i| x.broadcast_matmul(&dense[i]).expect("a product"));
            candle_gated(&gate, &up, activation).broadcast_matmul(&dense[2]).expect("y")
        };
        close(&mlp.forward(&x).expect("y"), &formula(), 1e-4);
        same_grads(&[&x], || mlp.forward(&x).expect("y"), formula);
    }
    let wrong = SwiGlu::new(gate.clone(), down.clone(), down);
    assert!(matches!(
        wrong,
        Err(CandleError::Nn(NnError::WeightShape { expected_rows: 40, got_rows: 24, .. }))
    ));
    assert!(matches!(SwiGlu::new(gate, up.clone(), up), Err(CandleError::Nn(NnError::WeightShape { .. }))));
}
