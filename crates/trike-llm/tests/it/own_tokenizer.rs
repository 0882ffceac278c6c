//! A model with tokenizer files in its directory.

use std::{fs, path::Path};

use serde_json::{Value, json};
use trike_format::Gguf;
use trike_llm::{
    ConvertOptions, EmbeddingStorage, GenerateOptions, LanguageModel, LoadOptions, ModelFile, Target, convert,
};
use trike_testkit::byte_level_tokenizer;

use crate::common::{SHAPE, Shape, random_llama};

/// A model with this number of rows, BOS and EOS in `config.json`, and a tokenizer of the returned number of tokens.
fn model(dir: &Path, rows: impl Fn(usize) -> usize, change: impl Fn(&mut Value)) -> usize {
    let mut tokenizer: Value = serde_json::from_str(&byte_level_tokenizer()).unwrap();
    let tokens = tokenizer["model"]["vocab"].as_object().unwrap().len();
    random_llama(
        dir,
        Shape {
            vocab: rows(tokens),
            hidden: 256,
            inner: 256,
            heads: 2,
            kv_heads: 1,
            layers: 1,
            tied: true,
            ..SHAPE
        },
        1,
        true,
    );
    let path = dir.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    (config["bos_token_id"], config["eos_token_id"]) = (json!(0), json!(1));
    fs::write(path, config.to_string()).unwrap();
    change(&mut tokenizer);
    fs::write(dir.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    tokens
}

#[test]
fn rows_without_a_token_and_tokens_without_a_row_are_accepted() {
    let dir = tempfile::tempdir().unwrap();
    for (name, rows) in [("more", 2_usize), ("fewer", 0)] {
        let path = dir.path().join(name);
        let rows = |tokens: usize| if rows == 0 { tokens - 3 } else { tokens * 2 };
        let tokens = model(&path, rows, |_| {});
        let file = ModelFile::open(&path).unwrap();
        let tokenizer = file.tokenizer(None).unwrap();
        assert_eq!(tokenizer.vocab_size(), tokens);
        let model = LanguageModel::load_with(&file, &LoadOptions::default(), &mut |_, _| ()).unwrap();
        let options = GenerateOptions::default().with_max_tokens(8);
        let answer = model.generate("the sea", &options).unwrap();
        assert!(answer.ids.iter().all(|&id| (id as usize) < tokens.min(rows(tokens))), "{name}");
        // A foreign tokenizer is still refused.
        let foreign = dir.path().join("foreign.json");
        fs::copy(path.join("tokenizer.json"), &foreign).unwrap();
        assert!(file.tokenizer(Some(&foreign)).is_err(), "{name}");
        if name == "fewer" {
            let last = model.generate_ids(vec![tokens as u32 - 1], &[], &options, &mut |_: &str| {
                std::ops::ControlFlow::Continue(())
            });
            assert!(last.unwrap_err().to_string().contains("outside the vocabulary"));
        }
    }
}

#[test]
fn without_a_post_processor_there_is_no_bos_in_any_format() {
    let dir = tempfile::tempdir().unwrap();
    let template = json!({"type": "TemplateProcessing", "pair": [],
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<|end|>", "type_id": 0}}],
        "special_tokens": {"<|end|>": {"id": "<|end|>", "ids": [1], "tokens": ["<|end|>"]}}});
    for (name, processor, adds) in [("none", Value::Null, [false, false]), ("end", template, [false, true])] {
        let path = dir.path().join(name);
        model(&path, |tokens| tokens, |json| json["post_processor"] = processor.clone());
        // Next to a `tokenizer.json` this key has no effect, as in transformers.
        fs::write(path.join("tokenizer_config.json"), r#"{"add_bos_token": true}"#).unwrap();
        let file = ModelFile::open(&path).unwrap();
        let tokenizer = file.tokenizer(None).unwrap();
        let ids = tokenizer.encode_prompt("the sea").unwrap();
        assert_eq!([ids[0] == 0, ids.last() == Some(&1)], adds);
        let gguf = dir.path().join(name).with_extension("gguf");
        let options = ConvertOptions::new(Target::Tq2_0).with_embeddings(EmbeddingStorage::F16);
        convert(&file, &gguf, &options, &mut |_, _| ()).unwrap();
        let keys = Gguf::open(&gguf).unwrap();
        assert_eq!(keys.bool("tokenizer.ggml.add_bos_token").unwrap(), Some(false));
        assert_eq!(keys.bool("tokenizer.ggml.add_eos_token").unwrap(), adds[1].then_some(true));
        let tokenizer = ModelFile::open(&gguf).unwrap().tokenizer(None).unwrap();
        assert_eq!(tokenizer.encode_prompt("the sea").unwrap(), ids);
    }
}

#[test]
fn a_generation_configuration_that_demands_more_is_refused_by_key() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model");
    model(&path, |tokens| tokens, |_| {});
    for (key, value) in
        [("suppress_tokens", json!([3])), ("num_beams", json!(4)), ("stop_strings", json!(["x"]))]
    {
        fs::write(path.join("generation_config.json"), json!({ key: value }).to_string()).unwrap();
        let error = ModelFile::open(&path).unwrap().generation_config().unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
    let off = json!({"suppress_tokens": [], "num_beams": 1, "typical_p": 1.0, "do_sample": true});
    fs::write(path.join("generation_config.json"), off.to_string()).unwrap();
    assert_eq!(ModelFile::open(&path).unwrap().generation_config().unwrap().do_sample, Some(true));
}
