//! The decoder block.

use std::ops::ControlFlow;

use trike_trit::{Edit, TritTensor};

use crate::{Backend, DecoderSpec, DecoderWeights, Input, MatrixEdit, NnError, Norm, Tensor, WeightName};

/// A linear layer.
struct Linear<B: Backend> {
    weight: B::Matrix,
    bias: Option<B::Vector>,
}

/// A point of a block at which linear layers read their input, in the order of the forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HookPoint {
    /// The normed residual stream, read by the query, key and value projections.
    Attention,
    /// The output of attention, read by the output projection.
    Output,
    /// The normed residual stream, read by the gate and up projections.
    Mlp,
    /// The gated activation, read by the down projection.
    Down,
}

impl HookPoint {
    /// All points, in order.
    pub const ALL: [Self; 4] = [Self::Attention, Self::Output, Self::Mlp, Self::Down];

    /// The matrices of a layer that read this input.
    pub fn matrices(self, layer: usize) -> Vec<WeightName> {
        match self {
            Self::Attention => {
                vec![WeightName::Query(layer), WeightName::Key(layer), WeightName::Value(layer)]
            }
            Self::Output => vec![WeightName::Output(layer)],
            Self::Mlp => vec![WeightName::Gate(layer), WeightName::Up(layer)],
            Self::Down => vec![WeightName::Down(layer)],
        }
    }

    /// Whether the output of the matrices is added to the residual stream directly.
    pub fn adds_to_residual(self) -> bool {
        matches!(self, Self::Output | Self::Down)
    }
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
pub type Hook<'a, B> = dyn FnMut(HookPoint, &<B as Backend>::Tensor, &<B as Backend>::Tensor) -> Result<ControlFlow<()>, NnError>
    + 'a;

/// Attention and gated MLP, each preceded by an RMSNorm and added to the residual stream.
///
/// A [`Decoder`](crate::Decoder) is a stack of these; a single block is for code that processes a model block by block.
pub struct DecoderBlock<B: Backend> {
    attention_norm: B::Vector,
    query: Linear<B>,
    key: Linear<B>,
    value: Linear<B>,
    qk_norm: Option<(B::Vector, B::Vector)>,
    attention_sub_norm: Option<B::Vector>,
    output: Linear<B>,
    mlp_norm: B::Vector,
    gate: Linear<B>,
    up: Linear<B>,
    mlp_sub_norm: Option<B::Vector>,
    down: Linear<B>,
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
        use WeightName as W;
        let (hidden, inner) = (spec.hidden, spec.intermediate);
        let (q, kv) = (spec.query_width(), spec.kv_width());
        let biases = spec.biases;
        let head_norms = [W::QueryNorm(layer), W::KeyNorm(layer)];
        let bias = |wanted: bool, name: W| wanted.then_some(name);
        let [query, key, value] = loader.linears(
            hidden,
            [
                (W::Query(layer), q, bias(biases.qkv, W::QueryBias(layer))),
                (W::Key(layer), kv, bias(biases.qkv, W::KeyBias(layer))),
                (W::Value(layer), kv, bias(biases.qkv, W::ValueBias(layer))),
            ],
        )?;
        let [output] =
            loader.linears(q, [(W::Output(layer), hidden, bias(biases.output, W::OutputBias(layer)))])?;
        let [gate, up] = loader.linears(
            hidden,
            [
                (W::Gate(layer), inner, bias(biases.mlp, W::GateBias(layer))),
                (W::Up(layer), inner, bias(biases.mlp, W::UpBias(layer))),
            ],
        )?;
        let [down] =
            loader.linears(inner, [(W::Down(layer), hidden, bias(biases.mlp, W::DownBias(layer)))])?;
        Ok(Self {
            attention_norm: loader.vector(W::AttentionNorm(layer), hidden)?,
            query,
            key,
            value,
            qk_norm: match spec.qk_norm {
                false => None,
                true => {
                    let [q, k] = head_norms.map(|name| loader.vector(name, spec.head_dim));
                    Some((q?, k?))
                }
            },
            attention_sub_norm: loader.optional(spec.sub_norms, W::AttentionSubNorm(layer), q)?,
            output,
            mlp_norm: loader.vector(W::MlpNorm(layer), hidden)?,
            gate,
            up,
            mlp_sub_norm: loader.optional(spec.sub_norms, W::MlpSubNorm(layer), inner)?,
            down,
        })
    }

