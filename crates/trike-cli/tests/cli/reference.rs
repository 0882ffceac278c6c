//! The help texts in the book are those of the command.

use std::fmt::Write;

use crate::harness::{Trike, repository};

const PAGE: &str = "docs/src/cli.md";
/// The one definition of the fields.
const FIELDS: &str = include_str!("../../src/json.txt");
const START: &str = "## Reference\n";
/// Set to write the page instead of comparing it.
const UPDATE: &str = "UPDATE_REFERENCE";
const COMMANDS: [&str; 21] = [
    "run",
    "chat",
    "serve",
    "pull",
    "list",
    "show",
    "rm",
    "inspect",
    "convert",
    "quantize",
    "train",
    "edit",
    "perplexity",
    "eval",
    "logits",
    "embed",
    "bench",
    "doctor",
    "explain",
    "completions",
    "man",
];

/// The fields of a command's JSON: path, whether it is always present, meaning.
pub(crate) fn fields(command: &str) -> Vec<(String, bool, String)> {
    let start = format!("# {command}");
    let lines = FIELDS.lines().skip_while(|line| *line != start).skip(1).take_while(|line| !line.is_empty());
    let field = |line: &str| {
        let (path, meaning) = line.split_once(": ").expect("a path and its meaning");
        (path.trim_end_matches('?').to_owned(), !path.ends_with('?'), meaning.to_owned())
    };
    lines.map(field).collect()
}

/// The last section of the page.
fn reference() -> String {
    let trike = Trike::new();
    let mut text = START.to_owned();
    text += "\nThese are the help texts and JSON fields of the command; tests compare them. A field with a star may be missing, null or \
             empty.\n";
    for command in std::iter::once(None).chain(COMMANDS.map(Some)) {
        let args: Vec<&str> = command.into_iter().chain(["--help"]).collect();
        let help = trike.stdout(&args);
        let help: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
        let title = command.map_or_else(|| "trike".to_owned(), |command| format!("trike {command}"));
        write!(text, "\n### {title}\n\n```text\n{}\n```\n", help.join("\n")).unwrap();
        let fields = command.map(fields).unwrap_or_default();
        if !fields.is_empty() {
            text += "\n| JSON field | meaning |\n|---|---|\n";
        }
        for (path, always, meaning) in fields {
            let path = if always { format!("`{path}`") } else { format!("`{path}` *") };
            writeln!(text, "| {path} | {meaning} |").unwrap();
        }
    }
    text
}

#[test]
#[cfg_attr(feature = "mpi", ignore = "the page has the options of a build without it")]
fn the_page_has_the_help_of_every_command() {
    let path = format!("{}/{PAGE}", repository());
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, found) = page.split_at(page.find(START).expect("a section `Reference`"));
    let want = reference();
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(path, before.to_owned() + &want).unwrap();
    } else {
        assert!(
            found == want,
            "{PAGE} is out of date; run `{UPDATE}=1 cargo test -p trike-cli --test cli reference` and look at the change"
        );
    }
}

/// Lines of a small terminal, without the prompt of the shell.
const SCREEN: usize = 45;

#[test]
fn the_everyday_options_fit_a_screen_and_all_have_headings() {
    let trike = Trike::new();
    for command in COMMANDS {
        let text = trike.stdout(&[command, "-h"]);
        assert!(text.lines().count() <= SCREEN, "{command}: {} lines\n{text}", text.lines().count());
        let last = text.lines().last().expect("a line");
        assert_eq!(last, format!("All options, with examples: trike {command} --help"));
        assert!(!text.contains("[env:"), "{text}");
    }
    assert!(trike.stdout(&["-h"]).lines().count() <= SCREEN);
    let headings = ["Model:", "Generation:", "Sampling", "KV cache:", "Precision:", "Device:", "Output:"];
    for command in ["run", "chat"] {
        let text = trike.stdout(&[command, "--help"]);
        for heading in headings {
            assert!(text.lines().any(|line| line.starts_with(heading)), "{command}: {heading}");
        }
        assert!(text.contains("--kv-limit") && text.contains("[env: TRIKE_MAX_TOKENS]"), "{command}");
    }
}

#[test]
fn every_command_has_an_example_on_the_page() {
    let page = std::fs::read_to_string(format!("{}/{PAGE}", repository())).unwrap();
    for command in COMMANDS {
        assert!(
            page.contains(&format!("\ntrike {command} ")) || page.contains(&format!("\ntrike {command}\n")),
            "{command}"
        );
    }
}
