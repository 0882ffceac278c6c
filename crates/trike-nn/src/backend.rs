//! What a decoder asks of the place where it runs.

use std::ops::Range;

use trike_core::{AttentionSpec, GatedActivation, KvPrecision, RopeSpec, Tensor};

use crate::{Best, DeviceUse, NnError};

/// Shape of the cache of one layer of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSpec {
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Positions held; position `p` lies in slot `p % capacity`.
    pub capacity: usize,
    /// Type of the elements.
    pub precision: KvPrecision,
}

/// The rows of a ragged batch that belong to one sequence.
#[derive(Debug)]
pub struct Segment<'a, C> {
    /// Rows of the batch.
    pub rows: Range<usize>,
    /// Position of the first of them.
    pub first_position: usize,
    /// Positions that a query of this sequence sees, its own included; all when `None`.
    pub window: Option<usize>,
    /// The sequence's cache of this layer.
    pub cache: &'a mut C,
}

/// What a linear layer reads: a tensor, or what the step before it would make of tensors.
///
/// Named so that a backend can take that step on the way into the layer.
pub enum Input<'a, B: Backend + ?Sized> {
    /// A tensor.
    Plain(&'a B::Tensor),
    /// [`Backend::rms_norm`] of a tensor.
    Normed(&'a B::Tensor, Norm<'a, B>),
    /// [`Backend::gated`] of two tensors, through an RMSNorm where there is one.
    Gated {
        /// Input of the activation.
        gate: &'a B::Tensor,
        /// What it is multiplied with.
        up: &'a B::Tensor,
        /// The activation.
        activation: GatedActivation,
        /// The norm.
        norm: Option<Norm<'a, B>>,
    },
}

impl<'a, B: Backend + ?Sized> Input<'a, B> {
    /// The tensor that this stands for; one that has to be made goes to `room`.
    ///
    /// # Errors
    ///
    /// When shapes do not fit.
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

/// The largest numbers of a row with their columns, the largest first.
pub type Largest = Vec<(u32, f32)>;

/// A step in which one sequence reads one token: the usual one when a model writes, and always the same but for these.
#[derive(Debug)]
pub struct TokenStep<'a, B: Backend + ?Sized> {
    /// The token, below the rows of the table.
    pub id: u32,
    /// Its position.
    pub position: usize,
    /// Positions that it sees, its own included; all when `None`.
    pub window: Option<usize>,
    /// Positions that the sequence's caches hold.
    pub capacity: usize,
    /// Where the token is looked up.
    pub table: &'a B::Matrix,
    /// A number that no two models share, nor a model before and after a weight was replaced.
    pub version: u64,
    /// How many of the largest logits are asked for; `None` for all.
    pub largest: Option<usize>,
}

/// An RMSNorm.
pub struct Norm<'a, B: Backend + ?Sized> {
    /// Its weights.
    pub weight: &'a B::Vector,
    /// Added to the mean square.
    pub eps: f32,
}

/// A dozen fused operations on tensors that stay where the backend keeps them.
///
/// Activations are `tokens x width` f32, weights `out x in`. Shapes live in the tensors; an operation that gets
/// shapes that do not fit returns an error and writes nothing.
pub trait Backend {
    /// Activations, `tokens x width`.
    type Tensor;
    /// A resident weight matrix.
    type Matrix;
    /// A resident vector: the weights of a norm.
    type Vector;
    /// Precomputed frequencies of a rotary embedding.
    type Rope;
    /// Cached keys and values of one layer of one sequence.
    type Cache;
    /// What the backend keeps with a sequence from one step to the next, over what its caches are.
    type Recorded: Default;

    /// Name for reports, such as `cpu` with its instruction set.
    fn name(&self) -> String;

    /// What is used of a device; `None` on the host.
    fn device_use(&self) -> Option<DeviceUse> {
        None
    }

    /// Makes a matrix resident.
    ///
    /// # Errors
    ///
    /// When the backend cannot hold it.
    fn load_matrix(&self, weight: Tensor) -> Result<Self::Matrix, NnError>;

    /// Makes matrices resident that are always multiplied with the same tensor, so that a backend can lay them side by side.
    /// Each is taken from `weights` when the one before it is resident, unless the backend needs them together.
    ///
    /// # Errors
    ///
    /// What `weights` says, and as [`load_matrix`](Self::load_matrix).
    fn load_matrices(
        &self,
        weights: &mut dyn Iterator<Item = Result<Tensor, NnError>>,
    ) -> Result<Vec<Self::Matrix>, NnError> {
        weights.map(|weight| self.load_matrix(weight?)).collect()
    }

    /// Whether caches can hold elements of that type.
    fn can_cache(&self, precision: KvPrecision) -> bool {
        let _ = precision;
        true
    }

    /// Makes a vector resident.
    ///
    /// # Errors
    ///
    /// When the backend cannot hold it.
    fn load_vector(&self, values: Vec<f32>) -> Result<Self::Vector, NnError>;

    /// Prepares a rotary embedding over heads of `head_dim`, usually used for positions below `context`.
    ///
    /// # Errors
    ///
    /// When the spec is one that the backend does not compute.
    fn load_rope(&self, spec: &RopeSpec, head_dim: usize, context: usize) -> Result<Self::Rope, NnError>;

    /// An empty cache.
    ///
    /// # Errors
    ///
    /// When it does not fit in memory.
    fn new_cache(&self, spec: &CacheSpec) -> Result<Self::Cache, NnError>;

