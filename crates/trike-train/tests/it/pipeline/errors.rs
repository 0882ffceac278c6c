//! Refusals and failures of a pipeline.

use std::path::Path;

use serde_json::json;
use trike_comm::Threads;
use trike_cpu::Cpu;
use trike_train::data::Position;
use trike_train::{Parameters, RanksConfig, Stage, TrainError, Trainer};

use super::{Case, begin, newest, pipeline};
use crate::common::broken::{
    check_cut, check_differences, check_ended, check_not_finite, difference, refused,
};
use crate::common::{Data, ternary};

#[test]
fn ranks_that_differ_are_refused() {
    let data = Data::new();
    let case = Case::new(&data, "first");
    check_differences(begin, &case);
    let flat = difference(begin, &case, |other| other.spec.layers = 3);
    assert!(flat.contains("layers: 3"), "{flat}");
    let embedding = refused(begin, &case, &case, &|mut start| {
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
    for error in refused(begin, &case, &case, &|start| start) {
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
    // Once a residual stream, once a gradient.
    check_cut(begin, &[0, 1]);
}

#[test]
fn numbers_that_are_none_change_no_weights() {
    check_not_finite(begin, 1);
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
