//! The commands in the README and in the Guide run, and print the output shown on the pages.
//!
//! Every line of a `sh` block runs in a directory with the files that the page names. A line that needs the network, a GPU or
//! another program is skipped; the tests assert how many. A `text` block directly below is compared with the output as a
//! terminal shows it. Numbers, names of instruction sets and white space may differ, and `...` stands for any text in a line or,
//! alone, for any lines. An output that begins with `error:` is that of a command that fails.

use std::fs;

use crate::harness::{Trike, repository, shared, utf8};

/// Pages with results of stories260K, which is not in the repository. On the others any dense model and text will do.
const OF_STORIES_260K: [&str; 2] = ["docs/src/guide/quantize.md", "docs/src/guide/evaluate.md"];
/// Files named by the pages, and their sources.
const FILES: [(&str, &str); 4] = [
    ("stories260K.bin", "data/models/stories260K.bin"),
    ("tok512.bin", "data/tokenizers/tok512.bin"),
    ("stories.txt", "data/corpora/tinystories_calibration.txt"),
    ("other-stories.txt", "data/corpora/tinystories_eval.txt"),
];
const GUIDE: &str = "docs/src/guide";
/// The pages of the Guide, each with a test below; that of the server is in `serve.rs`.
const PAGES: [&str; 11] = [
    "evaluate.md",
    "glossary.md",
    "gpu.md",
    "quantize.md",
    "ranks.md",
    "run.md",
    "rust.md",
    "serve.md",
    "start.md",
    "train.md",
    "troubleshooting.md",
];
/// Pages whose Rust examples are doc tests of `trike`.
const WITH_RUST: [&str; 3] = ["README.md", "docs/src/guide/rust.md", "docs/src/migration.md"];
const ISAS: [&str; 5] = ["avx512-vnni", "avx-vnni", "avx2", "sse4.1", "scalar"];

/// A fenced block of a page.
struct Block {
    language: String,
    /// Number of its first line.
    line: usize,
    lines: Vec<String>,
    /// Name in a comment `<!-- file: NAME -->` above the block, which is the content of that file.
    file: Option<String>,
    /// Whether only empty lines separate it from the block before.
    follows: bool,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let (mut inside, mut follows, mut file) = (false, false, None);
    for (number, line) in (1..).zip(page.lines()) {
        match line.strip_prefix("```") {
            Some(_) if inside => (inside, follows) = (false, true),
            Some(language) => {
                let (language, file) = (language.to_owned(), file.take());
                found.push(Block { language, line: number + 1, lines: Vec::new(), file, follows });
                inside = true;
            }
            None if inside => found.last_mut().expect("an open block").lines.push(line.to_owned()),
            None if line.is_empty() => {}
            None => {
                follows = false;
                let name = line.strip_prefix("<!-- file: ").and_then(|rest| rest.strip_suffix(" -->"));
                file = name.map(str::to_owned);
            }
        }
    }
    assert!(!inside, "a block is not closed");
    found
}

/// Treatment of a line of a `sh` block.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Line {
    Run,
    Network,
    Device,
    OtherProgram,
}

/// The lines of a block, with continued ones joined, without comments and empty ones.
fn commands(block: &Block) -> Vec<String> {
    let text = block.lines.join("\n").replace("\\\n", " ");
    let lines = text.lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
}

fn classify(command: &str) -> Line {
    let Some(own) = command.split(" | ").find(|part| part.split_whitespace().next() == Some("trike")) else {
        return Line::OtherProgram;
    };
    let words: Vec<&str> = own.split_whitespace().take_while(|word| !word.starts_with('#')).collect();
    let after = |option: &str| words.iter().position(|word| *word == option).and_then(|at| words.get(at + 1));
    if after("--device").is_some_and(|device| !["cpu", "auto"].contains(device)) {
        return Line::Device;
    }
    let is_hub = |name: &&str| {
        let parts: Vec<&str> = name.split('/').collect();
        let [org, model] = parts[..] else { return false };
        !model.is_empty() && org.starts_with(|first: char| first.is_ascii_alphanumeric())
    };
    let needs_hub = ["pull", "rm"].contains(words.get(1).unwrap_or(&""))
        || words.get(2).is_some_and(is_hub)
        || after("-m").is_some_and(is_hub);
    if needs_hub { Line::Network } else { Line::Run }
}