    /// Bytes that a resident matrix takes.
    fn matrix_bytes(&self, matrix: &Self::Matrix) -> usize;

    /// Rows `ids` of a `vocab x hidden` matrix.
    ///
    /// # Errors
    ///
    /// [`NnError::Token`] for an id past the last row.
    fn embed(&self, table: &Self::Matrix, ids: &[u32]) -> Result<Self::Tensor, NnError>;

    /// `x / sqrt(mean(x^2) + eps) * weight`, a token at a time (Zhang and Sennrich, 2019).
    ///
    /// # Errors
    ///
    /// When widths differ.
    fn rms_norm(&self, x: &Self::Tensor, weight: &Self::Vector, eps: f32) -> Result<Self::Tensor, NnError>;

    /// [`rms_norm`](Self::rms_norm) of every head on its own: of each run of the weight's length within a token.
    ///
    /// # Errors
    ///
    /// When the width is no multiple of the weight's length.
    fn head_norm(&self, x: &Self::Tensor, weight: &Self::Vector, eps: f32) -> Result<Self::Tensor, NnError>;

    /// Adds a bias to every token.
    ///
    /// # Errors
    ///
    /// When widths differ.
    fn add_bias(&self, x: &mut Self::Tensor, bias: &Self::Vector) -> Result<(), NnError>;

    /// `x W^T` for each of `weights`, which share their input.
    ///
    /// # Errors
    ///
    /// When widths differ.
    fn linear(&self, x: &Self::Tensor, weights: &[&Self::Matrix]) -> Result<Vec<Self::Tensor>, NnError>;

    /// [`linear`](Self::linear) of what `input` stands for.
    ///
    /// # Errors
    ///
    /// When shapes do not fit.
    fn linear_of(
        &self,
        input: Input<'_, Self>,
        weights: &[&Self::Matrix],
    ) -> Result<Vec<Self::Tensor>, NnError> {
        self.linear(input.make(self, &mut None)?, weights)
    }

    /// Adds what [`linear_of`](Self::linear_of) makes of `input` and one matrix to `to`.
    ///
    /// # Errors
    ///
    /// When shapes do not fit.
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

    /// Rotates every head of every token by its position.
    ///
    /// # Errors
    ///
    /// When there is not one position a token or the width is no multiple of the head's.
    fn rope(&self, x: &mut Self::Tensor, rope: &Self::Rope, positions: &[u32]) -> Result<(), NnError>;

    /// Stores the new keys and values of every segment in its cache, then attends causally from `q` over it.
    ///
    /// # Errors
    ///
    /// When shapes do not fit or a cache does not hold what a query sees.
    fn attention(
        &self,
        spec: &AttentionSpec,
        q: &Self::Tensor,
        k: &Self::Tensor,
        v: &Self::Tensor,
        segments: &mut [Segment<'_, Self::Cache>],
    ) -> Result<Self::Tensor, NnError>;

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

    /// Adds `y` to `x`.
    ///
    /// # Errors
    ///
    /// When shapes differ.
    fn add(&self, x: &mut Self::Tensor, y: &Self::Tensor) -> Result<(), NnError>;

    /// The given rows of `x`, in that order.
    ///
    /// # Errors
    ///
    /// For a row past the last.
    fn select_rows(&self, x: &Self::Tensor, rows: &[usize]) -> Result<Self::Tensor, NnError>;

    /// The `k` largest numbers of each row with their columns, as they come back with one wait: the largest first, equal ones by
    /// their column, NaN before everything. `None` where whole rows are as near, or when `k` is more than the backend finds.
    ///
    /// # Errors
    ///
    /// When the device fails.
    fn top(&self, x: &Self::Tensor, k: usize) -> Result<Option<Vec<Largest>>, NnError> {
        let _ = (x, k);
        Ok(None)
    }

    /// Copies a tensor to the host, row-major.
    ///
    /// # Errors
    ///
    /// When the device fails.
    fn read(&self, x: Self::Tensor) -> Result<Vec<f32>, NnError>;

    /// What comes of a step of one token: of the logits that `run` makes, as many as `step` asks for.
    ///
    /// `run` makes the same calls each time and has the same effect however often it runs, so that a backend may record what
    /// it launches. Then `recorded` is where that is kept: it goes when the sequence does.
    ///
    /// # Errors
    ///
    /// Those of `run`, and when the device fails.
    fn token(
        &self,
        step: &TokenStep<'_, Self>,
        recorded: &mut Self::Recorded,
        run: &mut dyn FnMut() -> Result<Self::Tensor, NnError>,
    ) -> Result<Best, NnError> {
        let _ = recorded;
        best_of(self, run()?, step.largest)
    }
}

/// The largest logits of one row, or all of them where those are not usable or not asked for.
pub(crate) fn best_of<B: Backend + ?Sized>(
    backend: &B,
    logits: B::Tensor,
    largest: Option<usize>,
) -> Result<Best, NnError> {
    match largest.map_or(Ok(None), |k| backend.top(&logits, k))?.as_deref_mut() {
        Some([row]) if usable(row) => Ok(Best::Top(std::mem::take(row))),
        _ => Ok(Best::All(backend.read(logits)?)),
    }
}

/// Whether there is something to choose from: NaN and infinity come first, and a row of negative infinities has nothing else.
pub(crate) fn usable(row: &[(u32, f32)]) -> bool {
    row.first().is_some_and(|(_, logit)| logit.is_finite())
}
