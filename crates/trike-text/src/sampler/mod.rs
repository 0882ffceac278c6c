//! Sampling of the next token from logits.
//!
//! Start from [`SamplerConfig`], which is greedy by default. The steps come in the order that HuggingFace
//! `transformers` uses: repetition penalty, temperature, top-k, top-p, min-p, then one draw. (llama.cpp
//! applies the temperature last by default; with a temperature other than 1 its top-p and min-p then
//! keep different tokens.) All computations on the `f32` logits are in `f64` and use only additions,
//! multiplications and divisions, with ChaCha8 as the random number generator: the same logits and the same
//! seed give the same token on every machine. This requires a separate implementation of the exponential function, because
//! the system's differs between machines.
//!
//! * [`SamplerConfig`]: the options, validated together
//! * [`Sampler`]: a configuration with its RNG state
//! * [`GenerationConfig`]: a model's sampling defaults; [`SamplingOptions`]: user options that override them
//! * [`SamplerError`], [`GenerationConfigError`]

mod exp;
mod generation_config;
mod options;

use std::cmp::Ordering;

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{RngCore, SeedableRng},
};
use trike_core::{Bounds, OptionError};

use exp::exp;

pub use generation_config::{GenerationConfig, GenerationConfigError};
pub use options::SamplingOptions;

/// Exponent, relative to the best token, below which a probability is lost in the rounding of the sum, even for a million such
/// tokens.
const LEAST_EXPONENT: f64 = -60.0;

/// Sampling options: the default is greedy decoding, and each `with_` method changes one field.
///
/// ```
/// use trike_text::sampler::SamplerConfig;
///
/// let config = SamplerConfig::default().with_temperature(0.8).with_top_k(40).with_seed(7);
/// assert!(config.validate().is_ok());
/// assert!(config.with_top_p(0.0).validate().is_err());
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SamplerConfig {
    /// Divides the logits; 0 = greedy decoding, 1 = the model's own distribution.
    pub temperature: f32,
    /// Keep the `k` most probable tokens; all when `None`.
    pub top_k: Option<usize>,
    /// Keep the smallest set of most probable tokens with this total probability, in (0, 1]; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens with at least this fraction of the highest probability, in [0, 1]; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of recent tokens, once each; 1 = no penalty.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of recent tokens, once each; 0 = no penalty.
    pub presence_penalty: f32,
    /// Subtracted from the logits of recent tokens, as often as they occur; 0 = no penalty.
    pub frequency_penalty: f32,
    /// Number of last tokens that the penalties apply to, at least 1; `usize::MAX` for all.
    pub repetition_window: usize,
    /// Added to the logits of tokens, before the penalties; negative infinity excludes a token.
    pub logit_bias: Vec<(u32, f32)>,
    /// RNG seed.
    pub seed: u64,
}

impl Default for SamplerConfig {
    /// Greedy: temperature 0, no filters, no penalty (its window is 64 tokens if one is set).
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_window: 64,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

/// Invalid options or logits.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplerError {
    /// A field of [`SamplerConfig`] is outside its range.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// A logit is NaN or positive infinity: the model's weights are damaged or a kernel is wrong.
    #[error(
        "logit {index} of {vocab_size} is {value}; expected a number: check the model file for NaN weights"
    )]
    BadLogit {
        /// The first such logit.
        index: usize,
        /// The logit.
        value: f32,
        /// Number of logits.
        vocab_size: usize,
    },
    /// Every logit is negative infinity, or there are none.
    #[error("no token can be chosen: all {vocab_size} logits are -inf")]
    NoCandidate {
        /// Number of logits.
        vocab_size: usize,
    },
    /// The history contains a token without a logit.
    #[error("token {id} of the history has no logit: there are {vocab_size}")]
    HistoryOutOfRange {
        /// The token.
        id: u32,
        /// Number of logits.
        vocab_size: usize,
    },
}

impl SamplerConfig {
    /// Sets [`temperature`](Self::temperature).
    #[must_use]
    pub fn with_temperature(self, temperature: f32) -> Self {
        Self { temperature, ..self }
    }

    /// Sets [`top_k`](Self::top_k).
    #[must_use]
    pub fn with_top_k(self, top_k: impl Into<Option<usize>>) -> Self {
        Self { top_k: top_k.into(), ..self }
    }

