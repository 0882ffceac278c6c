//! Terminal output: the only module that writes to stdout and stderr.

use std::{
    io::{self, IsTerminal, Write},
    path::Path,
    sync::{LazyLock, OnceLock},
    time::Instant,
};

use serde::Serialize;

use crate::manual::SCHEMA;

/// The start of the command.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Seconds since the first call, which `main` makes.
pub(crate) fn seconds() -> f64 {
    START.elapsed().as_secs_f64()
}

/// The path of the bundled model, and its name.
static BUNDLED: OnceLock<(String, &'static str)> = OnceLock::new();

/// From now on, shows a path by its name in all messages.
pub(crate) fn name_path(path: &Path, name: &'static str) {
    // There is one bundled model per process.
    let _ = BUNDLED.set((path.display().to_string(), name));
}

/// A text in which the path of the bundled model is its name.
pub(crate) fn named(text: &str) -> String {
    match BUNDLED.get() {
        Some((path, name)) => text.replace(path.as_str(), name),
        None => text.to_owned(),
    }
}

/// The name of a model to show: its path, or the name of the bundled model.
pub(crate) fn model_name(path: &Path) -> String {
    named(&path.display().to_string())
}

/// A size in decimal units.
pub(crate) fn bytes(n: u64) -> String {
    match n {
        0..1_000 => format!("{n} B"),
        1_000..1_000_000 => format!("{:.1} kB", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} MB", n as f64 / 1e6),
        _ => format!("{:.2} GB", n as f64 / 1e9),
    }
}

/// An object preceded by the version of its fields.
#[derive(Serialize)]
pub(crate) struct Versioned<'a, T> {
    schema_version: u32,
    #[serde(flatten)]
    result: &'a T,
}

impl<'a, T> Versioned<'a, T> {
    pub(crate) fn of(result: &'a T) -> Self {
        Self { schema_version: SCHEMA, result }
    }
}

/// A result with a human-readable form.
pub(crate) trait Show: Serialize {
    /// Lines of text, including the final newline.
    fn text(&self) -> String;
}

/// Writes a result to stdout, as text or as one JSON object.
pub(crate) fn show<T: Show>(result: &T, json: bool) -> io::Result<()> {
    let mut text = match json {
        true => compact(&serde_json::to_string_pretty(&Versioned::of(result))?),
        false => named(&result.text()),
    };
    if !text.ends_with('\n') {
        text.push('\n');
    }
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Puts every list of numbers of an indented JSON text on one line.
fn compact(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    let mut lines = json.lines().peekable();
    while let Some(line) = lines.next() {
        text += line;
        // Strings contain no line breaks, so a line that ends with a bracket opens a list.
        if line.ends_with('[') {
            let is_number =
                |line: &str| line.trim_start().starts_with(|c: char| c == '-' || c.is_ascii_digit());
            let mut list = lines.clone();
            let mut numbers = Vec::new();
            while let Some(number) = list.next_if(|line| is_number(line)) {
                numbers.push(number.trim());
            }
            if let Some(end) = list.next()
                && !numbers.is_empty()
                && end.trim_start().starts_with(']')
            {
                text += &numbers.join(" ");
                text += end.trim_start();
                lines = list;
            }
        }
        text.push('\n');
    }
    text
}

/// Writes a piece of generated text to stdout and flushes it.
pub(crate) fn stream(piece: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(piece.as_bytes())?;
    stdout.flush()
}

/// Ends a streamed text: adds a newline on a terminal; a pipe or file gets exactly the text.
pub(crate) fn end_stream() -> io::Result<()> {
    if io::stdout().is_terminal() { stream("\n") } else { Ok(()) }
}

/// Colours of a terminal.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Paint {
    /// The prompt of a chat.
    Prompt,
    /// The answers of a chat.
    Answer,
    /// Secondary information.
    Dim,
}

impl Paint {
    /// The escape code that starts it on stdout; empty without colours.
    pub(crate) fn start(self) -> String {
        if colours(io::stdout().is_terminal()) { self.code().to_owned() } else { String::new() }
    }

    /// The escape code that ends it on stdout.
    pub(crate) fn end(self) -> String {
        if self.start().is_empty() { String::new() } else { "\x1b[0m".to_owned() }
    }

    /// A text for stderr.
    pub(crate) fn on_stderr(self, text: &str) -> String {
        if colours(io::stderr().is_terminal()) {
            format!("{}{text}\x1b[0m", self.code())
        } else {
            text.to_owned()
        }
    }

    fn code(self) -> &'static str {
        match self {
            Self::Prompt => "\x1b[1;36m",
            Self::Answer => "\x1b[32m",
            Self::Dim => "\x1b[2m",
        }
    }
}

/// Whether to use colours: on a terminal that supports them, unless `NO_COLOR` is set.
fn colours(terminal: bool) -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    terminal && !set("NO_COLOR") && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}

/// Writes a line to stderr.
pub(crate) fn note(line: &str) {
    // Errors are ignored: there is nowhere to report them.
    let _ = writeln!(io::stderr().lock(), "{}", named(line));
}

/// Whether questions can be asked: stdin and stderr are a terminal.
pub(crate) fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks a yes/no question on the terminal; `None` without a terminal. Any answer but yes means no.
pub(crate) fn ask(question: &str) -> io::Result<Option<bool>> {
    if !is_interactive() {
        return Ok(None);
    }
    let mut stderr = io::stderr().lock();
    write!(stderr, "{question} [y/N] ")?;
    stderr.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(Some(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str())))
}

/// Writes the last line of an interrupted command to stderr, below a progress bar.
pub(crate) fn interrupted(line: &str) {
    if io::stderr().is_terminal() {
        note("");
    }
    note(line);
}

/// Prints an error chain, outermost context first, the advice, and the command that explains it.
pub(crate) fn error(error: &anyhow::Error, advice: Option<&str>, topic: Option<&str>) {
    let mut line = "error".to_owned();
    for cause in error.chain().map(ToString::to_string) {
        // Messages of the library already include their source.
        if !line.contains(&cause) {
            line.push_str(": ");
            line.push_str(&cause);
        }
    }
    if let Some(advice) = advice {
        line.push_str("\nhelp: ");
        line.push_str(advice);
    }
    if let Some(topic) = topic {
        line.push_str("\nmore: trike explain ");
        line.push_str(topic);
    }
    note(&line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_numbers_are_on_one_line() {
        for (json, text) in [
            (r#"{"a":[1,-2.5,3e-7],"b":[]}"#, "{\n  \"a\": [1, -2.5, 3e-7],\n  \"b\": []\n}\n"),
            (r#"[[1,2],[3]]"#, "[\n  [1, 2],\n  [3]\n]\n"),
            (r#"["a [",1]"#, "[\n  \"a [\",\n  1\n]\n"),
            (r#"[1,"]",2]"#, "[\n  1,\n  \"]\",\n  2\n]\n"),
            (r#"{"a":[{"b":[7]}]}"#, "{\n  \"a\": [\n    {\n      \"b\": [7]\n    }\n  ]\n}\n"),
        ] {
            let value: serde_json::Value = serde_json::from_str(json).unwrap();
            let shown = compact(&serde_json::to_string_pretty(&value).unwrap());
            assert_eq!(shown, text);
            assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
        }
    }
}
