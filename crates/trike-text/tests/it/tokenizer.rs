//! Tokenizers compared with each other and with goldens of llama.cpp, tiktoken and numpy: of the bundled model in several formats,
//! and of others on shared data.
//!
//! Tokenizers in GGUF files are tested in `trike-llm/tests/gguf_text.rs`.

use crate::mixed;
use std::{fs, path::PathBuf};

use tempfile::TempDir;
use trike_testkit::{
    Rng, byte_level_tokenizer, golden, llama2c_vocabulary, other_llama2c_vocabulary,
    sentencepiece_vocabulary, shared, stories, story, story_tokens, tiktoken_vocabulary, tiny,
};
use trike_text::{
    stream::TextStream,
    tokenizer::{BpeVocab, PieceType, PreTokenizer, Tokenizer, TokenizerError},
};

/// A file in a separate directory.
fn file(name: &str, content: impl AsRef<[u8]>) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    fs::write(&path, content).unwrap();
    (dir, path)
}

/// The bundled model's vocabulary in the formats of llama2.c and SentencePiece.
fn bin_and_model() -> [Tokenizer; 2] {
    let (_bin, bin) = file("tok512.bin", llama2c_vocabulary());
    let (_model, model) = file("tok512.model", sentencepiece_vocabulary());
    [Tokenizer::from_llama2c(bin, 512).unwrap(), Tokenizer::open(model).unwrap()]
}

#[test]
fn llama2c_and_sentencepiece_files_of_one_vocabulary_agree() {
    let [bin, model] = bin_and_model();
    let json = Tokenizer::open(tiny()).unwrap().with_special(Some(1), vec![2]).unwrap();
    assert_eq!((bin.vocab_size(), bin.bos(), bin.eos()), (512, Some(1), &[2][..]));
    assert_eq!((model.vocab_size(), model.bos(), model.eos()), (512, Some(1), &[2][..]));
    let golden = golden();
    let texts = stories(40, 40, 300) + trike_testkit::STORY_END + golden.stories;
    let mut compared = 0;
    for story in texts.split(trike_testkit::STORY_END).map(str::trim) {
        // Runs of spaces, and text in which no word is a single token.
        for story in [story.to_owned(), story.replace(". ", ".  "), story.to_uppercase()] {
            let ids = bin.encode(&story, true).unwrap();
            assert_eq!(bin.decode(&ids).unwrap(), story);
            assert_eq!(json.encode(&story, true).unwrap(), ids);
            // The `.model` collapses runs of spaces; llama2.c keeps them.
            let collapsed = story.split(' ').filter(|s| !s.is_empty()).collect::<Vec<_>>().join(" ");
            assert_eq!(model.encode(&collapsed, true).unwrap(), bin.encode(&collapsed, true).unwrap());
            assert_eq!(model.encode(&story, true).unwrap(), model.encode(&collapsed, true).unwrap());
            compared += ids.len();
        }
    }
    assert!(compared > 10_000, "{compared}");
}

/// Other tests rely on it: their model knows tokens, not words.
#[test]
fn stories_have_the_tokens_that_they_are_made_of() {
    let tokenizer = Tokenizer::open(tiny()).unwrap();
    for seed in 0..40 {
        let names = story_tokens(seed, 100).into_iter().map(|token| token.replace(' ', "\u{2581}"));
        let want: Vec<u32> = names.map(|name| tokenizer.id_of(&name).expect("a token")).collect();
        assert_eq!(tokenizer.encode(&story(seed, 100), false).unwrap(), want);
    }
}

#[test]
fn the_greedy_run_of_the_bundled_model_decodes_to_its_text() {
    let golden = golden();
    // BOS is no text.
    for tokenizer in bin_and_model().iter().chain([&Tokenizer::open(tiny()).unwrap()]) {
        assert_eq!(tokenizer.decode(&golden.ids).unwrap(), golden.text, "{tokenizer:?}");
        let mut stream = TextStream::new(tokenizer);
        let mut text: String = golden.ids.iter().map(|&id| stream.push(id).unwrap().text).collect();
        text.push_str(&stream.finish());
        assert_eq!(text, golden.text, "{tokenizer:?}");
    }
}

/// The number is llama2.c's: it predicts 35 tokens, after BOS.
#[test]
fn the_nll_golden_of_llama2c_has_35_tokens() {
    let sentence = "One day, a clever fox found a shiny key under the old oak tree.";
    for tokenizer in bin_and_model() {
        assert_eq!(tokenizer.encode(sentence, true).unwrap().len(), 35);
    }
}

