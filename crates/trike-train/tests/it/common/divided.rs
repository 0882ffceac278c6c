//! Runs of a trainer without ranks compared with pipeline and tensor parallelism.

use std::path::{Path, PathBuf};

use serde_json::json;
use trike_comm::{Communicator, Threads};
use trike_cpu::Cpu;
use trike_nn::DecoderSpec;
use trike_train::data::Position;
use trike_train::{
    OptimizerKind, Parameters, Precision, PrecisionPolicy, StepReport, Teacher, TernaryPolicy, TrainError,
    Trainer, TrainerConfig, checkpoint,
};

use super::{Data, config, ternary};

/// Creates a rank's trainer from a case, its initial weights, its teacher and the other ranks.
pub(crate) type Begin = for<'a> fn(
    &'a Cpu,
    &Case,
    Parameters,
    Option<Teacher<'a>>,
    &'a dyn Communicator,
) -> Result<Trainer<'a>, TrainError>;

const ONE: checkpoint::Keep = checkpoint::Keep { newest: 1, also: None };
pub(crate) const STEPS: usize = 3;
/// Rows per unit: those that are computed together, of 512 tokens or more.
pub(crate) const UNIT: usize = 22;

/// The settings of a run.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) trainer: TrainerConfig,
    pub(crate) spec: DecoderSpec,
    pub(crate) policy: TernaryPolicy,
    /// Blocks of a teacher.
    pub(crate) taught_by: Option<usize>,
    /// Rows of a batch.
    pub(crate) rows: usize,
    /// Threads of a rank.
    pub(crate) threads: usize,
}

