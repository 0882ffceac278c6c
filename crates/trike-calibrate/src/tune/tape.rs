//! Blocks of a model on a tape: their outputs, and the gradients of their trained weights.

use std::{
    borrow::{Borrow, BorrowMut, Cow},
    cell::RefCell,
    rc::Rc,
};

use trike_autodiff::{
    Backward, Buffers, Elements, EngineValues, GradError, Gradients, MixedPrecision, Operation, Tape,
    TapeEngine, Var,
};
use trike_core::ProductPrecision;
use trike_model::{AttentionLayer, AttentionOps, DecoderSpec, LayerInput, LayerOps, WeightName, block};

use super::vectors::Vectors;

/// State shared by the tapes of a model.
pub(crate) struct TapeSpec<E: TapeEngine> {
    /// Sizes and constants of the model.
    pub(crate) spec: DecoderSpec,
    /// Precision of the operands of products.
    pub(super) precision: MixedPrecision,
    rope: E::RopeTable,
}

impl<E: TapeEngine> TapeSpec<E> {
    /// A spec for sequences of at most `longest` tokens.
    pub(crate) fn new(engine: &E, spec: &DecoderSpec, longest: usize) -> Result<Self, GradError> {
        let rope = engine.rope_table(spec.rope.frequencies(spec.head_dim), spec.rope.pairing, longest)?;
        // Gradients are noisy anyway; held-out text is evaluated in f32.
        let gradients = if E::ROUNDS_OPERANDS { ProductPrecision::Bf16 } else { ProductPrecision::F32 };
        let precision = MixedPrecision {
            input_gradients: gradients,
            weight_gradients: gradients,
            ..MixedPrecision::default()
        };
        Ok(Self { spec: spec.clone(), precision, rope })
    }
}

/// The current weights of a block.
pub(crate) struct BlockValues<'w, E: TapeEngine> {
    /// In the order of [`WeightName::matrices`].
    pub(crate) matrices: [EngineValues<'w, E>; 7],
    /// Those that require gradients.
    pub(crate) trained: [bool; 7],
    /// Norms and biases.
    pub(crate) vectors: VectorValues<'w, E>,
}

/// The current norms and biases of a block, in the order of [`Vectors`]; `None` for those that are absent.
pub(crate) struct VectorValues<'w, E: TapeEngine> {
    norms: [Option<EngineValues<'w, E>>; 6],
    biases: [Option<EngineValues<'w, E>>; 7],
}

impl<'w, E: TapeEngine> VectorValues<'w, E> {
    pub(crate) fn new(engine: &E, vectors: &'w Vectors) -> Result<Self, GradError> {
        fn all<'w, E: TapeEngine, const N: usize>(
            engine: &E,
            vectors: &'w [Option<Vec<f32>>; N],
        ) -> Result<[Option<EngineValues<'w, E>>; N], GradError> {
            let mut values = [const { None }; N];
            for (value, vector) in values.iter_mut().zip(vectors) {
                *value = vector.as_deref().map(|vector| engine.borrow_or_upload(vector)).transpose()?;
            }
            Ok(values)
        }
        Ok(Self { norms: all(engine, &vectors.norms)?, biases: all(engine, &vectors.biases)? })
    }
}

/// The requested gradients.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wanted {
    /// Those of trained matrices and of all norms.
    pub(crate) weights: bool,
    /// The gradient of the input of the first block.
    pub(crate) input: bool,
    /// For each token, the mean squares of the gradients of matrix outputs.
    pub(crate) outputs: bool,
}

/// Mean squares of the gradients of a matrix's outputs, one per token.
type Squares = Rc<RefCell<Vec<(WeightName, Vec<f32>)>>>;

/// Consecutive blocks on a tape.
pub(crate) struct Recording<'t, E: TapeEngine> {
    tape: Tape<'t, E>,
    spec: &'t DecoderSpec,
    rotary: E::Rotary,
    segments: E::Segments,
    wanted: Wanted,
    from: Var,
    at: Var,
    leaves: Vec<(WeightName, Var)>,
    squares: Squares,
}

