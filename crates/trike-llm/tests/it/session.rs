//! Sessions, grammars, log-probabilities and embeddings, on the bundled model.

use std::ops::ControlFlow;

use trike_core::Layout;
use trike_cpu::{Cpu, Isa};
use trike_llm::{
    FinishReason, GenerateOptions, HeadPrecision, LanguageModel, LlmError, LoadOptions, Model, ModelFile,
    Pooling, Session, constraint::Grammar, sampler::SamplerConfig,
};
use trike_nn::{
    ActivationPrecision, Eviction, KeySelector, KvLimit, KvOptions, KvPrecision, KvSpec, NnError, PromptKeys,
    Tensor, WeightName,
};
use trike_testkit::{assert_all_near, assert_near};
use trike_trit::{Edit, Trit};

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny");

fn model() -> LanguageModel {
    LanguageModel::load(TINY).expect("it loads")
}

fn ids(model: &LanguageModel, text: &str) -> Vec<u32> {
    model.tokenizer().expect("it has one").encode_prompt(text).expect("tokens")
}

/// The text after `prompt`, and the number of reused tokens.
fn continued(
    model: &LanguageModel,
    session: &mut Session,
    prompt: &[u32],
    options: &GenerateOptions,
) -> (Vec<u32>, usize) {
    let go = |_: &str| ControlFlow::Continue(());
    let generation = model.generate_in(session, prompt.to_vec(), &[], options, go).expect("text");
    (generation.ids, generation.reused)
}

#[test]
fn a_session_continues_as_if_everything_were_read_again() {
    let model = model();
    let first = ids(&model, "Once upon a time there was a little dog.");
    for kv in KvPrecision::ALL {
        let options = GenerateOptions::default().with_max_tokens(8).with_kv(kv);
        let fresh = |prompt: &[u32]| continued(&model, &mut Session::default(), prompt, &options).0;
        let mut session = Session::default();
        let (more, reused) = continued(&model, &mut session, &first, &options);
        assert_eq!((&more, reused), (&fresh(&first), 0));
        assert_eq!(session.ids().len(), first.len() + 7, "the last token was not read");
        // A longer text, a shorter one, one that diverges, and an unrelated one.
        let longer = [&first[..], &more, &ids(&model, " The end")[1..]].concat();
        assert_eq!(continued(&model, &mut session, &longer, &options), (fresh(&longer), first.len() + 7));
        assert_eq!(continued(&model, &mut session, &first, &options), (fresh(&first), first.len() - 1));
        let branch = [&first[..5], &ids(&model, "cat")[1..]].concat();
        assert_eq!(continued(&model, &mut session, &branch, &options), (fresh(&branch), 5));
        let other = &first[1..];
        assert_eq!(continued(&model, &mut session, other, &options), (fresh(other), 0));
        // Another precision cannot be reused.
        let precision = if kv == KvPrecision::F32 { KvPrecision::F16 } else { KvPrecision::F32 };
        let (_, reused) = continued(&model, &mut session, other, &options.clone().with_kv(precision));
        assert_eq!(reused, 0);
    }
    // The session of another model of the same type is not reused.
    let mut session = Session::default();
    let options = GenerateOptions::default().with_max_tokens(2);
    continued(&model, &mut session, &first, &options);
    assert_eq!(continued(&self::model(), &mut session, &first, &options).1, 0);
    // A rolling cache is not kept.
    let rolling = options.with_kv(KvOptions::default().with_window(16));
    continued(&model, &mut session, &first, &rolling);
    assert!(session.ids().is_empty());
}

/// Besides the most probable tokens, the log-probabilities after reused keys and values equal those after a fresh prefill, and
/// differ clearly from those after a wrong prompt.
#[test]
fn a_session_says_what_a_fresh_start_says() {
    let file = ModelFile::open(TINY).expect("a model");
    let f32 = LoadOptions::default().with_activations(ActivationPrecision::F32);
    let model = LanguageModel::load_with(&file, &f32, &mut |_, _| ()).expect("it loads");
    let first = ids(&model, "Once upon a time there was a little dog.");
    let longer = [&first[..], &ids(&model, " He was sad and went")[1..]].concat();
    for kv in KvPrecision::ALL {
        let options = GenerateOptions::default().with_max_tokens(8).with_kv(kv).with_logprobs(5);
        let said = |session: &mut Session, prompt: &[u32]| {
            let go = |_: &str| ControlFlow::Continue(());
            let text = model.generate_in(session, prompt.to_vec(), &[], &options, go).expect("text");
            let all: Vec<f32> =
                text.logprobs.iter().flat_map(|token| token.top.iter().map(|top| top.1)).collect();
            (all, text.reused)
        };
        let mut session = Session::default();
        let (other, _) = said(&mut session, &first);
        let (reused, count) = said(&mut session, &longer);
        let (fresh, none) = said(&mut Session::default(), &longer);
        assert_eq!((count, none, reused.len()), (first.len(), 0, 40), "{kv:?}");
        // Steps of other lengths add in another order, and int4 codes round a difference in the last bit up to a whole step.
        let bound = if kv == KvPrecision::F32 { 1e-3 } else { 5e-2 };
        assert_all_near!(&reused, &fresh, abs = bound, "{kv:?}");
        let apart = other.iter().zip(&fresh).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart > 0.5, "{kv:?}: {apart}");
    }
}