    /// The matrices of the block's seven linear layers.
    pub fn matrices(&self) -> [&B::Matrix; 7] {
        [&self.query, &self.key, &self.value, &self.output, &self.gate, &self.up, &self.down]
            .map(|l| &l.weight)
    }

    /// Replaces one of the block's seven matrices; the layer number of `name` is ignored. Returns `false` if `name` is not one
    /// of these matrices.
    ///
    /// # Errors
    ///
    /// As [`Backend::load_matrix`].
    pub fn replace(&mut self, backend: &B, name: WeightName, weight: Tensor) -> Result<bool, NnError> {
        let Some(matrix) = self.matrix_mut(name) else { return Ok(false) };
        *matrix = backend.load_matrix(weight)?;
        Ok(true)
    }

    /// [`Backend::edit`] of one of the block's seven matrices; the layer number of `name` is ignored. Returns `None` if `name` is
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
        let layer = match name {
            WeightName::Query(_) => &mut self.query,
            WeightName::Key(_) => &mut self.key,
            WeightName::Value(_) => &mut self.value,
            WeightName::Output(_) => &mut self.output,
            WeightName::Gate(_) => &mut self.gate,
            WeightName::Up(_) => &mut self.up,
            WeightName::Down(_) => &mut self.down,
            _ => return None,
        };
        Some(&mut layer.weight)
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
    /// [`HookPoint::Output`]; if it breaks, `x` is as it was.
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
        mut hook: Option<&mut Hook<'_, B>>,
    ) -> Result<ControlFlow<()>, NnError> {
        let BlockContext { backend, spec, rope } = context;
        let eps = spec.rms_eps;
        // An input that the backend fuses into a layer is never materialized, so with a hook it is computed separately.
        let mut rooms = [None, None];
        let [of_attention, of_output] = &mut rooms;

        let mut input = Input::Normed(&*x, Norm { weight: &self.attention_norm, eps });
        if let Some(hook) = &mut hook {
            let made = input.make(backend, of_attention)?;
            if hook(HookPoint::Attention, made, x)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            input = Input::Plain(made);
        }
        let [mut q, mut k, mut v] = project(backend, input, [&self.query, &self.key, &self.value])?;
        if let Some((q_norm, k_norm)) = &self.qk_norm {
            q = backend.head_norm(&q, q_norm, eps)?;
            k = backend.head_norm(&k, k_norm, eps)?;
        }
        let attended =
            backend.rotate_and_attend(&spec.attention(), [&mut q, &mut k, &mut v], rope, inputs, caches)?;
        let mut input = match &self.attention_sub_norm {
            None => Input::Plain(&attended),
            Some(weight) => Input::Normed(&attended, Norm { weight, eps }),
        };
        if let Some(hook) = &mut hook {
            let made = input.make(backend, of_output)?;
            if hook(HookPoint::Output, made, x)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            input = Input::Plain(made);
        }
        project_add(backend, input, &self.output, x)?;
        Ok(ControlFlow::Continue(()))
    }

    /// The second half of [`forward`](Self::forward): the MLP, added to `x`. A hook is called at [`HookPoint::Mlp`] and
    /// [`HookPoint::Down`]; if it breaks, `x` is as it was.
    ///
    /// # Errors
    ///
    /// Errors of the backend or of `hook`.
    pub fn forward_mlp(
        &self,
        context: BlockContext<'_, B>,
        x: &mut B::Tensor,
        mut hook: Option<&mut Hook<'_, B>>,
    ) -> Result<ControlFlow<()>, NnError> {
        let BlockContext { backend, spec, .. } = context;
        let eps = spec.rms_eps;
        let mut rooms = [None, None];
        let [of_mlp, of_down] = &mut rooms;
        let mut input = Input::Normed(&*x, Norm { weight: &self.mlp_norm, eps });
        if let Some(hook) = &mut hook {
            let made = input.make(backend, of_mlp)?;
            if hook(HookPoint::Mlp, made, x)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            input = Input::Plain(made);
        }
        let [gate, up] = project(backend, input, [&self.gate, &self.up])?;
        let norm = self.mlp_sub_norm.as_ref().map(|weight| Norm { weight, eps });
        let mut input = Input::Gated { gate: &gate, up: &up, activation: spec.activation, norm };
        if let Some(hook) = &mut hook {
            let made = input.make(backend, of_down)?;
            if hook(HookPoint::Down, made, x)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            input = Input::Plain(made);
        }
        project_add(backend, input, &self.down, x)?;
        Ok(ControlFlow::Continue(()))
    }
}

