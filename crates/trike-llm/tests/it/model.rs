//! Models behind one object: the same results as through the backend's own type.

use std::ops::ControlFlow;

use trike_llm::{
    DeviceChoice, GenerateOptions, LanguageModel, LlmError, LoadOptions, Model, ModelFile, Question,
    ScoreOptions, Split, bench::BenchOptions, open, sampler::SamplerConfig, tokenizer::TokenizerError,
};
use trike_nn::{ActivationPrecision, Eviction, KvLimit, KvOptions, KvPrecision, KvSpec};
use trike_testkit::{Llama2cCheckpoint, Llama2cShape, assert_close};

const TEXT: &str =
    "Once upon a time there was a little girl.<|endoftext|>She liked to play with her red ball.";

fn tiny() -> ModelFile {
    ModelFile::open(trike_testkit::tiny()).expect("the bundled model")
}

/// The model as it runs by default, and with activations that are not rounded.
fn both() -> [Box<dyn Model>; 2] {
    let file = tiny();
    let exact = LoadOptions::default().with_activations(ActivationPrecision::F32);
    let load = |options: &LoadOptions| {
        let device = DeviceChoice::Cpu.open().expect("always there");
        device.load(&file, options, &mut |_, _| ()).expect("it loads")
    };
    [load(&LoadOptions::default()), load(&exact)]
}

#[test]
fn a_trait_object_generates_what_its_model_generates() {
    let file = tiny();
    let model = LanguageModel::load(file.path()).expect("it loads");
    let object = open(file.path(), &DeviceChoice::Cpu).expect("it loads");
    let sampled = SamplerConfig::default().with_temperature(0.9).with_seed(3);
    for options in [GenerateOptions::default(), GenerateOptions::default().with_sampler(sampled)] {
        let options = options.with_max_tokens(24);
        let mut streamed = String::new();
        let through = object.generate_with("Once", &options, &mut |piece| {
            streamed.push_str(piece);
            ControlFlow::Continue(())
        });
        let (through, own) = (through.expect("text"), model.generate("Once", &options).expect("text"));
        assert_eq!((&through.text, &through.ids), (&own.text, &own.ids));
        assert_eq!(streamed, through.text);
    }
    let broken_off =
        object.generate_with("Once", &GenerateOptions::default(), &mut |_| ControlFlow::Break(()));
    assert_eq!(broken_off.expect("a start").finish, trike_llm::FinishReason::Cancelled);
}

#[test]
fn what_is_known_of_a_model_is_known_of_the_object() {
    let file = tiny();
    let object = open(file.path(), &DeviceChoice::Cpu).expect("it loads");
    assert_eq!(object.path(), file.path());
    assert_eq!(object.config(), file.config());
    assert_eq!(object.default_kv(), file.default_kv());
    assert!(object.can_cache(KvPrecision::F16) && object.device_use().is_none());
    let kv = KvSpec::new(KvPrecision::F16, 64);
    let memory = object.memory(&kv);
    let spec = &file.config().spec;
    assert_eq!(memory.weights, object.weight_bytes() as u64);
    assert_eq!(memory.cache, (2 * spec.layers * 64 * spec.kv_width() * 2) as u64);
}

#[test]
fn a_model_beside_itself_does_not_diverge_and_beside_another_does() {
    let [model, exact] = both();
    let options = ScoreOptions::new(Split::of(TEXT)).with_kv(KvPrecision::F32);
    let alone = model.score(TEXT, &options, &mut |_, _| ()).expect("a score");
    assert_eq!(alone.sequences, 2);
    let same = model.compare(&*model, TEXT, &options, &mut |_, _| ()).expect("a comparison");
    assert_eq!((&same.score, &same.base), (&alone, &alone));
    assert_eq!((same.kl, same.top1_agreement), (0.0, 1.0));
    let other = model.compare(&*exact, TEXT, &options, &mut |_, _| ()).expect("a comparison");
    assert_eq!(other.score, alone);
    assert!(other.kl > 0.0 && other.kl < 0.01, "{other:?}");
    let first = model.score(TEXT, &options.with_limit(1), &mut |_, _| ()).expect("a score");
    assert_eq!(first.sequences, 1);
}

#[test]
fn questions_are_answered_by_likelihood() {
    let [model, _] = both();
    let question = Question {
        context: "Once upon a".to_owned(),
        options: vec![" time".to_owned(), " xylophone".to_owned()],
        answer: 0,
    };
    let score = model.answer(&[question], None, &mut |_, _| ()).expect("a score");
    assert_eq!((score.questions, score.accuracy, score.chance), (1, 1.0, 0.5));
    assert!(matches!(model.answer(&[], None, &mut |_, _| ()), Err(LlmError::NothingToScore)));
}

