//! Takes the text of a reply apart while it is generated.

use super::syntax::{CallSyntax, ID, ID_LENGTH};

/// A part of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyPart {
    /// Text of the reasoning.
    Reasoning(String),
    /// Text of the content.
    Content(String),
    /// The start of a call.
    Call {
        /// Its number.
        index: usize,
        /// The tool.
        name: String,
    },
    /// Text of the arguments of the call that was started last, in JSON.
    Arguments {
        /// The number of the call.
        index: usize,
        /// The text.
        text: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first text: reasoning may be opened.
    Start,
    Reasoning,
    Content,
    /// Before the name of a call.
    Name,
    /// In the arguments of a call.
    Arguments,
    /// After the arguments.
    Close,
    /// After a call: another one may follow.
    Between,
    /// After the last call.
    End,
}

/// Takes the text of a reply apart while it is generated. Text is passed on as soon as it is known what it is.
#[derive(Clone, Debug)]
pub struct ReplyReader {
    calls: CallSyntax,
    /// Tools that may be called.
    names: Vec<String>,
    reasoning: Option<(String, String)>,
    state: State,
    /// Text that was not passed on yet.
    held: String,
    /// Calls so far.
    count: usize,
    /// Depth of brackets in the arguments.
    depth: usize,
    /// In a string of the arguments; and after a backslash there.
    in_string: (bool, bool),
    /// Whether content was passed on.
    has_content: bool,
}

/// How a text begins with a pattern.
enum Match {
    /// With all of it, in so many bytes.
    Whole(usize),
    /// It may, once there is more text.
    Partial,
    No,
}

impl ReplyReader {
    pub(super) fn new(
        calls: CallSyntax,
        names: Vec<String>,
        reasoning: Option<(String, String)>,
        is_open: bool,
    ) -> Self {
        let state = match &reasoning {
            Some(_) if is_open => State::Reasoning,
            Some(_) => State::Start,
            None => State::Content,
        };
        Self {
            calls,
            names,
            reasoning,
            state,
            held: String::new(),
            count: 0,
            depth: 0,
            in_string: (false, false),
            has_content: false,
        }
    }

