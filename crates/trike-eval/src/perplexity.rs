//! Perplexity of a text, and KL divergence from another model.

use trike_core::{Bounds, OptionError};
use trike_llm::{Model, PROMPT_STEP, Split, sequences};
use trike_nn::{KvOptions, KvPrecision, KvSpec};

use crate::{
    EvalError,
    mean::Mean,
    positions::{PositionFigures, RangeSums, range_of},
};

/// Options of scoring a text; each `with_` method changes one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScoreOptions {
    /// Method of splitting the text into sequences.
    pub split: Split,
    /// Maximum number of sequences; all when `None`.
    pub limit: Option<usize>,
    /// Maximum sequence length in tokens; `None` for the context of the model, or the shorter context of two models.
    pub context: Option<usize>,
    /// The KV cache of the measured model. With key selection, tokens are run one by one, as in decoding. A base model uses its own
    /// default precision, or f32 if requested, and always full attention.
    pub kv: KvOptions,
}

impl ScoreOptions {
    /// All sequences of a split, with each model's default precision of keys and values.
    #[must_use]
    pub fn new(split: Split) -> Self {
        Self { split, limit: None, context: None, kv: KvOptions::default() }
    }

    /// Sets [`limit`](Self::limit).
    #[must_use]
    pub fn with_limit(self, limit: impl Into<Option<usize>>) -> Self {
        Self { limit: limit.into(), ..self }
    }

    /// Sets [`context`](Self::context).
    #[must_use]
    pub fn with_context(self, context: impl Into<Option<usize>>) -> Self {
        Self { context: context.into(), ..self }
    }

    /// Maximum sequence length for models with this context.
    fn longest(&self, context: usize) -> Result<usize, EvalError> {
        let longest = self.context.unwrap_or(context);
        OptionError::check("context", Bounds::at_least(2usize).at_most(context), longest)?;
        Ok(longest)
    }

    /// Sets [`kv`](Self::kv).
    #[must_use]
    pub fn with_kv(self, kv: impl Into<KvOptions>) -> Self {
        Self { kv: kv.into(), ..self }
    }

    /// The cache of the measured model for this number of tokens.
    fn cache(&self, default: KvPrecision, tokens: usize) -> KvSpec {
        KvSpec::of(&self.kv, default, tokens.max(1), PROMPT_STEP)
    }
}

/// Perplexity of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// `exp` of [`nats`](Self::nats).
    pub perplexity: f64,
    /// Mean negative log-likelihood per token, natural logarithm.
    pub nats: f64,
    /// Standard error of [`nats`](Self::nats), as if tokens were independent.
    pub nats_error: f64,
    /// Negative log-likelihood of all scored tokens in bits, divided by the bytes that they decode to.
    pub bits_per_byte: f64,
    /// Tokens scored: all but the first of each sequence.
    pub tokens: usize,
    /// Bytes that they decode to.
    pub bytes: usize,
    /// Sequences scored.
    pub sequences: usize,
}

/// A model compared with a base model on the same text.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The measured model.
    pub score: Score,
    /// The base model.
    pub base: Score,
    /// Mean Kullback-Leibler divergence of the model from the base, `sum p_base ln(p_base / p_model)`, in nats.
    pub kl: f64,
    /// Standard error of [`kl`](Self::kl).
    pub kl_error: f64,
    /// Standard error of the difference of the two scores' [`nats`](Score::nats), that is, of the logarithm of the perplexity
    /// ratio. The difference is paired by token, so it is far smaller than the standard errors of the scores.
    pub gap_error: f64,
    /// Fraction of tokens for which both models rank the same token first.
    pub top1_agreement: f64,
    /// The same by position, in ascending order; ranges without scored tokens are left out.
    pub positions: Vec<PositionFigures>,
}

/// Running sums of a score.
#[derive(Default)]
struct Sums {
    nats: f64,
    squares: f64,
    tokens: usize,
    bytes: usize,
    sequences: usize,
}

impl Sums {
    fn add(&mut self, nats: f64) {
        self.nats += nats;
        self.squares += nats * nats;
        self.tokens += 1;
    }

    fn score(&self) -> Result<Score, EvalError> {
        if self.tokens == 0 {
            return Err(EvalError::NothingToScore);
        }
        let n = self.tokens as f64;
        let nats = self.nats / n;
        let variance = (self.squares / n - nats * nats).max(0.0);
        Ok(Score {
            perplexity: nats.exp(),
            nats,
            nats_error: (variance / n).sqrt(),
            bits_per_byte: self.nats / std::f64::consts::LN_2 / (self.bytes.max(1) as f64),
            tokens: self.tokens,
            bytes: self.bytes,
            sequences: self.sequences,
        })
    }
}

