//! Blocks of a model on a tape: their outputs, and the gradients of their trained weights.

use std::{borrow::Cow, cell::RefCell, rc::Rc, sync::Arc};

use trike_autodiff::{
    Backward, Buffers, EngineMemory, EngineOps, GradError, Gradients, MixedPrecision, Operation, Rotary,
    Tape, Var,
};
use trike_core::ProductPrecision;
use trike_cpu::Cpu;
use trike_model::{AttentionLayer, AttentionOps, DecoderSpec, LayerInput, LayerOps, WeightName, block};

use super::vectors::Vectors;

/// State shared by the tapes of a model.
pub(crate) struct TapeSpec {
    /// Sizes and constants of the model.
    pub(crate) spec: DecoderSpec,
    /// Precision of the operands of products.
    pub(super) precision: MixedPrecision,
    rope: <Cpu as EngineMemory>::RopeTable,
}

impl TapeSpec {
    /// A spec for sequences of at most `longest` tokens.
    pub(crate) fn new(cpu: &Cpu, spec: &DecoderSpec, longest: usize) -> Result<Self, GradError> {
        let rope = cpu.rope_table(spec.rope.frequencies(spec.head_dim), spec.rope.pairing, longest)?;
        // Gradients are noisy anyway; held-out text is evaluated in f32.
        let precision = MixedPrecision {
            input_gradients: ProductPrecision::Bf16,
            weight_gradients: ProductPrecision::Bf16,
            ..MixedPrecision::default()
        };
        Ok(Self { spec: spec.clone(), precision, rope })
    }
}

/// The current weights of a block.
pub(crate) struct BlockValues<'w> {
    /// In the order of [`WeightName::matrices`].
    pub(crate) matrices: [Cow<'w, [f32]>; 7],
    /// Those that require gradients.
    pub(crate) trained: [bool; 7],
    /// Norms and biases.
    pub(crate) vectors: &'w Vectors,
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
pub(crate) struct Recording<'t> {
    tape: Tape<'t>,
    spec: &'t DecoderSpec,
    rotary: Rotary,
    segments: Arc<[usize]>,
    wanted: Wanted,
    from: Var,
    at: Var,
    leaves: Vec<(WeightName, Var)>,
    squares: Squares,
}

impl<'t> Recording<'t> {
    /// An empty recording. `x` is the residual stream, `tokens x hidden`: sequences of `lengths` tokens, each from position 0.
    pub(crate) fn new(
        cpu: &'t Cpu,
        shared: &'t TapeSpec,
        x: &'t [f32],
        lengths: &[usize],
        wanted: Wanted,
    ) -> Result<Self, GradError> {
        let mut tape = Tape::new(cpu, &Buffers::default()).with_precision(shared.precision);
        let hidden = shared.spec.hidden;
        let from = if wanted.input { tape.parameter(x, hidden)? } else { tape.constant(x, hidden)? };
        let positions = lengths.iter().flat_map(|&n| 0..n as u32).collect();
        Ok(Self {
            tape,
            spec: &shared.spec,
            rotary: cpu.rotary(&shared.rope, positions)?,
            segments: cpu.segments(lengths.to_vec())?,
            wanted,
            from,
            at: from,
            leaves: Vec::new(),
            squares: Squares::default(),
        })
    }

    /// Passes the stream through a block.
    pub(crate) fn block(&mut self, layer: usize, values: &'t BlockValues<'t>) -> Result<(), GradError> {
        let spec = self.spec;
        let mut x = self.at;
        block(&mut OnTape { recording: self, values }, spec, layer, &mut x, &mut ())?;
        self.at = x;
        Ok(())
    }

    /// The residual stream after the last block.
    pub(crate) fn output(&self) -> Result<&[f32], GradError> {
        self.tape.value(self.at)
    }

    /// [`output`](Self::output) of a recording that is no longer needed.
    pub(crate) fn into_output(self) -> Result<Vec<f32>, GradError> {
        self.tape.into_tensor(self.at)
    }

