//! The memory required by a quantization.

use trike_cpu::{MemoryLimit, free_memory};
use trike_llm::WeightSource;
use trike_nn::WeightName;

use crate::{
    CalibrateError, ModelQuantizationConfig, QuantizeMethod, Tuning, streams,
    weights::{block_weights, is_convertible},
};

/// Bytes of an f32.
const F32: u64 = 4;
/// Bytes per weight of a tuned block: the latent weight, Adam's moments, the current matrix, its gradient, and the dense weight
/// from which latent weights are initialized.
const TUNED: u64 = 20;
/// Bytes per scale tuned without codes: the scale and Adam's moments, for both the best and the current state.
const SCALE: u64 = 2 * 12;
/// Bytes for everything else: the program, the allocator, small tensors.
const REST: u64 = 64 << 20;

/// The sizes that determine the memory.
struct Sizes {
    tokens: u64,
    /// Tokens of a batch that passes through a block.
    batch: u64,
    hidden: u64,
    intermediate: u64,
    query: u64,
    vocab: u64,
    layers: u64,
    /// Weights of a block.
    block: u64,
}

impl Sizes {
    /// Sizes for a model with `weights` weights in all blocks, and for a text.
    fn new(input: &dyn WeightSource, weights: u64, tokens: u64, longest: u64) -> Self {
        let spec = &input.config().spec;
        Self {
            tokens,
            batch: longest.max(streams::TOKENS as u64).min(tokens),
            hidden: spec.hidden as u64,
            intermediate: spec.intermediate as u64,
            query: (spec.heads * spec.head_dim) as u64,
            vocab: spec.vocab as u64,
            layers: spec.layers as u64,
            block: weights / (spec.layers as u64).max(1),
        }
    }
}

/// Peak memory of [`quantize()`](crate::quantize()) on the host in bytes, for a calibration text of `tokens` tokens in sequences of
/// at most `longest`. Pages of mapped files do not count, because the system can evict them. If a device tunes, this is an upper
/// bound: it includes the activations and gradients, which are then in the device's memory.
///
/// # Errors
///
/// Errors of reading the sizes of weights.
pub fn estimate_memory(
    input: &dyn WeightSource,
    config: &ModelQuantizationConfig,
    tokens: usize,
    longest: usize,
) -> Result<u64, CalibrateError> {
    let all = block_weights(input)?;
    let [tokens, longest] = [tokens, longest].map(|n| n as u64);
    let sizes = Sizes::new(input, all, tokens, longest);
    let QuantizeMethod::Compensate(how) = config.method else {
        // A matrix, its rounded form, and intermediate buffers.
        let largest = largest(input, config)?.0;
        return Ok(4 * F32 * largest + REST);
    };
    let tuning = config.tuning.filter(|_| config.layout.depth == 1 || !is_free(config));
    let mut most = compensating(&sizes, input, config, tuning.is_some_and(|t| t.tunes_blocks()))?;
    if how.guided {
        most = most.max(weighing(&sizes));
    }
    if let Some(tuning) = tuning {
        most = most.max(tuning_memory(&sizes, config, &tuning, all, longest));
    }
    Ok(most + REST)
}

fn is_free(config: &ModelQuantizationConfig) -> bool {
    config.layout.coupling == trike_trit::Coupling::Free
}

/// Number of weights of the largest matrix that becomes ternary, and the maximum number of inputs of one.
fn largest(input: &dyn WeightSource, config: &ModelQuantizationConfig) -> Result<(u64, u64), CalibrateError> {
    let (mut weights, mut inputs) = (0, 0);
    for name in input.weights().into_iter().filter(|name: &WeightName| name.is_block_matrix()) {
        if is_convertible(input, config, name)? {
            let info = input.info(name)?;
            weights = weights.max(info.elements());
            inputs = inputs.max(info.shape.last().copied().unwrap_or(0) as u64);
        }
    }
    Ok((weights, inputs))
}

/// During compensation: the residual streams, both blocks, the activations of a batch, and the solver of the widest layer.
fn compensating(
    sizes: &Sizes,
    input: &dyn WeightSource,
    config: &ModelQuantizationConfig,
    tunes: bool,
) -> Result<u64, CalibrateError> {
    let (weights, inputs) = largest(input, config)?;
    let Sizes { tokens, batch, hidden, intermediate, query, block, .. } = *sizes;
    let streams = (2 + u64::from(tunes)) * F32 * hidden * tokens;
    let activations = F32 * batch * (3 * intermediate + 4 * hidden + 3 * query);
    // The Hessian, the cross product, the factor in f64, and its inverse.
    let squares = (20 + if config.input_rotation.is_some() { 4 } else { 0 }) * inputs * inputs;
    // The weights, their targets, errors, codes and trits.
    let layer = 6 * F32 * weights;
    Ok(streams + 2 * F32 * block + activations.max(squares + layer))
}

/// During the weighting of tokens: two residual streams, a block as loaded and in f32, its tape, the inputs of all blocks for a
/// batch, the head and its logits.
fn weighing(sizes: &Sizes) -> u64 {
    let Sizes { tokens, batch, hidden, intermediate, query, vocab, layers, block } = *sizes;
    let tape = 2 * F32 * batch * (6 * hidden + 4 * query + 5 * intermediate);
    let inputs = F32 * layers * batch * hidden;
    2 * F32 * hidden * tokens + 2 * F32 * block + tape + inputs + F32 * vocab * (hidden + 2 * batch)
}

