//! Tokens per second of a model, against what the machine can do.

use std::time::Instant;

use serde::Serialize;
use trike_core::{DenseData, DenseTensor, Int8Tensor};
use trike_cpu::{Cpu, probe};
use trike_nn::{
    ActivationPrecision, Backend, Biases, CpuBackend, Decoder, DecoderSpec, DecoderWeights, GatedActivation,
    KvPrecision, KvSpec, NnError, RopePairing, RopeSpec, Step, Tensor, WeightName,
};
use trike_trit::{Encoding, ScaleValues, Scales, TritTensor};

use crate::{LanguageModel, LlmError, generate::STEP};

/// Sizes of models that are made of random trits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synthetic {
    /// 12 layers, 768 / 2048, 12 heads.
    M125,
    /// 24 layers, 1536 / 4096, 16 heads.
    Large,
    /// 30 layers, 2560 / 6912, 20 query and 5 key heads: BitNet-b1.58-2B-4T.
    B2,
}

impl Synthetic {
    /// The decoder of that size, with a vocabulary of 32,000 and a context of 4,096.
    pub fn spec(self) -> DecoderSpec {
        let (layers, hidden, intermediate, heads, kv_heads) = match self {
            Self::M125 => (12, 768, 2048, 12, 12),
            Self::Large => (24, 1536, 4096, 16, 16),
            Self::B2 => (30, 2560, 6912, 20, 5),
        };
        DecoderSpec {
            hidden,
            intermediate,
            layers,
            heads,
            kv_heads,
            head_dim: hidden / heads,
            vocab: 32_000,
            context: 4096,
            rms_eps: 1e-5,
            rope: RopeSpec::new(10_000.0, RopePairing::Halves),
            activation: GatedActivation::SiLu,
            tied_head: false,
            window: None,
            biases: Biases::default(),
            qk_norm: false,
            sub_norms: false,
        }
    }

    /// `125m`, `large` or `2b`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::M125 => "125m",
            Self::Large => "large",
            Self::B2 => "2b",
        }
    }
}

/// A model made of random trits with one scale a row, an int8 head and an f16 embedding.
///
/// # Errors
///
/// When the machine cannot hold it.
pub fn synthetic(
    size: Synthetic,
    encoding: Encoding,
    activations: ActivationPrecision,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<SyntheticModel, LlmError> {
    synthetic_on(CpuBackend::new(Cpu::new(0)?, activations), size, encoding, progress)
}

/// [`synthetic`] on a backend.
///
/// # Errors
///
/// When the backend cannot hold it.
pub fn synthetic_on<B: Backend>(
    backend: B,
    size: Synthetic,
    encoding: Encoding,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<SyntheticModel<B>, LlmError> {
    let spec = size.spec();
    let total = crate::names::all(&spec).len();
    let mut weights = RandomWeights { spec: &spec, encoding, state: 1, stored: 0, done: 0, total, progress };
    let start = Instant::now();
    let decoder = Decoder::new(backend, spec.clone(), &mut weights)?;
    let stored_bytes = weights.stored;
    Ok(SyntheticModel { decoder, stored_bytes, load_seconds: start.elapsed().as_secs_f64() })
}

/// A model of random weights, and what it took to make it.
pub struct SyntheticModel<B: Backend = CpuBackend> {
    /// The model.
    pub decoder: Decoder<B>,
    /// Bytes of the linear layers in their encoding, before they were packed for the kernels.
    pub stored_bytes: u64,
    /// Seconds to make, encode and pack the weights.
    pub load_seconds: f64,
}

struct RandomWeights<'a> {
    spec: &'a DecoderSpec,
    encoding: Encoding,
    state: u64,
    stored: u64,
    done: usize,
    total: usize,
    progress: &'a mut dyn FnMut(usize, usize),
}

impl RandomWeights<'_> {
    /// 64 pseudo-random bits (xorshift64*, Vigna 2016).
    fn bits(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(n + 8);
        while bytes.len() < n {
            bytes.extend(self.bits().to_le_bytes());
        }
        bytes.truncate(n);
        bytes
    }

    fn count(&mut self) {
        self.done += 1;
        (self.progress)(self.done, self.total);
    }

    fn shape(&self, name: WeightName) -> (usize, usize) {
        let s = self.spec;
        match name {
            WeightName::Embedding | WeightName::Head => (s.vocab, s.hidden),
            WeightName::Query(_) => (s.query_width(), s.hidden),
            WeightName::Key(_) | WeightName::Value(_) => (s.kv_width(), s.hidden),
            WeightName::Output(_) => (s.hidden, s.query_width()),
            WeightName::Gate(_) | WeightName::Up(_) => (s.intermediate, s.hidden),
            WeightName::Down(_) => (s.hidden, s.intermediate),
            // Synthetic models have neither biases nor further norms.
            _ => (1, s.hidden),
        }
    }
}

