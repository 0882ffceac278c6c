//! Whole models with random ternary weights: time per token including all overhead.

use anyhow::Result;
use std::time::Instant;
use trike_bench::{Contender, Launching, Limit, Model, ModelRun};
use trike_core::{DenseData, DenseTensor, Int8Tensor};
use trike_cube::{Cost, CubeDevice};
use trike_nn::{
    ActivationPrecision, CubeBackend, Decoder, DecoderSequence, DecoderSpec, DecoderWeights, KvPrecision,
    KvSpec, Logits, NnError, Step, Tensor, WeightName,
};
use trike_testkit::Rng;
use trike_trit::{Encoding, Granularity, ScaleValues, Scales, TritTensor};

use super::catalogue::TRIKE;
use super::entrant::{Absent, Entrant, Timed};
use super::run::Run;

/// Group size of the scales of the LM head.
const HEAD_GROUP: usize = 64;

/// Times decode and prefill, interleaved, by the host's clock, because each token needs a round trip to the host.
pub(super) fn time(run: &mut Run<'_>, model: &ModelRun) -> Result<()> {
    let decoder = decoder(run.device, model);
    let entrants: Vec<_> = match &decoder {
        Ok(decoder) => phases(run.device, decoder, model).map(Ok).into_iter().collect(),
        Err(e) => {
            let absent = |problem| Absent {
                problem: Some(problem),
                kernel: TRIKE.to_owned(),
                rival: false,
                error: anyhow::anyhow!("{e:#}"),
            };
            model.problems().map(|problem| Err(absent(problem))).into_iter().collect()
        }
    };
    run.time(entrants)
}

fn decoder(device: &CubeDevice, run: &ModelRun) -> Result<Decoder<CubeBackend>> {
    let spec = spec(&run.model);
    let mut weights = RandomWeights { spec: spec.clone(), rng: Rng::new(1) };
    let backend = CubeBackend::new(device.clone(), ActivationPrecision::Int8PerToken);
    Ok(Decoder::new(backend, spec, &mut weights)?)
}

/// Decode, then prefill: time per token, with its multiply-adds and bytes of weights.
fn phases<'a>(device: &CubeDevice, decoder: &'a Decoder<CubeBackend>, run: &ModelRun) -> [Entrant<'a>; 2] {
    let &ModelRun { model, prompt, generate } = run;
    let precision = if device.capabilities().f16 { KvPrecision::F16 } else { KvPrecision::F32 };
    let ids: Vec<u32> =
        (0..prompt.max(generate)).map(|i| (i * 7919 + 1) % model.vocab).map(|i| i as u32).collect();
    let cache = move |tokens| KvSpec::new(precision, tokens);
    let (one_by_one, at_once) = (ids.clone(), ids);
    let decode = move || -> Result<()> {
        let mut sequence = decoder.sequence(cache(generate))?;
        one_by_one[..generate]
            .iter()
            .try_for_each(|id| step(decoder, &mut sequence, std::slice::from_ref(id)))
    };
    let prefill = move || -> Result<()> {
        let mut sequence = decoder.sequence(cache(prompt))?;
        step(decoder, &mut sequence, &at_once[..prompt])
    };
    let bytes = decoder.weight_bytes() as u64;
    let head = (model.vocab * model.hidden) as u64;
    let costs = [
        Cost { macs: model.weights() + head, bytes },
        Cost { macs: model.weights(), bytes: bytes / prompt as u64 },
    ];
    let [decode, prefill] = [by_token(generate, decode), by_token(prompt, prefill)];
    let entrant = |problem, contender, cost, blueprint: &str| Entrant {
        problem,
        kernel: TRIKE.to_owned(),
        blueprint: blueprint.to_owned(),
        rival: false,
        cost,
        limits: &[Limit::Memory, Limit::Int8],
        timed: Timed { contender, launching: Launching::default() },
    };
    let [named, also] = run.problems();
    [entrant(named, decode, costs[0], "step of one token"), entrant(also, prefill, costs[1], "one step")]
}

/// Time per token of calls that process `tokens` tokens each, by the host's clock.
fn by_token<'a>(tokens: usize, call: impl Fn() -> Result<()> + 'a) -> Contender<'a> {
    Contender::by(move |calls| {
        let start = Instant::now();
        (0..calls).try_for_each(|_| call())?;
        Ok(start.elapsed() / tokens as u32)
    })
}

fn step(
    decoder: &Decoder<CubeBackend>,
    sequence: &mut DecoderSequence<CubeBackend>,
    ids: &[u32],
) -> Result<()> {
    let logits = decoder.forward(&mut [Step { sequence, ids }], Logits::Last)?;
    anyhow::ensure!(logits[0].iter().all(|x| x.is_finite()), "logits are not finite");
    Ok(())
}

fn spec(model: &Model) -> DecoderSpec {
    DecoderSpec {
        intermediate: model.intermediate,
        kv_heads: model.heads.kv_heads,
        head_dim: model.heads.head_dim,
        context: 4096,
        ..DecoderSpec::llama(model.hidden, model.layers, model.heads.heads, model.vocab)
    }
}

struct RandomWeights {
    spec: DecoderSpec,
    rng: Rng,
}

impl RandomWeights {}

impl DecoderWeights for RandomWeights {
    fn matrix(&mut self, name: WeightName) -> Result<Tensor, NnError> {
        let (rows, cols) = self.spec.shape(name);
        // Keeps the variance of the residual stream similar to a trained model's.
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
        Ok(vec![1.0; self.spec.shape(name).1])
    }
}
