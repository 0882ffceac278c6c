//! Precisions of the KV cache: by layer, and chosen by the command.

use std::fs;

use crate::harness::{Trike, tiny};

#[test]
fn layers_have_their_precisions() {
    let (trike, model) = (Trike::new(), tiny());
    let text = trike.write("story.txt", "Once upon a time there was a little dog. ".repeat(20));
    let mixed = "int4,int8:0-1";
    let run = trike.json(&["run", &model, "Once", "-n", "2", "--kv", mixed, "--json"]);
    assert_eq!(run["kv"], mixed);
    let of = |kv: &str| {
        let args = ["perplexity", "-m", &model, "-f", &text, "--base", &model, "--kv", kv, "--json"];
        let outcome = trike.json(&args);
        assert_eq!(outcome["kv"], kv);
        outcome["kl"].as_f64().expect("a number")
    };
    let (int4, both, int8) = (of("int4"), of(mixed), of("int8"));
    assert!(int8 < both && both < int4, "{int8} {both} {int4}");
    let bench = ["bench", "-m", &model, "-p", "0", "-n", "2", "-r", "1", "-d", "64", "--kv"];
    let bytes = |kv: &str| {
        let outcome = trike.json(&[&bench[..], &[kv, "--json"]].concat());
        assert_eq!(outcome["kv"], kv);
        outcome["rows"][0]["bytes_per_token"].as_f64().expect("a number")
    };
    assert!(bytes("int4") < bytes(mixed) && bytes(mixed) < bytes("int8"));
    let memory = |kv: &str| {
        let outcome = trike.json(&["inspect", &model, "--memory", "--kv", kv, "--json"]);
        assert_eq!(outcome["kv"], kv);
        outcome["cache"].as_u64().expect("a number")
    };
    let layers = trike.json(&["inspect", &model, "--json"])["model"]["layers"].as_u64().expect("a number");
    assert_eq!(layers * memory(mixed), 2 * memory("int8") + (layers - 2) * memory("int4"));
}

#[test]
fn a_choice_is_made_once() {
    let (trike, model) = (Trike::new(), tiny());
    let auto = ["--kv", "auto", "--kv-kl", "0.01"];
    let words = [&["run", &model, "Once", "-n", "3", "--temperature", "0"], &auto[..]].concat();
    let run = |more: &[&'static str]| [&words[..], more].concat();
    let memory = [&["inspect", &model, "--memory"], &auto[..]].concat();
    assert!(trike.fails(2, &memory).contains("not chosen for this model yet"));
    let (text, first) = trike.both(&run(&[]));
    assert!(first.contains("--kv auto: ") && !first.contains("stored before"), "{first}");
    let (again, second) = trike.both(&run(&[]));
    assert!(second.contains(", stored before; "), "{second}");
    assert_eq!(text, again);

    let outcome = trike.json(&run(&["--json", "-q"]));
    let (kv, chosen) = (outcome["kv"].as_str().expect("a precision"), &outcome["kv_chosen"]);
    assert!(first.contains(&format!("--kv auto: {kv}; ")), "{first}");
    let number = |name: &str| chosen[name].as_f64().unwrap_or_else(|| panic!("{name}: {chosen}"));
    assert_eq!((number("bound"), number("tokens")), (0.01, 256.0));
    assert!(number("kl") + 2.0 * number("kl_error") <= 0.01);
    assert!(number("bytes_per_position") < number("default_bytes_per_position"));
    // An explicit precision gives the same result.
    let given = ["run", &model, "Once", "-n", "3", "--temperature", "0", "--kv", kv];
    assert_eq!(trike.stdout(&given), text);
    let planned = trike.json(&[&memory[..], &["--json"]].concat());
    assert_eq!((&planned["kv"], &planned["kv_chosen"]), (&outcome["kv"], chosen));
    assert_eq!(
        planned["cache"].as_f64().expect("bytes"),
        number("bytes_per_position") * planned["positions"].as_f64().expect("positions")
    );

    // Another bound requires another choice, and so do other activations.
    let folder = trike.path("cache/trike/kv");
    let count = || fs::read_dir(&folder).expect("a folder").count();
    assert_eq!(count(), 1);
    trike.stdout(&["run", &model, "Once", "-n", "1", "--kv", "auto"]);
    trike.stdout(&run(&["--activations", "f32"]));
    assert_eq!(count(), 3);
    // A changed value counts as corruption, too.
    for entry in fs::read_dir(&folder).expect("a folder") {
        let path = entry.expect("a file").path();
        let text = fs::read_to_string(&path).expect("text");
        fs::write(path, text.replacen(&format!("\"kv\":\"{kv}\""), "\"kv\":\"int4\"", 1)).expect("written");
    }
    assert_eq!(trike.json(&run(&["--json", "-q"]))["kv"], kv);
    // A corrupt choice is made again.
    for entry in fs::read_dir(&folder).expect("a folder") {
        fs::write(entry.expect("a file").path(), "{\"kv\": \"int9\"}").expect("written");
    }
    let (_, third) = trike.both(&run(&[]));
    assert!(!third.contains("stored before") && third.contains(&format!("--kv auto: {kv}; ")), "{third}");
}

/// The choice for other contents of the same model is not used, and the reason is printed.
#[test]
fn a_choice_is_one_of_the_model_as_it_is() {
    let trike = Trike::new();
    let copy = trike.copy_model(&tiny(), "copy");
    let model = copy.to_str().expect("UTF-8");
    let auto = ["run", model, "Once", "-n", "1", "--kv", "auto", "--kv-kl", "0.05"];
    trike.stdout(&auto);
    assert!(trike.both(&auto).1.contains(", stored before; "));
    let config = copy.join("config.json");
    let text = fs::read_to_string(&config).expect("text");
    fs::write(&config, text.replacen("10000", "20000", 1)).expect("written");
    let again = trike.both(&auto).1;
    assert!(again.contains("chosen again, because the content of the model was "), "{again}");
    assert!(!again.contains("stored before"), "{again}");
}

#[test]
fn where_nothing_can_be_chosen_it_is_said() {
    let (trike, model) = (Trike::new(), tiny());
    let out = trike.write("l.npy", "no text");
    for (args, part) in [
        (vec!["logits", "-m", &model, "--ids", "1", "-o", &out, "--kv", "auto"], "a given precision"),
        (vec!["bench", "--synthetic", "125m", "--kv", "auto"], "no text to choose by"),
        (vec!["perplexity", "-m", &model, "-f", &out, "--kv-kl", "0.1"], "--kv-kl: needs --kv auto"),
        (vec!["inspect", &model, "--kv", "int8"], "--memory"),
    ] {
        let error = trike.fails(2, &args);
        assert!(error.contains(part), "{args:?}: {error}");
    }
}