impl DecoderWeights for RandomWeights<'_> {
    fn matrix(&mut self, name: WeightName) -> Result<Tensor, NnError> {
        let (rows, cols) = self.shape(name);
        let bytes = self.bytes(rows * cols);
        self.count();
        // The scale keeps the variance of the residual stream where training would.
        let scale = 1.0 / (cols as f32).sqrt();
        Ok(match name {
            WeightName::Embedding => {
                let values = bytes.iter().map(|&b| half::f16::from_f32(f32::from(b as i8) / 128.0)).collect();
                Tensor::Dense(DenseTensor::new(vec![rows, cols], DenseData::F16(values))?)
            }
            WeightName::Head => {
                let codes: Vec<i8> = bytes.iter().map(|&b| (b as i8).max(-127)).collect();
                Tensor::Int8(Int8Tensor::new(
                    rows,
                    cols,
                    64,
                    codes,
                    ScaleValues::F32(vec![scale / 64.0; rows * cols.div_ceil(64)]),
                )?)
            }
            _ => {
                // 106 of the 256 values of a byte are zero trits, 41 %, about as many as trained models have.
                let trits: Vec<i8> = bytes.iter().map(|&b| (b < 75) as i8 - (b >= 181) as i8).collect();
                let scales =
                    Scales::new(trike_trit::Granularity::Row, vec![half::f16::from_f32(scale); rows], None);
                let tensor = TritTensor::from_trits(rows, cols, &trits, self.encoding, scales)?;
                self.stored += tensor.bytes() as u64;
                Tensor::Ternary(tensor)
            }
        })
    }

    fn vector(&mut self, name: WeightName) -> Result<Vec<f32>, NnError> {
        self.count();
        Ok(vec![1.0; self.shape(name).1])
    }
}

/// What to time.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Tokens of the prompt; 0 leaves prefill out.
    pub prompt: usize,
    /// Tokens generated one by one; 0 leaves decode out.
    pub generate: usize,
    /// Numbers of threads.
    pub threads: Vec<usize>,
    /// Repetitions, after one that is not counted.
    pub repetitions: usize,
    /// Type of cached keys and values.
    pub kv: KvPrecision,
}

/// One measurement. The field names are the schema of `trike bench -o json`.
#[derive(Clone, Debug, Serialize)]
pub struct BenchRow {
    /// `prefill` or `decode`.
    pub kind: &'static str,
    /// Threads; none where a device computes.
    pub threads: Option<usize>,
    /// Tokens of a repetition.
    pub tokens: usize,
    /// Repetitions.
    pub repetitions: usize,
    /// Median over the repetitions.
    pub tokens_per_second: f64,
    /// Standard deviation over the repetitions.
    pub standard_deviation: f64,
    /// Multiply-adds of a token, the mean over the tokens; like what follows only on the host, whose ceilings are measured.
    pub macs_per_token: Option<f64>,
    /// Bytes that a token must read or write at least once, the mean over the tokens.
    pub bytes_per_token: Option<f64>,
    /// Compulsory bytes a second, over the bandwidth that this run measured with these threads.
    pub share_of_bandwidth: Option<f64>,
    /// Multiply-adds a second, over the int8 peak that this run measured with these threads.
    pub share_of_int8_peak: Option<f64>,
}

/// Ceilings measured with one number of threads.
#[derive(Clone, Debug, Serialize)]
pub struct Ceiling {
    /// Threads.
    pub threads: usize,
    /// Bytes read from memory in a second, the best variant.
    pub bandwidth: f64,
    /// That variant.
    pub bandwidth_variant: &'static str,
    /// Int8 multiply-adds in a second, the best variant.
    pub int8_peak: f64,
    /// That variant.
    pub int8_variant: &'static str,
}

/// Measures what `cpu` can do.
///
/// # Errors
///
/// When there is no memory for the buffer that is read.
pub fn ceiling(cpu: &Cpu) -> Result<Ceiling, LlmError> {
    let bandwidth = probe::memory_bandwidth(cpu)?;
    let peak = probe::int8_peak(cpu);
    Ok(Ceiling {
        threads: cpu.threads(),
        bandwidth: bandwidth.best().figure,
        bandwidth_variant: bandwidth.best().name,
        int8_peak: peak.best().figure,
        int8_variant: peak.best().name,
    })
}

/// Everything one run measured.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    /// One row for each kind and number of threads.
    pub rows: Vec<BenchRow>,
    /// Ceilings of the same run.
    pub ceilings: Vec<Ceiling>,
}

