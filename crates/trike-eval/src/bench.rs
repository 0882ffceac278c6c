//! Tokens per second of a model, compared with the machine's peak bandwidth and compute.

use std::{ops::Range, time::Instant};

use serde::Serialize;
use trike_core::{Bounds, Cost, OptionError};
use trike_cpu::{Cpu, Isa, probe};
use trike_llm::{DecoderBatch, LanguageModel, LlmError, Model, PROMPT_STEP, SequenceBatch};
use trike_nn::{CpuBackend, Decoder, DecoderSpec, KvOptions, KvPrecision, KvSpec};

use crate::EvalError;

/// Maximum number of sequences decoded together.
const MAX_SEQUENCES: usize = 1024;

/// Options of a benchmark; each `with_` method changes one field. The defaults are those of llama-bench: a prompt of 512
/// tokens, 128 generated tokens, no tokens before them, five repetitions, f16 KV cache, one thread per physical core.
///
/// ```
/// use trike_eval::bench::BenchOptions;
///
/// let options = BenchOptions::default().with_prompt(0).with_generate(32).with_threads([1, 2]);
/// assert_eq!((options.repetitions, options.threads), (5, vec![1, 2]));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BenchOptions {
    /// Tokens of the prompt; 0 = no prefill.
    pub prompt: usize,
    /// Tokens generated one by one; 0 = no decode.
    pub generate: usize,
    /// Numbers of positions that the KV cache already holds: the prompt and the generated tokens are measured after each.
    pub depths: Vec<usize>,
    /// Numbers of sequences that are decoded together, one token each per step.
    pub sequences: Vec<usize>,
    /// Thread counts to measure on the host, 0 = one per physical core; a device ignores them.
    pub threads: Vec<usize>,
    /// Instruction set on the host; `None` = the best available. The int8 peak is that of the same instruction set.
    pub isa: Option<Isa>,
    /// Repetitions, after an uncounted warm-up.
    pub repetitions: usize,
    /// The KV cache, without a limit or a window: each repetition is truncated to the same depth, whose positions would have been
    /// evicted or overwritten.
    pub kv: KvOptions,
}

impl Default for BenchOptions {
    fn default() -> Self {
        Self {
            prompt: 512,
            generate: 128,
            depths: vec![0],
            sequences: vec![1],
            threads: vec![0],
            isa: None,
            repetitions: 5,
            kv: KvPrecision::F16.into(),
        }
    }
}

impl BenchOptions {
    /// Sets [`prompt`](Self::prompt).
    #[must_use]
    pub fn with_prompt(self, prompt: usize) -> Self {
        Self { prompt, ..self }
    }

    /// Sets [`generate`](Self::generate).
    #[must_use]
    pub fn with_generate(self, generate: usize) -> Self {
        Self { generate, ..self }
    }

    /// Sets [`depths`](Self::depths).
    #[must_use]
    pub fn with_depths(self, depths: impl Into<Vec<usize>>) -> Self {
        Self { depths: depths.into(), ..self }
    }

    /// Sets [`sequences`](Self::sequences).
    #[must_use]
    pub fn with_sequences(self, sequences: impl Into<Vec<usize>>) -> Self {
        Self { sequences: sequences.into(), ..self }
    }

    /// Sets [`threads`](Self::threads).
    #[must_use]
    pub fn with_threads(self, threads: impl Into<Vec<usize>>) -> Self {
        Self { threads: threads.into(), ..self }
    }

    /// Sets [`isa`](Self::isa).
    #[must_use]
    pub fn with_isa(self, isa: impl Into<Option<Isa>>) -> Self {
        Self { isa: isa.into(), ..self }
    }

    /// Sets [`repetitions`](Self::repetitions).
    #[must_use]
    pub fn with_repetitions(self, repetitions: usize) -> Self {
        Self { repetitions, ..self }
    }

