//! The table of keys in the book compared with the lists in the code.

use trike_text::tokenizer::keys::{ADDED_TOKENS, GGUF, Key, SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG, Treatment};

#[test]
fn the_book_has_the_same_table() {
    let book = include_str!("../../../../docs/src/keys/tokenizer.md");
    let mut rows = book.lines().filter(|line| line.starts_with("| `"));
    let mut seen = std::collections::HashSet::new();
    let files = [TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP, ADDED_TOKENS, GGUF];
    for (file, keys) in files.iter().enumerate() {
        for Key { name, treatment, note } in *keys {
            let treatment = match treatment {
                Treatment::Read => "read",
                Treatment::NoEffect => "no effect",
                Treatment::Refused => "refused",
            };
            assert_eq!(rows.next(), Some(&*format!("| `{name}` | {treatment} | {note} |")));
            assert!(seen.insert((file, name)), "{name} stands twice");
        }
    }
    assert_eq!(rows.next(), None);
}
