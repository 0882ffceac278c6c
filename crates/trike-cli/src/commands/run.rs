//! `trike run`.

use std::{collections::BTreeMap, io, ops::ControlFlow, time::Instant};

use serde::Serialize;
use trike::{
    FinishReason, GenerateOptions, KvOptions, LoadOptions, Model, ModelFile, Tokenizer,
    format::Lock,
    llm::{PreparedRequest, Session, TokenLogprobs},
};

use super::{
    DeviceOutcome,
    kv::{ChosenOutcome, Kv},
    load::{layouts, load, note_shortened, open},
    text,
};
use crate::{
    args::{self, RunArgs},
    interrupt, output,
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
    /// Seconds to load the model.
    load_seconds: f64,
    /// Seconds from the start of the command to the first new token.
    first_token_seconds: f64,
    prompt_seconds: f64,
    /// Prompt tokens reused from `--prompt-cache`.
    reused_tokens: usize,
    /// Positions evicted from the KV cache, with --kv-limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    evicted_positions: Option<usize>,
    prompt_tokens_per_second: f64,
    decode_seconds: f64,
    decode_tokens_per_second: f64,
    /// The log-probabilities of the new tokens, with `--logprobs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<Logprobs>>,
    backend: String,
    /// Activation precisions of ternary layers.
    activations: String,
    /// KV cache precision.
    kv: String,
    /// The choice of `--kv auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_chosen: Option<ChosenOutcome>,
    /// Number of ternary matrices by layout.
    layouts: BTreeMap<&'static str, usize>,
    /// `None` on the CPU.
    device: Option<DeviceOutcome>,
    /// With `--parallel`.
    #[cfg(feature = "mpi")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ranks: Option<super::rank_outcome::RanksOutcome>,
}

/// A token with its log-probability, and the most probable alternatives.
#[derive(Debug, Serialize)]
struct Logprobs {
    #[serde(flatten)]
    token: Logprob,
    top: Vec<Logprob>,
}

/// A token and the natural logarithm of its probability.
#[derive(Debug, Serialize)]
struct Logprob {
    id: u32,
    /// Its text, with U+FFFD for a part of a character.
    token: String,
    logprob: f32,
}

