//! `trike chat`.

use std::{
    io::{self, BufRead},
    ops::ControlFlow,
};

use anyhow::Context;
use trike::{
    FinishReason, GenerateOptions, Generation, Model, ModelFile, Tokenizer,
    text::chat::{ChatTemplate, Conversation, Message, RenderOptions},
};

use super::load::{load, open};
use crate::{
    args::{self, ChatArgs},
    interrupt, output,
};

/// Maximum length of a message read from stdin, in bytes: more than any context holds.
const MAX_MESSAGE: u64 = 1 << 24;

/// Runs the conversation until stdin ends.
pub(crate) fn chat(args: &ChatArgs, quiet: bool) -> anyhow::Result<()> {
    let file = ModelFile::open(args.model.path(quiet)?)?;
    let sampler = args.sampling.config(&file)?;
    let device = open(args.device.device, quiet)?;
    let tokenizer = file.tokenizer(args.tokenizer.tokenizer.as_deref())?;
    let template = template(args, &file, &tokenizer)?;
    let wanted = args.precision.options(&file, &args.cpu.cpu()?).with_tokenizer(tokenizer);
    let model = load(device, &file, &wanted, quiet)?;
    let options = GenerateOptions::default()
        .with_max_tokens(args.max_tokens)
        .with_sampler(sampler)
        .with_stop(args.stop.clone())
        .with_kv(args.precision.kv);
    let activations = args::activations_name(&model.activations());
    let mut talk = Conversation::new(args.system.as_deref());
    loop {
        output::ask();
        let Some(message) = read_line()? else { return Ok(()) };
        match message.trim() {
            "" => {}
            "/exit" => return Ok(()),
            "/clear" => talk.clear(),
            text => {
                talk.push(Message::user(text));
                let answer = answer(&*model, &template, &mut talk, &options, quiet)?;
                talk.push(Message::assistant(answer.text.trim()));
                output::stream("\n")?;
                if !quiet {
                    output::note(&closing(&answer, &activations));
                }
            }
        }
    }
}

/// The given template, or the model's own.
fn template(args: &ChatArgs, file: &ModelFile, tokenizer: &Tokenizer) -> anyhow::Result<ChatTemplate> {
    if let Some(given) = &args.chat_template {
        // A text with Jinja's braces is the template itself.
        let source = match ["{%", "{{"].iter().any(|braces| given.contains(braces)) {
            true => given.clone(),
            false => {
                std::fs::read_to_string(given).with_context(|| format!("cannot read the template {given}"))?
            }
        };
        return Ok(ChatTemplate::from_source(&source)?.with_tokens_of(tokenizer));
    }
    file.chat_template(tokenizer)?.with_context(|| {
        let path = file.path().display();
        format!("{path}: the model has no chat template; pass one with --chat-template, or use `trike run`")
    })
}

/// Generates the model's answer and streams it to stdout.
fn answer(
    model: &dyn Model,
    template: &ChatTemplate,
    talk: &mut Conversation,
    options: &GenerateOptions,
    quiet: bool,
) -> anyhow::Result<Generation> {
    let tokenizer = model.tokenizer()?;
    let context = model.config().spec.context;
    // At least half of the context is reserved for the conversation.
    let room = options.max_tokens.unwrap_or(context).min(context / 2);
    let prompt = talk.fit(template, tokenizer, &RenderOptions::default(), context - room)?;
    if prompt.dropped_turns > 0 && !quiet {
        output::note(&format!(
            "the conversation exceeded the context: dropped the oldest {} messages",
            prompt.dropped_messages
        ));
    }
    interrupt::stop_gracefully();
    let mut failed = None;
    let generation =
        model.generate_ids(prompt.ids, &tokenizer.turn_ends(), options, &mut |piece| match output::stream(
            piece,
        ) {
            Ok(()) if interrupt::requested() => ControlFlow::Break(()),
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        });
    interrupt::resume();
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(generation?),
    }
}

/// The summary line of an answer.
fn closing(answer: &Generation, activations: &str) -> String {
    let why = match answer.finish {
        FinishReason::Eos | FinishReason::Stop => String::new(),
        other => format!("; ended by {}", other.name()),
    };
    let (tokens, speed) = (answer.ids.len(), answer.tokens_per_second());
    format!("({tokens} tokens, {speed:.1} tok/s; activations {activations}{why})")
}

/// The next line of stdin; `None` at the end of input.
fn read_line() -> anyhow::Result<Option<String>> {
    let mut line = String::new();
    let read = io::Read::take(io::stdin().lock(), MAX_MESSAGE).read_line(&mut line).context("stdin")?;
    Ok((read > 0).then_some(line))
}
