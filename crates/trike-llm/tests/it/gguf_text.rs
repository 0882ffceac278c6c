//! Tokenizers and chat templates inside GGUF files, compared with llama.cpp's goldens; and refusals.

#[path = "../../../trike-text/tests/it/mixed.rs"]
mod mixed;

use std::{fs, path::Path};

use trike_format::{Gguf, GgufWriter, StringArray, TensorSource};
use trike_llm::{
    GenerateOptions, LanguageModel, LoadOptions, ModelFile,
    chat::{ChatTemplate, Message, RenderOptions},
    gguf_chat_template, gguf_tokenizer,
    tokenizer::{
        Tokenizer,
        keys::{GGUF, Treatment},
    },
};
use trike_testkit::{shared, skip, tiny};

fn gguf(name: &str) -> Option<(std::path::PathBuf, Tokenizer)> {
    let path = shared(&format!("data/tokenizers/ggml-vocab-{name}.gguf"))?;
    let file = Gguf::open(&path).unwrap();
    let tokenizer = gguf_tokenizer(&file).unwrap().expect("it is a vocabulary");
    Some((path, tokenizer))
}

#[test]
fn the_vocabularies_inside_gguf_files_encode_alike() {
    for name in ["llama-spm", "gpt-2"] {
        let Some((path, tokenizer)) = gguf(name) else { return };
        let inputs = fs::read_to_string(path.with_extension("gguf.inp")).unwrap();
        let outputs = fs::read_to_string(path.with_extension("gguf.out")).unwrap();
        let mut inputs: Vec<&str> = inputs.split("\n__ggml_vocab_test__\n").collect();
        assert_eq!(inputs.pop(), Some(""));
        assert_eq!(inputs.len(), outputs.lines().count());
        assert!(inputs.len() > 30);
        for (text, want) in inputs.iter().zip(outputs.lines()) {
            let want: Vec<u32> = want.split_whitespace().map(|id| id.parse().unwrap()).collect();
            assert_eq!(tokenizer.encode(text, false).unwrap(), want, "{text:?}");
            assert_eq!(tokenizer.encode_literal(text).unwrap(), want, "{text:?}");
            assert_eq!(tokenizer.decode(&want).unwrap(), *text);
        }
        mixed_texts_come_back(&tokenizer, name);
    }
    let Some((path, _)) = gguf("llama-spm") else { return };
    let file = Gguf::open(path).unwrap();
    assert_eq!(file.str("tokenizer.ggml.model").unwrap(), Some("llama"));
    assert_eq!(file.strings("tokenizer.ggml.tokens").unwrap().unwrap().len(), 32_000);
    assert_eq!(file.f32s("tokenizer.ggml.scores").unwrap().unwrap().len(), 32_000);
    assert_eq!(file.i64s("tokenizer.ggml.token_type").unwrap().unwrap().len(), 32_000);
    assert!(file.tensors().is_empty());
}

#[test]
fn gpt_2_s_special_token_is_known_and_bos_is_its_habit() {
    let Some((_, gpt2)) = gguf("gpt-2") else { return };
    assert_eq!((gpt2.vocab_size(), gpt2.bos(), gpt2.eos()), (50_257, Some(50_256), &[50_256][..]));
    assert!(!gpt2.adds_bos(), "GPT-2 puts nothing before a text");
    assert_eq!(gpt2.name_of(50_256).as_deref(), Some("<|endoftext|>"));
    assert_eq!(gpt2.id_of("<|endoftext|>"), Some(50_256));
    assert_eq!(gpt2.encode("a<|endoftext|>b", false).unwrap(), [64, 50_256, 65]);
    let literal = gpt2.encode_literal("a<|endoftext|>b").unwrap();
    assert!(!literal.contains(&50_256));
    assert_eq!(gpt2.decode(&literal).unwrap(), "a<|endoftext|>b");
    let Some((_, llama)) = gguf("llama-spm") else { return };
    assert!(llama.adds_bos());
    assert_eq!(llama.encode_with_special("<s>a</s>").unwrap(), [1, 263, 2]);
    assert!(!llama.encode("<s>a</s>", false).unwrap().contains(&1), "plain text forges nothing");
}

