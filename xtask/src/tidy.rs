//! Text rules for files: length, module docs, forbidden words, float tolerances, white space, size, links.

use crate::book;
use crate::floats;
use crate::source::contains_word;
use crate::type_names;
use crate::workspace::{Workspace, no_findings};
use anyhow::Result;

/// Warning limit for the lines of a Rust file.
const WARN_LINES: usize = 400;
/// Error limit for the lines of a Rust file.
const MAX_LINES: usize = 800;
/// Maximum size of a tracked file outside of `models/`, which ships weights.
const MAX_BYTES: u64 = 2 * 1024 * 1024;

/// Forbidden words in Rust source, with reasons. Split, so that this file passes.
const FORBIDDEN: &[(&str, &str)] = &[
    (concat!("todo", "!"), "implement it, or remove it"),
    (concat!("unimplemented", "!"), "implement it, or return an error"),
    (concat!("dbg", "!"), "debugging aid"),
    (concat!("FIX", "ME"), "fix it, or open an issue"),
    (concat!("TO", "DO"), "do it, or open an issue"),
    (concat!("XX", "X"), "describe the problem, or open an issue"),
    (concat!("#[ign", "ore"), "skip at run time with a counted reason instead"),
    (concat!("```ign", "ore"), "make the example compile, or mark it as text"),
];

/// Calls that put a file in place without care for what stands there, a full disk or a power failure.
const WRITERS: [&str; 5] =
    ["fs::write(", "fs::rename(", "fs::File::create(", " File::create(", "(File::create("];
/// Where they are right: in the writer itself, in the files of a running training, which its directory protects, and in tests.
const OWN_WRITERS: [&str; 5] = [
    "crates/trike-format/src/claim.rs",
    "crates/trike-format/src/output.rs",
    "crates/trike-testkit/",
    "crates/trike-train/src/checkpoint/mod.rs",
    "crates/trike-train/src/run/",
];

/// Checks every file that is tracked or not ignored.
pub(crate) fn run(ws: &Workspace) -> Result<String> {
    let files = ws.files()?;
    let (mut findings, mut warnings, mut types) = (Vec::new(), 0, Vec::new());
    for file in &files {
        let bytes = std::fs::metadata(ws.root.join(file))?.len();
        findings.extend(size_finding(file, bytes));
        if !is_text(file) {
            continue;
        }
        let text = ws.sh.read_file(file)?;
        findings.extend(space_findings(file, &text));
        if file.ends_with(".rs") {
            findings.extend(module_finding(file, &files));
            findings.extend(rust_findings(file, &text));
            findings.extend(floats::findings(file, &text));
            types.extend(type_names::of(file, &text).into_iter().map(|name| (name, file.clone())));
            let lines = text.lines().count();
            if lines > WARN_LINES && lines <= MAX_LINES {
                warnings += 1;
                println!("warning: {file} has {lines} lines; over {WARN_LINES}, consider splitting it");
            }
        }
        // The links of the summary have their own rule; those of a page that a crate includes are read where it stands.
        if file.ends_with(".md") && file != book::SUMMARY && !ws.root.join(file).is_symlink() {
            let exists = |path: &str| ws.root.join(path).exists();
            findings.extend(book::link_findings(file, &text, &exists));
        }
    }
    findings.extend(type_names::findings(&types));
    let summary = ws.sh.read_file(book::SUMMARY)?;
    findings.extend(book::summary_findings(&summary, &files));
    no_findings(&findings)?;
    let long = if warnings == 0 { String::new() } else { format!(", {warnings} over {WARN_LINES} lines") };
    Ok(format!("{} files{long}", files.len()))
}

/// Hand-written files; test data may contain any bytes.
fn is_text(path: &str) -> bool {
    let by_name =
        [".rs", ".toml", ".md", ".yml", ".yaml", ".py", ".sh"].iter().any(|end| path.ends_with(end));
    let is_data = path.starts_with("models/") || path.contains("/tests/data/");
    (by_name || path == ".ci/run") && !is_data
}

fn size_finding(path: &str, bytes: u64) -> Option<String> {
    let too_large = bytes > MAX_BYTES && !path.starts_with("models/");
    too_large.then(|| format!("{path} has {bytes} bytes, at most {MAX_BYTES} are tracked outside models/"))
}

fn space_findings(path: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(text.split('\n')) {
        if line.ends_with([' ', '\t', '\r']) {
            findings.push(format!("{path}:{number}: white space at the end of the line"));
        } else if line.contains('\t') {
            findings.push(format!("{path}:{number}: tab; indent with spaces"));
        }
    }
    if !text.is_empty() && (!text.ends_with('\n') || text.ends_with("\n\n")) {
        findings.push(format!("{path}: the file must end with one line break"));
    }
    findings
}

/// A module with children is `foo/mod.rs`, so that all of it lies in one folder.
fn module_finding(path: &str, files: &[String]) -> Option<String> {
    let folder = path.strip_suffix(".rs")?;
    let is_inside = |file: &String| file.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
    let is_beside = files.iter().any(is_inside);
    is_beside.then(|| format!("{path} beside {folder}/: move it to {folder}/mod.rs"))
}

/// Whether the outputs of a file are those of users.
fn is_library(path: &str) -> bool {
    path.starts_with("crates/")
        && path.contains("/src/")
        && !path.ends_with("/tests.rs")
        && !OWN_WRITERS.iter().any(|own| path.starts_with(own))
}