    /// Sets [`top_p`](Self::top_p).
    #[must_use]
    pub fn with_top_p(self, top_p: f32) -> Self {
        Self { top_p, ..self }
    }

    /// Sets [`min_p`](Self::min_p).
    #[must_use]
    pub fn with_min_p(self, min_p: f32) -> Self {
        Self { min_p, ..self }
    }

    /// Sets [`repetition_penalty`](Self::repetition_penalty).
    #[must_use]
    pub fn with_repetition_penalty(self, repetition_penalty: f32) -> Self {
        Self { repetition_penalty, ..self }
    }

    /// Sets [`repetition_window`](Self::repetition_window).
    #[must_use]
    pub fn with_repetition_window(self, repetition_window: usize) -> Self {
        Self { repetition_window, ..self }
    }

    /// Sets [`presence_penalty`](Self::presence_penalty).
    #[must_use]
    pub fn with_presence_penalty(self, presence_penalty: f32) -> Self {
        Self { presence_penalty, ..self }
    }

    /// Sets [`frequency_penalty`](Self::frequency_penalty).
    #[must_use]
    pub fn with_frequency_penalty(self, frequency_penalty: f32) -> Self {
        Self { frequency_penalty, ..self }
    }

    /// Sets [`logit_bias`](Self::logit_bias).
    #[must_use]
    pub fn with_logit_bias(self, logit_bias: impl Into<Vec<(u32, f32)>>) -> Self {
        Self { logit_bias: logit_bias.into(), ..self }
    }

    /// Sets [`seed`](Self::seed).
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Checks every option.
    ///
    /// # Errors
    ///
    /// [`OptionError::OutOfRange`] for the first one outside its range.
    pub fn validate(&self) -> Result<(), OptionError> {
        OptionError::check("temperature", Bounds::at_least(0.0), self.temperature)?;
        OptionError::check("top_k", Bounds::at_least(1usize), self.top_k.unwrap_or(usize::MAX))?;
        OptionError::check("top_p", Bounds::over(0.0).at_most(1.0), self.top_p)?;
        OptionError::check("min_p", Bounds::at_least(0.0).at_most(1.0), self.min_p)?;
        OptionError::check("repetition_penalty", Bounds::over(0.0), self.repetition_penalty)?;
        let penalty = Bounds::at_least(-100.0).at_most(100.0);
        OptionError::check("presence_penalty", penalty, self.presence_penalty)?;
        OptionError::check("frequency_penalty", penalty, self.frequency_penalty)?;
        for (_, bias) in self.logit_bias.iter().filter(|(_, bias)| *bias != f32::NEG_INFINITY) {
            OptionError::check("logit_bias", Bounds::at_least(f32::MIN).at_most(f32::MAX), *bias)?;
        }
        OptionError::check("repetition_window", Bounds::at_least(1usize), self.repetition_window)
    }

    /// Whether the logits of some tokens are changed before one is chosen.
    fn changes_logits(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
            || !self.logit_bias.is_empty()
    }

    /// The number of largest logits sufficient to choose a token: one for greedy decoding, or `top_k`; `None` when all are
    /// needed, as with a penalty or a bias, which may reorder them.
    #[must_use]
    pub fn candidates(&self) -> Option<usize> {
        match self.top_k {
            _ if self.changes_logits() => None,
            _ if self.temperature == 0.0 => Some(1),
            top_k => top_k,
        }
    }
}

#[derive(Clone, Copy)]
struct Candidate {
    id: u32,
    logit: f32,
    /// Probability relative to the best token's.
    weight: f64,
}

/// A changed logit: a finite one stays finite, and an excluded token stays excluded.
fn finite(logit: f32, changed: f32, bias: f32) -> f32 {
    if logit == f32::NEG_INFINITY || bias == f32::NEG_INFINITY {
        return f32::NEG_INFINITY;
    }
    changed.clamp(f32::MIN, f32::MAX)
}

