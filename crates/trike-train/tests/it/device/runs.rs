//! Steps of whole runs.

use serde_json::json;
use trike_autodiff::{BitLinearSpec, CubeEngine, GradError, Transfers};
use trike_core::OptionError;
use trike_cpu::Cpu;
use trike_cube::{CubeError, DeviceOptions};
use trike_nn::DecoderSpec;
use trike_testkit::assert_all_near;
use trike_train::data::Position;
use trike_train::{
    OptimizerConfig, OptimizerKind, Parameters, Precision, PrecisionPolicy, Schedule, ScheduleShape, Teacher,
    TernaryPolicy, TrainEngine, TrainError, Trainer, TrainerConfig, checkpoint,
};

use super::{engine, software};
use crate::common::Data;

/// Weights of a model of this width.
fn start(data: &Data, hidden: usize) -> Parameters {
    let spec = DecoderSpec { hidden, head_dim: hidden / 4, ..data.spec() };
    Parameters::random(&spec, 1).expect("parameters")
}

fn config(kind: OptimizerKind) -> TrainerConfig {
    let learning_rate = if kind == OptimizerKind::Sgd { 0.3 } else { 0.01 };
    TrainerConfig {
        steps: 20,
        accumulation: 1,
        optimizer: OptimizerConfig { kind, learning_rate, ..OptimizerConfig::default() },
        schedule: Schedule { warmup: 3, shape: ScheduleShape::Wsd { decay: 0.3 } },
        lambda: 0.2,
        text: 0.3,
        ..TrainerConfig::default()
    }
}

/// Ternary weights, without int8 activations: a value on the other side of a tie would let runs on two devices drift apart.
fn ternary() -> TernaryPolicy {
    let blocks = BitLinearSpec { int8_activations: false, ..BitLinearSpec::default() };
    TernaryPolicy { blocks: Some(blocks), int8_embedding: true }
}

/// The mean losses of a run, and its weights.
fn run<E: TrainEngine>(
    engine: &E,
    data: &Data,
    config: TrainerConfig,
    policy: TernaryPolicy,
    teacher: Option<&Parameters>,
) -> (Vec<f64>, Parameters) {
    let teacher = teacher.map(|parameters| Teacher { parameters, policy: TernaryPolicy::DENSE });
    let mut trainer = Trainer::new(engine, config, policy, start(data, 32), teacher).expect("a trainer");
    let mut batches = data.batches(2, Position::default());
    let mut losses = Vec::new();
    for _ in 0..config.steps {
        let loss = trainer.step(&mut batches).expect("a step").loss;
        losses.push((loss.sum + loss.divergence) / loss.tokens as f64);
    }
    (losses, trainer.download().expect("a device"))
}

#[test]
fn losses_are_those_of_the_host_and_fall() {
    let (data, cpu) = (Data::new(), Cpu::new(1).expect("a thread"));
    let Some(engine) = engine() else { return };
    for kind in [OptimizerKind::AdamW, OptimizerKind::Muon, OptimizerKind::Sgd] {
        // Without rounding, differences of sums are not amplified.
        let (want, _) = run(&cpu, &data, config(kind), TernaryPolicy::DENSE, None);
        let (got, _) = run(&engine, &data, config(kind), TernaryPolicy::DENSE, None);
        assert_all_near!(&got, &want, abs = 1e-5, "{kind:?}, dense");

        let mut config = config(kind);
        if kind == OptimizerKind::Muon {
            // With the full rate, the runs of a host with AVX2 and of the software driver diverge: after the sixth step one weight
            // is 5e-5 of its scale from a tie and gets another trit, after 20 steps 212 have. With half the rate, none has.
            config.optimizer.learning_rate *= 0.5;
        }
        let (want, _) = run(&cpu, &data, config, ternary(), None);
        let (got, _) = run(&engine, &data, config, ternary(), None);
        assert_all_near!(&got, &want, abs = 1e-3, "{kind:?}");
        assert!(got[19] < got[0] - 0.5, "{kind:?}: {got:?}");
    }
}

#[test]
fn runs_are_equal_to_the_bit() {
    let data = Data::new();
    let Some(engine) = engine() else { return };
    let teacher = start(&data, 16);
    let config =
        TrainerConfig { steps: 4, accumulation: 2, checkpoint: Some(1), ..config(OptimizerKind::AdamW) };
    let once = run(&engine, &data, config, TernaryPolicy::default(), Some(&teacher));
    let again = run(&engine, &data, config, TernaryPolicy::default(), Some(&teacher));
    assert!(once.0.iter().all(|loss| loss.is_finite()) && once.0[3] < once.0[0], "{:?}", once.0);
    assert!(once == again);
}

