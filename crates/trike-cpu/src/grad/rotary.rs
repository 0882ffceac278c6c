//! Rotary position embedding.

use trike_core::RopePairing;
use trike_host::Cpu;

use crate::error::CpuError;
use crate::rope::{RopeTable, rope as rotate};

/// Gradient of [`CpuOps::rope`](crate::CpuOps::rope) with respect to its input, in place: `dy` becomes `dx`.
///
/// A rotation is orthogonal: its transpose is the rotation by the negative angle, `dx_a = dy_a cos + dy_b sin` and
/// `dx_b = dy_b cos - dy_a sin` for the elements `a` and `b` of a pair (Su et al., 2104.09864). All other arguments are those of the
/// forward pass.
///
/// # Errors
///
/// As [`CpuOps::rope`](crate::CpuOps::rope).
pub fn rope(
    cpu: &Cpu,
    dy: &mut [f32],
    heads: usize,
    head_dim: usize,
    positions: &[u32],
    table: &RopeTable,
    pairing: RopePairing,
) -> Result<(), CpuError> {
    rotate(cpu, dy, heads, head_dim, positions, table, pairing, -1.0)
}
