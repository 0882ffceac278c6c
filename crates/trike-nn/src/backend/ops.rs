//! Operations of a forward pass.

use trike_core::{AttentionSpec, GatedActivation};

use super::BackendBase;
use crate::NnError;

/// Input of a linear layer: a tensor, or the operation that produces it.
///
/// A backend can fuse that operation into the layer.
pub enum Input<'a, B: BackendOps + ?Sized> {
    /// A tensor.
    Plain(&'a B::Tensor),
    /// [`BackendOps::rms_norm`](crate::BackendOps::rms_norm) of a tensor.
    Normed(&'a B::Tensor, Norm<'a, B>),
    /// [`BackendOps::gated`](crate::BackendOps::gated) of two tensors, followed by an optional RMSNorm.
    Gated {
        /// Input of the activation.
        gate: &'a B::Tensor,
        /// Factor of the activation.
        up: &'a B::Tensor,
        /// The activation.
        activation: GatedActivation,
        /// The norm.
        norm: Option<Norm<'a, B>>,
    },
}

impl<'a, B: BackendOps + ?Sized> Input<'a, B> {
    /// Evaluates the input; a computed tensor is stored in `room`.
    ///
    /// # Errors
    ///
    /// When shapes do not match.
    pub fn make<'t>(self, backend: &B, room: &'t mut Option<B::Tensor>) -> Result<&'t B::Tensor, NnError>
    where
        'a: 't,
    {
        let made = match self {
            Self::Plain(x) => return Ok(x),
            Self::Normed(x, Norm { weight, eps }) => backend.rms_norm(x, weight, eps)?,
            Self::Gated { gate, up, activation, norm } => {
                let product = backend.gated(gate, up, activation)?;
                match norm {
                    Some(Norm { weight, eps }) => backend.rms_norm(&product, weight, eps)?,
                    None => product,
                }
            }
        };
        Ok(room.insert(made))
    }
}

/// An RMSNorm.
pub struct Norm<'a, B: BackendOps + ?Sized> {
    /// Its weights.
    pub weight: &'a B::Vector,
    /// Added to the mean square.
    pub eps: f32,
}

/// Fused operations on tensors in the backend's memory, in the order of a block.
///
/// Activations are `tokens x width` f32, weights `out x in`. Tensors carry their shapes; on a shape mismatch an operation
/// returns an error and writes nothing ([`check`](crate::check) has the rules, shared by all backends).
pub trait BackendOps: BackendBase {
    /// The rows of a `vocab x hidden` table for the ids of the step, multiplied by `factor`.
    ///
    /// # Errors
    ///
    /// [`NnError::Token`] for an id past the last row, [`NnError::Shape`] for a step without ids, [`NnError::Unsupported`] for a
    /// matrix of [`load_matrix`](crate::BackendWeights::load_matrix) if the backend requires [`load_table`](crate::BackendWeights::load_table).
    fn embed(
        &self,
        table: &Self::Matrix,
        inputs: &Self::Inputs,
        factor: f32,
    ) -> Result<Self::Tensor, NnError>;

    /// `x / sqrt(mean(x^2) + eps) * weight` for every token (Zhang and Sennrich, 2019).
    ///
    /// # Errors
    ///
    /// When widths differ.
    fn rms_norm(&self, x: &Self::Tensor, weight: &Self::Vector, eps: f32) -> Result<Self::Tensor, NnError>;

    /// [`rms_norm`](Self::rms_norm) of every head separately; the head size is the length of the weight.
    ///
    /// # Errors
    ///
    /// [`NnError::Heads`] when the width is not a multiple of the weight's length.
    fn head_norm(&self, x: &Self::Tensor, weight: &Self::Vector, eps: f32) -> Result<Self::Tensor, NnError>;

    /// `x W^T` for each of `weights`, which share their input.
    ///
    /// # Errors
    ///
    /// When widths differ.
    fn linear(&self, x: &Self::Tensor, weights: &[&Self::Matrix]) -> Result<Vec<Self::Tensor>, NnError>;

    /// [`linear`](Self::linear) of an input whose computation the backend may fuse into the layer.
    ///
    /// # Errors
    ///
    /// When shapes do not match.
    fn linear_of(
        &self,
        input: Input<'_, Self>,
        weights: &[&Self::Matrix],
    ) -> Result<Vec<Self::Tensor>, NnError> {
        self.linear(input.make(self, &mut None)?, weights)
    }

    /// Adds [`linear_of`](Self::linear_of) of one matrix to `to`.
    ///
    /// # Errors
    ///
    /// When shapes do not match.
    fn linear_add(
        &self,
        input: Input<'_, Self>,
        weight: &Self::Matrix,
        to: &mut Self::Tensor,
    ) -> Result<(), NnError> {
        for out in self.linear_of(input, &[weight])? {
            self.add(to, &out)?;
        }
        Ok(())
    }

    /// Adds a bias to every token.
    ///
    /// # Errors
    ///
    /// When widths differ.
    fn add_bias(&self, x: &mut Self::Tensor, bias: &Self::Vector) -> Result<(), NnError>;

    /// Adds `y` to `x`.
    ///
    /// # Errors
    ///
    /// When shapes differ.
    fn add(&self, x: &mut Self::Tensor, y: &Self::Tensor) -> Result<(), NnError>;

    /// Rotates every head of every token by the token's position.
    ///
    /// # Errors
    ///
    /// When the step has a different number of rows or the width is not a multiple of `head_dim`.
    fn rope(&self, x: &mut Self::Tensor, rope: &Self::Rope, inputs: &Self::Inputs) -> Result<(), NnError>;

    /// Stores the new keys and values of every sequence of the step in its cache, in the order of the step's segments, then
    /// computes causal attention of `q` over the cache. The window is the narrower of those of the segment and of `spec`.
    ///
    /// # Errors
    ///
    /// When shapes do not match or a cache lacks a position that a query attends to.
    fn attention(
        &self,
        spec: &AttentionSpec,
        q: &Self::Tensor,
        k: &Self::Tensor,
        v: &Self::Tensor,
        inputs: &Self::Inputs,
        caches: &mut [&mut Self::Cache],
    ) -> Result<Self::Tensor, NnError>;

    /// [`rope`](Self::rope) of queries and keys, then [`attention`](Self::attention); a backend may fuse the two. The contents of
    /// `q` and `k` afterwards are unspecified.
    ///
    /// # Errors
    ///
    /// Errors of both.
    fn rotate_and_attend(
        &self,
        spec: &AttentionSpec,
        [q, k, v]: [&mut Self::Tensor; 3],
        rope: &Self::Rope,
        inputs: &Self::Inputs,
        caches: &mut [&mut Self::Cache],
    ) -> Result<Self::Tensor, NnError> {
        self.rope(q, rope, inputs)?;
        self.rope(k, rope, inputs)?;
        self.attention(spec, q, k, v, inputs, caches)
    }

    /// `activation(gate) * up`.
    ///
    /// # Errors
    ///
    /// When shapes differ.
    fn gated(
        &self,
        gate: &Self::Tensor,
        up: &Self::Tensor,
        activation: GatedActivation,
    ) -> Result<Self::Tensor, NnError>;

    /// The given rows of `x`, in that order.
    ///
    /// # Errors
    ///
    /// [`NnError::Row`] for a row past the last.
    fn select_rows(&self, x: &Self::Tensor, rows: &[usize]) -> Result<Self::Tensor, NnError>;
}