/// Per step, the uploads are ids, targets, positions and documents, the downloads two losses and the norm.
#[test]
fn only_tokens_go_up_and_only_losses_come_down() {
    let data = Data::new();
    let Some(engine) = engine() else { return };
    let teacher = start(&data, 16);
    let taught = Teacher { parameters: &teacher, policy: TernaryPolicy::DENSE };
    let mut trainer = Trainer::new(
        &engine,
        config(OptimizerKind::Muon),
        TernaryPolicy::default(),
        start(&data, 32),
        Some(taught),
    )
    .expect("a trainer");
    let mut batches = data.batches(2, Position::default());
    let mut last = engine.transfers();
    for _ in 0..3 {
        trainer.step(&mut batches).expect("a step");
        let Transfers { up, down } = engine.transfers();
        assert_eq!(down - last.down, 8 + 4);
        // At most 4 words per embedding lookup, and one more. Ids of the student twice, before and after the blocks; a target; a
        // position and two document ends, for student and teacher: of 48 tokens.
        assert!(up - last.up <= 4 * 48 * (3 * 4 + 1 + 2 * 3) + 3 * 4, "{} bytes", up - last.up);
        last = Transfers { up, down };
    }
}

#[test]
fn checkpoints_go_from_device_to_host_and_back() {
    let (data, cpu) = (Data::new(), Cpu::new(1).expect("a thread"));
    let Some(engine) = engine() else { return };
    fn steps<E: TrainEngine>(engine: &E, data: &Data, dir: &std::path::Path, count: usize) -> Parameters {
        let config = config(OptimizerKind::Muon);
        let mut trainer = Trainer::new(engine, config, ternary(), start(data, 32), None).expect("a trainer");
        let mut position = Position::default();
        if let Some(found) = checkpoint::newest(dir).expect("no error") {
            position = trainer.resume(&found, json!(null)).expect("it continues").position;
        }
        let mut batches = data.batches(2, position);
        for _ in 0..count {
            trainer.step(&mut batches).expect("a step");
        }
        let keep = checkpoint::Keep { newest: 1, also: None };
        trainer.save(dir, batches.position(), json!(null), json!(null), keep).expect("it is saved");
        trainer.download().expect("a device")
    }
    let folder = || tempfile::tempdir().expect("a folder");
    let (whole, parts, mixed, other) = (folder(), folder(), folder(), folder());
    let want = steps(&engine, &data, whole.path(), 6);
    steps(&engine, &data, parts.path(), 2);
    assert!(steps(&engine, &data, parts.path(), 4) == want, "it continues with the same bits");
    steps(&engine, &data, mixed.path(), 3);
    let on_host = steps(&cpu, &data, mixed.path(), 3);
    steps(&cpu, &data, other.path(), 3);
    let on_device = steps(&engine, &data, other.path(), 3);
    for got in [on_host, on_device] {
        for (got, want) in got.all().iter().zip(want.all()) {
            assert_all_near!(&got.values, &want.values, abs = 1e-3, "{}", want.name);
        }
    }
}

#[test]
fn failures_are_errors() {
    let data = Data::new();
    let Some(small) = software(DeviceOptions::default().with_memory_limit(1 << 17)) else { return };
    let make = |engine| {
        Trainer::<CubeEngine>::new(engine, config(OptimizerKind::AdamW), ternary(), start(&data, 32), None)
    };
    let refused = make(&small);
    assert!(
        matches!(refused, Err(TrainError::Grad(GradError::Cube(CubeError::Memory { .. })))),
        "{:?}",
        refused.err()
    );
    let Some(engine) = engine() else { return };
    let wrong = TrainerConfig { steps: 0, ..config(OptimizerKind::AdamW) };
    let refused = Trainer::new(&engine, wrong, ternary(), start(&data, 32), None);
    assert!(matches!(refused, Err(TrainError::Option(OptionError::OutOfRange { .. }))));
    let precision = PrecisionPolicy::all(Precision::Bf16);
    let half = TrainerConfig { precision, ..config(OptimizerKind::AdamW) };
    let mut trainer = Trainer::new(&engine, half, ternary(), start(&data, 32), None).expect("a trainer");
    let refused = trainer.step(&mut data.batches(2, Position::default()));
    assert!(matches!(refused, Err(TrainError::Grad(GradError::Precision { .. }))), "{refused:?}");
    // Non-finite values are an error, after which the weights are unchanged.
    let mut start = start(&data, 32);
    start.all_mut()[3].values[0] = f32::NAN;
    let mut trainer =
        Trainer::new(&engine, config(OptimizerKind::AdamW), ternary(), start, None).expect("a trainer");
    let bits = |trainer: &Trainer<'_, CubeEngine>| -> Vec<u32> {
        let parameters = trainer.download().expect("a device");
        parameters.all().iter().flat_map(|p| p.values.iter().map(|v| v.to_bits())).collect()
    };
    let before = bits(&trainer);
    let step = trainer.step(&mut data.batches(2, Position::default()));
    assert!(matches!(step, Err(TrainError::NonFinite { step: 0, .. })), "{step:?}");
    assert!(trainer.steps() == 0 && bits(&trainer) == before);
}
