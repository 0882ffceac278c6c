//! Choice of the precisions of a KV cache, layer by layer, under a bound on the KL divergence.

use std::ops::ControlFlow;

use trike_core::{Bounds, OptionError};
use trike_llm::{
    GenerateOptions, LlmError, Model, PROMPT_STEP, Session, sampler::SamplerConfig, tokenizer::Tokenizer,
};
use trike_nn::{KvPrecision, KvPrecisions, KvSpec};

use crate::{
    EvalError,
    mean::Mean,
    perplexity::{divergence_from, log_sum_exp},
};

/// Block size of adjacent tokens for the standard error, since their divergences are correlated.
const TOGETHER: usize = 16;

/// Options of [`choose_kv`](fn@choose_kv); each `with_` method changes one field.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct ChooseKv {
    /// Bound on the mean KL divergence from the default precision, in nats per token. It holds for the estimate plus two standard
    /// errors.
    pub kl: f64,
    /// Tokens of the text, or the model's context if it is shorter.
    pub tokens: usize,
    /// RNG seed of the text.
    pub seed: u64,
}

impl Default for ChooseKv {
    fn default() -> Self {
        Self { kl: Self::KL, tokens: 256, seed: 0 }
    }
}

impl ChooseKv {
    /// The default bound.
    pub const KL: f64 = 0.002;

    /// Sets [`kl`](Self::kl).
    #[must_use]
    pub fn with_kl(self, kl: f64) -> Self {
        Self { kl, ..self }
    }

    /// Sets [`tokens`](Self::tokens).
    #[must_use]
    pub fn with_tokens(self, tokens: usize) -> Self {
        Self { tokens, ..self }
    }

    /// Sets [`seed`](Self::seed).
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }
}

/// The chosen precisions, their divergence and their size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChosenKv {
    /// The precisions.
    pub precision: KvPrecisions,
    /// Mean KL divergence from the default precision on the model's own text, in nats per token; 0 for the default precision.
    pub kl: f64,
    /// Its standard error.
    pub kl_error: f64,
    /// Tokens of the text.
    pub tokens: usize,
    /// Bytes of the keys and values of one position in all layers.
    pub bytes_per_position: u64,
    /// The same in the default precision.
    pub default_bytes_per_position: u64,
}

/// For each layer, the error due to caching its keys and values in each of `precisions`, relative to the default precision:
/// [`Decoder::cache_errors`](trike_nn::Decoder::cache_errors).
///
/// # Errors
///
/// [`EvalError::KvChoice`] unless the model runs on the CPU in one process, [`LlmError::PromptTooLong`], and errors of the decoder.
pub fn cache_errors(
    model: &dyn Model,
    ids: &[u32],
    precisions: &[KvPrecision],
) -> Result<Vec<Vec<f64>>, EvalError> {
    let context = model.config().spec.context;
    if ids.len() > context {
        return Err(LlmError::PromptTooLong { tokens: ids.len(), context }.into());
    }
    // Blocks are run one by one, which follower ranks cannot, and devices require one precision for all layers.
    let host = model.host().ok_or_else(|| EvalError::KvChoice { backend: model.backend() })?;
    let errors = host.decoder().cache_errors(ids, model.default_kv(), precisions, PROMPT_STEP);
    Ok(errors.map_err(LlmError::from)?)
}

