//! Models as trait objects: the same results as through the backend's concrete type.

use std::ops::ControlFlow;

use trike_llm::{
    DeviceChoice, GenerateOptions, LanguageModel, LlmError, LoadOptions, Model, ModelFile, PreparedRequest,
    SequenceBatch, Session, open, sampler::SamplerConfig, tokenizer::TokenizerError,
};
use trike_nn::{ActivationPrecision, CpuBackend, KvOptions, KvPrecision, KvSpec, PROMPT_ROWS, StepLogits};
use trike_testkit::{Llama2cCheckpoint, Llama2cShape, Rng, assert_close};

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
    assert!(object.capabilities().can_cache(KvPrecision::F16) && object.device_use().is_none());
    let kv = KvSpec::new(KvPrecision::F16, 64);
    let memory = object.memory(&kv);
    let spec = &file.config().spec;
    assert_eq!(memory.weights, object.weight_bytes() as u64);
    assert_eq!(memory.cache, (2 * spec.layers * 64 * spec.kv_width() * 2) as u64);
}

#[test]
fn options_and_prompts_that_cannot_work_are_errors() {
    let [model, _] = both();
    let context = model.config().spec.context;
    let generate = |options: &GenerateOptions| model.generate("Once", options).map(|_| ());
    for window in [0, context + 1] {
        let error = generate(&GenerateOptions::default().with_kv(KvOptions::default().with_window(window)))
            .expect_err("out of range");
        let LlmError::Option(option) = &error else { panic!("{error:?}") };
        assert_eq!(option.field(), "window");
        assert_eq!(error.to_string(), format!("window is {window}: expected 1 to {context}"));
    }
    let ids = |ids: Vec<u32>| {
        let (mut session, mut go) = (Session::default(), |_: &str| ControlFlow::Continue(()));
        model.generate_in(&mut session, ids, &[], &GenerateOptions::default(), &mut go)
    };
    let long = ids(vec![1; context + 1]);
    assert!(matches!(long, Err(LlmError::PromptTooLong { tokens, .. }) if tokens == context + 1));
    let empty = ids(Vec::new());
    assert!(matches!(empty, Err(LlmError::Tokenizer(TokenizerError::EmptyPrompt))));
}

