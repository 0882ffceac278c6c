//! Refusals and failures of tensor-parallel ranks.

use serde_json::json;
use trike_comm::{Communicator, Threads};
use trike_cpu::Cpu;
use trike_train::data::Position;
use trike_train::{RanksConfig, Teacher, TensorShard, TernaryPolicy, TrainError};

use super::{begin, tensor};
use crate::common::Data;
use crate::common::broken::{check_cut, check_differences, check_ended, check_not_finite, refused};
use crate::common::divided::{Case, newest};

#[test]
fn ranks_that_differ_are_refused() {
    let data = Data::new();
    let case = Case::new(&data, "first");
    check_differences(begin, &case);
    let errors = refused(begin, &case, &case, &|mut start| {
        start.all_mut()[0].values[7] += 1.0;
        start
    });
    let want = "ranks 2 and 0 differ in embedding, norms and head: checksum";
    assert!(errors.iter().all(|error| error.contains(want)), "{errors:?}");
    // One rank has its shard of the teacher, the others have all of it.
    let errors = Threads::run(2, |comm| {
        let cpu = Cpu::new(1).expect("a cpu");
        let mut parameters = case.start();
        if comm.rank() == 1 {
            parameters = parameters.into_shard(&TensorShard::new(&case.spec, 1, 2)).expect("its rows");
        }
        let teacher = Teacher { parameters: &parameters, policy: TernaryPolicy::DENSE };
        let refused = begin(&cpu, &case, case.start(), Some(teacher), &comm);
        refused.err().map(|error| error.to_string()).unwrap_or_default()
    });
    let want = "ranks 1 and 0 differ in teacher: some rows";
    assert!(errors.iter().all(|error| error.contains(want)), "{errors:?}");
}

#[test]
fn what_divided_matrices_cannot_do_is_refused() {
    let data = Data::new();
    let mut case = Case::new(&data, "refused");
    case.spec.intermediate = 2;
    for error in refused(begin, &case, &case, &|start| start) {
        assert_eq!(error, "number of ranks is 3: expected 1 to 2");
    }
    let [comm] = &Threads::new(1)[..] else { unreachable!("one rank") };
    let cpu = Cpu::new(1).expect("a cpu");
    let mut whole = begin(&cpu, &case, case.start(), None, comm).expect("a trainer");
    let mut batches = data.batches(1, Position::default());
    assert!(matches!(whole.gradients(&mut batches), Err(TrainError::Alone { .. })));
    assert!(matches!(whole.with_ranks(comm, RanksConfig::default()), Err(TrainError::Alone { .. })));
    let rows = case.start().into_shard(&TensorShard::new(&case.spec, 0, 2)).expect("its rows");
    let short = begin(&cpu, &case, rows, None, comm).err().map(|error| error.to_string()).unwrap_or_default();
    assert_eq!(short, "weights of a rank: expected 1024 elements, got 512");
}

#[test]
fn a_message_that_is_cut_names_its_rank() {
    check_cut(begin, &[0, 40, 120]);
}

#[test]
fn numbers_that_are_none_change_no_weights() {
    // The weights of a matrix for the other rank.
    check_not_finite(begin, 40);
}

#[test]
fn a_rank_that_ends_is_named() {
    check_ended(begin);
}

#[test]
fn a_checkpoint_of_another_model_is_refused_by_all_ranks() {
    let data = Data::new();
    let case = Case::new(&data, "first");
    let dir = tempfile::tempdir().expect("a folder");
    tensor(&data, &case, 2, Some(dir.path()), 1);
    let found = newest(Some(dir.path())).expect("a checkpoint");
    let mut wide = case.clone();
    wide.spec.intermediate = 64;
    let errors = Threads::run(2, |comm| {
        let cpu = Cpu::new(1).expect("a cpu");
        let trainer = begin(&cpu, &wide, wide.start(), None, &comm);
        trainer.expect("a trainer").resume(&found, json!(1)).expect_err("it is refused").to_string()
    });
    let is_said = |error: &String| error.contains("gate_proj.weight has") && error.contains("expected 2048");
    assert!(errors.iter().all(is_said), "{errors:?}");
}
