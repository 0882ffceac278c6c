//! Runs the examples that are programs and have no tests.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use xshell::cmd;

use crate::cargo::Call;
use crate::workspace::Workspace;

/// An example, its arguments, and a part of what it prints. In the arguments, `TINY` is the bundled model, `DENSE` the one that
/// `outliers` has written, `TEXT` a text, and `OUT` a path that does not exist; `STORIES` and `TOK512` are a model and its tokenizer of
/// the shared data.
struct Run {
    name: &'static str,
    arguments: &'static [&'static str],
    prints: &'static str,
}

/// In the order in which they run.
const RUNS: &[Run] = &[
    Run { name: "story", arguments: &[], prints: "Once upon a time" },
    Run { name: "key_value", arguments: &[], prints: "of 500 values found" },
    Run { name: "codecs", arguments: &[], prints: "top 2 %" },
    Run { name: "outliers", arguments: &["STORIES", "DENSE"], prints: "largest gain of the first norm" },
    Run { name: "methods", arguments: &["DENSE", "TOK512", "TEXT", "TEXT"], prints: "largest magnitude" },
    Run { name: "keys", arguments: &["TINY", "TEXT", "-", "1"], prints: "sign codes" },
    Run { name: "kv", arguments: &["TINY", "TEXT", "-", "2"], prints: "int8" },
    Run { name: "choose_kv", arguments: &["TINY", "TEXT", "-", "2", "32"], prints: "bound" },
    Run { name: "qat", arguments: &["STORIES", "TOK512", "TEXT", "2", "TEXT"], prints: "step 2: " },
    Run { name: "write", arguments: &["STORIES", "TOK512", "2"], prints: "<|endoftext|>" },
];

/// The examples, in one call.
pub(crate) fn call() -> Call {
    let names = RUNS.iter().flat_map(|run| ["--example", run.name]);
    Call::workspace("build").and(names).with_dev_features()
}

/// Runs all of them. Those that need the shared data are left out without it.
pub(crate) fn run(ws: &Workspace) -> Result<String> {
    call().run(ws)?;
    let target = ws.metadata.target_directory.as_std_path();
    let dir = target.join("tmp/examples");
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir)?;
    let text = dir.join("text.txt");
    std::fs::write(&text, story().repeat(60))?;
    let shared = ws.root.join("../shared/data");
    let place = |word: &str| match word {
        "TINY" => ws.root.join("models/tiny"),
        "DENSE" => dir.join("dense"),
        "TEXT" => text.clone(),
        "STORIES" => shared.join("models/stories260K.bin"),
        "TOK512" => shared.join("tokenizers/tok512.bin"),
        other => other.into(),
    };
    let mut left_out = 0;
    for Run { name, arguments, prints } in RUNS {
        let needs_shared = ["STORIES", "TOK512"].iter().any(|word| arguments.contains(word));
        if needs_shared && !place("STORIES").exists() {
            left_out += 1;
            continue;
        }
        let arguments = arguments.iter().map(|word| place(word));
        let program = target.join("debug/examples").join(name);
        let output = output(ws, &program, arguments).with_context(|| format!("the example {name}"))?;
        ensure!(output.contains(prints), "the example {name} does not print `{prints}`: {output}");
    }
    let skipped = if left_out == 0 { String::new() } else { format!(", {left_out} skipped: no shared data") };
    Ok(format!("{} ran{skipped}", RUNS.len() - left_out))
}

fn output(
    ws: &Workspace,
    program: &Path,
    arguments: impl Iterator<Item = std::path::PathBuf>,
) -> Result<String> {
    Ok(cmd!(ws.sh, "{program} {arguments...}").quiet().read()?)
}

/// A short story as the text files have them.
fn story() -> String {
    "Once upon a time there was a little girl who had a dog. The dog liked to run in the park. One day it found a big red ball and \
     was very happy. They played until the sun went down, and then they went home.\n<|endoftext|>\n"
        .to_owned()
}