/// A line with every number and instruction set replaced by a sign, and white space reduced to single spaces.
fn normal(line: &str) -> String {
    let mut line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    for isa in ISAS {
        line = line.replace(isa, "ISA");
    }
    let mut out = String::new();
    let mut rest = line.as_str();
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, number) = rest.split_at(start);
        out += before;
        out.push('#');
        let mut end = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
        // A decimal point or a separator of thousands belongs to the number when a digit follows.
        while number[end..].starts_with(['.', ','])
            && number[end + 1..].starts_with(|c: char| c.is_ascii_digit())
        {
            let tail = &number[end + 1..];
            end += 1 + tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
        }
        rest = &number[end..];
    }
    out + rest
}

/// The parts around `...` occur in this order, the first at the start and the last at the end.
fn line_matches(want: &str, got: &str) -> bool {
    let parts: Vec<&str> = want.split("...").map(str::trim).collect();
    let [first, middle @ .., last] = &parts[..] else { return want == got };
    let Some(mut rest) = got.strip_prefix(first) else { return false };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

fn matches(want: &[String], got: &[String]) -> bool {
    match want.split_first() {
        None => got.is_empty(),
        Some((first, rest)) if first == "..." => (0..=got.len()).any(|n| matches(rest, &got[n..])),
        Some((first, rest)) => {
            got.split_first().is_some_and(|(line, more)| line_matches(first, line) && matches(rest, more))
        }
    }
}

/// Output as a terminal shows it, without empty lines.
fn shown(text: &str) -> Vec<String> {
    text.lines().map(normal).filter(|line| !line.is_empty()).collect()
}

/// Numbers of lines and blocks of a page.
#[derive(Debug, Default, PartialEq)]
struct Counts {
    ran: usize,
    /// Outputs that were compared.
    compared: usize,
    network: usize,
    device: usize,
    other_program: usize,
}

/// Runs the lines of a block and returns their output, or `None` if one of them was skipped.
fn run(trike: &Trike, page: &str, block: &Block, fails: bool, counts: &mut Counts) -> Option<String> {
    let (mut output, mut complete) = (String::new(), true);
    for command in commands(block) {
        match classify(&command) {
            Line::Run => {}
            Line::Network => counts.network += 1,
            Line::Device => counts.device += 1,
            Line::OtherProgram => counts.other_program += 1,
        }
        if classify(&command) != Line::Run {
            complete = false;
            continue;
        }
        let result = trike.shell(&command).output().expect("a shell");
        let (stdout, stderr) = (utf8(result.stdout), utf8(result.stderr));
        assert_eq!(result.status.success(), !fails, "{page}:{}: {command}\n{stdout}\n{stderr}", block.line);
        assert!(!stderr.contains("panicked"), "{page}:{}: {command}\n{stderr}", block.line);
        counts.ran += 1;
        output += &stdout;
        if !output.is_empty() && !output.ends_with('\n') {
            output.push('\n');
        }
        output += &stderr;
    }
    complete.then_some(output)
}

/// The content used for a file that a page names.
fn made(name: &str) -> Vec<u8> {
    match name {
        "stories260K.bin" => trike_testkit::storyteller().to_f32_bytes(),
        "tok512.bin" => trike_testkit::llama2c_vocabulary(),
        "stories.txt" => trike_testkit::stories(1, 300, 300).into_bytes(),
        "other-stories.txt" => trike_testkit::stories(2, 40, 300).into_bytes(),
        _ => panic!("{name}"),
    }
}

/// Runs a page; does nothing when it needs shared data and there is none.
#[track_caller]
#[expect(clippy::print_stdout, reason = "the numbers of lines that ran and that were skipped")]
fn check(page: &str, expected: Counts) {
    let text = fs::read_to_string(format!("{}/{page}", repository())).expect("the page");
    let trike = Trike::new();
    for (name, data) in FILES.iter().filter(|(name, _)| text.contains(&format!(" {name}"))) {
        if OF_STORIES_260K.contains(&page) {
            let Some(from) = shared(data) else { return };
            fs::copy(from, trike.path(name)).expect("a copy");
        } else {
            trike.write(name, made(name));
        }
    }
    let mut counts = Counts::default();
    let blocks = blocks(&text);
    for (at, block) in blocks.iter().enumerate() {
        if let Some(name) = &block.file {
            trike.write(name, block.lines.join("\n") + "\n");
        }
        assert!(
            !block.language.starts_with("rust") || WITH_RUST.contains(&page),
            "{page}:{}: Rust that no doc test compiles",
            block.line
        );
        if block.language != "sh" {
            continue;
        }
        let below = blocks.get(at + 1).filter(|next| next.follows && next.language == "text");
        let fails = below.is_some_and(|text| text.lines[0].starts_with("error:"));
        let output = run(&trike, page, block, fails, &mut counts);
        if let (Some(output), Some(text)) = (output, below) {
            let want = shown(&text.lines.join("\n"));
            assert!(
                matches(&want, &shown(&output)),
                "{page}:{}: the page shows\n{}\nand the command prints\n{output}",
                text.line,
                text.lines.join("\n")
            );
            counts.compared += 1;
        }
    }
    println!("{page}: {counts:?}");
    assert_eq!(counts, expected, "{page}: a line was added or removed: correct the counts of its test");
}

#[test]
fn the_readme_runs() {
    check("README.md", Counts { ran: 3, compared: 3, other_program: 3, ..Counts::default() });
}

#[test]
fn from_nothing_to_chat_runs() {
    let expected = Counts { ran: 7, compared: 5, network: 1, other_program: 3, ..Counts::default() };
    check("docs/src/guide/start.md", expected);
}

#[test]
fn run_and_chat_runs() {
    check("docs/src/guide/run.md", Counts { ran: 6, compared: 1, network: 2, ..Counts::default() });
}

#[test]
fn make_a_model_ternary_runs() {
    let expected = Counts { ran: 5, compared: 3, device: 1, other_program: 5, ..Counts::default() };
    check("docs/src/guide/quantize.md", expected);
}

#[test]
fn train_a_ternary_model_runs() {
    check("docs/src/guide/train.md", Counts { ran: 3, compared: 2, ..Counts::default() });
}

#[test]
fn evaluate_a_model_runs() {
    check("docs/src/guide/evaluate.md", Counts { ran: 3, compared: 2, ..Counts::default() });
}

#[test]
fn run_on_a_gpu_runs() {
    let expected = Counts { ran: 4, compared: 1, device: 4, other_program: 3, ..Counts::default() };
    check("docs/src/guide/gpu.md", expected);
}

#[test]
fn run_on_several_machines_runs() {
    // `cargo xtask ranks` runs the command under `mpirun`.
    check("docs/src/guide/ranks.md", Counts { other_program: 8, ..Counts::default() });
}

#[test]
fn troubleshooting_runs() {
    let expected = Counts { ran: 6, compared: 6, device: 1, ..Counts::default() };
    check("docs/src/guide/troubleshooting.md", expected);
}

#[test]
fn the_other_pages_run() {
    check("docs/src/introduction.md", Counts { ran: 1, compared: 1, ..Counts::default() });
    for page in ["docs/src/migration.md", "docs/src/guide/rust.md", "docs/src/guide/glossary.md"] {
        check(page, Counts::default());
    }
}

/// The names in a cell of a table, without those of crates and groups in front.
fn names(cell: &str) -> Vec<&str> {
    let code = cell.split('`').skip(1).step_by(2);
    code.flat_map(|code| {
        let list = code.split_once("::{").map_or(code, |(_, list)| list);
        list.split([',', '{', '}', ' ']).map(|name| name.rsplit("::").next().unwrap_or(name))
    })
    .filter(|name| name.len() > 2 && name.chars().all(|c| c.is_alphanumeric() || c == '_'))
    .collect()
}

/// All source files of the libraries.
fn sources(folder: &std::path::Path, text: &mut String) {
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() {
            sources(&entry, text);
        } else if entry.extension().is_some_and(|end| end == "rs") {
            *text += &fs::read_to_string(&entry).expect("a file");
        }
    }
}

