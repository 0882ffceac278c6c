//! Tuning: codes and scales are trained, first to match the output of each dense block, then to match the predictions
//! of the dense model.
//!
//! Compensation treats layers one by one and their error as quadratic. It does not use that layers of a block can
//! compensate for each other, nor that not all of an error affects the predictions. Both need gradients, which pass
//! through the rounding by the straight-through estimator to a latent weight for each code ([`trike_quant::LatentWeights`]).
//! Tuning a block to the outputs of the dense block is the method of OmniQuant (Shao et al., 2308.13137) and
//! EfficientQAT (Chen et al., 2407.11062); tuning the whole model to the probabilities of the dense model is
//! distillation, as in PV-Tuning (Malinovskii et al., 2405.14852). The norms of blocks are tuned with them; embeddings, biases,
//! the last norm and the head are not changed.
//!
//! Blocks, the head and losses run on an [`TapeEngine`](trike_autodiff::TapeEngine), the host or a device; see [`Executors`].

mod block;
mod executors;
mod head;
mod learner;
mod norms;
mod recover;
mod scales;
mod stage;
mod tape;
#[cfg(test)]
mod tests;
mod text;
mod vectors;
mod whole;

pub(crate) use block::block;
pub(crate) use executors::Executors;
pub(crate) use head::Head;
pub(crate) use learner::Learner;
pub(crate) use recover::recover;
pub(crate) use scales::scales;
pub(crate) use tape::{Recording, TapeSpec, Wanted};
pub(crate) use text::is_held_out;
pub(crate) use whole::{BothEnds, whole};
