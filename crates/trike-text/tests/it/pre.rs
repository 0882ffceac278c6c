//! Every pre-tokenizer named in GGUF files compared with the `tokenizers` package with the same expressions.

use std::collections::BTreeMap;

use serde_json::Value;
use trike_text::tokenizer::PreTokenizer;

/// Made by `pre.py`.
const GOLDEN: &str = include_str!("../data/tokenizer/pre.json");

#[test]
fn every_rule_splits_hard_texts_as_the_tokenizers_package_does() {
    let golden: Value = serde_json::from_str(GOLDEN).unwrap();
    let texts: Vec<&str> = golden["texts"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    let rules = golden["rules"].as_object().unwrap();
    assert_eq!(texts.len(), 20);
    for (name, rows) in rules {
        let rule = PreTokenizer::from_name(name).unwrap();
        assert_eq!(rule.name(), name);
        let all = rule.split(texts.iter().copied()).unwrap();
        for ((text, pieces), row) in texts.iter().zip(&all).zip(rows.as_array().unwrap()) {
            assert_eq!(pieces.concat(), *text, "{name}");
            let lengths: Vec<String> = pieces.iter().map(|p| p.chars().count().to_string()).collect();
            assert_eq!(lengths.join(" "), row.as_str().unwrap(), "{name}: {pieces:?}");
        }
    }
    // Every rule is covered.
    let own: BTreeMap<&str, ()> =
        PreTokenizer::names().filter_map(|name| Some((PreTokenizer::from_name(name)?.name(), ()))).collect();
    assert!(own.keys().eq(rules.keys().collect::<std::collections::BTreeSet<_>>()), "{own:?}");
}
