//! Terminal output: the only module that writes to stdout and stderr.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

/// A result with a human-readable form.
pub(crate) trait Show: Serialize {
    /// Lines of text, including the final newline.
    fn text(&self) -> String;
}

/// Writes a result to stdout, as text or as one JSON object.
pub(crate) fn show<T: Show>(result: &T, json: bool) -> io::Result<()> {
    let mut text = if json { serde_json::to_string_pretty(result)? + "\n" } else { result.text() };
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

/// Prints an input prompt if stdin is a terminal.
pub(crate) fn ask() {
    if io::stdin().is_terminal() {
        // Errors are ignored: without stderr the prompt is not needed.
        let _ = write!(io::stderr().lock(), "> ").and_then(|()| io::stderr().flush());
    }
}

/// Writes a line to stderr.
pub(crate) fn note(line: &str) {
    // Errors are ignored: there is nowhere to report them.
    let _ = writeln!(io::stderr().lock(), "{line}");
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
