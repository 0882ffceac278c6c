//! The SentencePiece encoder compared with its definition, and every rule around the merges.

use proptest::prelude::*;

use super::*;

/// A vocabulary of normal pieces after `<unk>`, without space handling.
fn vocab(pieces: &[(&str, f32)]) -> SpVocab {
    let mut vocab = SpVocab {
        tokens: vec!["<unk>".to_owned()],
        scores: vec![0.0],
        types: vec![PieceType::Unknown],
        bos: None,
        eos: Vec::new(),
        unk: None,
        add_space_prefix: false,
        remove_extra_spaces: false,
    };
    for (piece, score) in pieces {
        push(&mut vocab, piece, *score, PieceType::Normal);
    }
    vocab
}

fn push(vocab: &mut SpVocab, piece: &str, score: f32, kind: PieceType) {
    vocab.tokens.push(piece.to_owned());
    vocab.scores.push(score);
    vocab.types.push(kind);
}

fn push_bytes(vocab: &mut SpVocab) {
    for byte in 0..=255u8 {
        push(vocab, &format!("<0x{byte:02X}>"), 0.0, PieceType::Byte);
    }
}

fn build(vocab: &SpVocab) -> Result<(SpEncoder, Pieces), TokenizerError> {
    SpEncoder::new(vocab, SpaceForm::Symbol, ByteFallback::WhereComplete)
}

fn encode(vocab: &SpVocab, text: &str) -> Vec<u32> {
    let (encoder, _) = build(vocab).unwrap();
    let mut ids = Vec::new();
    encoder.encode(text, &mut ids).unwrap();
    ids
}

fn split(vocab: &SpVocab, text: &str) -> Vec<String> {
    encode(vocab, text).iter().map(|&id| vocab.tokens[id as usize].clone()).collect()
}

/// The definition: repeatedly merge the best-scoring adjacent pair, the leftmost on ties.
fn oracle(vocab: &SpVocab, text: &str) -> Vec<String> {
    let mut parts: Vec<String> = text.chars().map(String::from).collect();
    let score = |piece: &str| vocab.tokens.iter().position(|t| t == piece).map(|i| vocab.scores[i]);
    loop {
        let mut best: Option<(f32, usize)> = None;
        for i in 1..parts.len() {
            let merged = score(&format!("{}{}", parts[i - 1], parts[i]));
            if let Some(s) = merged.filter(|s| best.is_none_or(|(b, _)| *s > b)) {
                best = Some((s, i));
            }
        }
        let Some((_, right)) = best else { return parts };
        let tail = parts.remove(right);
        parts[right - 1].push_str(&tail);
    }
}

#[test]
fn equal_scores_merge_the_leftmost_pair() {
    let v = vocab(&[("a", 0.0), ("b", 0.0), ("c", 0.0), ("ab", -1.0), ("bc", -1.0), ("ca", -1.0)]);
    // No ranking of pairs gives all three.
    assert_eq!(split(&v, "abc"), ["ab", "c"]);
    assert_eq!(split(&v, "bca"), ["bc", "a"]);
    assert_eq!(split(&v, "cab"), ["ca", "b"]);
}

#[test]
fn negative_zero_is_zero() {
    let v = vocab(&[("a", 0.0), ("b", 0.0), ("c", 0.0), ("ab", -0.0), ("bc", 0.0)]);
    assert_eq!(split(&v, "abc"), ["ab", "c"]);
}

proptest! {
    #[test]
    fn merging_follows_the_definition(
        pieces in proptest::collection::hash_set("[abc]{2,5}", 0..25),
        scores in proptest::collection::vec(-4i8..0, 25),
        text in "[abc]{0,40}",
    ) {
        let mut v = vocab(&[("a", -9.0), ("b", -9.0), ("c", -9.0)]);
        for (piece, score) in pieces.iter().zip(scores) {
            push(&mut v, piece, score.into(), PieceType::Normal);
        }
        prop_assert_eq!(split(&v, &text), oracle(&v, &text));
    }
}

#[test]
fn user_defined_pieces_are_matched_first_longest_first_and_never_merged() {
    let mut v = vocab(&[("a", 0.0), ("b", 0.0), ("x", 0.0), ("xa", -1.0), ("ax", -1.0), ("bx", -1.0)]);
    push(&mut v, "ab", 0.0, PieceType::UserDefined);
    push(&mut v, "abé", 0.0, PieceType::UserDefined);
    assert_eq!(split(&v, "xabxa"), ["x", "ab", "xa"]);
    assert_eq!(split(&v, "abéabx"), ["abé", "ab", "x"]);
}

