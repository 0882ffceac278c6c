//! Precisions of the KV cache, chosen layer by layer under a bound on the KL divergence.

use std::ops::ControlFlow;

use trike_cpu::Cpu;
use trike_eval::{ChooseKv, EvalError, ScoreOptions, choose_kv, compare, compare_ids, divergence};
use trike_llm::{
    GenerateOptions, LanguageModel, LlmError, LoadOptions, Model, ModelFile, Session, Split,
    sampler::SamplerConfig,
};
use trike_nn::{
    ActivationPrecision, Eviction, KvLimit, KvOptions, KvPrecision, KvPrecisions, KvSpec, NnError,
};
use trike_reference::CandleBackend;
use trike_testkit::{
    Llama2cCheckpoint, Llama2cShape, Rng, assert_near, golden, llama2c_vocabulary, stories, storyteller, tiny,
};

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny");

fn model(threads: usize) -> LanguageModel<trike_nn::CpuBackend> {
    let file = ModelFile::open(TINY).expect("the bundled model");
    let options = LoadOptions::default()
        .with_tokenizer(file.tokenizer(None).expect("its tokenizer"))
        .with_cpu(Cpu::new(threads).expect("threads"));
    LanguageModel::load_with(&file, &options, &mut |_, _| ()).expect("it loads")
}

fn quiet() -> impl FnMut(usize, usize) {
    |done, total| assert!(done <= total)
}

/// Mean divergence of the model with a cache from the default cache, on text sampled from the model.
fn own_divergence(model: &dyn Model, options: &ChooseKv, kv: KvPrecisions) -> f64 {
    let start = model.tokenizer().unwrap().bos().expect("a BOS");
    let sampler = SamplerConfig::default().with_temperature(1.0).with_seed(options.seed);
    let sampling = GenerateOptions::default().with_max_tokens(options.tokens - 1).with_sampler(sampler);
    let (mut session, mut go) = (Session::default(), |_: &str| ControlFlow::Continue(()));
    let text = model.generate_in(&mut session, vec![start], &[], &sampling, &mut go).unwrap();
    let ids: Vec<u32> = [start].into_iter().chain(text.ids).collect();
    let rows = |kv: KvPrecisions| {
        let mut rows = Vec::new();
        model.logits_with(&ids, &KvSpec::new(kv, ids.len()), &mut |_, row| rows.push(row.to_vec())).unwrap();
        rows
    };
    let (got, want) = (rows(kv), rows(model.default_kv().into()));
    got.iter().zip(&want).map(|(got, want)| divergence(got, want)).sum::<f64>() / ids.len() as f64
}

#[test]
fn a_choice_keeps_its_bound_and_is_the_same_each_time() {
    let models = [model(1), model(2)];
    let default: KvPrecisions = Model::default_kv(&models[0]).into();
    let mut before = u64::MAX;
    for kl in [0.0, 0.0002, 0.001, 0.005, 1e9] {
        let options = ChooseKv::default().with_kl(kl).with_tokens(100).with_seed(3);
        let [chosen, again] =
            models.each_ref().map(|model| choose_kv(model, &options, &mut quiet()).unwrap());
        assert_eq!(chosen, again, "threads");
        assert!(chosen.kl + 2.0 * chosen.kl_error <= kl, "{chosen:?}");
        assert_eq!(chosen.kl, own_divergence(&models[0], &options, chosen.precision), "{chosen:?}");
        assert!(chosen.bytes_per_position <= before.min(chosen.default_bytes_per_position));
        before = chosen.bytes_per_position;
        let plan = models[0].memory(&KvSpec::new(chosen.precision, 7)).cache;
        assert_eq!(plan, 7 * chosen.bytes_per_position);
        match kl {
            0.0 => assert_eq!((chosen.precision, chosen.kl), (default, 0.0)),
            1e9 => assert_eq!(chosen.precision, KvPrecision::Int4),
            _ => {}
        }
    }
}

/// The bound is checked on the model's own text, but should hold on other text.
#[test]
fn the_bound_holds_on_text_that_the_model_has_not_seen() {
    let dir = tempfile::tempdir().expect("a directory");
    let (model, tokenizer) = (dir.path().join("model.bin"), dir.path().join("tok512.bin"));
    storyteller().write_f32(&model);
    std::fs::write(&tokenizer, llama2c_vocabulary()).expect("a file");
    for (name, path, tokenizer, text) in [
        ("tiny", tiny(), None, golden().stories.to_owned()),
        ("storyteller", model, Some(tokenizer.as_path()), stories(7, 8, 300)),
    ] {
        let file = ModelFile::open(path).expect("a model");
        let options = LoadOptions::default()
            .with_activations(ActivationPrecision::F32)
            .with_tokenizer(file.tokenizer(tokenizer).expect("a tokenizer"));
        let model = LanguageModel::load_with(&file, &options, &mut |_, _| ()).expect("it loads");
        let chosen = choose_kv(&model, &ChooseKv::default(), &mut quiet()).expect("a choice");
        assert!(chosen.bytes_per_position < chosen.default_bytes_per_position, "{chosen:?}");
        let options = ScoreOptions::new(Split::Stories).with_limit(8).with_kv(chosen.precision);
        let held = compare(&model, &model, &text, &options, &mut quiet()).expect("figures");
        assert!(held.kl <= ChooseKv::KL, "{name}: {} against {chosen:?}", held.kl);
    }
}

