//! What joins the two halves of a gated MLP.

use cubecl::prelude::*;

use super::math::exp;

/// The function of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GatedActivation {
    /// `g / (1 + e^-g)`: Llama, Mistral, Qwen.
    SiLu,
    /// `max(g, 0)^2`: BitNet-b1.58-2B-4T.
    SquaredReLu,
}

/// The function of the gate; NaN stays NaN.
#[cube]
pub(super) fn activate(gate: f32, #[comptime] activation: GatedActivation) -> f32 {
    if comptime!(activation == GatedActivation::SiLu) {
        gate / (1.0 + exp(-gate))
    } else {
        // A comparison and not a maximum, so that NaN passes.
        let positive = select(gate < 0.0, 0.0f32, gate);
        positive * positive
    }
}