#[test]
fn a_saved_session_is_the_same_and_a_damaged_one_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("prompt");
    let model = model();
    let prompt = ids(&model, "Once upon a time there was a little dog.");
    for kv in KvPrecision::ALL {
        let options = GenerateOptions::default().with_max_tokens(8).with_kv(kv);
        let mut session = Session::default();
        let (text, _) = continued(&model, &mut session, &prompt, &options);
        model.save_session(&session, &path).expect("it is written");
        // A session can be loaded into the same model in another process.
        let other = self::model();
        let mut loaded = other.load_session(&path, &options).expect("it is read").expect("the same model");
        assert_eq!(loaded.ids(), session.ids());
        assert_eq!(continued(&other, &mut loaded, &prompt, &options), (text, prompt.len() - 1));
        let direct =
            Model::load_session(&model, &path, &options).expect("it is read").expect("the same model");
        assert_eq!(direct.ids(), session.ids());
    }
    let last = *KvPrecision::ALL.last().expect("some");
    let options = GenerateOptions::default().with_kv(last);
    let bytes = std::fs::read(&path).expect("the file");
    for at in (0..bytes.len()).step_by(97) {
        let mut cut = bytes.clone();
        cut.truncate(at);
        std::fs::write(&path, cut).expect("it is written");
        assert!(model.load_session(&path, &options).is_err(), "cut at {at}");
        let mut bad = bytes.clone();
        bad[at] ^= 0x5a;
        std::fs::write(&path, bad).expect("it is written");
        // A changed header may look like the session of another model.
        assert!(!matches!(model.load_session(&path, &options), Ok(Ok(_))), "changed at {at}");
    }
    std::fs::write(&path, "mine").expect("it is written");
    let mut session = Session::default();
    continued(&model, &mut session, &prompt, &GenerateOptions::default().with_max_tokens(1));
    let error = model.save_session(&session, &path).expect_err("not ours");
    assert!(matches!(error, LlmError::SessionFile { .. }), "{error}");
    assert_eq!(std::fs::read(&path).expect("the file"), b"mine");
}