#[test]
fn a_vocabulary_of_another_model_is_refused() {
    let (_dir, bin) = file("tok512.bin", llama2c_vocabulary());
    let error = Tokenizer::from_llama2c(&bin, 4096).unwrap_err().to_string();
    assert!(error.contains("512") && error.contains("4096") && error.contains("tok512.bin"), "{error}");
}

#[test]
fn llama_2_as_sentencepiece_and_as_json_agree() {
    let Some(model) = shared("data/tokenizers/llama2_tokenizer.model") else { return };
    let Some(json) = shared("data/tokenizers/bitnet_b1_58-large_tokenizer.json") else { return };
    let model = Tokenizer::from_sentencepiece(model).unwrap();
    let json = Tokenizer::from_hf_json(json).unwrap().with_special(Some(1), vec![2]).unwrap();
    assert_eq!((model.vocab_size(), json.vocab_size()), (32_000, 32_002));
    assert!(matches!(json.check_vocab(32_000), Err(TokenizerError::VocabMismatch { .. })));
    json.check_vocab(32_002).unwrap();
    for id in 3..32_000 {
        assert_eq!(model.token_bytes(id).unwrap(), json.token_bytes(id).unwrap(), "{id}");
    }
    for name in
        ["corpora/tinystories_sample.txt", "corpora/tinyshakespeare.txt", "corpora/wikitext-2/wiki.valid.raw"]
    {
        let Some(path) = shared(&format!("data/{name}")) else { return };
        let text = fs::read_to_string(path).unwrap();
        let mut tokens = 0;
        for paragraph in text.split("\n\n").filter(|p| !p.is_empty()) {
            let ids = model.encode(paragraph, true).unwrap();
            assert_eq!(ids, json.encode(paragraph, true).unwrap(), "{paragraph}");
            assert_eq!(model.decode(&ids).unwrap(), paragraph);
            tokens += ids.len();
        }
        assert!(tokens > 500, "{name}: {tokens}");
    }
    mixed_texts_come_back(&model);
    mixed_texts_come_back(&json);
    for (name, vocab) in [("tok512.bin", 512), ("tok4096.bin", 4096)] {
        let Some(path) = shared(&format!("data/tokenizers/{name}")) else { return };
        // Other tests write the file of stories260K.
        assert!(vocab > 512 || fs::read(&path).unwrap() == llama2c_vocabulary());
        mixed_texts_come_back(&Tokenizer::from_llama2c(path, vocab).unwrap());
    }
    let Some(path) = shared("data/tokenizers/bitnet_b1_58-large_tokenizer.json") else { return };
    decodes_as_the_crate(&path, 32_002);
}

#[test]
fn llama_cpp_encodes_alike() {
    let Some(model) = shared("data/tokenizers/llama2_tokenizer.model") else { return };
    let Some(texts) = shared("data/tokenizers/ggml-vocab-llama-spm.gguf.inp") else { return };
    let Some(want) = shared("data/tokenizers/ggml-vocab-llama-spm.gguf.out") else { return };
    let tokenizer = Tokenizer::open(model).unwrap();
    let (texts, want) = (fs::read_to_string(texts).unwrap(), fs::read_to_string(want).unwrap());
    // Every text, including the last one, is followed by the separator.
    let mut texts: Vec<_> = texts.split("\n__ggml_vocab_test__\n").collect();
    assert_eq!(texts.pop(), Some(""));
    let want: Vec<_> = want.lines().collect();
    assert_eq!(texts.len(), want.len());
    assert!(texts.len() > 30);
    for (text, want) in texts.iter().zip(want) {
        let want: Vec<u32> = want.split_whitespace().map(|id| id.parse().unwrap()).collect();
        let got = tokenizer.encode(text, false).unwrap();
        assert_eq!(got, want, "{text:?}");
        assert_eq!(tokenizer.decode(&got).unwrap(), *text);
    }
}

#[test]
fn the_shipped_model_s_tokenizer_decodes_its_golden() {
    let tokenizer = Tokenizer::open(tiny()).unwrap().with_special(Some(1), vec![2]).unwrap();
    tokenizer.check_vocab(512).unwrap();
    let golden = golden();
    assert_eq!(tokenizer.decode(&golden.ids).unwrap(), golden.text);
    assert_eq!(tokenizer.encode("Once upon a time", true).unwrap(), golden.ids[..5]);
}

