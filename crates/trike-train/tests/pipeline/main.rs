//! One model whose blocks lie on several ranks: losses and weights of one machine to the bit, and errors in place of wrong results.

#[path = "../common/mod.rs"]
mod common;
mod errors;

use std::path::Path;

use serde_json::json;
use trike_comm::{Communicator, Threads};
use trike_cpu::Cpu;
use trike_nn::{DecoderSpec, WeightName};
use trike_train::data::Position;
use trike_train::{
    OptimizerKind, Parameters, Precision, PrecisionPolicy, RanksConfig, Stage, StepReport, Teacher,
    TernaryPolicy, Trainer, TrainerConfig, checkpoint,
};

use common::{Data, config, ternary};

const ONE: checkpoint::Keep = checkpoint::Keep { newest: 1, also: None };
const STEPS: usize = 3;
/// Rows of a unit: those that are computed together, of 512 tokens or more.
const UNIT: usize = 22;

/// What a run does.
#[derive(Clone)]
struct Case {
    name: &'static str,
    trainer: TrainerConfig,
    spec: DecoderSpec,
    policy: TernaryPolicy,
    /// Blocks of a teacher.
    taught_by: Option<usize>,
    /// Rows of a batch.
    rows: usize,
    /// Threads of a rank.
    threads: usize,
}

impl Case {
    /// Steps of three units, with a tied head.
    fn new(data: &Data, name: &'static str) -> Self {
        let spec = DecoderSpec { layers: 4, ..data.spec() };
        Self {
            name,
            trainer: config(STEPS),
            spec,
            policy: ternary(),
            taught_by: None,
            rows: 3 * UNIT,
            threads: 1,
        }
    }

    fn start(&self) -> Parameters {
        Parameters::random(&self.spec, 2).expect("parameters")
    }

    fn teacher(&self) -> Option<Parameters> {
        let spec = |layers| DecoderSpec { layers, ..self.spec.clone() };
        self.taught_by.map(|layers| Parameters::random(&spec(layers), 3).expect("parameters"))
    }
}

/// What a run has found: the reports of its steps, the loss of the batch behind them, and the weights of the whole model on one
/// machine and on the first rank.
type Outcome = (Vec<StepReport>, f64, Option<Parameters>);

/// Takes steps up to the step `to`, from a checkpoint in `dir` if there is one, and leaves one there.
fn drive(
    trainer: &mut Trainer<'_>,
    data: &Data,
    case: &Case,
    dir: Option<&Path>,
    from: Option<&Path>,
    to: usize,
) -> Outcome {
    let position = from
        .map_or(Position::default(), |path| trainer.resume(path, json!(1)).expect("it continues").position);
    let mut batches = data.batches(case.rows, position);
    let mut reports = Vec::new();
    while trainer.steps() < to {
        reports.push(trainer.step(&mut batches).expect("a step"));
    }
    if let Some(dir) = dir {
        trainer.save(dir, batches.position(), json!(1), json!(null), ONE).expect("it is saved");
    }
    let held_out = [batches.next_batch().expect("a batch"), batches.next_batch().expect("a batch")];
    let loss = trainer.evaluate(held_out).expect("a loss");
    (reports, loss.sum, trainer.gather().expect("weights"))
}

fn newest(dir: Option<&Path>) -> Option<std::path::PathBuf> {
    dir.and_then(|dir| checkpoint::newest(dir).expect("no error"))
}

fn one_machine(data: &Data, case: &Case, dir: Option<&Path>, to: usize) -> Outcome {
    let (cpu, teacher) = (Cpu::new(case.threads).expect("a cpu"), case.teacher());
    let teacher = teacher.as_ref().map(|parameters| Teacher { parameters, policy: TernaryPolicy::DENSE });
    let trainer = Trainer::new(&cpu, case.trainer, case.policy.clone(), case.start(), teacher);
    drive(&mut trainer.expect("a trainer"), data, case, dir, newest(dir).as_deref(), to)
}

/// Only the first rank sees the disk.
fn pipeline(data: &Data, case: &Case, ranks: usize, dir: Option<&Path>, to: usize) -> Vec<Outcome> {
    Threads::run(ranks, |comm| {
        let (cpu, teacher) = (Cpu::new(case.threads).expect("a cpu"), case.teacher());
        let teacher = teacher.as_ref().map(|parameters| Teacher { parameters, policy: TernaryPolicy::DENSE });
        let trainer =
            Trainer::in_pipeline(&cpu, case.trainer, case.policy.clone(), case.start(), teacher, &comm);
        let mut trainer = trainer.expect("a trainer");
        let found = newest(dir);
        comm.barrier().expect("all are here");
        let unseen = |path: &'static str| Path::new(path);
        let (dir, found) = match comm.rank() {
            0 => (dir, found.as_deref()),
            _ => (dir.map(|_| unseen("none")), found.as_ref().map(|_| unseen("none"))),
        };
        drive(&mut trainer, data, case, dir, found, to)
    })
}

