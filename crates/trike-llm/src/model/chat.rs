//! A conversation with a model.

use std::ops::ControlFlow;

use trike_text::{
    chat::{ChatTemplate, Conversation, Message, RenderOptions},
    sampler::SamplingOptions,
};

use crate::{GenerateOptions, Generation, LlmError, Model, ModelFile, OnText, Session};

/// A conversation: its messages, the template that renders them, and the [`Session`] with their keys and values, so that a message
/// is read only once.
///
/// ```
/// use std::ops::ControlFlow;
/// use trike_llm::{Chat, GenerateOptions, LanguageModel, chat::ChatTemplate};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny");
/// let model = LanguageModel::load(path)?;
/// // The bundled model has no template; `Chat::new` takes the model's own.
/// let template = ChatTemplate::from_source("{% for m in messages %}{{ m.content }} {% endfor %}")?;
/// let mut chat = Chat::with_template(template, GenerateOptions::default().with_max_tokens(8));
/// let answer = chat.send(&model, "Once upon a time", &mut |_| ControlFlow::Continue(()))?;
/// assert_eq!(answer.ids.len(), 8);
/// // The second answer reuses what was read and generated for the first.
/// assert!(chat.send(&model, "And then", &mut |_| ControlFlow::Continue(()))?.reused > 0);
/// assert_eq!(chat.conversation().turns(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Chat {
    template: ChatTemplate,
    conversation: Conversation,
    rendering: RenderOptions,
    options: GenerateOptions,
    session: Session,
    dropped: usize,
}

impl Chat {
    /// An empty conversation with the template and the sampling defaults of a model's files.
    ///
    /// # Errors
    ///
    /// [`LlmError::Unsupported`] for a model without a chat template, and errors of its files.
    pub fn new(model: &dyn Model) -> Result<Self, LlmError> {
        let file = ModelFile::open(model.path())?;
        let template = file.chat_template(model.tokenizer()?)?.ok_or_else(|| LlmError::Unsupported {
            path: file.path().to_owned(),
            name: "a chat with a model without a chat template".to_owned(),
            remedy: "use a model that was trained for chats, or give it a template".to_owned(),
        })?;
        let sampler = SamplingOptions::default().chat_sampler(&file.generation_config()?);
        Ok(Self::with_template(template, GenerateOptions::default().with_sampler(sampler)))
    }

    /// An empty conversation with a template. The options apply to each answer; the seed of the sampler is increased by 1 after each.
    /// Without a maximum number of tokens, an answer may fill a quarter of the context.
    #[must_use]
    pub fn with_template(template: ChatTemplate, options: GenerateOptions) -> Self {
        Self {
            template,
            conversation: Conversation::new(None),
            rendering: RenderOptions::default(),
            options,
            session: Session::default(),
            dropped: 0,
        }
    }

    /// Adds a message of the user and generates the answer, which is added to the conversation without surrounding white space. The
    /// oldest turns are dropped if the conversation would fill more than the context less the longest answer.
    ///
    /// # Errors
    ///
    /// Errors of the template, [`ChatError::TurnTooLong`](trike_text::chat::ChatError::TurnTooLong) for a message that is too long,
    /// and as [`generate_in`](crate::LanguageModel::generate_in). The turn is then removed from the conversation.
    pub fn send(
        &mut self,
        model: &dyn Model,
        message: &str,
        on_text: &mut OnText<'_>,
    ) -> Result<Generation, LlmError> {
        self.conversation.push(Message::user(message));
        let answer = self.answer(model, on_text);
        if answer.is_err() {
            self.conversation.pop_turn();
        }
        answer
    }

    /// Generates and adds an answer to the last message of the conversation.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send); the conversation then keeps its messages.
    pub fn answer(&mut self, model: &dyn Model, on_text: &mut OnText<'_>) -> Result<Generation, LlmError> {
        let tokenizer = model.tokenizer()?;
        let context = self.options.context.unwrap_or(model.config().spec.context);
        // At least half of the context is reserved for the conversation.
        let longest = self.options.max_tokens.unwrap_or(context / 4).min(context / 2);
        let budget = context - longest;
        let prompt = self.conversation.fit(&self.template, tokenizer, &self.rendering, budget)?;
        self.dropped += prompt.dropped_messages;
        let ends = tokenizer.turn_ends();
        let answer = model.generate_in(&mut self.session, prompt.ids, &ends, &self.options, on_text)?;
        // Another answer to the same message is another text.
        self.options.sampler.seed = self.options.sampler.seed.wrapping_add(1);
        self.conversation.push(Message::assistant(answer.text.trim()));
        Ok(answer)
    }

    /// The answer to a message, without streaming.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn ask(&mut self, model: &dyn Model, message: &str) -> Result<String, LlmError> {
        let answer = self.send(model, message, &mut |_| ControlFlow::Continue(()))?;
        Ok(answer.text.trim().to_owned())
    }

    /// The messages.
    #[must_use]
    pub fn conversation(&self) -> &Conversation {
        &self.conversation
    }

    /// The messages, for changes between answers.
    pub fn conversation_mut(&mut self) -> &mut Conversation {
        &mut self.conversation
    }

    /// Variables of the template, such as the tools.
    pub fn rendering_mut(&mut self) -> &mut RenderOptions {
        &mut self.rendering
    }

    /// The options of the next answer.
    #[must_use]
    pub fn options(&self) -> &GenerateOptions {
        &self.options
    }

    /// The options of answers, for changes between them.
    pub fn options_mut(&mut self) -> &mut GenerateOptions {
        &mut self.options
    }

    /// Number of messages dropped so far because the conversation exceeded the context.
    #[must_use]
    pub fn dropped_messages(&self) -> usize {
        self.dropped
    }
}