#[test]
fn options_and_prompts_that_cannot_work_are_errors() {
    let [mut model, _] = both();
    let context = model.config().spec.context;
    let generate = |options: &GenerateOptions| model.generate("Once", options).map(|_| ());
    for window in [0, context + 1] {
        let error = generate(&GenerateOptions::default().with_kv(KvOptions::default().with_window(window)))
            .expect_err("out of range");
        let LlmError::Option(option) = &error else { panic!("{error:?}") };
        assert_eq!(option.field(), "window");
        assert_eq!(error.to_string(), format!("window is {window}: expected 1 to {context}"));
    }
    let long = model.generate_ids(vec![1; context + 1], &[], &GenerateOptions::default(), &mut |_| {
        ControlFlow::Continue(())
    });
    assert!(matches!(long, Err(LlmError::PromptTooLong { tokens, .. }) if tokens == context + 1));
    let empty =
        model.generate_ids(vec![], &[], &GenerateOptions::default(), &mut |_| ControlFlow::Continue(()));
    assert!(matches!(empty, Err(LlmError::Tokenizer(TokenizerError::EmptyPrompt))));
    let limit = KvLimit { positions: 64, eviction: Eviction::Oldest };
    for (field, options) in [
        ("prompt", trike_llm::bench::BenchOptions::default().with_prompt(context + 1)),
        ("generate", trike_llm::bench::BenchOptions::default().with_prompt(0).with_generate(context + 1)),
        (
            "repetitions",
            trike_llm::bench::BenchOptions::default().with_prompt(1).with_generate(1).with_repetitions(0),
        ),
        ("window", BenchOptions::default().with_kv(KvOptions::default().with_window(16))),
        ("limit", BenchOptions::default().with_kv(KvOptions::default().with_limit(limit))),
    ] {
        let error = model.bench(&options, &mut |_, _| ()).expect_err(field);
        assert!(matches!(&error, LlmError::Option(option) if option.field() == field), "{error}");
    }
}

#[test]
fn rounded_keys_and_values_cost_little() {
    let [model, _] = both();
    let ids: Vec<u32> = (1..40).collect();
    let logits = |kv| {
        let mut all = Vec::new();
        model.logits(&ids, kv, &mut |_, row| all.extend_from_slice(row)).expect("logits");
        all
    };
    let exact = logits(KvPrecision::F32);
    for (kv, bound) in [(KvPrecision::Int8, 0.1), (KvPrecision::Int8Int4, 0.5), (KvPrecision::Int4, 0.5)] {
        assert_close(&logits(kv), &exact, bound);
        assert_ne!(logits(kv), exact);
    }
    let spec = &model.config().spec;
    // A byte or half of one per element, and four for the scale of each head.
    let heads = (spec.layers * spec.kv_heads * 64) as u64;
    let [int8, int4] = [spec.head_dim, spec.head_dim.div_ceil(2)].map(|codes| heads * (codes as u64 + 4));
    for (kv, bytes) in
        [(KvPrecision::Int8, 2 * int8), (KvPrecision::Int8Int4, int8 + int4), (KvPrecision::Int4, 2 * int4)]
    {
        assert_eq!(model.memory(&KvSpec::new(kv, 64)).cache, bytes);
    }
}

#[test]
fn a_benchmark_measures_every_depth_up_to_the_context() {
    let [mut model, _] = both();
    let context = model.config().spec.context;
    let options =
        BenchOptions::default().with_prompt(3).with_generate(2).with_repetitions(1).with_threads([1]);
    for kv in KvPrecision::ALL {
        let options = options.clone().with_kv(kv).with_depths([0, context - 3]);
        let report = model.bench(&options, &mut |_, _| ()).expect("a report");
        let rows: Vec<_> = report.rows.iter().map(|row| (row.kind, row.tokens, row.depth)).collect();
        let deep = context - 3;
        assert_eq!(rows, [("prefill", 3, 0), ("decode", 2, 0), ("prefill", 3, deep), ("decode", 2, deep)]);
        // What attention reads is counted.
        assert!(report.rows[3].bytes_per_token > report.rows[1].bytes_per_token);
    }
    let refused = model.bench(&options.with_depths([context - 2]), &mut |_, _| ()).expect_err("one too many");
    assert!(matches!(&refused, LlmError::Option(option) if option.field() == "depths"), "{refused}");
}

#[test]
fn a_tokenizer_of_another_model_is_refused_before_weights_are_loaded() {
    let file = tiny();
    let dir = tempfile::tempdir().expect("a directory");
    let other = dir.path().join("other.bin");
    Llama2cCheckpoint::random(Llama2cShape { vocab: 509, ..Llama2cShape::STORIES_260K }, 1).write_f32(&other);
    let tokenizer = file.tokenizer(None).expect("its own");
    let other = ModelFile::open(other).expect("a model");
    let options = LoadOptions::default().with_tokenizer(tokenizer);
    let mut loaded = 0;
    let refused = LanguageModel::load_with(&other, &options, &mut |_, _| loaded += 1);
    assert!(matches!(refused.map(|_| ()), Err(LlmError::TokenizerMismatch { .. })));
    assert_eq!(loaded, 0);
}