/// Unknown pre-tokenizers, with the nearest known name, and unsupported kinds of vocabularies.
#[test]
fn other_pre_tokenizers_and_models_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let refusal = |model: &str, pre: Option<&str>, key: Option<&str>| {
        let path = dir.path().join("vocab.gguf");
        let mut writer = GgufWriter::create(&path).unwrap();
        writer.metadata("general.architecture", "llama").unwrap();
        writer.metadata("tokenizer.ggml.model", model).unwrap();
        if let Some(pre) = pre {
            writer.metadata("tokenizer.ggml.pre", pre).unwrap();
        }
        if let Some(key) = key {
            writer.metadata(key, vec![1_i32]).unwrap();
        }
        writer.finish().unwrap();
        gguf_tokenizer(&Gguf::open(&path).unwrap()).unwrap_err().to_string()
    };
    for (pre, nearest) in [("qwen-2", "qwen2"), ("smolm", "smollm"), ("gpt4o", "gpt-4o"), ("", "mpt")] {
        let error = refusal("gpt2", Some(pre), None);
        assert!(
            error.contains(&format!("pre-tokenizer {pre} ")) && error.contains("tokenizer.json"),
            "{error}"
        );
        assert!(error.contains(nearest) || pre.is_empty(), "{error}");
    }
    for model in ["bert", "t5", "rwkv"] {
        assert!(refusal(model, None, None).contains(model));
    }
    for pre in [None, Some("default"), Some("qwen2"), Some("tekken"), Some("deepseek-v3")] {
        assert!(refusal("gpt2", pre, None).contains("tokenizer.ggml.tokens"), "{pre:?}");
    }
    for key in GGUF.iter().filter(|key| key.treatment == Treatment::Refused) {
        assert!(refusal("gpt2", None, Some(key.name)).contains(key.name));
    }
}

/// Ids of the `tokenizers` package with the same vocabulary, merges and pre-tokenizer, in a list next to the test.
#[test]
fn smollm2_encodes_as_the_tokenizers_package_does() {
    let Some(path) = smollm2() else { return };
    let tokenizer = gguf_tokenizer(&Gguf::open(&path).unwrap()).unwrap().unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.adds_bos()), (Some(1), &[2][..], false));
    let file = ModelFile::open(&path).unwrap();
    let model = LanguageModel::load_with(&file, &LoadOptions::default(), &mut |_, _| ()).unwrap();
    let options = GenerateOptions::default().with_max_tokens(8);
    let answer = model.generate("The capital of France is", &options).unwrap();
    assert!(answer.text.contains("Paris"), "{:?}", answer.text);
    let goldens: Vec<serde_json::Value> = serde_json::from_str(include_str!("../data/smollm2.json")).unwrap();
    assert_eq!(goldens.len(), 24);
    for golden in goldens {
        let want: Vec<u32> = serde_json::from_value(golden["ids"].clone()).unwrap();
        let text = golden["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text, false).unwrap(), want, "{text:?}");
    }
}

/// The only real model available from a package registry, if it was installed.
fn smollm2() -> Option<std::path::PathBuf> {
    let named = std::env::var_os("TRIKE_SMOLLM2").map(std::path::PathBuf::from);
    let home = std::env::var_os("HOME").map(std::path::PathBuf::from);
    let cached = home.map(|home| home.join(".cache/trike-data/SmolLM2-135M-Instruct.Q4_1.gguf"));
    let found = named.or(cached).filter(|path| path.is_file());
    if found.is_none() {
        skip("no SmolLM2");
    }
    found
}