/// Number of predictions at the start of a sequence that are not scored.
fn unscored(split: Split, len: usize) -> usize {
    if split == Split::LlamaCpp { len / 2 } else { 0 }
}

/// Log-sum-exp.
pub(crate) fn log_sum_exp(row: &[f32]) -> f64 {
    let largest = row.iter().fold(f32::NEG_INFINITY, |m, &v| m.max(v));
    let sum: f64 = row.iter().map(|&v| f64::from(v - largest).exp()).sum();
    f64::from(largest) + sum.ln()
}

/// Argmax; the first on ties.
pub(crate) fn best(row: &[f32]) -> usize {
    row.iter().enumerate().fold(0, |best, (i, &v)| if v > row[best] { i } else { best })
}

/// Perplexity of `text`. `progress` is called with the sequences done and in total.
///
/// # Errors
///
/// [`EvalError::NothingToScore`], [`EvalError::Option`] for a [`context`](ScoreOptions::context) longer than the model's,
/// [`LlmError::NoTokenizer`](trike_llm::LlmError::NoTokenizer), and as [`Model::logits_with`].
pub fn score(
    model: &dyn Model,
    text: &str,
    options: &ScoreOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Score, EvalError> {
    let (tokenizer, default) = (model.tokenizer()?, model.default_kv());
    let context = options.longest(model.config().spec.context)?;
    let all = sequences(tokenizer, text, options.split, context, options.limit)?;
    let mut sums = Sums::default();
    for (done, ids) in all.iter().enumerate().filter(|(_, ids)| ids.len() > 1) {
        let from = unscored(options.split, ids.len());
        let inputs = &ids[..ids.len() - 1];
        model.logits_with(inputs, &options.cache(default, inputs.len()), &mut |i, row| {
            if i >= from {
                sums.add(log_sum_exp(row) - f64::from(row[ids[i + 1] as usize]));
            }
        })?;
        sums.bytes += tokenizer.decode_bytes(&ids[from + 1..])?.len();
        sums.sequences += 1;
        progress(done + 1, all.len());
    }
    sums.score()
}

/// [`score`] of a model and of `base`, and the KL divergence between them, on the tokens of the model's tokenizer. Sequences are
/// truncated to the shorter of the two contexts.
///
/// # Errors
///
/// [`EvalError::VocabularyMismatch`] when the vocabularies differ in size, and as [`score`].
pub fn compare(
    model: &dyn Model,
    base: &dyn Model,
    text: &str,
    options: &ScoreOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Comparison, EvalError> {
    let context = options.longest(model.config().spec.context.min(base.config().spec.context))?;
    let all = sequences(model.tokenizer()?, text, options.split, context, options.limit)?;
    compare_ids(model, base, &all, options, progress)
}

/// [`compare`] on token sequences, each at most as long as the shorter of the two contexts; `limit` of `options` is ignored.
///
/// # Errors
///
/// As [`compare`].
pub fn compare_ids(
    model: &dyn Model,
    base: &dyn Model,
    all: &[Vec<u32>],
    options: &ScoreOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Comparison, EvalError> {
    let (vocab, base_vocab) = (model.config().spec.vocab, base.config().spec.vocab);
    if vocab != base_vocab {
        return Err(EvalError::VocabularyMismatch { ours: vocab, base: base_vocab });
    }
    let default = model.default_kv();
    // Full attention in f32, apart from the base model's own precision.
    let is_exact = options.kv.precision == KvPrecision::F32.into();
    let base_kv = if is_exact { KvPrecision::F32 } else { base.default_kv() };
    let tokenizer = model.tokenizer()?;
    let (mut sums, mut base_sums) = (Sums::default(), Sums::default());
    let (mut kl, mut gap) = (Mean::default(), Mean::default());
    let mut agreed = 0;
    let mut ranges: Vec<RangeSums> = Vec::new();
    for (done, ids) in all.iter().enumerate().filter(|(_, ids)| ids.len() > 1) {
        let inputs = &ids[..ids.len() - 1];
        let from = unscored(options.split, ids.len());
        let mut reference = Vec::with_capacity(inputs.len() * vocab);
        let base_kv = KvSpec::new(base_kv, inputs.len());
        base.logits_with(inputs, &base_kv, &mut |_, row| reference.extend_from_slice(row))?;
        kl.start();
        gap.start();
        ranges.resize_with(ranges.len().max(range_of(inputs.len() - 1) + 1), RangeSums::default);
        ranges.iter_mut().for_each(RangeSums::start);
        model.logits_with(inputs, &options.cache(default, inputs.len()), &mut |i, row| {
            if i < from {
                return;
            }
            let base_row = &reference[i * vocab..(i + 1) * vocab];
            let (norm, base_norm) = (log_sum_exp(row), log_sum_exp(base_row));
            let next = ids[i + 1] as usize;
            let (nats, base_nats) = (norm - f64::from(row[next]), base_norm - f64::from(base_row[next]));
            sums.add(nats);
            base_sums.add(base_nats);
            gap.add(nats - base_nats);
            let divergence = divergence_from(row, base_row, base_norm);
            kl.add(divergence);
            ranges[range_of(i)].add(nats, base_nats, divergence);
            agreed += usize::from(best(row) == best(base_row));
        })?;
        let bytes = tokenizer.decode_bytes(&ids[from + 1..])?.len();
        for sums in [&mut sums, &mut base_sums] {
            sums.bytes += bytes;
            sums.sequences += 1;
        }
        progress(done + 1, all.len());
    }
    let score = sums.score()?;
    Ok(Comparison {
        base: base_sums.score()?,
        positions: ranges.iter().enumerate().filter_map(|(at, range)| range.figures(at)).collect(),
        top1_agreement: agreed as f64 / score.tokens as f64,
        score,
        kl: kl.mean(),
        kl_error: kl.error(),
        gap_error: gap.error(),
    })
}

/// Kullback-Leibler divergence of the distribution with logits `row` from that with logits `base`, in nats.
///
/// ```
/// let divergence = trike_eval::divergence(&[0.0, 0.0], &[0.0, 3f32.ln()]);
/// assert!((divergence - (0.25 * 0.5f64.ln() + 0.75 * 1.5f64.ln())).abs() < 1e-6);
/// ```
pub fn divergence(row: &[f32], base: &[f32]) -> f64 {
    divergence_from(row, base, log_sum_exp(base))
}

/// [`divergence`] from logits with known log-sum-exp.
pub(crate) fn divergence_from(row: &[f32], base: &[f32], base_norm: f64) -> f64 {
    let norm = log_sum_exp(row);
    row.iter().zip(base).fold(0.0, |sum, (&q, &p)| {
        let log_p = f64::from(p) - base_norm;
        sum + log_p.exp() * (log_p - (f64::from(q) - norm))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use trike_testkit::assert_near;

    #[test]
    fn log_sum_exp_by_hand() {
        assert_near!(log_sum_exp(&[0.0, 0.0]), 2f64.ln(), abs = 1e-12);
        assert_near!(log_sum_exp(&[1000.0, f32::NEG_INFINITY]), 1000.0, abs = 1e-12);
        assert_eq!(best(&[1.0, 3.0, 3.0]), 1);
    }

    #[test]
    fn errors_of_means_count_sequences() {
        let mut mean = Mean::default();
        for values in [[1.0, 1.0], [3.0, 3.0]] {
            mean.start();
            for value in values {
                mean.add(value);
            }
        }
        assert_eq!(mean.mean(), 2.0);
        // Four independent tokens would give 1/2; two sequences of perfectly correlated tokens give 1/sqrt(2).
        assert_near!(mean.error(), 0.5f64.sqrt(), abs = 1e-12);
        let got = divergence(&[0.0, 0.0], &[0.0, 3f64.ln() as f32]);
        assert_near!(got, 0.25 * 0.5f64.ln() + 0.75 * 1.5f64.ln(), abs = 1e-6);
    }

    #[test]
    fn sums_by_hand() {
        let mut sums = Sums { bytes: 3, sequences: 1, ..Sums::default() };
        sums.add(1.0);
        sums.add(3.0);
        let score = sums.score().unwrap();
        assert_eq!((score.nats, score.tokens, score.bytes), (2.0, 2, 3));
        assert_near!(score.perplexity, 2f64.exp(), abs = 1e-12);
        assert_near!(score.bits_per_byte, 4.0 / 2f64.ln() / 3.0, abs = 1e-12);
        assert_near!(score.nats_error, (1.0f64 / 2.0).sqrt(), abs = 1e-12);
        assert!(matches!(Sums::default().score(), Err(EvalError::NothingToScore)));
    }
}
