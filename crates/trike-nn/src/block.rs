//! The decoder block.

use std::ops::ControlFlow;

use trike_model::{AttentionLayer, AttentionOps, HookPoint, LayerOps, Mixer, WeightName, attention, mlp};
use trike_trit::{Edit, TritTensor};

use crate::{Backend, BackendBase, DecoderSpec, DecoderWeights, Input, MatrixEdit, NnError, Norm, Tensor};

/// A linear layer.
struct Linear<B: Backend> {
    weight: B::Matrix,
    bias: Option<B::Vector>,
}

/// State shared by the blocks of a model.
pub struct BlockContext<'a, B: Backend> {
    /// The backend that the block was loaded onto.
    pub backend: &'a B,
    /// Sizes and constants of the model.
    pub spec: &'a DecoderSpec,
    /// Its rotary embedding.
    pub rope: &'a B::Rope,
}

impl<B: Backend> Clone for BlockContext<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for BlockContext<'_, B> {}

/// Called by [`DecoderBlock::forward_hooked`] at each [`HookPoint`] with the input of its matrices and with the residual stream
/// to which the output of this half of the block will be added, each `tokens x width`. `Break` ends the pass at that point.
pub type Hook<'a, B> = dyn FnMut(
        HookPoint,
        &<B as BackendBase>::Tensor,
        &<B as BackendBase>::Tensor,
    ) -> Result<ControlFlow<()>, NnError>
    + 'a;

/// Attention and gated MLP, each preceded by an RMSNorm and added to the residual stream.
///
/// A [`Decoder`](crate::Decoder) is a stack of these; a single block is for code that processes a model block by block.
pub struct DecoderBlock<B: Backend> {
    layer: usize,
    /// In the order of [`WeightName::matrices`].
    matrices: [Linear<B>; 7],
    /// In the order of [`WeightName::norms`]; `None` for those that the model does not have.
    norms: [Option<B::Vector>; 6],
}

impl<B: Backend> DecoderBlock<B> {
    /// Loads the weights of block `layer`.
    ///
    /// # Errors
    ///
    /// As [`Decoder::new`](crate::Decoder::new).
    pub fn load(
        backend: &B,
        spec: &DecoderSpec,
        layer: usize,
        weights: &mut impl DecoderWeights,
    ) -> Result<Self, NnError> {
        spec.validate()?;
        Self::from_loader(&mut Loader { backend, weights }, spec, layer)
    }

    pub(crate) fn from_loader(
        loader: &mut Loader<'_, B, impl DecoderWeights>,
        spec: &DecoderSpec,
        layer: usize,
    ) -> Result<Self, NnError> {
        let mut matrices = Vec::with_capacity(7);
        for point in HookPoint::ALL {
            matrices.extend(loader.linears(spec, &point.matrices(layer))?);
        }
        let (expected, got) = (7, matrices.len());
        let matrices =
            matrices.try_into().map_err(|_| NnError::Shape { what: "matrices of a block", expected, got })?;
        let mut norms = [const { None }; 6];
        for (norm, name) in norms.iter_mut().zip(WeightName::norms(layer)) {
            *norm = spec.optional(name).map(|name| loader.vector(name, spec.shape(name).1)).transpose()?;
        }
        Ok(Self { layer, matrices, norms })
    }

    /// The matrices of the block's seven linear layers, in the order of [`WeightName::matrices`].
    pub fn matrices(&self) -> [&B::Matrix; 7] {
        self.matrices.each_ref().map(|layer| &layer.weight)
    }

    /// Replaces one of the block's seven matrices; the layer number of `name` is ignored. Returns `false` if `name` is not one
    /// of these matrices.
    ///
    /// # Errors
    ///
    /// As [`BackendWeights::load_matrix`](crate::BackendWeights::load_matrix).
    pub fn replace(&mut self, backend: &B, name: WeightName, weight: Tensor) -> Result<bool, NnError> {
        let Some(matrix) = self.matrix_mut(name) else { return Ok(false) };
        *matrix = backend.load_matrix(weight)?;
        Ok(true)
    }

    /// [`BackendWeights::edit`](crate::BackendWeights::edit) of one of the block's seven matrices; the layer number of `name` is ignored. Returns `None` if `name` is
    /// not one of these matrices.
    ///
    /// # Errors
    ///
    /// Errors of the backend.
    pub fn edit(
        &mut self,
        backend: &B,
        name: WeightName,
        edits: &[Edit],
        edited: &TritTensor,
    ) -> Result<Option<MatrixEdit>, NnError> {
        self.matrix_mut(name).map(|matrix| backend.edit(matrix, edits, edited)).transpose()
    }

