//! `trike chat`.

mod input;
mod slash;

use std::{ops::ControlFlow, path::PathBuf};

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;
use trike::{
    FinishReason, GenerateOptions, Generation, Model, ModelFile, SamplerConfig, Tokenizer,
    text::{chat::ChatTemplate, constraint::Constraint},
};

use super::{
    hub, known,
    load::{context, load, open},
    shipped, text,
};
use crate::{
    advice::advice,
    args::{self, ChatArgs, RunArgs, TemplateArg},
    causes, interrupt, is_broken_pipe,
    naming::{NoChatModel, NoChatTemplate},
    output::{self, Paint, bytes},
    topics::Topic,
};
use input::{Input, Line};
use slash::Slash;

/// A conversation with its model.
struct Chat {
    model: Box<dyn Model>,
    chat: trike::Chat,
    /// Tools of a loaded conversation, for the template.
    tools: Option<Value>,
    /// Maximum number of tokens of the conversation.
    context: usize,
    /// The file to which it was last saved, or from which it was loaded.
    file: Option<PathBuf>,
    quiet: bool,
    json: bool,
}

/// An answer. The field names are the schema of the lines of `trike chat --json`.
#[derive(Debug, Serialize)]
struct Answer<'a> {
    answer: &'a str,
    finish: &'static str,
    /// Tokens of the answer.
    tokens: usize,
    tokens_per_second: f64,
    /// Tokens of the prompt: the conversation as the template renders it.
    prompt_tokens: usize,
    /// Number of prompt tokens reused from the session.
    reused_tokens: usize,
    prompt_seconds: f64,
    /// Tokens of the conversation, and their maximum.
    context_used: usize,
    context: usize,
    /// RNG seed; `None` for greedy decoding.
    seed: Option<u64>,
    activations: String,
}

impl From<RunArgs> for ChatArgs {
    /// A run without a prompt.
    fn from(args: RunArgs) -> Self {
        Self {
            model: args.model,
            tokenizer: args.tokenizer,
            system: None,
            template: TemplateArg::default(),
            max_tokens: args.max_tokens,
            context: args.context,
            stop: args.stop,
            form: args.form,
            kv: args.kv,
            precision: args.precision,
            cpu: args.cpu,
            device: args.device,
            json: false,
            sampling: args.sampling,
        }
    }
}

/// Starts a chat for `trike run` without a prompt, if the model can chat.
pub(super) fn start(args: ChatArgs, quiet: bool) -> anyhow::Result<()> {
    let file = ModelFile::open(args.model.path(quiet)?)?;
    let tokenizer = file.tokenizer(args.tokenizer.tokenizer.as_deref())?;
    match file.chat_template(&tokenizer)? {
        Some(_) => chat(&args, quiet),
        None => Err(text::no_prompt()),
    }
}

/// Chooses a model to chat with if none is given: in a terminal one of the cache, or the recommended one if its download is
/// confirmed.
pub(super) fn with_model(mut args: ChatArgs, quiet: bool) -> anyhow::Result<ChatArgs> {
    if args.model.chosen().is_some() || args.template.chat_template.is_some() {
        return Ok(args);
    }
    if let Some(name) = known::names().find(|name| hub::is_cached(name)).filter(|_| output::is_interactive())
    {
        if !quiet {
            output::note(&format!("no model given: using {name} of the cache"));
        }
        args.model.name = Some(PathBuf::from(name));
        return Ok(args);
    }
    let all = known::known_models();
    let Some(model) = all.to_chat_with() else { return Ok(args) };
    let (name, download, memory) = (model.name, model.bytes, model.memory);
    let error = NoChatModel { bundled: shipped::NAME, name, download, memory };
    let question =
        format!("{error}: download {name} ({}, needs about {} of memory)?", bytes(download), bytes(memory));
    let may_download = cfg!(feature = "hub") && shipped::hub().offline().is_none();
    if may_download && output::ask(&question)? == Some(true) {
        args.model.name = Some(PathBuf::from(name));
        return Ok(args);
    }
    Err(error.into())
}

/// Runs the conversation until the input ends.
pub(super) fn chat(args: &ChatArgs, quiet: bool) -> anyhow::Result<()> {
    let mut chat = Chat::open(args, quiet)?;
    let mut input = Input::open();
    if input.is_terminal() && !quiet {
        output::note(&format!("{}: /help lists the commands, /exit ends", args.model.given().display()));
    }
    loop {
        let message = match input.read()? {
            Line::Message(message) => message,
            Line::Interrupted => interrupt::exit(),
            Line::End => return Ok(()),
        };
        let done = match Slash::parse(&message) {
            // A leading space escapes the slash.
            None => chat.send(message.trim()),
            Some(Slash::Exit) => return Ok(()),
            // In a script, a wrong command does not end the chat either.
            Some(command) => chat.execute(command).or_else(|error| {
                output::error(&error, None, None);
                Ok(())
            }),
        };
        if let Err(error) = done {
            // In a terminal the chat continues with the next message.
            if !input.is_terminal() || is_broken_pipe(&error) {
                return Err(error);
            }
            output::error(&error, advice(&error).as_deref(), causes::topic(&error).map(Topic::name));
        }
    }
}

