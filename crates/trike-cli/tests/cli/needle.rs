//! `trike eval --needle`.

use serde_json::Value;
use trike_testkit::assert_near;

use crate::harness::{Trike, tiny};

/// Sentences of about 15 tokens, no two of which begin alike.
pub(crate) fn days(count: usize) -> String {
    (0..count).map(|i| format!("On day {i}, Tom saw {} cats. ", i * i % 97)).collect()
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("a count, got {value}"))
}

#[test]
fn needles_are_looked_for_with_and_without_the_setting() {
    let trike = Trike::new();
    let text = trike.write("days.txt", days(100));
    let args = ["eval", "-m", &tiny(), "--needle", &text, "--context", "256", "--limit", "2", "--json"];
    let of = |more: &[&str]| trike.json(&[&args[..], more].concat())["needle"].clone();
    let plain = of(&[]);
    assert_eq!((count(&plain["context"]), count(&plain["haystacks"]), count(&plain["seed"])), (256, 2, 0));
    assert_eq!(plain["depths"].as_array().map(Vec::len), Some(9));
    assert_eq!(count(&plain["all"]["prompts"]), 9 * (2 - count(&plain["guessed"])));
    assert!(plain["all"]["setting"].is_null(), "{plain}");
    assert_eq!(plain["depths"][8]["distance"], 0.0);
    // A selection of all keys: the same answers.
    let none = of(&["--keys", "signs", "--keys-top-k", "300"]);
    assert_eq!((&none["keys"], count(&none["keys_top_k"])), (&"signs".into(), 300));
    let (exact, setting) = (&none["all"]["exact"], &none["all"]["setting"]);
    assert_eq!(exact["found"], plain["all"]["exact"]["found"]);
    assert_eq!((&setting["found"], &setting["kept"]), (&exact["found"], &exact["found"]));
    assert_near!(setting["change"].as_f64().expect("a number"), 0.0, abs = 1e-4);
    // Few keys and an int8 cache: other answers on the same prompts.
    let few = of(&["--keys", "signs", "--keys-top-k", "8", "--kv", "int8"]);
    assert_eq!((&few["exact_kv"], &few["kv"]), (&"f16".into(), &"int8".into()));
    assert_eq!(few["all"]["exact"]["gain"], plain["all"]["exact"]["gain"]);
    assert_ne!(few["all"]["setting"]["gain"], plain["all"]["exact"]["gain"]);
    let gain = |side: &Value| side["gain"].as_f64().expect("a number");
    let change = few["all"]["setting"]["change"].as_f64().expect("a number");
    assert_near!(change, gain(&few["all"]["setting"]) - gain(&few["all"]["exact"]), abs = 1e-9);
    assert_ne!(of(&["--seed", "1"])["all"], plain["all"], "other haystacks");
    // A cache that evicts most of the haystack, on the same prompts.
    let forgets = of(&["--kv-limit", "64"]);
    assert_eq!((&forgets["kv_limit"], &forgets["evict"]), (&64.into(), &"oldest".into()));
    assert_eq!(forgets["all"]["exact"]["gain"], plain["all"]["exact"]["gain"]);
    assert_ne!(forgets["all"]["setting"]["gain"], plain["all"]["exact"]["gain"]);
}

#[test]
fn the_table_has_a_line_per_depth() {
    let trike = Trike::new();
    let text = trike.write("days.txt", days(60));
    let args = ["eval", "-m", &tiny(), "--needle", &text, "--context", "256", "--limit", "1"];
    let shown = trike.stdout(&args);
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[0].starts_with("depth") && !lines[0].contains("setting"), "{shown}");
    assert!(lines[9].starts_with("100.0 %") && lines[10].starts_with("all"), "{shown}");
    assert!(shown.contains("1, prompts of 256 tokens, needles of ") && !shown.contains("+-"), "{shown}");
    let shown = trike.stdout(&[&args[..], &["--kv", "int8"]].concat());
    let setting = shown.lines().find(|line| line.starts_with("setting "));
    assert!(setting.is_some_and(|line| line.ends_with("KV cache int8, all keys")), "{shown}");
    assert!(shown.contains("of those of exact"), "{shown}");
}

#[test]
fn unsuitable_needles_are_explained() {
    let trike = Trike::new();
    let (short, text) = (trike.write("short.txt", days(3)), trike.write("days.txt", days(60)));
    let words = trike.write("words.txt", "the sea ".repeat(400));
    let fails = |code: i32, args: &[&str]| trike.fails(code, &[&["eval", "-m", &tiny()], args].concat());
    for (code, args, parts) in [
        (1, vec!["--needle", &short], ["short.txt", "expected at least 511 tokens", "--context N"]),
        (
            1,
            vec!["--needle", &words],
            ["words.txt", "expected a sentence of 8 to 64 tokens", "--needle FILE"],
        ),
        (
            2,
            vec!["--needle", &text, "--context", "513"],
            ["context is 513", "expected 64 to 512", "--context"],
        ),
        (2, vec!["--needle", &text, "--context", "63"], ["context is 63", "expected 64 to 512", "--context"]),
        (2, vec!["--needle", &text, "--limit", "0"], ["haystacks is 0", "at least 1", "--limit"]),
        (2, vec!["--text", &text, "--context", "100"], ["--needle", "--context", "required"]),
        (2, vec!["--text", &text, "--seed", "1"], ["--needle", "--seed", "required"]),
        (2, vec!["--needle", &text, "--base", &tiny()], ["--text", "--base", "required"]),
        (2, vec!["--needle", &text, "--split", "lines"], ["--text", "--split", "required"]),
        (2, vec!["--needle", &text, "--keys-top-k", "9"], ["--keys-top-k", "needs --keys signs", "all"]),
    ] {
        let said = fails(code, &args);
        assert!(parts.iter().all(|part| said.contains(part)), "{args:?}: {said}");
    }
}
