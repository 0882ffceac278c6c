//! A block of a decoder on a tape.

use std::borrow::Borrow;

use trike_autodiff::{GradError, Tape, TapeEngine, TernaryScale, Var};
use trike_core::AttentionSpec;
use trike_model::{AttentionLayer, AttentionOps, HookPoint, LayerOps, WeightName, block};

use super::pass::{Leaves, Pass};
use super::tensor::{self, Divided, Group, Outputs};
use crate::TrainError;

/// The input of linear layers.
#[derive(Clone, Copy)]
struct Input {
    /// Unrounded, as adapters read it.
    exact: Var,
    /// Rounded, as ternary weights read it.
    rounded: Var,
    /// The columns that get the gradient, if layers are divided among ranks; otherwise `rounded`.
    columns: Var,
}

/// The operations of a block on a tape.
struct OnTape<'a, 'p, 't, E: TapeEngine> {
    pass: &'a Pass<'p, E>,
    tape: &'a mut Tape<'t, E>,
    leaves: &'a mut Leaves,
    /// The attention of this rank's heads; `None` if it computes all heads.
    own: Option<(usize, usize)>,
}

impl<'p: 't, 't, E: TapeEngine> OnTape<'_, 'p, 't, E> {
    /// Whether the values at a hook point are divided by columns among ranks.
    fn is_own(&self, point: Option<HookPoint>) -> bool {
        match point {
            Some(HookPoint::Output) => self.own.is_some(),
            Some(HookPoint::Down) => self.pass.divided.is_some(),
            _ => false,
        }
    }

    fn read(&mut self, x: Var, norm: Option<WeightName>, layer: WeightName) -> Result<Input, TrainError> {
        let is_own = self.is_own(layer.read_at());
        self.pass.between(self.tape, self.leaves, x, is_own, norm, layer)
    }
}

impl<'p, 't, E: TapeEngine> LayerOps for OnTape<'_, 'p, 't, E>
where
    'p: 't,
{
    type Tensor = Var;
    type Error = TrainError;

    fn project<const N: usize>(
        &mut self,
        x: &Var,
        norm: WeightName,
        layers: [WeightName; N],
    ) -> Result<[Var; N], TrainError> {
        let input = self.read(*x, Some(norm), layers[0])?;
        let stays = self.own.is_some() || layers[0].read_at() == Some(HookPoint::Mlp);
        let group = Group::default();
        let mut outs = [input.exact; N];
        for (i, (out, name)) in outs.iter_mut().zip(layers).enumerate() {
            let own = Outputs::Own { group: &group, is_first: i == 0 };
            let to = if stays { own } else { Outputs::Gathered };
            *out = self.pass.linear(self.tape, self.leaves, input, name, &to)?;
        }
        Ok(outs)
    }

    fn project_add(
        &mut self,
        input: trike_model::LayerInput<'_, Var>,
        norm: Option<WeightName>,
        layer: WeightName,
        x: &mut Var,
    ) -> Result<(), TrainError> {
        let input = match input {
            trike_model::LayerInput::Plain(input) => *input,
            trike_model::LayerInput::Gated { gate, up, activation } => {
                self.tape.gated(*gate, *up, activation)?
            }
        };
        let input = self.read(input, norm, layer)?;
        let out = self.pass.linear(self.tape, self.leaves, input, layer, &Outputs::Gathered)?;
        *x = self.tape.add(*x, out)?;
        Ok(())
    }
}

impl<'p, 't, E: TapeEngine> AttentionOps<()> for OnTape<'_, 'p, 't, E>
where
    'p: 't,
{
    fn head_norm(&mut self, x: Var, norm: WeightName) -> Result<Var, TrainError> {
        self.pass.norm(self.tape, self.leaves, x, norm)
    }

    fn attend(
        &mut self,
        layer: AttentionLayer,
        [mut q, mut k, v]: [Var; 3],
        (): &mut (),
    ) -> Result<Var, TrainError> {
        let whole = self.pass.spec.attention(layer);
        let attention = match self.own {
            Some((heads, kv_heads)) => AttentionSpec { heads, kv_heads, ..whole },
            None => whole,
        };
        if layer.rope {
            q = self.tape.rope(q, attention.heads, &self.pass.rotary)?;
            k = self.tape.rope(k, attention.kv_heads, &self.pass.rotary)?;
        }
        Ok(self.tape.attention(&attention, [q, k, v], &self.pass.segments)?)
    }
}

impl<'p, E: TapeEngine> Pass<'p, E> {
    /// The residual stream after a block.
    pub(super) fn block<'t>(
        &self,
        tape: &mut Tape<'t, E>,
        leaves: &mut Leaves,
        mut x: Var,
        layer: usize,
    ) -> Result<Var, TrainError>
    where
        'p: 't,
    {
        let own = self.divided.and_then(|divided| divided.shard.heads());
        let mut ops = OnTape { pass: self, tape, leaves, own };
        block(&mut ops, self.spec, layer, &mut x, &mut ())?;
        Ok(x)
    }

    /// The input of the layer `name` from the values `x`: gathered if `is_own`, since each rank then has its own columns, and
    /// normed if there is a norm.
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
        // The gradient flows to this rank's columns directly, bypassing the gather.
        let rounded = self.int8(tape, whole)?;
        Ok(Input { exact: whole, rounded, columns: x })
    }

    fn int8(&self, tape: &mut Tape<'_, E>, x: Var) -> Result<Var, GradError> {
        match &self.policy.blocks {
            Some(how) if how.int8_activations => tape.int8_activations(x, how.activation_group),
            _ => Ok(x),
        }
    }

    /// The input of the layer `name`, rounded; layers with the same input share the rounding.
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
        to: &Outputs<'_, 't, E>,
    ) -> Result<Var, TrainError>
    where
        'p: 't,
    {
        let mut weight = self.leaf(tape, leaves, name)?;
        let bias = name.bias().and_then(|bias| self.spec.optional(bias));
        let bias = bias.map(|name| self.leaf(tape, leaves, name)).transpose()?;
        let place = self.divided.and_then(|_| self.parameters.place(name));
        let Some(adapter) = self.adapter else {
            if let (Some(how), true) = (&self.policy.blocks, self.ternary.is_empty()) {
                let scales = self.divided.map_or(&[][..], |divided| &divided.prepared.scales);
                let how = match place.and_then(|place| scales.get(place)?.as_ref()) {
                    None => how.weights,
                    // The scale of the whole matrix, of which this rank holds some rows.
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
