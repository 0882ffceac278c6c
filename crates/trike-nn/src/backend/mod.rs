//! The hardware operations that a decoder needs.

mod capabilities;
mod token;

use std::ops::Range;

use trike_core::{AttentionSpec, GatedActivation, Layout, RopeSpec, Tensor};
use trike_cpu::{FileRange, Tiles};
use trike_trit::{Edit, TritTensor};

pub use self::capabilities::Capabilities;
pub(crate) use self::token::logits_of;
#[cfg(feature = "gpu")]
pub(crate) use self::token::split;
pub use self::token::{RunStep, StepCaches, TokenStep};
use crate::{
    ActivationPolicy, CacheSpec, DeviceUse, Largest, NnError, StepInputs, StepLogits, StepNotice, Tuning,
    WeightName,
};

/// Input of a linear layer: a tensor, or the operation that produces it.
///
/// A backend can fuse that operation into the layer.
pub enum Input<'a, B: Backend + ?Sized> {
    /// A tensor.
    Plain(&'a B::Tensor),
    /// [`Backend::rms_norm`] of a tensor.
    Normed(&'a B::Tensor, Norm<'a, B>),
    /// [`Backend::gated`] of two tensors, followed by an optional RMSNorm.
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

impl<'a, B: Backend + ?Sized> Input<'a, B> {
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
pub struct Norm<'a, B: Backend + ?Sized> {
    /// Its weights.
    pub weight: &'a B::Vector,
    /// Added to the mean square.
    pub eps: f32,
}

/// The way in which [`Backend::edit`] changed a resident matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixEdit {
    /// In its memory: recordings that refer to the matrix read the edited weights.
    InPlace,
    /// The tensor was packed again into new memory.
    Replaced,
}

/// The hardware that a decoder runs on: fused operations on tensors in the backend's memory.
///
/// Activations are `tokens x width` f32, weights `out x in`. Tensors carry their shapes; on a shape mismatch an operation
/// returns an error and writes nothing ([`check`](crate::check) has the rules, shared by all backends). The methods are
/// grouped: properties of the backend, resident weights, tensors to and from the host, the inputs of a step, the operations in
/// the order of a block, and the logits.
pub trait Backend {
    /// Activations, `tokens x width`.
    type Tensor;
    /// A resident weight matrix.
    type Matrix;
    /// A resident vector: the weights of a norm, or a bias.
    type Vector;
    /// Precomputed frequencies of a rotary embedding.
    type Rope;
    /// Cached keys and values of one layer of one sequence.
    type Cache;
    /// The inputs of a step in the backend's memory.
    type Inputs;
    /// Per-sequence state of the backend besides the KV caches, such as a recorded step.
    type Recorded: Default;

    // ---- The backend itself.

    /// Name for reports, such as `cpu` with its instruction set.
    fn name(&self) -> String;

    /// The activation precision of ternary layers.
    fn activations(&self) -> ActivationPolicy;

    /// Memory and traffic of a device; `None` on the host.
    fn device_use(&self) -> Option<DeviceUse> {
        None
    }

    /// [`device_use`](Self::device_use) of each device by itself, with its name; empty on the host.
    fn device_uses(&self) -> Vec<(String, DeviceUse)> {
        self.device_use().map(|used| (self.name(), used)).into_iter().collect()
    }

    /// Times the kernels for products of the loaded ternary matrices with so many tokens, and uses the fastest of each from now on.
    /// `progress` is called with the products measured and in total. Without effect on a backend that has no such choice, such as
    /// the host.
    ///
    /// # Errors
    ///
    /// When the device is lost or has no memory for the activations of so many tokens.
    fn tune(&self, tokens: &[usize], progress: &mut dyn FnMut(usize, usize)) -> Result<Tuning, NnError> {
        let _ = (tokens, progress);
        Ok(Tuning::default())
    }

    /// What KV caches of the backend can do.
    fn capabilities(&self) -> Capabilities;

    // ---- Stages: consecutive layers with memory of their own, on a backend over several devices.

    /// Number of stages. The first one has the embedding too, the last one the final norm and the LM head.
    fn stages(&self) -> usize {
        1
    }

    /// The stage that runs a layer.
    fn stage_of(&self, layer: usize) -> usize {
        let _ = layer;
        0
    }

    /// The backend of a stage, to which its weights, caches and tensors belong. It takes the [`Inputs`](Self::Inputs) made by the
    /// whole backend.
    fn stage(&self, index: usize) -> &Self {
        let _ = index;
        self
    }

    /// A copy, in the memory of this stage, of a tensor of `width` columns of the stage `from`.
    ///
    /// # Errors
    ///
    /// When a device fails or has too little memory.
    fn receive(&self, from: &Self, x: &Self::Tensor, width: usize) -> Result<Self::Tensor, NnError> {
        self.upload(&from.to_host(x)?, width)
    }

    // ---- A part of a model, on a backend over several ranks.

