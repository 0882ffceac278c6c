//! Files of tokenizers, written without the code that reads them.

use std::{collections::BTreeSet, fs};

use serde_json::{Value, json};

use crate::tiny;

/// Special tokens and bytes, which come first in a SentencePiece vocabulary.
const BEFORE_PIECES: usize = 3 + 256;
/// Tokens of Llama 3's vocabulary, without the special ones: the only number that readers of tiktoken files accept.
const LLAMA3_TOKENS: usize = 128_000;
/// Words of the byte-level vocabulary: each prefix of each is a token.
const WORDS: [&str; 12] = [
    "Once", " upon", " a", " time", " there", " was", " little", " girl", " named", " Lily", " the", " with",
];

/// The pieces of the bundled model's vocabulary, which is that of stories260K, with `\u{2581}` for a space.
pub(crate) fn pieces() -> Vec<String> {
    let text = fs::read_to_string(tiny().join("tokenizer.json")).expect("the bundled model");
    let json: Value = serde_json::from_str(&text).expect("JSON");
    let vocab = json["model"]["vocab"].as_object().expect("a vocabulary");
    let mut pieces = vec![String::new(); vocab.len()];
    for (piece, id) in vocab {
        pieces[id.as_u64().expect("an id") as usize].clone_from(piece);
    }
    pieces
}

/// The score of a piece: the sooner a pair is merged, the higher is that of the result. The first one's is -0, as SentencePiece
/// writes it.
fn score(id: usize) -> f32 {
    if id < BEFORE_PIECES { 0.0 } else { -((id - BEFORE_PIECES) as f32) }
}

/// The bundled model's vocabulary as llama2.c stores it: the file `tok512.bin` of stories260K, byte for byte.
pub fn llama2c_vocabulary() -> Vec<u8> {
    let names: Vec<String> = pieces()
        .into_iter()
        .map(|piece| match piece.as_str() {
            "<s>" => "\n<s>\n".to_owned(),
            "</s>" => "\n</s>\n".to_owned(),
            piece => piece.replace('\u{2581}', " "),
        })
        .collect();
    llama2c_file(&names)
}

/// A vocabulary of `tokens` tokens as llama2.c stores it, all but the first ones made up: of another model.
pub fn other_llama2c_vocabulary(tokens: usize) -> Vec<u8> {
    let mut names = ["<unk>", "\n<s>\n", "\n</s>\n"].map(str::to_owned).to_vec();
    names.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    names.extend((names.len()..tokens).map(|id| format!(" w{id}")));
    llama2c_file(&names)
}

fn llama2c_file(names: &[String]) -> Vec<u8> {
    let longest = names.iter().map(String::len).max().expect("a token") as i32;
    let mut file = longest.to_le_bytes().to_vec();
    for (id, name) in names.iter().enumerate() {
        file.extend(score(id).to_le_bytes());
        file.extend((name.len() as i32).to_le_bytes());
        file.extend(name.as_bytes());
    }
    file
}

/// The bundled model's vocabulary as SentencePiece stores it, with a normalizer that makes one space of several and removes
/// those at the ends, which is SentencePiece's own default.
pub fn sentencepiece_vocabulary() -> Vec<u8> {
    let mut file = Vec::new();
    for (id, name) in pieces().iter().enumerate() {
        let kind = match id {
            0 => 2,
            1 | 2 => 3,
            id if id < BEFORE_PIECES => 6,
            _ => 1,
        };
        let mut piece = field(1, name.as_bytes());
        piece.push(0x15);
        piece.extend(score(id).to_le_bytes());
        piece.extend([0x18, kind]);
        file.extend(field(1, &piece));
    }
    // model_type = 2 (BPE), byte_fallback (35) = 1, unk_id, bos_id and eos_id (40 to 42).
    file.extend(field(2, &[0x18, 2, 0x98, 2, 1, 0xC0, 2, 0, 0xC8, 2, 1, 0xD0, 2, 2]));
    // add_dummy_prefix (3), remove_extra_whitespaces (4), escape_whitespaces (5).
    file.extend(field(3, &[0x18, 1, 0x20, 1, 0x28, 1]));
    file
}