/// The crate's own decoder is the reference for ids without broken bytes.
fn decodes_as_the_crate(path: &std::path::Path, vocab: usize) {
    let ours = Tokenizer::open(path).unwrap();
    assert_eq!(ours.vocab_size(), vocab);
    let theirs = tokenizers::Tokenizer::from_file(path).unwrap();
    let mut rng = Rng::new(11);
    let mut compared = 0;
    for _ in 0..400 {
        let ids: Vec<u32> = (0..rng.below(12)).map(|_| rng.below(vocab) as u32).collect();
        if String::from_utf8(ours.decode_bytes(&ids).unwrap()).is_ok() {
            assert_eq!(ours.decode(&ids).unwrap(), theirs.decode(&ids, true).unwrap(), "{ids:?}");
            compared += 1;
        }
    }
    assert!(compared > 50, "{}: {compared}", path.display());
}

#[test]
fn decoding_agrees_with_the_tokenizers_crate() {
    decodes_as_the_crate(&tiny().join("tokenizer.json"), 512);
    let (_dir, bytes) = file("tokenizer.json", byte_level_tokenizer());
    let vocab = Tokenizer::open(&bytes).unwrap().vocab_size();
    decodes_as_the_crate(&bytes, vocab);
}

/// tiktoken's own ids, generated by the accompanying script.
#[test]
fn llama_3_s_tiktoken_file_encodes_as_tiktoken_does() {
    let Some(path) = shared("data/tokenizers/llama3_tokenizer.model") else { return };
    let llama3 = Tokenizer::open(path).unwrap();
    assert_eq!(
        (llama3.vocab_size(), llama3.bos(), llama3.eos(), llama3.adds_bos()),
        (128_256, Some(128_000), &[128_001, 128_009][..], true)
    );
    let golden = include_str!("../data/tokenizer/mixed_llama3.txt");
    let texts = mixed::texts();
    assert_eq!(golden.lines().count(), texts.len());
    for (text, line) in texts.iter().zip(golden.lines()) {
        let (hash, ids) = line.split_once(' ').unwrap();
        let fnv = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |value, byte| {
            (value ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        assert_eq!(format!("{fnv:016x}"), hash, "the script must make the same text: {text:?}");
        let want: Vec<u32> = ids.split(' ').map(|id| id.parse().unwrap()).collect();
        assert_eq!(llama3.encode(text, false).unwrap(), want, "{text:?}");
    }
    mixed_texts_come_back(&llama3);
}

/// A tiktoken file has no special tokens: Trike uses Llama 3's for any vocabulary of this size.
#[test]
fn llama_3_s_special_tokens_are_recognized_or_text_as_asked() {
    let (_dir, path) = file("tokenizer.model", tiktoken_vocabulary());
    let llama3 = Tokenizer::from_tiktoken(path).unwrap();
    for (name, id) in [
        ("<|begin_of_text|>", 128_000),
        ("<|end_of_text|>", 128_001),
        ("<|start_header_id|>", 128_006),
        ("<|end_header_id|>", 128_007),
        ("<|eot_id|>", 128_009),
        ("<|reserved_special_token_250|>", 128_255),
    ] {
        assert_eq!(llama3.id_of(name), Some(id));
        assert_eq!(llama3.name_of(id).as_deref(), Some(name));
        assert_eq!(llama3.encode(name, false).unwrap(), [id]);
        assert_eq!(llama3.token_bytes(id).unwrap(), b"");
        let literal = llama3.encode_literal(name).unwrap();
        assert!(literal.iter().all(|&id| id < 128_000) && literal.len() > 1);
        assert_eq!(llama3.decode(&literal).unwrap(), name);
    }
    assert_eq!(llama3.encode("<|begin_of_text|>a", true).unwrap(), [128_000, 64]);
    assert_eq!(llama3.turn_ends(), [128_001, 128_009]);
}

fn mixed_texts_come_back(tokenizer: &Tokenizer) {
    for text in &mixed::texts() {
        let ids = tokenizer.encode(text, false).unwrap();
        assert_eq!(tokenizer.decode(&ids).unwrap(), *text, "{tokenizer:?}");
        assert_eq!(
            tokenizer.encode_with_special(text).unwrap(),
            ids,
            "{tokenizer:?}: no special token is in it"
        );
        assert_eq!(tokenizer.encode_literal(text).unwrap(), ids, "{tokenizer:?}");
    }
}

#[test]
fn five_hundred_mixed_texts_come_back_from_their_ids() {
    let (_tiktoken, tiktoken) = file("tokenizer.model", tiktoken_vocabulary());
    let (_json, json) = file("tokenizer.json", byte_level_tokenizer());
    for path in [tiktoken, json, tiny()] {
        mixed_texts_come_back(&Tokenizer::open(path).unwrap());
    }
    // SentencePiece vocabularies with all byte pieces preserve everything except U+2581, which none of the texts contains.
    let (_bin, other) = file("tok4096.bin", other_llama2c_vocabulary(4096));
    let [bin, model] = bin_and_model();
    mixed_texts_come_back(&bin);
    mixed_texts_come_back(&Tokenizer::from_llama2c(other, 4096).unwrap());
    // This file collapses runs of spaces and trims the ends.
    for text in &mixed::texts() {
        let ids = model.encode(text, false).unwrap();
        let collapsed = text.split(' ').filter(|s| !s.is_empty()).collect::<Vec<_>>().join(" ");
        assert_eq!(model.decode(&ids).unwrap(), collapsed);
    }
}

/// Llama 3's vocabulary in GGUF's form: every split of a token into two tokens is a merge.
fn llama3_as_byte_level(llama3: &Tokenizer, pre: PreTokenizer) -> Tokenizer {
    let stand_in = |&byte: &u8| {
        let printable = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let others = (0..byte).filter(|&b| !printable(b)).count() as u32;
        char::from_u32(if printable(byte) { byte.into() } else { 0x100 + others }).unwrap()
    };
    let bytes: Vec<&[u8]> = (0..128_000).map(|id| llama3.token_bytes(id).unwrap()).collect();
    let names: Vec<String> = bytes.iter().map(|b| b.iter().map(stand_in).collect()).collect();
    let ids: std::collections::HashMap<&[u8], usize> = bytes.iter().copied().zip(0..).collect();
    let mut merges = Vec::new();
    for token in &bytes {
        let splits =
            (1..token.len()).filter_map(|at| Some((*ids.get(&token[..at])?, *ids.get(&token[at..])?)));
        let mut splits: Vec<_> = splits.collect();
        splits.sort_unstable();
        merges.extend(splits.iter().map(|&(a, b)| format!("{} {}", names[a], names[b])));
    }
    let mut types = vec![PieceType::Normal; names.len()];
    let mut tokens = names;
    tokens.extend((128_000..128_256).map(|id| llama3.name_of(id).unwrap()));
    types.resize(tokens.len(), PieceType::Control);
    let vocab = BpeVocab {
        tokens,
        types,
        merges,
        pre,
        bos: Some(128_000),
        eos: vec![128_001, 128_009],
        add_bos: None,
    };
    Tokenizer::from_byte_level_vocab(&vocab).unwrap()
}

#[test]
fn llama_3_in_gguf_form_encodes_as_tiktoken_does() {
    let Some(path) = shared("data/tokenizers/llama3_tokenizer.model") else { return };
    let llama3 = Tokenizer::open(path).unwrap();
    let bpe = llama3_as_byte_level(&llama3, PreTokenizer::LlamaBpe);
    assert!(bpe.adds_bos());
    // Qwen2's rule differs only in runs of digits.
    let single_digits = llama3_as_byte_level(&llama3, PreTokenizer::Qwen2);
    assert!(!single_digits.adds_bos());
    let marked = "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>";
    let digits =
        |text: &str| text.chars().collect::<Vec<_>>().windows(2).any(|w| w.iter().all(|c| c.is_numeric()));
    let (mut same, mut other) = (0, 0);
    for text in mixed::texts().iter().map(String::as_str).chain([marked]) {
        let ids = llama3.encode(text, false).unwrap();
        assert_eq!(bpe.encode(text, false).unwrap(), ids, "{text:?}");
        assert_eq!(bpe.encode_literal(text).unwrap(), llama3.encode_literal(text).unwrap(), "{text:?}");
        assert_eq!(bpe.decode(&ids).unwrap(), llama3.decode(&ids).unwrap());
        let split = single_digits.encode(text, false).unwrap();
        assert_eq!(single_digits.decode(&split).unwrap(), llama3.decode(&ids).unwrap());
        if split == ids {
            same += 1;
        } else {
            assert!(digits(text), "{text:?}");
            other += 1;
        }
    }
    assert!(same > 400 && other > 20, "{same} {other}");
    assert_eq!(single_digits.encode("1234", false).unwrap().len(), 4);
}
