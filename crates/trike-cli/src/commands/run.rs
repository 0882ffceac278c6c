//! `trike run`.

use std::{collections::BTreeMap, io, ops::ControlFlow, time::Duration};

use serde::Serialize;
use trike::{FinishReason, GenerateOptions, ModelFile};

use super::{
    DeviceOutcome,
    load::{layouts, load, open},
};
use crate::{
    args::{self, RunArgs},
    interrupt,
    progress::Progress,
};

/// Result of a generation. The field names are the schema of `trike run --json`.
#[derive(Debug, Serialize)]
pub(crate) struct RunOutcome {
    model: String,
    /// The prompt, decoded from its tokens.
    pub(crate) prompt: String,
    /// The generated text.
    pub(crate) text: String,
    prompt_ids: Vec<u32>,
    ids: Vec<u32>,
    finish: &'static str,
    /// RNG seed; `None` for greedy decoding.
    seed: Option<u64>,
    prompt_seconds: f64,
    prompt_tokens_per_second: f64,
    decode_seconds: f64,
    decode_tokens_per_second: f64,
    backend: String,
    /// Activation precisions of ternary layers.
    activations: String,
    /// Number of ternary matrices by layout.
    layouts: BTreeMap<&'static str, usize>,
    /// `None` on the CPU.
    device: Option<DeviceOutcome>,
}

impl RunOutcome {
    /// The summary line.
    pub(crate) fn speed(&self) -> String {
        let seed = self.seed.map_or_else(String::new, |seed| format!("; seed {seed}"));
        format!(
            "prompt {} tokens, {:.1} tok/s; decode {} tokens, {:.1} tok/s; ended by {}; {}; activations {}{seed}",
            self.prompt_ids.len(),
            self.prompt_tokens_per_second,
            self.ids.len(),
            self.decode_tokens_per_second,
            self.finish,
            self.backend,
            self.activations,
        )
    }

    /// Whether Ctrl-C ended the generation.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.finish == FinishReason::Cancelled.name()
    }
}

/// Continues a prompt and passes the prompt and each new piece to `sink`, which can abort with an error.
pub(crate) fn run(
    args: &RunArgs,
    quiet: bool,
    sink: &mut dyn FnMut(&str) -> io::Result<()>,
) -> anyhow::Result<RunOutcome> {
    let file = ModelFile::open(args.model.path(quiet)?)?;
    let sampler = args.sampling.config(&file)?;
    let seed = (sampler.temperature > 0.0).then_some(sampler.seed);
    let options = GenerateOptions::default()
        .with_max_tokens(args.max_tokens)
        .with_sampler(sampler)
        .with_stop(args.stop.clone())
        .with_kv(args.precision.kv)
        .with_window(args.window);
    // Open the device first, so that a missing one is reported before anything is read.
    let device = open(args.device.device, quiet)?;
    let tokenizer = file.tokenizer(args.tokenizer.tokenizer.as_deref())?;
    let prompt_ids = tokenizer.encode_prompt(&args.prompt)?;
    let prompt = tokenizer.decode(&prompt_ids)?;
    let sequence = options.cache(prompt_ids.len(), file.config().spec.context, file.default_kv())?;
    let wanted = args
        .precision
        .options(&file, &args.cpu.cpu()?)
        .with_tokenizer(tokenizer.clone())
        .with_sequence(sequence);
    let model = load(device, &file, &wanted, quiet)?;

    // The prompt is printed with the first piece, so a rejected prompt leaves stdout empty.
    let mut reading = Some(Progress::start("reading the prompt", quiet));
    let mut write = |piece: &str| {
        if reading.take().is_some() {
            interrupt::stop_gracefully();
            sink(&prompt)?;
        }
        sink(piece)
    };
    let mut failed = None;
    let generation =
        model.generate_ids(prompt_ids, tokenizer.eos(), &options, &mut |piece| match write(piece) {
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
        backend: model.backend(),
        activations: args::activations_name(&model.activations()),
        layouts: layouts(&*model),
        device: model.device_use().map(DeviceOutcome::from),
    })
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}