    fn matrix_mut(&mut self, name: WeightName) -> Option<&mut B::Matrix> {
        Some(&mut self.matrices[name.matrix_index()?].weight)
    }

    /// Passes `x`, `tokens x hidden`, through the block; `caches` has the cache of this layer for each sequence of `inputs`.
    ///
    /// # Errors
    ///
    /// Errors of the backend.
    pub fn forward(
        &self,
        context: BlockContext<'_, B>,
        x: &mut B::Tensor,
        inputs: &B::Inputs,
        caches: &mut [&mut B::Cache],
    ) -> Result<(), NnError> {
        // Nothing breaks without a hook.
        let _ = self.forward_attention(context, x, inputs, caches, None)?;
        self.forward_mlp(context, x, None).map(|_| ())
    }

    /// [`forward`](Self::forward) that passes the inputs of the linear layers to `hook`. If the hook breaks, `x` is the residual
    /// stream at that point.
    ///
    /// # Errors
    ///
    /// Errors of the backend or of `hook`.
    pub fn forward_hooked(
        &self,
        context: BlockContext<'_, B>,
        x: &mut B::Tensor,
        inputs: &B::Inputs,
        caches: &mut [&mut B::Cache],
        hook: &mut Hook<'_, B>,
    ) -> Result<ControlFlow<()>, NnError> {
        match self.forward_attention(context, x, inputs, caches, Some(hook))? {
            ControlFlow::Continue(()) => self.forward_mlp(context, x, Some(hook)),
            stopped @ ControlFlow::Break(()) => Ok(stopped),
        }
    }

    /// The first half of [`forward`](Self::forward): attention, added to `x`. A hook is called at [`HookPoint::Attention`] and
    /// [`HookPoint::Output`]; if it breaks, `x` is unchanged.
    ///
    /// # Errors
    ///
    /// Errors of the backend or of `hook`.
    pub fn forward_attention(
        &self,
        context: BlockContext<'_, B>,
        x: &mut B::Tensor,
        inputs: &B::Inputs,
        caches: &mut [&mut B::Cache],
        hook: Option<&mut Hook<'_, B>>,
    ) -> Result<ControlFlow<()>, NnError> {
        let ops = &mut Inference { context, block: self, hook };
        let Mixer::Attention(how) = context.spec.layer(self.layer).mixer;
        let attended = attention(ops, context.spec, self.layer, how, x, &mut Caches { inputs, caches });
        flow(attended)
    }

    /// The second half of [`forward`](Self::forward): the MLP, added to `x`. A hook is called at [`HookPoint::Mlp`] and
    /// [`HookPoint::Down`]; if it breaks, `x` is unchanged.
    ///
    /// # Errors
    ///
    /// Errors of the backend or of `hook`.
    pub fn forward_mlp(
        &self,
        context: BlockContext<'_, B>,
        x: &mut B::Tensor,
        hook: Option<&mut Hook<'_, B>>,
    ) -> Result<ControlFlow<()>, NnError> {
        flow(mlp(&mut Inference { context, block: self, hook }, context.spec, self.layer, x))
    }
}

/// Early end of a pass.
enum Stop {
    /// A hook broke.
    Hook,
    /// An operation failed.
    Failed(NnError),
}

impl From<NnError> for Stop {
    fn from(error: NnError) -> Self {
        Self::Failed(error)
    }
}

fn flow(done: Result<(), Stop>) -> Result<ControlFlow<()>, NnError> {
    match done {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(Stop::Hook) => Ok(ControlFlow::Break(())),
        Err(Stop::Failed(error)) => Err(error),
    }
}

/// The positions of the tokens of a step, and the cache of the layer for each sequence.
struct Caches<'c, 'k, B: Backend> {
    inputs: &'c B::Inputs,
    caches: &'c mut [&'k mut B::Cache],
}

/// The operations of a block on a backend.
struct Inference<'a, 'h, 'f, B: Backend> {
    context: BlockContext<'a, B>,
    block: &'a DecoderBlock<B>,
    hook: Option<&'h mut Hook<'f, B>>,
}

