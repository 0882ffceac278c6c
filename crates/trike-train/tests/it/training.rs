//! Training runs: learning, determinism, and resuming.

use crate::common::{Data, config, ternary};
use serde_json::json;
use trike_cpu::Cpu;
use trike_nn::DecoderSpec;
use trike_train::data::Position;
use trike_train::{
    DeterministicPhaseTrainer, LossScale, OptimizerKind, Parameters, Phase, PhaseConfig, Precision,
    PrecisionPolicy, Schedule, ScheduleShape, StepReport, Teacher, TernaryPolicy, TrainError, Trainer,
    TrainerConfig, checkpoint,
};

const ONE: checkpoint::Keep = checkpoint::Keep { newest: 1, also: None };

#[test]
fn a_ternary_model_learns_a_text_by_heart() {
    let (data, cpu) = (Data::new(), Cpu::new(2).expect("threads"));
    for kind in [OptimizerKind::AdamW, OptimizerKind::Muon] {
        let mut config = config(150);
        config.optimizer.kind = kind;
        let start = Parameters::random(&data.spec(), 1).expect("parameters");
        let mut trainer = Trainer::new(&cpu, config, ternary(), start, None).expect("a trainer");
        let mut batches = data.batches(4, Position::default());
        let reports: Vec<StepReport> =
            (0..150).map(|_| trainer.step(&mut batches).expect("a step")).collect();
        assert_eq!((reports[0].lambda, reports[30].lambda), (0.0, 1.0));
        assert!(reports[0].rate < reports[2].rate && reports[149].rate < 1e-3);
        let held = data.batches(8, Position::default()).next_batch().expect("a batch");
        let loss = trainer.evaluate([held]).expect("a loss").mean();
        // At random 7 nats; the names of animals are unpredictable.
        assert!(loss < 0.4 && reports[0].loss.mean() > 6.0, "{kind:?}: {loss}");
    }
}

#[test]
fn runs_are_equal_to_the_bit_and_continue_anywhere() {
    let data = Data::new();
    let start = Parameters::random(&data.spec(), 2).expect("parameters");
    let teacher = Parameters::random(&data.spec(), 3).expect("parameters");
    // The loss scale is part of the state: some steps are skipped, some double it.
    let loss_scale = LossScale { initial: 1e9, maximum: 1e12, interval: 2, ..LossScale::default() };
    let precision = PrecisionPolicy { loss_scale, ..PrecisionPolicy::all(Precision::F16) };
    for config in [config(8), TrainerConfig { precision, ..config(8) }] {
        let run = |threads: usize, stop: Option<usize>| {
            let cpu = Cpu::new(threads).expect("threads");
            let make = || {
                let teacher = Teacher { parameters: &teacher, policy: TernaryPolicy::DENSE };
                Trainer::new(&cpu, config, ternary(), start.clone(), Some(teacher)).expect("a trainer")
            };
            let dir = tempfile::tempdir().expect("a folder");
            let (mut trainer, mut batches) = (make(), data.batches(2, Position::default()));
            for step in 0..8 {
                if stop == Some(step) {
                    trainer
                        .save(dir.path(), batches.position(), json!({"text": "a.txt"}), json!(null), ONE)
                        .expect("it is saved");
                    let found = checkpoint::newest(dir.path()).expect("no error").expect("a checkpoint");
                    trainer = make();
                    let other = trainer.resume(&found, json!({"text": "b.txt"}));
                    assert!(matches!(other, Err(TrainError::Checkpoint { .. })));
                    let state = trainer.resume(&found, json!({"text": "a.txt"})).expect("it continues");
                    batches = data.batches(2, state.position);
                }
                trainer.step(&mut batches).expect("a step");
            }
            trainer.into_parameters()
        };
        let want = run(1, None);
        for (threads, stop) in [(2, None), (1, Some(0)), (2, Some(3)), (1, Some(7))] {
            assert!(run(threads, stop) == want, "{threads} threads, stopped at {stop:?}");
        }
    }
}

#[test]
fn batches_in_parts_are_the_same_step() {
    let (data, cpu) = (Data::new(), Cpu::new(2).expect("threads"));
    let start = Parameters::random(&data.spec(), 2).expect("parameters");
    let run = |rows: usize, accumulation: usize| {
        let config = TrainerConfig { accumulation, ..config(5) };
        let mut trainer =
            Trainer::new(&cpu, config, TernaryPolicy::DENSE, start.clone(), None).expect("a trainer");
        let mut batches = data.batches(rows, Position::default());
        for _ in 0..5 {
            trainer.step(&mut batches).expect("a step");
        }
        trainer.into_parameters()
    };
    let whole = run(32, 1);
    for (rows, batches) in [(1, 32), (8, 4), (16, 2)] {
        assert!(run(rows, batches) == whole, "{batches} batches of {rows} rows");
    }
}