fn check(data: &Data, case: &Case, counts: std::ops::RangeInclusive<usize>) {
    let (reports, loss, weights) = one_machine(data, case, None, STEPS);
    for ranks in counts {
        for (rank, (found, evaluated, gathered)) in
            pipeline(data, case, ranks, None, STEPS).into_iter().enumerate()
        {
            let name = format!("{}, rank {rank} of {ranks}", case.name);
            assert_eq!((&found, evaluated), (&reports, loss), "{name}");
            assert!(gathered == weights.clone().filter(|_| rank == 0), "{name}");
        }
    }
}

#[test]
fn one_to_four_ranks_train_the_weights_of_one_machine() {
    let data = Data::new();
    let tied = Case::new(&data, "tied");
    let mut untied = Case { name: "untied", ..tied.clone() };
    untied.spec.tied_head = false;
    let mut muon = Case { name: "muon", ..untied.clone() };
    muon.trainer.optimizer.kind = OptimizerKind::Muon;
    for case in [tied, untied, muon] {
        check(&data, &case, 1..=4);
    }
}

#[test]
fn other_settings_train_the_weights_of_one_machine_too() {
    let data = Data::new();
    let tied = Case::new(&data, "tied");
    let with = |name, edit: &dyn Fn(&mut Case)| {
        let mut case = Case { name, ..tied.clone() };
        edit(&mut case);
        case
    };
    let cases = [
        with("one unit", &|case| case.rows = 3),
        with("batches that are added up", &|case| (case.rows, case.trainer.accumulation) = (UNIT, 4)),
        with("bf16", &|case| case.trainer.precision = PrecisionPolicy::all(Precision::Bf16)),
        with("segments", &|case| case.trainer.checkpoint = Some(1)),
        with("descent", &|case| case.trainer.optimizer.kind = OptimizerKind::Sgd),
        with("limited gradients", &|case| case.trainer.optimizer.max_grad_norm = 0.01),
        with("dense", &|case| case.policy = TernaryPolicy::DENSE),
        with("threads", &|case| case.threads = 2),
        // More blocks than ranks, and fewer.
        with("a deep teacher", &|case| case.taught_by = Some(5)),
        with("a flat teacher", &|case| case.taught_by = Some(1)),
        with("all weights of a block", &|case| {
            case.spec.qk_norm = true;
            case.spec.sub_norms = true;
            case.spec.biases = trike_nn::Biases { qkv: true, output: true, mlp: true };
        }),
        // Some of its steps overflow.
        with("f16", &|case| {
            case.trainer.precision = PrecisionPolicy::all(Precision::F16);
            case.trainer.precision.loss_scale.initial = 1e9;
            case.trainer.precision.loss_scale.maximum = 1e12;
        }),
    ];
    for case in cases {
        check(&data, &case, 3..=3);
    }
}

/// On another machine the step's units are added in one sum each: a model of more than eight million values.
#[test]
fn large_models_add_their_gradients_in_the_order_of_one_machine() {
    let data = Data::new();
    let mut case = Case::new(&data, "large");
    case.spec = DecoderSpec { layers: 2, hidden: 256, head_dim: 64, ..case.spec };
    case.spec.intermediate = 5120;
    assert!(case.start().count() > 1 << 23);
    case.trainer.steps = 2;
    (case.rows, case.threads) = (2 * UNIT, 2);
    let (reports, loss, weights) = one_machine(&data, &case, None, 2);
    let found = pipeline(&data, &case, 2, None, 2).swap_remove(0);
    assert!(found.0 == reports && found.1.to_bits() == loss.to_bits() && found.2 == weights);
}

