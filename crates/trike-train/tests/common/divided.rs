//! Runs of a trainer without ranks and of ranks that hold parts of a model, which have to be equal.

use std::path::{Path, PathBuf};

use serde_json::json;
use trike_comm::{Communicator, Threads};
use trike_cpu::Cpu;
use trike_nn::DecoderSpec;
use trike_train::data::Position;
use trike_train::{
    Parameters, StepReport, Teacher, TernaryPolicy, TrainError, Trainer, TrainerConfig, checkpoint,
};

use super::{Data, config, ternary};

/// A trainer of a rank from a case, its start, its teacher and the other ranks.
pub(crate) type Begin = for<'a> fn(
    &'a Cpu,
    &Case,
    Parameters,
    Option<Teacher<'a>>,
    &'a dyn Communicator,
) -> Result<Trainer<'a>, TrainError>;

const ONE: checkpoint::Keep = checkpoint::Keep { newest: 1, also: None };
pub(crate) const STEPS: usize = 3;
/// Rows of a unit: those that are computed together, of 512 tokens or more.
pub(crate) const UNIT: usize = 22;

/// What a run does.
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

    pub(crate) fn start(&self) -> Parameters {
        Parameters::random(&self.spec, 2).expect("parameters")
    }

    pub(crate) fn teacher(&self) -> Option<Parameters> {
        let spec = |layers| DecoderSpec { layers, ..self.spec.clone() };
        self.taught_by.map(|layers| Parameters::random(&spec(layers), 3).expect("parameters"))
    }
}

/// What a run has found: the reports of its steps, the loss of the batch behind them, and the weights of the whole model on one
/// machine and on the first rank.
pub(crate) type Outcome = (Vec<StepReport>, f64, Option<Parameters>);

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

pub(crate) fn newest(dir: Option<&Path>) -> Option<PathBuf> {
    dir.and_then(|dir| checkpoint::newest(dir).expect("no error"))
}

pub(crate) fn one_machine(data: &Data, case: &Case, dir: Option<&Path>, to: usize) -> Outcome {
    let (cpu, teacher) = (Cpu::new(case.threads).expect("a cpu"), case.teacher());
    let teacher = teacher.as_ref().map(|parameters| Teacher { parameters, policy: TernaryPolicy::DENSE });
    let trainer = Trainer::new(&cpu, case.trainer, case.policy.clone(), case.start(), teacher);
    drive(&mut trainer.expect("a trainer"), data, case, dir, newest(dir).as_deref(), to)
}

/// Only the first rank sees the disk.
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

/// Compares runs of some numbers of ranks with that of one machine: reports, losses and weights are equal to the bit.
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