/// Chooses the precisions of the KV cache layer by layer: the smallest cache that [`ChooseKv`] finds whose KL divergence from the
/// default precision stays within a bound, on a text sampled from the model itself. Deterministic. `progress` is called with the
/// passes done and in total.
///
/// ```
/// use trike_eval::{ChooseKv, choose_kv};
/// use trike_llm::LanguageModel;
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny");
/// let model = LanguageModel::load(path)?;
/// let chosen = choose_kv(&model, &ChooseKv::default().with_kl(0.01).with_tokens(64), &mut |_, _| ())?;
/// assert!(chosen.kl <= 0.01 && chosen.bytes_per_position <= chosen.default_bytes_per_position);
/// # Ok::<(), trike_eval::EvalError>(())
/// ```
///
/// # Errors
///
/// As [`cache_errors`] and [`Model::run`], [`EvalError::Option`] for options out of range, and
/// [`LlmError::NoTokenizer`].
pub fn choose_kv(
    model: &dyn Model,
    options: &ChooseKv,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<ChosenKv, EvalError> {
    OptionError::check("kl", Bounds::at_least(0.0f64), options.kl)?;
    OptionError::check("tokens", Bounds::at_least(2usize), options.tokens)?;
    let spec = &model.config().spec;
    let default = model.default_kv();
    let bytes = |precision: KvPrecision| precision.bytes_per_position(spec.head_dim);
    let mut smaller = KvPrecision::ALL.to_vec();
    smaller.retain(|&precision| bytes(precision) < bytes(default));
    smaller.sort_by_key(|&precision| std::cmp::Reverse(bytes(precision)));
    // Checked before sampling the text, so that an unsupported backend is refused at once.
    let start = start_token(model.tokenizer()?);
    cache_errors(model, &[start], &smaller)?;

    let ids = own_text(model, start, options)?;
    let errors = cache_errors(model, &ids, &smaller)?;
    let choices = choices(default, &smaller, &errors, &bytes);
    let passes = 3 + (choices.len() + 1).ilog2() as usize;
    progress(2, passes);
    let reference = Reference::new(model, &ids)?;
    progress(3, passes);
    // The caches become smaller, so their divergences increase apart from noise: keep the last one within the bound.
    let mut best = (KvPrecisions::from(default), 0.0, 0.0);
    let (mut low, mut high) = (0, choices.len());
    let mut done = 3;
    while low < high {
        let middle = (low + high) / 2;
        let (kl, error) = reference.divergence(model, &ids, choices[middle])?;
        match kl + 2.0 * error <= options.kl {
            true => (best, low) = ((choices[middle], kl, error), middle + 1),
            false => high = middle,
        }
        done += 1;
        progress(done.min(passes), passes);
    }
    progress(passes, passes);
    let (precision, kl, kl_error) = best;
    let of_all =
        |all: KvPrecisions| spec.kv_heads as u64 * all.bytes_per_position(0..spec.layers, spec.head_dim);
    Ok(ChosenKv {
        precision,
        kl,
        kl_error,
        tokens: ids.len(),
        bytes_per_position: of_all(precision),
        default_bytes_per_position: of_all(default.into()),
    })
}

/// The token after which a model writes a text of its own: BOS, or without one EOS, which separates texts.
#[must_use]
pub fn start_token(tokenizer: &Tokenizer) -> u32 {
    tokenizer.bos().or_else(|| tokenizer.eos().first().copied()).unwrap_or(0)
}

/// A text sampled from the model. EOS does not end it: tokens sampled after EOS are part of the text.
fn own_text(model: &dyn Model, start: u32, options: &ChooseKv) -> Result<Vec<u32>, EvalError> {
    let tokens = options.tokens.min(model.config().spec.context);
    let sampler = SamplerConfig::default().with_temperature(1.0).with_seed(options.seed);
    let sampling = GenerateOptions::default().with_max_tokens(tokens.saturating_sub(1)).with_sampler(sampler);
    let (mut session, mut go) = (Session::default(), |_: &str| ControlFlow::Continue(()));
    let text = model.generate_in(&mut session, vec![start], &[], &sampling, &mut go)?;
    Ok(text.prompt_ids.into_iter().chain(text.ids).collect())
}

/// Caches of decreasing size, starting with the first one smaller than the default, in the order of increasing error per byte
/// saved.
///
/// The errors of layers are small and uncorrelated, so they add up, and in an optimal cache the marginal error per byte is equal
/// across layers: single layers switch to the next precision in the order of error per byte saved.
fn choices(
    default: KvPrecision,
    smaller: &[KvPrecision],
    errors: &[Vec<f64>],
    bytes: &dyn Fn(KvPrecision) -> usize,
) -> Vec<KvPrecisions> {
    let mut layers = vec![default; errors.len()];
    if layers.len() > KvPrecisions::MAX_LAYERS {
        return smaller.iter().map(|&precision| precision.into()).collect();
    }
    let mut steps: Vec<Step> = errors
        .iter()
        .enumerate()
        .flat_map(|(layer, errors)| steps(layer, default, smaller, errors, bytes))
        .collect();
    // A stable sort: the steps of a layer already have ascending costs.
    steps.sort_by(|a, b| a.cost.total_cmp(&b.cost));
    let mut take = |step: Step| {
        layers[step.layer] = step.to;
        // The number of layers is within the limit.
        KvPrecisions::of_layers(&layers).unwrap_or(default.into())
    };
    steps.into_iter().map(&mut take).collect()
}

/// Switch of a layer to a smaller precision.
#[derive(Clone, Copy)]
struct Step {
    layer: usize,
    to: KvPrecision,
    /// Added error per byte saved.
    cost: f64,
}

/// The steps of a layer along the lower convex hull of its errors over bytes, so that costs ascend.
fn steps(
    layer: usize,
    default: KvPrecision,
    smaller: &[KvPrecision],
    errors: &[f64],
    bytes: &dyn Fn(KvPrecision) -> usize,
) -> Vec<Step> {
    let mut steps = Vec::new();
    let (mut from, mut error) = (bytes(default), 0.0);
    let mut rest = smaller.iter().zip(errors).collect::<Vec<_>>();
    loop {
        let cost = |(to, of): &(&KvPrecision, &f64)| (**of - error) / (from - bytes(**to)).max(1) as f64;
        // On ties the largest step.
        let best =
            rest.iter().enumerate().min_by(|(i, a), (j, b)| cost(a).total_cmp(&cost(b)).then(j.cmp(i)));
        let Some((at, next)) = best.map(|(at, next)| (at, *next)) else { return steps };
        steps.push(Step { layer, to: *next.0, cost: cost(&next) });
        (from, error) = (bytes(*next.0), *next.1);
        rest.drain(..=at);
    }
}

/// The logits of the default precision.
struct Reference {
    rows: Vec<f32>,
    vocab: usize,
    /// Log-sum-exp of each row.
    norms: Vec<f64>,
}

impl Reference {
    fn new(model: &dyn Model, ids: &[u32]) -> Result<Self, EvalError> {
        let vocab = model.config().spec.vocab;
        let (mut rows, mut norms) = (Vec::with_capacity(ids.len() * vocab), Vec::with_capacity(ids.len()));
        model.logits_with(ids, &KvSpec::new(model.default_kv(), ids.len()), &mut |_, row| {
            rows.extend_from_slice(row);
            norms.push(log_sum_exp(row));
        })?;
        Ok(Self { rows, vocab, norms })
    }

    /// Mean divergence of the model with another cache, and its standard error.
    fn divergence(
        &self,
        model: &dyn Model,
        ids: &[u32],
        precision: KvPrecisions,
    ) -> Result<(f64, f64), EvalError> {
        let mut mean = Mean::default();
        model.logits_with(ids, &KvSpec::new(precision, ids.len()), &mut |token, row| {
            if token % TOGETHER == 0 {
                mean.start();
            }
            let base = &self.rows[token * self.vocab..(token + 1) * self.vocab];
            mean.add(divergence_from(row, base, self.norms[token]));
        })?;
        Ok((mean.mean(), mean.error()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use KvPrecision::{F16, Int4, Int8, Int8Int4};

    fn of_128(precision: KvPrecision) -> usize {
        precision.bytes_per_position(128)
    }

    fn shown(errors: &[Vec<f64>]) -> Vec<String> {
        choices(F16, &[Int8, Int8Int4, Int4], errors, &of_128).iter().map(ToString::to_string).collect()
    }

    /// Steps that save 248, 64 and 64 bytes, and layers with different errors.
    #[test]
    fn layers_step_in_the_order_of_error_per_byte() {
        let errors = [vec![2.48, 3.76, 10.16], vec![0.248, 0.568, 128.0]];
        assert_eq!(
            shown(&errors),
            ["int8,f16:0", "int8-int4,f16:0", "int8-int4,int8:0", "int8-int4", "int8-int4,int4:0", "int4"]
        );
    }

    /// A step that costs more per byte than the next one is merged with it.
    #[test]
    fn precisions_above_the_hull_are_passed_over() {
        assert_eq!(shown(&[vec![1.0, 5.0, 6.0]]), ["int8", "int4"]);
        assert_eq!(shown(&[vec![9.0, 8.0, 1.0]]), ["int4"]);
        // Without any error, the smallest cache is chosen.
        assert_eq!(shown(&[vec![0.0, 0.0, 0.0]]), ["int4"]);
    }

    #[test]
    fn choices_become_smaller() {
        let mut rng = trike_testkit::Rng::new(1);
        let mut errors = || -> Vec<f64> { (0..3).map(|_| f64::from(rng.below(100) as u32)).collect() };
        let errors: Vec<Vec<f64>> = (0..30).map(|_| errors()).collect();
        let choices = choices(F16, &[Int8, Int8Int4, Int4], &errors, &of_128);
        let bytes: Vec<u64> = choices.iter().map(|all| all.bytes_per_position(0..30, 128)).collect();
        assert!(bytes.windows(2).all(|pair| pair[0] > pair[1]), "{bytes:?}");
        assert_eq!(choices.last(), Some(&Int4.into()));
        assert!(bytes[0] < 30 * 512);
    }

    /// More layers than precisions are stored for.
    #[test]
    fn many_layers_have_the_same_precision() {
        let errors = vec![vec![1.0, 2.0, 3.0]; 129];
        assert_eq!(shown(&errors), ["int8", "int8-int4", "int4"]);
        assert_eq!(shown(&errors[..128]).len(), 2 * 128);
    }
}