    /// Sets [`kv`](Self::kv).
    #[must_use]
    pub fn with_kv(self, kv: impl Into<KvOptions>) -> Self {
        Self { kv: kv.into(), ..self }
    }

    /// Length of the longest sequence, in tokens.
    #[must_use]
    pub fn positions(&self) -> usize {
        let depth = self.depths.iter().copied().max().unwrap_or(0);
        depth.saturating_add(self.prompt.max(self.generate)).max(1)
    }

    /// Numbers of tokens of the measured steps, for [`Model::tune`]: those of a prompt, and one per sequence.
    #[must_use]
    pub fn step_tokens(&self) -> Vec<usize> {
        let mut tokens = Vec::new();
        if self.prompt > 0 {
            tokens.push(self.prompt.min(PROMPT_STEP));
        }
        if self.generate > 0 {
            tokens.extend(&self.sequences);
        }
        tokens
    }
}

/// One measurement. The field names are the schema of `trike bench -o json`.
#[derive(Clone, Debug, Serialize)]
pub struct BenchRow {
    /// `prefill` or `decode`.
    pub kind: &'static str,
    /// Threads; `None` on a device.
    pub threads: Option<usize>,
    /// Sequences decoded together; 1 for prefill.
    pub sequences: usize,
    /// Tokens per sequence and repetition.
    pub tokens: usize,
    /// Positions in the KV cache before them.
    pub depth: usize,
    /// Repetitions.
    pub repetitions: usize,
    /// Median over the repetitions, of all sequences together.
    pub tokens_per_second: f64,
    /// Standard deviation over the repetitions.
    pub standard_deviation: f64,
    /// Mean multiply-adds per token. This and the fields below are set on the host only, whose peaks are measured.
    pub macs_per_token: Option<f64>,
    /// Mean compulsory memory traffic per token, in bytes: each byte is read or written at least once.
    pub bytes_per_token: Option<f64>,
    /// Compulsory bytes per second, as a fraction of the bandwidth measured in this run with the same number of threads.
    pub share_of_bandwidth: Option<f64>,
    /// Multiply-adds per second, as a fraction of the int8 peak measured in this run with the same number of threads.
    pub share_of_int8_peak: Option<f64>,
}

/// Peak rates measured with one thread count.
#[derive(Clone, Debug, Serialize)]
pub struct Ceiling {
    /// Threads.
    pub threads: usize,
    /// Bytes read from memory per second, by the fastest variant.
    pub bandwidth: f64,
    /// Name of that variant.
    pub bandwidth_variant: &'static str,
    /// Int8 multiply-adds per second, by the fastest variant.
    pub int8_peak: f64,
    /// Name of that variant.
    pub int8_variant: &'static str,
}

/// Measures the peak memory bandwidth and int8 throughput of `cpu`.
///
/// # Errors
///
/// When the buffer for the bandwidth measurement cannot be allocated.
pub fn ceiling(cpu: &Cpu) -> Result<Ceiling, EvalError> {
    let bandwidth = probe::memory_bandwidth(cpu).map_err(LlmError::from)?;
    let peak = probe::int8_peak(cpu);
    Ok(Ceiling {
        threads: cpu.threads(),
        bandwidth: bandwidth.best().figure,
        bandwidth_variant: bandwidth.best().name,
        int8_peak: peak.best().figure,
        int8_variant: peak.best().name,
    })
}

/// All measurements of one run.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    /// One row per kind, depth, number of sequences and thread count.
    pub rows: Vec<BenchRow>,
    /// Ceilings of the same run.
    pub ceilings: Vec<Ceiling>,
}

