//! Parts of the help, the manual pages and the handbook besides the options: examples, JSON fields, related commands.
//!
//! One definition of each: [`EXAMPLES`], and `json.txt` for the fields, which a test compares with what the commands print.

use clap::Command;

/// The fields of every `--json`: a line `# command`, then one line `path: meaning` per field. `[]` is each element of a list, `*`
/// any name, and a `?` at the end of a path means that the field may be missing, null or empty.
const FIELDS: &str = include_str!("json.txt");

/// Version of these fields: it changes when a field is removed or changes its meaning.
pub(crate) const SCHEMA: u32 = 1;

/// Command lines of each command, with their descriptions.
const EXAMPLES: &[(&str, &[(&str, &str)])] = &[
    (
        "run",
        &[
            ("trike run \"Once upon a time\"", "continue a text with the bundled model"),
            ("trike run model.gguf \"The sea\" -n 100 --temperature 0", "at most 100 tokens, greedy"),
            ("trike run org/name:Q2_0 -f prompt.txt", "a model of the hub, the prompt from a file"),
            ("trike run model.gguf \"Tom is\" --json-schema person.json", "text that a schema describes"),
        ],
    ),
    (
        "chat",
        &[
            ("trike chat org/name", "chat with a model of the hub"),
            ("trike chat model.gguf --system \"Be brief.\" < questions.txt", "answer each line of a file"),
        ],
    ),
    (
        "pull",
        &[
            ("trike pull org/name-gguf:Q2_0", "download one of several GGUF files"),
            ("trike pull https://huggingface.co/org/name", "the same names as links"),
        ],
    ),
    ("list", &[("trike list --known", "published ternary models, and the one recommended here")]),
    ("show", &[("trike show model.gguf", "properties of a file")]),
    ("rm", &[("trike rm org/name", "remove a repository from the cache, after a question")]),
    (
        "inspect",
        &[
            ("trike inspect model.gguf", "every tensor"),
            ("trike inspect model.gguf --memory", "memory required on a GPU"),
            ("trike inspect model.gguf --memory --device cuda:0,cuda:1", "which layers each GPU would hold"),
        ],
    ),
    (
        "convert",
        &[
            ("trike convert checkpoint/ model.gguf --to tq2_0", "a GGUF file that llama.cpp reads"),
            ("trike convert model.gguf fast/ --to trike --packed", "a directory that is mapped at start"),
        ],
    ),
    (
        "train",
        &[
            (
                "trike train --from dense/ -d stories.txt --minutes 30 -o ternary/",
                "one ternary plane, by distillation",
            ),
            ("trike train run.toml --check", "plan and duration of the run"),
        ],
    ),
    (
        "quantize",
        &[
            ("trike quantize dense/ -c text.txt -o ternary/", "the smallest within 2 % of perplexity"),
            ("trike quantize dense/ -c text.txt --target 1.9GB -o ternary/", "the best of 1.9 GB"),
            ("trike quantize dense/ -c text.txt -p 3 -o ternary/", "three planes in every layer"),
        ],
    ),
    (
        "edit",
        &[
            ("trike edit ternary/ -t model.layers.0.mlp.up_proj.weight --zero-row 5", "prune a neuron"),
            ("trike edit ternary/ --undo", "undo the edit"),
        ],
    ),
    (
        "perplexity",
        &[("trike perplexity model.gguf -f wiki.txt --split llama.cpp -c 512", "as llama-perplexity scores")],
    ),
    (
        "eval",
        &[
            ("trike eval ternary/ --tasks hellaswag.jsonl --limit 1000", "multiple choice"),
            ("trike eval ternary/ --needle book.txt --keys signs", "needle test with key selection"),
        ],
    ),
    (
        "serve",
        &[
            ("trike serve model.gguf", "http://127.0.0.1:8080, for this machine"),
            ("trike serve model.gguf --host 0.0.0.0 --api-key-file keys.txt", "for others, with keys"),
        ],
    ),
    ("logits", &[("trike logits model.gguf --ids 1,405,422 -o logits.npy", "for numpy")]),
    ("embed", &[("trike embed model.gguf -f lines.txt -o embeddings.npy", "one embedding per line")]),
    (
        "bench",
        &[
            ("trike bench model.gguf -t 1,2", "with one and two threads"),
            ("trike bench --synthetic 2b", "without a model"),
        ],
    ),
    ("doctor", &[("trike doctor", "capabilities of this machine")]),
    ("explain", &[("trike explain memory", "what to do when a model does not fit")]),
    (
        "completions",
        &[("trike completions bash > ~/.local/share/bash-completion/completions/trike", "for the shell")],
    ),
    ("man", &[("trike man ~/.local/share/man/man1", "these pages")]),
];

/// Related commands.
const RELATED: &[&[&str]] = &[
    &["run", "chat", "serve", "embed", "logits"],
    &["pull", "list", "show", "rm"],
    &["show", "inspect", "convert"],
    &["convert", "quantize", "edit"],
    &["quantize", "perplexity", "eval"],
    &["quantize", "train"],
    &["bench", "doctor"],
    &["doctor", "explain"],
    &["completions", "man"],
];

/// Adds the examples to the long help of every command.
pub(crate) fn with_examples(mut command: Command) -> Command {
    for (name, lines) in EXAMPLES {
        let width = lines.iter().map(|(line, _)| line.len()).max().unwrap_or(0);
        let text: Vec<String> =
            lines.iter().map(|(line, meaning)| format!("  {line:width$}  # {meaning}")).collect();
        // A build without downloads has no `pull`.
        if command.find_subcommand(name).is_some() {
            command = command
                .mut_subcommand(*name, |sub| sub.after_long_help(format!("Examples:\n{}", text.join("\n"))));
        }
    }
    command
}