impl RunOutcome {
    /// The summary line.
    pub(crate) fn speed(&self) -> String {
        let seed = self.seed.map_or_else(String::new, |seed| format!("; seed {seed}"));
        let reused = match self.reused_tokens {
            0 => String::new(),
            n => format!(" ({n} from the prompt cache)"),
        };
        let evicted = match self.evicted_positions {
            None | Some(0) => String::new(),
            Some(n) => format!("; {n} positions evicted from the KV cache"),
        };
        format!(
            "prompt {} tokens{reused}, {:.1} tok/s; decode {} tokens, {:.1} tok/s; ended by {}; load {:.2} s, first token after {:.2} s; {}; activations {}{evicted}{seed}",
            self.prompt_ids.len(),
            self.prompt_tokens_per_second,
            self.ids.len(),
            self.decode_tokens_per_second,
            self.finish,
            self.load_seconds,
            self.first_token_seconds,
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
    prompt: &str,
    quiet: bool,
    sink: &mut Sink<'_>,
) -> anyhow::Result<RunOutcome> {
    let file = ModelFile::open(args.model.path(quiet)?)?;
    // Held until the cache is written with the text of this run.
    let _lock = args.prompt_cache.as_deref().map(Lock::new).transpose()?;
    // Open the device first, so that a missing one is reported before anything is read.
    let device = open(&args.device.device, quiet)?;
    let kv = args.kv.options(device.is_cpu())?;
    let request = args.precision.kv_request(device.is_cpu())?;
    let mut text = PreparedPrompt::prepare(args, file, prompt, kv)?;
    let known = request.known(&text.file, &text.load)?;
    text.set_kv(&known);
    if device.is_cpu() {
        let wanted = text.request.kv().capacity;
        if let Some(fitting) = text.request.fit(&text.file, &text.load)? {
            note_shortened(fitting, wanted, quiet);
        }
    }
    let start = Instant::now();
    let options = text.options();
    let model = load(device, &text.file, &options, quiet)?;
    let load_seconds = start.elapsed().as_secs_f64();
    text.set_kv(&request.choose(known, &text.file, &options, &*model, quiet)?);
    let mut session = match &args.prompt_cache {
        Some(path) if path.exists() => {
            let session = model.load_session(path, text.request.options())?;
            if let Err(difference) = &session
                && !quiet
            {
                output::note(&format!("{}: not used and replaced, because {difference}", path.display()));
            }
            session.unwrap_or_default()
        }
        _ => Session::default(),
    };
    let outcome = text.generate(&*model, &mut session, load_seconds, quiet, sink)?;
    if let Some(path) = &args.prompt_cache {
        model.save_session(&session, path)?;
    }
    Ok(outcome)
}

/// Receives the prompt and each new piece.
pub(super) type Sink<'a> = dyn FnMut(&str) -> io::Result<()> + 'a;

/// A tokenized prompt with its options, before the model is loaded.
pub(super) struct PreparedPrompt {
    pub(super) file: ModelFile,
    /// Options of loading, for a sequence of the whole context.
    pub(super) load: LoadOptions,
    request: PreparedRequest,
    tokenizer: Tokenizer,
    /// The prompt, decoded from its tokens.
    prompt: String,
    /// Whether the prompt is part of the output.
    echoes: bool,
    chosen: Option<ChosenOutcome>,
}

impl PreparedPrompt {
    /// Checks the options of a text, and tokenizes its prompt.
    pub(super) fn prepare(
        args: &RunArgs,
        file: ModelFile,
        prompt: &str,
        kv: KvOptions,
    ) -> anyhow::Result<Self> {
        let options = GenerateOptions::default()
            .with_grammar(text::grammar(&args.form)?)
            .with_max_tokens(args.max_tokens.and_then(|tokens| tokens.0))
            .with_sampler(args.sampling.config(&file)?)
            .with_stop(args.stop.clone())
            .with_context(args.context)
            .with_logprobs(args.logprobs)
            .with_kv(kv.with_window(args.window));
        let tokenizer = file.tokenizer(args.tokenizer.tokenizer.as_deref())?;
        let ids = tokenizer.encode_prompt(prompt)?;
        let prompt = tokenizer.decode(&ids)?;
        let load = args.precision.options(&file, &args.cpu.cpu()?).with_tokenizer(tokenizer.clone());
        let request = PreparedRequest::new(&file, &tokenizer, ids, options)?;
        Ok(Self { file, load, request, tokenizer, prompt, echoes: args.echoes(), chosen: None })
    }

    /// Sets the precisions of the KV cache.
    pub(super) fn set_kv(&mut self, kv: &Kv) {
        self.chosen.clone_from(&kv.chosen);
        if let Some(precision) = kv.precision {
            self.request.set_precision(precision);
        }
    }

    /// Options of loading, for the sequence of the text.
    pub(super) fn options(&self) -> LoadOptions {
        self.load.clone().with_sequence(*self.request.kv())
    }

    /// Generates the text with its model, which took `load_seconds` to load.
    pub(super) fn generate(
        self,
        model: &dyn Model,
        session: &mut Session,
        load_seconds: f64,
        quiet: bool,
        sink: &mut Sink<'_>,
    ) -> anyhow::Result<RunOutcome> {
        let Self { file, request, tokenizer, prompt, echoes, chosen, .. } = self;
        // The prompt is printed with the first piece, so a rejected prompt leaves stdout empty.
        let mut reading = Some(Progress::start("reading the prompt", quiet));
        let mut write = |piece: &str| {
            if reading.take().is_some() {
                interrupt::stop_gracefully();
                if echoes {
                    sink(&prompt)?;
                }
            }
            sink(piece)
        };
        let mut failed = None;
        let before = output::seconds();
        let mut on_text = |piece: &str| match write(piece) {
            Ok(()) if interrupt::requested() => ControlFlow::Break(()),
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        };
        let generation = model.run(session, &request, &mut on_text)?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        write("")?;
        let options = request.options();
        let sampler = &options.sampler;
        Ok(RunOutcome {
            model: output::model_name(file.path()),
            load_seconds,
            first_token_seconds: before + generation.prefill.as_secs_f64(),
            prompt_tokens_per_second: generation.prompt_tokens_per_second(),
            decode_tokens_per_second: generation.tokens_per_second(),
            prompt_seconds: generation.prefill.as_secs_f64(),
            decode_seconds: generation.decode.as_secs_f64(),
            prompt,
            text: generation.text,
            prompt_ids: generation.prompt_ids,
            ids: generation.ids,
            finish: generation.finish.name(),
            seed: (sampler.temperature > 0.0).then_some(sampler.seed),
            reused_tokens: generation.reused,
            evicted_positions: options.kv.limit.map(|_| generation.evicted),
            logprobs: options
                .logprobs
                .map(|_| generation.logprobs.iter().map(|token| named(token, &tokenizer)).collect()),
            backend: model.backend(),
            activations: args::activations_name(&model.activations()),
            kv: options.kv.precision.unwrap_or(model.default_kv().into()).to_string(),
            kv_chosen: chosen,
            layouts: layouts(model),
            device: DeviceOutcome::of(model),
            #[cfg(feature = "mpi")]
            ranks: None,
        })
    }
}

/// Log-probabilities with the texts of their tokens.
fn named(token: &TokenLogprobs, tokenizer: &Tokenizer) -> Logprobs {
    let one = |id: u32, logprob: f32| {
        let bytes = tokenizer.token_bytes(id).unwrap_or_default();
        Logprob { id, token: String::from_utf8_lossy(bytes).into_owned(), logprob }
    };
    Logprobs {
        token: one(token.id, token.logprob),
        top: token.top.iter().map(|&(id, logprob)| one(id, logprob)).collect(),
    }
}