impl<'t, E: TapeEngine> Recording<'t, E> {
    /// An empty recording. `x` is the residual stream, `tokens x hidden`: sequences of `lengths` tokens, each from position 0.
    pub(crate) fn new(
        engine: &'t E,
        shared: &'t TapeSpec<E>,
        x: &'t E::View,
        lengths: &[usize],
        wanted: Wanted,
    ) -> Result<Self, GradError> {
        let mut tape = Tape::new(engine, &Buffers::default()).with_precision(shared.precision);
        let hidden = shared.spec.hidden;
        let from = if wanted.input { tape.parameter(x, hidden)? } else { tape.constant(x, hidden)? };
        let positions = lengths.iter().flat_map(|&n| 0..n as u32).collect();
        Ok(Self {
            tape,
            spec: &shared.spec,
            rotary: engine.rotary(&shared.rope, positions)?,
            segments: engine.segments(lengths.to_vec())?,
            wanted,
            from,
            at: from,
            leaves: Vec::new(),
            squares: Squares::default(),
        })
    }

    /// Passes the stream through a block.
    pub(crate) fn block(&mut self, layer: usize, values: &'t BlockValues<'t, E>) -> Result<(), GradError> {
        let spec = self.spec;
        let mut x = self.at;
        block(&mut OnTape { recording: self, values }, spec, layer, &mut x, &mut ())?;
        self.at = x;
        Ok(())
    }

    /// The residual stream after the last block.
    pub(crate) fn output(&self) -> Result<&E::View, GradError> {
        self.tape.value(self.at)
    }

    /// [`output`](Self::output) of a recording that is no longer needed.
    pub(crate) fn into_output(self) -> Result<E::Tensor, GradError> {
        self.tape.into_tensor(self.at)
    }

    /// The requested gradients, given the gradient `dy` of the output.
    pub(crate) fn backward(self, dy: E::Tensor) -> Result<BlockGradients<E>, GradError> {
        let Self { tape, from, at, leaves, squares, .. } = self;
        let found = tape.backward_from(at, dy)?;
        Ok(BlockGradients { found, from, leaves, squares: squares.take() })
    }

    fn leaf(&mut self, name: WeightName, values: &'t E::View, trained: bool) -> Result<Var, GradError> {
        let (_, cols) = self.spec.shape(name);
        if !(trained && self.wanted.weights) {
            return self.tape.constant(values, cols);
        }
        let leaf = self.tape.parameter(values, cols)?;
        self.leaves.push((name, leaf));
        Ok(leaf)
    }
}

/// Gradients of a loss.
pub(crate) struct BlockGradients<E: TapeEngine> {
    found: Gradients<E>,
    from: Var,
    leaves: Vec<(WeightName, Var)>,
    squares: Vec<(WeightName, Vec<f32>)>,
}

impl<E: TapeEngine> BlockGradients<E> {
    /// The gradient of a matrix or a norm, in its shape, on the host; `None` if it is not trained.
    pub(crate) fn of(&self, engine: &E, name: WeightName) -> Result<Option<Cow<'_, [f32]>>, GradError> {
        let leaf = self.leaves.iter().find(|(other, _)| *other == name);
        let gradient = leaf.and_then(|(_, leaf)| self.found.get(*leaf));
        gradient.map(|gradient| engine.download(gradient)).transpose()
    }

    /// The gradient of the input, `tokens x hidden`; `None` if not requested.
    pub(crate) fn take_input(&mut self) -> Option<E::Tensor> {
        self.found.take(self.from)
    }

    /// Mean squares of the gradients of a matrix's outputs, one per token; empty if not requested.
    pub(crate) fn of_outputs(&self, name: WeightName) -> &[f32] {
        self.squares.iter().find(|(other, _)| *other == name).map_or(&[], |(_, squares)| squares)
    }
}

/// The operations of a block on a tape.
struct OnTape<'a, 't, E: TapeEngine> {
    recording: &'a mut Recording<'t, E>,
    values: &'t BlockValues<'t, E>,
}