fn project<B: Backend, const N: usize>(
    backend: &B,
    input: Input<'_, B>,
    layers: [&Linear<B>; N],
) -> Result<[B::Tensor; N], NnError> {
    let mut outs = linear(backend, input, layers.map(|layer| &layer.weight))?;
    for (out, layer) in outs.iter_mut().zip(layers) {
        if let Some(bias) = &layer.bias {
            backend.add_bias(out, bias)?;
        }
    }
    Ok(outs)
}

/// Adds a layer's output to the residual stream.
fn project_add<B: Backend>(
    backend: &B,
    input: Input<'_, B>,
    layer: &Linear<B>,
    x: &mut B::Tensor,
) -> Result<(), NnError> {
    backend.linear_add(input, &layer.weight, x)?;
    match &layer.bias {
        Some(bias) => backend.add_bias(x, bias),
        None => Ok(()),
    }
}

pub(crate) fn linear<B: Backend, const N: usize>(
    backend: &B,
    input: Input<'_, B>,
    weights: [&B::Matrix; N],
) -> Result<[B::Tensor; N], NnError> {
    let outs = backend.linear_of(input, &weights)?;
    let got = outs.len();
    outs.try_into().map_err(|_| NnError::Shape { what: "outputs of a linear pass", expected: N, got })
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

    /// Linear layers that share their input: name, rows and bias of each.
    fn linears<const N: usize>(
        &mut self,
        cols: usize,
        layers: [(WeightName, usize, Option<WeightName>); N],
    ) -> Result<[Linear<B>; N], NnError> {
        let mut mapped = Vec::with_capacity(N);
        for &(name, rows, _) in &layers {
            mapped.push(match self.has_all(name, rows) {
                true => self.tiles(name, rows, cols)?,
                false => Some(self.part(name, rows, cols)?),
            });
        }
        let weights = &mut *self.weights;
        let others = layers.iter().zip(&mapped).filter(|(_, mapped)| mapped.is_none());
        let mut each = others.map(|(&(name, rows, _), _)| {
            let weight = weights.matrix(name)?;
            check(name, (rows, cols), (weight.rows(), weight.cols()))?;
            Ok(weight)
        });
        let mut loaded = self.backend.load_matrices(&mut each)?.into_iter();
        let matrices: Vec<B::Matrix> =
            mapped.into_iter().filter_map(|matrix| matrix.or_else(|| loaded.next())).collect();
        let got = matrices.len();
        let mut linears = Vec::with_capacity(N);
        for (weight, (_, rows, bias)) in matrices.into_iter().zip(layers) {
            let bias = bias.map(|name| self.vector(name, rows)).transpose()?;
            linears.push(Linear { weight, bias });
        }
        let count = NnError::Shape { what: "resident matrices", expected: N, got };
        linears.try_into().map_err(|_| count)
    }

    fn optional(&mut self, wanted: bool, name: WeightName, len: usize) -> Result<Option<B::Vector>, NnError> {
        wanted.then(|| self.vector(name, len)).transpose()
    }

    pub(crate) fn vector(&mut self, name: WeightName, len: usize) -> Result<B::Vector, NnError> {
        let part = self.backend.rows_of(name, len);
        if part.is_empty() {
            return self.backend.load_vector(Vec::new());
        }
        let mut values = self.weights.vector(name)?;
        check(name, (1, len), (1, values.len()))?;
        values.truncate(part.end);
        values.drain(..part.start);
        self.backend.load_vector(values)
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
