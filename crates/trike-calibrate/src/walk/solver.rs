//! Error compensation for layers that share their inputs.

use trike_cpu::Cpu;
use trike_quant::{
    CompensateConfig, CrossProduct, Hessian, HessianFactor, InputStatistics, MatrixView, QuantError,
    TritLayout, compensate,
};
use trike_trit::{Granularity, Hadamard, TritTensor};

use crate::{
    Compensation, Pruning,
    factors::{Factors, output_error},
    weights::rotated,
};

/// Sums over the tokens of a text at a hook point.
pub(super) struct Statistics {
    pub(super) hessian: Hessian,
    /// Statistics of the target, if the layer is fitted to one.
    pub(super) aim: Option<Aim>,
}

/// The target of the outputs of layers.
pub(super) enum Aim {
    /// The outputs in the dense model: cross products of its inputs with those of the ternary model.
    Inputs(CrossProduct),
    /// The outputs that restore the residual stream of the dense model: cross products with the inputs.
    Outputs(CrossProduct),
}

/// State shared by the layers at a hook point.
pub(super) struct Solver<'a> {
    pub(super) cpu: &'a Cpu,
    how: Compensation,
    /// Statistics of each input.
    pub(super) inputs: InputStatistics,
    aim: Option<Aim>,
    pub(super) factors: Factors,
}

impl<'a> Solver<'a> {
    pub(super) fn new(
        cpu: &'a Cpu,
        how: Compensation,
        statistics: Statistics,
        rotation: Option<Hadamard>,
    ) -> Result<Self, QuantError> {
        let Statistics { hessian, aim } = statistics;
        let (hessian, inputs) = hessian.into_matrix()?;
        Ok(Self { cpu, how, inputs, aim, factors: Factors::new(hessian, rotation, how)? })
    }

    /// The factored Hessian for scales of this granularity.
    pub(super) fn factor(&mut self, granularity: Granularity) -> Result<&HessianFactor, QuantError> {
        self.factors.get(self.cpu, granularity)
    }

    /// The ternary weight, and the relative error of its outputs with respect to the target.
    pub(super) fn solve(
        &mut self,
        weights: MatrixView<'_>,
        layout: TritLayout,
        prune: Option<&Pruning>,
    ) -> Result<(TritTensor, f64), QuantError> {
        let (cpu, rotation) = (self.cpu, self.factors.rotation);
        let turned = |values: &[f32]| rotated(rotation, weights.cols(), values);
        let mut target = turned(weights.values())?;
        if let Some(aim) = &self.aim {
            let (values, hessian) = (weights.values(), &self.factors.hessian);
            let shift = match aim {
                Aim::Inputs(cross) => cross.shift(cpu, values, hessian)?,
                Aim::Outputs(cross) => cross.shift_of_outputs(cpu, values, hessian)?,
            };
            let factor = self.factors.get(cpu, layout.granularity)?;
            target = factor.corrected(cpu, &target, &turned(&shift)?)?;
        }
        let view = MatrixView::new(weights.rows(), weights.cols(), &target)?;
        let config = CompensateConfig::default().with_layout(layout).with_rounds(self.how.rounds);
        let factor = self.factors.get(cpu, layout.granularity)?;
        // Pruning is never combined with rotation.
        let keep = prune.map(|prune| prune.keep(view, &self.inputs, factor)).transpose()?;
        let (tensor, _) = compensate(cpu, view, factor, keep.as_deref(), &config)?;
        let tensor = tensor.with_rotation(rotation)?;
        // The rotation is its own inverse.
        let target = turned(&target)?;
        let error = output_error(cpu, &target, &tensor.dequantize(), &self.factors.hessian)?;
        Ok((tensor, error.sqrt()))
    }
}