impl<E: TapeEngine> OnTape<'_, '_, E> {
    fn norm(&mut self, x: Var, name: WeightName) -> Result<Var, GradError> {
        let weight = name.norm_index().and_then(|index| self.values.vectors.norms[index].as_ref());
        let weight = weight.ok_or_else(|| missing(name))?;
        let weight = self.recording.leaf(name, weight.view(), true)?;
        self.recording.tape.rms_norm(x, weight, self.recording.spec.norm_eps(name))
    }

    fn linear(&mut self, x: Var, name: WeightName) -> Result<Var, GradError> {
        let index = name.matrix_index().ok_or_else(|| missing(name))?;
        let bias = self.values.vectors.biases[index].as_ref().map(EngineValues::view);
        let weight = self.values.matrices[index].view();
        let weight = self.recording.leaf(name, weight, self.values.trained[index])?;
        let tape = &mut self.recording.tape;
        let bias = bias.map(|bias| tape.constant(bias, bias.elements())).transpose()?;
        let y = tape.linear(x, weight, bias)?;
        if !self.recording.wanted.outputs {
            return Ok(y);
        }
        let (_, width) = tape.shape(y)?;
        let mut copy = tape.take(tape.value(y)?.elements())?;
        tape.engine().copy(tape.value(y)?, copy.borrow_mut())?;
        let squares = Rc::clone(&self.recording.squares);
        tape.record(&[y], copy, width, Observe { y, width, name, squares })
    }
}

fn missing(name: WeightName) -> GradError {
    GradError::Operation(Box::new(trike_nn::NnError::NoWeight { name: name.to_string() }))
}

impl<E: TapeEngine> LayerOps for OnTape<'_, '_, E> {
    type Tensor = Var;
    type Error = GradError;

    fn project<const N: usize>(
        &mut self,
        x: &Var,
        norm: WeightName,
        layers: [WeightName; N],
    ) -> Result<[Var; N], GradError> {
        let input = self.norm(*x, norm)?;
        let mut outs = [input; N];
        for (out, layer) in outs.iter_mut().zip(layers) {
            *out = self.linear(input, layer)?;
        }
        Ok(outs)
    }

    fn project_add(
        &mut self,
        input: LayerInput<'_, Var>,
        norm: Option<WeightName>,
        layer: WeightName,
        x: &mut Var,
    ) -> Result<(), GradError> {
        let mut input = match input {
            LayerInput::Plain(input) => *input,
            LayerInput::Gated { gate, up, activation } => {
                self.recording.tape.gated(*gate, *up, activation)?
            }
        };
        if let Some(norm) = norm {
            input = self.norm(input, norm)?;
        }
        let out = self.linear(input, layer)?;
        *x = self.recording.tape.add(*x, out)?;
        Ok(())
    }
}

impl<E: TapeEngine> AttentionOps<()> for OnTape<'_, '_, E> {
    fn head_norm(&mut self, x: Var, norm: WeightName) -> Result<Var, GradError> {
        self.norm(x, norm)
    }

    fn attend(
        &mut self,
        layer: AttentionLayer,
        [mut q, mut k, v]: [Var; 3],
        (): &mut (),
    ) -> Result<Var, GradError> {
        let Recording { tape, spec, rotary, segments, .. } = &mut *self.recording;
        let attention = spec.attention(layer);
        if layer.rope {
            q = tape.rope(q, attention.heads, rotary)?;
            k = tape.rope(k, attention.kv_heads, rotary)?;
        }
        tape.attention(&attention, [q, k, v], segments)
    }
}

/// An identity operation that observes its gradient.
struct Observe {
    y: Var,
    width: usize,
    name: WeightName,
    squares: Squares,
}

impl<E: TapeEngine> Operation<E> for Observe {
    fn backward(self: Box<Self>, pass: &mut Backward<'_, E>, dy: E::Tensor) -> Result<(), GradError> {
        let mean = |row: &[f32]| row.iter().map(|v| v * v).sum::<f32>() / self.width as f32;
        let values = pass.engine().download(dy.borrow())?;
        let squares = values.chunks_exact(self.width).map(mean).collect();
        drop(values);
        RefCell::borrow_mut(&self.squares).push((self.name, squares));
        pass.add(self.y, dy)
    }
}
