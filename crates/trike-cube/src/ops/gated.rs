//! What joins the two halves of a gated MLP.

use cubecl::prelude::*;
use trike_core::GatedActivation;

use super::math::exp;

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