/// Tokens of a step, and the bytes of its tape for a block: activations kept by the forward pass, and gradients of the backward
/// pass.
fn step_and_tape(sizes: &Sizes, tuning: &Tuning, longest: u64) -> (u64, u64) {
    let Sizes { tokens, hidden, intermediate, query, .. } = *sizes;
    let step = (tuning.batch_tokens as u64).max(longest).min(tokens);
    (step, 2 * F32 * step * (6 * hidden + 4 * query + 5 * intermediate))
}

/// During the tuning of a block, and of the whole model.
fn tuning_memory(
    sizes: &Sizes,
    config: &ModelQuantizationConfig,
    tuning: &Tuning,
    all: u64,
    longest: u64,
) -> u64 {
    let Sizes { tokens, hidden, vocab, layers, block, .. } = *sizes;
    let streams = 2 * F32 * hidden * tokens;
    let (step, tape) = step_and_tape(sizes, tuning, longest);
    // Two bits per trit.
    let trits = |weights: u64| weights * config.layout.depth as u64 / 4;
    let of_block = streams + TUNED * block + trits(block) + tape;
    if !tuning.tunes_model() {
        return of_block;
    }
    let head = F32 * vocab * (hidden + 3 * step);
    let whole = match all > tuning.max_weights {
        false => TUNED * all + trits(all) + layers * tape,
        true => {
            let groups = all / config.layout.granularity.group_len(sizes.hidden as usize).max(1) as u64;
            SCALE * groups + 3 * F32 * block + trits(block) + tape + F32 * layers * step * hidden
        }
    };
    of_block.max(streams + head + whole)
}

/// The same on the device that tunes: the matrices of the blocks that are tuned at once and their gradients, the head, and the
/// activations, gradients and logits of a step. Fragmentation in the pools of the runtime is not counted.
#[cfg(feature = "gpu")]
pub(crate) fn of_device(
    input: &dyn WeightSource,
    tuning: &Tuning,
    tokens: usize,
    longest: usize,
) -> Result<u64, CalibrateError> {
    let all = block_weights(input)?;
    let [tokens, longest] = [tokens, longest].map(|n| n as u64);
    let sizes = Sizes::new(input, all, tokens, longest);
    let Sizes { hidden, vocab, layers, block, .. } = sizes;
    let (step, tape) = step_and_tape(&sizes, tuning, longest);
    let of_block = 2 * F32 * block + tape;
    if !tuning.tunes_model() && tuning.recover == 0.0 {
        return Ok(of_block);
    }
    let head = F32 * vocab * (hidden + 3 * step);
    let whole = match all > tuning.max_weights {
        // The weights of the teacher of a recovery stay on the device.
        false => (if tuning.recover > 0.0 { 3 } else { 2 }) * F32 * all + layers * tape,
        true => {
            // With fewer than 16 sequences all of them are held out, otherwise one in 16.
            let held = tokens.min((tokens / 16).max(16 * longest));
            of_block + F32 * hidden * (layers * step + held)
        }
    };
    Ok(of_block.max(head + whole))
}

/// Returns an error if the memory available on the device that tunes, if known, is too small.
#[cfg(feature = "gpu")]
pub(crate) fn check_device(
    input: &dyn WeightSource,
    tuning: Option<&Tuning>,
    ids: &[Vec<u32>],
    available: Option<u64>,
) -> Result<(), CalibrateError> {
    let (Some(tuning), Some(free)) = (tuning, available) else { return Ok(()) };
    let longest = ids.iter().map(Vec::len).max().unwrap_or(0);
    let needed = of_device(input, tuning, ids.iter().map(Vec::len).sum(), longest)?;
    if needed > free { Err(CalibrateError::DeviceMemory { needed, free }) } else { Ok(()) }
}

/// Returns an error if the free memory is too small.
pub(crate) fn check(
    input: &dyn WeightSource,
    config: &ModelQuantizationConfig,
    ids: &[Vec<u32>],
) -> Result<(), CalibrateError> {
    let longest = ids.iter().map(Vec::len).max().unwrap_or(0);
    let needed = estimate_memory(input, config, ids.iter().map(Vec::len).sum(), longest)?;
    refuse(needed, &free_memory())
}

/// The same for the sensitivities of a plan, whose texts have these tokens, with `groups` group sizes.
pub(crate) fn check_plan(
    input: &dyn WeightSource,
    config: &ModelQuantizationConfig,
    texts: [&[Vec<u32>]; 2],
    groups: usize,
) -> Result<(), CalibrateError> {
    let lengths = || texts.into_iter().flatten().map(|ids| ids.len() as u64);
    let sizes = Sizes::new(input, block_weights(input)?, lengths().sum(), lengths().max().unwrap_or(0));
    let inputs = largest(input, config)?.1;
    // The statistics of the fitted and the held-out text; a Hessian and its factor for each group size.
    let squares = (2 * F32 + 2 * F32 * groups as u64) * inputs * inputs;
    let needed = weighing(&sizes).max(compensating(&sizes, input, config, false)? + squares);
    refuse(needed + REST, &free_memory())
}

fn refuse(needed: u64, free: &[(MemoryLimit, u64)]) -> Result<(), CalibrateError> {
    match free.iter().find(|(_, free)| needed > *free) {
        Some(&(limit, free)) => Err(CalibrateError::Memory { needed, free, limit: limit.name() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused() {
        let free = [(MemoryLimit::Machine, 100), (MemoryLimit::Group, 50)];
        assert!(refuse(50, &free).is_ok() && refuse(1 << 60, &[]).is_ok());
        let error = refuse(51, &free).unwrap_err().to_string();
        assert!(error.contains("51 bytes") && error.contains("its control group"), "{error}");
    }
}
