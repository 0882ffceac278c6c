//! The Hessian of inputs shared by several layers, factored once for all of them.

use trike_cpu::Cpu;
use trike_quant::{HessianFactor, QuantError, SquareMatrix, hessian_error};
use trike_trit::{Granularity, Hadamard};

use crate::{Compensation, weights::rotated_hessian};

/// A Hessian, with its factor for each requested granularity.
pub(crate) struct Factors {
    /// Hessian of the unrotated inputs.
    pub(crate) hessian: SquareMatrix,
    /// Rotation of the inputs at inference.
    pub(crate) rotation: Option<Hadamard>,
    /// Hessian of the inputs that the trits multiply, if these are rotated.
    rotated: Option<SquareMatrix>,
    how: Compensation,
    factors: Vec<(Granularity, HessianFactor)>,
}

impl Factors {
    pub(crate) fn new(
        hessian: SquareMatrix,
        rotation: Option<Hadamard>,
        how: Compensation,
    ) -> Result<Self, QuantError> {
        let rotated = rotation.map(|by| rotated_hessian(by, &hessian)).transpose()?;
        Ok(Self { hessian, rotation, rotated, how, factors: Vec::new() })
    }

    /// The factor for scales of this granularity.
    pub(crate) fn get(&mut self, cpu: &Cpu, granularity: Granularity) -> Result<&HessianFactor, QuantError> {
        let at = match self.factors.iter().position(|(of, _)| *of == granularity) {
            Some(at) => at,
            None => {
                let Compensation { order, damping, .. } = self.how;
                let hessian = self.rotated.as_ref().unwrap_or(&self.hessian);
                let new = HessianFactor::new(cpu, hessian, granularity, order, damping)?;
                self.factors.push((granularity, new));
                self.factors.len() - 1
            }
        };
        Ok(&self.factors[at].1)
    }
}

/// Ratio of the squared error of a layer's outputs to the squared outputs, for inputs with this Hessian.
pub(crate) fn output_error(
    cpu: &Cpu,
    weights: &[f32],
    quantized: &[f32],
    hessian: &SquareMatrix,
) -> Result<f64, QuantError> {
    let lost = hessian_error(cpu, weights, quantized, hessian)?;
    let whole = hessian_error(cpu, weights, &vec![0.0; weights.len()], hessian)?;
    Ok(if whole > 0.0 { lost / whole } else { 0.0 })
}
