//! A forward pass of a decoder on tapes.

use std::borrow::{Borrow, BorrowMut};
use std::ops::Range;

use trike_grad::{Buffers, Elements, Engine, GradError, Gradients, MixedPrecision, Tape, TernaryScale, Var};
use trike_nn::{DecoderSpec, WeightName};

use super::Parameters;
use super::objective::{EMBEDDING_GROUP, Loss, Objective, TernaryPolicy};
use super::parameters::zeros;
use super::tensor::{self, Divided, Group, Outputs};
use crate::data::Batch;
use crate::{Adapter, TrainError};

/// A forward pass over a batch.
pub(super) struct Pass<'p, E: Engine> {
    pub(super) engine: &'p E,
    pub(super) buffers: &'p Buffers<E::Tensor>,
    pub(super) spec: &'p DecoderSpec,
    pub(super) parameters: &'p Parameters<E::Tensor>,
    /// What is trained instead of the parameters.
    pub(super) adapter: Option<&'p Adapter<E::Tensor>>,
    /// Matrices that are ternary already, by their place.
    pub(super) ternary: &'p [Option<E::Tensor>],
    pub(super) policy: &'p TernaryPolicy,
    pub(super) batch: &'p Batch,
    pub(super) precision: MixedPrecision,
    pub(super) rotary: E::Rotary,
    pub(super) segments: E::Segments,
    /// The ranks that hold the rows of each matrix; `None` if all are here.
    pub(super) divided: Option<Divided<'p, E>>,
}

/// The input of linear layers.
#[derive(Clone, Copy)]
struct Input {
    /// As it was computed, which adapters read.
    exact: Var,
    /// As ternary weights read it.
    rounded: Var,
    /// The columns that get the gradient, where layers are divided among ranks; otherwise as `rounded`.
    columns: Var,
}

/// A tensor for some parameters, by their place.
pub(crate) type ByPlace<T> = Vec<Option<T>>;

