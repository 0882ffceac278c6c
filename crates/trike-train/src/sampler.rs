//! Text generation by the teacher, for distillation.

use std::ops::{ControlFlow, Range};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde::{Deserialize, Serialize};
use trike_core::{Bounds, OptionError};
use trike_cpu::Cpu;
use trike_nn::{
    ActivationPrecision, CpuBackend, Decoder, DecoderSequence, KvPrecision, KvSpec, Logits, Step,
};
use trike_text::tokenizer::Tokenizer;

use crate::{Parameters, TrainError};

/// Documents that a thread decodes in one batch: with a single token per step, every document would read all weights.
const TOGETHER: usize = 64;
/// Documents per job of a thread.
const SHARE: usize = 4 * TOGETHER;

/// Settings of a [`DocumentSampler`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SampleConfig {
    /// Documents to generate, see [`DocumentSampler::all`].
    pub documents: usize,
    /// Maximum number of tokens per document, including BOS, at least 2; bounded by the context of the model.
    pub length: usize,
    /// Softmax temperature, more than 0: 1 samples from the model's own distribution.
    pub temperature: f32,
    /// RNG seed; each document has an independent stream.
    pub seed: u64,
}

impl Default for SampleConfig {
    fn default() -> Self {
        Self { documents: 2600, length: 512, temperature: 1.0, seed: 0 }
    }
}

impl SampleConfig {
    /// Checks that all numbers are in range.
    ///
    /// # Errors
    ///
    /// [`OptionError::OutOfRange`].
    pub fn validate(&self) -> Result<(), OptionError> {
        OptionError::check("tokens of a document", Bounds::at_least(2usize), self.length)?;
        OptionError::check("temperature", Bounds::over(0.0).at_most(100.0), self.temperature)
    }
}

/// Generates training documents with a model. On its own text a teacher gives more information than on a corpus that is too small
/// for its student.
///
/// Document `i` depends only on the model, the configuration and `i`, not on the number of threads or on other documents. A resumed
/// run generates the same ones again.
///
/// ```
/// use trike_cpu::Cpu;
/// use trike_nn::DecoderSpec;
/// use trike_text::tokenizer::Tokenizer;
/// use trike_train::{Parameters, SampleConfig, DocumentSampler};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny/tokenizer.json");
/// let tokenizer = Tokenizer::from_hf_json(path)?.with_special(Some(1), vec![2])?;
/// let spec = DecoderSpec { tied_head: true, ..DecoderSpec::llama(8, 1, 2, tokenizer.vocab_size()) };
/// let model = Parameters::random(&spec, 1)?;
/// let config = SampleConfig { length: 5, ..SampleConfig::default() };
/// let sampler = DocumentSampler::new(&model, &tokenizer, config)?;
/// let documents = sampler.documents(&Cpu::new(2)?, 0..3)?;
/// assert_eq!(documents[1..], sampler.documents(&Cpu::new(1)?, 1..3)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DocumentSampler {
    decoder: Decoder<CpuBackend>,
    /// The start token of documents.
    start: u32,
    /// Tokens that end one.
    ends: Vec<u32>,
    config: SampleConfig,
}

impl std::fmt::Debug for DocumentSampler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DocumentSampler").field("config", &self.config).finish_non_exhaustive()
    }
}

impl DocumentSampler {
    /// A sampler for a dense model and its tokenizer. Documents start with BOS, or with EOS for a tokenizer without BOS, and end
    /// before the next BOS or EOS.
    ///
    /// # Errors
    ///
    /// [`TrainError::Option`], [`TrainError::Nn`], and [`TrainError::NoStart`] for a tokenizer without either token.
    pub fn new(model: &Parameters, tokenizer: &Tokenizer, config: SampleConfig) -> Result<Self, TrainError> {
        config.validate()?;
        let bos = tokenizer.bos();
        let ends: Vec<u32> = bos.into_iter().chain(tokenizer.eos().iter().copied()).collect();
        let start = *ends.first().ok_or(TrainError::NoStart)?;
        // Threads run separate documents, so products are single-threaded.
        let backend =
            CpuBackend::new(Cpu::new(1).map_err(trike_cpu::CpuError::from)?, ActivationPrecision::F32);
        let spec = model.spec().clone();
        let config = SampleConfig { length: config.length.min(spec.context), ..config };
        let decoder = Decoder::new(backend, spec, &mut model.weights())?;
        Ok(Self { decoder, start, ends, config })
    }