/// Every setting that affects the keys and values is named, and a session with another value is not used.
#[test]
fn a_saved_session_of_anything_else_is_not_used() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("prompt");
    let model = model();
    let prompt = ids(&model, &"Once upon a time there was a little dog. ".repeat(12));
    let options = GenerateOptions::default().with_max_tokens(2);
    let save = |model: &LanguageModel, options: &GenerateOptions| {
        let mut session = Session::default();
        continued(model, &mut session, &prompt, options);
        model.save_session(&session, &path).expect("it is written");
    };
    let said = |model: &LanguageModel, options: &GenerateOptions| {
        model.load_session(&path, options).expect("it is read").map_err(|difference| difference.to_string())
    };
    save(&model, &options);
    assert_eq!(said(&model, &options).expect("the same").ids().len(), prompt.len() + 1);

    // Options of the text.
    let sampled =
        options.clone().with_kv(options.kv.with_prompt_keys(PromptKeys::sampled(0.001).expect("a share")));
    let selected = options.clone().with_kv(options.kv.with_keys(KeySelector::signs(8).expect("a selector")));
    let wide = options.clone().with_kv(KvPrecision::F32);
    for (other, fact) in [
        (&sampled, "the selection of keys for prompts"),
        (&selected, "the selection of keys was"),
        (&wide, "the precision of keys and values"),
    ] {
        let difference = said(&model, other).expect_err(fact);
        assert!(difference.contains(fact), "{difference}");
        save(&model, other);
        assert!(said(&model, &options).expect_err(fact).contains(fact));
        save(&model, &options);
    }

    // Options of the model.
    let file = ModelFile::open(TINY).expect("a model");
    let load = |file: &ModelFile, options: LoadOptions| {
        LanguageModel::load_with(file, &options, &mut |_, _| ()).expect("it loads")
    };
    let f32 = LoadOptions::default().with_activations(ActivationPrecision::F32);
    let head = LoadOptions::default().with_head(HeadPrecision::AsStored);
    let layout = LoadOptions::default().with_layout(Layout::Base3);
    let cpu = LoadOptions::default()
        .with_cpu(Cpu::with_isa(Isa::by_name("scalar").expect("scalar"), 1).expect("scalar"));
    for (other, fact) in [
        (f32, "the precision of activations"),
        (head, "the precision of the head"),
        (layout, "the layout of weights"),
        (cpu, "what computes"),
    ] {
        let difference = said(&load(&file, other), &options).expect_err(fact);
        assert!(difference.contains(fact), "{difference}");
    }

    // Weights and configuration, with the size and modification time of the first.
    let copy = dir.path().join("copy");
    std::fs::create_dir(&copy).expect("a directory");
    for entry in std::fs::read_dir(TINY).expect("a model") {
        let from = entry.expect("a file").path();
        std::fs::copy(&from, copy.join(from.file_name().expect("a name"))).expect("a copy");
    }
    let open = || load(&ModelFile::open(&copy).expect("a model"), LoadOptions::default());
    assert!(said(&open(), &options).is_ok(), "a copy computes the same");
    let config = copy.join("config.json");
    let text = std::fs::read_to_string(&config).expect("text");
    let changed = text.replacen("10000", "20000", 1);
    assert_ne!(changed, text);
    std::fs::write(&config, changed).expect("it is written");
    assert!(said(&open(), &options).expect_err("another base").contains("the model"));
}

/// The session of a model edited in memory is not valid for the stored model, and vice versa.
#[test]
fn edits_in_memory_are_part_of_a_session() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("prompt");
    let (clean, mut edited) = (model(), model());
    let prompt = ids(&clean, "Once upon a time there was a little dog.");
    let options = GenerateOptions::default().with_max_tokens(2);
    let mut session = Session::default();
    continued(&edited, &mut session, &prompt, &options);
    let name = WeightName::Query(0);
    let source = ModelFile::open(TINY).expect("a model");
    edited
        .edit_layer::<LlmError>(
            name,
            || match source.load(name)? {
                Tensor::Ternary(tensor) => Ok(tensor),
                _ => panic!("a ternary layer"),
            },
            |tensor| {
                let trit =
                    if tensor.get(0, 0, 0).expect("it is there") == Trit::P { Trit::N } else { Trit::P };
                let old = tensor.set(0, 0, 0, trit).map_err(NnError::from)?;
                Ok(vec![Edit { plane: 0, row: 0, col: 0, trit: old }])
            },
        )
        .expect("it is edited");
    // The same in memory, where the layout may be edited in place.
    assert_eq!(continued(&edited, &mut session, &prompt, &options).1, 0);
    edited.save_session(&session, &path).expect("it is written");
    let difference = clean.load_session(&path, &options).expect("it is read").expect_err("edited");
    assert_eq!(difference.fact, "the digest of layers changed in memory");
    assert!(edited.load_session(&path, &options).expect("it is read").is_ok());
}

/// In memory too, tokens decoded with selected keys are not reused by a text that attends to all.
#[test]
fn a_session_in_memory_is_not_used_with_other_keys() {
    let model = model();
    let prompt = ids(&model, &"Once upon a time there was a little dog. ".repeat(12));
    let options = GenerateOptions::default().with_max_tokens(12).with_kv(KvPrecision::F32);
    let sampled =
        options.clone().with_kv(options.kv.with_prompt_keys(PromptKeys::sampled(0.001).expect("a share")));
    let selected = options.clone().with_kv(options.kv.with_keys(KeySelector::signs(8).expect("a selector")));
    let mut session = Session::default();
    continued(&model, &mut session, &prompt, &sampled);
    assert_eq!(continued(&model, &mut session, &prompt, &options).1, 0);
    // In a text continued with selected keys, the prompt is reusable, but its continuation is not.
    let (more, _) = continued(&model, &mut session, &prompt, &selected);
    let whole = [&prompt[..], &more].concat();
    let fresh = continued(&model, &mut Session::default(), &whole, &options).0;
    assert_eq!(continued(&model, &mut session, &whole, &options), (fresh, prompt.len() - 1));
}

