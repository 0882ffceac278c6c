//! What is shown: the only place that writes to stdout and stderr.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

/// A result that a person can read.
pub(crate) trait Show: Serialize {
    /// Lines of text, with the last newline.
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

/// Writes a piece of generated text to stdout at once.
pub(crate) fn stream(piece: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(piece.as_bytes())?;
    stdout.flush()
}

/// Ends a streamed text: a terminal gets a newline, a pipe or file exactly the text.
pub(crate) fn end_stream() -> io::Result<()> {
    if io::stdout().is_terminal() { stream("\n") } else { Ok(()) }
}

/// Asks for a line where a person types it.
pub(crate) fn ask() {
    if io::stdin().is_terminal() {
        // Without a stderr there is nobody to ask.
        let _ = write!(io::stderr().lock(), "> ").and_then(|()| io::stderr().flush());
    }
}

/// Writes a line to stderr.
pub(crate) fn note(line: &str) {
    // Without a stderr there is nobody to tell.
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Reports why a command failed, from what it was doing down to the cause, and what to do about it.
pub(crate) fn error(error: &anyhow::Error, advice: Option<&str>) {
    let mut line = "error".to_owned();
    for cause in error.chain().map(ToString::to_string) {
        // Messages of the library hold their source already.
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