#[test]
fn what_the_migration_page_calls_absent_is_absent_and_the_rest_is_there() {
    let mut text = String::new();
    for entry in fs::read_dir(format!("{}/crates", repository())).expect("the crates") {
        let folder = entry.expect("an entry").path();
        if folder.ends_with("trike-cli") {
            continue;
        }
        let source = folder.join("src");
        if source.is_dir() {
            sources(&source, &mut text);
        }
    }
    let kinds = ["fn", "struct", "enum", "trait", "type", "mod", "const", "const fn", "unsafe fn"];
    let is_public = |name: &str| {
        let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        kinds.iter().any(|kind| {
            let start = format!("pub {kind} {name}");
            text.match_indices(&start).any(|(at, found)| ends(&text[at + found.len()..]))
        }) || text.contains(&format!("doc(alias = \"{name}\")"))
    };
    let page = fs::read_to_string(format!("{}/docs/src/migration.md", repository())).expect("the page");
    let mut absent = 0;
    for line in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split(" | ").collect();
        let [there, here, ..] = cells[..] else { panic!("{line}") };
        if here.starts_with("no") {
            for name in names(there) {
                absent += 1;
                assert!(!is_public(name), "`{name}` is called absent, but it is public: {line}");
            }
        } else {
            // Functions and types under a path; variants, fields and methods have the spelling of their own.
            let paths = here.split('`').skip(1).step_by(2).filter(|code| code.starts_with("trike_"));
            for name in paths.flat_map(|code| names_of_path(code)) {
                assert!(is_public(name) || text.contains(name), "`{name}` is said to be there: {line}");
            }
        }
    }
    assert!(absent > 10, "{absent}");
    assert!(!page.contains("has no optimizers") && !page.contains("no trainer"));
}