#[test]
fn parts_on_several_threads_change_no_bit() {
    let data = Data::new();
    let start = Parameters::random(&data.spec(), 2).expect("parameters");
    let teacher = Parameters::random(&data.spec(), 3).expect("parameters");
    let run = |threads: usize| {
        let cpu = Cpu::new(threads).expect("threads");
        let teacher = Teacher { parameters: &teacher, policy: TernaryPolicy::DENSE };
        let config = TrainerConfig { accumulation: 3, ..config(4) };
        let mut trainer = Trainer::new(&cpu, config, TernaryPolicy::default(), start.clone(), Some(teacher))
            .expect("a trainer");
        let mut batches = data.batches(2, Position::default());
        let reports: Vec<StepReport> = (0..4).map(|_| trainer.step(&mut batches).expect("a step")).collect();
        (reports, trainer.into_parameters())
    };
    let want = run(1);
    for threads in [2, 3, 5] {
        assert!(run(threads) == want, "{threads} threads");
    }
}

#[test]
fn a_student_that_is_its_teacher_has_nothing_to_learn() {
    let (data, cpu) = (Data::new(), Cpu::new(1).expect("a thread"));
    let start = Parameters::random(&data.spec(), 2).expect("parameters");
    let teacher = Teacher { parameters: &start, policy: TernaryPolicy::DENSE };
    let config = TrainerConfig { text: 0.0, ..config(1) };
    let mut trainer =
        Trainer::new(&cpu, config, TernaryPolicy::DENSE, start.clone(), Some(teacher)).expect("a trainer");
    let report = trainer.step(&mut data.batches(2, Position::default())).expect("a step");
    assert!(report.norm == 0.0 && report.loss.divergence == 0.0 && report.loss.sum > 0.0, "{report:?}");
}

#[test]
fn what_cannot_be_trained_is_refused() {
    let (data, cpu) = (Data::new(), Cpu::new(1).expect("a thread"));
    let mut start = Parameters::random(&data.spec(), 2).expect("parameters");
    let other = Parameters::random(&DecoderSpec { vocab: 7, ..data.spec() }, 2).expect("parameters");
    let teacher = Teacher { parameters: &other, policy: TernaryPolicy::DENSE };
    let refused = Trainer::new(&cpu, config(1), ternary(), start.clone(), Some(teacher));
    assert!(matches!(refused, Err(TrainError::Vocabulary { got: 7, .. })));
    let none = TrainerConfig { steps: 0, ..config(1) };
    assert!(matches!(Trainer::new(&cpu, none, ternary(), start.clone(), None), Err(TrainError::Option(_))));
    start.all_mut()[3].values[0] = f32::NAN;
    let mut trainer = Trainer::new(&cpu, config(1), TernaryPolicy::DENSE, start, None).expect("a trainer");
    let before: Vec<u32> = trainer.parameters().all()[0].values.iter().map(|v| v.to_bits()).collect();
    let step = trainer.step(&mut data.batches(2, Position::default()));
    assert!(matches!(step, Err(TrainError::NonFinite { step: 0, .. })), "{step:?}");
    let after: Vec<u32> = trainer.parameters().all()[0].values.iter().map(|v| v.to_bits()).collect();
    assert_eq!((trainer.steps(), before), (0, after));
}

