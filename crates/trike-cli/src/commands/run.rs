//! `trike run`.

use std::{io, ops::ControlFlow, time::Duration};

use serde::Serialize;
use trike::{Backend, FinishReason, GenerateOptions, LanguageModel, ModelFile, llm::Use};

use super::{DeviceOutcome, Wanted};
use crate::{args::RunArgs, interrupt, progress::Progress};

/// A continued prompt. The field names are the schema of `trike run --json`.
#[derive(Debug, Serialize)]
pub(crate) struct RunOutcome {
    model: String,
    /// The prompt as the tokenizer decodes it.
    pub(crate) prompt: String,
    /// The new text.
    pub(crate) text: String,
    prompt_ids: Vec<u32>,
    ids: Vec<u32>,
    finish: &'static str,
    /// Where chance started; none for greedy text.
    seed: Option<u64>,
    prompt_seconds: f64,
    prompt_tokens_per_second: f64,
    decode_seconds: f64,
    decode_tokens_per_second: f64,
    backend: String,
    /// None on the processor.
    device: Option<DeviceOutcome>,
}

impl RunOutcome {
    /// The closing line.
    pub(crate) fn speed(&self) -> String {
        let seed = self.seed.map_or_else(String::new, |seed| format!("; seed {seed}"));
        format!(
            "prompt {} tokens, {:.1} tok/s; decode {} tokens, {:.1} tok/s; ended by {}; {}{seed}",
            self.prompt_ids.len(),
            self.prompt_tokens_per_second,
            self.ids.len(),
            self.decode_tokens_per_second,
            self.finish,
            self.backend,
        )
    }

    /// Whether Ctrl-C ended it.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.finish == FinishReason::Cancelled.name()
    }
}

/// Continues a prompt and hands the prompt and each new piece to `sink`, which can break it off with an error.
pub(crate) fn run(
    args: &RunArgs,
    quiet: bool,
    sink: &mut dyn FnMut(&str) -> io::Result<()>,
) -> anyhow::Result<RunOutcome> {
    let file = ModelFile::open(args.model.path(quiet)?)?;
    let sampler = args.sampling.config(&file)?;
    let seed = (sampler.temperature > 0.0).then_some(sampler.seed);
    let options = GenerateOptions {
        max_tokens: args.max_tokens,
        sampler,
        stop: args.stop.clone(),
        kv: args.precision.kv,
        window: args.window,
    };
    let cpu = args.cpu.cpu()?;
    let mut wanted = Wanted::new(&file, &args.device.device, &cpu, &args.precision, quiet);
    wanted.tokenizer = args.tokenizer.tokenizer.as_deref();
    // A token of the prompt is a byte or more, and BOS comes before them.
    let context = wanted.kv.capacity;
    let most = args.prompt.len().saturating_add(2).min(context);
    wanted.kv = options.cache(most, context, wanted.kv.precision)?;
    wanted.load(&file, Continue { args, file: &file, options, seed, quiet, sink })
}

/// What is done with the model.
struct Continue<'a> {
    args: &'a RunArgs,
    file: &'a ModelFile,
    options: GenerateOptions,
    seed: Option<u64>,
    quiet: bool,
    sink: &'a mut dyn FnMut(&str) -> io::Result<()>,
}

impl Use for Continue<'_> {
    type Out = anyhow::Result<RunOutcome>;

    fn with<B: Backend>(self, model: LanguageModel<B>) -> Self::Out {
        generate(&model, self)
    }
}

fn generate<B: Backend>(model: &LanguageModel<B>, what: Continue<'_>) -> anyhow::Result<RunOutcome> {
    let Continue { args, file, options, seed, quiet, sink } = what;
    let prompt = model.tokenizer()?.decode(&model.encode_prompt(&args.prompt)?)?;

    // The prompt is shown with the first piece: a prompt that is refused leaves stdout empty.
    let mut reading = Some(Progress::start("reading the prompt", quiet));
    let mut write = |piece: &str| {
        if reading.take().is_some() {
            interrupt::stop_gracefully();
            sink(&prompt)?;
        }
        sink(piece)
    };
    let mut failed = None;
    let generation = model.generate_with(&args.prompt, &options, |piece| match write(piece) {
        Ok(()) if interrupt::requested() => ControlFlow::Break(()),
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            failed = Some(error);
            ControlFlow::Break(())
        }
    })?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    write("")?;
    Ok(RunOutcome {
        model: file.path().display().to_string(),
        prompt_tokens_per_second: generation.prompt_tokens_per_second(),
        decode_tokens_per_second: generation.tokens_per_second(),
        prompt_seconds: seconds(generation.prefill),
        decode_seconds: seconds(generation.decode),
        prompt,
        text: generation.text,
        prompt_ids: generation.prompt_ids,
        ids: generation.ids,
        finish: generation.finish.name(),
        seed,
        backend: model.decoder().backend().name(),
        device: model.decoder().backend().device_use().map(DeviceOutcome::from),
    })
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}