fn rust_findings(path: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    let lines = text.lines().count();
    if lines > MAX_LINES {
        findings.push(format!("{path} has {lines} lines, at most {MAX_LINES} are allowed: split it"));
    }
    let first = text.lines().find(|l| !l.trim().is_empty()).unwrap_or_default();
    if first.strip_prefix("//!").is_none_or(|docs| docs.trim().is_empty()) {
        findings.push(format!("{path}: the file must start with `//!` docs"));
    }
    if is_library(path) {
        let own = text.split("\nmod tests {").next().unwrap_or_default();
        for (number, line) in (1..).zip(own.lines()).filter(|(_, line)| !line.trim_start().starts_with("//"))
        {
            if let Some(call) = WRITERS.iter().find(|call| line.contains(*call)) {
                findings.push(format!("{path}:{number}: `{call}`: write it with trike_format::OutputFile"));
            }
        }
    }
    for (number, line) in (1..).zip(text.lines()) {
        for (word, reason) in FORBIDDEN {
            if contains_word(line, word) {
                findings.push(format!("{path}:{number}: `{word}`: {reason}"));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_at_most_its_lines() {
        let file = |lines: usize| format!("//! Docs.\n{}", "\n".repeat(lines - 1));
        assert_eq!(rust_findings("a.rs", &file(MAX_LINES - 1)), [""; 0]);
        assert_eq!(rust_findings("a.rs", &file(MAX_LINES)), [""; 0]);
        assert_eq!(
            rust_findings("a.rs", &file(MAX_LINES + 1)),
            ["a.rs has 801 lines, at most 800 are allowed: split it"]
        );
    }

    #[test]
    fn outputs_have_one_writer() {
        let text = "//! Docs.\n/// std::fs::write(path, \"\")?;\nfn a() {\n    fs::write(path, text)?;\n}\n\
                    #[cfg(test)]\nmod tests {\nfn a() { fs::rename(a, b) } }\n";
        let found = rust_findings("crates/trike-llm/src/a.rs", text);
        assert_eq!(
            found,
            ["crates/trike-llm/src/a.rs:4: `fs::write(`: write it with trike_format::OutputFile"]
        );
        for path in ["crates/trike-llm/tests/it/a.rs", "crates/trike-format/src/output.rs", "xtask/src/a.rs"]
        {
            assert_eq!(rust_findings(path, text), [""; 0], "{path}");
        }
    }

    #[test]
    fn a_module_with_children_is_a_folder() {
        let finding = |files: &[&str]| {
            let files: Vec<String> = files.iter().map(|file| (*file).to_owned()).collect();
            files.iter().find_map(|file| module_finding(file, &files))
        };
        assert_eq!(finding(&["src/a/mod.rs", "src/a/b.rs", "src/ab.rs", "src/a.md"]), None);
        assert_eq!(
            finding(&["src/a/b.rs", "src/a.rs"]).unwrap(),
            "src/a.rs beside src/a/: move it to src/a/mod.rs"
        );
    }

    #[test]
    fn a_file_starts_with_docs() {
        assert_eq!(rust_findings("a.rs", "\n//! Docs.\nmod a;\n"), [""; 0]);
        for text in ["", "mod a;\n//! Docs.\n", "// Docs.\n", "/// Docs.\n", "//!\n"] {
            assert_eq!(rust_findings("a.rs", text), ["a.rs: the file must start with `//!` docs"]);
        }
    }

    #[test]
    fn every_forbidden_word_is_found_alone_and_not_inside_another() {
        for (word, reason) in FORBIDDEN {
            let findings = rust_findings("a.rs", &format!("//! Docs.\n    {word} (\n"));
            assert_eq!(findings, [format!("a.rs:2: `{word}`: {reason}")]);
        }
        let longer = format!("//! Docs.\nlet my_{} = {}_Y;\n", FORBIDDEN[0].0, FORBIDDEN[5].0);
        assert_eq!(rust_findings("a.rs", &longer), [""; 0]);
        let attribute = format!("//! Docs.\n{} = \"slow\"]\n", FORBIDDEN[6].0);
        assert_eq!(rust_findings("a.rs", &attribute).len(), 1);
    }

    #[test]
    fn white_space_is_found() {
        assert_eq!(space_findings("a", "a b\n\nc\n"), [""; 0]);
        assert_eq!(space_findings("a", ""), [""; 0]);
        for (text, message) in [
            ("a \n", "a:1: white space"),
            ("a\nb\t\n", "a:2: white space"),
            ("a\r\n", "a:1: white space"),
            ("\tb\n", "a:1: tab"),
            ("a", "end with one line break"),
            ("a\n\n", "end with one line break"),
        ] {
            let findings = space_findings("a", text);
            assert_eq!(findings.len(), 1, "{text:?}: {findings:?}");
            assert!(findings[0].contains(message), "{findings:?}");
        }
    }

    #[test]
    fn large_files_live_in_models_only() {
        assert_eq!(size_finding("a.bin", MAX_BYTES), None);
        assert!(size_finding("a.bin", MAX_BYTES + 1).unwrap().contains("2097153 bytes"));
        assert_eq!(size_finding("models/a.bin", MAX_BYTES + 1), None);
    }

    #[test]
    fn data_is_not_text() {
        for path in ["a.rs", "docs/src/a.md", ".ci/run", ".github/workflows/ci.yml"] {
            assert!(is_text(path), "{path}");
        }
        for path in ["models/tiny/README.md", "crates/a/tests/data/b.toml", "a.bin", "Cargo.lock"] {
            assert!(!is_text(path), "{path}");
        }
    }
}
