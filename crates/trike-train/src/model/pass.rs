//! A forward pass of a decoder on tapes.

use std::borrow::{Borrow, BorrowMut};
use std::ops::Range;

use trike_autodiff::{Buffers, Elements, GradError, Gradients, MixedPrecision, Tape, TapeEngine, Var};
use trike_nn::{DecoderSpec, WeightName};

use super::Parameters;
use super::objective::{EMBEDDING_GROUP, Loss, Objective, TernaryPolicy};
use super::parameters::zeros;
use super::tensor::Divided;
use crate::data::Batch;
use crate::{Adapter, TrainError};

/// A forward pass over a batch.
pub(super) struct Pass<'p, E: TapeEngine> {
    pub(super) engine: &'p E,
    pub(super) buffers: &'p Buffers<E::Tensor>,
    pub(super) spec: &'p DecoderSpec,
    pub(super) parameters: &'p Parameters<E::Tensor>,
    /// The adapter that is trained instead of the parameters.
    pub(super) adapter: Option<&'p Adapter<E::Tensor>>,
    /// Matrices that are already ternarized, by parameter index.
    pub(super) ternary: &'p [Option<E::Tensor>],
    pub(super) policy: &'p TernaryPolicy,
    pub(super) batch: &'p Batch,
    pub(super) precision: MixedPrecision,
    pub(super) rotary: E::Rotary,
    pub(super) segments: E::Segments,
    /// Tensor parallelism: the ranks that hold the rows of each matrix; `None` if all rows are here.
    pub(super) divided: Option<Divided<'p, E>>,
}

/// An optional tensor per parameter, by parameter index.
pub(crate) type ByPlace<T> = Vec<Option<T>>;

