//! The reference backend, on Candle tensors: the test oracle of whole decoders.
//!
//! [`CandleBackend`] implements [`trike_nn::Backend`] and its supertraits. Every operation is written as its formula, in f32 on the
//! CPU and without fused kernels: slow by design, and sharing only the ternary tensor with the host kernels. It is an unpublished
//! package of its own, so that it is in no user's build and the tests of two crates share it.
#![forbid(unsafe_code)]

use std::error::Error;

use candle_core::{D, DType, Device, IndexOp, Tensor};
use trike_core::{
    ActivationPolicy, ActivationPrecision, AttentionSpec, GatedActivation, KvPrecision, RopePairing,
    RopeSpec, Tensor as Weight,
};
use trike_nn::{
    Backend, BackendBase, BackendCaches, BackendOps, BackendPlacement, BackendSteps, BackendTransfers,
    BackendWeights, CacheCapabilities, CacheSpec, NnError, StepInputs, check,
};
use trike_trit::{GroupSize, Hadamard};

/// Any error of an operation.
type Failure = Box<dyn Error + Send + Sync>;

/// Runs a decoder on Candle's CPU tensors, as the reference for other backends.
#[derive(Clone, Debug)]
pub struct CandleBackend {
    activations: ActivationPolicy,
}

impl CandleBackend {
    /// A backend whose ternary layers use activations in this precision, or in the precision that the policy chooses per layer.
    /// Int8 activations are rounded and dequantized before a float product.
    pub fn new(activations: impl Into<ActivationPolicy>) -> Self {
        Self { activations: activations.into() }
    }
}

/// A resident matrix of the reference backend, dequantized to f32.
#[derive(Clone, Debug)]
pub struct CandleMatrix {
    /// The weights; rotated ternary weights stay rotated.
    weight: Tensor,
    ternary: bool,
    rotation: Option<Hadamard>,
    /// Columns per scale of ternary weights.
    group: Option<GroupSize>,
}

/// Rotary frequencies; cosines and sines are computed in each step.
#[derive(Clone, Debug)]
pub struct CandleRope {
    frequencies: Tensor,
    head_dim: usize,
    pairing: RopePairing,
}

/// Keys and values of the positions so far, `kv_heads x positions x head_dim`.
#[derive(Clone, Debug)]
pub struct CandleCache {
    k: Tensor,
    v: Tensor,
    spec: CacheSpec,
}

/// The error for a cache in a precision that the reference does not store.
fn unsupported(precision: KvPrecision) -> NnError {
    let rule = "must be f32 or f16 with Candle";
    NnError::Spec { field: "precision of a KV cache", rule, got: precision.name().to_owned() }
}

impl BackendBase for CandleBackend {
    type Tensor = Tensor;
    type Matrix = CandleMatrix;
    type Vector = Tensor;
    type Rope = CandleRope;
    type Cache = CandleCache;
    type Inputs = StepInputs;
    type Recorded = ();

    fn name(&self) -> String {
        "candle".to_owned()
    }
}

impl BackendWeights for CandleBackend {
    fn load_matrix(&self, weight: Weight) -> Result<CandleMatrix, NnError> {
        computed(|| {
            let shape = (weight.rows(), weight.cols());
            let (weight, ternary, rotation, group) = match weight {
                Weight::Ternary(tensor) => {
                    let (rotation, group) = (tensor.rotation(), tensor.scales().granularity().group());
                    (Weight::Ternary(tensor.with_rotation(None)?), true, rotation, group)
                }
                other => (other, false, None, None),
            };
            let weight = Tensor::from_vec(weight.into_f32(), shape, &Device::Cpu)?;
            Ok(CandleMatrix { weight, ternary, rotation, group })
        })
    }

    fn load_vector(&self, values: Vec<f32>) -> Result<Tensor, NnError> {
        computed(|| {
            let len = values.len();
            Ok(Tensor::from_vec(values, len, &Device::Cpu)?)
        })
    }

    fn load_rope(&self, spec: &RopeSpec, head_dim: usize, _context: usize) -> Result<CandleRope, NnError> {
        computed(|| {
            let pairs = head_dim / 2;
            let frequencies = Tensor::from_vec(spec.frequencies(head_dim), (1, pairs), &Device::Cpu)?;
            Ok(CandleRope { frequencies, head_dim, pairing: spec.pairing })
        })
    }

