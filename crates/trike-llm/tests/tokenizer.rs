//! Tokenizers against each other and against goldens of llama2.c, llama.cpp and numpy, on shared data.

use std::fs;

use trike_llm::{
    stream::TextStream,
    tokenizer::{Tokenizer, TokenizerError},
};
use trike_testkit::{NpyData, Rng, npz, shared};

fn stories(name: &str) -> Option<Vec<String>> {
    let text = fs::read_to_string(shared(name)?).unwrap();
    let stories = text.split("<|endoftext|>").map(str::trim).filter(|s| !s.is_empty());
    Some(stories.map(str::to_owned).collect())
}

fn ids(path: &std::path::Path) -> Vec<u32> {
    match &npz(path)["ids"].data {
        NpyData::I64(v) => v.iter().map(|&id| id as u32).collect(),
        NpyData::I32(v) => v.iter().map(|&id| id as u32).collect(),
        NpyData::F32(_) => panic!("ids must be integers"),
    }
}

#[test]
fn llama2c_and_sentencepiece_files_of_one_vocabulary_agree() {
    let Some(bin) = shared("data/tokenizers/tok512.bin") else { return };
    let Some(model) = shared("data/tokenizers/tok512.model") else { return };
    let Some(stories) = stories("data/corpora/tinystories_eval.txt") else { return };
    let bin = Tokenizer::from_llama2c(bin, 512).unwrap();
    let model = Tokenizer::open(model).unwrap();
    assert_eq!((bin.vocab_size(), bin.bos(), bin.eos()), (512, Some(1), &[2][..]));
    assert_eq!((model.vocab_size(), model.bos(), model.eos()), (512, Some(1), &[2][..]));
    let mut compared = 0;
    for story in &stories {
        let ids = bin.encode(story, true).unwrap();
        assert_eq!(bin.decode(&ids).unwrap(), *story);
        // The `.model` says that runs of spaces are one space; llama2.c keeps them.
        let collapsed = story.split(' ').filter(|s| !s.is_empty()).collect::<Vec<_>>().join(" ");
        assert_eq!(model.encode(&collapsed, true).unwrap(), bin.encode(&collapsed, true).unwrap());
        assert_eq!(model.encode(story, true).unwrap(), model.encode(&collapsed, true).unwrap());
        compared += ids.len();
    }
    assert!(compared > 10_000, "{compared}");
}

#[test]
fn the_greedy_run_of_llama2c_decodes_to_its_text() {
    let Some(golden) = shared("data/golden/stories260K_greedy_200.txt") else { return };
    let Some(run) = shared("data/golden/golden_stories260K_numpy.npz") else { return };
    let golden = fs::read_to_string(golden).unwrap();
    let ids = ids(&run);
    for name in ["tok512.bin", "tok512.model"] {
        let Some(path) = shared(&format!("data/tokenizers/{name}")) else { return };
        let tokenizer = Tokenizer::open(path).unwrap();
        assert_eq!(tokenizer.decode(&ids).unwrap(), golden, "{name}");
        let mut stream = TextStream::new(&tokenizer);
        let mut text: String = ids.iter().map(|&id| stream.push(id).unwrap().text).collect();
        text.push_str(&stream.finish());
        assert_eq!(text, golden, "{name}");
    }
}

#[test]
fn the_nll_golden_of_llama2c_has_35_tokens() {
    let Some(bin) = shared("data/tokenizers/tok512.bin") else { return };
    let tokenizer = Tokenizer::from_llama2c(bin, 512).unwrap();
    let sentence = "One day, a clever fox found a shiny key under the old oak tree.";
    assert_eq!(tokenizer.encode(sentence, true).unwrap().len(), 35);
}