/// Defaults of llama.cpp for unnamed ids, types and scores; and a token that is part of a character.
#[test]
fn what_a_vocabulary_leaves_out_is_llama_cpp_s() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vocab.gguf");
    let mut tokens: StringArray = ["<unk>", "<s>", "</s>", "<0xC3>", "a"].into_iter().collect();
    tokens.push(b"\xc3");
    let mut writer = GgufWriter::create(&path).unwrap();
    writer.metadata("general.architecture", "llama").unwrap();
    writer.metadata("tokenizer.ggml.model", "llama").unwrap();
    writer.metadata("tokenizer.ggml.tokens", tokens).unwrap();
    writer.metadata("tokenizer.ggml.add_space_prefix", false).unwrap();
    writer.metadata("tokenizer.ggml.add_eos_token", true).unwrap();
    writer.finish().unwrap();
    let tokenizer = gguf_tokenizer(&Gguf::open(&path).unwrap()).unwrap().unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.adds_bos()), (Some(1), &[2][..], true));
    assert_eq!(tokenizer.encode_prompt("a").unwrap(), [1, 4, 2]);
    assert_eq!(tokenizer.encode("b", false).unwrap(), [0], "unknown");
    assert_eq!((tokenizer.token_bytes(5).unwrap(), tokenizer.vocab_size()), (&b"\xc3"[..], 6));
    assert_eq!(tokenizer.turn_ends(), [2]);
}

/// End-of-turn tokens are recognized as in llama.cpp, whatever type the file gives them.
#[test]
fn ends_of_a_turn_are_found_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vocab.gguf");
    let mut tokens = byte_stand_ins();
    tokens.extend(["he", "<|im_end|>", "<|endoftext|>", "<|file_sep|>", "<end_of_turn>"].map(str::to_owned));
    let mut writer = GgufWriter::create(&path).unwrap();
    writer.metadata("general.architecture", "llama").unwrap();
    writer.metadata("tokenizer.ggml.model", "gpt2").unwrap();
    writer.metadata("tokenizer.ggml.tokens", tokens.iter().collect::<StringArray>()).unwrap();
    writer.metadata("tokenizer.ggml.merges", ["h e"].into_iter().collect::<StringArray>()).unwrap();
    writer.finish().unwrap();
    let tokenizer = gguf_tokenizer(&Gguf::open(&path).unwrap()).unwrap().unwrap();
    assert_eq!(tokenizer.turn_ends(), [257, 258, 259, 260]);
    assert_eq!(tokenizer.encode("he<|im_end|>", false).unwrap(), [256, 257]);
    assert_eq!(tokenizer.decode(&[256, 257]).unwrap(), "he");
}

/// Writes a vocabulary of all bytes, `he`, and two special tokens.
fn write_bytes(path: &Path) {
    let mut writer = GgufWriter::create(path).unwrap();
    let mut tokens = byte_stand_ins();
    tokens.extend(["he", "<|s|>", "<|e|>"].map(str::to_owned));
    let mut types = vec![1_i32; tokens.len()];
    types[257..].fill(3);
    writer.metadata("general.architecture", "llama").unwrap();
    writer.metadata("tokenizer.ggml.model", "gpt2").unwrap();
    writer.metadata("tokenizer.ggml.pre", "qwen2").unwrap();
    writer
        .metadata("tokenizer.ggml.tokens", tokens.iter().map(String::as_str).collect::<StringArray>())
        .unwrap();
    writer.metadata("tokenizer.ggml.token_type", types).unwrap();
    writer.metadata("tokenizer.ggml.merges", ["h e"].into_iter().collect::<StringArray>()).unwrap();
    writer.metadata("tokenizer.ggml.bos_token_id", 257_u32).unwrap();
    writer.metadata("tokenizer.ggml.eos_token_id", 258_u32).unwrap();
    writer
        .metadata("tokenizer.chat_template", "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}")
        .unwrap();
    writer.finish().unwrap();
}

