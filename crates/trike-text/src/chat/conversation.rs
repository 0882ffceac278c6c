//! A conversation that stays within a number of tokens.

use super::{ChatError, ChatTemplate, Message, RenderOptions};
use crate::tokenizer::Tokenizer;

/// Messages in order, the oldest of which are dropped when they no longer fit.
///
/// A *turn* is a message of the user and everything up to the next one. System messages before the first turn are
/// the system prompt, which stays, as does the last turn.
///
/// ```
/// use trike_text::chat::{Conversation, Message};
///
/// let mut chat = Conversation::new(Some("Be brief."));
/// chat.push(Message::user("Hello"));
/// chat.push(Message::assistant("Hi."));
/// assert_eq!(chat.turns(), 1);
/// assert_eq!(chat.messages().len(), 3);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    messages: Vec<Message>,
}

/// A prompt that fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Its token ids, BOS included where the template spells it.
    pub ids: Vec<u32>,
    /// Turns that were dropped for it.
    pub dropped_turns: usize,
    /// Messages of those turns.
    pub dropped_messages: usize,
}

impl Conversation {
    /// A conversation that starts with the system prompt, if there is one.
    #[must_use]
    pub fn new(system: Option<&str>) -> Self {
        Self { messages: system.into_iter().map(Message::system).collect() }
    }

    /// Appends a message.
    pub fn push(&mut self, message: Message) {
        self.messages.push(message);
    }

    /// Takes the last message back, after a failed answer for example.
    pub fn pop(&mut self) -> Option<Message> {
        self.messages.pop()
    }

    /// Forgets everything but the system prompt.
    pub fn clear(&mut self) {
        self.messages.truncate(self.system_len());
    }

    /// The messages.
    #[must_use]
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Turns, the last one included.
    #[must_use]
    pub fn turns(&self) -> usize {
        self.turn_starts().len()
    }

    fn system_len(&self) -> usize {
        self.messages.iter().take_while(|m| m.role == "system").count()
    }

    /// Where each turn starts. What stands before the first message of a user, if anything, is a turn too.
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

    /// Renders the conversation into at most `budget` tokens, and drops the fewest oldest turns that make it fit.
    ///
    /// Dropped messages are gone from the conversation. On an error it stays as it was.
    ///
    /// # Errors
    ///
    /// [`ChatError::TurnTooLong`] when even the last turn with the system prompt does not fit, and what
    /// [`ChatTemplate::encode`] says.
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
        // Fewer turns are fewer tokens, so the first number that fits is found by halving.
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