/// A field of a protocol buffer that holds bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(bytes.len()).expect("a short field")][..], bytes].concat()
}

/// A `tokenizer.json` of bytes, as GPT-2's is, with the special tokens `<|begin|>` (0) and `<|end|>` (1).
pub fn byte_level_tokenizer() -> String {
    let stand_in = byte_stand_ins();
    let mut vocab = vec!["<|begin|>".to_owned(), "<|end|>".to_owned()];
    vocab.extend(stand_in.iter().cloned());
    let mut merges = Vec::new();
    for word in WORDS {
        let bytes: Vec<&str> = word.bytes().map(|byte| stand_in[usize::from(byte)].as_str()).collect();
        for end in 1..bytes.len() {
            let token = bytes[..=end].concat();
            if !vocab.contains(&token) {
                merges.push(format!("{} {}", bytes[..end].concat(), bytes[end]));
                vocab.push(token);
            }
        }
    }
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    let bytes = |prefix: bool| json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": true});
    let vocab: serde_json::Map<String, Value> =
        vocab.into_iter().zip(0_u32..).map(|(token, id)| (token, json!(id))).collect();
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [special(0, "<|begin|>"), special(1, "<|end|>")],
        "normalizer": null,
        "pre_tokenizer": bytes(false),
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|begin|>": {"id": "<|begin|>", "ids": [0], "tokens": ["<|begin|>"]}},
        },
        "decoder": bytes(true),
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": merges},
    })
    .to_string()
}

/// Whether GPT-2 has a byte as the character of this code.
fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

/// GPT-2's stand-ins for the 256 bytes.
fn byte_stand_ins() -> Vec<String> {
    let mut other = 0xff;
    (0..=255_u8)
        .map(|byte| {
            other += u32::from(!is_printable(byte));
            let code = if is_printable(byte) { u32::from(byte) } else { other };
            char::from_u32(code).expect("a character").to_string()
        })
        .collect()
}

/// A tiktoken file with as many tokens as Llama 3's: the bytes in the same order, numbers, words of chat templates, and made-up
/// words, which begin with a space or not, each after its own beginning.
pub fn tiktoken_vocabulary() -> Vec<u8> {
    let mut tokens: Vec<Vec<u8>> =
        (0..=255_u8).filter(|&byte| is_printable(byte)).map(|byte| vec![byte]).collect();
    tokens.extend((0..=255_u8).filter(|&byte| !is_printable(byte)).map(|byte| vec![byte]));
    tokens.extend((0..100).map(|number| format!("{number:02}").into_bytes()));
    tokens.extend((0..1000).map(|number| format!("{number:03}").into_bytes()));
    tokens.extend(["User", "Assistant"].map(|word| word.as_bytes().to_vec()));
    let mut seen: BTreeSet<Vec<u8>> = tokens.iter().cloned().collect();
    let mut longer: std::collections::VecDeque<Vec<u8>> =
        [b" ".to_vec()].into_iter().chain((b'a'..=b'z').map(|letter| vec![letter])).collect();
    while tokens.len() < LLAMA3_TOKENS {
        let start = longer.pop_front().expect("there is no end of words");
        for letter in b'a'..=b'z' {
            let token = [&start[..], &[letter]].concat();
            if tokens.len() < LLAMA3_TOKENS && seen.insert(token.clone()) {
                tokens.push(token.clone());
                longer.push_back(token);
            }
        }
    }
    let lines = tokens.iter().enumerate().map(|(rank, token)| format!("{} {rank}\n", base64(token)));
    lines.collect::<String>().into_bytes()
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits =
            three.iter().fold(0_u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - three.len()));
        for i in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * i) & 63) as usize];
            text.push(if i <= three.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_pads_to_four_digits() {
        for (bytes, text) in [(&b"!"[..], "IQ=="), (b"fo", "Zm8="), (b"foo", "Zm9v"), (b"\xff\xef\0", "/+8A")]
        {
            assert_eq!(base64(bytes), text);
        }
    }
}
