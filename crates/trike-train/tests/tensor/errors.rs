//! What ranks with rows of matrices refuse, and how they end.

use serde_json::json;
use trike_comm::{Communicator, Threads};
use trike_cpu::Cpu;
use trike_train::data::Position;
use trike_train::{Parameters, RanksConfig, Teacher, TensorShard, TernaryPolicy, TrainError};

use super::common::Data;
use super::common::broken::broken;
use super::common::divided::{Case, newest};
use super::{begin, tensor};

/// The errors of three ranks that begin, the last of them with other settings.
fn refused(case: &Case, of_last: &Case, edit: &(dyn Fn(Parameters) -> Parameters + Sync)) -> Vec<String> {
    Threads::run(3, |comm| {
        let cpu = Cpu::new(1).expect("a cpu");
        let is_last = comm.rank() == 2;
        let case = if is_last { of_last } else { case };
        let start = if is_last { edit(case.start()) } else { case.start() };
        begin(&cpu, case, start, None, &comm).err().map(|error| error.to_string()).unwrap_or_default()
    })
}

#[test]
fn ranks_that_differ_are_refused() {
    let data = Data::new();
    let case = Case::new(&data, "first");
    let with = |edit: &dyn Fn(&mut Case)| {
        let mut other = case.clone();
        edit(&mut other);
        let errors = refused(&case, &other, &|start| start);
        assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
        errors[0].clone()
    };
    let steps = with(&|other| other.trainer.steps = 9);
    assert!(
        steps.contains("ranks 2 and 0 differ in training configuration") && steps.contains("steps: 9"),
        "{steps}"
    );
    let model = with(&|other| other.spec.rms_eps = 0.5);
    assert!(model.contains("ranks 2 and 0 differ in model") && model.contains("rms_eps: 0.5"), "{model}");
    let errors = refused(&case, &case, &|mut start| {
        start.all_mut()[0].values[7] += 1.0;
        start
    });
    let want = "ranks 2 and 0 differ in embedding, norms and head: checksum";
    assert!(errors.iter().all(|error| error.contains(want)), "{errors:?}");
    // One rank has its rows of the teacher, the others have all of it.
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
    for error in refused(&case, &case, &|start| start) {
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
    let cut: fn(&mut Vec<u8>) = |message| message.truncate(message.len() / 2);
    for (rank, other) in [(0, 1), (1, 0)] {
        for after in [0, 40, 120] {
            let errors = broken(begin, rank, after, cut);
            assert!(errors[other].contains(&format!("from rank {rank}, expected")), "{after}: {errors:?}");
        }
    }
}

#[test]
fn numbers_that_are_none_change_no_weights() {
    // The weights of a matrix for the other rank.
    let errors = broken(begin, 0, 40, |message| message.fill(0xFF));
    assert!(
        errors.iter().all(|error| error.contains("is not finite") || error.contains("gone")),
        "{errors:?}"
    );
}

/// The others wait for a message until then, and say whose it is.
#[test]
fn a_rank_that_ends_is_named() {
    let data = Data::new();
    let case = Case::new(&data, "ended");
    for gone in 0..3 {
        let errors = Threads::run(3, |comm| {
            let comm = comm.with_deadline(std::time::Duration::from_secs(20));
            let cpu = Cpu::new(1).expect("a cpu");
            let mut trainer = begin(&cpu, &case, case.start(), None, &comm).expect("a trainer");
            if comm.rank() == gone {
                return String::new();
            }
            let error = trainer.step(&mut data.batches(case.rows, Position::default()));
            error.expect_err("a rank is gone").to_string()
        });
        assert!(errors.iter().any(|error| *error == format!("rank {gone} is gone")), "{gone}: {errors:?}");
    }
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