/// The last names of a path such as `a::{b, c}`.
fn names_of_path(code: &str) -> Vec<&str> {
    let last =
        code.split_once('{').map_or_else(|| code.rsplit("::").next().unwrap_or(code), |(_, list)| list);
    let word = |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    last.split([',', '{', '}', ' ']).filter(word).collect()
}

#[test]
fn every_page_of_the_guide_has_a_test() {
    let entries = fs::read_dir(format!("{}/{GUIDE}", repository())).expect("the folder");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
    names.sort();
    assert_eq!(names, PAGES);
}

#[test]
fn lines_are_classified() {
    for (command, line) in [
        ("trike run tiny \"One (happy|sad)\" -n 3", Line::Run),
        ("echo Once | trike run", Line::Run),
        ("trike run tiny --device cpu", Line::Run),
        ("trike inspect ternary/ # as it is", Line::Run),
        ("trike chat org/name", Line::Network),
        ("trike run -m org/name:Q2_0 -p Once", Line::Network),
        ("trike pull org/name", Line::Network),
        ("trike run tiny --device vulkan:0", Line::Device),
        ("cargo install --path crates/trike-cli", Line::OtherProgram),
        ("curl -LO https://example.org/trike", Line::OtherProgram),
    ] {
        assert_eq!(classify(command), line, "{command}");
    }
}

#[test]
fn numbers_instruction_sets_and_white_space_may_differ() {
    let matches = |want: &str, got: &str| matches(&shown(want), &shown(got));
    assert!(matches("8,793.6 tok/s;  cpu (avx512-vnni)", "9 tok/s; cpu (avx2)"));
    assert!(matches("a\n...\nd 1", "a\n\nb\nc\nd 2"));
    assert!(matches("path  ...\nx", "path  /a/b\nx"));
    assert!(!matches("a\n...\nd", "a\nb"));
    assert!(!matches("tokens", "token"));
    assert!(!matches("a ... c", "a b"));
}