/// Where the gradients of parameters go, by their place.
#[derive(Debug)]
pub(crate) enum Sums<'g, T> {
    /// Added to these.
    Added(&'g mut [T]),
    /// The first of a parameter becomes the sum: nothing is cleared, and most of it is not read again.
    Found(&'g mut [Option<T>]),
}

/// Parameters on a tape.
pub(super) struct Leaves {
    tracked: bool,
    used: Vec<(usize, Var)>,
}

impl Leaves {
    pub(super) fn new(tracked: bool) -> Self {
        Self { tracked, used: Vec::new() }
    }

    /// Adds gradients to those of the parameters.
    pub(super) fn add<E: Engine>(
        self,
        engine: &E,
        found: &mut Gradients<E>,
        buffers: &Buffers<E::Tensor>,
        gradients: &mut Sums<'_, E::Tensor>,
    ) -> Result<(), GradError> {
        for (place, var) in self.used {
            let Some(gradient) = found.take(var) else { continue };
            let sum = match gradients {
                Sums::Added(sums) => &mut sums[place],
                Sums::Found(sums) => match &mut sums[place] {
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

impl<'p, E: Engine> Pass<'p, E> {
    /// An empty tape.
    pub(super) fn tape(&self) -> Tape<'p, E> {
        Tape::new(self.engine, self.buffers).with_precision(self.precision)
    }

    fn leaf<'t>(
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
        // Straight through: the gradient of a ternary matrix is that of its latent weights.
        let ternary = self.ternary.get(place).and_then(Option::as_ref);
        let values: &'p E::View = ternary.unwrap_or(&parameter.values).borrow();
        // Below an adapter, parameters are frozen.
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

    /// The embedding or the head, as it is multiplied.
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
        Ok(tape.embed(table, &self.batch.ids.as_slice().into())?)
    }

    /// The residual stream before the first block.
    pub(super) fn embedded(&self) -> Result<E::Tensor, TrainError> {
        let mut tape = self.tape();
        let x = self.embed(&mut tape, &mut Leaves::new(false))?;
        Ok(tape.to_tensor(x)?)
    }

    /// The residual stream behind all blocks, `tokens x hidden`.
    pub(super) fn behind_blocks(&self) -> Result<E::Tensor, TrainError> {
        let mut x = self.embedded()?;
        for layer in 0..self.spec.layers {
            x = self.through(x.borrow(), layer..layer + 1)?;
        }
        Ok(x)
    }

    /// The normed residual stream `x`, and the head as it is multiplied, without gradients.
    pub(super) fn hidden<'t>(&self, tape: &mut Tape<'t, E>, x: &'t E::View) -> Result<(Var, Var), TrainError>
    where
        'p: 't,
    {
        let x = tape.constant(x, self.spec.hidden)?;
        self.normed(tape, &mut Leaves::new(false), x)
    }

    /// The residual stream behind some blocks, without a tape.
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

    fn block<'t>(
        &self,
        tape: &mut Tape<'t, E>,
        leaves: &mut Leaves,
        x: Var,
        layer: usize,
    ) -> Result<Var, TrainError>
    where
        'p: 't,
    {
        use WeightName as W;
        let (spec, eps) = (self.spec, self.spec.rms_eps);
        let qkv = spec.biases.qkv;
        // Of several ranks, each computes its heads, if they can be divided.
        let own = self.divided.and_then(|divided| divided.shard.attention(spec.attention()));
        let attention = own.unwrap_or_else(|| spec.attention());
        let group = Group::default();
        let to = |is_first| own.map_or(Outputs::Gathered, |_| Outputs::Own { group: &group, is_first });
        let normed = self.norm(tape, leaves, x, W::AttentionNorm(layer))?;
        let normed = self.rounded(tape, leaves, normed, W::Query(layer))?;
        let mut project = |name, bias, is_first| {
            self.linear(tape, leaves, normed, name, qkv.then_some(bias), &to(is_first))
        };
        let mut q = project(W::Query(layer), W::QueryBias(layer), true)?;
        let mut k = project(W::Key(layer), W::KeyBias(layer), false)?;
        let v = project(W::Value(layer), W::ValueBias(layer), false)?;
        if spec.qk_norm {
            let weights = [W::QueryNorm(layer), W::KeyNorm(layer)];
            let [q_norm, k_norm] = weights.map(|name| self.leaf(tape, leaves, name));
            q = tape.rms_norm(q, q_norm?, eps)?;
            k = tape.rms_norm(k, k_norm?, eps)?;
        }
        let q = tape.rope(q, attention.heads, &self.rotary)?;
        let k = tape.rope(k, attention.kv_heads, &self.rotary)?;
        let attended = tape.attention(&attention, [q, k, v], &self.segments)?;
        let norm = spec.sub_norms.then_some(W::AttentionSubNorm(layer));
        let attended = self.between(tape, leaves, attended, own.is_some(), norm, W::Output(layer))?;
        let bias = spec.biases.output.then_some(W::OutputBias(layer));
        let out = self.linear(tape, leaves, attended, W::Output(layer), bias, &Outputs::Gathered)?;
        let x = tape.add(x, out)?;

        let mlp = spec.biases.mlp;
        let normed = self.norm(tape, leaves, x, W::MlpNorm(layer))?;
        let normed = self.rounded(tape, leaves, normed, W::Gate(layer))?;
        let group = Group::default();
        let mut project = |name, bias, is_first| {
            let to = Outputs::Own { group: &group, is_first };
            self.linear(tape, leaves, normed, name, mlp.then_some(bias), &to)
        };
        let gate = project(W::Gate(layer), W::GateBias(layer), true)?;
        let up = project(W::Up(layer), W::UpBias(layer), false)?;
        let gated = tape.gated(gate, up, spec.activation)?;
        let norm = spec.sub_norms.then_some(W::MlpSubNorm(layer));
        let gated = self.between(tape, leaves, gated, self.divided.is_some(), norm, W::Down(layer))?;
        let bias = mlp.then_some(W::DownBias(layer));
        let down = self.linear(tape, leaves, gated, W::Down(layer), bias, &Outputs::Gathered)?;
        Ok(tape.add(x, down)?)
    }

    /// What the layer `name` reads of the values `x`, of which this rank has its own columns, or all: with a norm over all of them, if
    /// there is one.
    fn between<'t>(
        &self,
        tape: &mut Tape<'t, E>,
        leaves: &mut Leaves,
        x: Var,
        is_own: bool,
        norm: Option<WeightName>,
        name: WeightName,
    ) -> Result<Input, TrainError>
    where
        'p: 't,
    {
        let whole = match self.divided.filter(|_| is_own) {
            Some(divided) => divided.gather(tape, x, name)?,
            None => x,
        };
        if let Some(norm) = norm {
            let normed = self.norm(tape, leaves, whole, norm)?;
            return self.rounded(tape, leaves, normed, name);
        }
        if !is_own {
            return self.rounded(tape, leaves, whole, name);
        }
        // The gradient of this rank's columns is theirs, with no way through all of them.
        let rounded = self.int8(tape, whole)?;
        Ok(Input { exact: whole, rounded, columns: x })
    }

    fn norm<'t>(
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
        Ok(tape.rms_norm(x, weight, self.spec.rms_eps)?)
    }

    fn int8(&self, tape: &mut Tape<'_, E>, x: Var) -> Result<Var, GradError> {
        match &self.policy.blocks {
            Some(how) if how.int8_activations => tape.int8_activations(x, how.activation_group),
            _ => Ok(x),
        }
    }

    /// Activations as the layer `name` and others with the same input read them; they share one rounding.
    fn rounded<'t>(
        &self,
        tape: &mut Tape<'t, E>,
        leaves: &Leaves,
        exact: Var,
        name: WeightName,
    ) -> Result<Input, TrainError>
    where
        'p: 't,
    {
        let rounded = self.int8(tape, exact)?;
        let columns = match self.divided.filter(|_| leaves.tracked) {
            Some(divided) => divided.columns(tape, rounded, name)?,
            None => rounded,
        };
        Ok(Input { exact, rounded, columns })
    }

    fn linear<'t>(
        &self,
        tape: &mut Tape<'t, E>,
        leaves: &mut Leaves,
        x: Input,
        name: WeightName,
        bias: Option<WeightName>,
        to: &Outputs<'_, 't, E>,
    ) -> Result<Var, TrainError>
    where
        'p: 't,
    {
        let mut weight = self.leaf(tape, leaves, name)?;
        let bias = bias.map(|name| self.leaf(tape, leaves, name)).transpose()?;
        let place = self.divided.and_then(|_| self.parameters.place(name));
        let Some(adapter) = self.adapter else {
            if let (Some(how), true) = (&self.policy.blocks, self.ternary.is_empty()) {
                let scales = self.divided.map_or(&[][..], |divided| &divided.prepared.scales);
                let how = match place.and_then(|place| scales.get(place)?.as_ref()) {
                    None => how.weights,
                    // Of the whole matrix, of which only some rows are here.
                    Some(scale) => {
                        how.weights.with_scale(TernaryScale::Learned(tape.constant(scale.borrow(), 1)?))
                    }
                };
                weight = tape.ternarize(weight, &how)?;
            }
            let (Some(divided), Some(place)) = (self.divided, place) else {
                return Ok(tape.linear(x.rounded, weight, bias)?);
            };
            let input = tensor::Input { whole: x.rounded, columns: x.columns };
            let divided: Divided<'t, E> = divided;
            return Ok(divided.linear(tape, input, (name, place), weight, bias, to, self.precision)?);
        };
        let y = tape.linear(x.rounded, weight, bias)?;
        let Some((place, factors)) = adapter.factors(name) else { return Ok(y) };
        let [a, b] = factors.map(|factor| match leaves.tracked {
            true => tape.parameter(factor.values.borrow(), factor.cols),
            false => tape.constant(factor.values.borrow(), factor.cols),
        });
        let (a, b) = (a?, b?);
        if leaves.tracked {
            leaves.used.extend([(place, a), (place + 1, b)]);
        }
        let low = tape.linear(x.exact, a, None)?;
        let low = tape.scale(low, adapter.config().scale())?;
        let product = tape.linear(low, b, None)?;
        Ok(tape.add(y, product)?)
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
        let name = if self.spec.tied_head { WeightName::Embedding } else { WeightName::Head };
        Ok((hidden, self.table(tape, leaves, name)?))
    }

    /// The normed residual stream `x` and the head as it is multiplied.
    pub(super) fn outputs(&self, x: &E::View) -> Result<[E::Tensor; 2], TrainError> {
        let mut tape = Tape::new(self.engine, self.buffers);
        let (hidden, head) = self.hidden(&mut tape, x)?;
        Ok([tape.to_tensor(hidden)?, tape.to_tensor(head)?])
    }

    /// The cross-entropy at the residual stream `x`.
    pub(super) fn loss(&self, x: &E::View) -> Result<Loss, TrainError> {
        let mut tape = Tape::new(self.engine, self.buffers);
        let (hidden, head) = self.hidden(&mut tape, x)?;
        let loss = tape.cross_entropy(hidden, head, &self.batch.targets, 1.0)?;
        Ok(Loss { sum: loss.sum, divergence: 0.0, tokens: loss.rows })
    }

    /// The loss at the residual stream `x`, and its gradient with respect to `x`; those of the parameters are added to `gradients`.
    pub(super) fn head_gradient(
        &self,
        x: &E::View,
        objective: &mut Objective<'_, E::View>,
        scale: f32,
        gradients: &mut Sums<'_, E::Tensor>,
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