    /// The rows of a weight that this backend holds, of `rows` rows; those of a vector are its elements. Of a stage that another rank
    /// runs it holds none.
    fn rows_of(&self, name: WeightName, rows: usize) -> Range<usize> {
        let _ = name;
        0..rows
    }

    /// Loads [`rows_of`](Self::rows_of) a matrix of `rows` rows, where they are not all; `weight` reads the whole matrix.
    ///
    /// # Errors
    ///
    /// Errors of `weight`, and as [`load_matrix`](Self::load_matrix).
    fn load_rows(
        &self,
        name: WeightName,
        rows: usize,
        weight: &mut dyn FnMut() -> Result<Tensor, NnError>,
    ) -> Result<Self::Matrix, NnError> {
        self.load_part(weight()?, self.rows_of(name, rows))
    }

    /// Loads some rows of a matrix for products and row lookups, in the layout that the whole matrix would have.
    ///
    /// # Errors
    ///
    /// [`NnError::Tensor`] for no rows or rows past the last, and as [`load_matrix`](Self::load_matrix).
    fn load_part(&self, whole: Tensor, rows: Range<usize>) -> Result<Self::Matrix, NnError> {
        self.load_matrix(whole.select_rows(&rows.collect::<Vec<_>>())?)
    }

    /// Called before each step, so that the other ranks run it too.
    ///
    /// # Errors
    ///
    /// [`NnError::OneSequence`], and errors of messages.
    fn announce(&self, step: &StepNotice<'_>) -> Result<(), NnError> {
        let _ = step;
        Ok(())
    }

