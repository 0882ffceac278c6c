//! Weights of decoders on the host.

use trike_core::{DenseData, DenseTensor};
use trike_nn::{DecoderSpec, DecoderWeights, NnError, Tensor, WeightName};
use trike_testkit::Rng;

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
