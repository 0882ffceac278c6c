//! Models of random trits, for benchmarks: they run at the speed of trained models of the same size.

use std::{path::PathBuf, time::Instant};

use trike_core::{DenseData, DenseTensor, Int8Tensor};
use trike_nn::{Backend, Decoder, DecoderSpec, DecoderWeights, NnError, Tensor, WeightName};
use trike_trit::{Encoding, Granularity, ScaleValues, Scales, TritTensor};

use crate::{Family, LanguageModel, LlmError, Model, ModelConfig, SpecialIds};

/// Sizes of random-trit models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synthetic {
    /// 12 layers, 768 / 2048, 12 heads.
    M125,
    /// 24 layers, 1536 / 4096, 16 heads.
    Large,
    /// 30 layers, 2560 / 6912, 20 query and 5 key heads: BitNet-b1.58-2B-4T.
    B2,
    /// 32 layers, 4096 / 14336, 32 query and 8 key heads: Llama-3-8B.
    B8,
}

impl Synthetic {
    /// The decoder of that size, with a vocabulary of 32,000 and a context of 4,096.
    pub fn spec(self) -> DecoderSpec {
        let (layers, hidden, intermediate, heads, kv_heads) = match self {
            Self::M125 => (12, 768, 2048, 12, 12),
            Self::Large => (24, 1536, 4096, 16, 16),
            Self::B2 => (30, 2560, 6912, 20, 5),
            Self::B8 => (32, 4096, 14_336, 32, 8),
        };
        DecoderSpec {
            intermediate,
            kv_heads,
            context: 4096,
            ..DecoderSpec::llama(hidden, layers, heads, 32_000)
        }
    }

    /// `125m`, `large`, `2b` or `8b`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::M125 => "125m",
            Self::Large => "large",
            Self::B2 => "2b",
            Self::B8 => "8b",
        }
    }
}

/// A model of random trits with an int8 head and an f16 embedding, with its size and generation time.
pub struct SyntheticModel {
    /// The model. It has no tokenizer, and its path is a description.
    pub model: Box<dyn Model>,
    /// Bytes of the linear layers in their storage encoding, before they were packed for the kernels.
    pub stored_bytes: u64,
    /// Seconds to generate, encode and pack the weights.
    pub load_seconds: f64,
}

impl SyntheticModel {
    /// Generates the model on a backend, for sequences of up to `positions`.
    pub(crate) fn load_on<B: Backend + 'static>(
        backend: B,
        size: Synthetic,
        (encoding, granularity): (Encoding, Granularity),
        positions: usize,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, LlmError> {
        let spec = size.spec();
        let spec = DecoderSpec { context: spec.context.max(positions), ..spec };
        let total = spec.weights().len();
        let mut weights = RandomWeights {
            spec: &spec,
            encoding,
            granularity,
            state: 1,
            stored: 0,
            done: 0,
            total,
            progress,
        };
        let activations = backend.activations().precision(granularity.group());
        let start = Instant::now();
        let decoder = Decoder::new(backend, spec.clone(), &mut weights)?;
        let (stored_bytes, load_seconds) = (weights.stored, start.elapsed().as_secs_f64());
        let architecture = format!("synthetic {}", size.name());
        let path = PathBuf::from(&architecture);
        let config =
            ModelConfig { architecture, family: Family::Llama, spec, special: SpecialIds::default() };
        let model = Box::new(LanguageModel::from_decoder(decoder, path, config, [activations].into()));
        Ok(Self { model, stored_bytes, load_seconds })
    }
}

struct RandomWeights<'a> {
    spec: &'a DecoderSpec,
    encoding: Encoding,
    granularity: Granularity,
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
}

impl DecoderWeights for RandomWeights<'_> {
    fn matrix(&mut self, name: WeightName) -> Result<Tensor, NnError> {
        let (rows, cols) = self.spec.shape(name);
        let bytes = self.bytes(rows * cols);
        self.count();
        // 1 / sqrt(cols) keeps the variance of the residual stream similar to that of a trained model.
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
                // 106 of the 256 byte values give a zero trit: 41 %, similar to trained models.
                let trits: Vec<i8> = bytes.iter().map(|&b| (b < 75) as i8 - (b >= 181) as i8).collect();
                // The sizes of a synthetic model do not overflow.
                let count = self.granularity.count(rows, cols).unwrap_or(0);
                // Equal scales of groups would be stored once: alternate between two.
                let scale = |i| half::f16::from_f32(if i % 2 == 0 { scale } else { 0.875 * scale });
                let scales = Scales::new(self.granularity, (0..count).map(scale).collect::<Vec<_>>(), None);
                let tensor = TritTensor::from_trits(rows, cols, &trits, self.encoding, scales)?;
                self.stored += tensor.bytes() as u64;
                Tensor::Ternary(tensor)
            }
        })
    }

    fn vector(&mut self, name: WeightName) -> Result<Vec<f32>, NnError> {
        self.count();
        Ok(vec![1.0; self.spec.shape(name).1])
    }
}