    fn matrix_bytes(&self, matrix: &CandleMatrix) -> usize {
        4 * matrix.weight.elem_count()
    }
}

impl BackendCaches for CandleBackend {
    fn new_cache(&self, spec: &CacheSpec) -> Result<CandleCache, NnError> {
        let dtype = match spec.precision {
            KvPrecision::F32 => DType::F32,
            KvPrecision::F16 => DType::F16,
            KvPrecision::Int8 | KvPrecision::Int4 | KvPrecision::Int8Int4 => {
                return Err(unsupported(spec.precision));
            }
        };
        computed(|| {
            let empty = Tensor::zeros((spec.kv_heads, 0, spec.head_dim), dtype, &Device::Cpu)?;
            Ok(CandleCache { k: empty.clone(), v: empty, spec: *spec })
        })
    }
}

impl BackendTransfers for CandleBackend {
    fn upload(&self, values: &[f32], width: usize) -> Result<Tensor, NnError> {
        computed(|| {
            check::upload(values.len(), width)?;
            Ok(Tensor::from_slice(values, (values.len() / width, width), &Device::Cpu)?)
        })
    }

    fn to_host(&self, x: &Tensor) -> Result<Vec<f32>, NnError> {
        computed(|| Ok(x.flatten_all()?.to_vec1()?))
    }

    fn inputs(&self, inputs: StepInputs) -> Result<StepInputs, NnError> {
        Ok(inputs)
    }
}

impl BackendOps for CandleBackend {
    fn embed(&self, table: &CandleMatrix, inputs: &StepInputs, factor: f32) -> Result<Tensor, NnError> {
        computed(|| {
            check::embed(inputs, table.weight.dim(0)?)?;
            let rows = table.weight.index_select(&Tensor::new(inputs.ids(), &Device::Cpu)?, 0)?;
            Ok((rotated(&rows, table.rotation)? * f64::from(factor))?)
        })
    }

