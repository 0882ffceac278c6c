//! Losses and gradients of whole decoders.

use std::borrow::Borrow;

use trike_autodiff::{BitLinearSpec, EngineMemory, GradError};
use trike_core::{GatedActivation, RopePairing, RopeSpec};
use trike_cpu::Cpu;
use trike_nn::{Biases, DecoderSpec};
use trike_testkit::{assert_all_near, assert_near};
use trike_train::data::Batch;
use trike_train::{
    Adapter, LoraConfig, LoraTarget, Loss, Objective, Parameters, TernaryPolicy, TrainEngine, Trained,
    Weights,
};

use super::engine;

/// The architectures of the host's tests, which cover every part of a decoder.
fn specs() -> Vec<(&'static str, DecoderSpec)> {
    let llama =
        DecoderSpec { intermediate: 24, kv_heads: 2, context: 32, ..DecoderSpec::llama(16, 3, 4, 29) };
    vec![
        ("llama", llama.clone()),
        ("tied, window", DecoderSpec { tied_head: true, window: Some(4), ..llama.clone() }),
        ("qwen2", DecoderSpec { biases: Biases { qkv: true, ..Biases::default() }, ..llama.clone() }),
        ("qwen3", DecoderSpec { qk_norm: true, ..llama.clone() }),
        (
            "bitnet",
            DecoderSpec {
                sub_norms: true,
                activation: GatedActivation::SquaredReLu,
                tied_head: true,
                ..llama.clone()
            },
        ),
        (
            "all biases, adjacent pairs",
            DecoderSpec {
                biases: Biases { qkv: true, output: true, mlp: true },
                rope: RopeSpec::new(100.0, RopePairing::Adjacent),
                ..llama
            },
        ),
    ]
}

/// Two documents, the second of which has a masked token.
fn batch() -> Batch {
    let ids: Vec<u32> = (0..13).map(|i| (i * i * 5 + 3) % 29).collect();
    let mut targets: Vec<Option<u32>> = ids.iter().map(|id| Some((id * 7 + 1) % 29)).collect();
    targets[9] = None;
    Batch { ids, targets, segments: vec![0..6, 6..13] }
}

/// Parameters large enough for gradients well above rounding.
fn parameters(spec: &DecoderSpec) -> Parameters {
    let mut parameters = Parameters::random(spec, 5).expect("parameters");
    for parameter in parameters.all_mut().iter_mut().filter(|parameter| !parameter.name.is_vector()) {
        parameter.values.iter_mut().for_each(|value| *value *= 12.0);
    }
    parameters
}

/// Dense; ternary weights; and ternary weights with int8 activations.
fn policies() -> [TernaryPolicy; 3] {
    let blocks = |int8_activations| Some(BitLinearSpec { int8_activations, ..BitLinearSpec::default() });
    [
        TernaryPolicy::DENSE,
        TernaryPolicy { blocks: blocks(false), int8_embedding: true },
        TernaryPolicy { blocks: blocks(true), int8_embedding: true },
    ]
}

/// The loss and all gradients.
fn gradients<E: TrainEngine>(
    engine: &E,
    segment: Option<usize>,
    parameters: &Parameters,
    policy: &TernaryPolicy,
    teacher: bool,
) -> (Loss, Vec<Vec<f32>>) {
    let resident = engine.resident(parameters).expect("room");
    let model = Trained::new(engine, parameters.spec(), segment).expect("a model");
    let zeros = parameters.zeros().into_iter().map(|zeros| engine.upload(zeros).expect("room"));
    let mut gradients: Vec<E::Tensor> = zeros.collect();
    let vocab = parameters.spec().vocab;
    let mut logits = |rows: std::ops::Range<usize>, out: &mut E::View| -> Result<(), GradError> {
        let values: Vec<f32> =
            (rows.start * vocab..rows.end * vocab).map(|i| (i % 17) as f32 / 5.0).collect();
        engine.copy(engine.upload(values)?.borrow(), out)
    };
    let objective = match teacher {
        true => Objective::Distill { text: 0.3, teacher: &mut logits },
        false => Objective::Text,
    };
    let loss = model.gradients(resident.get(), &batch(), policy, objective, 0.1, &mut gradients);
    let read = |gradient: &E::Tensor| engine.download(gradient.borrow()).expect("a device").into_owned();
    (loss.expect("gradients"), gradients.iter().map(read).collect())
}

