//! Sampling parameters: the command line first, then the model's `generation_config.json`.

use trike::{ModelFile, SamplerConfig, llm::SamplingOptions};

use crate::args::SamplingArgs;

impl SamplingArgs {
    /// Merges the command line, the model's configuration and the defaults, in this order of precedence.
    pub(crate) fn config(&self, file: &ModelFile) -> anyhow::Result<SamplerConfig> {
        valid(self.unlimited(self.options().sampler(&file.generation_config()?)))
    }

    /// As [`config`](Self::config), but a chat is greedy only when a temperature of 0 is given.
    pub(crate) fn chat(&self, file: &ModelFile) -> anyhow::Result<SamplerConfig> {
        valid(self.unlimited(self.options().chat_sampler(&file.generation_config()?)))
    }

    /// With `--top-k 0`, all tokens, also if the model recommends a number.
    fn unlimited(&self, config: SamplerConfig) -> SamplerConfig {
        if self.top_k == Some(0) { config.with_top_k(None) } else { config }
    }

    fn options(&self) -> SamplingOptions {
        SamplingOptions {
            temperature: self.temperature,
            top_k: self.top_k.filter(|&k| k > 0),
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed.and_then(|seed| seed.0),
        }
    }
}

fn valid(config: SamplerConfig) -> anyhow::Result<SamplerConfig> {
    config.validate().map_err(trike::LlmError::from)?;
    Ok(config)
}
