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
    OptimizerKind, Parameters, Precision, PrecisionPolicy, RanksConfig, Stage, Teacher, TernaryPolicy,
    TrainError, Trainer,
};

use common::divided::{self, Case, Outcome, UNIT, newest, on_ranks, one_machine};
use common::{Data, ternary};

fn begin<'a>(
    cpu: &'a Cpu,
    case: &Case,
    start: Parameters,
    teacher: Option<Teacher<'a>>,
    comm: &'a dyn Communicator,
) -> Result<Trainer<'a>, TrainError> {
    Trainer::in_pipeline(cpu, case.trainer, case.policy.clone(), start, teacher, comm)
}

fn pipeline(data: &Data, case: &Case, ranks: usize, dir: Option<&Path>, to: usize) -> Vec<Outcome> {
    on_ranks(begin, data, case, ranks, dir, to)
}

fn check(data: &Data, case: &Case, counts: std::ops::RangeInclusive<usize>) {
    divided::check(begin, data, case, counts);
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