/// With int8 activations, a value near a tie may round to another code when the order of a sum changes, a difference of up to 1 /
/// 127 of the largest value of its token; the rounding itself is compared in `trike-autodiff`.
#[test]
fn every_gradient_is_the_hosts() {
    let cpu = Cpu::new(1).expect("a thread");
    let Some(engine) = engine() else { return };
    for (name, spec) in specs() {
        let parameters = parameters(&spec);
        for (index, policy) in policies().iter().enumerate() {
            for teacher in [false, true] {
                let what = format!("{name}, policy {index}, teacher {teacher}");
                let want = gradients(&cpu, None, &parameters, policy, teacher);
                let got = gradients(&engine, None, &parameters, policy, teacher);
                let (loss, bound) = if index == 2 { (1e-3, 0.05f32) } else { (1e-5, 1e-4) };
                assert_near!(got.0.sum, want.0.sum, rel = loss, "{what}");
                assert_near!(
                    got.0.divergence,
                    want.0.divergence,
                    abs = 10.0 * loss * want.0.divergence.abs(),
                    "{what}"
                );
                assert_eq!(got.0.tokens, 12);
                for (place, (got, want)) in got.1.iter().zip(&want.1).enumerate() {
                    let largest = want.iter().fold(0f32, |m, v| m.max(v.abs()));
                    let of = parameters.all()[place].name;
                    assert_all_near!(got, want, abs = bound * largest, "{what}: {of}");
                }
            }
        }
    }
}

#[test]
fn checkpoints_change_no_bit() {
    let Some(engine) = engine() else { return };
    let (_, spec) = specs().remove(4);
    let parameters = parameters(&spec);
    for policy in &policies()[1..] {
        let want = gradients(&engine, None, &parameters, policy, false);
        for segment in [None, Some(1), Some(2)] {
            let got = gradients(&engine, segment, &parameters, policy, false);
            assert!(got == want, "segments of {segment:?}");
        }
    }
}

#[test]
fn an_adapter_has_the_gradients_of_the_hosts() {
    let cpu = Cpu::new(1).expect("a thread");
    let Some(engine) = engine() else { return };
    let (_, spec) = specs().remove(0);
    let frozen = parameters(&spec);
    let targets = [LoraTarget::Query, LoraTarget::Down].into();
    let config = LoraConfig { rank: 3, targets, ..LoraConfig::default() };
    let mut adapter = Adapter::new(config, &spec, 1).expect("an adapter");
    for (i, parameter) in adapter.parameters_mut().all_mut().iter_mut().enumerate() {
        parameter.values.iter_mut().for_each(|v| *v += 0.01 * (i % 3) as f32);
    }
    let policy = &policies()[1];
    let host = Trained::new(&cpu, &spec, None).expect("a model");
    let mut want = adapter.parameters().zeros();
    let weights = Weights::adapted(&frozen, &adapter);
    host.gradients(weights, &batch(), policy, Objective::Text, 0.1, &mut want).expect("gradients");

    let model = Trained::new(&engine, &spec, None).expect("a model");
    let zeros = adapter.parameters().zeros().into_iter().map(|zeros| engine.upload(zeros).expect("room"));
    let mut got: Vec<_> = zeros.collect();
    let (resident, adapter) =
        (engine.resident(&frozen).expect("room"), adapter.upload(&engine).expect("room"));
    let weights = Weights::adapted(resident.get(), &adapter);
    model.gradients(weights, &batch(), policy, Objective::Text, 0.1, &mut got).expect("gradients");
    for (got, want) in got.iter().zip(&want) {
        let largest = want.iter().fold(0f32, |m, v| m.max(v.abs()));
        assert_all_near!(&engine.download(got).expect("a device"), want, abs = 1e-4 * largest);
    }
}
