//! Weights of decoders on the host.

use trike_core::{DenseData, DenseTensor};
use trike_cpu::Cpu;
use trike_nn::{
    ActivationPrecision, CpuBackend, Decoder, DecoderSequence, DecoderSpec, DecoderWeights, Logits, NnError,
    Step, Tensor, WeightName,
};
use trike_testkit::Rng;

/// Tokens of the [`decoder`].
pub(crate) const VOCAB: usize = 40;

/// A spec of a small model with a context of 500.
pub(crate) fn spec(layers: usize) -> DecoderSpec {
    DecoderSpec { intermediate: 40, kv_heads: 2, context: 500, ..DecoderSpec::llama(32, layers, 4, VOCAB) }
}

/// A random model on the host, in f32.
pub(crate) fn decoder(layers: usize, threads: usize) -> Decoder<CpuBackend> {
    let backend = CpuBackend::new(Cpu::new(threads).expect("a few threads"), ActivationPrecision::F32);
    let spec = spec(layers);
    Decoder::new(backend, spec.clone(), &mut Random::new(&spec, 8)).expect("a model")
}

/// Random tokens.
pub(crate) fn ids(n: usize, seed: u64) -> Vec<u32> {
    let mut rng = Rng::new(seed);
    (0..n).map(|_| rng.below(VOCAB) as u32).collect()
}

/// Runs tokens and returns the logits of the last one.
pub(crate) fn run(
    decoder: &Decoder<CpuBackend>,
    sequence: &mut DecoderSequence<CpuBackend>,
    ids: &[u32],
) -> Vec<f32> {
    decoder.forward(&mut [Step { sequence, ids }], Logits::Last).expect("it runs").remove(0)
}

/// Random matrices, and norms of one.
pub(crate) struct Random<'a>(&'a DecoderSpec, Rng);

impl<'a> Random<'a> {
    /// The same weights for the same seed.
    pub(crate) fn new(spec: &'a DecoderSpec, seed: u64) -> Self {
        Self(spec, Rng::new(seed))
    }
}

impl DecoderWeights for Random<'_> {
    fn matrix(&mut self, name: WeightName) -> Result<Tensor, NnError> {
        let spec = self.0;
        let (rows, cols) = match name {
            WeightName::Embedding | WeightName::Head => (spec.vocab, spec.hidden),
            WeightName::Query(_) => (spec.query_width(), spec.hidden),
            WeightName::Key(_) | WeightName::Value(_) => (spec.kv_width(), spec.hidden),
            WeightName::Output(_) => (spec.hidden, spec.query_width()),
            WeightName::Down(_) => (spec.hidden, spec.intermediate),
            _ => (spec.intermediate, spec.hidden),
        };
        let size = 1.5 / (cols as f32).sqrt();
        let values = self.1.normals(rows * cols).iter().map(|v| v * size).collect();
        Ok(DenseTensor::new(vec![rows, cols], DenseData::F32(values))?.into())
    }

    fn vector(&mut self, _: WeightName) -> Result<Vec<f32>, NnError> {
        Ok(vec![1.0; self.0.hidden])
    }
}
