//! Files of every format, intact and broken, through the public constructors.

use std::fs;

use serde_json::{Value, json};
use tempfile::tempdir;

use super::*;

/// A byte-level `tokenizer.json`: 256 bytes, `he` (256), `<s>` (257, special), `<t>` (258, not special).
fn byte_level() -> Value {
    let mut vocab = serde_json::Map::new();
    let mut other = 0x100;
    for byte in 0..=255u32 {
        let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let stand_in = if printable { byte } else { other };
        other += u32::from(!printable);
        vocab.insert(char::from_u32(stand_in).unwrap().to_string(), json!(byte));
    }
    vocab.insert("he".to_owned(), json!(256));
    let added = |id: u32, content: &str, special: bool| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": special})
    };
    let part =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0",
        "added_tokens": [added(257, "<s>", true), added(258, "<t>", false)],
        "normalizer": null,
        "pre_tokenizer": part,
        "decoder": part,
        "model": {"type": "BPE", "vocab": vocab, "merges": ["h e"]},
    })
}

/// `byte_level` with the value at a path replaced.
fn changed(pointer: &str, value: Value) -> Vec<u8> {
    let mut json = byte_level();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    json.pointer_mut(parent).unwrap()[key] = value;
    json.to_string().into_bytes()
}

fn open_json() -> Tokenizer {
    Tokenizer::from_hf_json_bytes(byte_level().to_string().as_bytes())
        .unwrap()
        .with_special(Some(257), vec![258])
        .unwrap()
}

#[test]
fn a_byte_level_json_goes_both_ways() {
    let t = open_json();
    assert_eq!(t.vocab_size(), 259);
    assert_eq!((t.bos(), t.eos(), t.id_of("he"), t.id_of("no")), (Some(257), &[258][..], Some(256), None));
    let text = "he said: é\n\u{1F600} ";
    let ids = t.encode(text, false).unwrap();
    assert_eq!(ids[0], 256);
    assert_eq!(t.decode(&ids).unwrap(), text);
    assert_eq!(t.token_bytes(256).unwrap(), b"he");
    assert_eq!(t.token_bytes(257).unwrap(), b"");
    assert_eq!(t.decode(&[257, 258, 256]).unwrap(), "<t>he");
    assert_eq!(t.decode(&[0xc3, 256, 0xa9]).unwrap(), "\u{FFFD}he\u{FFFD}");
    assert_eq!(t.decode_bytes(&[0xc3, 256]).unwrap(), b"\xc3he");
}

#[test]
fn bos_comes_exactly_once() {
    let t = open_json();
    assert_eq!(t.encode("he", true).unwrap(), [257, 256]);
    assert_eq!(t.encode("<s>he", true).unwrap(), [257, 256]);
    assert_eq!(t.encode("<s>he", false).unwrap(), [257, 256]);
    assert_eq!(t.encode("", true).unwrap(), [257]);
    let none = t.with_special(None, vec![]).unwrap();
    assert!(matches!(none.encode("he", true), Err(TokenizerError::NoBos)));
    assert!(matches!(
        none.with_special(Some(259), vec![]),
        Err(TokenizerError::UnknownId { id: 259, vocab_size: 259 })
    ));
}

#[test]
fn post_processor_truncation_and_padding_of_the_file_do_not_change_ids() {
    let post = json!({"type": "TemplateProcessing", "pair": [],
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [257], "tokens": ["<s>"]}}});
    let truncation = json!({"max_length": 1, "strategy": "LongestFirst", "stride": 0, "direction": "Right"});
    let padding = json!({"strategy": {"Fixed": 9}, "direction": "Left", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "!"});
    for (pointer, value) in [("/post_processor", post), ("/truncation", truncation), ("/padding", padding)] {
        let t = Tokenizer::from_hf_json_bytes(&changed(pointer, value)).unwrap();
        assert_eq!(t.encode("he!", false).unwrap(), [256, u32::from(b'!')], "{pointer}");
    }
}