#[test]
fn overflows_of_f16_are_skipped_and_training_goes_on() {
    let (data, cpu) = (Data::new(), Cpu::new(2).expect("threads"));
    let start = Parameters::random(&data.spec(), 1).expect("parameters");
    let run = |precision: PrecisionPolicy| {
        let config = TrainerConfig { precision, ..config(80) };
        let mut trainer = Trainer::new(&cpu, config, ternary(), start.clone(), None).expect("a trainer");
        let mut batches = data.batches(4, Position::default());
        let mut reports = Vec::new();
        for _ in 0..80 {
            let before = trainer.parameters().clone();
            let report = trainer.step(&mut batches).expect("a step");
            assert_eq!(report.skipped, *trainer.parameters() == before, "a step without a change");
            reports.push(report);
        }
        let held = data.batches(8, Position::default()).next_batch().expect("a batch");
        (reports, trainer.evaluate([held]).expect("a loss").mean())
    };
    let (_, exact) = run(PrecisionPolicy::default());
    let all = PrecisionPolicy::all;
    // A loss scale with which the first gradients overflow f16.
    let high = LossScale { initial: 1e15, maximum: 1e15, interval: 20, ..LossScale::default() };
    let (reports, loss) = run(PrecisionPolicy { loss_scale: high, ..all(Precision::F16) });
    let skipped = reports.iter().take_while(|report| report.skipped).count();
    assert!((20..60).contains(&skipped), "{skipped} steps were skipped");
    assert!(reports.iter().any(|report| !report.skipped) && loss.is_finite());
    let scales: Vec<f32> = reports.iter().map(|report| report.loss_scale).collect();
    assert!(scales[..=skipped].windows(2).all(|pair| pair[1] == pair[0] / 2.0), "{scales:?}");

    for precision in [Precision::Bf16, Precision::F16] {
        let (reports, loss) = run(all(precision));
        let most = if precision == Precision::F16 { 8 } else { 0 };
        assert!(reports.iter().filter(|report| report.skipped).count() <= most);
        // The number of steps until a text is memorized varies slightly.
        assert!(loss < 1.25 * exact, "{precision:?}: {loss}, {exact} in f32");
    }

    // An overflow at the smallest scale ends the run.
    let stuck = LossScale { initial: 1e30, minimum: 1e30, maximum: 1e30, ..LossScale::default() };
    let precision = PrecisionPolicy { loss_scale: stuck, ..all(Precision::F16) };
    let config = TrainerConfig { precision, ..config(80) };
    let mut trainer = Trainer::new(&cpu, config, ternary(), start.clone(), None).expect("a trainer");
    let error = trainer.step(&mut data.batches(4, Position::default())).expect_err("it overflows");
    assert!(matches!(error, TrainError::NonFinite { .. }), "{error}");
    assert_eq!(*trainer.parameters(), start);
}

/// The outcome of a run with phases.
type Phased = (Vec<(Phase, StepReport)>, DeterministicPhaseTrainer, Parameters);

/// A run of `steps` steps with phases in f16, whose data begins after `before` batches.
fn phased(loss_scale: LossScale, before: usize, steps: usize) -> Phased {
    let (data, cpu) = (Data::new(), Cpu::new(2).expect("threads"));
    let precision = PrecisionPolicy { loss_scale, ..PrecisionPolicy::all(Precision::F16) };
    let schedule = Schedule { warmup: 0, shape: ScheduleShape::Constant };
    let config = TrainerConfig { precision, schedule, lambda: 0.0, ..config(1000) };
    let start = Parameters::random(&data.spec(), 1).expect("parameters");
    let mut trainer = Trainer::new(&cpu, config, ternary(), start, None).expect("a trainer");
    let phases = PhaseConfig { warm_up: 3, full: 1, predict: 2, correct_every: 1, decay: 0.8 };
    let mut phases = DeterministicPhaseTrainer::new(phases).expect("phases");
    let mut batches = data.batches(2, Position::default());
    for _ in 0..before {
        batches.next_batch().expect("a batch");
    }
    let reports = (0..steps).map(|_| phases.step(&mut trainer, &mut batches).expect("a step")).collect();
    (reports, phases, trainer.into_parameters())
}

/// Skipped steps are not recorded: a run whose initial loss scale is too large is bit-identical to one that starts with the scale
/// that it is reduced to.
#[test]
fn phases_go_on_after_overflows_of_f16() {
    let scale = |initial: f32, interval: usize| LossScale {
        initial,
        maximum: 2f32.powi(100),
        interval,
        ..LossScale::default()
    };
    let (reports, phases, weights) = phased(scale(2f32.powi(40), 1000), 0, 60);
    let skipped = reports.iter().take_while(|(_, report)| report.skipped).count();
    assert!((5..45).contains(&skipped), "{skipped} steps were skipped");
    assert!(reports[..=skipped].iter().all(|(phase, _)| *phase == Phase::WarmUp), "{reports:?}");
    let later = reports[skipped].1.loss_scale;
    let (_, same, same_weights) = phased(scale(later, 1000), skipped, 60 - skipped);
    assert!(same == phases && same_weights == weights);

    // A scale that doubles in every step: overflows in every measured phase.
    let (reports, phases, _) = phased(scale(later, 1), skipped, 60);
    for pair in reports.windows(2) {
        assert!(!pair[0].1.skipped || pair[0].0.is_measured() && pair[1].0 == pair[0].0, "{pair:?}");
    }
    for phase in [Phase::Full, Phase::Correct] {
        assert!(reports.iter().any(|(of, report)| *of == phase && report.skipped), "{phase:?}: {reports:?}");
    }
    assert!(phases.get_predicted_gradients().iter().flatten().all(|g| g.is_finite()));
    let measured = |from: usize| {
        let all = reports[from..].iter().filter(|(phase, report)| phase.is_measured() && !report.skipped);
        all.map(|(_, report)| report.loss.mean()).next().expect("a measured step")
    };
    assert!(measured(45) < measured(0), "{reports:?}");
}