    /// The tokens of all documents of the configuration; `None` if `progress`, which receives the number of completed documents,
    /// stops it.
    ///
    /// # Errors
    ///
    /// As [`documents`](Self::documents).
    pub fn all(
        &self,
        cpu: &Cpu,
        progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Option<Vec<Vec<u32>>>, TrainError> {
        self.range(cpu, 0..self.config.documents, progress)
    }

    /// [`all`](Self::all) for some of the documents.
    pub(crate) fn range(
        &self,
        cpu: &Cpu,
        range: Range<usize>,
        progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Option<Vec<Vec<u32>>>, TrainError> {
        let mut all = Vec::with_capacity(range.len().min(1 << 20));
        for first in range.clone().step_by(SHARE * cpu.threads()) {
            if progress(first - range.start).is_break() {
                return Ok(None);
            }
            all.extend(self.documents(cpu, first..(first + SHARE * cpu.threads()).min(range.end))?);
        }
        Ok(Some(all))
    }

    /// The tokens of some documents, in order.
    ///
    /// # Errors
    ///
    /// [`TrainError::Nn`], and [`TrainError::NonFinite`] for a model whose logits are not finite.
    pub fn documents(&self, cpu: &Cpu, range: Range<usize>) -> Result<Vec<Vec<u32>>, TrainError> {
        let shares: Vec<Range<usize>> =
            range.clone().step_by(SHARE).map(|first| first..(first + SHARE).min(range.end)).collect();
        let mut all = Vec::with_capacity(range.len());
        for share in cpu.pool().map(shares, |share| self.share(share)) {
            all.extend(share?);
        }
        Ok(all)
    }

    /// Generates a range of documents on this thread in a continuous batch: a finished document is replaced by the next one.
    fn share(&self, range: Range<usize>) -> Result<Vec<Vec<u32>>, TrainError> {
        let mut done = vec![Vec::new(); range.len()];
        let spec = KvSpec::new(KvPrecision::F32, self.config.length);
        let mut waiting = range.clone();
        let mut live = Vec::with_capacity(TOGETHER.min(range.len()));
        for index in waiting.by_ref().take(TOGETHER) {
            live.push(Draft::new(self, index, self.decoder.sequence(spec)?));
        }
        while !live.is_empty() {
            let last: Vec<[u32; 1]> = live.iter().map(|draft| [draft.last]).collect();
            let mut steps: Vec<Step<'_, CpuBackend>> = live
                .iter_mut()
                .zip(&last)
                .map(|(draft, ids)| Step { sequence: &mut draft.sequence, ids })
                .collect();
            let logits = self.decoder.forward(&mut steps, Logits::Last)?;
            let mut still = Vec::with_capacity(live.len());
            for (mut draft, logits) in live.into_iter().zip(logits) {
                if draft.extend(&logits, self)? {
                    still.push(draft);
                    continue;
                }
                let Draft { index, ids, mut sequence, .. } = draft;
                done[index - range.start] = ids;
                if let Some(index) = waiting.next() {
                    sequence.truncate(0)?;
                    still.push(Draft::new(self, index, sequence));
                }
            }
            live = still;
        }
        Ok(done)
    }
}

/// A document during generation.
struct Draft {
    index: usize,
    rng: ChaCha8Rng,
    ids: Vec<u32>,
    last: u32,
    sequence: DecoderSequence<CpuBackend>,
}

impl Draft {
    fn new(sampler: &DocumentSampler, index: usize, sequence: DecoderSequence<CpuBackend>) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(sampler.config.seed);
        rng.set_stream(index as u64);
        Self { index, rng, ids: vec![sampler.start], last: sampler.start, sequence }
    }

    /// Appends a token; returns `false` at the end of the document.
    fn extend(&mut self, logits: &[f32], sampler: &DocumentSampler) -> Result<bool, TrainError> {
        let uniform = (self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let Some(id) = draw(logits, sampler.config.temperature, uniform) else {
            return Err(TrainError::NonFinite {
                what: "logit of a written document",
                step: self.ids.len() as u64,
            });
        };
        if sampler.ends.contains(&id) {
            return Ok(false);
        }
        self.ids.push(id);
        self.last = id;
        Ok(self.ids.len() < sampler.config.length)
    }
}

/// The token at quantile `uniform`, in [0, 1), of the softmax distribution; `None` if the logits are not finite.
fn draw(logits: &[f32], temperature: f32, uniform: f64) -> Option<u32> {
    let top = logits.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v));
    let weights: Vec<f64> = logits.iter().map(|v| f64::from(((v - top) / temperature).exp())).collect();
    let sum: f64 = weights.iter().sum();
    if !sum.is_finite() {
        return None;
    }
    let mut left = uniform * sum;
    // Rounding may leave a remainder after the last token.
    let last = weights.iter().rposition(|w| *w > 0.0)?;
    for (id, weight) in (0u32..).zip(&weights[..last]) {
        left -= weight;
        if left < 0.0 {
            return Some(id);
        }
    }
    u32::try_from(last).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_drawn_in_proportion() {
        let logits = [2f32.ln(), f32::NEG_INFINITY, 0.0, 1f32.ln(), f32::NEG_INFINITY];
        let drawn: Vec<Option<u32>> =
            [0.0, 0.49, 0.51, 0.74, 0.76, 0.999_999].iter().map(|u| draw(&logits, 1.0, *u)).collect();
        assert_eq!(drawn, [0, 0, 2, 2, 3, 3].map(Some));
        // A temperature of 0.5 squares the weights.
        assert_eq!(draw(&logits, 0.5, 0.66), Some(0));
        assert_eq!(draw(&[f32::NAN, 0.0], 1.0, 0.5), None);
        assert_eq!(draw(&[f32::NEG_INFINITY], 1.0, 0.5), None);
        assert_eq!(draw(&[], 1.0, 0.5), None);
    }

    #[test]
    fn settings_are_checked() {
        let config = SampleConfig::default();
        assert!(config.validate().is_ok());
        assert!(SampleConfig { length: 1, ..config }.validate().is_err());
        assert!(SampleConfig { temperature: 0.0, ..config }.validate().is_err());
    }
}