#[test]
fn unused_pieces_are_taken_apart_again() {
    let mut v = vocab(&[("a", 0.0), ("b", 0.0), ("ab", -1.0), ("abab", -3.0)]);
    push(&mut v, "ababab", -4.0, PieceType::Unused);
    assert_eq!(split(&v, "ababab"), ["abab", "ab"]);
}

#[test]
fn unknown_text_becomes_bytes_else_one_unknown_piece_a_run_else_an_error() {
    let mut v = vocab(&[("a", 0.0)]);
    assert_eq!(encode(&v, "aééa"), [1, 0, 1]);
    v.unk = Some(9);
    assert!(matches!(build(&v), Err(TokenizerError::UnknownId { id: 9, .. })));

    v.unk = None;
    v.types[0] = PieceType::Control;
    let (encoder, _) = build(&v).unwrap();
    let error = encoder.encode("aé", &mut Vec::new()).unwrap_err();
    assert!(matches!(error, TokenizerError::Unencodable { character: 'é', offset: 1 }), "{error}");

    push_bytes(&mut v);
    assert_eq!(encode(&v, "aé"), [1, 2 + 0xc3, 2 + 0xa9]);
    // If one byte piece is missing there is no fallback.
    v.tokens.pop();
    v.scores.pop();
    v.types.pop();
    assert!(build(&v).unwrap().0.encode("é", &mut Vec::new()).is_err());
}

#[test]
fn byte_fallback_is_as_the_file_says() {
    let mut v = vocab(&[("a", 0.0)]);
    let error = SpEncoder::new(&v, SpaceForm::Symbol, ByteFallback::Required).err().unwrap();
    assert!(error.to_string().contains("256 without one"), "{error}");
    push_bytes(&mut v);
    assert!(SpEncoder::new(&v, SpaceForm::Symbol, ByteFallback::Required).is_ok());
    let (off, _) = SpEncoder::new(&v, SpaceForm::Symbol, ByteFallback::Off).unwrap();
    let mut ids = Vec::new();
    off.encode("é", &mut ids).unwrap();
    assert_eq!(ids, [0]);
}

#[test]
fn control_and_byte_names_in_text_are_text() {
    let mut v = vocab(&[("<", 0.0), ("s", 0.0), (">", 0.0), ("<s", -1.0)]);
    push(&mut v, "<s>", 0.0, PieceType::Control);
    assert_eq!(split(&v, "<s>"), ["<s", ">"]);
}

#[test]
fn spaces_are_escaped_prefixed_and_collapsed_as_the_flags_say() {
    let table = [
        (false, false, " a  b ", "_a__b_"),
        (true, false, " a  b ", "__a__b_"),
        (false, true, "  a   b  ", "a_b"),
        (true, true, "  a   b  ", "_a_b"),
        (true, true, "   ", ""),
        (true, false, "", ""),
        (true, false, "a\u{2581}", "_a_"),
        (true, true, "a\u{2581} ", "_a"),
    ];
    for (prefix, collapse, text, want) in table {
        let mut v = vocab(&[]);
        (v.add_space_prefix, v.remove_extra_spaces) = (prefix, collapse);
        let (encoder, _) = build(&v).unwrap();
        assert_eq!(
            encoder.normalize(text, prefix).replace(SPACE_SYMBOL, "_"),
            want,
            "{text:?} {prefix} {collapse}"
        );
    }
}

#[test]
fn inconsistent_vocabularies_are_refused() {
    let good = vocab(&[("a", 0.0)]);
    let refused = |change: fn(&mut SpVocab), part: &str| {
        let mut v = good.clone();
        change(&mut v);
        let error = build(&v).err().unwrap().to_string();
        assert!(error.contains(part), "{error}");
    };
    refused(|v| v.scores.truncate(1), "scores: expected as many entries as tokens, got 1 for 2");
    refused(|v| v.types.truncate(1), "token types");
    refused(|v| v.scores[1] = f32::NAN, "score of token 1 \"a\"");
    refused(|v| v.types[1] = PieceType::Byte, "byte token 1");
    refused(|v| (v.tokens, v.scores, v.types) = Default::default(), "at least one token");
    refused(|v| v.tokens[1] = "x".repeat(4097), "4097");
}

#[test]
fn piece_types_have_the_numbers_of_the_file() {
    let all: Vec<_> = (0..8).filter_map(PieceType::from_number).collect();
    use PieceType::{Byte, Control, Normal, Unknown, Unused, UserDefined};
    assert_eq!(all, [Normal, Unknown, Control, UserDefined, Unused, Byte]);
}