    /// The next step that rank 0 [announces](Self::announce); `None` when it has ended, and on every backend that follows none.
    ///
    /// # Errors
    ///
    /// [`NnError::Notice`], and errors of messages.
    fn next_step(&self) -> Result<Option<StepNotice<'static>>, NnError> {
        Ok(None)
    }

    // ---- Resident weights.

    /// Loads a matrix for products.
    ///
    /// # Errors
    ///
    /// When the backend does not support the matrix or has too little memory.
    fn load_matrix(&self, weight: Tensor) -> Result<Self::Matrix, NnError>;

    /// Loads a matrix for row lookups and products: an embedding, which may also be the LM head.
    ///
    /// # Errors
    ///
    /// As [`load_matrix`](Self::load_matrix).
    fn load_table(&self, weight: Tensor) -> Result<Self::Matrix, NnError> {
        self.load_matrix(weight)
    }

    /// Loads matrices that are always multiplied with the same tensor, so that a backend can fuse them into one.
    /// Each is taken from `weights` after the previous one has been loaded, unless the backend needs them together.
    ///
    /// # Errors
    ///
    /// Errors of `weights`, and as [`load_matrix`](Self::load_matrix).
    fn load_matrices(
        &self,
        weights: &mut dyn Iterator<Item = Result<Tensor, NnError>>,
    ) -> Result<Vec<Self::Matrix>, NnError> {
        weights.map(|weight| self.load_matrix(weight?)).collect()
    }

    /// A matrix in a mapped file, used in place; `None` if the backend needs it in its own memory or another layout.
    ///
    /// # Errors
    ///
    /// When its contents are invalid.
    fn load_tiles(&self, tiles: &Tiles<FileRange>) -> Result<Option<Self::Matrix>, NnError> {
        let _ = tiles;
        Ok(None)
    }

    /// Applies `edits` to a resident matrix of [`load_matrix`](Self::load_matrix) or [`load_matrices`](Self::load_matrices).
    /// `edited` is the resulting tensor, which must differ from the loaded one by `edits` only. A backend changes the weights in
    /// place if the layout of the matrix supports it.
    ///
    /// # Errors
    ///
    /// When a position of `edits` is outside the tensor ([`check::edit`](crate::check::edit)); as
    /// [`load_matrix`](Self::load_matrix) when the tensor is packed again.
    fn edit(
        &self,
        matrix: &mut Self::Matrix,
        edits: &[Edit],
        edited: &TritTensor,
    ) -> Result<MatrixEdit, NnError> {
        let _ = edits;
        *matrix = self.load_matrix(Tensor::Ternary(edited.clone()))?;
        Ok(MatrixEdit::Replaced)
    }

    /// Bytes of a resident matrix.
    fn matrix_bytes(&self, matrix: &Self::Matrix) -> usize;

    /// The layout of a resident ternary matrix; `None` for other matrices, and for backends that store floats.
    fn matrix_layout(&self, matrix: &Self::Matrix) -> Option<Layout> {
        let _ = matrix;
        None
    }

    /// Loads a vector.
    ///
    /// # Errors
    ///
    /// When the backend has too little memory.
    fn load_vector(&self, values: Vec<f32>) -> Result<Self::Vector, NnError>;

    /// Prepares a rotary embedding over heads of `head_dim`, usually used for positions below `context`.
    ///
    /// # Errors
    ///
    /// When the backend does not support the spec.
    fn load_rope(&self, spec: &RopeSpec, head_dim: usize, context: usize) -> Result<Self::Rope, NnError>;

    /// An empty KV cache.
    ///
    /// # Errors
    ///
    /// When it does not fit in memory.
    fn new_cache(&self, spec: &CacheSpec) -> Result<Self::Cache, NnError>;

    /// Empty KV caches of the same layer of several sequences, which a backend may place so that tokens of these sequences cost
    /// fewer launches.
    ///
    /// # Errors
    ///
    /// As [`new_cache`](Self::new_cache).
    fn new_caches(&self, spec: &CacheSpec, count: usize) -> Result<Vec<Self::Cache>, NnError> {
        (0..count).map(|_| self.new_cache(spec)).collect()
    }

    /// The keys and values of the first `positions` positions of a cache that holds them, for [`restore_cache`](Self::restore_cache)
    /// of a backend with the same name on the same kind of machine.
    ///
    /// # Errors
    ///
    /// [`NnError::NoSavedCache`].
    fn save_cache(&self, cache: &Self::Cache, positions: usize) -> Result<Vec<u8>, NnError> {
        let _ = (cache, positions);
        Err(NnError::NoSavedCache { backend: self.name() })
    }

    /// Writes saved keys and values of the first `positions` positions into a cache with the same shape but for its capacity.
    ///
    /// # Errors
    ///
    /// [`NnError::NoSavedCache`]; [`NnError::SavedCache`] when the bytes are those of another number of positions or another shape.
    fn restore_cache(&self, cache: &mut Self::Cache, positions: usize, saved: &[u8]) -> Result<(), NnError> {
        let _ = (cache, positions, saved);
        Err(NnError::NoSavedCache { backend: self.name() })
    }

    // ---- Tensors to and from the host.

    /// Copies rows of `width` values, row-major, from the host.
    ///
    /// # Errors
    ///
    /// [`NnError::Rows`] unless `values` is a whole number of rows, and errors of the device.
    fn upload(&self, values: &[f32], width: usize) -> Result<Self::Tensor, NnError>;

    /// Copies a tensor to the host, row-major.
    ///
    /// # Errors
    ///
    /// When the device fails.
    fn to_host(&self, x: &Self::Tensor) -> Result<Vec<f32>, NnError>;

    /// [`to_host`](Self::to_host) that consumes the tensor: without a copy if it is in host memory.
    ///
    /// # Errors
    ///
    /// When the device fails.
    fn move_to_host(&self, x: Self::Tensor) -> Result<Vec<f32>, NnError> {
        self.to_host(&x)
    }

    // ---- The inputs of a step.

    /// Copies the inputs of a step to the backend's memory, once per step.
    ///
    /// # Errors
    ///
    /// When the device fails.
    fn inputs(&self, inputs: StepInputs) -> Result<Self::Inputs, NnError>;

    // ---- Operations.

    /// The rows of a `vocab x hidden` table for the ids of the step, multiplied by `factor`.
    ///
    /// # Errors
    ///
    /// [`NnError::Token`] for an id past the last row, [`NnError::Shape`] for a step without ids, [`NnError::NotATable`] for a
    /// matrix of [`load_matrix`](Self::load_matrix) if the backend requires [`load_table`](Self::load_table).
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

    /// [`Backend::rope`] of queries and keys, then [`Backend::attention`]; a backend may do both at once, and what it leaves in
    /// `q` and `k` is not used.
    ///
    /// # Errors
    ///
    /// Those of the two.
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

    // ---- Logits.

    /// The `k` largest values of each row with their columns, in one transfer: in descending order, ties by column, NaN
    /// first. `None` when whole rows are as cheap to read, or when the backend does not support so large a `k`.
    ///
    /// # Errors
    ///
    /// When the device fails.
    fn top(&self, x: &Self::Tensor, k: usize) -> Result<Option<Vec<Largest>>, NnError> {
        let _ = (x, k);
        Ok(None)
    }

    /// Logits of a step of one token of each sequence, computed by `run`: all, or the number of largest logits that `step`
    /// requests.
    ///
    /// `run` makes the same calls each time and is idempotent, so a backend may record its launches over input buffers that are
    /// overwritten before each replay. Recordings are stored in `recorded`, which belongs to the only sequence, or to all
    /// sequences whose caches were made [together](Self::new_caches), any of which may be in `step`; for others it is empty.
    ///
    /// # Errors
    ///
    /// Those of `run`, and when the device fails.
    fn tokens(
        &self,
        step: TokenStep<'_, Self>,
        recorded: &mut Self::Recorded,
        caches: StepCaches<'_, '_, Self>,
        run: &mut RunStep<'_, Self>,
    ) -> Result<Vec<StepLogits>, NnError> {
        let _ = recorded;
        let rows = step.inputs.rows();
        let inputs = self.inputs(step.inputs)?;
        logits_of(self.stage(self.stages() - 1), run(&inputs, caches)?, step.largest, rows)
    }
}
