//! Sampling parameters: the command line first, then the model's `generation_config.json`.

use std::hash::{BuildHasher, RandomState};

use trike::{ModelFile, SamplerConfig, llm::GenerationConfig};

use crate::args::SamplingArgs;

/// Temperature and min-p of a chat with a model that recommends nothing.
const CHAT: (f32, f32) = (0.8, 0.05);

impl SamplingArgs {
    /// Merges the command line, the model's configuration and the defaults, in this order of precedence.
    pub(crate) fn config(&self, file: &ModelFile) -> anyhow::Result<SamplerConfig> {
        let config = self.merge(file.generation_config()?);
        config.validate().map_err(trike::LlmError::from)?;
        Ok(config)
    }

    /// As [`config`](Self::config), but a chat is greedy only when a temperature of 0 is given: a model that recommends nothing is
    /// sampled with the values of [`CHAT`].
    pub(crate) fn chat(&self, file: &ModelFile) -> anyhow::Result<SamplerConfig> {
        let mut model = file.generation_config()?;
        if model.do_sample != Some(true) {
            let silent = model.temperature.is_none() && model.top_p.is_none() && model.top_k.is_none();
            model.do_sample = Some(true);
            model.temperature = model.temperature.filter(|&value| value > 0.0).or(Some(CHAT.0));
            model.min_p = model.min_p.or(silent.then_some(CHAT.1));
        }
        let config = self.merge(model);
        config.validate().map_err(trike::LlmError::from)?;
        Ok(config)
    }

    /// The given seed.
    fn seed(&self) -> Option<u64> {
        self.seed?.0
    }

    fn merge(&self, model: GenerationConfig) -> SamplerConfig {
        // The sampling parameters of a model that defaults to greedy decoding are ignored.
        let sampled = if model.do_sample == Some(true) {
            model
        } else {
            GenerationConfig { repetition_penalty: model.repetition_penalty, ..GenerationConfig::default() }
        };
        let asked =
            self.top_k.is_some() || self.top_p.is_some() || self.min_p.is_some() || self.seed().is_some();
        let neutral = if sampled.do_sample == Some(true) || asked { 1.0 } else { 0.0 };
        let open = SamplerConfig::default();
        open.clone()
            .with_temperature(self.temperature.or(sampled.temperature).unwrap_or(neutral))
            // In a generation configuration, 0 disables top-k.
            .with_top_k(self.top_k.or(sampled.top_k.filter(|&k| k > 0)))
            .with_top_p(self.top_p.or(sampled.top_p).unwrap_or(open.top_p))
            .with_min_p(self.min_p.or(sampled.min_p).unwrap_or(open.min_p))
            .with_repetition_penalty(
                self.repetition_penalty.or(sampled.repetition_penalty).unwrap_or(open.repetition_penalty),
            )
            // The keys of a hash map are random; 32 bits are short enough to retype.
            .with_seed(self.seed().unwrap_or_else(|| RandomState::new().hash_one(0) & u64::from(u32::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Seed;

    const NOTHING: SamplingArgs = SamplingArgs {
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
    fn the_command_line_comes_first_then_the_model_then_greedy() {
        assert_eq!(NOTHING.merge(GenerationConfig::default()).temperature, 0.0);
        let config =
            NOTHING.merge(model(r#"{"do_sample": true, "temperature": 0.7, "top_p": 0.95, "top_k": 0}"#));
        assert_eq!((config.temperature, config.top_p, config.top_k), (0.7, 0.95, None));
        let zero = SamplingArgs { temperature: Some(0.0), ..NOTHING };
        assert_eq!(zero.merge(model(r#"{"do_sample": true, "temperature": 0.7}"#)).temperature, 0.0);
        let config = NOTHING.merge(model(r#"{"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.2}"#));
        assert_eq!((config.temperature, config.top_p, config.repetition_penalty), (0.0, 1.0, 1.2));
    }

    #[test]
    fn an_option_that_only_means_something_when_sampling_samples() {
        for args in [
            SamplingArgs { top_k: Some(5), ..NOTHING },
            SamplingArgs { top_p: Some(0.5), ..NOTHING },
            SamplingArgs { min_p: Some(0.5), ..NOTHING },
            SamplingArgs { seed: Some(Seed(Some(5))), ..NOTHING },
        ] {
            assert_eq!(args.merge(GenerationConfig::default()).temperature, 1.0, "{args:?}");
        }
        assert_eq!(
            SamplingArgs { seed: Some(Seed(Some(5))), ..NOTHING }.merge(GenerationConfig::default()).seed,
            5
        );
    }
}
