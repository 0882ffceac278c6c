//! Terminal output: the only module that writes to stdout and stderr.

use std::{
    io::{self, IsTerminal, Write},
    sync::LazyLock,
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
    let mut text = if json { serde_json::to_string_pretty(&Versioned::of(result))? } else { result.text() };
    if !text.ends_with('\n') {
        text.push('\n');
    }
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
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
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Asks a yes/no question on the terminal; `None` without a terminal. Any answer but yes means no.
pub(crate) fn ask(question: &str) -> io::Result<Option<bool>> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
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

/// Prints an error chain, outermost context first, and the advice.
pub(crate) fn error(error: &anyhow::Error, advice: Option<&str>) {
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
    note(&line);
}
