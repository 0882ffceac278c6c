//! The invariant of the stream as properties over ids that split characters on purpose.

use proptest::prelude::*;

use super::*;
use crate::tokenizer::{PieceType, SpVocab};

/// `<s>`, then the 256 bytes, then pieces of text.
fn tokenizer(pieces: &[&str], add_space_prefix: bool) -> Tokenizer {
    let mut tokens = vec!["<s>".to_owned()];
    tokens.extend((0..=255u8).map(|b| format!("<0x{b:02X}>")));
    let mut types = vec![PieceType::Byte; 257];
    types[0] = PieceType::Control;
    types.extend(pieces.iter().map(|_| PieceType::Normal));
    tokens.extend(pieces.iter().map(|&p| p.to_owned()));
    let scores = vec![0.0; tokens.len()];
    let vocab = SpVocab {
        tokens,
        scores,
        types,
        bos: Some(0),
        eos: vec![],
        unk: None,
        add_space_prefix,
        remove_extra_spaces: false,
    };
    Tokenizer::from_sentencepiece_vocab(&vocab).unwrap()
}

const PIECES: [&str; 8] = ["\u{2581}", "\u{2581}a", "a", "b", "ab", "\u{e9}", "\u{1F600}x", "aba"];

/// Ids that make broken, whole and split characters likely.
fn any_id() -> impl Strategy<Value = u32> {
    // The bytes of é and of an emoji, a lone continuation, a byte that is never UTF-8, a space.
    let bytes = [0xc3u32, 0xa9, 0xf0, 0x9f, 0x98, 0x80, 0xe2, 0x80, 0xff, 0x20, 0x61];
    prop_oneof![
        2 => proptest::sample::select(bytes.to_vec()).prop_map(|b| b + 1),
        3 => 257..257 + PIECES.len() as u32,
        1 => 0..257u32,
    ]
}

fn stream_all(mut stream: TextStream<'_>, ids: &[u32]) -> (String, bool) {
    let mut text = String::new();
    for &id in ids {
        let piece = stream.push(id).unwrap();
        text.push_str(&piece.text);
        assert_eq!(piece.stopped, stream.stopped());
    }
    let stopped = stream.stopped();
    text.push_str(&stream.finish());
    (text, stopped)
}

/// Cuts `text` where the first stop string to be completed starts.
fn cut<'a>(text: &'a str, stops: &[String]) -> (&'a str, bool) {
    for end in 0..=text.len() {
        let Some(head) = text.get(..end) else { continue };
        if let Some(longest) = stops.iter().filter(|s| head.ends_with(s.as_str())).map(String::len).max() {
            return (&head[..end - longest], true);
        }
    }
    (text, false)
}

proptest! {
    #[test]
    fn pieces_joined_are_the_whole_text(
        ids in proptest::collection::vec(any_id(), 0..40),
        prefix in any::<bool>(),
    ) {
        let t = tokenizer(&PIECES, prefix);
        prop_assert_eq!(stream_all(TextStream::new(&t), &ids), (t.decode(&ids).unwrap(), false));
    }

    #[test]
    fn a_stream_goes_on_where_its_context_ends(
        ids in proptest::collection::vec(any_id(), 0..40),
        at in 0usize..40,
        prefix in any::<bool>(),
    ) {
        let t = tokenizer(&PIECES, prefix);
        let (context, rest) = ids.split_at(at.min(ids.len()));
        let (text, _) = stream_all(TextStream::after(&t, context).unwrap(), rest);
        let whole = t.decode(&ids).unwrap();
        prop_assert!(whole.ends_with(&text), "{:?} {:?}", whole, text);
        // The preceding text is the context, except for a character that it leaves incomplete.
        let before = &whole[..whole.len() - text.len()];
        let shown = t.decode(context).unwrap();
        prop_assert!(shown == before || shown == format!("{before}\u{FFFD}"), "{:?} {:?}", shown, before);
    }

    #[test]
    fn stops_cut_the_text_where_the_first_of_them_is_complete(
        ids in proptest::collection::vec(any_id(), 0..40),
        stops in proptest::collection::vec("[ab \u{e9}]{1,4}", 0..4),
    ) {
        let t = tokenizer(&PIECES, true);
        let stream = TextStream::new(&t).with_stops(stops.clone()).unwrap();
        let whole = t.decode(&ids).unwrap();
        let (text, stopped) = cut(&whole, &stops);

        prop_assert_eq!(stream_all(stream, &ids), (text.to_owned(), stopped));
    }
}

#[test]
fn nothing_is_held_longer_than_needed() {
    let t = tokenizer(&PIECES, true);
    let [sp_a, a, b] = [258, 259, 260];
    let mut stream = TextStream::new(&t).with_stops(["aab"]).unwrap();
    let mut push = |id| stream.push(id).unwrap().text;
    assert_eq!(push(0), "");
    assert_eq!(push(sp_a), "", "`a` may begin the stop");
    assert_eq!(push(a), "");
    assert_eq!(push(a), "a", "only the last two can");
    assert_eq!(push(sp_a), "aa ");
    assert_eq!(push(0xc3 + 1), "", "nothing new is text yet");
    assert_eq!(push(b), "a\u{FFFD}b");
}

#[test]
fn after_a_stop_there_is_nothing() {
    let t = tokenizer(&PIECES, false);
    let mut stream = TextStream::new(&t).with_stops(["b"]).unwrap();
    assert_eq!(stream.push(261).unwrap(), Piece { text: "a".to_owned(), stopped: true });
    assert_eq!(stream.push(259).unwrap(), Piece { text: String::new(), stopped: true });
    // After a stop, even an invalid id changes nothing.
    assert!(stream.push(u32::MAX).unwrap().stopped);
    assert_eq!(stream.finish(), "");
}

#[test]
fn errors_leave_the_stream_as_it_was() {
    let t = tokenizer(&PIECES, false);
    assert!(matches!(TextStream::new(&t).with_stops(["a", ""]), Err(TokenizerError::EmptyStop { index: 1 })));
    assert!(matches!(TextStream::after(&t, &[999]), Err(TokenizerError::UnknownId { id: 999, .. })));
    let mut stream = TextStream::new(&t);
    stream.push(0xc3 + 1).unwrap();
    assert!(stream.push(999).is_err());
    assert_eq!(stream.push(0xa9 + 1).unwrap().text, "é");
}
