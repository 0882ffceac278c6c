//! Sampling options that default to the model's recommendation.

use std::hash::{BuildHasher, RandomState};

use super::{GenerationConfig, SamplerConfig};

/// Temperature and min-p of a chat with a model without recommendations.
const CHAT: (f32, f32) = (0.8, 0.05);

/// The user's sampling options. `None` means the model's recommendation, or else the default.
///
/// ```
/// use trike_text::sampler::{GenerationConfig, SamplingOptions};
///
/// let model = GenerationConfig::from_json(r#"{"do_sample": true, "temperature": 0.7, "top_p": 0.9}"#)?;
/// let given = SamplingOptions { top_p: Some(0.5), seed: Some(1), ..SamplingOptions::default() };
/// let config = given.sampler(&model);
/// assert_eq!((config.temperature, config.top_p, config.seed), (0.7, 0.5, 1));
/// // A model that recommends nothing is greedy.
/// assert_eq!(SamplingOptions::default().sampler(&GenerationConfig::default()).temperature, 0.0);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingOptions {
    /// Divides the logits; 0 = greedy decoding.
    pub temperature: Option<f32>,
    /// Number of most probable tokens that are kept.
    pub top_k: Option<usize>,
    /// Total probability of the kept tokens.
    pub top_p: Option<f32>,
    /// Minimum probability of a kept token, as a fraction of the highest one.
    pub min_p: Option<f32>,
    /// Divides the logits of earlier tokens.
    pub repetition_penalty: Option<f32>,
    /// RNG seed (random if omitted).
    pub seed: Option<u64>,
}

impl SamplingOptions {
    /// The sampler for a model with these recommendations. Decoding is greedy unless the model recommends sampling or an option is
    /// set that only affects sampling. Values are not validated: see [`SamplerConfig::validate`].
    #[must_use]
    pub fn sampler(&self, model: &GenerationConfig) -> SamplerConfig {
        let nothing = GenerationConfig::default();
        // The sampling parameters of a model that defaults to greedy decoding are ignored.
        let samples = model.do_sample == Some(true);
        let own = if samples { model } else { &nothing };
        let asked =
            self.top_k.is_some() || self.top_p.is_some() || self.min_p.is_some() || self.seed.is_some();
        let neutral = if samples || asked { 1.0 } else { 0.0 };
        let open = SamplerConfig::default();
        open.clone()
            .with_temperature(self.temperature.or(own.temperature).unwrap_or(neutral))
            // In a generation configuration, 0 disables top-k.
            .with_top_k(self.top_k.or(own.top_k.filter(|&k| k > 0)))
            .with_top_p(self.top_p.or(own.top_p).unwrap_or(open.top_p))
            .with_min_p(self.min_p.or(own.min_p).unwrap_or(open.min_p))
            .with_repetition_penalty(
                self.repetition_penalty.or(model.repetition_penalty).unwrap_or(open.repetition_penalty),
            )
            // The keys of a hash map are random; 32 bits are short enough to retype.
            .with_seed(self.seed.unwrap_or_else(|| RandomState::new().hash_one(0) & u64::from(u32::MAX)))
    }

    /// As [`sampler`](Self::sampler), but a chat is greedy only for an explicit temperature of 0: a model without recommendations
    /// is sampled with a temperature of 0.8 and a min-p of 0.05.
    #[must_use]
    pub fn chat_sampler(&self, model: &GenerationConfig) -> SamplerConfig {
        let mut model = model.clone();
        if model.do_sample != Some(true) {
            let silent = model.temperature.is_none() && model.top_p.is_none() && model.top_k.is_none();
            model.do_sample = Some(true);
            model.temperature = model.temperature.filter(|&value| value > 0.0).or(Some(CHAT.0));
            model.min_p = model.min_p.or(silent.then_some(CHAT.1));
        }
        self.sampler(&model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: SamplingOptions = SamplingOptions {
        temperature: None,
        top_k: None,
        top_p: None,
        min_p: None,
        repetition_penalty: None,
        seed: None,
    };

    fn model(text: &str) -> GenerationConfig {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn what_is_given_comes_first_then_the_model_then_greedy() {
        assert_eq!(NOTHING.sampler(&GenerationConfig::default()).temperature, 0.0);
        let config =
            NOTHING.sampler(&model(r#"{"do_sample": true, "temperature": 0.7, "top_p": 0.95, "top_k": 0}"#));
        assert_eq!((config.temperature, config.top_p, config.top_k), (0.7, 0.95, None));
        let zero = SamplingOptions { temperature: Some(0.0), ..NOTHING };
        assert_eq!(zero.sampler(&model(r#"{"do_sample": true, "temperature": 0.7}"#)).temperature, 0.0);
        let config =
            NOTHING.sampler(&model(r#"{"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.2}"#));
        assert_eq!((config.temperature, config.top_p, config.repetition_penalty), (0.0, 1.0, 1.2));
    }

    #[test]
    fn an_option_that_only_means_something_when_sampling_samples() {
        for given in [
            SamplingOptions { top_k: Some(5), ..NOTHING },
            SamplingOptions { top_p: Some(0.5), ..NOTHING },
            SamplingOptions { min_p: Some(0.5), ..NOTHING },
            SamplingOptions { seed: Some(5), ..NOTHING },
        ] {
            assert_eq!(given.sampler(&GenerationConfig::default()).temperature, 1.0, "{given:?}");
        }
        let seeded = SamplingOptions { seed: Some(5), ..NOTHING };
        assert_eq!(seeded.sampler(&GenerationConfig::default()).seed, 5);
    }

    #[test]
    fn a_chat_is_sampled() {
        let config = NOTHING.chat_sampler(&GenerationConfig::default());
        assert_eq!((config.temperature, config.min_p), (0.8, 0.05));
        let config = NOTHING.chat_sampler(&model(r#"{"top_p": 0.9, "temperature": 0.6}"#));
        assert_eq!((config.temperature, config.top_p, config.min_p), (0.6, 0.9, 0.0));
        let zero = SamplingOptions { temperature: Some(0.0), ..NOTHING };
        assert_eq!(zero.chat_sampler(&GenerationConfig::default()).temperature, 0.0);
    }
}
