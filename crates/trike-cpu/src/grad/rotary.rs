//! Rotary position embedding.

use trike_core::RopePairing;

use crate::error::Result;
use crate::pool::Cpu;
use crate::rope::RopeTable;

/// Gradient of [`Cpu::rope`] with respect to its input, in place: `dy` becomes `dx`.
///
/// A rotation is orthogonal: its transpose is the rotation by the negative angle, `dx_a = dy_a cos + dy_b sin` and
/// `dx_b = dy_b cos - dy_a sin` for the elements `a` and `b` of a pair (Su et al., 2104.09864). All other arguments are those of the
/// forward pass.
///
/// # Errors
///
/// As [`Cpu::rope`].
pub fn rope(
    cpu: &Cpu,
    dy: &mut [f32],
    heads: usize,
    head_dim: usize,
    positions: &[u32],
    table: &RopeTable,
    pairing: RopePairing,
) -> Result<()> {
    cpu.rope(dy, heads, head_dim, positions, &table.inverted(), pairing)
}
