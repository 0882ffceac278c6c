//! A conversation trimmed to a number of tokens.

use super::{ChatError, ChatTemplate, Message, RenderOptions};
use crate::tokenizer::Tokenizer;

/// Messages in order; the oldest are dropped when they no longer fit.
///
/// A *turn* is a message of the user and everything up to the next one. System messages before the first turn are
/// the system prompt, which is always kept, as is the last turn.
///
/// ```
/// use trike_text::chat::{Conversation, Message};
///
/// let mut chat = Conversation::new(Some("Be brief."));
/// chat.push(Message::user("Hello"));
/// chat.push(Message::assistant("Hi."));
/// assert_eq!(chat.turns(), 1);
/// assert_eq!(chat.messages().len(), 3);
/// chat.set_system(None);
/// assert_eq!(chat.pop_turn().len(), 2);
/// assert!(chat.messages().is_empty());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    messages: Vec<Message>,
}

/// A prompt within the token budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Token ids, including BOS if the template prints it.
    pub ids: Vec<u32>,
    /// Number of turns dropped.
    pub dropped_turns: usize,
    /// Number of messages in those turns.
    pub dropped_messages: usize,
}

impl Conversation {
    /// A conversation with an optional system prompt.
    #[must_use]
    pub fn new(system: Option<&str>) -> Self {
        Self { messages: system.into_iter().map(Message::system).collect() }
    }

    /// A conversation of these messages.
    #[must_use]
    pub fn of(messages: Vec<Message>) -> Self {
        Self { messages }
    }

    /// Appends a message.
    pub fn push(&mut self, message: Message) {
        self.messages.push(message);
    }

    /// Removes and returns the last message, for example after a failed answer.
    pub fn pop(&mut self) -> Option<Message> {
        self.messages.pop()
    }

    /// Replaces the system prompt, or removes it.
    pub fn set_system(&mut self, system: Option<&str>) {
        let rest = self.messages.split_off(self.system_len());
        self.messages = system.into_iter().map(Message::system).chain(rest).collect();
    }

    /// Removes and returns the last turn: a message of the user with its answers. Empty if there are no turns.
    pub fn pop_turn(&mut self) -> Vec<Message> {
        let start = self.turn_starts().pop().unwrap_or(self.messages.len());
        self.messages.split_off(start)
    }

    /// Removes all messages except the system prompt.
    pub fn clear(&mut self) {
        self.messages.truncate(self.system_len());
    }

    /// The messages.
    #[must_use]
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Number of turns, including the last one.
    #[must_use]
    pub fn turns(&self) -> usize {
        self.turn_starts().len()
    }

    fn system_len(&self) -> usize {
        self.messages.iter().take_while(|m| m.role == "system").count()
    }

    /// Start index of each turn. Messages between the system prompt and the first user message also form a turn.
    fn turn_starts(&self) -> Vec<usize> {
        let system = self.system_len();
        let rest = self.messages.iter().enumerate().skip(system);
        rest.filter(|&(i, m)| m.role == "user" || i == system).map(|(i, _)| i).collect()
    }

    /// The messages without the `turns` oldest turns.
    fn without(&self, turns: usize) -> Vec<Message> {
        let starts = self.turn_starts();
        let (system, rest) = self.messages.split_at(self.system_len());
        let skipped = starts.get(turns).map_or(0, |start| start - system.len());
        [system, &rest[skipped..]].concat()
    }

    /// Renders the conversation to at most `budget` tokens, dropping as few of the oldest turns as possible.
    ///
    /// Dropped messages are removed from the conversation. On an error it is unchanged.
    ///
    /// # Errors
    ///
    /// [`ChatError::TurnTooLong`] when even the last turn with the system prompt does not fit, and as
    /// [`ChatTemplate::encode`].
    pub fn fit(
        &mut self,
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
        options: &RenderOptions,
        budget: usize,
    ) -> Result<Prompt, ChatError> {
        let encode = |dropped: usize| template.encode(tokenizer, &self.without(dropped), options);
        let whole = encode(0)?;
        if whole.len() <= budget {
            return Ok(Prompt { ids: whole, dropped_turns: 0, dropped_messages: 0 });
        }
        // Fewer turns give fewer tokens, so binary search finds the smallest number of dropped turns.
        let most = self.turns().saturating_sub(1);
        let mut fitting = if most == 0 { whole } else { encode(most)? };
        if fitting.len() > budget {
            return Err(ChatError::TurnTooLong { tokens: fitting.len(), budget });
        }
        let (mut too_few, mut enough) = (0, most);
        while enough - too_few > 1 {
            let middle = too_few.midpoint(enough);
            let ids = encode(middle)?;
            if ids.len() <= budget {
                (enough, fitting) = (middle, ids);
            } else {
                too_few = middle;
            }
        }
        let kept = self.without(enough);
        let dropped_messages = self.messages.len() - kept.len();
        self.messages = kept;
        Ok(Prompt { ids: fitting, dropped_turns: enough, dropped_messages })
    }
}
