//! A block of a decoder on a tape.

use std::borrow::Borrow;

use trike_grad::{Engine, GradError, Tape, TernaryScale, Var};
use trike_nn::WeightName;

use super::pass::{Leaves, Pass};
use super::tensor::{self, Divided, Group, Outputs};
use crate::TrainError;

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

impl<'p, E: Engine> Pass<'p, E> {
    /// The residual stream behind a block.
    pub(super) fn block<'t>(
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
}