    fn rms_norm(&self, x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor, NnError> {
        computed(|| {
            check::norm(x.dim(D::Minus1)?, weight.dim(0)?)?;
            let mean_square = (x.sqr()?.mean_keepdim(D::Minus1)? + f64::from(eps))?;
            Ok(x.broadcast_div(&mean_square.sqrt()?)?.broadcast_mul(weight)?)
        })
    }

    fn head_norm(&self, x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor, NnError> {
        computed(|| {
            let ((tokens, width), head) = (x.dims2()?, weight.dim(0)?);
            check::head_norm(width, head)?;
            let heads = x.reshape((tokens, width / head, head))?;
            Ok(self.rms_norm(&heads, weight, eps)?.reshape((tokens, width))?)
        })
    }

    fn add_bias(&self, x: &mut Tensor, bias: &Tensor) -> Result<(), NnError> {
        computed(|| {
            check::bias(x.dim(1)?, bias.dim(0)?)?;
            *x = x.broadcast_add(bias)?;
            Ok(())
        })
    }

    fn linear(&self, x: &Tensor, weights: &[&CandleMatrix]) -> Result<Vec<Tensor>, NnError> {
        computed(|| {
            weights
                .iter()
                .map(|m| {
                    check::linear(m.weight.dim(1)?, x.dim(1)?)?;
                    let x = match m.ternary {
                        true => {
                            let precision = self.activations.precision(m.group);
                            round_activations(&rotated(x, m.rotation)?, precision)?
                        }
                        false => x.clone(),
                    };
                    Ok(x.matmul(&m.weight.t()?)?)
                })
                .collect()
        })
    }

    fn rope(&self, x: &mut Tensor, rope: &CandleRope, inputs: &StepInputs) -> Result<(), NnError> {
        computed(|| {
            let (tokens, width) = x.dims2()?;
            check::rope((tokens, width), rope.head_dim, inputs)?;
            let heads = width / rope.head_dim;
            let pairs = rope.head_dim / 2;
            let positions: Vec<f32> = inputs.positions().iter().map(|&p| p as f32).collect();
            let positions = Tensor::from_vec(positions, (tokens, 1), &Device::Cpu)?;
            let angles = positions.matmul(&rope.frequencies)?;
            // Pairs are along the last axis (adjacent) or the one before it (halves).
            let (shape, axis, angles) = match rope.pairing {
                RopePairing::Adjacent => {
                    ([tokens, heads, pairs, 2], 3, angles.reshape((tokens, 1, pairs, 1))?)
                }
                RopePairing::Halves => ([tokens, heads, 2, pairs], 2, angles.reshape((tokens, 1, 1, pairs))?),
            };
            let (cos, sin) = (angles.cos()?, angles.sin()?);
            let paired = x.reshape(&shape)?;
            let (a, b) = (paired.narrow(axis, 0, 1)?, paired.narrow(axis, 1, 1)?);
            let first = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
            let second = (a.broadcast_mul(&sin)? + b.broadcast_mul(&cos)?)?;
            *x = Tensor::cat(&[first, second], axis)?.reshape((tokens, width))?;
            Ok(())
        })
    }

    fn attention(
        &self,
        spec: &AttentionSpec,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        inputs: &StepInputs,
        caches: &mut [&mut CandleCache],
    ) -> Result<Tensor, NnError> {
        computed(|| {
            let shapes = [q.dims2()?, k.dims2()?, v.dims2()?];
            check::attention(spec, shapes, inputs, caches.iter().map(|cache| &cache.spec))?;
            let mut outs = Vec::with_capacity(caches.len());
            for (segment, cache) in inputs.segments().iter().zip(caches) {
                let tokens = segment.rows.len();
                let split = |x: &Tensor, heads: usize| {
                    x.i(segment.rows.clone())?
                        .reshape((tokens, heads, spec.head_dim))?
                        .transpose(0, 1)?
                        .contiguous()
                };
                append(&mut cache.k, &split(k, spec.kv_heads)?, segment.first_position)?;
                append(&mut cache.v, &split(v, spec.kv_heads)?, segment.first_position)?;
                let seen = cache.k.dim(1)?;
                let shared = spec.heads / spec.kv_heads;
                let expand = |x: &Tensor| {
                    let x = x.to_dtype(DType::F32)?.unsqueeze(1)?;
                    let x = x.expand((spec.kv_heads, shared, seen, spec.head_dim))?.contiguous()?;
                    x.reshape((spec.heads, seen, spec.head_dim))
                };
                let scores =
                    split(q, spec.heads)?.matmul(&expand(&cache.k)?.transpose(1, 2)?.contiguous()?)?;
                let scores = (scores * f64::from(spec.scale))?;
                let mask = mask(tokens, seen, segment.first_position, spec.within(segment.window).window)?;
                let weights = candle_nn::ops::softmax(&scores.broadcast_add(&mask)?, D::Minus1)?;
                let out = weights.matmul(&expand(&cache.v)?)?;
                outs.push(out.transpose(0, 1)?.reshape((tokens, spec.heads * spec.head_dim))?);
            }
            Ok(Tensor::cat(&outs, 0)?)
        })
    }

    fn gated(&self, gate: &Tensor, up: &Tensor, activation: GatedActivation) -> Result<Tensor, NnError> {
        computed(|| {
            check::gated(gate.dims2()?, up.dims2()?)?;
            let gate = match activation {
                GatedActivation::SiLu => gate.silu()?,
                GatedActivation::SquaredReLu => gate.relu()?.sqr()?,
            };
            Ok((gate * up)?)
        })
    }

    fn add(&self, x: &mut Tensor, y: &Tensor) -> Result<(), NnError> {
        computed(|| {
            check::add(x.dims2()?, y.dims2()?)?;
            *x = (&*x + y)?;
            Ok(())
        })
    }

    fn select_rows(&self, x: &Tensor, rows: &[usize]) -> Result<Tensor, NnError> {
        computed(|| {
            check::select_rows(x.dim(0)?, rows)?;
            let rows: Vec<u32> = rows.iter().map(|&r| r as u32).collect();
            Ok(x.index_select(&Tensor::new(rows, &Device::Cpu)?, 0)?)
        })
    }
}

impl BackendPlacement for CandleBackend {}

impl BackendSteps for CandleBackend {}

impl Backend for CandleBackend {
    fn activations(&self) -> ActivationPolicy {
        self.activations
    }

    fn capabilities(&self) -> CacheCapabilities {
        CacheCapabilities { kv: &[KvPrecision::F32, KvPrecision::F16], ..CacheCapabilities::default() }
    }
}

/// Converts the error of an operation to the error type of the trait.
fn computed<T>(run: impl FnOnce() -> Result<T, Failure>) -> Result<T, NnError> {
    run().map_err(|error| match error.downcast::<NnError>() {
        Ok(error) => *error,
        Err(other) => NnError::Backend(other),
    })
}

/// Appends new keys or values after the first `position` ones, dropping those left by a truncated sequence.
fn append(cached: &mut Tensor, new: &Tensor, position: usize) -> Result<(), Failure> {
    let held = cached.dim(1)?;
    if held < position {
        return Err(NnError::Shape { what: "cached positions", expected: position, got: held }.into());
    }
    let old = cached.narrow(1, 0, position)?;
    *cached = Tensor::cat(&[&old, &new.to_dtype(cached.dtype())?], 1)?;
    Ok(())
}

/// Attention mask: 0 if query `i` at position `first + i` attends to position `j`, else minus infinity.
fn mask(tokens: usize, seen: usize, first: usize, window: Option<usize>) -> Result<Tensor, Failure> {
    let mask: Vec<f32> = (0..tokens)
        .flat_map(|i| {
            let position = first + i;
            let oldest = window.map_or(0, |w| (position + 1).saturating_sub(w));
            (0..seen).map(move |j| if (oldest..=position).contains(&j) { 0.0 } else { f32::NEG_INFINITY })
        })
        .collect();
    Ok(Tensor::from_vec(mask, (1, tokens, seen), &Device::Cpu)?)
}

/// `H x` for each row, or the rows unchanged without a rotation: `H[i][j] = (-1)^popcount(i & j) / sqrt(block)`.
fn rotated(x: &Tensor, rotation: Option<Hadamard>) -> Result<Tensor, Failure> {
    let Some(block) = rotation.map(Hadamard::block) else { return Ok(x.clone()) };
    let sign = |k: usize| if ((k / block) & (k % block)).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
    let signs: Vec<f32> = (0..block * block).map(sign).collect();
    let matrix = (Tensor::from_vec(signs, (block, block), &Device::Cpu)? / (block as f64).sqrt())?;
    let (tokens, width) = x.dims2()?;
    Ok(x.reshape((tokens * width / block, block))?.matmul(&matrix)?.reshape((tokens, width))?)
}

/// Activations rounded as for an integer layer, in f32.
fn round_activations(x: &Tensor, precision: ActivationPrecision) -> Result<Tensor, Failure> {
    let (tokens, width) = x.dims2()?;
    let group = match precision {
        ActivationPrecision::F32 => return Ok(x.clone()),
        ActivationPrecision::Int16 => return round_to_two_bytes(x),
        ActivationPrecision::Int8PerToken => width,
        ActivationPrecision::Int8PerGroup(size) => size.get(),
    };
    let mut values: Vec<f32> = x.flatten_all()?.to_vec1()?;
    for token in values.chunks_mut(width) {
        for group in token.chunks_mut(group) {
            let largest = group.iter().fold(0f32, |m, v| m.max(v.abs()));
            let scale = 127.0 / largest.max(1e-5);
            for v in group {
                *v = (*v * scale).round_ties_even().clamp(-128.0, 127.0) / scale;
            }
        }
    }
    Ok(Tensor::from_vec(values, (tokens, width), &Device::Cpu)?)
}

/// Rounds each token to multiples of `2^(e - 13)`, where `2^e` is the largest power of two not above its absolute maximum.
fn round_to_two_bytes(x: &Tensor) -> Result<Tensor, Failure> {
    let (tokens, width) = x.dims2()?;
    let mut values: Vec<f32> = x.flatten_all()?.to_vec1()?;
    for token in values.chunks_mut(width) {
        let largest = token.iter().fold(0f32, |m, v| m.max(v.abs()));
        if largest > 0.0 {
            let step = 2f32.powi((largest.log2().floor() as i32).max(-107) - 13);
            token.iter_mut().for_each(|v| *v = (*v / step).round_ties_even() * step);
        }
    }
    Ok(Tensor::from_vec(values, (tokens, width), &Device::Cpu)?)
}