#[test]
fn a_vocabulary_of_another_model_is_refused() {
    let Some(bin) = shared("data/tokenizers/tok512.bin") else { return };
    let error = Tokenizer::from_llama2c(&bin, 4096).unwrap_err().to_string();
    assert!(error.contains("512") && error.contains("4096") && error.contains("tok512.bin"), "{error}");
    let Some(tiktoken) = shared("data/tokenizers/llama3_tokenizer.model") else { return };
    let error = Tokenizer::open(tiktoken).unwrap_err().to_string();
    assert!(error.contains("tiktoken") && error.contains("tokenizer.json"), "{error}");
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
}

#[test]
fn llama_cpp_encodes_alike() {
    let Some(model) = shared("data/tokenizers/llama2_tokenizer.model") else { return };
    let Some(texts) = shared("data/tokenizers/ggml-vocab-llama-spm.gguf.inp") else { return };
    let Some(want) = shared("data/tokenizers/ggml-vocab-llama-spm.gguf.out") else { return };
    let tokenizer = Tokenizer::open(model).unwrap();
    let (texts, want) = (fs::read_to_string(texts).unwrap(), fs::read_to_string(want).unwrap());
    // Every text, the last one too, is followed by the separator.
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
    let Some(dir) = shared("models/tiny") else { return };
    let tokenizer = Tokenizer::open(&dir).unwrap().with_special(Some(0), vec![1]).unwrap();
    tokenizer.check_vocab(1024).unwrap();
    let text = fs::read_to_string(dir.join("golden.txt")).unwrap();
    let ids = ids(&dir.join("golden.npz"));
    assert_eq!(tokenizer.decode(&ids).unwrap(), text);
    assert_eq!(tokenizer.encode("Once upon a time", true).unwrap(), ids[..5.min(ids.len())]);
}

/// The crate's own decoder is the reference for what has no broken bytes.
#[test]
fn decoding_agrees_with_the_tokenizers_crate() {
    for (name, vocab) in
        [("data/tokenizers/bitnet_b1_58-large_tokenizer.json", 32_002), ("models/tiny/tokenizer.json", 1024)]
    {
        let Some(path) = shared(name) else { return };
        let ours = Tokenizer::open(&path).unwrap();
        let theirs = tokenizers::Tokenizer::from_file(&path).unwrap();
        let mut rng = Rng::new(11);
        let mut compared = 0;
        for _ in 0..400 {
            let ids: Vec<u32> = (0..rng.below(12)).map(|_| rng.below(vocab) as u32).collect();
            if String::from_utf8(ours.decode_bytes(&ids).unwrap()).is_ok() {
                assert_eq!(ours.decode(&ids).unwrap(), theirs.decode(&ids, true).unwrap(), "{ids:?}");
                compared += 1;
            }
        }
        assert!(compared > 50, "{name}: {compared}");
    }
}

#[test]
fn the_vocabulary_inside_a_gguf_file_encodes_alike() {
    let Some(path) = shared("data/tokenizers/ggml-vocab-llama-spm.gguf") else { return };
    let file = trike_format::Gguf::open(&path).unwrap();
    let tokenizer = trike_llm::gguf_tokenizer(&file).unwrap().expect("it is a vocabulary");
    let inputs = fs::read_to_string(path.with_extension("gguf.inp")).unwrap();
    let outputs = fs::read_to_string(path.with_extension("gguf.out")).unwrap();
    let mut inputs: Vec<&str> = inputs.split("\n__ggml_vocab_test__\n").collect();
    assert_eq!(inputs.pop(), Some(""));
    assert_eq!(inputs.len(), outputs.lines().count());
    for (text, want) in inputs.iter().zip(outputs.lines()) {
        let want: Vec<u32> = want.split_whitespace().map(|id| id.parse().unwrap()).collect();
        assert_eq!(tokenizer.encode(text, false).unwrap(), want, "{text:?}");
    }
}

#[test]
fn a_gguf_vocabulary_of_another_kind_is_refused_by_name() {
    let Some(path) = shared("data/tokenizers/ggml-vocab-gpt-2.gguf") else { return };
    let error = trike_llm::gguf_tokenizer(&trike_format::Gguf::open(path).unwrap()).unwrap_err();
    assert!(error.to_string().contains("gpt2"), "{error}");
}
