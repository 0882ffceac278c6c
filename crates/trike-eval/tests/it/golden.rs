//! Scores of real models compared with the output of other implementations.

use std::path::Path;

use trike_eval::{Score, ScoreOptions};
use trike_llm::{HeadPrecision, LanguageModel, LoadOptions, Model, ModelFile, Split};
use trike_nn::{ActivationPrecision, KvPrecision};
use trike_testkit::{assert_near, golden, shared, tiny};

/// A model with the tokenizer of a file, in f32.
fn load(model: &str, tokenizer: &str) -> Option<LanguageModel> {
    open(&shared(model)?, Some(&shared(tokenizer)?), HeadPrecision::Auto)
}

fn open(model: &Path, tokenizer: Option<&Path>, head: HeadPrecision) -> Option<LanguageModel> {
    let file = ModelFile::open(model).expect("a model");
    let options = LoadOptions::default()
        .with_tokenizer(file.tokenizer(tokenizer).expect("a tokenizer"))
        .with_cpu(trike_cpu::Cpu::new(1).expect("a thread"))
        .with_activations(ActivationPrecision::F32)
        .with_head(head);
    Some(LanguageModel::load_with(&file, &options, &mut |_, _| ()).expect("it loads"))
}

fn score(model: &dyn Model, text: &str, split: Split) -> Score {
    let options = ScoreOptions::new(split).with_kv(KvPrecision::F32);
    trike_eval::score(model, text, &options, &mut |_, _| ()).expect("a score")
}

#[test]
fn dense_perplexities_are_numpys() {
    let models = [
        ("data/models/stories260K.bin", "data/tokenizers/tok512.bin", 3.548, 4.591),
        ("data/models/stories3M-q80.bin", "data/tokenizers/tok4096.bin", 3.740, 6.002),
    ];
    for (path, tokenizer, sample, eval) in models {
        let Some(model) = load(path, tokenizer) else { return };
        for (corpus, want) in [("tinystories_sample", sample), ("tinystories_eval", eval)] {
            let Some(text) = shared(&format!("data/corpora/{corpus}.txt")) else { return };
            let text = std::fs::read_to_string(text).expect("text");
            let got = score(&model, &text, Split::Stories).perplexity;
            assert_near!(got, want, rel = 1e-3, "{path} on {corpus}");
        }
    }
}

#[test]
fn the_nll_golden() {
    let Some(model) = load("data/models/stories260K.bin", "data/tokenizers/tok512.bin") else { return };
    let sentence = "One day, a clever fox found a shiny key under the old oak tree.";
    let got = score(&model, sentence, Split::Lines);
    let nll = got.nats * got.tokens as f64;
    assert_near!(nll, 54.404121, rel = 1e-4, "over {} tokens", got.tokens);
}

/// The bundled model, compared with output of NumPy.
#[test]
fn the_score_of_tiny_is_numpys() {
    let golden = golden();
    let exact = open(&tiny(), None, HeadPrecision::AsStored).expect("it has a tokenizer");
    let got = score(&exact, golden.stories, Split::Stories);
    assert_near!(got.nats, golden.nats, rel = 1e-4, "{got:?}");
    assert_near!(got.bits_per_byte, golden.bits_per_byte(), rel = 1e-4, "{got:?}");
    assert_eq!((got.tokens as u64, got.sequences), (golden.tokens, 4));
}
