//! Measurements of the bundled model as a trait object.

use trike_eval::{
    EvalError, Question, ScoreOptions, answer,
    bench::{self, BenchOptions},
    compare, score,
};
use trike_llm::{DeviceChoice, LoadOptions, Model, ModelFile, Split};
use trike_nn::{ActivationPrecision, Eviction, KvLimit, KvOptions, KvPrecision};

const TEXT: &str =
    "Once upon a time there was a little girl.<|endoftext|>She liked to play with her red ball.";

fn tiny() -> ModelFile {
    ModelFile::open(trike_testkit::tiny()).expect("the bundled model")
}

/// The model with its default activations, and with f32 activations.
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
fn a_model_beside_itself_does_not_diverge_and_beside_another_does() {
    let [model, exact] = both();
    let options = ScoreOptions::new(Split::of(TEXT)).with_kv(KvPrecision::F32);
    let alone = score(&*model, TEXT, &options, &mut |_, _| ()).expect("a score");
    assert_eq!(alone.sequences, 2);
    let same = compare(&*model, &*model, TEXT, &options, &mut |_, _| ()).expect("a comparison");
    assert_eq!((&same.score, &same.base), (&alone, &alone));
    assert_eq!((same.kl, same.top1_agreement), (0.0, 1.0));
    let other = compare(&*model, &*exact, TEXT, &options, &mut |_, _| ()).expect("a comparison");
    assert_eq!(other.score, alone);
    assert!(other.kl > 0.0 && other.kl < 0.01, "{other:?}");
    let first = score(&*model, TEXT, &options.with_limit(1), &mut |_, _| ()).expect("a score");
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
    let score = answer(&*model, &[question], None, &mut |_, _| ()).expect("a score");
    assert_eq!((score.questions, score.accuracy, score.chance), (1, 1.0, 0.5));
    assert!(matches!(answer(&*model, &[], None, &mut |_, _| ()), Err(EvalError::NothingToScore)));
}

#[test]
fn options_of_a_benchmark_are_checked() {
    let [mut model, _] = both();
    let context = model.config().spec.context;
    let limit = KvLimit { positions: 64, eviction: Eviction::Oldest };
    for (field, options) in [
        ("prompt", BenchOptions::default().with_prompt(context + 1)),
        ("generate", BenchOptions::default().with_prompt(0).with_generate(context + 1)),
        ("repetitions", BenchOptions::default().with_prompt(1).with_generate(1).with_repetitions(0)),
        ("window", BenchOptions::default().with_kv(KvOptions::default().with_window(16))),
        ("limit", BenchOptions::default().with_kv(KvOptions::default().with_limit(limit))),
    ] {
        let error = bench::run(&mut *model, &options, &mut |_, _| ()).expect_err(field);
        assert!(matches!(&error, EvalError::Option(option) if option.field() == field), "{error}");
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
        let report = bench::run(&mut *model, &options, &mut |_, _| ()).expect("a report");
        let rows: Vec<_> = report.rows.iter().map(|row| (row.kind, row.tokens, row.depth)).collect();
        let deep = context - 3;
        assert_eq!(rows, [("prefill", 3, 0), ("decode", 2, 0), ("prefill", 3, deep), ("decode", 2, deep)]);
        // Bytes read by attention are included.
        assert!(report.rows[3].bytes_per_token > report.rows[1].bytes_per_token);
    }
    let refused = bench::run(&mut *model, &options.with_depths([context - 2]), &mut |_, _| ())
        .expect_err("one too many");
    assert!(matches!(&refused, EvalError::Option(option) if option.field() == "depths"), "{refused}");
}