#[test]
fn parts_that_would_change_text_are_refused_by_name() {
    let table = [
        ("/model/type", json!("Unigram"), "Unigram"),
        ("/model/type", json!("WordPiece"), "WordPiece"),
        ("/model/dropout", json!(0.1), "dropout"),
        ("/model/continuing_subword_prefix", json!("##"), "continuing_subword_prefix"),
        ("/model/end_of_word_suffix", json!("</w>"), "end_of_word_suffix"),
        ("/normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"}), "Precompiled"),
        ("/normalizer", json!({"type": "Sequence", "normalizers": [{"type": "Precompiled"}]}), "Precompiled"),
        ("/decoder", json!({"type": "WordPiece", "prefix": "##", "cleanup": true}), "WordPiece"),
        ("/decoder", json!(null), "of no type"),
        (
            "/decoder",
            json!({"type": "Sequence", "decoders": [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]}),
            "Strip",
        ),
        ("/decoder", json!({"type": "Replace", "pattern": {"Regex": "a"}, "content": ""}), "Replace"),
    ];
    for (pointer, value, part) in table {
        let error = Tokenizer::from_hf_json_bytes(&changed(pointer, value.clone())).unwrap_err();
        assert!(matches!(error, TokenizerError::Unsupported { .. }), "{pointer} {value}: {error}");
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn broken_json_is_an_error_that_names_the_place() {
    let table = [
        ("/model/vocab/he", json!(255), "id 255"),
        ("/model/vocab/he", json!(-1), "\"he\""),
        ("/model/vocab/he", json!(1u64 << 40), "\"he\""),
        ("/model/merges", json!(["h e e"]), "tokenizer.json"),
        ("/model/merges", json!(["h z", "hz e"]), "tokenizer.json"),
        ("/added_tokens/0/id", json!(300), "\"<s>\""),
        ("/added_tokens/0/content", json!(""), "added_tokens"),
        ("/version", json!("2.0"), "version"),
    ];
    for (pointer, value, part) in table {
        let error = Tokenizer::from_hf_json_bytes(&changed(pointer, value.clone())).unwrap_err().to_string();
        assert!(error.contains(part), "{pointer} {value}: {error}");
    }
    let whole = byte_level().to_string().into_bytes();
    for end in 0..whole.len() {
        assert!(Tokenizer::from_hf_json_bytes(&whole[..end]).is_err(), "cut at {end}");
    }
    for value in ["[]", "{}", "null", "{\"model\": 1}", "{\"decoder\": {\"type\": 3}}"] {
        assert!(Tokenizer::from_hf_json_bytes(value.as_bytes()).is_err(), "{value}");
    }
}

/// As in the `tokenizers` package, and as a published vocabulary requires: 21 of its bytes have no token.
#[test]
fn text_without_a_token_is_dropped_or_unknown() {
    let mut json = byte_level();
    let vocab = json["model"]["vocab"].as_object_mut().unwrap();
    let id = vocab.remove("z").unwrap();
    vocab.insert("zz".to_owned(), id);
    let t = Tokenizer::from_hf_json_bytes(json.to_string().as_bytes()).unwrap();
    assert_eq!(t.encode("hzez", false).unwrap(), [256]);
    json["model"]["unk_token"] = json!("zz");
    let t = Tokenizer::from_hf_json_bytes(json.to_string().as_bytes()).unwrap();
    let z = u32::from(b'z');
    assert_eq!(t.encode("hzez", false).unwrap(), [u32::from(b'h'), z, u32::from(b'e'), z]);
}

#[test]
fn sentencepiece_decoders_of_json_become_the_table() {
    let mut vocab: serde_json::Map<_, _> = (0..=255u32).map(|b| (format!("<0x{b:02X}>"), json!(b))).collect();
    for (i, token) in ["\u{2581}", "a", "\u{2581}a"].into_iter().enumerate() {
        vocab.insert(token.to_owned(), json!(256 + i));
    }
    let sequence = json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
    let metaspace = json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"},
        {"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "first", "split": false}]});
    let never = json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"},
        {"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "never", "split": false}]});
    for (decoder, want) in [(sequence, "a aé"), (metaspace, "a aé"), (never, " a aé")] {
        let json = json!({"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
            "decoder": decoder, "model": {"type": "BPE", "byte_fallback": true, "vocab": vocab,
            "merges": [["\u{2581}", "a"]]}});
        let t = Tokenizer::from_hf_json_bytes(json.to_string().as_bytes()).unwrap();
        assert_eq!(t.decode(&[258, 258, 0xc3, 0xa9]).unwrap(), want);
        assert_eq!(t.encode("\u{2581}aé", false).unwrap(), [258, 0xc3, 0xa9]);
    }
}

fn llama2c(tokens: usize) -> Vec<u8> {
    let mut bytes = 7i32.to_le_bytes().to_vec();
    let mut push = |token: &str| {
        bytes.extend(0f32.to_le_bytes());
        bytes.extend((token.len() as i32).to_le_bytes());
        bytes.extend(token.as_bytes());
    };
    ["<unk>", "\n<s>\n", "\n</s>\n"].into_iter().for_each(&mut push);
    (3..tokens).for_each(|i| push(&format!("{i}")));
    bytes
}

#[test]
fn open_tells_the_formats_apart_by_content() {
    let dir = tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    assert_eq!(Tokenizer::open(write("a", &llama2c(9))).unwrap().vocab_size(), 9);
    let json = byte_level().to_string().into_bytes();
    assert_eq!(Tokenizer::open(write("b", &json)).unwrap().vocab_size(), 259);
    let refused = |name: &str, bytes: &[u8], part: &str| {
        let error = Tokenizer::open(write(name, bytes)).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains(name), "{error}");
    };
    refused("c.gguf", b"GGUF\x03\0\0\0", "GGUF");
    refused("d.model", b"IQ== 0\nIg== 1\n", "tiktoken");
    refused("e.txt", b"hello there\n", "format");
    refused("f.bin", b"", "format");
    let error = Tokenizer::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json or tokenizer.model"), "{error}");
    assert!(matches!(
        Tokenizer::open(dir.path().join("none")),
        Err(TokenizerError::InFile { error, .. }) if matches!(*error, TokenizerError::Io(_))
    ));
    write("tokenizer.json", &json);
    assert_eq!(Tokenizer::open(dir.path()).unwrap().vocab_size(), 259);
    let huge = dir.path().join("huge");
    fs::File::create(&huge).unwrap().set_len(limits::MAX_FILE_BYTES + 1).unwrap();
    assert!(Tokenizer::open(huge).unwrap_err().to_string().contains("limit"));
}

#[test]
fn a_tokenizer_must_fit_the_rows_of_the_model() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("t.bin");
    fs::write(&path, llama2c(70)).unwrap();
    let t = Tokenizer::from_llama2c(&path, 70).unwrap();
    for (model, fits) in [(69, false), (70, true), (80, true), (81, false), (512, false), (0, false)] {
        assert_eq!(t.check_vocab(model).is_ok(), fits, "{model}");
        assert!(t.clone().with_rows(model).check_vocab(model).is_ok(), "its own");
        assert_eq!(t.clone().with_rows(9).check_vocab(model).is_ok(), fits, "{model}");
    }
    let error = Tokenizer::from_llama2c(&path, 71).unwrap_err().to_string();
    assert!(error.contains("70 tokens") && error.contains("71 rows"), "{error}");
}

#[test]
fn the_post_processor_says_whether_a_sequence_starts_with_bos() {
    let template = |single: Value| json!({"type": "TemplateProcessing", "single": single});
    let (bos, text) = (json!({"SpecialToken": {"id": "<s>"}}), json!({"Sequence": {"id": "A"}}));
    let bytes = json!({"type": "ByteLevel"});
    for (processor, adds) in [
        (Value::Null, false),
        (template(json!([bos, text])), true),
        (template(json!([text, bos])), false),
        (bytes.clone(), false),
        (json!({"type": "Sequence", "processors": [bytes, template(json!([bos, text]))]}), true),
        (json!({"type": "Sequence", "processors": [bytes]}), false),
    ] {
        let t = Tokenizer::from_hf_json_bytes(&changed("/post_processor", processor.clone())).unwrap();
        assert!(!t.adds_bos(), "without a BOS there is none to add");
        let t = t.with_special(Some(257), vec![]).unwrap();
        assert_eq!(t.adds_bos(), adds, "{processor}");
        assert!(t.with_adds_bos(true).adds_bos());
    }
}

/// A corrupted file is either refused or usable without a panic.
#[test]
fn corrupted_files_never_panic() {
    let sentencepiece = {
        // `a`, `b` and `ab` as a `.model`: pieces, then trainer_spec with model_type BPE.
        let piece =
            |text: &str| [&[0x0a, text.len() as u8 + 2, 0x0a, text.len() as u8], text.as_bytes()].concat();
        [piece("a"), piece("b"), piece("ab"), vec![0x12, 2, 0x18, 2]].concat()
    };
    assert_eq!(Tokenizer::from_bytes(&sentencepiece).unwrap().encode("ab", false).unwrap().last(), Some(&2));
    let mut rng = trike_testkit::Rng::new(5);
    for whole in [llama2c(12), sentencepiece, byte_level().to_string().into_bytes()] {
        let (mut opened, mut refused) = (0, 0);
        for _ in 0..1500 {
            let mut bytes = whole.clone();
            for _ in 0..=rng.below(3) {
                let at = rng.below(bytes.len());
                bytes[at] = match rng.below(3) {
                    0 => rng.below(256) as u8,
                    1 => bytes[at] ^ (1 << rng.below(8)),
                    _ => bytes[rng.below(bytes.len())],
                };
            }
            let Ok(tokenizer) = Tokenizer::from_bytes(&bytes) else {
                refused += 1;
                continue;
            };
            opened += 1;
            if let Ok(ids) = tokenizer.encode(" ab\u{2581}h\u{e9}he<s>12 ", false) {
                tokenizer.decode(&ids).unwrap();
            }
        }
        assert!(opened > 20 && refused > 20, "{opened} {refused}");
    }
}
