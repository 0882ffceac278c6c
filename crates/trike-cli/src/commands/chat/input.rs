//! Messages from a terminal, with line editing, or from a pipe.

use std::{
    borrow::Cow,
    io::{self, BufRead, IsTerminal, Read},
    path::PathBuf,
};

use anyhow::Context as _;
use rustyline::{
    CompletionType, Config, Context, Editor, Helper, Hinter,
    completion::{Completer, FilenameCompleter, Pair},
    error::ReadlineError,
    highlight::Highlighter,
    history::FileHistory,
    validate::{ValidationContext, ValidationResult, Validator},
};

use super::slash::COMMANDS;
use crate::output::{self, Paint};

/// Maximum length of a message from a pipe, in bytes: more than fits in any context.
const MAX_MESSAGE: u64 = 1 << 24;
/// Delimiter of a multi-line message.
const FENCE: &str = "\"\"\"";
const PROMPT: &str = "> ";

/// A message, or the reason why there is none.
pub(super) enum Line {
    Message(String),
    /// Ctrl-C at the prompt.
    Interrupted,
    End,
}

/// Source of messages.
pub(super) enum Input {
    Terminal(Box<Editor<Help, FileHistory>>, Option<PathBuf>),
    Pipe,
}

impl Input {
    /// The terminal if stdin is one, with the history of earlier chats.
    pub(super) fn open() -> Self {
        if !io::stdin().is_terminal() {
            return Self::Pipe;
        }
        let config = Config::builder().completion_type(CompletionType::List).auto_add_history(true);
        let Ok(mut editor) = Editor::with_config(config.build()) else { return Self::Pipe };
        editor.set_helper(Some(Help { files: FilenameCompleter::new() }));
        let history = history();
        if let Some(path) = &history {
            // The first chat has no history.
            let _ = editor.load_history(path);
        }
        Self::Terminal(Box::new(editor), history)
    }

    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal(..))
    }

    /// Reads the next message.
    pub(super) fn read(&mut self) -> anyhow::Result<Line> {
        match self {
            Self::Pipe => pipe(),
            Self::Terminal(editor, history) => Ok(match editor.readline(PROMPT) {
                Ok(text) => {
                    if let Some(path) = history {
                        // If the history cannot be written, the chat continues without it.
                        let _ = path.parent().map(std::fs::create_dir_all);
                        let _ = editor.append_history(path);
                    }
                    Line::Message(unfenced(&text))
                }
                Err(ReadlineError::Interrupted) => Line::Interrupted,
                Err(ReadlineError::Eof) => Line::End,
                Err(error) => return Err(error).context("cannot read the terminal"),
            }),
        }
    }
}

/// A line of stdin. Bytes that are not UTF-8 become U+FFFD, with a note.
fn pipe() -> anyhow::Result<Line> {
    let mut bytes = Vec::new();
    let read =
        io::stdin().lock().take(MAX_MESSAGE).read_until(b'\n', &mut bytes).context("cannot read stdin")?;
    if read == 0 {
        return Ok(Line::End);
    }
    let text = String::from_utf8(bytes).unwrap_or_else(|error| {
        output::note("stdin: a line that is not UTF-8: wrong bytes are replaced");
        String::from_utf8_lossy(error.as_bytes()).into_owned()
    });
    Ok(Line::Message(text))
}

/// The history file: `TRIKE_HISTORY`, or a file in the user's state folder; none if the variable is empty.
fn history() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("TRIKE_HISTORY") {
        return Some(PathBuf::from(path)).filter(|path| !path.as_os_str().is_empty());
    }
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = variable("XDG_STATE_HOME")
        .or_else(|| variable("LOCALAPPDATA"))
        .or_else(|| Some(variable("HOME")?.join(".local/state")))?;
    Some(state.join("trike/history"))
}

/// A message without its multi-line syntax: `"""` around it, or `\` at the end of a line.
fn unfenced(text: &str) -> String {
    let inner = text.trim().strip_prefix(FENCE).and_then(|text| text.strip_suffix(FENCE));
    inner.map_or_else(|| text.replace("\\\n", "\n"), |text| text.trim_matches('\n').to_owned())
}

/// Completion, colours and the multi-line syntax.
#[derive(Helper, Hinter)]
pub(super) struct Help {
    files: FilenameCompleter,
}

impl Completer for Help {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        at: usize,
        context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let before = &line[..at];
        if ["/save ", "/save! ", "/load "].iter().any(|command| before.starts_with(command)) {
            return self.files.complete(line, at, context);
        }
        let names = COMMANDS.iter().map(|(name, ..)| *name).filter(|name| name.starts_with(before));
        let pair = |name: &str| Pair { display: name.to_owned(), replacement: name.to_owned() };
        Ok((0, if before.starts_with('/') { names.map(pair).collect() } else { Vec::new() }))
    }
}

impl Highlighter for Help {
    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, _default: bool) -> Cow<'b, str> {
        Cow::Owned(Paint::Prompt.start() + prompt + &Paint::Prompt.end())
    }
}

impl Validator for Help {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let text = context.input().trim();
        let open = text.starts_with(FENCE) && (text.len() < 2 * FENCE.len() || !text.ends_with(FENCE));
        Ok(if open || text.ends_with('\\') {
            ValidationResult::Incomplete
        } else {
            ValidationResult::Valid(None)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_marks_of_lines_are_not_part_of_a_message() {
        for (typed, message) in [
            ("hello", "hello"),
            ("one\\\ntwo", "one\ntwo"),
            ("\"\"\"\none\ntwo\n\"\"\"", "one\ntwo"),
            ("\"\"\"one\"\"\"", "one"),
            ("say \"\"\"", "say \"\"\""),
        ] {
            assert_eq!(unfenced(typed), message);
        }
    }
}