/// Each range covers exactly its tokens, and together they cover all.
#[test]
fn figures_by_position_are_those_of_their_tokens() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("model.bin");
    let shape = Llama2cShape { layers: 1, context: 1100, ..Llama2cShape::STORIES_260K };
    Llama2cCheckpoint::random(shape, 4).write_f32(&path);
    let file = ModelFile::open(&path).expect("a model");
    let tokenizer = ModelFile::open(TINY).expect("the bundled model").tokenizer(None).expect("its tokenizer");
    let load = LoadOptions::default().with_tokenizer(tokenizer);
    let model = LanguageModel::load_with(&file, &load, &mut |_, _| ()).expect("it loads");
    let mut rng = Rng::new(1);
    let all = [1100, 300].map(|tokens| (0..tokens).map(|_| rng.below(512) as u32).collect::<Vec<_>>());
    let options = ScoreOptions::new(Split::Window).with_kv(KvPrecision::Int4);
    let compared = compare_ids(&model, &model, &all, &options, &mut quiet()).expect("figures");
    let ranges: Vec<_> =
        compared.positions.iter().map(|range| (range.positions.clone(), range.tokens)).collect();
    assert_eq!(ranges, [(0..256, 512), (256..512, 256 + 43), (512..1024, 512), (1024..2048, 75)]);

    let rows = |ids: &[u32], kv: KvPrecision| {
        let mut rows = Vec::new();
        model
            .logits_with(ids, &KvSpec::new(kv, ids.len()), |_, row| rows.push(row.to_vec()))
            .expect("logits");
        rows
    };
    let nats = |row: &[f32], id: u32| {
        let sum: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
        sum.ln() - f64::from(row[id as usize])
    };
    let mut sums = vec![[0.0; 3]; ranges.len()];
    for ids in &all {
        let inputs = &ids[..ids.len() - 1];
        let both = rows(inputs, KvPrecision::Int4).into_iter().zip(rows(inputs, model.default_kv()));
        for (position, (got, want)) in both.enumerate() {
            let range = ranges.iter().position(|(range, _)| range.contains(&position)).expect("a range");
            let next = ids[position + 1];
            for (sum, add) in
                sums[range].iter_mut().zip([nats(&got, next), nats(&want, next), divergence(&got, &want)])
            {
                *sum += add;
            }
        }
    }
    for (range, sums) in compared.positions.iter().zip(sums) {
        let [nats, base, kl] = sums.map(|sum| sum / range.tokens as f64);
        assert_near!(range.nats, nats, abs = 1e-9);
        assert_near!(range.base_nats, base, abs = 1e-9);
        assert_near!(range.kl, kl, abs = 1e-9);
    }
    let mean = compared.positions.iter().map(|range| range.kl * range.tokens as f64).sum::<f64>()
        / compared.score.tokens as f64;
    assert_near!(compared.kl, mean, abs = 1e-12);
}

#[test]
fn options_and_backends_are_refused() {
    let model = model(1);
    let refused = |options: ChooseKv| choose_kv(&model, &options, &mut quiet()).map(|_| ()).unwrap_err();
    let options = ChooseKv::default();
    for (options, field) in [
        (options.with_kl(-0.1), "kl"),
        (options.with_kl(f64::NAN), "kl"),
        (options.with_kl(f64::INFINITY), "kl"),
        (options.with_tokens(1), "tokens"),
    ] {
        let error = refused(options);
        assert!(matches!(&error, EvalError::Option(option) if option.field() == field), "{error}");
    }
    // The maximum number of tokens: the context length.
    let long = choose_kv(&model, &options.with_tokens(usize::MAX), &mut quiet()).expect("a choice");
    assert_eq!(long.tokens, model.decoder().spec().context);

    let file = ModelFile::open(TINY).expect("the bundled model");
    let load = LoadOptions::default().with_tokenizer(file.tokenizer(None).expect("its tokenizer"));
    let backend = CandleBackend::new(ActivationPrecision::F32);
    let other = LanguageModel::load_on(backend, &file, &load, &mut |_, _| ()).expect("it loads");
    let error = choose_kv(&other, &options, &mut quiet()).unwrap_err();
    assert!(matches!(&error, EvalError::KvChoice { backend } if backend.contains("andle")), "{error}");
    let mixed: KvPrecisions = "f16,f32:0".parse().expect("two precisions");
    let error = Model::logits_with(&other, &[1], &KvSpec::new(mixed, 1), &mut |_, _| ()).unwrap_err();
    assert!(matches!(error, LlmError::Nn(NnError::Unsupported { .. })), "{error}");
}

/// A bounded cache or a window has no loss up to the bound, and the comparison shows its loss beyond.
#[test]
fn a_comparison_shows_what_a_bound_costs() {
    let model = model(1);
    let text = "Once upon a time there was a little girl who liked to play with her dog. ".repeat(12);
    let text = model.tokenizer().expect("its own").encode_prompt(&text).expect("tokens")[..200].to_vec();
    let kv = KvOptions::from(KvPrecision::F32);
    let limited = |positions| kv.with_limit(KvLimit { positions, eviction: Eviction::Oldest });
    let compare = |kv| {
        let options = ScoreOptions::new(Split::Window).with_kv(kv);
        compare_ids(&model, &model, std::slice::from_ref(&text), &options, &mut |_, _| ()).expect("a score")
    };
    for bounded in [&limited as &dyn Fn(usize) -> KvOptions, &|positions| kv.with_window(positions)] {
        assert_eq!(compare(bounded(200)).kl, 0.0);
        let [close, far] = [160, 64].map(|positions| compare(bounded(positions)).kl);
        assert!(0.0 < close && close < far, "{close} and {far}");
    }
}