impl Chat {
    fn open(args: &ChatArgs, quiet: bool) -> anyhow::Result<Self> {
        let file = ModelFile::open(args.model.path(quiet)?)?;
        let sampler = args.sampling.chat(&file)?;
        let device = open(&args.device.device, quiet)?;
        let settings = args.kv.options(device.is_cpu())?;
        let request = args.precision.kv_request(device.is_cpu())?;
        let tokenizer = file.tokenizer(args.tokenizer.tokenizer.as_deref())?;
        let template = template(args, &file, &tokenizer)?;
        let grammar = text::grammar(&args.form)?;
        if let Some(grammar) = &grammar {
            // Report an invalid grammar before anything is loaded.
            Constraint::new(grammar, &tokenizer, &tokenizer.turn_ends()).map_err(trike::LlmError::from)?;
        }
        let options = GenerateOptions::default()
            .with_max_tokens(args.max_tokens.and_then(|tokens| tokens.0))
            .with_sampler(sampler)
            .with_stop(args.stop.clone())
            .with_grammar(grammar);
        let wanted = args.precision.options(&file, &args.cpu.cpu()?).with_tokenizer(tokenizer);
        let known = request.known(&file, &wanted)?;
        let unlimited = settings.with_precision(known.precision).with_limit(None);
        let whole = GenerateOptions::default().with_kv(unlimited).with_context(args.context);
        let whole = whole.cache(0, file.config().spec.context, file.default_kv())?;
        // A cache with eviction may be smaller than the context.
        let fits = args.context.is_some() || settings.limit.is_some();
        let capacity = match device.is_cpu() && !fits {
            true => context(&file, &wanted, whole, quiet)?,
            false => whole.capacity,
        };
        let sequence = whole.with_capacity(capacity).limited(settings.limit);
        let wanted = wanted.with_sequence(sequence);
        let model = load(device, &file, &wanted, quiet)?;
        let kv = request.choose(known, &file, &wanted, &*model, quiet)?;
        let options = options.with_kv(settings.with_precision(kv.precision)).with_context(capacity);
        let mut chat = trike::Chat::with_template(template, options);
        chat.conversation_mut().set_system(args.system.as_deref());
        Ok(Self { model, chat, tools: None, context: capacity, file: None, quiet, json: args.json })
    }

    /// Adds a message and generates its answer.
    fn send(&mut self, message: &str) -> anyhow::Result<()> {
        if message.is_empty() { Ok(()) } else { self.answer(Some(message)) }
    }

    /// Answers a message, or the last one of the conversation.
    fn answer(&mut self, message: Option<&str>) -> anyhow::Result<()> {
        let sampler = self.chat.options().sampler.clone();
        let answer = self.generate(message)?;
        let line = self.describe(&answer, &sampler);
        if self.json {
            output::stream(&(serde_json::to_string(&output::Versioned::of(&line))? + "\n"))?;
            return Ok(());
        }
        output::stream("\n")?;
        if !self.quiet {
            let why = match answer.finish {
                FinishReason::Eos | FinishReason::Stop => String::new(),
                other => format!("; ended by {}", other.name()),
            };
            output::note(&Paint::Dim.on_stderr(&format!(
                "({} tokens, {:.1} tok/s; context {} of {}; activations {}{why})",
                line.tokens, line.tokens_per_second, line.context_used, line.context, line.activations
            )));
        }
        Ok(())
    }

    fn describe<'a>(&self, answer: &'a Generation, sampler: &SamplerConfig) -> Answer<'a> {
        Answer {
            answer: answer.text.trim(),
            finish: answer.finish.name(),
            tokens: answer.ids.len(),
            tokens_per_second: answer.tokens_per_second(),
            prompt_tokens: answer.prompt_ids.len(),
            reused_tokens: answer.reused,
            prompt_seconds: answer.prefill.as_secs_f64(),
            context_used: answer.prompt_ids.len() + answer.ids.len(),
            context: self.context,
            seed: (sampler.temperature > 0.0).then_some(sampler.seed),
            activations: args::activations_name(&self.model.activations()),
        }
    }

    /// Generates an answer and streams it to stdout.
    fn generate(&mut self, message: Option<&str>) -> anyhow::Result<Generation> {
        interrupt::stop_gracefully();
        let mut colour = Paint::Answer.start();
        let mut failed = None;
        let (json, dropped) = (self.json, self.chat.dropped_messages());
        let mut on_text = |piece: &str| {
            let piece = if json { String::new() } else { std::mem::take(&mut colour) + piece };
            match output::stream(&piece) {
                Ok(()) if interrupt::requested() => ControlFlow::Break(()),
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            }
        };
        let generation = match message {
            Some(message) => self.chat.send(&*self.model, message, &mut on_text),
            None => self.chat.answer(&*self.model, &mut on_text),
        };
        interrupt::resume();
        if !json {
            output::stream(&Paint::Answer.end())?;
        }
        let dropped = self.chat.dropped_messages() - dropped;
        if dropped > 0 && !self.quiet {
            output::note(&format!(
                "the conversation exceeded the context: dropped the oldest {dropped} messages"
            ));
        }
        match failed {
            Some(error) => Err(error.into()),
            None => Ok(generation?),
        }
    }
}

/// The given template, or the model's own.
fn template(args: &ChatArgs, file: &ModelFile, tokenizer: &Tokenizer) -> anyhow::Result<ChatTemplate> {
    let template = chosen_template(&args.template, file, tokenizer)?;
    template.ok_or_else(|| NoChatTemplate { path: file.path().display().to_string() }.into())
}

/// The given template, or the model's own, if it has one.
pub(super) fn chosen_template(
    arg: &TemplateArg,
    file: &ModelFile,
    tokenizer: &Tokenizer,
) -> anyhow::Result<Option<ChatTemplate>> {
    let Some(given) = &arg.chat_template else { return Ok(file.chat_template(tokenizer)?) };
    // A text with Jinja's delimiters is itself the template.
    let source = match ["{%", "{{"].iter().any(|braces| given.contains(braces)) {
        true => given.clone(),
        false => {
            std::fs::read_to_string(given).with_context(|| format!("cannot read the template {given}"))?
        }
    };
    Ok(Some(ChatTemplate::from_source(&source)?.with_tokens_of(tokenizer)))
}