/// Weights, gradients and the optimizer's state are divided.
#[test]
fn a_rank_holds_its_stage_only() {
    let data = Data::new();
    let case = Case::new(&data, "held");
    let start = case.start();
    let held = Threads::run(4, |comm| {
        let cpu = Cpu::new(1).expect("a cpu");
        let stage = Stage::new(&case.spec, comm.rank(), 4);
        let own = Parameters::random_stage(&case.spec, 2, &stage).expect("parameters");
        assert!(own == start.clone().into_stage(&stage).expect("its stage"));
        let trainer =
            Trainer::in_pipeline(&cpu, case.trainer, ternary(), own, None, &comm).expect("a trainer");
        assert_eq!(trainer.stage(), Some(&stage));
        trainer.parameters().all().iter().map(|parameter| parameter.name).collect::<Vec<_>>()
    });
    for (rank, names) in held.iter().enumerate() {
        assert!(names.iter().all(|name| name.layer().is_none_or(|layer| layer == rank)), "{names:?}");
        let has = |name| names.contains(&name);
        let is_outer = rank == 0 || rank == 3;
        assert_eq!((has(WeightName::Embedding), has(WeightName::FinalNorm)), (is_outer, rank == 3));
    }
}

#[test]
fn runs_continue_on_other_numbers_of_ranks_and_on_one_machine() {
    let data = Data::new();
    for tied in [true, false] {
        for kind in [OptimizerKind::AdamW, OptimizerKind::Muon] {
            let mut case = Case::new(&data, "continued");
            case.spec.tied_head = tied;
            case.trainer.optimizer.kind = kind;
            case.trainer.steps = 5;
            let want = one_machine(&data, &case, None, 5).2;
            let dir = tempfile::tempdir().expect("a folder");
            let dir = Some(dir.path());
            pipeline(&data, &case, 2, dir, 1);
            pipeline(&data, &case, 4, dir, 2);
            one_machine(&data, &case, dir, 3);
            pipeline(&data, &case, 3, dir, 4);
            let last = one_machine(&data, &case, dir, 5).2;
            assert!(last == want, "tied {tied}, {kind:?}");
        }
    }
}

/// Ranks that each hold the whole model continue a pipeline, too.
#[test]
fn ranks_with_all_weights_read_its_checkpoint() {
    let data = Data::new();
    let case = Case::new(&data, "exchanged");
    let dir = tempfile::tempdir().expect("a folder");
    let want = pipeline(&data, &case, 3, Some(dir.path()), 2).swap_remove(0).2;
    let found = newest(Some(dir.path())).expect("a checkpoint");
    let weights = Threads::run(2, |comm| {
        let cpu = Cpu::new(1).expect("a cpu");
        let trainer = Trainer::new(&cpu, case.trainer, ternary(), case.start(), None);
        let mut trainer =
            trainer.and_then(|t| t.with_ranks(&comm, RanksConfig::default())).expect("a trainer");
        trainer.resume(&found, json!(1)).expect("it continues");
        trainer.into_parameters()
    });
    assert!(weights.iter().all(|weights| Some(weights) == want.as_ref()));
}

/// The bytes of the guide: residual streams and their gradients, and what a tied embedding sends beside them.
#[test]
fn ranks_send_what_the_guide_says() {
    let data = Data::new();
    for (tied, ranks) in [(true, 2), (true, 3), (false, 2), (false, 4)] {
        let mut case = Case::new(&data, "sent");
        case.spec.tied_head = tied;
        let mut rows = data.batches(UNIT, Position::default());
        let units: Vec<Vec<u32>> = (0..3).map(|_| rows.next_batch().expect("a unit").ids).collect();
        let sent: u64 = Threads::run(ranks, |comm| {
            let cpu = Cpu::new(1).expect("a cpu");
            let trainer = Trainer::in_pipeline(&cpu, case.trainer, ternary(), case.start(), None, &comm);
            let mut trainer = trainer.expect("a trainer");
            let before = comm.traffic();
            trainer.step(&mut data.batches(case.rows, Position::default())).expect("a step");
            let after = comm.traffic();
            (after.sent - before.sent) - 20 * (after.messages - before.messages)
        })
        .into_iter()
        .sum();
        let (hidden, vocab, tensors) = (case.spec.hidden, case.spec.vocab, case.start().all().len());
        let tokens: usize = units.iter().map(Vec::len).sum();
        let mut want = (ranks - 1) * 8 * hidden * tokens;
        if tied {
            let different =
                units.iter().map(|ids| ids.iter().collect::<std::collections::HashSet<_>>().len());
            want += 4 * hidden * (different.sum::<usize>() + vocab);
        }
        // The loss, and the squares of the gradient of each tensor.
        want += (ranks - 1) * (24 + 8 * tensors);
        assert_eq!(sent, want as u64, "tied {tied}, {ranks} ranks");
    }
}
