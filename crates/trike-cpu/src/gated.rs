//! Gated activation of an MLP, and the residual sum.

use trike_core::GatedActivation;

use crate::error::{CpuError, check_len};
use crate::kernels::Kernels;
use crate::kernels::with_float_kernels;
use crate::math::exp;
use trike_host::Cpu;
use trike_host::Loop;

/// [`CpuOps::gated`](crate::CpuOps::gated).
pub(crate) fn gated(
    cpu: &Cpu,
    gate: &[f32],
    up: &[f32],
    activation: GatedActivation,
    out: &mut [f32],
) -> Result<(), CpuError> {
    check_len("up projection of gated", gate.len(), up.len())?;
    check_len("output of gated", gate.len(), out.len())?;
    cpu.pool().for_each_chunk(out, 1, 16 * gate.len(), |first, out| {
        let (gate, up) = (&gate[first..][..out.len()], &up[first..][..out.len()]);
        with_float_kernels!(cpu.isa(), kernels => match activation {
            GatedActivation::SiLu => kernels.run(SiLu { gate, up, out }),
            GatedActivation::SquaredReLu => kernels.run(SquaredReLu { gate, up, out }),
        });
    });
    Ok(())
}

/// [`CpuOps::add`](crate::CpuOps::add).
pub(crate) fn add(cpu: &Cpu, x: &mut [f32], y: &[f32]) -> Result<(), CpuError> {
    check_len("summand of add", x.len(), y.len())?;
    with_float_kernels!(cpu.isa(), kernels => kernels.run(Sum { x, y }));
    Ok(())
}

struct SiLu<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl Loop for SiLu<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for ((out, &gate), &up) in self.out.iter_mut().zip(self.gate).zip(self.up) {
            *out = gate / (1.0 + exp(-gate)) * up;
        }
    }
}

struct SquaredReLu<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl Loop for SquaredReLu<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for ((out, &gate), &up) in self.out.iter_mut().zip(self.gate).zip(self.up) {
            // A comparison, not a maximum, so that NaN propagates.
            let positive = if gate < 0.0 { 0.0 } else { gate };
            *out = positive * positive * up;
        }
    }
}

struct Sum<'a> {
    x: &'a mut [f32],
    y: &'a [f32],
}

impl Loop for Sum<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (x, y) in self.x.iter_mut().zip(self.y) {
            *x += y;
        }
    }
}
