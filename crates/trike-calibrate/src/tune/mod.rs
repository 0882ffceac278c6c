//! Tuning: codes and scales are learned, first against what each dense block puts out, then against what the dense model predicts.
//!
//! Compensation treats one layer after the other and its error as quadratic. What is left is that layers of a block could make up for
//! each other, and that not all of an error matters to what is predicted. Both need gradients, which pass the rounding by the
//! straight-through estimator to a latent weight behind each code ([`trike_quant::Latent`]). Tuning a block against the outputs of
//! the dense one is what OmniQuant (Shao et al., 2308.13137) and EfficientQAT (Chen et al., 2407.11062) do; tuning the whole model
//! against the probabilities of the dense one is distillation, as in PV-Tuning (Malinovskii et al., 2405.14852). Embeddings, norms,
//! biases and the head stay as they are.

mod block;
mod learner;
#[cfg(test)]
mod tests;
mod text;
mod whole;

use trike_cpu::{CpuError, RopeTable, grad::BlockShape};
use trike_nn::DecoderSpec;

pub(crate) use block::block;
pub(crate) use whole::{Head, whole};

/// The block of a model as something to be differentiated, for sequences of at most `longest` tokens.
fn shape(spec: &DecoderSpec, longest: usize) -> Result<BlockShape, CpuError> {
    let rope = RopeTable::from_frequencies(spec.rope.frequencies(spec.head_dim))?;
    Ok(BlockShape {
        hidden: spec.hidden,
        intermediate: spec.intermediate,
        attention: spec.attention(),
        rope: rope.precompute(longest as u32),
        pairing: spec.rope.pairing,
        activation: spec.activation,
        rms_eps: spec.rms_eps,
    })
}