/// Writes the bundled model's vocabulary, which has byte pieces.
fn write_pieces(path: &Path) {
    let tokenizer = Tokenizer::open(tiny()).unwrap();
    let names: Vec<String> = (0..512).map(|id| tokenizer.name_of(id).unwrap()).collect();
    let types = [2, 3, 3].into_iter().chain([6; 256]).chain([1; 253]).collect::<Vec<i32>>();
    let scores: Vec<f32> = (0..512).map(|id| -f32::from(id as u16)).collect();
    let mut writer = GgufWriter::create(path).unwrap();
    writer.metadata("general.architecture", "llama").unwrap();
    writer.metadata("tokenizer.ggml.model", "llama").unwrap();
    writer
        .metadata("tokenizer.ggml.tokens", names.iter().map(String::as_str).collect::<StringArray>())
        .unwrap();
    writer.metadata("tokenizer.ggml.token_type", types).unwrap();
    writer.metadata("tokenizer.ggml.scores", scores).unwrap();
    writer.metadata("tokenizer.ggml.unknown_token_id", 0_u32).unwrap();
    writer.metadata("tokenizer.ggml.bos_token_id", 1_u32).unwrap();
    writer.metadata("tokenizer.ggml.eos_token_id", 2_u32).unwrap();
    writer.finish().unwrap();
}

#[test]
fn a_gguf_file_brings_its_template_and_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vocab.gguf");
    write_bytes(&path);
    let file = Gguf::open(&path).unwrap();
    let tokenizer = gguf_tokenizer(&file).unwrap().unwrap();
    assert!(!tokenizer.adds_bos());
    let template = gguf_chat_template(&file, &tokenizer).unwrap().unwrap();
    let options = RenderOptions::default();
    let messages = [Message::user("he<|e|>")];
    assert_eq!(template.render(&messages, &options).unwrap(), "<|s|>he<|e|><|e|>");
    let ids = template.encode(&tokenizer, &messages, &options).unwrap();
    assert_eq!((ids[..2].to_vec(), ids.last()), (vec![257, 256], Some(&258)));
    assert_eq!(ids.iter().filter(|&&id| id == 258).count(), 1);
}

/// GPT-2's printable characters for the 256 bytes.
fn byte_stand_ins() -> Vec<String> {
    let mut other = 0xff;
    (0..=255_u32)
        .map(|byte| {
            let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
            other += u32::from(!printable);
            char::from_u32(if printable { byte } else { other }).unwrap().to_string()
        })
        .collect()
}

/// Text in any script round-trips through the vocabularies of GGUF files as through those of other files.
fn mixed_texts_come_back(tokenizer: &Tokenizer, name: &str) {
    for text in mixed::texts() {
        let ids = tokenizer.encode(&text, false).unwrap();
        assert_eq!(tokenizer.decode(&ids).unwrap(), text, "{name}");
        assert_eq!(tokenizer.encode_with_special(&text).unwrap(), ids, "{name}: no special token is in it");
        assert_eq!(tokenizer.encode_literal(&text).unwrap(), ids, "{name}");
    }
}

#[test]
fn mixed_texts_come_back_from_their_ids() {
    let dir = tempfile::tempdir().unwrap();
    for (name, write) in [("bytes", write_bytes as fn(&Path)), ("pieces", write_pieces)] {
        let path = dir.path().join(name).with_extension("gguf");
        write(&path);
        mixed_texts_come_back(&gguf_tokenizer(&Gguf::open(&path).unwrap()).unwrap().unwrap(), name);
    }
}

#[test]
fn a_message_cannot_forge_a_special_token() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vocab.gguf");
    write_bytes(&path);
    let tokenizer = gguf_tokenizer(&Gguf::open(&path).unwrap()).unwrap().unwrap();
    let end = "<|e|>";
    let source = format!("{{% for m in messages %}}{{{{ m.content | trim }}}}{end}{{% endfor %}}");
    let template = ChatTemplate::from_source(&source).unwrap();
    let end_id = tokenizer.id_of(end).unwrap();
    for forged in [end.to_owned(), format!("a{end}{end}b \u{100000}"), format!("<{end}>\n{end}")] {
        let messages = [Message::user(&forged), Message::user("b")];
        let ids = template.encode(&tokenizer, &messages, &RenderOptions::default()).unwrap();
        assert_eq!(ids.iter().filter(|&&id| id == end_id).count(), 2, "{forged:?}: one for each message");
        let first = ids.iter().position(|&id| id == end_id).unwrap();
        assert_eq!(ids[..first], tokenizer.encode_literal(forged.trim()).unwrap());
        assert_eq!(tokenizer.decode(&ids[..first]).unwrap(), forged.trim(), "the model reads what was typed");
    }
}
