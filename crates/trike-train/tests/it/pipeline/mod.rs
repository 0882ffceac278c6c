//! Pipeline parallelism: losses and weights bit-identical to a single machine, and errors instead of wrong results.

mod errors;

use std::path::Path;

use serde_json::json;
use trike_comm::{Communicator, Threads};
use trike_cpu::Cpu;
use trike_nn::WeightName;
use trike_train::data::Position;
use trike_train::{OptimizerKind, Parameters, RanksConfig, Stage, Teacher, TrainError, Trainer};

use crate::common::divided::{self, Case, Outcome, UNIT, newest, on_ranks};
use crate::common::{Data, ternary};

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
    divided::check_one_to_four(begin);
}

#[test]
fn other_settings_train_the_weights_of_one_machine_too() {
    let data = Data::new();
    let tied = Case::new(&data, "tied");
    let mut cases = divided::settings(&data);
    cases.extend([
        // More blocks than ranks, and fewer.
        tied.with("a deep teacher", |case| case.taught_by = Some(5)),
        tied.with("a flat teacher", |case| case.taught_by = Some(1)),
        tied.with("all weights of a block", |case| {
            case.spec.qk_norm = true;
            case.spec.sub_norms = true;
            case.spec.biases = trike_nn::Biases { qkv: true, output: true, mlp: true };
        }),
    ]);
    for case in cases {
        check(&data, &case, 3..=3);
    }
}

#[test]
fn large_models_add_their_gradients_in_the_order_of_one_machine() {
    divided::check_large(begin);
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
    let tied = Case::new(&data, "tied");
    let untied = tied.with("untied", |case| case.spec.tied_head = false);
    for case in [tied, untied] {
        for kind in [OptimizerKind::AdamW, OptimizerKind::Muon] {
            let case = case.with(case.name, |case| case.trainer.optimizer.kind = kind);
            divided::check_continued(begin, &data, &case);
        }
    }
}

/// Data-parallel ranks resume a pipeline's run, too.
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

/// The bytes documented in the guide: residual streams and their gradients, and the additional messages of a tied embedding.
#[test]
fn ranks_send_what_the_guide_says() {
    let data = Data::new();
    for (tied, ranks) in [(true, 2), (true, 3), (false, 2), (false, 4)] {
        let mut case = Case::new(&data, "sent");
        case.spec.tied_head = tied;
        let mut rows = data.batches(UNIT, Position::default());
        let units: Vec<Vec<u32>> = (0..3).map(|_| rows.next_batch().expect("a unit").ids).collect();
        let sent = divided::sent_bytes(begin, &data, &case, ranks);
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
