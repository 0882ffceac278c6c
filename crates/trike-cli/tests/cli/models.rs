//! `trike list`, `show`, `rm`, and the bundled model.

use std::{fs, path::Path};

use trike_testkit::assert_near;

use crate::harness::{Trike, tiny};

/// A cache with the repository `org/name`: two revisions, one of them with two variants.
fn cache(trike: &Trike) -> String {
    let root = trike.path("hf/hub");
    let folder = Path::new(&root).join("models--org--name");
    for sub in ["blobs", "refs", "snapshots/aaa", "snapshots/bbb"] {
        fs::create_dir_all(folder.join(sub)).unwrap();
    }
    fs::write(folder.join("refs/main"), "aaa").unwrap();
    let gguf = trike.path("tiny.gguf");
    trike.stdout(&["convert", &tiny(), &gguf]);
    for name in ["aaa/m-TQ2_0.gguf", "aaa/m-F16.gguf", "bbb/m.gguf"] {
        fs::copy(&gguf, folder.join("snapshots").join(name)).unwrap();
    }
    root
}

#[test]
fn cached_models_are_listed_run_by_their_variants_and_removed() {
    let trike = Trike::new();
    let root = cache(&trike);
    let names = || -> Vec<String> {
        let json = trike.json(&["list", "--json"]);
        assert_eq!(json["cache"], root.as_str());
        let models = json["models"].as_array().expect("models");
        models.iter().map(|model| model["name"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(names(), ["tiny", "org/name:m-F16.gguf", "org/name:m-TQ2_0.gguf", "org/name@bbb"]);
    let text = trike.stdout(&["list"]);
    assert!(text.contains("org/name@bbb") && text.contains("kB") && text.contains("20"), "{text}");
    let story = trike.stdout(&["run", "tiny", "Once", "-n", "4", "--temperature", "0"]);
    for name in [
        "org/name:tq2_0",
        "org/name:m-TQ2_0.gguf",
        "org/name@bbb",
        "hf.co/org/name:TQ2_0",
        "https://huggingface.co/org/name/blob/main/m-TQ2_0.gguf",
        "https://huggingface.co/org/name/tree/bbb",
    ] {
        assert_eq!(trike.stdout(&["run", name, "Once", "-n", "4", "--temperature", "0"]), story, "{name}");
        assert!(trike.stdout(&["show", name]).contains("TQ2_0"), "{name}");
    }
    let error = trike.fails(1, &["run", "org/name", "Once"]);
    assert!(
        error.contains("several GGUF files") && error.contains(":Q2_0") && error.contains("m-F16.gguf"),
        "{error}"
    );
    assert!(trike.fails(1, &["rm", "org/other"]).contains("org/other"));
    assert!(trike.fails(2, &["rm", "nothing"]).contains("expected org/name"));
    // Nothing is removed without confirmation, nor if one of several names is wrong.
    let error = trike.fails(2, &["rm", "org/name"]);
    assert!(error.contains("org/name") && error.contains(&root) && error.contains("--yes"), "{error}");
    assert!(trike.fails(1, &["rm", "-y", "org/name", "org/other"]).contains("org/other"));
    assert_eq!(names().len(), 4);
    let json = trike.json(&["rm", "org/name:F16", "--json", "--yes"]);
    assert!(json["removed"][0]["bytes"].as_u64().expect("a number") > 0, "{json}");
    assert_eq!(names(), ["tiny", "org/name", "org/name@bbb"]);
    let link = "https://huggingface.co/org/name";
    assert!(trike.stdout(&["rm", "-y", link]).starts_with("removed org/name: "));
    assert_eq!(names(), ["tiny"]);
    assert!(!Path::new(&root).join("models--org--name").exists());
}

#[cfg(unix)]
#[test]
fn a_removal_is_asked_for_in_a_terminal() {
    let Some(python) = trike_testkit::python("pty") else { return };
    let trike = Trike::new();
    let folder = trike.path("hf/hub/models--org--name/snapshots/abc");
    fs::create_dir_all(&folder).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/terminal.py");
    for (answer, code, said) in
        [("", 1, "nothing was removed"), ("no", 1, "nothing was removed"), ("y", 0, "removed org/name: ")]
    {
        let mut command = std::process::Command::new(python.get_program());
        command.args([script, answer, "--", env!("CARGO_BIN_EXE_trike"), "rm", "org/name"]);
        command
            .env("HF_HOME", trike.path("hf"))
            .env_remove("HF_HUB_CACHE")
            .env_remove("HUGGINGFACE_HUB_CACHE");
        let output = command.output().expect("it starts");
        let shown = crate::harness::utf8(output.stdout);
        assert_eq!(output.status.code(), Some(code), "{shown}");
        assert!(shown.contains("which other programs share? [y/N] ") && shown.contains(said), "{shown}");
        assert_eq!(Path::new(&folder).exists(), code == 1, "{answer}");
    }
}

#[test]
fn the_bundled_model_is_in_the_command() {
    let trike = Trike::new();
    let shown = trike.json(&["show", "--json"]);
    assert_eq!((&shown["ternary"], &shown["chat"]), (&true.into(), &false.into()));
    assert_eq!(shown["parameters"], trike.json(&["show", &tiny(), "--json"])["parameters"]);
    let path = shown["path"].as_str().expect("a path").to_owned();
    assert!(path.starts_with(&trike.path("cache")), "{path}");
    // Texts and messages have its name.
    let texts = [
        trike.stdout(&["show"]),
        trike.stdout(&["inspect"]),
        trike.stdout(&["inspect", "--memory"]),
        trike.stdout(&["doctor"]),
        trike.fails(1, &["chat", "tiny"]),
        trike.fails(1, &["quantize"]),
    ];
    for text in texts {
        assert!(text.contains("tiny") && !text.contains(&trike.path("cache/trike")), "{text}");
    }
    // A truncated file is written again; if nothing can be written, the message names the folder.
    fs::write(Path::new(&path).join("model.safetensors"), "cut").unwrap();
    let story = trike.stdout(&["run", "-p", "Once", "-n", "4", "--temperature", "0"]);
    assert_eq!(story, trike.stdout(&["run", &tiny(), "Once", "-n", "4", "--temperature", "0"]));
    let file = trike.write("file", "");
    let output = trike.command(&["show"]).env("XDG_CACHE_HOME", &file).env("TMPDIR", &file).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot write the bundled model"));
    // A folder with that name takes precedence.
    trike.copy_model(&tiny(), "tiny");
    assert_eq!(trike.json(&["show", "tiny", "--json"])["path"], "tiny");
}

#[test]
fn known_models_have_names_that_the_commands_take() {
    let trike = Trike::new();
    let known = trike.json(&["list", "--known", "--json"]);
    let text = trike.stdout(&["list", "--known"]);
    let header: Vec<&str> = text.lines().next().expect("a header").split_whitespace().collect();
    assert_eq!(header, ["name", "parameters", "download", "memory", "tok/s", "chat", "licence"]);
    assert!(text.contains("\nrecommended here: "), "{text}");
    let models = known["models"].as_array().expect("models");
    assert!(models.len() >= 4);
    for model in models {
        let name = model["name"].as_str().expect("a name");
        // Offline, a name of the hub is searched in the cache; anything else is a path.
        assert!(trike.fails(1, &["run", name, "x"]).contains("is not in"), "{name}");
        assert!(text.contains(name));
        let number = |key: &str| model[key].as_f64().expect("a number");
        assert!(number("memory") > number("bytes") && number("parameters") > number("bytes"), "{model}");
        let rate = known["bandwidth"].as_f64().expect("a rate") / number("bytes");
        assert_near!(number("tokens_per_second"), rate, rel = 1e-9, "{model}");
    }
}

#[test]
fn a_chat_without_a_model_names_one_that_can_chat() {
    let trike = Trike::new();
    let error = trike.fails(2, &["chat"]);
    assert!(
        error.starts_with("error: no model given, and the bundled model `tiny` cannot chat\nhelp: "),
        "{error}"
    );
    let known = trike.json(&["list", "--known", "--json"]);
    let models = known["models"].as_array().expect("models");
    let name = models.iter().map(|model| model["name"].as_str().expect("a name"));
    let name = name.filter(|name| error.contains(&format!("`trike chat {name}` downloads "))).count();
    assert!(name == 1 && error.contains("GB of memory") && error.contains("`trike list --known`"), "{error}");
    assert!(!error.contains(&trike.path("")), "{error}");
}

#[cfg(all(unix, feature = "hub"))]
#[test]
fn a_chat_without_a_model_asks_for_the_download_in_a_terminal() {
    let Some(python) = trike_testkit::python("pty") else { return };
    let trike = Trike::new();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/terminal.py");
    // Nothing listens there.
    for (answer, code, said) in [("", 2, "`trike chat "), ("y", 1, "127.0.0.1:9")] {
        let mut command = std::process::Command::new(python.get_program());
        command.args([script, answer, "--", env!("CARGO_BIN_EXE_trike"), "chat"]);
        command.env("HF_HOME", trike.path("hf")).env("HF_ENDPOINT", "http://127.0.0.1:9");
        let others = [
            "HF_HUB_CACHE",
            "HUGGINGFACE_HUB_CACHE",
            "HF_HUB_OFFLINE",
            "TRANSFORMERS_OFFLINE",
            "TRIKE_MODEL",
        ];
        others.iter().for_each(|name| _ = command.env_remove(name));
        let output = command.output().expect("it starts");
        let shown = crate::harness::utf8(output.stdout);
        assert_eq!(output.status.code(), Some(code), "{shown}");
        assert!(shown.contains("cannot chat: download ") && shown.contains("of memory)? [y/N] "), "{shown}");
        assert!(shown.contains(said), "{shown}");
    }
}