impl Case {
    /// Steps of three units, with a tied head.
    pub(crate) fn new(data: &Data, name: &'static str) -> Self {
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

    /// The same with something else.
    pub(crate) fn with(&self, name: &'static str, edit: impl Fn(&mut Self)) -> Self {
        let mut case = Self { name, ..self.clone() };
        edit(&mut case);
        case
    }

    pub(crate) fn start(&self) -> Parameters {
        Parameters::random(&self.spec, 2).expect("parameters")
    }

    pub(crate) fn teacher(&self) -> Option<Parameters> {
        let spec = |layers| DecoderSpec { layers, ..self.spec.clone() };
        self.taught_by.map(|layers| Parameters::random(&spec(layers), 3).expect("parameters"))
    }
}

/// The outcome of a run: the reports of its steps, the loss of the batch after them, and the weights of the whole model, on a
/// single machine and on the first rank.
pub(crate) type Outcome = (Vec<StepReport>, f64, Option<Parameters>);

/// Takes steps up to the step `to`, from a checkpoint in `dir` if there is one, and saves a new one.
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

pub(crate) fn newest(dir: Option<&Path>) -> Option<PathBuf> {
    dir.and_then(|dir| checkpoint::newest(dir).expect("no error"))
}

pub(crate) fn one_machine(data: &Data, case: &Case, dir: Option<&Path>, to: usize) -> Outcome {
    let (cpu, teacher) = (Cpu::new(case.threads).expect("a cpu"), case.teacher());
    let teacher = teacher.as_ref().map(|parameters| Teacher { parameters, policy: TernaryPolicy::DENSE });
    let trainer = Trainer::new(&cpu, case.trainer, case.policy.clone(), case.start(), teacher);
    drive(&mut trainer.expect("a trainer"), data, case, dir, newest(dir).as_deref(), to)
}

/// Only the first rank has access to the disk.
pub(crate) fn on_ranks(
    begin: Begin,
    data: &Data,
    case: &Case,
    ranks: usize,
    dir: Option<&Path>,
    to: usize,
) -> Vec<Outcome> {
    Threads::run(ranks, |comm| {
        let (cpu, teacher) = (Cpu::new(case.threads).expect("a cpu"), case.teacher());
        let teacher = teacher.as_ref().map(|parameters| Teacher { parameters, policy: TernaryPolicy::DENSE });
        let mut trainer = begin(&cpu, case, case.start(), teacher, &comm).expect("a trainer");
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

/// Compares runs of several numbers of ranks with that of a single machine: reports, losses and weights are bit-identical.
pub(crate) fn check(begin: Begin, data: &Data, case: &Case, counts: std::ops::RangeInclusive<usize>) {
    let (reports, loss, weights) = one_machine(data, case, None, STEPS);
    for ranks in counts {
        let all = on_ranks(begin, data, case, ranks, None, STEPS);
        for (rank, (found, evaluated, gathered)) in all.into_iter().enumerate() {
            let name = format!("{}, rank {rank} of {ranks}", case.name);
            assert_eq!((&found, evaluated), (&reports, loss), "{name}");
            assert!(gathered == weights.clone().filter(|_| rank == 0), "{name}");
        }
    }
}

/// Tied and untied heads, and an optimizer that needs whole matrices, on one to four ranks.
pub(crate) fn check_one_to_four(begin: Begin) {
    let data = Data::new();
    let tied = Case::new(&data, "tied");
    let untied = tied.with("untied", |case| case.spec.tied_head = false);
    let muon = untied.with("muon", |case| case.trainer.optimizer.kind = OptimizerKind::Muon);
    for case in [tied, untied, muon] {
        check(begin, &data, &case, 1..=4);
    }
}

/// All settings of a run, except the model's shape and teachers.
pub(crate) fn settings(data: &Data) -> Vec<Case> {
    let tied = Case::new(data, "tied");
    vec![
        tied.with("one unit", |case| case.rows = 3),
        tied.with("batches that are added up", |case| (case.rows, case.trainer.accumulation) = (UNIT, 4)),
        tied.with("bf16", |case| case.trainer.precision = PrecisionPolicy::all(Precision::Bf16)),
        tied.with("segments", |case| case.trainer.checkpoint = Some(1)),
        tied.with("descent", |case| case.trainer.optimizer.kind = OptimizerKind::Sgd),
        tied.with("limited gradients", |case| case.trainer.optimizer.max_grad_norm = 0.01),
        tied.with("dense", |case| case.policy = TernaryPolicy::DENSE),
        tied.with("threads", |case| case.threads = 2),
        // Some of its steps overflow.
        tied.with("f16", |case| {
            case.trainer.precision = PrecisionPolicy::all(Precision::F16);
            case.trainer.precision.loss_scale.initial = 1e9;
            case.trainer.precision.loss_scale.maximum = 1e12;
        }),
    ]
}

/// On a single machine the units of a step are added to one sum: a model of more than eight million parameters.
pub(crate) fn check_large(begin: Begin) {
    let data = Data::new();
    let mut case = Case::new(&data, "large");
    case.spec = DecoderSpec { layers: 2, hidden: 256, head_dim: 64, ..case.spec };
    case.spec.intermediate = 5120;
    assert!(case.start().count() > 1 << 23);
    case.trainer.steps = 2;
    (case.rows, case.threads) = (2 * UNIT, 2);
    let (reports, loss, weights) = one_machine(&data, &case, None, 2);
    let found = on_ranks(begin, &data, &case, 2, None, 2).swap_remove(0);
    assert!(found.0 == reports && found.1.to_bits() == loss.to_bits() && found.2 == weights);
}

/// A run of five steps on two ranks, four, a single machine, three ranks and a single machine again.
pub(crate) fn check_continued(begin: Begin, data: &Data, case: &Case) {
    let mut case = case.clone();
    case.trainer.steps = 5;
    let want = one_machine(data, &case, None, 5).2;
    let dir = tempfile::tempdir().expect("a folder");
    let dir = Some(dir.path());
    on_ranks(begin, data, &case, 2, dir, 1);
    on_ranks(begin, data, &case, 4, dir, 2);
    one_machine(data, &case, dir, 3);
    on_ranks(begin, data, &case, 3, dir, 4);
    let last = one_machine(data, &case, dir, 5).2;
    assert!(last == want, "{}, {:?}", case.name, case.trainer.optimizer.kind);
}

/// Bytes that all ranks send in a step, without headers.
pub(crate) fn sent_bytes(begin: Begin, data: &Data, case: &Case, ranks: usize) -> u64 {
    let of_rank = |comm: Threads| {
        let cpu = Cpu::new(1).expect("a cpu");
        let mut trainer = begin(&cpu, case, case.start(), None, &comm).expect("a trainer");
        let before = comm.traffic();
        trainer.step(&mut data.batches(case.rows, Position::default())).expect("a step");
        let after = comm.traffic();
        (after.sent - before.sent) - 20 * (after.messages - before.messages)
    };
    Threads::run(ranks, of_rank).into_iter().sum()
}