/// Destination of parameter gradients, by parameter index.
#[derive(Debug)]
pub(crate) enum GradientSink<'g, T> {
    /// Adds the gradients to these sums.
    Accumulate(&'g mut [T]),
    /// Moves a parameter's first gradient in instead of adding it to zeros.
    Collect(&'g mut [Option<T>]),
}

/// Parameters on a tape.
pub(super) struct Leaves {
    pub(super) tracked: bool,
    pub(super) used: Vec<(usize, Var)>,
}

impl Leaves {
    pub(super) fn new(tracked: bool) -> Self {
        Self { tracked, used: Vec::new() }
    }

    /// Adds the gradients of these leaves to those of the parameters.
    pub(super) fn add<E: TapeEngine>(
        self,
        engine: &E,
        found: &mut Gradients<E>,
        buffers: &Buffers<E::Tensor>,
        gradients: &mut GradientSink<'_, E::Tensor>,
    ) -> Result<(), GradError> {
        for (place, var) in self.used {
            let Some(gradient) = found.take(var) else { continue };
            let sum = match gradients {
                GradientSink::Accumulate(sums) => &mut sums[place],
                GradientSink::Collect(sums) => match &mut sums[place] {
                    none @ None => {
                        *none = Some(gradient);
                        continue;
                    }
                    Some(sum) => sum,
                },
            };
            engine.add(sum.borrow_mut(), gradient.borrow())?;
            buffers.give(gradient);
        }
        Ok(())
    }
}

/// `by x`, without an operation where that is `x`.
fn scaled<E: TapeEngine>(tape: &mut Tape<'_, E>, x: Var, by: f32) -> Result<Var, TrainError> {
    Ok(if by == 1.0 { x } else { tape.scale(x, by)? })
}

impl<'p, E: TapeEngine> Pass<'p, E> {
    /// An empty tape.
    pub(super) fn tape(&self) -> Tape<'p, E> {
        Tape::new(self.engine, self.buffers).with_precision(self.precision)
    }

    pub(super) fn leaf<'t>(
        &self,
        tape: &mut Tape<'t, E>,
        leaves: &mut Leaves,
        name: WeightName,
    ) -> Result<Var, TrainError>
    where
        'p: 't,
    {
        let parameters: &'p Parameters<E::Tensor> = self.parameters;
        let found = parameters.all().iter().enumerate().find(|(_, parameter)| parameter.name == name);
        let Some((place, parameter)) = found else {
            return Err(TrainError::NoParameter { name: name.to_string() });
        };
        // Straight-through: the gradient of a ternary matrix is passed to its latent weights.
        let ternary = self.ternary.get(place).and_then(Option::as_ref);
        let values: &'p E::View = ternary.unwrap_or(&parameter.values).borrow();
        // With an adapter, the parameters are frozen.
        let trained = leaves.tracked && self.adapter.is_none();
        let var = match trained {
            true => tape.parameter(values, parameter.cols)?,
            false => tape.constant(values, parameter.cols)?,
        };
        if trained {
            leaves.used.push((place, var));
        }
        Ok(var)
    }

    /// The embedding or the head, rounded by the policy.
    fn table<'t>(
        &self,
        tape: &mut Tape<'t, E>,
        leaves: &mut Leaves,
        name: WeightName,
    ) -> Result<Var, TrainError>
    where
        'p: 't,
    {
        let table = self.leaf(tape, leaves, name)?;
        if !self.policy.int8_embedding {
            return Ok(table);
        }
        Ok(tape.int8_weights(table, EMBEDDING_GROUP)?)
    }

    pub(super) fn embed<'t>(&self, tape: &mut Tape<'t, E>, leaves: &mut Leaves) -> Result<Var, TrainError>
    where
        'p: 't,
    {
        let table = self.table(tape, leaves, WeightName::Embedding)?;
        let x = tape.embed(table, &self.batch.ids.as_slice().into())?;
        scaled(tape, x, self.spec.embedding_factor())
    }

    /// The residual stream before the first block.
    pub(super) fn embedded(&self) -> Result<E::Tensor, TrainError> {
        let mut tape = self.tape();
        let x = self.embed(&mut tape, &mut Leaves::new(false))?;
        Ok(tape.to_tensor(x)?)
    }

    /// The residual stream after all blocks, `tokens x hidden`.
    pub(super) fn after_blocks(&self) -> Result<E::Tensor, TrainError> {
        let mut x = self.embedded()?;
        for layer in 0..self.spec.layers {
            x = self.through(x.borrow(), layer..layer + 1)?;
        }
        Ok(x)
    }

    /// The normed residual stream `x` and the rounded head, without gradients.
    pub(super) fn hidden<'t>(&self, tape: &mut Tape<'t, E>, x: &'t E::View) -> Result<(Var, Var), TrainError>
    where
        'p: 't,
    {
        let x = tape.constant(x, self.spec.hidden)?;
        self.normed(tape, &mut Leaves::new(false), x)
    }

    /// The residual stream after some blocks, without a tape.
    pub(super) fn through(&self, x: &E::View, layers: Range<usize>) -> Result<E::Tensor, TrainError> {
        let mut tape = self.tape();
        let from = tape.constant(x, self.spec.hidden)?;
        let y = self.blocks(&mut tape, &mut Leaves::new(false), from, layers)?;
        Ok(tape.to_tensor(y)?)
    }

    pub(super) fn blocks<'t>(
        &self,
        tape: &mut Tape<'t, E>,
        leaves: &mut Leaves,
        mut x: Var,
        layers: Range<usize>,
    ) -> Result<Var, TrainError>
    where
        'p: 't,
    {
        for layer in layers {
            x = self.block(tape, leaves, x, layer)?;
        }
        Ok(x)
    }

    pub(super) fn norm<'t>(
        &self,
        tape: &mut Tape<'t, E>,
        leaves: &mut Leaves,
        x: Var,
        name: WeightName,
    ) -> Result<Var, TrainError>
    where
        'p: 't,
    {
        let weight = self.leaf(tape, leaves, name)?;
        Ok(tape.rms_norm(x, weight, self.spec.norm_eps(name))?)
    }

    /// The normed residual stream `x` and the head.
    fn normed<'t>(
        &self,
        tape: &mut Tape<'t, E>,
        leaves: &mut Leaves,
        x: Var,
    ) -> Result<(Var, Var), TrainError>
    where
        'p: 't,
    {
        let hidden = self.norm(tape, leaves, x, WeightName::FinalNorm)?;
        let hidden = scaled(tape, hidden, self.spec.head_factor())?;
        let name = if self.spec.tied_head { WeightName::Embedding } else { WeightName::Head };
        Ok((hidden, self.table(tape, leaves, name)?))
    }

    /// The normed residual stream `x` and the rounded head.
    pub(super) fn outputs(&self, x: &E::View) -> Result<[E::Tensor; 2], TrainError> {
        let mut tape = Tape::new(self.engine, self.buffers);
        let (hidden, head) = self.hidden(&mut tape, x)?;
        Ok([tape.to_tensor(hidden)?, tape.to_tensor(head)?])
    }

    /// The cross-entropy for the residual stream `x`.
    pub(super) fn loss(&self, x: &E::View) -> Result<Loss, TrainError> {
        let mut tape = Tape::new(self.engine, self.buffers);
        let (hidden, head) = self.hidden(&mut tape, x)?;
        let loss = tape.cross_entropy(hidden, head, &self.batch.targets, 1.0)?;
        Ok(Loss { sum: loss.sum, divergence: 0.0, tokens: loss.rows })
    }

    /// The loss for the residual stream `x`, and its gradient with respect to `x`; parameter gradients are added to `gradients`.
    pub(super) fn head_gradient(
        &self,
        x: &E::View,
        objective: &mut Objective<'_, E::View>,
        scale: f32,
        gradients: &mut GradientSink<'_, E::Tensor>,
    ) -> Result<(Loss, E::Tensor), TrainError> {
        let mut tape = self.tape();
        let mut leaves = Leaves::new(true);
        let from = tape.parameter(x, self.spec.hidden)?;
        let (hidden, head) = self.normed(&mut tape, &mut leaves, from)?;
        let targets = &self.batch.targets;
        let (var, loss) = match objective {
            Objective::Text => {
                let loss = tape.cross_entropy(hidden, head, targets, scale)?;
                (loss.var, Loss { sum: loss.sum, divergence: 0.0, tokens: loss.rows })
            }
            Objective::Distill { text, teacher } => {
                let loss = tape.distill(hidden, head, targets, [*text * scale, scale], teacher)?;
                (loss.var, Loss { sum: loss.cross_entropy, divergence: loss.divergence, tokens: loss.rows })
            }
        };
        let mut found = tape.backward(var)?;
        leaves.add(self.engine, &mut found, self.buffers, gradients)?;
        let dx = found.take(from).map_or_else(|| zeros(self.engine, x.elements()), Ok)?;
        Ok((loss, dx))
    }
}
