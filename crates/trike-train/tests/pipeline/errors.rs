//! What a pipeline refuses, and how it ends.

use std::path::Path;

use serde_json::json;
use trike_comm::{Communicator, Threads};
use trike_cpu::Cpu;
use trike_train::data::Position;
use trike_train::{Parameters, RanksConfig, Stage, TrainError, Trainer};

use super::common::broken::broken;
use super::common::{Data, ternary};
use super::{Case, begin, newest, pipeline};

/// The errors of three ranks that begin a pipeline, the last of them with other settings.
fn refused(case: &Case, of_last: &Case, edit: &(dyn Fn(Parameters) -> Parameters + Sync)) -> Vec<String> {
    Threads::run(3, |comm| {
        let cpu = Cpu::new(1).expect("a cpu");
        let is_last = comm.rank() == 2;
        let case = if is_last { of_last } else { case };
        let start = if is_last { edit(case.start()) } else { case.start() };
        let trainer = Trainer::in_pipeline(&cpu, case.trainer, ternary(), start, None, &comm);
        trainer.err().map(|error| error.to_string()).unwrap_or_default()
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
    let flat = with(&|other| other.spec.layers = 3);
    assert!(flat.contains("layers: 3"), "{flat}");
    let embedding = refused(&case, &case, &|mut start| {
        start.all_mut()[0].values[7] += 1.0;
        start
    });
    assert!(
        embedding.iter().all(|e| e.contains("ranks 2 and 0 differ in embedding: checksum")),
        "{embedding:?}"
    );
}

#[test]
fn what_a_pipeline_cannot_do_is_refused() {
    let data = Data::new();
    let mut case = Case::new(&data, "refused");
    case.spec.layers = 2;
    for error in refused(&case, &case, &|start| start) {
        assert_eq!(error, "number of ranks is 3: expected 1 to 2");
    }
    let [comm] = &Threads::new(1)[..] else { unreachable!("one rank") };
    let cpu = Cpu::new(1).expect("a cpu");
    let whole = Trainer::in_pipeline(&cpu, case.trainer, ternary(), case.start(), None, comm);
    let mut whole = whole.expect("a trainer");
    let mut batches = data.batches(1, Position::default());
    assert!(matches!(whole.gradients(&mut batches), Err(TrainError::Alone { .. })));
    assert!(matches!(whole.with_ranks(comm, RanksConfig::default()), Err(TrainError::Alone { .. })));
    let part = Parameters::random_stage(&case.spec, 1, &Stage::new(&case.spec, 0, 2)).expect("parameters");
    let missing = Trainer::in_pipeline(&cpu, case.trainer, ternary(), part, None, comm);
    let missing = missing.err().map(|error| error.to_string()).unwrap_or_default();
    assert_eq!(missing, "model.layers.1.input_layernorm.weight is missing");
}

#[test]
fn a_message_that_is_cut_names_its_rank() {
    let cut: fn(&mut Vec<u8>) = |message| message.truncate(message.len() / 2);
    // A residual stream, and a gradient.
    for (rank, other) in [(0, 1), (1, 0)] {
        for after in 0..2 {
            let errors = broken(begin, rank, after, cut);
            assert!(errors[other].contains(&format!("from rank {rank}, expected")), "{errors:?}");
        }
    }
}

#[test]
fn numbers_that_are_none_change_no_weights() {
    let errors = broken(begin, 0, 1, |message| message.fill(0xFF));
    assert!(
        errors.iter().all(|error| error.contains("is not finite") || error.contains("gone")),
        "{errors:?}"
    );
}

/// The other rank waits for a message until then, and says whose it is.
#[test]
fn a_rank_that_ends_is_named() {
    let data = Data::new();
    let case = Case::new(&data, "ended");
    for gone in 0..3 {
        let errors = Threads::run(3, |comm| {
            let comm = comm.with_deadline(std::time::Duration::from_secs(20));
            let rank = comm.rank();
            let cpu = Cpu::new(1).expect("a cpu");
            let trainer = Trainer::in_pipeline(&cpu, case.trainer, ternary(), case.start(), None, &comm);
            let mut trainer = trainer.expect("a trainer");
            if rank == gone {
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
    pipeline(&data, &case, 2, Some(dir.path()), 1);
    let found = newest(Some(dir.path())).expect("a checkpoint");
    let resume = |case: &Case, path: &Path| {
        Threads::run(2, |comm| {
            let cpu = Cpu::new(1).expect("a cpu");
            let trainer = Trainer::in_pipeline(&cpu, case.trainer, ternary(), case.start(), None, &comm);
            trainer.expect("a trainer").resume(path, json!(1)).expect_err("it is refused").to_string()
        })
    };
    let mut wide = case.clone();
    wide.spec.intermediate = 64;
    for error in resume(&wide, &found) {
        assert!(error.contains("gate_proj.weight has") && error.contains("expected 2048"), "{error}");
    }
    let mut deep = case.clone();
    deep.spec.layers = 5;
    for error in resume(&deep, &found) {
        assert!(error.contains("weight.model.layers.4.input_layernorm.weight is missing"), "{error}");
    }
    let mut long = case.clone();
    long.trainer.steps = 100;
    for error in resume(&long, &found) {
        assert!(error.contains("steps was 3, and is 100 now"), "{error}");
    }
    std::fs::write(found.join("state.safetensors"), b"12345678").expect("it is written");
    let errors = resume(&case, &found);
    assert!(errors[0].contains("state.safetensors") && errors[1].starts_with("rank 0: "), "{errors:?}");
}