    /// The requested gradients, given the gradient `dy` of the output.
    pub(crate) fn backward(self, dy: Vec<f32>) -> Result<BlockGradients, GradError> {
        let Self { tape, from, at, leaves, squares, .. } = self;
        let found = tape.backward_from(at, dy)?;
        Ok(BlockGradients { found, from, leaves, squares: squares.take() })
    }

    fn leaf(&mut self, name: WeightName, values: &'t [f32], trained: bool) -> Result<Var, GradError> {
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
pub(crate) struct BlockGradients {
    found: Gradients,
    from: Var,
    leaves: Vec<(WeightName, Var)>,
    squares: Vec<(WeightName, Vec<f32>)>,
}

impl BlockGradients {
    /// The gradient of a matrix or a norm, in its shape; `None` if it is not trained.
    pub(crate) fn of(&self, name: WeightName) -> Option<&[f32]> {
        let (_, leaf) = self.leaves.iter().find(|(other, _)| *other == name)?;
        self.found.get(*leaf)
    }

    /// The gradient of the input, `tokens x hidden`; empty if not requested.
    pub(crate) fn take_input(&mut self) -> Vec<f32> {
        self.found.take(self.from).unwrap_or_default()
    }

    /// Mean squares of the gradients of a matrix's outputs, one per token; empty if not requested.
    pub(crate) fn of_outputs(&self, name: WeightName) -> &[f32] {
        self.squares.iter().find(|(other, _)| *other == name).map_or(&[], |(_, squares)| squares)
    }
}

/// The operations of a block on a tape.
struct OnTape<'a, 't> {
    recording: &'a mut Recording<'t>,
    values: &'t BlockValues<'t>,
}

impl OnTape<'_, '_> {
    fn norm(&mut self, x: Var, name: WeightName) -> Result<Var, GradError> {
        let weight = name.norm_index().and_then(|index| self.values.vectors.norms[index].as_deref());
        let weight = weight.ok_or_else(|| missing(name))?;
        let weight = self.recording.leaf(name, weight, true)?;
        self.recording.tape.rms_norm(x, weight, self.recording.spec.norm_eps(name))
    }

    fn linear(&mut self, x: Var, name: WeightName) -> Result<Var, GradError> {
        let index = name.matrix_index().ok_or_else(|| missing(name))?;
        let bias = self.values.vectors.biases[index].as_deref();
        let weight = self.recording.leaf(name, &self.values.matrices[index], self.values.trained[index])?;
        let tape = &mut self.recording.tape;
        let bias = bias.map(|bias| tape.constant(bias, bias.len())).transpose()?;
        let y = tape.linear(x, weight, bias)?;
        if !self.recording.wanted.outputs {
            return Ok(y);
        }
        let (_, width) = tape.shape(y)?;
        let mut copy = tape.take(tape.value(y)?.len())?;
        tape.engine().copy(tape.value(y)?, &mut copy)?;
        let squares = Rc::clone(&self.recording.squares);
        tape.record(&[y], copy, width, Observe { y, width, name, squares })
    }
}

fn missing(name: WeightName) -> GradError {
    GradError::Operation(Box::new(trike_nn::NnError::NoWeight { name: name.to_string() }))
}

impl LayerOps for OnTape<'_, '_> {
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

impl AttentionOps<()> for OnTape<'_, '_> {
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

impl Operation<Cpu> for Observe {
    fn backward(self: Box<Self>, pass: &mut Backward<'_>, dy: Vec<f32>) -> Result<(), GradError> {
        let mean = |row: &[f32]| row.iter().map(|v| v * v).sum::<f32>() / self.width as f32;
        let squares = dy.chunks_exact(self.width).map(mean).collect();
        self.squares.borrow_mut().push((self.name, squares));
        pass.add(self.y, dy)
    }
}
