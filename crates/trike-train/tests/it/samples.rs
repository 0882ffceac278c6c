//! Documents that a teacher generates.

use std::ops::ControlFlow;

use trike_cpu::Cpu;
use trike_nn::DecoderSpec;
use trike_text::tokenizer::Tokenizer;
use trike_train::data::{BatchConfig, Batches, DataRecord, Documents, Encoder, Position};
use trike_train::{DocumentSampler, Parameters, SampleConfig, TrainError};

fn tokenizer() -> Tokenizer {
    let json = trike_models::TINY.iter().find(|(name, _)| *name == "tokenizer.json").expect("a tokenizer").1;
    let tokenizer = Tokenizer::from_hf_json_bytes(json).expect("a tokenizer");
    tokenizer.with_special(Some(1), vec![2]).expect("tokens of the vocabulary")
}

/// Weights large enough that tokens are not equally likely.
fn model(tokenizer: &Tokenizer) -> Parameters {
    let spec =
        DecoderSpec { tied_head: true, context: 24, ..DecoderSpec::llama(16, 2, 2, tokenizer.vocab_size()) };
    let mut parameters = Parameters::random(&spec, 3).expect("parameters");
    for parameter in parameters.all_mut() {
        parameter.values.iter_mut().for_each(|v| *v *= 8.0);
    }
    parameters
}

#[test]
fn documents_do_not_depend_on_threads_or_on_each_other() {
    let tokenizer = tokenizer();
    let model = model(&tokenizer);
    let config = SampleConfig { length: 12, seed: 5, ..SampleConfig::default() };
    let sampler = DocumentSampler::new(&model, &tokenizer, config).expect("a sampler");
    let [one, two] = [1, 2].map(|threads| Cpu::new(threads).expect("threads"));
    // More than one job of a thread.
    let all = sampler.documents(&two, 0..600).expect("documents");
    assert_eq!(all.len(), 600);
    let (start, ends) = (tokenizer.bos().or(tokenizer.eos().first().copied()), tokenizer.eos());
    for document in &all {
        assert_eq!(document.first().copied(), start);
        assert!((1..=12).contains(&document.len()));
        assert!(!document[1..].iter().any(|id| ends.contains(id) || Some(*id) == start));
    }
    assert_ne!(all[0], all[1]);
    for range in [0..1, 7..80, 250..300, 599..600, 4..4] {
        let some = sampler.documents(&one, range.clone()).expect("documents");
        assert_eq!(some, all[range.clone()], "{range:?}");
    }
    let mut told = Vec::new();
    let mut tell = |done| {
        told.push(done);
        if told.len() < 4 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let whole = DocumentSampler::new(&model, &tokenizer, SampleConfig { documents: 600, ..config })
        .expect("a sampler");
    assert_eq!(whole.all(&one, &mut tell).expect("documents").as_ref(), Some(&all));
    assert_eq!(whole.all(&one, &mut tell).expect("it stops"), None);
    assert_eq!(told, [0, 256, 512, 0]);
    let other = SampleConfig { seed: 6, ..config };
    let other = DocumentSampler::new(&model, &tokenizer, other).expect("a sampler").documents(&one, 0..3);
    assert_ne!(other.expect("documents"), all[..3]);
}

#[test]
fn documents_end_with_the_context() {
    let tokenizer = tokenizer();
    let sampler =
        DocumentSampler::new(&model(&tokenizer), &tokenizer, SampleConfig::default()).expect("a sampler");
    let all = sampler.documents(&Cpu::new(1).expect("a thread"), 0..20).expect("documents");
    assert_eq!(all.iter().map(Vec::len).max(), Some(24));
}

#[test]
fn a_model_without_numbers_is_refused() {
    let tokenizer = tokenizer();
    let mut model = model(&tokenizer);
    let place = model.all().len() - 1;
    model.all_mut()[place].values[0] = f32::NAN;
    let sampler = DocumentSampler::new(&model, &tokenizer, SampleConfig::default()).expect("a sampler");
    let refused = sampler.documents(&Cpu::new(1).expect("a thread"), 0..2);
    assert!(matches!(refused, Err(TrainError::NonFinite { .. })), "{refused:?}");
    let config = SampleConfig { temperature: -1.0, ..SampleConfig::default() };
    assert!(matches!(DocumentSampler::new(&model, &tokenizer, config), Err(TrainError::Option(_))));
}

#[test]
fn token_documents_follow_the_documents_of_files() {
    let tokenizer = tokenizer();
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("a.txt");
    std::fs::write(&path, "Once upon a time.").expect("it is written");
    let documents = Documents::open(&[path]).expect("documents");
    let documents = documents.with_tokens(vec![vec![1, 5, 6, 7], vec![1, 8]]).expect("documents");
    assert_eq!(documents.len(), 3);
    assert_eq!(documents.read(2).expect("a document"), DataRecord::Tokens(vec![1, 8]));
    let config = BatchConfig { rows: 1, length: 8, packed: false, seed: 1 };
    let encoder = Encoder::new(&tokenizer, None);
    let mut batches = Batches::new(&documents, &[1], encoder, config, Position::default()).expect("batches");
    let batch = batches.next_batch().expect("a batch");
    assert_eq!((batch.ids, batch.targets), (vec![1, 5, 6], [5, 6, 7].map(Some).to_vec()));
}