    /// Calls so far.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.count
    }

    /// The parts that are known after more text.
    pub fn push(&mut self, text: &str) -> Vec<ReplyPart> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        while self.step(&mut parts, false) {}
        join(parts)
    }

    /// The parts that are left when the reply has ended.
    pub fn finish(&mut self) -> Vec<ReplyPart> {
        let mut parts = Vec::new();
        while self.step(&mut parts, true) {}
        join(parts)
    }

    /// Takes what is known off the held text; whether there may be more.
    fn step(&mut self, parts: &mut Vec<ReplyPart>, is_end: bool) -> bool {
        if self.held.is_empty() {
            return false;
        }
        match self.state {
            State::Start => self.start(is_end),
            State::Reasoning => self.reasoning(parts, is_end),
            State::Content => self.content(parts, is_end),
            State::Name => self.name(parts),
            State::Arguments => self.arguments(parts),
            State::Close => {
                let close = self.calls.close.clone();
                self.skip(&close, State::Between, is_end)
            }
            State::Between => {
                let Some(separator) = self.calls.separator.clone() else {
                    self.state = State::End;
                    return true;
                };
                let next = format!("{separator}{}", self.calls.open);
                match begins(&self.held, &next) {
                    Match::Whole(len) => {
                        self.held.drain(..len);
                        self.state = State::Name;
                        true
                    }
                    Match::Partial if !is_end => false,
                    _ => {
                        self.state = State::End;
                        true
                    }
                }
            }
            State::End => {
                // What follows calls is white space and the end of a list.
                self.held.clear();
                false
            }
        }
    }

    fn start(&mut self, is_end: bool) -> bool {
        let open = self.reasoning.as_ref().map(|(open, _)| open.clone()).unwrap_or_default();
        let text = self.held.trim_start();
        match begins(text, &open) {
            Match::Whole(len) => {
                self.held = text[len..].to_owned();
                self.state = State::Reasoning;
                true
            }
            Match::Partial if !is_end => false,
            _ => {
                self.state = State::Content;
                true
            }
        }
    }

    fn reasoning(&mut self, parts: &mut Vec<ReplyPart>, is_end: bool) -> bool {
        let close = self.reasoning.as_ref().map(|(_, close)| close.clone()).unwrap_or_default();
        if let Some(at) = self.held.find(&close) {
            let text: String = self.held.drain(..at + close.len()).collect();
            parts.push(ReplyPart::Reasoning(text[..at].trim_end().to_owned()));
            self.state = State::Content;
            return true;
        }
        // White space before the tag is not part of the reasoning.
        let known = if is_end {
            self.held.len()
        } else {
            self.held[..self.held.len() - tail(&self.held, &close)].trim_end().len()
        };
        let text: String = self.held.drain(..known).collect();
        parts.push(ReplyPart::Reasoning(text));
        false
    }

    fn content(&mut self, parts: &mut Vec<ReplyPart>, is_end: bool) -> bool {
        // White space before the first text belongs to the template.
        if !self.has_content && (self.reasoning.is_some() || !self.names.is_empty()) {
            let text = self.held.trim_start();
            if text.is_empty() {
                return false;
            }
            self.held = text.to_owned();
        }
        if self.names.is_empty() {
            return self.take_content(parts, self.held.len(), false);
        }
        let opening = self.calls.opening();
        let opening = opening.trim_start();
        if self.calls.is_at_start() {
            return match begins(&self.held, opening) {
                Match::Whole(len) if !self.has_content => {
                    self.held.drain(..len);
                    self.state = State::Name;
                    true
                }
                Match::Partial if !self.has_content && !is_end => false,
                _ => self.take_content(parts, self.held.len(), false),
            };
        }
        if let Some(at) = self.held.find(opening) {
            let at_text = self.held[..at].trim_end().len();
            self.take_content(parts, at_text, true);
            let from = self.held.find(opening).unwrap_or_default() + opening.len();
            self.held.drain(..from);
            self.state = State::Name;
            return true;
        }
        let known = match is_end {
            true => self.held.len(),
            // White space before a call is not part of the content.
            false => self.held[..self.held.len() - tail(&self.held, opening)].trim_end().len(),
        };
        self.take_content(parts, known, false)
    }

    fn take_content(&mut self, parts: &mut Vec<ReplyPart>, len: usize, more: bool) -> bool {
        let text: String = self.held.drain(..len).collect();
        if !text.is_empty() {
            self.has_content = true;
            parts.push(ReplyPart::Content(text));
        }
        more
    }

    fn name(&mut self, parts: &mut Vec<ReplyPart>) -> bool {
        let found = self.names.iter().find_map(|name| {
            let quoted = serde_json::Value::from(name.as_str()).to_string();
            let pattern = format!("{}{}", &quoted[1..quoted.len() - 1], self.calls.middle);
            match begins(&self.held, &pattern) {
                Match::Whole(len) => Some((name.clone(), len)),
                _ => None,
            }
        });
        let Some((name, len)) = found else { return false };
        self.held.drain(..len);
        parts.push(ReplyPart::Call { index: self.count, name });
        self.count += 1;
        self.state = State::Arguments;
        (self.depth, self.in_string) = (0, (false, false));
        true
    }

    fn arguments(&mut self, parts: &mut Vec<ReplyPart>) -> bool {
        let mut end = None;
        for (at, letter) in self.held.char_indices() {
            let (in_string, escaped) = self.in_string;
            self.in_string = match letter {
                _ if in_string && escaped => (true, false),
                '\\' if in_string => (true, true),
                '"' => (!in_string, false),
                _ => (in_string, false),
            };
            if !in_string {
                match letter {
                    '{' | '[' => self.depth += 1,
                    '}' | ']' => {
                        self.depth = self.depth.saturating_sub(1);
                        if self.depth == 0 {
                            end = Some(at + letter.len_utf8());
                            break;
                        }
                    }
                    _ => {}
                }
            }
        }
        let text: String = self.held.drain(..end.unwrap_or(self.held.len())).collect();
        if !text.is_empty() {
            parts.push(ReplyPart::Arguments { index: self.count.saturating_sub(1), text });
        }
        if end.is_some() {
            self.state = State::Close;
        }
        end.is_some()
    }

    fn skip(&mut self, pattern: &str, then: State, is_end: bool) -> bool {
        match begins(&self.held, pattern) {
            Match::Whole(len) => {
                self.held.drain(..len);
                self.state = then;
                true
            }
            Match::Partial if !is_end => false,
            _ => {
                self.state = State::End;
                true
            }
        }
    }
}

/// How a text begins with a pattern, in which [`ID`] stands for letters and digits.
fn begins(text: &str, pattern: &str) -> Match {
    let mut rest = text;
    for (number, part) in pattern.split(ID).enumerate() {
        if number > 0 {
            let len = rest.bytes().take(ID_LENGTH).take_while(u8::is_ascii_alphanumeric).count();
            if len < ID_LENGTH {
                return if len == rest.len() { Match::Partial } else { Match::No };
            }
            rest = &rest[len..];
        }
        match rest.strip_prefix(part) {
            Some(after) => rest = after,
            None if part.starts_with(rest) => return Match::Partial,
            None => return Match::No,
        }
    }
    Match::Whole(text.len() - rest.len())
}

/// Bytes at the end of a text that may be the start of `marker`.
fn tail(text: &str, marker: &str) -> usize {
    let starts = marker.char_indices().map(|(at, letter)| at + letter.len_utf8());
    starts.filter(|&len| len < marker.len() && text.ends_with(&marker[..len])).max().unwrap_or(0)
}

/// Neighbouring parts of the same kind as one, without empty ones.
pub(super) fn join(parts: Vec<ReplyPart>) -> Vec<ReplyPart> {
    let mut joined: Vec<ReplyPart> = Vec::new();
    for part in parts {
        match (joined.last_mut(), part) {
            (_, ReplyPart::Reasoning(text) | ReplyPart::Content(text)) if text.is_empty() => {}
            (Some(ReplyPart::Reasoning(all)), ReplyPart::Reasoning(text))
            | (Some(ReplyPart::Content(all)), ReplyPart::Content(text)) => all.push_str(&text),
            (Some(ReplyPart::Arguments { text: all, .. }), ReplyPart::Arguments { text, .. }) => {
                all.push_str(&text);
            }
            (_, part) => joined.push(part),
        }
    }
    joined
}