/// The fields of a command's `--json`: path, whether it is always present, meaning.
pub(crate) fn fields(command: &str) -> impl Iterator<Item = (&'static str, bool, &'static str)> {
    let start = format!("# {command}");
    let lines = FIELDS.lines().skip_while(move |line| *line != start).skip(1);
    lines.take_while(|line| !line.is_empty()).filter_map(|line| {
        let (path, meaning) = line.split_once(": ")?;
        let always = !path.ends_with('?');
        Some((path.trim_end_matches('?'), always, meaning))
    })
}

/// The manual page of a command, as roff; the page of `trike` itself for the root.
pub(crate) fn page(command: &Command) -> std::io::Result<Vec<u8>> {
    let mut roff = Vec::new();
    // The examples have a section of their own.
    clap_mangen::Man::new(command.clone().after_long_help("").after_help("")).render(&mut roff)?;
    let name = command.get_name();
    let mut text = String::new();
    let mut section = |title: &str, entries: Vec<(String, String)>| {
        if !entries.is_empty() {
            text += &format!(".SH {title}\n");
            for (term, meaning) in entries {
                text += &format!(".TP\n{}\n{}\n", bold(&term), escaped(&meaning));
            }
        }
    };
    let examples = EXAMPLES.iter().filter(|(of, _)| *of == name).flat_map(|(_, lines)| lines.iter());
    section(
        "EXAMPLES",
        examples.map(|(line, meaning)| ((*line).to_owned(), (*meaning).to_owned())).collect(),
    );
    let json = fields(name).map(|(path, always, meaning)| {
        (path.to_owned(), if always { meaning.to_owned() } else { format!("{meaning} (optional)") })
    });
    let version = (SCHEMA, fields(name).next().is_some());
    let version = version
        .1
        .then(|| ("schema_version".to_owned(), format!("{}, the version of these fields", version.0)));
    section("JSON", version.into_iter().chain(json).collect());
    let variables = command.get_arguments().filter_map(|arg| {
        let variable = arg.get_env()?.to_string_lossy().into_owned();
        let long = arg.get_long().map(|long| format!("the default of --{long}")).unwrap_or_default();
        Some((variable, long))
    });
    let model = command.get_arguments().any(|arg| arg.get_id() == "model" && arg.get_short() == Some('m'));
    let model = model.then(|| ("TRIKE_MODEL".to_owned(), "the default of MODEL".to_owned()));
    let hub = [
        ("HF_HOME, HF_HUB_CACHE", "folder of downloaded models"),
        ("HF_TOKEN", "token for private models"),
        ("HF_HUB_OFFLINE", "1: download nothing"),
    ];
    let hub = hub.iter().filter(|_| model.is_some() || ["pull", "list", "rm"].contains(&name));
    let hub: Vec<_> = hub.map(|(name, meaning)| ((*name).to_owned(), (*meaning).to_owned())).collect();
    let general = [("NO_COLOR".to_owned(), "1: no colours".to_owned())];
    section("ENVIRONMENT", model.into_iter().chain(variables).chain(hub).chain(general).collect());
    let exit = [("0", "done"), ("1", "failed"), ("2", "wrong usage"), ("130", "interrupted")];
    section("EXIT STATUS", exit.map(|(code, meaning)| (code.to_owned(), meaning.to_owned())).into());
    let mut related: Vec<&str> = RELATED
        .iter()
        .filter(|group| group.contains(&name))
        .flat_map(|group| group.iter().copied())
        .collect();
    if related.is_empty() {
        related = EXAMPLES.iter().map(|(name, _)| *name).collect();
    }
    related.retain(|other| *other != name);
    related.sort_unstable();
    related.dedup();
    let pages = related.iter().map(|other| format!("trike\\-{other}(1)"));
    let root = (name != "trike").then(|| "trike(1)".to_owned());
    let pages: Vec<String> = root.into_iter().chain(pages).collect();
    text += &format!(".SH \"SEE ALSO\"\n{}\n", pages.join(", "));
    roff.extend_from_slice(text.as_bytes());
    Ok(roff)
}

fn bold(text: &str) -> String {
    format!("\\fB{}\\fR", escaped(text))
}

/// A line of text, escaped for roff.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args;

    #[test]
    fn every_command_has_examples_that_it_parses_and_a_page() {
        let command = args::command();
        for sub in command.get_subcommands() {
            let name = sub.get_name();
            let (_, lines) = EXAMPLES.iter().find(|(of, _)| *of == name).unwrap_or_else(|| panic!("{name}"));
            for (line, _) in *lines {
                let words = line.split(['<', '>']).next().unwrap_or_default();
                let words: Vec<String> = words
                    .split('"')
                    .enumerate()
                    .flat_map(|(i, part)| match i % 2 {
                        0 => part.split_whitespace().map(str::to_owned).collect::<Vec<_>>(),
                        _ => vec![part.to_owned()],
                    })
                    .collect();
                args::command()
                    .try_get_matches_from(&words)
                    .unwrap_or_else(|error| panic!("{line}: {error}"));
            }
            let page = String::from_utf8(page(sub).unwrap()).unwrap();
            for title in ["SYNOPSIS", "EXAMPLES", "ENVIRONMENT", "EXIT STATUS", "SEE ALSO"] {
                assert!(page.contains(title), "{name}: {title}");
            }
            let json = sub.get_arguments().any(|arg| arg.get_long() == Some("json"));
            assert_eq!(page.contains(".SH JSON"), json, "{name}");
        }
        for group in RELATED {
            assert!(group.iter().all(|name| EXAMPLES.iter().any(|(of, _)| of == name)), "{group:?}");
        }
    }
}
