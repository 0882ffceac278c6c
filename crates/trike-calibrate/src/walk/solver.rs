//! Error compensation for layers that share their inputs.

use trike_cpu::Cpu;
use trike_quant::{
    CompensateConfig, CrossProduct, Hessian, HessianFactor, MatrixView, QuantError, TritLayout, compensate,
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
    /// Cross products of the inputs of the dense model with those of the ternary one.
    pub(super) cross: CrossProduct,
    /// Cross products of the difference of the residual streams with the inputs, if the layer's output is added to the
    /// stream.
    pub(super) residual: Option<CrossProduct>,
}

/// State shared by the layers at a hook point.
pub(super) struct Solver<'a> {
    pub(super) cpu: &'a Cpu,
    how: Compensation,
    pub(super) statistics: Statistics,
    pub(super) factors: Factors,
}

impl<'a> Solver<'a> {
    pub(super) fn new(
        cpu: &'a Cpu,
        how: Compensation,
        statistics: Statistics,
        rotation: Option<Hadamard>,
    ) -> Result<Self, QuantError> {
        let factors = Factors::new(statistics.hessian.matrix()?, rotation, how)?;
        Ok(Self { cpu, how, statistics, factors })
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
        if self.how.follow {
            let Statistics { cross, residual, .. } = &self.statistics;
            let shift = cross.shift(cpu, weights.values(), &self.factors.hessian, residual.as_ref())?;
            let factor = self.factors.get(cpu, layout.granularity)?;
            target = factor.corrected(cpu, &target, &turned(&shift)?)?;
        }
        let view = MatrixView::new(weights.rows(), weights.cols(), &target)?;
        let config = CompensateConfig::default().with_layout(layout).with_rounds(self.how.rounds);
        let factor = self.factors.get(cpu, layout.granularity)?;
        // Pruning is never combined with rotation.
        let keep = prune.map(|prune| prune.keep(view, &self.statistics.hessian, factor)).transpose()?;
        let (tensor, _) = compensate(cpu, view, factor, keep.as_deref(), &config)?;
        let tensor = tensor.with_rotation(rotation)?;
        // The rotation is its own inverse.
        let target = turned(&target)?;
        let error = output_error(cpu, &target, &tensor.dequantize(), &self.factors.hessian)?;
        Ok((tensor, error.sqrt()))
    }
}