/// Times prefill and decode of `decoder` for every number of threads, and the machine's ceilings beside them.
/// `progress` is called with the number of repetitions done and to do.
///
/// # Errors
///
/// [`LlmError::Option`] for options out of range, and what the decoder says.
pub fn run(
    decoder: &mut Decoder<CpuBackend>,
    options: &BenchOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<BenchReport, LlmError> {
    let kinds = kinds(decoder.spec(), options)?;
    let total = options.threads.len() * kinds.len() * (options.repetitions + 1);
    let mut done = 0;
    let (mut rows, mut ceilings) = (Vec::new(), Vec::new());
    for &threads in &options.threads {
        let cpu = Cpu::new(threads)?;
        let ceiling = ceiling(&cpu)?;
        decoder.backend_mut().set_cpu(cpu);
        for &(kind, tokens) in &kinds {
            let row = time(decoder, kind, tokens, options, &mut || {
                done += 1;
                progress(done, total);
            })?;
            let (macs, bytes) = cost_per_token(decoder, kind, tokens, options.kv);
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

/// Times prefill and decode of `decoder` where it is, whatever `options` say of threads. Ceilings are the host's, so there are
/// none here.
///
/// # Errors
///
/// As [`run`].
pub fn run_on<B: Backend>(
    decoder: &Decoder<B>,
    options: &BenchOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<BenchReport, LlmError> {
    let kinds = kinds(decoder.spec(), options)?;
    let total = kinds.len() * (options.repetitions + 1);
    let mut done = 0;
    let mut count = || {
        done += 1;
        progress(done, total);
    };
    let rows = kinds.iter().map(|&(kind, tokens)| time(decoder, kind, tokens, options, &mut count));
    Ok(BenchReport { rows: rows.collect::<Result<_, _>>()?, ceilings: Vec::new() })
}

/// What is timed, with its number of tokens.
fn kinds(spec: &DecoderSpec, options: &BenchOptions) -> Result<Vec<(&'static str, usize)>, LlmError> {
    let context = spec.context;
    for (option, got) in [("-p", options.prompt), ("-n", options.generate)] {
        if got > context {
            let got = format!("{got} with a context of {context}");
            return Err(LlmError::Option { option, expected: "at most the context", got });
        }
    }
    if options.repetitions == 0 {
        return Err(LlmError::Option { option: "-r", expected: "at least 1", got: "0".to_owned() });
    }
    let kinds = [("prefill", options.prompt), ("decode", options.generate)];
    Ok(kinds.into_iter().filter(|(_, tokens)| *tokens > 0).collect())
}

/// A row without what is compared with ceilings.
fn time<B: Backend>(
    decoder: &Decoder<B>,
    kind: &'static str,
    tokens: usize,
    options: &BenchOptions,
    count: &mut dyn FnMut(),
) -> Result<BenchRow, LlmError> {
    let mut rates = Vec::with_capacity(options.repetitions);
    for repetition in 0..=options.repetitions {
        let seconds = match kind {
            "prefill" => time_prefill(decoder, tokens, options.kv)?,
            _ => time_decode(decoder, tokens, options.kv)?,
        };
        // The first one pages weights in and wakes the threads, or compiles the kernels of a device.
        if repetition > 0 {
            rates.push(tokens as f64 / seconds);
        }
        count();
    }
    rates.sort_by(f64::total_cmp);
    Ok(BenchRow {
        kind,
        threads: None,
        tokens,
        repetitions: options.repetitions,
        tokens_per_second: median(&rates),
        standard_deviation: deviation(&rates),
        macs_per_token: None,
        bytes_per_token: None,
        share_of_bandwidth: None,
        share_of_int8_peak: None,
    })
}

impl LanguageModel<CpuBackend> {
    /// [`run`] on a loaded model.
    ///
    /// # Errors
    ///
    /// As [`run`].
    pub fn bench(
        &mut self,
        options: &BenchOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<BenchReport, LlmError> {
        run(&mut self.decoder, options, progress)
    }
}

/// Ids that walk through the vocabulary, so that no embedding row stays hot.
fn ids<B: Backend>(decoder: &Decoder<B>, n: usize) -> Vec<u32> {
    let vocab = decoder.spec().vocab;
    (0..n).map(|i| ((i * 7919 + 1) % vocab) as u32).collect()
}

fn time_prefill<B: Backend>(decoder: &Decoder<B>, tokens: usize, kv: KvPrecision) -> Result<f64, LlmError> {
    let mut sequence = decoder.sequence(KvSpec::new(kv, tokens))?;
    let ids = ids(decoder, tokens);
    let start = Instant::now();
    for ids in ids.chunks(STEP) {
        decoder.forward_top(&mut [Step { sequence: &mut sequence, ids }], 1)?;
    }
    Ok(start.elapsed().as_secs_f64())
}

fn time_decode<B: Backend>(decoder: &Decoder<B>, tokens: usize, kv: KvPrecision) -> Result<f64, LlmError> {
    let mut sequence = decoder.sequence(KvSpec::new(kv, tokens))?;
    let ids = ids(decoder, tokens);
    let start = Instant::now();
    for id in &ids {
        decoder.forward_top(&mut [Step { sequence: &mut sequence, ids: std::slice::from_ref(id) }], 1)?;
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Mean multiply-adds and bytes of a token.
fn cost_per_token(decoder: &Decoder<CpuBackend>, kind: &str, tokens: usize, kv: KvPrecision) -> (f64, f64) {
    let step = if kind == "prefill" { STEP } else { 1 };
    let cost: trike_cpu::Cost = (0..tokens)
        .step_by(step)
        .map(|position| decoder.step_cost(step.min(tokens - position), position, kv))
        .sum();
    (cost.macs as f64 / tokens as f64, cost.bytes as f64 / tokens as f64)
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
