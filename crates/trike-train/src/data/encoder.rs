//! Tokens of documents, and which of them are learned.

use trike_text::chat::{ChatError, ChatTemplate, Message, RenderOptions};
use trike_text::tokenizer::{Tokenizer, TokenizerError};

use super::{Chat, Record};

/// What precedes an instruction in the prompt of Alpaca.
const ALPACA: &str = "Below is an instruction that describes a task. Write a response that appropriately completes the request.";

/// Why a document has no tokens.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// A conversation, and a model that has no chat template.
    #[error("a conversation, and the model has no chat template")]
    NoTemplate,
    /// The template or the tokenizer refuses it.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// The tokenizer refuses it.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

/// The tokens of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// All of them.
    pub ids: Vec<u32>,
    /// Whether a token is learned, that is, predicted from those before it and counted in the loss.
    pub learned: Vec<bool>,
}

impl Tokens {
    /// Tokens that are predicted: the first one never is.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count_to(usize::MAX)
    }

    /// Those of them that the first `inputs` tokens predict.
    pub(crate) fn count_to(&self, inputs: usize) -> usize {
        self.learned.iter().skip(1).take(inputs).filter(|&&learned| learned).count()
    }
}

/// Turns documents into tokens for a model.
///
/// Texts are BOS (if the tokenizer adds it), the text and EOS (if there is one), and all tokens are learned. Conversations go
/// through the model's chat template, and the tokens of the assistant's messages are learned. Instructions are a conversation of
/// two messages, or, for a model without a template, the prompt of Alpaca.
#[derive(Clone, Copy, Debug)]
pub struct Encoder<'a> {
    tokenizer: &'a Tokenizer,
    template: Option<&'a ChatTemplate>,
    eos: bool,
}

impl<'a> Encoder<'a> {
    /// An encoder for a model's tokenizer and chat template.
    #[must_use]
    pub fn new(tokenizer: &'a Tokenizer, template: Option<&'a ChatTemplate>) -> Self {
        Self { tokenizer, template, eos: true }
    }

    /// Sets whether texts end with EOS; on by default.
    #[must_use]
    pub fn with_eos(self, eos: bool) -> Self {
        Self { eos, ..self }
    }

    /// The tokens of a document.
    ///
    /// # Errors
    ///
    /// [`EncodeError::NoTemplate`] for a conversation and a model without a template, and those of the tokenizer and the template.
    pub fn encode(&self, record: &Record) -> Result<Tokens, EncodeError> {
        match record {
            Record::Text(text) => self.text(text),
            Record::Tokens(ids) => Ok(Tokens { ids: ids.clone(), learned: vec![true; ids.len()] }),
            Record::Chat(chat) => match self.template {
                Some(template) => self.chat(template, chat),
                None => Err(EncodeError::NoTemplate),
            },
            Record::Instruction { system, prompt, answer } => match self.template {
                Some(template) => {
                    let system = system.as_ref().map(Message::system);
                    let asked = [Message::user(prompt), Message::assistant(answer)];
                    self.chat(template, &Chat::from(system.into_iter().chain(asked).collect::<Vec<_>>()))
                }
                None => self.instruction(system.as_deref(), prompt, answer),
            },
        }
    }

    fn text(&self, text: &str) -> Result<Tokens, EncodeError> {
        // What looks like a special token in a text is text.
        let mut ids = self.start();
        ids.extend(self.tokenizer.encode_literal(text)?);
        self.end(&mut ids);
        let learned = vec![true; ids.len()];
        Ok(Tokens { ids, learned })
    }

    fn instruction(&self, system: Option<&str>, prompt: &str, answer: &str) -> Result<Tokens, EncodeError> {
        let before = system.unwrap_or(ALPACA);
        let asked = format!("{before}\n\n### Instruction:\n{prompt}\n\n### Response:\n");
        let mut ids = self.start();
        ids.extend(self.tokenizer.encode_literal(&asked)?);
        let from = ids.len();
        ids.extend(self.tokenizer.encode_literal(answer)?);
        self.end(&mut ids);
        let learned = (0..ids.len()).map(|i| i >= from).collect();
        Ok(Tokens { ids, learned })
    }

    fn chat(&self, template: &ChatTemplate, chat: &Chat) -> Result<Tokens, EncodeError> {
        let messages = &chat.messages[..];
        let encode = |messages: &[Message], asks: bool| {
            let options = RenderOptions::default().with_add_generation_prompt(asks);
            template.encode(self.tokenizer, messages, &options)
        };
        let ids = encode(messages, false)?;
        let mut learned = vec![false; ids.len()];
        let shared = |other: &[u32]| ids.iter().zip(other).take_while(|(a, b)| a == b).count();
        let is_learned = chat.learned.iter().enumerate().filter(|(_, is_learned)| **is_learned);
        for i in is_learned.map(|(i, _)| i).take_while(|&i| i < messages.len()) {
            // A conversation may start with the assistant; not every template renders none.
            let from = if i == 0 { 0 } else { shared(&encode(&messages[..i], true)?) };
            let end =
                if i + 1 == messages.len() { ids.len() } else { shared(&encode(&messages[..=i], false)?) };
            learned.iter_mut().take(end).skip(from).for_each(|learned| *learned = true);
        }
        Ok(Tokens { ids, learned })
    }

    fn start(&self) -> Vec<u32> {
        let bos = self.tokenizer.bos().filter(|_| self.tokenizer.adds_bos());
        bos.into_iter().collect()
    }

    fn end(&self, ids: &mut Vec<u32>) {
        ids.extend(self.tokenizer.eos().first().filter(|_| self.eos));
    }
}
