//! Input texts of a command: from arguments, files and stdin.

use std::{
    io::{self, IsTerminal, Read},
    path::Path,
};

use anyhow::{Context, bail};
use trike::text::constraint::Grammar;

use crate::{
    args::{FormArgs, RunArgs},
    naming,
};

/// Maximum bytes of a prompt: more than fits in any context.
const MAX_PROMPT: u64 = 1 << 30;

/// Reads a text file.
pub(super) fn read(path: &Path) -> anyhow::Result<String> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    String::from_utf8(bytes).with_context(|| format!("{}: expected UTF-8 text", path.display()))
}

/// Reads a text from stdin, without its final newline.
pub(super) fn stdin() -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    io::stdin().lock().take(MAX_PROMPT).read_to_end(&mut bytes).context("cannot read stdin")?;
    Ok(line(String::from_utf8(bytes).context("stdin: expected UTF-8 text")?))
}

/// Tells the model of `trike run` from the prompt, if there is only one argument, or the model is given with `-m`.
pub(super) fn sorted(mut args: RunArgs) -> anyhow::Result<RunArgs> {
    let has_prompt = args.text.is_some() || args.prompt.is_some() || args.file.is_some();
    let Some(name) = args.model.name.as_deref().and_then(Path::to_str) else { return Ok(args) };
    let is_prompt = match &args.model.model {
        Some(_) if has_prompt => {
            return Err(super::conflict("the argument '[MODEL]' cannot be used with '--model <MODEL>'"));
        }
        Some(_) => true,
        None => !has_prompt && naming::is_prompt(name),
    };
    if is_prompt {
        args.text = Some(name.to_owned());
        args.model.name = None;
    }
    Ok(args)
}

/// The prompt of `trike run`; `None` if none is given and stdin is a terminal.
pub(super) fn prompt(args: &RunArgs) -> anyhow::Result<Option<String>> {
    if let Some(path) = &args.file {
        return Ok(Some(line(read(path)?)));
    }
    match args.prompt.as_deref().or(args.text.as_deref()) {
        Some("-") => stdin().map(Some),
        Some(text) => Ok(Some(text.to_owned())),
        None if io::stdin().is_terminal() => Ok(None),
        None => match stdin()? {
            text if text.is_empty() => Err(no_prompt()),
            text => Ok(Some(text)),
        },
    }
}

/// The error for a missing prompt.
pub(super) fn no_prompt() -> anyhow::Error {
    super::missing("no prompt: pass a text with -p TEXT, a file with -f FILE, or pipe one in")
}

/// A text without the final newline added by editors and `echo`.
fn line(mut text: String) -> String {
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    text
}

/// The grammar of the options, if any.
pub(super) fn grammar(args: &FormArgs) -> anyhow::Result<Option<Grammar>> {
    let FormArgs { json_schema, grammar, regex } = args;
    Ok(if let Some(schema) = json_schema {
        // Every schema except `true` and `false` is an object.
        let own = schema.trim_start().starts_with('{') || ["true", "false"].contains(&schema.trim());
        Some(Grammar::JsonSchema(given(schema, own)?))
    } else if let Some(grammar) = grammar {
        Some(Grammar::Lark(given(grammar, grammar.contains(':') && grammar.contains("start"))?))
    } else {
        regex.clone().map(Grammar::Regex)
    })
}

/// The text itself if it is one, else the content of the file with that name.
fn given(text: &str, is_text: bool) -> anyhow::Result<String> {
    if is_text { Ok(text.to_owned()) } else { read(Path::new(text)) }
}

/// The texts of `trike embed`.
pub(super) fn texts(args: &crate::args::EmbedArgs) -> anyhow::Result<Vec<String>> {
    let texts: Vec<String> = match &args.file {
        Some(path) => read(path)?.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect(),
        None => {
            let given = args.texts.iter().chain(&args.prompt);
            given
                .map(|text| if text == "-" { stdin() } else { Ok(text.clone()) })
                .collect::<Result<_, _>>()?
        }
    };
    if texts.is_empty() {
        bail!("{}: no line with text", args.file.as_deref().unwrap_or(Path::new("")).display());
    }
    Ok(texts)
}
