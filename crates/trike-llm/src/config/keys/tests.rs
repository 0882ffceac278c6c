//! The page of the book lists the same keys.

use std::fmt::Write as _;

use super::*;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/keys/model.md");
/// Set to write the tables of the page instead of comparing them.
const UPDATE: &str = "UPDATE_REFERENCE";
const START: &str = "## `config.json`\n";

/// The tables: one section per file.
fn tables() -> String {
    let mut text = String::new();
    for (title, keys) in [
        ("`config.json`", &CONFIG),
        ("`rope_parameters` and `rope_scaling` in `config.json`", &ROPE),
        ("`generation_config.json`", &GENERATION),
        ("GGUF: the architecture's namespace, such as `llama.`", &ARCHITECTURE),
        ("GGUF: other namespaces", &NAMESPACES),
    ] {
        let count = |test: fn(&Status) -> bool| keys.list.iter().filter(|(_, status)| test(status)).count();
        let read = count(|s| matches!(s, Status::Read | Status::OfFamily(..)));
        let none = count(|s| matches!(s, Status::NoEffect(_)));
        let refused = count(|s| matches!(s, Status::Refused(_)));
        write!(text, "## {title}\n\n{read} read, {none} without effect, {refused} refused.\n\n").unwrap();
        text += "| status | keys |\n|---|---|\n";
        // One row per status, in the order of the list.
        let mut rows: Vec<(String, Vec<String>)> = Vec::new();
        for (name, status) in keys.list {
            let refused = |values: &[f64]| match values {
                [] => "refused".to_owned(),
                values => {
                    let values: Vec<String> = values.iter().map(f64::to_string).collect();
                    format!("refused unless {}", values.join(" or "))
                }
            };
            let status = match status {
                Status::Read => "read".to_owned(),
                Status::NoEffect(why) => format!("without effect: {why}"),
                Status::Refused(values) => refused(values),
                Status::OfFamily(family, values) => {
                    format!("read for {}, otherwise {}", family.name(), refused(values))
                }
            };
            let name = format!("`{name}`");
            match rows.iter_mut().find(|(known, _)| *known == status) {
                Some((_, names)) => names.push(name),
                None => rows.push((status, vec![name])),
            }
        }
        for (status, names) in rows {
            writeln!(text, "| {status} | {} |", names.join(", ")).unwrap();
        }
        text.push('\n');
    }
    text.trim_end().to_owned() + "\n"
}

#[test]
fn the_page_lists_every_key() {
    let page = std::fs::read_to_string(PAGE).expect("the page");
    let start = page.find(START).expect("the first table");
    let written = page[..start].to_owned() + &tables();
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(PAGE, &written).expect("the page is written");
        return;
    }
    assert!(page == written, "{PAGE} is out of date: run this test with {UPDATE}=1");
}

#[test]
fn a_key_is_listed_once_and_stars_stand_last() {
    for keys in [CONFIG, ROPE, GENERATION, ARCHITECTURE, NAMESPACES] {
        for (i, (name, _)) in keys.list.iter().enumerate() {
            assert!(!keys.list[..i].iter().any(|(other, _)| other == name), "{name} twice");
            assert!(!name[..name.len() - 1].contains('*'), "{name}");
        }
    }
}

#[test]
fn the_nearest_key_is_named_if_there_is_one() {
    assert_eq!(CONFIG.nearest("num_kv_heads"), None);
    assert_eq!(CONFIG.nearest("num_key_value_head"), Some("num_key_value_heads"));
    assert_eq!(ARCHITECTURE.nearest("rope.freqbase"), Some("rope.freq_base"));
}

#[test]
fn generation_settings_that_are_not_implemented_are_named() {
    let check =
        |text: &str| GENERATION.check_json(Path::new("g"), None, &serde_json::from_str(text).unwrap());
    for good in [
        r#"{"do_sample": true, "temperature": 0.6, "num_beams": 1, "typical_p": 1.0, "stop_strings": null}"#,
        r#"{"_from_model_config": true, "no_repeat_ngram_size": 0, "max_new_tokens": 2048, "bad_words_ids": []}"#,
    ] {
        check(good).unwrap();
    }
    for (bad, word) in [
        (r#"{"num_beams": 4}"#, "num_beams"),
        (r#"{"no_repeat_ngram_size": 3}"#, "no_repeat_ngram_size"),
        (r#"{"suppress_tokens": [3]}"#, "suppress_tokens"),
        (r#"{"stop_strings": ["x"]}"#, "stop_strings"),
        (r#"{"temprature": 0.1}"#, "`temperature`"),
    ] {
        let error = check(bad).unwrap_err().to_string();
        assert!(error.contains(word), "{bad}: {error}");
    }
}