#[test]
fn rounded_keys_and_values_cost_little() {
    let [model, _] = both();
    let ids: Vec<u32> = (1..40).collect();
    let logits = |kv| {
        let mut all = Vec::new();
        let kv = KvSpec::new(kv, ids.len());
        model.logits_with(&ids, &kv, &mut |_, row| all.extend_from_slice(row)).expect("logits");
        all
    };
    let exact = logits(KvPrecision::F32);
    for (kv, bound) in [(KvPrecision::Int8, 0.1), (KvPrecision::Int8Int4, 0.5), (KvPrecision::Int4, 0.5)] {
        assert_close(&logits(kv), &exact, bound);
        assert_ne!(logits(kv), exact);
    }
    let spec = &model.config().spec;
    // One byte or half a byte per element, and four bytes for the scale of each head.
    let heads = (spec.layers * spec.kv_heads * 64) as u64;
    let [int8, int4] = [spec.head_dim, spec.head_dim.div_ceil(2)].map(|codes| heads * (codes as u64 + 4));
    for (kv, bytes) in
        [(KvPrecision::Int8, 2 * int8), (KvPrecision::Int8Int4, int8 + int4), (KvPrecision::Int4, 2 * int4)]
    {
        assert_eq!(model.memory(&KvSpec::new(kv, 64)).cache, bytes);
    }
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

/// Any subset of a batch's sequences can be stepped, with the same logits, and all are truncated together.
#[test]
fn a_batch_steps_some_or_all_of_its_sequences() {
    let [model, _] = both();
    let mut batch = model.batch(&KvSpec::new(KvPrecision::F32, 8), 2).expect("two sequences");
    let best = |batch: &mut dyn SequenceBatch, of: &[usize], id: u32| -> Vec<(u32, f32)> {
        let steps: Vec<_> = of.iter().map(|&of| (of, std::slice::from_ref(&id))).collect();
        let all = batch.step(&steps, Some(1)).expect("a step");
        let first = |best: &StepLogits| match best {
            StepLogits::Top(top) => top[0],
            // A backend may return all of them.
            StepLogits::All(all) => {
                (0u32..).zip(all.iter().copied()).max_by(|a, b| a.1.total_cmp(&b.1)).expect("logits")
            }
        };
        all.iter().map(first).collect()
    };
    let alone = [0, 1].map(|of| best(&mut *batch, &[of], 1));
    assert_eq!(alone[0], alone[1]);
    batch.truncate(0, 0).expect("from the start");
    batch.clear(1).expect("from the start");
    assert_eq!((batch.count(), batch.len(0), batch.len(1), batch.len(2)), (2, 0, 0, 0));
    assert_eq!(best(&mut *batch, &[1, 0], 1), alone.concat());
    // A copy of the first sequence shares its page.
    batch.clear(1).expect("from the start");
    let pages = batch.pages(0, 1).expect("pages on the host");
    batch.adopt(1, &pages, 1).expect("an empty sequence");
    assert_eq!(best(&mut *batch, &[0], 2), best(&mut *batch, &[1], 2));
    let mut refused = |steps: &[(usize, &[u32])]| match batch.step(steps, Some(1)) {
        Err(LlmError::Option(option)) => option.field(),
        other => panic!("{:?}", other.map(|logits| logits.len())),
    };
    assert_eq!(refused(&[(1, &[1]), (2, &[1])]), "sequences");
    assert_eq!(refused(&[(1, &[1]), (1, &[1])]), "sequences");
}

/// A request prepared without the model generates the same text as its parts, and a model with a shorter context refuses it.
#[test]
fn a_prepared_request_is_continued_like_its_parts() {
    let file = tiny();
    let tokenizer = file.tokenizer(None).expect("its own");
    let ids = tokenizer.encode_prompt("Once upon a time").expect("tokens");
    let options = GenerateOptions::default().with_max_tokens(12);
    let prepare = |file, options| PreparedRequest::new(file, &tokenizer, ids.clone(), options);
    let mut request = prepare(&file, options.clone()).expect("a request");
    assert_eq!(*request.kv(), KvSpec::new(file.default_kv(), ids.len() + 12));
    assert_eq!(request.fit(&file, &LoadOptions::default()).expect("a plan"), None, "there is memory");
    request.set_precision(KvPrecision::Int8.into());
    assert_eq!(*request.kv(), KvSpec::new(KvPrecision::Int8, ids.len() + 12));

    let [model, _] = both();
    let mut go = |_: &str| ControlFlow::Continue(());
    let text = model.run(&mut Session::default(), &request, &mut go).expect("a text");
    let options = options.with_kv(KvPrecision::Int8);
    let same = model.generate_in(&mut Session::default(), ids.clone(), tokenizer.eos(), &options, &mut go);
    let same = same.expect("a text");
    assert_eq!((text.ids, text.prompt_ids, text.finish), (same.ids, same.prompt_ids, same.finish));

    let dir = tempfile::tempdir().expect("a directory");
    let other = dir.path().join("other.bin");
    Llama2cCheckpoint::random(Llama2cShape { context: 1024, ..Llama2cShape::STORIES_260K }, 1)
        .write_f32(&other);
    let other = ModelFile::open(other).expect("a model");
    let long = prepare(&other, GenerateOptions::default()).expect("a request");
    let refused = model.run(&mut Session::default(), &long, &mut go).expect_err("too long");
    assert!(matches!(&refused, LlmError::Option(option) if option.field() == "context"), "{refused}");
    let wide = prepare(&other, GenerateOptions::default().with_context(1025)).expect_err("too long");
    assert!(matches!(&wide, LlmError::Option(option) if option.field() == "context"), "{wide}");
}

/// The invariant of servers: a token's logits have the same bits alone, beside others, and however its prompt was split into parts
/// of [`PROMPT_ROWS`] or more, for ternary weights in every activation precision and for dense weights.
#[test]
fn logits_have_the_same_bits_beside_others_and_in_parts() {
    let dir = tempfile::tempdir().expect("a directory");
    let dense = dir.path().join("dense.bin");
    std::fs::write(&dense, trike_testkit::storyteller().to_f32_bytes()).expect("a file");
    let mut models: Vec<(String, LanguageModel<CpuBackend>)> = Vec::new();
    use ActivationPrecision::{F32, Int8PerGroup, Int8PerToken, Int16};
    for activations in [F32, Int16, Int8PerToken, Int8PerGroup(trike_trit::GroupSize::G64)] {
        let options = LoadOptions::default().with_activations(activations);
        let model = LanguageModel::load_with(&tiny(), &options, &mut |_, _| ()).expect("it loads");
        models.push((format!("{activations:?}"), model));
    }
    let vocabulary = dir.path().join("tok512.bin");
    std::fs::write(&vocabulary, trike_testkit::llama2c_vocabulary()).expect("a file");
    let file = ModelFile::open(&dense).expect("a model");
    let options =
        LoadOptions::default().with_tokenizer(file.tokenizer(Some(&vocabulary)).expect("a vocabulary"));
    let model = LanguageModel::load_with(&file, &options, &mut |_, _| ()).expect("it loads");
    models.push(("dense".to_owned(), model));
    for (name, model) in &models {
        let vocab = model.config().spec.vocab;
        let mut rng = Rng::new(4);
        let mut ids = |n: usize| -> Vec<u32> { (0..n).map(|_| 3 + rng.below(vocab - 3) as u32).collect() };
        let (prompt, token, others) = (ids(120), ids(1), ids(150));
        let run = |parts: &[usize], beside: usize| {
            let mut batch =
                model.batch(&KvSpec::new(model.default_kv(), 200), 1 + beside).expect("sequences");
            let mut start = 0;
            let mut last = None;
            for &end in parts.iter().chain([&prompt.len()]) {
                let mut steps = vec![(0, &prompt[start..end])];
                // Others read a prompt, then one token per step.
                let count = if start == 0 { 40 } else { 1 };
                steps.extend((1..=beside).map(|of| (of, &others[start..start + count])));
                last = batch.step(&steps, None).expect("a step").into_iter().next();
                start = end;
            }
            let mut steps = vec![(0, &token[..])];
            steps.extend((1..=beside).map(|of| (of, &others[..1])));
            let next = batch.step(&steps, None).expect("a step").into_iter().next();
            [last, next].map(|logits| match logits {
                Some(StepLogits::All(logits)) => {
                    logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>()
                }
                other => panic!("{other:?}"),
            })
        };
        let alone = run(&[], 0);
        for (parts, beside) in [(vec![], 1), (vec![], 15), (vec![PROMPT_ROWS, 64, 100], 0), (vec![30, 39], 3)]
        {
            assert!(run(&parts, beside) == alone, "{name}: parts {parts:?}, beside {beside}");
        }
    }
}
