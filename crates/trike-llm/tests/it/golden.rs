//! Real models compared with the output of other implementations.

use crate::common;
use std::path::Path;

use trike_llm::{GenerateOptions, HeadPrecision, LanguageModel, LoadOptions, ModelFile};
use trike_nn::{ActivationPrecision, KvPrecision, KvSpec};
use trike_testkit::{assert_all_near, assert_close, golden, npz, shared, tiny};

fn load(model: &str, tokenizer: Option<&str>, head: HeadPrecision) -> Option<LanguageModel> {
    open(&shared(model)?, tokenizer, head)
}

fn open(model: &Path, tokenizer: Option<&str>, head: HeadPrecision) -> Option<LanguageModel> {
    let file = ModelFile::open(model).expect("a model");
    let tokenizer = match tokenizer {
        Some(name) => Some(file.tokenizer(Some(&shared(name)?)).expect("a tokenizer")),
        None => None,
    };
    let options = LoadOptions::default()
        .with_tokenizer(tokenizer)
        .with_cpu(trike_cpu::Cpu::new(1).expect("a thread"))
        .with_activations(ActivationPrecision::F32)
        .with_head(head);
    Some(LanguageModel::load_with(&file, &options, &mut |_, _| ()).expect("it loads"))
}

fn logits(model: &LanguageModel, ids: &[u32]) -> Vec<f32> {
    let mut all = Vec::new();
    model
        .logits_with(ids, &KvSpec::new(KvPrecision::F32, ids.len()), |_, row| all.extend_from_slice(row))
        .expect("logits");
    all
}

#[test]
fn stories260k_logits_are_numpys() {
    let Some(model) = load("data/models/stories260K.bin", None, HeadPrecision::Auto) else { return };
    let Some(path) = shared("data/golden/golden_stories260K_numpy.npz") else { return };
    let golden = npz(&path);
    let (ids, want) = (golden["ids"].to_ids(), golden["logits"].to_f32());
    assert_all_near!(&logits(&model, &ids), &want, abs = 2e-4);
}

#[test]
fn stories260k_tells_the_story_that_llama2c_tells() {
    for tokenizer in ["data/tokenizers/tok512.bin", "data/tokenizers/tok512.model"] {
        let Some(model) = load("data/models/stories260K.bin", Some(tokenizer), HeadPrecision::Auto) else {
            return;
        };
        let Some(path) = shared("data/golden/stories260K_greedy_200.txt") else { return };
        let want = std::fs::read_to_string(path).expect("text");
        let options = GenerateOptions::default().with_max_tokens(200);
        let mut streamed = String::new();
        let told = model.generate_with("", &options, |piece| {
            streamed.push_str(piece);
            std::ops::ControlFlow::Continue(())
        });
        assert_eq!(streamed, want, "{tokenizer}");
        assert_eq!(told.expect("a story").text, want);
    }
}

/// The bundled model. Its story is the greedy one by NumPy's logits, too.
#[test]
fn the_bundled_model_is_numpys() {
    let (path, story) = (tiny(), golden().text);
    let exact = open(&path, None, HeadPrecision::AsStored).expect("it has a tokenizer");
    let prompt = "Once upon a time";
    let told = exact
        .generate(prompt, &GenerateOptions::default().with_max_tokens(200).with_kv(KvPrecision::F32))
        .expect("a story");
    assert_eq!(format!("{prompt}{}", told.text), story);

    let ids = [told.prompt_ids.as_slice(), &told.ids].concat();
    let Some(want) = common::numpy(&path, &ids) else { return };
    assert_close(&logits(&exact, &ids), &want, 1e-3);
    let last_of_prompt = told.prompt_ids.len() - 1;
    for (row, id) in want.chunks_exact(want.len() / ids.len()).skip(last_of_prompt).zip(&told.ids) {
        let best = (0..).zip(row).max_by(|a, b| a.1.total_cmp(b.1)).map(|(best, _)| best);
        assert_eq!(best, Some(*id));
    }
}

/// The same without NumPy: stored numbers.
#[test]
fn tiny_is_numpys_too() {
    let golden = golden();
    let exact = open(&tiny(), None, HeadPrecision::AsStored).expect("it has a tokenizer");
    assert_close(&logits(&exact, &golden.ids[..golden.rows]), &golden.logits, 1e-3);

    let prompt = "Once upon a time";
    let prompt_ids = exact.tokenizer().expect("its own").encode_prompt(prompt).expect("ids");
    let options = GenerateOptions::default().with_max_tokens(golden.ids.len() - prompt_ids.len());
    let told = exact.generate(prompt, &options).expect("a story");
    assert_eq!([prompt_ids, told.ids].concat(), golden.ids);
    assert_eq!(format!("{prompt}{}", told.text), golden.text);
}