#[test]
fn a_grammar_decides_what_the_text_is() {
    let model = model();
    let seeds = 0..10;
    let sampler = SamplerConfig::default().with_temperature(1.5);
    for seed in seeds {
        let options = GenerateOptions::default()
            .with_sampler(sampler.clone().with_seed(seed))
            .with_grammar(Grammar::Regex("(yes|no), (Tom|Lily)".to_owned()));
        let text = model.generate("Once", &options).expect("text");
        assert!(
            ["yes, Tom", "yes, Lily", "no, Tom", "no, Lily"].contains(&text.text.as_str()),
            "{}",
            text.text
        );
        assert_eq!(text.finish, FinishReason::Stop);
    }
    let wrong = GenerateOptions::default().with_grammar(Grammar::JsonSchema("[".to_owned()));
    let error = model.generate("Once", &wrong).expect_err("not JSON");
    assert!(matches!(error, LlmError::Constraint(_)), "{error}");
}

#[test]
fn log_probabilities_are_those_of_the_logits() {
    // Rounded to int8, a difference in the last bit of an activation may become one of a whole step.
    let file = ModelFile::open(TINY).expect("a model");
    let options = LoadOptions::default().with_activations(ActivationPrecision::F32);
    let model = LanguageModel::load_with(&file, &options, &mut |_, _| ()).expect("it loads");
    let prompt = ids(&model, "Once upon a time");
    // Sampler and grammar change the chosen tokens, not the model's probabilities.
    let options = GenerateOptions::default()
        .with_max_tokens(4)
        .with_kv(KvPrecision::F32)
        .with_sampler(SamplerConfig::default().with_temperature(2.0).with_seed(3))
        .with_grammar(Grammar::Regex("[a-z ]+".to_owned()))
        .with_logprobs(3);
    let go = |_: &str| ControlFlow::Continue(());
    let text = model.generate_ids(prompt.clone(), &[], &options, go).expect("text");
    assert_eq!(text.logprobs.len(), text.ids.len());
    let all = [prompt.clone(), text.ids.clone()].concat();
    let mut rows = Vec::new();
    model
        .logits_with(&all, &KvSpec::new(KvPrecision::F32, all.len()), |_, row| rows.push(row.to_vec()))
        .expect("logits");
    for (token, (said, id)) in (prompt.len() - 1..).zip(text.logprobs.iter().zip(&text.ids)) {
        let sum: f64 = rows[token].iter().map(|&logit| f64::from(logit).exp()).sum();
        let logprob = |id: u32| f64::from(rows[token][id as usize]) - sum.ln();
        assert_eq!((said.id, said.top.len()), (*id, 3));
        for &(id, value) in said.top.iter().chain([&(said.id, said.logprob)]) {
            assert_near!(f64::from(value), logprob(id), abs = 1e-3, "{id}");
        }
        assert!(said.top.windows(2).all(|pair| pair[0].1 >= pair[1].1), "{said:?}");
        let best = (0..rows[token].len() as u32).max_by(|&a, &b| logprob(a).total_cmp(&logprob(b)));
        assert_eq!(said.top.first().map(|&(id, _)| id), best);
    }
}

#[test]
fn embeddings_are_directions_that_mean_something() {
    let model = model();
    let embed = |text: &str, pooling| model.embed(&ids(&model, text), pooling).expect("an embedding");
    for pooling in [Pooling::Mean, Pooling::Last] {
        let [dog, hound, number] =
            ["The dog ran to the park.", "The dog ran home.", "7 8 9 1 2 3"].map(|text| embed(text, pooling));
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        assert_eq!(dog.len(), model.config().spec.hidden);
        assert_near!(f64::from(dot(&dog, &dog)), 1.0, abs = 1e-5);
        assert!(dot(&dog, &hound) > dot(&dog, &number), "{pooling:?}");
    }
    // For a single token, both poolings are the same.
    let one = ids(&model, "")[..1].to_vec();
    assert_eq!(
        model.embed(&one, Pooling::Mean).expect("one"),
        model.embed(&one, Pooling::Last).expect("one")
    );
    assert!(matches!(model.embed(&[], Pooling::Mean), Err(LlmError::Tokenizer(_))));
    let long = vec![5; 513];
    assert!(matches!(model.embed(&long, Pooling::Mean), Err(LlmError::PromptTooLong { .. })));
}

