//! Whole models of random trits: what a token costs when nothing is left out.

use anyhow::Result;
use std::time::Instant;
use trike_core::{DenseData, DenseTensor, Int8Tensor};
use trike_cube::{Cost, Device};
use trike_nn::{
    ActivationPrecision, Biases, CubeBackend, Decoder, DecoderSpec, DecoderWeights, GatedActivation,
    KvPrecision, KvSpec, Logits, NnError, RopePairing, RopeSpec, Sequence, Step, Tensor, WeightName,
};
use trike_testkit::Rng;
use trike_trit::{Encoding, Granularity, ScaleValues, Scales, TritTensor};

use super::catalogue::Model;
use super::timer::Sample;
use super::{Arithmetic, Record};

/// Columns that share a scale of the head.
const HEAD_GROUP: usize = 64;

/// Times decode and prefill by the host's clock, because a token is one round trip. `rounds` of each, after one that
/// compiles the kernels.
pub(super) fn model(device: &Device, model: &Model, rounds: usize, record: &mut Record<'_>) {
    let measured = measure(device, model, rounds);
    let kinds = model.problems();
    match measured {
        Ok(samples) => {
            for (problem, sample) in kinds.iter().zip(samples) {
                record.figure(problem, "trike", Arithmetic::Int8, Ok(sample));
            }
        }
        Err(e) => {
            for problem in &kinds {
                record.figure(problem, "trike", Arithmetic::Int8, Err(anyhow::anyhow!("{e:#}")));
            }
        }
    }
}

/// Decode, then prefill: the time of a token of each, with its multiply-adds (twice) and the bytes of the weights.
fn measure(device: &Device, model: &Model, rounds: usize) -> Result<[(Sample, Cost, String); 2]> {
    let spec = spec(model);
    let mut weights = RandomWeights { spec: spec.clone(), rng: Rng::new(1) };
    let backend = CubeBackend::new(device.clone(), ActivationPrecision::Int8PerToken);
    let decoder = Decoder::new(backend, spec, &mut weights)?;
    let precision = if device.capabilities().f16 { KvPrecision::F16 } else { KvPrecision::F32 };
    let ids: Vec<u32> = (0..model.prompt.max(model.generate))
        .map(|i| (i * 7919 + 1) % model.vocab)
        .map(|i| i as u32)
        .collect();
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..=rounds.max(1) {
        let mut sequence = decoder.sequence(KvSpec::new(precision, model.generate))?;
        let start = Instant::now();
        for id in &ids[..model.generate] {
            step(&decoder, &mut sequence, std::slice::from_ref(id))?;
        }
        let decode = start.elapsed().as_secs_f64() / model.generate as f64;
        let mut sequence = decoder.sequence(KvSpec::new(precision, model.prompt))?;
        let start = Instant::now();
        step(&decoder, &mut sequence, &ids[..model.prompt])?;
        let prefill = start.elapsed().as_secs_f64() / model.prompt as f64;
        // The first one compiles.
        if round > 0 {
            times[0].push(decode);
            times[1].push(prefill);
        }
    }
    let bytes = decoder.weight_bytes() as u64;
    let [decode, prefill] = times.map(Sample::of);
    let weights = model.weights();
    let head = (model.vocab * model.hidden) as u64;
    Ok([
        (decode, Cost { macs: weights + head, bytes }, "step of one token".to_owned()),
        (prefill, Cost { macs: weights, bytes: bytes / model.prompt as u64 }, "one step".to_owned()),
    ])
}

fn step(decoder: &Decoder<CubeBackend>, sequence: &mut Sequence<CubeBackend>, ids: &[u32]) -> Result<()> {
    let logits = decoder.forward(&mut [Step { sequence, ids }], Logits::Last)?;
    anyhow::ensure!(logits[0].iter().all(|x| x.is_finite()), "logits that are no numbers");
    Ok(())
}

impl Model {
    /// Weights of the blocks.
    pub(super) fn weights(&self) -> u64 {
        let width = self.hidden / self.heads * self.kv_heads;
        let attention = 2 * self.hidden * self.hidden + 2 * self.hidden * width;
        (self.layers * (attention + 3 * self.hidden * self.intermediate)) as u64
    }
}

fn spec(model: &Model) -> DecoderSpec {
    DecoderSpec {
        hidden: model.hidden,
        intermediate: model.intermediate,
        layers: model.layers,
        heads: model.heads,
        kv_heads: model.kv_heads,
        head_dim: model.hidden / model.heads,
        vocab: model.vocab,
        context: 4096,
        rms_eps: 1e-5,
        rope: RopeSpec::new(10_000.0, RopePairing::Halves),
        activation: GatedActivation::SiLu,
        tied_head: false,
        window: None,
        biases: Biases::default(),
        qk_norm: false,
        sub_norms: false,
    }
}

struct RandomWeights {
    spec: DecoderSpec,
    rng: Rng,
}

impl RandomWeights {
    fn shape(&self, name: WeightName) -> (usize, usize) {
        let s = &self.spec;
        match name {
            WeightName::Embedding | WeightName::Head => (s.vocab, s.hidden),
            WeightName::Query(_) => (s.query_width(), s.hidden),
            WeightName::Key(_) | WeightName::Value(_) => (s.kv_width(), s.hidden),
            WeightName::Output(_) => (s.hidden, s.query_width()),
            WeightName::Gate(_) | WeightName::Up(_) => (s.intermediate, s.hidden),
            WeightName::Down(_) => (s.hidden, s.intermediate),
            // Norms; these models have no biases.
            _ => (1, s.hidden),
        }
    }
}

impl DecoderWeights for RandomWeights {
    fn matrix(&mut self, name: WeightName) -> Result<Tensor, NnError> {
        let (rows, cols) = self.shape(name);
        // Keeps the variance of the residual stream where training would.
        let scale = 1.0 / (cols as f32).sqrt();
        Ok(match name {
            WeightName::Embedding => {
                let values = self.rng.normals(rows * cols).into_iter().map(half::f16::from_f32).collect();
                Tensor::Dense(DenseTensor::new(vec![rows, cols], DenseData::F16(values))?)
            }
            WeightName::Head => {
                let codes =
                    (0..rows * cols).map(|_| self.rng.below(255) as i8).map(|c| c.max(-127)).collect();
                let scales = vec![scale / 64.0; rows * cols.div_ceil(HEAD_GROUP)];
                Tensor::Int8(Int8Tensor::new(rows, cols, HEAD_GROUP, codes, ScaleValues::F32(scales))?)
            }
            _ => {
                let trits = self.rng.trits(rows * cols, 0.6);
                let scales = Scales::new(Granularity::Row, vec![half::f16::from_f32(scale); rows], None);
                Tensor::Ternary(TritTensor::from_trits(rows, cols, &trits, Encoding::TwoBit, scales)?)
            }
        })
    }

    fn vector(&mut self, name: WeightName) -> Result<Vec<f32>, NnError> {
        Ok(vec![1.0; self.shape(name).1])
    }
}