impl<'a, B: Backend> Inference<'a, '_, '_, B> {
    fn linear(&self, name: WeightName) -> Result<&'a Linear<B>, NnError> {
        let missing = || NnError::NoWeight { name: name.to_string() };
        Ok(&self.block.matrices[name.matrix_index().ok_or_else(missing)?])
    }

    fn norm(&self, name: WeightName) -> Result<Norm<'a, B>, NnError> {
        let found = name.norm_index().and_then(|index| self.block.norms[index].as_ref());
        let weight = found.ok_or_else(|| NnError::NoWeight { name: name.to_string() })?;
        Ok(Norm { weight, eps: self.context.spec.norm_eps(name) })
    }

    /// The input of the linear layers at a hook point, computed from the residual stream `x`. A fused input is never materialized,
    /// so with a hook it is computed separately, in `room`.
    fn seen<'t>(
        &mut self,
        layer: WeightName,
        input: Input<'t, B>,
        x: &B::Tensor,
        room: &'t mut Option<B::Tensor>,
    ) -> Result<Input<'t, B>, Stop> {
        let (Some(hook), Some(point)) = (&mut self.hook, layer.read_at()) else { return Ok(input) };
        let made = input.make(self.context.backend, room)?;
        match hook(point, made, x)? {
            ControlFlow::Continue(()) => Ok(Input::Plain(made)),
            ControlFlow::Break(()) => Err(Stop::Hook),
        }
    }
}

impl<B: Backend> LayerOps for Inference<'_, '_, '_, B> {
    type Tensor = B::Tensor;
    type Error = Stop;

    fn project<const N: usize>(
        &mut self,
        x: &B::Tensor,
        norm: WeightName,
        layers: [WeightName; N],
    ) -> Result<[B::Tensor; N], Stop> {
        let mut room = None;
        let input = Input::Normed(x, self.norm(norm)?);
        let input = self.seen(layers[0], input, x, &mut room)?;
        let backend = self.context.backend;
        let mut weights = Vec::with_capacity(N);
        for name in layers {
            weights.push(self.linear(name)?);
        }
        let matrices: Vec<&B::Matrix> = weights.iter().map(|layer| &layer.weight).collect();
        let mut outs = backend.linear_of(input, &matrices)?;
        for (out, layer) in outs.iter_mut().zip(weights) {
            if let Some(bias) = &layer.bias {
                backend.add_bias(out, bias)?;
            }
        }
        Ok(array(outs)?)
    }

    fn project_add(
        &mut self,
        input: trike_model::LayerInput<'_, B::Tensor>,
        norm: Option<WeightName>,
        layer: WeightName,
        x: &mut B::Tensor,
    ) -> Result<(), Stop> {
        let norm = norm.map(|name| self.norm(name)).transpose()?;
        let input = match (input, norm) {
            (trike_model::LayerInput::Plain(input), None) => Input::Plain(input),
            (trike_model::LayerInput::Plain(input), Some(norm)) => Input::Normed(input, norm),
            (trike_model::LayerInput::Gated { gate, up, activation }, norm) => {
                Input::Gated { gate, up, activation, norm }
            }
        };
        let mut room = None;
        let input = self.seen(layer, input, x, &mut room)?;
        let (backend, layer) = (self.context.backend, self.linear(layer)?);
        backend.linear_add(input, &layer.weight, x)?;
        if let Some(bias) = &layer.bias {
            backend.add_bias(x, bias)?;
        }
        Ok(())
    }
}

impl<'c, 'k, B: Backend> AttentionOps<Caches<'c, 'k, B>> for Inference<'_, '_, '_, B> {
    fn head_norm(&mut self, x: B::Tensor, norm: WeightName) -> Result<B::Tensor, Stop> {
        let Norm { weight, eps } = self.norm(norm)?;
        Ok(self.context.backend.head_norm(&x, weight, eps)?)
    }

    fn attend(
        &mut self,
        layer: AttentionLayer,
        qkv: [B::Tensor; 3],
        state: &mut Caches<'c, 'k, B>,
    ) -> Result<B::Tensor, Stop> {
        let BlockContext { backend, spec, rope } = self.context;
        let ([mut q, mut k, mut v], attention) = (qkv, spec.attention(layer));
        Ok(match layer.rope {
            true => {
                let qkv = [&mut q, &mut k, &mut v];
                backend.rotate_and_attend(&attention, qkv, rope, state.inputs, state.caches)?
            }
            false => backend.attention(&attention, &q, &k, &v, state.inputs, state.caches)?,
        })
    }
}

fn array<T, const N: usize>(outs: Vec<T>) -> Result<[T; N], NnError> {
    let got = outs.len();
    outs.try_into().map_err(|_| NnError::Shape { what: "outputs of a linear pass", expected: N, got })
}

pub(crate) fn linear<B: Backend, const N: usize>(
    backend: &B,
    input: Input<'_, B>,
    weights: [&B::Matrix; N],
) -> Result<[B::Tensor; N], NnError> {
    array(backend.linear_of(input, &weights)?)
}

/// Loads weights onto a backend after checking their shapes.
pub(crate) struct Loader<'a, B, W> {
    pub(crate) backend: &'a B,
    pub(crate) weights: &'a mut W,
}

