//! Any bytes as a tokenizer file of each kind: what opens encodes and decodes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trike_text::{
    stream::TextStream,
    tokenizer::{Tokenizer, TokenizerError},
};

/// Text with every kind of character that splits or normalizes.
const TEXT: &str =
    "One 12345 \u{e9}\u{301} \u{4f60}\u{597d} \u{1f9d1}\u{200d}\u{1f680} <s></s> <|eot_id|>\n\n  end";

fn use_it(tokenizer: Result<Tokenizer, TokenizerError>) {
    let tokenizer = match tokenizer {
        Ok(tokenizer) => tokenizer,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    for text in ["", " ", TEXT] {
        let Ok(ids) = tokenizer.encode(text, false) else { continue };
        assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
        let whole = tokenizer.decode(&ids).expect("ids that it gave");
        let mut stream = TextStream::new(&tokenizer);
        let mut pieces: String =
            ids.iter().map(|&id| stream.push(id).expect("ids that it gave").text).collect();
        pieces.push_str(&stream.finish());
        assert_eq!(pieces, whole);
        let _ = (tokenizer.encode_with_special(text), tokenizer.encode_literal(text));
    }
    let _ = tokenizer.check_vocab(tokenizer.vocab_size());
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, data)) = data.split_first() else { return };
    match kind % 4 {
        0 => use_it(Tokenizer::from_hf_json_bytes(data)),
        1 => use_it(Tokenizer::from_llama2c(trike_fuzz::put("tokenizer.bin", data), 5)),
        2 => use_it(Tokenizer::from_sentencepiece(trike_fuzz::put("tokenizer.model", data))),
        _ => use_it(Tokenizer::open(trike_fuzz::put("tokenizer.model", data))),
    }
});
