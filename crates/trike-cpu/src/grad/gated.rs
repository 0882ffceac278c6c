//! Gradient of the gated activation of an MLP.

use trike_core::GatedActivation;
use trike_host::{Cpu, Loop};

use crate::error::{CpuError, check_len};
use crate::kernels::{Kernels, with_float_kernels};
use crate::math::exp;

/// Gradients of [`CpuOps::gated`](crate::CpuOps::gated), `y = f(g) u`, element by element: `dg = dy u f'(g)` and `du = dy f(g)`.
///
/// For [`GatedActivation::SiLu`], with `s = 1 / (1 + e^-g)`, these are `f(g) = g s` and `f'(g) = s (1 + g (1 - s))`; for
/// [`GatedActivation::SquaredReLu`] `f(g) = max(g, 0)^2` and `f'(g) = 2 max(g, 0)`.
///
/// # Errors
///
/// [`CpuError::Length`] when the slices differ in length.
pub fn gated(
    cpu: &Cpu,
    gate: &[f32],
    up: &[f32],
    activation: GatedActivation,
    dy: &[f32],
    d_gate: &mut [f32],
    d_up: &mut [f32],
) -> Result<(), CpuError> {
    check_len("up projection of gated", gate.len(), up.len())?;
    check_len("gradient of gated's output", gate.len(), dy.len())?;
    check_len("gradient of the gate", gate.len(), d_gate.len())?;
    check_len("gradient of the up projection", gate.len(), d_up.len())?;
    // One pair of outputs per share: the two gradients are computed together.
    let parts = cpu.pool().parts(24 * gate.len());
    let share = gate.len().div_ceil(parts).max(1);
    let inputs = gate.chunks(share).zip(up.chunks(share)).zip(dy.chunks(share));
    let outputs = d_gate.chunks_mut(share).zip(d_up.chunks_mut(share));
    let isa = cpu.isa();
    cpu.pool().run(inputs.zip(outputs).collect(), |(((gate, up), dy), (d_gate, d_up))| {
        let part = Part { gate, up, activation, dy, d_gate, d_up };
        with_float_kernels!(isa, kernels => kernels.run(part));
    });
    Ok(())
}

/// Some elements.
struct Part<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    activation: GatedActivation,
    dy: &'a [f32],
    d_gate: &'a mut [f32],
    d_up: &'a mut [f32],
}

impl Loop for Part<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { gate, up, activation, dy, d_gate, d_up } = self;
        let each = gate.iter().zip(up).zip(dy).zip(d_gate.iter_mut().zip(d_up));
        match activation {
            GatedActivation::SiLu => {
                for (((g, u), d), (d_gate, d_up)) in each {
                    let s = 1.0 / (1.0 + exp(-g));
                    *d_gate = d * u * s * (1.0 + g * (1.0 - s));
                    *d_up = d * g * s;
                }
            }
            GatedActivation::SquaredReLu => {
                for (((g, u), d), (d_gate, d_up)) in each {
                    *d_gate = d * u * 2.0 * g.max(0.0);
                    *d_up = d * g.max(0.0).powi(2);
                }
            }
        }
    }
}
