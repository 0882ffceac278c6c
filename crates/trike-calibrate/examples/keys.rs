//! Attention recall of key selection: the sum of the exact softmax weights of the positions selected by sign codes.
//!
//! `cargo run --release -p trike-calibrate --example keys -- MODEL TEXT [TOKENIZER|- [SEQUENCES [PARTS]]]` runs up to SEQUENCES (8)
//! windows of the model's context and selects one of PARTS (8) positions, including attention sinks and recent ones, for every
//! eighth token of the second half of a window. For comparison it prints the recall of the optimal selection (the largest weights
//! summed over the heads that share keys), and of the same number of first and last positions alone. `-` is the model's own
//! tokenizer.
#![expect(clippy::print_stdout, reason = "the example prints its result")]

use std::error::Error;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;

use trike_core::{Eviction, KeySelector, PromptKeys, SelectedKeys};
use trike_cpu::{AttentionSpec, Cpu, CpuOps, KeyIndex, KeyScratch, KeySelection, KvData, KvView};
use trike_llm::{ModelFile, Split, sequences};
use trike_model::Mixer;
use trike_nn::{
    ActivationPrecision, BackendCaches, BackendOps, BackendTransfers, BackendWeights, BlockContext,
    CacheSpec, CpuBackend, DecoderBlock, DecoderWeights, HookPoint, KvPrecision, NnError, StepInputs, Tensor,
    WeightName,
};

/// Stride of the measured tokens.
const STRIDE: usize = 8;
/// Default of PARTS.
const EIGHTH: NonZeroUsize = NonZeroUsize::new(8).unwrap();

struct Weights<'a>(&'a ModelFile);

impl DecoderWeights for Weights<'_> {
    fn matrix(&mut self, name: WeightName) -> Result<Tensor, NnError> {
        self.0.load(name).map_err(|e| NnError::Load { name: name.to_string(), source: Box::new(e) })
    }

    fn vector(&mut self, name: WeightName) -> Result<Vec<f32>, NnError> {
        self.matrix(name).map(Tensor::into_f32)
    }
}

/// Sums of recalls: of the optimal positions, of the sign codes, and of the first and last positions.
#[derive(Clone, Copy, Default)]
struct Shares {
    sums: [f64; 3],
    count: f64,
}

/// The keys and queries of a layer, `tokens x heads x head_dim`.
struct Layer<'a> {
    spec: AttentionSpec,
    q: &'a [f32],
    k: &'a [f32],
}