/// Largest first; equal logits in the order of their ids, so that ties are deterministic.
fn better(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// Chooses tokens by a [`SamplerConfig`].
///
/// ```
/// use trike_text::sampler::{Sampler, SamplerConfig};
///
/// let logits = [0.5, 2.0, -1.0, 2.0];
/// let mut greedy = Sampler::new(SamplerConfig::default())?;
/// assert_eq!(greedy.sample(&logits, &[])?, 1, "the first of equals");
///
/// let config = SamplerConfig::default().with_temperature(0.8).with_top_k(2).with_seed(7);
/// let mut sampler = Sampler::new(config)?;
/// assert!([1, 3].contains(&sampler.sample(&logits, &[])?));
/// # Ok::<(), trike_text::sampler::SamplerError>(())
/// ```
#[derive(Clone)]
pub struct Sampler {
    config: SamplerConfig,
    rng: ChaCha8Rng,
    /// Reused between calls; each buffer has the size of the vocabulary.
    logits: Vec<f32>,
    candidates: Vec<Candidate>,
    recent: Vec<u32>,
    sparse: Vec<f32>,
}

impl std::fmt::Debug for Sampler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sampler").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Sampler {
    /// A sampler with the RNG at the start of its sequence.
    ///
    /// # Errors
    ///
    /// As [`SamplerConfig::validate`].
    pub fn new(config: SamplerConfig) -> Result<Self, SamplerError> {
        config.validate()?;
        let rng = ChaCha8Rng::seed_from_u64(config.seed);
        Ok(Self {
            config,
            rng,
            logits: Vec::new(),
            candidates: Vec::new(),
            recent: Vec::new(),
            sparse: Vec::new(),
        })
    }

    /// The options.
    #[must_use]
    pub fn config(&self) -> &SamplerConfig {
        &self.config
    }

    /// Chooses the next token from `logits`, one per id; negative infinity excludes a token. `history` is the
    /// sequence so far, prompt included, and is used by the penalties only.
    ///
    /// # Errors
    ///
    /// [`SamplerError::BadLogit`], [`SamplerError::NoCandidate`], [`SamplerError::HistoryOutOfRange`] for a token of `history` or of the
    /// bias without a logit. On an error, no random number is drawn.
    pub fn sample(&mut self, logits: &[f32], history: &[u32]) -> Result<u32, SamplerError> {
        let vocab_size = logits.len();
        if let Some(index) = logits.iter().position(|l| l.is_nan() || *l == f32::INFINITY) {
            return Err(SamplerError::BadLogit { index, value: logits[index], vocab_size });
        }
        let penalized = self.config.changes_logits();
        if penalized {
            self.penalize(logits, history)?;
        }
        let logits = if penalized { &self.logits } else { logits };
        let best = logits.iter().fold(f32::NEG_INFINITY, |best, &l| best.max(l));
        if best == f32::NEG_INFINITY {
            return Err(SamplerError::NoCandidate { vocab_size });
        }
        if self.config.temperature == 0.0 {
            let first = logits.iter().position(|&l| l == best).unwrap_or(0);
            return Ok(first as u32);
        }
        self.candidates.clear();
        self.candidates.extend(logits.iter().enumerate().filter(|(_, l)| **l != f32::NEG_INFINITY).map(
            // Ids are `u32` by contract; a longer slice would be truncated.
            |(id, &logit)| Candidate { id: id as u32, logit, weight: 0.0 },
        ));
        self.keep_top_k();
        self.weigh(best);
        self.keep_top_p();
        let least = f64::from(self.config.min_p);
        self.candidates.retain(|c| c.weight >= least);
        Ok(self.draw())
    }

    /// [`sample`](Self::sample) from the largest logits only, for a configuration with few
    /// [`candidates`](SamplerConfig::candidates). `top` has their ids and logits in descending order; `vocab_size` is the number
    /// of tokens.
    ///
    /// ```
    /// use trike_text::sampler::{Sampler, SamplerConfig};
    ///
    /// let config = SamplerConfig::default().with_temperature(0.8).with_top_k(2).with_seed(7);
    /// assert_eq!(config.candidates(), Some(2));
    /// let (mut all, mut few) = (Sampler::new(config.clone())?, Sampler::new(config)?);
    /// let chosen = all.sample(&[0.5, 2.0, -1.0, 2.5], &[])?;
    /// assert_eq!(few.sample_top(&[(3, 2.5), (1, 2.0)], 4)?, chosen);
    /// # Ok::<(), trike_text::sampler::SamplerError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`sample`](Self::sample); [`SamplerError::HistoryOutOfRange`] for an id outside the vocabulary.
    pub fn sample_top(&mut self, top: &[(u32, f32)], vocab_size: usize) -> Result<u32, SamplerError> {
        let mut logits = std::mem::take(&mut self.sparse);
        logits.clear();
        logits.resize(vocab_size, f32::NEG_INFINITY);
        let mut known = Ok(());
        for &(id, logit) in top {
            match logits.get_mut(id as usize) {
                Some(place) => *place = logit,
                None => known = Err(SamplerError::HistoryOutOfRange { id, vocab_size }),
            }
        }
        let chosen = known.and_then(|()| self.sample(&logits, &[]));
        self.sparse = logits;
        chosen
    }

    /// Copies the logits, adds the bias and applies the penalties to each recent token.
    fn penalize(&mut self, logits: &[f32], history: &[u32]) -> Result<(), SamplerError> {
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        self.recent.clear();
        self.recent
            .extend_from_slice(&history[history.len().saturating_sub(self.config.repetition_window)..]);
        self.recent.sort_unstable();
        let outside = |id: u32| SamplerError::HistoryOutOfRange { id, vocab_size: logits.len() };
        for &(id, bias) in &self.config.logit_bias {
            let logit = self.logits.get_mut(id as usize).ok_or_else(|| outside(id))?;
            *logit = finite(*logit, *logit + bias, bias);
        }
        let SamplerConfig { repetition_penalty, presence_penalty, frequency_penalty, .. } = self.config;
        for equal in self.recent.chunk_by(|a, b| a == b) {
            let logit = self.logits.get_mut(equal[0] as usize).ok_or_else(|| outside(equal[0]))?;
            let repeated =
                if *logit > 0.0 { *logit / repetition_penalty } else { *logit * repetition_penalty };
            let subtracted = presence_penalty + frequency_penalty * equal.len() as f32;
            *logit = finite(*logit, repeated - subtracted, 0.0);
        }
        Ok(())
    }

    fn keep_top_k(&mut self) {
        let Some(k) = self.config.top_k else { return };
        if k < self.candidates.len() {
            self.candidates.select_nth_unstable_by(k - 1, better);
            self.candidates.truncate(k);
            // The selection leaves an unspecified order; sort, so that the draw is reproducible.
            self.candidates.sort_unstable_by_key(|c| c.id);
        }
    }

    /// Computes weights and drops negligible candidates.
    fn weigh(&mut self, best: f32) {
        let (best, temperature) = (f64::from(best), f64::from(self.config.temperature));
        self.candidates.retain_mut(|c| {
            let exponent = (f64::from(c.logit) - best) / temperature;
            c.weight = if exponent < LEAST_EXPONENT { 0.0 } else { exp(exponent) };
            c.weight > 0.0
        });
    }

    /// Keeps the smallest set of best tokens whose weights reach `top_p` of the sum, including the one that crosses it.
    fn keep_top_p(&mut self) {
        if self.config.top_p >= 1.0 {
            return;
        }
        let target = f64::from(self.config.top_p) * self.candidates.iter().map(|c| c.weight).sum::<f64>();
        // The nucleus is usually small: sort only the head of the list, and extend it until it suffices.
        let (mut sorted, mut sum) = (0, 0.0);
        let mut block = 64;
        while sorted < self.candidates.len() {
            let rest = &mut self.candidates[sorted..];
            let n = block.min(rest.len());
            if n < rest.len() {
                rest.select_nth_unstable_by(n - 1, better);
            }
            rest[..n].sort_unstable_by(better);
            for (i, c) in rest[..n].iter().enumerate() {
                sum += c.weight;
                if sum >= target {
                    self.candidates.truncate(sorted + i + 1);
                    return;
                }
            }
            sorted += n;
            block *= 4;
        }
    }

    /// Draws one candidate with probability proportional to its weight. There is at least one candidate: the best
    /// token has weight 1 and passes every filter.
    fn draw(&mut self) -> u32 {
        let total: f64 = self.candidates.iter().map(|c| c.weight).sum();
        // 53 random bits: a number in [0, 1).
        let unit = (self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let mut left = unit * total;
        for c in &self.candidates {
            left -= c.weight;
            if left < 0.0 {
                return c.id;
            }
        }
        // Rounding may leave a remainder after the last candidate.
        self.candidates.last().map_or(0, |c| c.id)
    }
}

#[cfg(test)]
mod tests;