/// Measures prefill and decode. On the host, every thread count of `options` is measured, together with the machine's ceilings; on a
/// device the thread counts are ignored. `progress` is called with the repetitions done and in total.
///
/// # Errors
///
/// [`EvalError::Option`] for options out of range, and errors of the decoder.
pub fn run(
    model: &mut dyn Model,
    options: &BenchOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<BenchReport, EvalError> {
    let kv = KvSpec::of(&options.kv, model.default_kv(), 1, PROMPT_STEP);
    let subjects = subjects(&model.config().spec, options)?;
    // Thread counts, costs and ceilings exist for the host only.
    match model.host_mut() {
        Some(host) => run_on_host(host, &subjects, kv, options, progress),
        None => run_on_device(model, &subjects, kv, options.repetitions, progress),
    }
}

/// One benchmark case.
#[derive(Clone, Copy)]
struct Subject {
    kind: &'static str,
    tokens: usize,
    depth: usize,
    sequences: usize,
}

impl Subject {
    /// Positions of the caches.
    fn positions(&self) -> usize {
        self.depth + self.tokens
    }

    /// Tokens per step and sequence.
    fn step(&self) -> usize {
        if self.kind == "prefill" { PROMPT_STEP } else { 1 }
    }
}

/// Times prefill and decode for every thread count, and measures the machine's ceilings with the same threads.
fn run_on_host(
    host: &mut LanguageModel<CpuBackend>,
    subjects: &[Subject],
    kv: KvSpec,
    options: &BenchOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<BenchReport, EvalError> {
    let total = options.threads.len() * subjects.len() * (options.repetitions + 1);
    let mut done = 0;
    let (mut rows, mut ceilings) = (Vec::new(), Vec::new());
    for &threads in &options.threads {
        let cpu = Cpu::with_isa(options.isa.unwrap_or_else(Isa::detect), threads).map_err(LlmError::from)?;
        let ceiling = ceiling(&cpu)?;
        host.set_cpu(cpu);
        let decoder = host.decoder();
        for &subject in subjects {
            let mut batch =
                DecoderBatch::new(decoder, &kv.with_capacity(subject.positions()), subject.sequences)?;
            if subject.depth > 0 {
                for sequence in batch.sequences_mut() {
                    // Prefilling 16,384 tokens would take minutes, and random values do not affect the speed of the kernels.
                    decoder.fill_cache(sequence, subject.depth).map_err(LlmError::from)?;
                }
            }
            let row = time(&mut batch, decoder.spec().vocab, subject, options.repetitions, &mut || {
                done += 1;
                progress(done, total);
            })?;
            let (macs, bytes) = cost_per_token(decoder, subject, kv);
            let rate = row.tokens_per_second;
            rows.push(BenchRow {
                threads: Some(ceiling.threads),
                macs_per_token: Some(macs),
                bytes_per_token: Some(bytes),
                share_of_bandwidth: Some(rate * bytes / ceiling.bandwidth),
                share_of_int8_peak: Some(rate * macs / ceiling.int8_peak),
                ..row
            });
        }
        ceilings.push(ceiling);
    }
    Ok(BenchReport { rows, ceilings })
}

/// Times prefill and decode on a device. Ceilings are measured on the host only.
fn run_on_device(
    model: &dyn Model,
    subjects: &[Subject],
    kv: KvSpec,
    repetitions: usize,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<BenchReport, EvalError> {
    let total = subjects.len() * (repetitions + 1);
    let vocab = model.config().spec.vocab;
    let mut done = 0;
    let mut row = |&subject: &Subject| -> Result<BenchRow, EvalError> {
        let mut batch = model.batch(&kv.with_capacity(subject.positions()), subject.sequences)?;
        for sequence in 0..subject.sequences {
            run_tokens(&mut *batch, sequence..sequence + 1, &ids(vocab, subject.depth), PROMPT_STEP)?;
        }
        time(&mut *batch, vocab, subject, repetitions, &mut || {
            done += 1;
            progress(done, total);
        })
    };
    let rows = subjects.iter().map(&mut row).collect::<Result<_, _>>()?;
    Ok(BenchReport { rows, ceilings: Vec::new() })
}

/// The benchmark cases, in the order of the rows.
fn subjects(spec: &DecoderSpec, options: &BenchOptions) -> Result<Vec<Subject>, EvalError> {
    let tokens = Bounds::at_least(0usize).at_most(spec.context);
    OptionError::check("prompt", tokens, options.prompt)?;
    OptionError::check("generate", tokens, options.generate)?;
    let other = "repetitions from the same depth";
    for (field, given) in [("limit", options.kv.limit.is_some()), ("window", options.kv.window.is_some())] {
        if given {
            return Err(OptionError::Conflict { field, other }.into());
        }
    }
    OptionError::check("repetitions", Bounds::at_least(1usize), options.repetitions)?;
    let left = spec.context - options.prompt.max(options.generate);
    let mut subjects = Vec::new();
    for &depth in &options.depths {
        OptionError::check("depths", Bounds::at_least(0usize).at_most(left), depth)?;
        if options.prompt > 0 {
            subjects.push(Subject { kind: "prefill", tokens: options.prompt, depth, sequences: 1 });
        }
        for &sequences in &options.sequences {
            OptionError::check("sequences", Bounds::at_least(1usize).at_most(MAX_SEQUENCES), sequences)?;
            if options.generate > 0 {
                subjects.push(Subject { kind: "decode", tokens: options.generate, depth, sequences });
            }
        }
    }
    Ok(subjects)
}

/// Times one case, with sequences filled to its depth, and returns its row, without the fields that depend on ceilings.
fn time(
    batch: &mut dyn SequenceBatch,
    vocab: usize,
    subject: Subject,
    repetitions: usize,
    count: &mut dyn FnMut(),
) -> Result<BenchRow, EvalError> {
    let Subject { kind, tokens, depth, sequences } = subject;
    let ids = ids(vocab, tokens);
    let mut rates = Vec::with_capacity(repetitions);
    for repetition in 0..=repetitions {
        (0..sequences).try_for_each(|of| batch.truncate(of, depth))?;
        let start = Instant::now();
        run_tokens(batch, 0..sequences, &ids, subject.step())?;
        // Warm-up: pages in weights and cache and starts threads, or compiles device kernels.
        if repetition > 0 {
            rates.push((sequences * tokens) as f64 / start.elapsed().as_secs_f64());
        }
        count();
    }
    rates.sort_by(f64::total_cmp);
    Ok(BenchRow {
        kind,
        threads: None,
        sequences,
        tokens,
        depth,
        repetitions,
        tokens_per_second: median(&rates),
        standard_deviation: deviation(&rates),
        macs_per_token: None,
        bytes_per_token: None,
        share_of_bandwidth: None,
        share_of_int8_peak: None,
    })
}

/// Token ids spread over the vocabulary, so that no embedding row stays in the CPU caches.
fn ids(vocab: usize, n: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * 7919 + 1) % vocab) as u32).collect()
}

/// Runs tokens of a range of sequences, `step` of them at a time.
fn run_tokens(
    batch: &mut dyn SequenceBatch,
    of: Range<usize>,
    ids: &[u32],
    step: usize,
) -> Result<(), EvalError> {
    for ids in ids.chunks(step) {
        let steps: Vec<_> = of.clone().map(|of| (of, ids)).collect();
        batch.step(&steps, Some(1))?;
    }
    Ok(())
}

/// Mean multiply-adds and bytes per token.
fn cost_per_token(decoder: &Decoder<CpuBackend>, subject: Subject, kv: KvSpec) -> (f64, f64) {
    let Subject { tokens, depth, sequences, .. } = subject;
    let step = subject.step();
    let cost: Cost = (0..tokens)
        .step_by(step)
        .map(|first| {
            let (tokens, position) = (step.min(tokens - first), depth + first);
            decoder.batch_cost(sequences, tokens, position, &kv.with_capacity(position + tokens))
        })
        .sum();
    let tokens = (sequences * tokens) as f64;
    (cost.macs as f64 / tokens, cost.bytes as f64 / tokens)
}

fn median(sorted: &[f64]) -> f64 {
    let n = sorted.len();
    (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0
}

fn deviation(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n).sqrt()
}