impl Layer<'_> {
    /// The exact softmax weights of a query head.
    fn weights(&self, position: usize, head: usize) -> Vec<f64> {
        let AttentionSpec { heads, kv_heads, head_dim: d, scale, .. } = self.spec;
        let q = &self.q[(position * heads + head) * d..][..d];
        let kv_head = head / (heads / kv_heads);
        let score = |p: usize| {
            let k = &self.k[(p * kv_heads + kv_head) * d..][..d];
            q.iter().zip(k).map(|(q, k)| f64::from(q * k)).sum::<f64>() * f64::from(scale)
        };
        let scores: Vec<f64> = (0..=position).map(score).collect();
        let largest = scores.iter().fold(f64::NEG_INFINITY, |most, &score| most.max(score));
        let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
        let total: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / total).collect()
    }

    fn measure(&self, cpu: &Cpu, parts: NonZeroUsize, shares: &mut Shares) -> Result<(), Box<dyn Error>> {
        let AttentionSpec { heads, kv_heads, head_dim: d, .. } = self.spec;
        let tokens = self.q.len() / (heads * d);
        // The cache is ordered by head.
        let mut ring = vec![0.0; self.k.len()];
        for (row, key) in self.k.chunks_exact(d).enumerate() {
            ring[(row % kv_heads * tokens + row / kv_heads) * d..][..d].copy_from_slice(key);
        }
        let mut index = KeyIndex::new(kv_heads, d, tokens)?;
        let mut scratch = KeyScratch::default();
        for position in (tokens / 2..tokens).step_by(STRIDE) {
            let budget = (position + 1) / parts;
            // The largest selector within the budget.
            let selector = (1..=budget).rev().find_map(|top_k| {
                let selector = KeySelector::signs(top_k).ok()?;
                selector
                    .select(position + 1)
                    .filter(|selected| selected.total() <= budget)
                    .map(|s| (selector, s))
            });
            let Some((selector, SelectedKeys { first, .. })) = selector else { continue };
            let kv = KvView { k: KvData::F32(&ring), v: KvData::F32(&ring), capacity: tokens };
            let selection = KeySelection { selector, index: &mut index, scratch: &mut scratch };
            let q = &self.q[position * heads * d..][..heads * d];
            let selected = cpu.select_keys(&self.spec, q, position, kv, selection)?.unwrap_or_default();
            for (kv_head, selected) in selected.iter().enumerate() {
                let share = heads / kv_heads;
                let of_heads: Vec<Vec<f64>> = (kv_head * share..(kv_head + 1) * share)
                    .map(|head| self.weights(position, head))
                    .collect();
                let sum = |p: usize| of_heads.iter().map(|weights| weights[p]).sum::<f64>() / share as f64;
                let mut all: Vec<f64> = (0..=position).map(sum).collect();
                shares.sums[1] += selected.iter().map(|&p| all[p]).sum::<f64>();
                let last = position + 1 - (selected.len() - first);
                shares.sums[2] += all[..first].iter().chain(&all[last..]).sum::<f64>();
                all.sort_by(|a, b| b.total_cmp(a));
                shares.sums[0] += all[..selected.len()].iter().sum::<f64>();
                shares.count += 1.0;
            }
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, text, ..] = &arguments[..] else {
        return Err("usage: keys MODEL TEXT [TOKENIZER|- [SEQUENCES [PARTS]]]".into());
    };
    let limit = arguments.get(3).map_or(Ok(8), |text| text.parse())?;
    let parts: NonZeroUsize = arguments.get(4).map_or(Ok(EIGHTH), |text| text.parse())?;
    if parts.get() < KeySelector::LEAST_VISIBLE {
        return Err(format!("PARTS: expected at least {}, got {parts}", KeySelector::LEAST_VISIBLE).into());
    }
    let file = ModelFile::open(model)?;
    let spec = file.config().spec.clone();
    let tokenizer = file.tokenizer(arguments.get(2).filter(|path| *path != "-").map(std::path::Path::new))?;
    let text = std::fs::read_to_string(text)?;
    let all = sequences(&tokenizer, &text, Split::Window, spec.context, Some(limit))?;
    let backend = CpuBackend::new(Cpu::new(0)?, ActivationPrecision::F32);
    let rope = backend.load_rope(&spec.rope, spec.head_dim, spec.context)?;
    let context = BlockContext { backend: &backend, spec: &spec, rope: &rope };
    let table = backend.load_matrix(file.load(WeightName::Embedding)?)?;
    let mut streams = Vec::new();
    for ids in &all {
        let mut inputs = StepInputs::default();
        inputs.push(ids, 0, None)?;
        streams.push((backend.embed(&table, &inputs, spec.embedding_factor())?, inputs));
    }
    println!("{} windows of up to {} tokens, 1/{parts} of the positions", all.len(), spec.context);
    println!("layer  best positions  sign codes  first and last");
    for layer in 0..spec.layers {
        let Mixer::Attention(attention) = spec.layer(layer).mixer;
        let block = DecoderBlock::load(&backend, &spec, layer, &mut Weights(&file))?;
        let load = |name| Ok::<_, Box<dyn Error>>(backend.load_matrix(file.load(name)?)?);
        let (query, key) = (load(WeightName::Query(layer))?, load(WeightName::Key(layer))?);
        let vector = |is_there: bool, name| -> Result<Option<Vec<f32>>, Box<dyn Error>> {
            Ok(if is_there { Some(file.load(name)?.into_f32()) } else { None })
        };
        let biases = [
            vector(spec.biases.qkv, WeightName::QueryBias(layer))?,
            vector(spec.biases.qkv, WeightName::KeyBias(layer))?,
        ];
        let norms = [
            vector(spec.qk_norm, WeightName::QueryNorm(layer))?,
            vector(spec.qk_norm, WeightName::KeyNorm(layer))?,
        ];
        let mut shares = Shares::default();
        for (x, inputs) in &mut streams {
            let mut cache = backend.new_cache(&CacheSpec {
                kv_heads: spec.kv_heads,
                head_dim: spec.head_dim,
                capacity: inputs.rows(),
                precision: KvPrecision::F32,
                keys: KeySelector::All,
                prompt_keys: PromptKeys::All,
                eviction: Eviction::Never,
            })?;
            let mut read = None;
            let mut hook = |point, input: &_, _: &_| {
                if point == HookPoint::Attention {
                    read = Some(backend.linear(input, &[&query, &key])?);
                }
                Ok(ControlFlow::Continue(()))
            };
            let _ = block.forward_hooked(context, x, inputs, &mut [&mut cache], &mut hook)?;
            let mut projected = read.ok_or("the block has attention")?;
            for ((x, bias), norm) in projected.iter_mut().zip(&biases).zip(&norms) {
                if let Some(bias) = bias {
                    backend.add_bias(x, bias)?;
                }
                if let Some(norm) = norm {
                    *x = backend.head_norm(x, norm, spec.rms_eps)?;
                }
                if attention.rope {
                    backend.rope(x, &rope, inputs)?;
                }
            }
            let (q, k) = (backend.to_host(&projected[0])?, backend.to_host(&projected[1])?);
            Layer { spec: spec.attention(attention), q: &q, k: &k }.measure(
                backend.cpu(),
                parts,
                &mut shares,
            )?;
        }
        let [best, codes, ends] = shares.sums.map(|sum| sum / shares.count);
        println!("{layer:5}  {best:14.4}  {codes:10.4}  {ends:14.4}");
    }
    Ok(())
}
