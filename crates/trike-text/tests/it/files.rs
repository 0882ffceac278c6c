//! Files that accompany a tokenizer, compared with the ids of transformers 5.

use std::{fs, path::PathBuf};

use serde_json::Value;
use trike_testkit::shared;
use trike_text::tokenizer::{Tokenizer, TokenizerFiles};

/// Made by `files.py`.
const GOLDEN: &str = include_str!("../data/tokenizer/files.json");

const TEXTS: [&str; 3] = ["Hello world", "Hello <extra> world", "<extra>a <x2>"];

#[test]
fn ids_are_those_of_transformers_whatever_the_files_say() {
    let Some(model) = shared("data/tokenizers/llama2_tokenizer.model") else { return };
    let Some(json) = shared("data/tokenizers/bitnet_b1_58-large_tokenizer.json") else { return };
    let dir = tempfile::tempdir().unwrap();
    let json: Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    let plain = serde_json::json!({"post_processor": null});
    let goldens: Vec<Value> = serde_json::from_str(GOLDEN).unwrap();
    assert_eq!(goldens.len(), 33);
    for golden in &goldens {
        let kind = golden["kind"].as_str().unwrap();
        let bytes = match kind {
            "model" => fs::read(&model).unwrap(),
            "json" => json.to_string().into_bytes(),
            _ => {
                let mut json = json.clone();
                json["post_processor"] = plain["post_processor"].clone();
                json.to_string().into_bytes()
            }
        };
        let files = TokenizerFiles::from_texts(|name| {
            Ok::<_, ()>(golden["files"].get(name).map(ToString::to_string))
        });
        let tokenizer = Tokenizer::from_bytes_with(&bytes, &files.unwrap()).unwrap();
        // `config.json` has 1 and 2.
        let bos = tokenizer.named("bos_token").or(Some(1));
        let tokenizer = tokenizer.with_special(bos, vec![2]).unwrap();
        for (text, want) in TEXTS.iter().zip(golden["ids"].as_array().unwrap()) {
            let want: Vec<u32> =
                want.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
            assert_eq!(tokenizer.encode_prompt(text).unwrap(), want, "{text:?} {kind} {}", golden["files"]);
        }
    }
    // The files are read from a directory.
    let put = |name: &str, bytes: &[u8]| -> PathBuf {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let path = put("tokenizer.model", &fs::read(&model).unwrap());
    assert!(Tokenizer::open(&path).unwrap().adds_bos(), "nothing is said");
    put("tokenizer_config.json", br#"{"add_bos_token": false, "add_eos_token": true}"#);
    for place in [path.as_path(), dir.path()] {
        let tokenizer = Tokenizer::open(place).unwrap();
        assert_eq!((tokenizer.adds_bos(), tokenizer.adds_eos()), (false, true));
    }
    put("tokenizer_config.json", br#"{"split_special_tokens": true}"#);
    let error = Tokenizer::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("split_special_tokens"), "{error}");
    put("tokenizer_config.json", b"{");
    assert!(Tokenizer::open(dir.path()).unwrap_err().to_string().contains("tokenizer_config.json"));
}
