//! The commands of a chat.

use std::path::Path;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use trike::{
    format::OutputFile,
    text::chat::{Conversation, Message},
};

use super::Chat;
use crate::{commands::text, output};

/// Name, argument and description.
pub(super) const COMMANDS: [(&str, &str, &str); 11] = [
    ("/help", "", "list these commands"),
    ("/system", "[TEXT]", "set the system prompt, or remove it"),
    ("/save", "FILE", "write the conversation to a JSON file"),
    ("/save!", "FILE", "the same, also over a file that is not of this chat"),
    ("/load", "FILE", "continue a conversation from a file"),
    ("/regenerate", "", "answer the last message again, with another seed"),
    ("/undo", "", "undo the last message and its answer"),
    ("/params", "[NAME VALUE]", "show the sampling parameters, or set one"),
    ("/clear", "", "start a new conversation; the system prompt stays"),
    ("/exit", "", "end (also Ctrl-D)"),
    ("/bye", "", "the same"),
];

/// A command.
#[derive(Debug, PartialEq)]
pub(super) enum Slash<'a> {
    Help,
    System(&'a str),
    Save(&'a str),
    Replace(&'a str),
    Load(&'a str),
    Regenerate,
    Undo,
    Params(&'a str),
    Clear,
    Exit,
    Unknown(&'a str),
}

impl<'a> Slash<'a> {
    /// The command of a line that starts with a slash; `None` for a message.
    pub(super) fn parse(line: &'a str) -> Option<Self> {
        let line = line.starts_with('/').then(|| line.trim())?;
        let (name, argument) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let argument = argument.trim();
        Some(match name {
            "/help" | "/?" => Self::Help,
            "/system" => Self::System(argument),
            "/save" => Self::Save(argument),
            "/save!" => Self::Replace(argument),
            "/load" => Self::Load(argument),
            "/regenerate" => Self::Regenerate,
            "/undo" => Self::Undo,
            "/params" => Self::Params(argument),
            "/clear" => Self::Clear,
            "/exit" | "/bye" | "/quit" => Self::Exit,
            _ => Self::Unknown(name),
        })
    }
}

/// A saved conversation.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    messages: Vec<Message>,
    /// Tools of the conversation, see [`Chat::tools`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tools: Option<Value>,
}

impl Chat {
    /// Executes a command. Its messages go to stderr, so that stdout has only answers.
    pub(super) fn execute(&mut self, command: Slash<'_>) -> anyhow::Result<()> {
        match command {
            Slash::Help => output::note(&help()),
            Slash::System(text) => {
                self.chat.conversation_mut().set_system(Some(text).filter(|text| !text.is_empty()));
                self.say(if text.is_empty() { "no system prompt" } else { "system prompt set" });
            }
            Slash::Save("") | Slash::Replace("") | Slash::Load("") => bail!("expected a file name"),
            Slash::Save(path) => {
                let own = self.file.as_deref() == Some(Path::new(path));
                if !own && Path::new(path).is_file() {
                    bail!("{path} exists, and is not of this chat: `/save! {path}` replaces it");
                }
                self.save(Path::new(path))?;
            }
            Slash::Replace(path) => self.save(Path::new(path))?,
            Slash::Load(path) => self.load(Path::new(path))?,
            Slash::Regenerate => {
                // Answers of tools within the turn are kept.
                let mut turn = self.chat.conversation_mut().pop_turn();
                while turn.len() > 1 && turn.last().is_some_and(|message| message.role == "assistant") {
                    turn.pop();
                }
                if turn.is_empty() {
                    bail!("there is no message to answer");
                }
                turn.into_iter().for_each(|message| self.chat.conversation_mut().push(message));
                self.answer(None)?;
            }
            Slash::Undo => match self.chat.conversation_mut().pop_turn()[..] {
                [] => bail!("there is nothing to undo"),
                _ => self.say("taken back"),
            },
            Slash::Params("") => output::note(&self.params()),
            Slash::Params(text) => {
                self.set(text)?;
                output::note(&self.params());
            }
            Slash::Clear => {
                self.chat.conversation_mut().clear();
                self.file = None;
                self.say("a new conversation");
            }
            Slash::Exit => {}
            Slash::Unknown(name) => {
                bail!(
                    "{name}: no such command; /help lists them, and a space before the slash sends a message"
                )
            }
        }
        Ok(())
    }

    fn say(&self, line: &str) {
        if !self.quiet {
            output::note(line);
        }
    }

    fn save(&mut self, path: &Path) -> anyhow::Result<()> {
        let saved =
            Saved { messages: self.chat.conversation().messages().to_vec(), tools: self.tools.clone() };
        let json = serde_json::to_string_pretty(&saved)? + "\n";
        OutputFile::replace(path, json).with_context(|| format!("cannot write {}", path.display()))?;
        self.file = Some(path.to_owned());
        self.say(&format!("{} messages in {}", saved.messages.len(), path.display()));
        Ok(())
    }

    fn load(&mut self, path: &Path) -> anyhow::Result<()> {
        let saved: Saved = serde_json::from_str(&text::read(path)?)
            .with_context(|| format!("{}: expected a saved conversation", path.display()))?;
        for (i, message) in saved.messages.iter().enumerate() {
            message.check().with_context(|| format!("{}: message {}", path.display(), i + 1))?;
        }
        let count = saved.messages.len();
        self.file = Some(path.to_owned());
        *self.chat.conversation_mut() = Conversation::of(saved.messages);
        self.chat.rendering_mut().tools = saved.tools.as_ref().map(Value::to_string);
        self.tools = saved.tools;
        self.say(&format!("{count} messages from {}", path.display()));
        Ok(())
    }

    /// The sampling parameters, one per line.
    fn params(&self) -> String {
        let options = self.chat.options();
        let sampler = &options.sampler;
        let or = |value: Option<usize>, none: &str| value.map_or(none.to_owned(), |value| value.to_string());
        [
            ("temperature", sampler.temperature.to_string()),
            ("top-k", or(sampler.top_k, "all")),
            ("top-p", sampler.top_p.to_string()),
            ("min-p", sampler.min_p.to_string()),
            ("repetition-penalty", sampler.repetition_penalty.to_string()),
            ("seed", sampler.seed.to_string()),
            ("max-tokens", or(options.max_tokens, "-1")),
        ]
        .map(|(name, value)| format!("{name:20} {value}"))
        .join("\n")
    }

    /// Sets a parameter from its name and value.
    fn set(&mut self, text: &str) -> anyhow::Result<()> {
        let (name, value) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let value = value.trim();
        let number =
            || value.parse::<f32>().with_context(|| format!("{name}: expected a number, got `{value}`"));
        let whole = || {
            value.parse::<u64>().with_context(|| format!("{name}: expected a whole number, got `{value}`"))
        };
        let sampler = self.chat.options().sampler.clone();
        let sampler = match name.replace('_', "-").as_str() {
            "temperature" => sampler.with_temperature(number()?),
            "top-k" if ["all", "0"].contains(&value) => sampler.with_top_k(None),
            "top-k" => sampler.with_top_k(whole()? as usize),
            "top-p" => sampler.with_top_p(number()?),
            "min-p" => sampler.with_min_p(number()?),
            "repetition-penalty" => sampler.with_repetition_penalty(number()?),
            "seed" => sampler.with_seed(whole()?),
            "max-tokens" => {
                let tokens = if value == "-1" { None } else { Some(whole()? as usize) };
                self.chat.options_mut().max_tokens = tokens;
                return Ok(());
            }
            _ => bail!("{name}: no such parameter"),
        };
        sampler.validate()?;
        self.chat.options_mut().sampler = sampler;
        Ok(())
    }
}

fn help() -> String {
    let line = |(name, argument, meaning): &(&str, &str, &str)| {
        format!("{:24} {meaning}", format!("{name} {argument}"))
    };
    let lines: Vec<String> = COMMANDS.iter().map(line).collect();
    lines.join("\n") + "\n\nA line that ends with \\ is continued, and so is text between \"\"\" and \"\"\"."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_a_slash_is_a_command() {
        assert_eq!(Slash::parse("hello /help"), None);
        assert_eq!(Slash::parse(" /etc is a folder"), None);
        assert_eq!(Slash::parse("/system  Be brief. \n"), Some(Slash::System("Be brief.")));
        assert_eq!(Slash::parse("/halp me"), Some(Slash::Unknown("/halp")));
        for (name, ..) in COMMANDS {
            assert!(!matches!(Slash::parse(name), None | Some(Slash::Unknown(_))), "{name}");
            assert!(help().contains(name));
        }
    }
}