/// The logits of the last tokens do not depend on the session's content, but on the selection of keys.
#[test]
fn logits_after_a_prompt_are_those_of_a_fresh_start() {
    let model = model();
    let text = "Once upon a time there was a little girl who liked to play with her dog. ".repeat(12);
    let all = ids(&model, &text);
    let (all, end) = (&all[..200], 190);
    let rows = |session: &mut Session, ids: &[u32], prompt: usize, keys: KeySelector| {
        let mut rows = Vec::new();
        let on_row = |i: usize, row: &[f32]| rows.push((i, row.to_vec()));
        let kv = KvSpec::new(KvPrecision::F32, ids.len()).with_keys(keys);
        model.logits_in(session, ids, prompt, &kv, on_row).expect("logits");
        rows
    };
    let fresh = rows(&mut Session::default(), all, end, KeySelector::All);
    let mut whole = Vec::new();
    model
        .logits_with(all, &KvSpec::new(KvPrecision::F32, all.len()), |_, row| whole.push(row.to_vec()))
        .expect("logits");
    assert_eq!(fresh.iter().map(|(i, _)| *i).collect::<Vec<_>>(), (190..200).collect::<Vec<_>>());
    for (i, row) in &fresh {
        assert_all_near!(row, &whole[*i], abs = 2e-2, "token {i}");
    }
    // Another ending, then selected keys after the same prompt, then all keys again.
    let signs = KeySelector::signs(8).expect("a selector");
    let mut session = Session::default();
    let other = [&all[..100], &all[..60]].concat();
    assert_eq!(rows(&mut session, &other, 150, KeySelector::All).len(), 10);
    assert_eq!(session.ids(), other);
    let again = |got: Vec<(usize, Vec<f32>)>, want: &[(usize, Vec<f32>)]| {
        assert_eq!(got.len(), want.len());
        for ((i, got), (at, want)) in got.iter().zip(want) {
            assert_eq!(i, at);
            assert_all_near!(got, want, abs = 2e-2, "token {i}");
        }
    };
    again(rows(&mut session, all, end, KeySelector::All), &fresh);
    let selected = rows(&mut session, all, end, signs);
    assert_ne!(selected, fresh);
    again(rows(&mut Session::default(), all, end, signs), &selected);
    again(rows(&mut session, all, end, KeySelector::All), &fresh);
    // No rows to pass on, and too many.
    assert!(rows(&mut session, all, 200, signs).is_empty());
    let long = vec![1; 513];
    let kv = KvSpec::new(KvPrecision::F32, 513).with_keys(signs);
    let error = model.logits_in(&mut session, &long, 500, &kv, |_, _| ());
    assert!(matches!(error, Err(LlmError::PromptTooLong { tokens: 513, context: 512 })), "{error:?}");
}

/// A limit that the text does not reach has no effect; beyond it, generation continues to the end of the context, and evictions are
/// counted. A session with evicted positions is prefilled again.
#[test]
fn a_limited_cache_forgets_and_goes_on() {
    let model = model();
    let prompt = ids(&model, &"Once upon a time there was a dog. ".repeat(12));
    let options = GenerateOptions::default().with_kv(KvPrecision::F32);
    let generate = |session: &mut Session, prompt: &[u32], options: &GenerateOptions| {
        model
            .generate_in(session, prompt.to_vec(), &[], options, |_| ControlFlow::Continue(()))
            .expect("a text")
    };
    let limited = |positions| options.kv.with_limit(KvLimit { positions, eviction: Eviction::Unattended });
    let few = options.clone().with_max_tokens(20);
    let fresh = generate(&mut Session::default(), &prompt, &few);
    let wide = generate(&mut Session::default(), &prompt, &few.clone().with_kv(limited(400)));
    assert_eq!((&wide.ids, wide.evicted), (&fresh.ids, 0));
    // 64 positions, and 16 fewer at each eviction.
    let narrow = few.with_kv(limited(64));
    let mut session = Session::default();
    let forgot = generate(&mut session, &prompt, &narrow);
    let read = prompt.len() + 19;
    assert_eq!(forgot.evicted, (read - 64).div_ceil(16) * 16);
    assert_eq!(session.ids().len(), read);
    let dir = tempfile::tempdir().expect("a directory");
    model.save_session(&session, &dir.path().join("prompt")).expect("nothing to write");
    assert!(!dir.path().join("prompt").exists());
    let again = generate(&mut session, &prompt, &narrow);
    assert_eq!((again.reused, &again.ids), (0, &forgot.ids));
    // To the end of the model's context, which is 512.
    let whole = generate(&mut Session::default(), &prompt, &options.clone().with_kv(limited(64)));
    assert_eq!((whole.finish, whole.prompt_ids.len() + whole.ids.len()), (FinishReason::Context, 513));
}