impl<B: Backend, W: DecoderWeights> Loader<'_, B, W> {
    pub(crate) fn matrix(
        &mut self,
        name: WeightName,
        rows: usize,
        cols: usize,
    ) -> Result<B::Matrix, NnError> {
        if !self.has_all(name, rows) {
            return self.part(name, rows, cols);
        }
        if let Some(matrix) = self.tiles(name, rows, cols)? {
            return Ok(matrix);
        }
        let weight = self.weight(name, rows, cols)?;
        self.backend.load_matrix(weight)
    }

    /// A matrix for row lookups and products.
    pub(crate) fn table(&mut self, name: WeightName, rows: usize, cols: usize) -> Result<B::Matrix, NnError> {
        if !self.has_all(name, rows) {
            return self.part(name, rows, cols);
        }
        if let Some(matrix) = self.tiles(name, rows, cols)? {
            return Ok(matrix);
        }
        let weight = self.weight(name, rows, cols)?;
        self.backend.load_table(weight)
    }

    /// Whether the backend holds all rows of a weight.
    fn has_all(&self, name: WeightName, rows: usize) -> bool {
        self.backend.rows_of(name, rows) == (0..rows)
    }

    /// The rows of a matrix that the backend holds.
    fn part(&mut self, name: WeightName, rows: usize, cols: usize) -> Result<B::Matrix, NnError> {
        let backend = self.backend;
        backend.load_rows(name, rows, &mut || self.weight(name, rows, cols))
    }

    /// A matrix that the source and the backend keep in a mapped file.
    fn tiles(&mut self, name: WeightName, rows: usize, cols: usize) -> Result<Option<B::Matrix>, NnError> {
        let Some(tiles) = self.weights.tiles(name)? else { return Ok(None) };
        check(name, (rows, cols), (tiles.rows(), tiles.cols()))?;
        let invalid = |source| NnError::Tiles { name: name.to_string(), source: Box::new(source) };
        self.backend.load_tiles(&tiles).map_err(invalid)
    }

    fn weight(&mut self, name: WeightName, rows: usize, cols: usize) -> Result<Tensor, NnError> {
        let weight = self.weights.matrix(name)?;
        check(name, (rows, cols), (weight.rows(), weight.cols()))?;
        Ok(weight)
    }

    /// Linear layers that share their input.
    fn linears(&mut self, spec: &DecoderSpec, names: &[WeightName]) -> Result<Vec<Linear<B>>, NnError> {
        let mut mapped = Vec::with_capacity(names.len());
        for &name in names {
            let (rows, cols) = spec.shape(name);
            mapped.push(match self.has_all(name, rows) {
                true => self.tiles(name, rows, cols)?,
                false => Some(self.part(name, rows, cols)?),
            });
        }
        let weights = &mut *self.weights;
        let others = names.iter().zip(&mapped).filter(|(_, mapped)| mapped.is_none());
        let mut each = others.map(|(&name, _)| {
            let weight = weights.matrix(name)?;
            check(name, spec.shape(name), (weight.rows(), weight.cols()))?;
            Ok(weight)
        });
        let mut loaded = self.backend.load_matrices(&mut each)?.into_iter();
        let matrices: Vec<B::Matrix> =
            mapped.into_iter().filter_map(|matrix| matrix.or_else(|| loaded.next())).collect();
        let mut linears = Vec::with_capacity(names.len());
        for (weight, name) in matrices.into_iter().zip(names) {
            let bias = name.bias().and_then(|bias| spec.optional(bias));
            let bias = bias.map(|name| self.vector(name, spec.shape(name).1)).transpose()?;
            linears.push(Linear { weight, bias });
        }
        Ok(linears)
    }

    pub(crate) fn vector(&mut self, name: WeightName, len: usize) -> Result<B::Vector, NnError> {
        let values = self.values(name, len)?;
        self.backend.load_vector(values)
    }

    /// The elements of a vector that the backend holds.
    pub(crate) fn values(&mut self, name: WeightName, len: usize) -> Result<Vec<f32>, NnError> {
        let part = self.backend.rows_of(name, len);
        if part.is_empty() {
            return Ok(Vec::new());
        }
        let mut values = self.weights.vector(name)?;
        check(name, (1, len), (1, values.len()))?;
        values.truncate(part.end);
        values.drain(..part.start);
        Ok(values)
    }
}

fn check(name: WeightName, expected: (usize, usize), got: (usize, usize)) -> Result<(), NnError> {
    if expected == got {
        return Ok(());
    }
    Err(NnError::WeightShape {
        name: name.to_string(),
        expected_rows: expected.0,
        expected_cols: expected.1,
        got_rows: got.0,
        got_cols: got.1,
    })
}
