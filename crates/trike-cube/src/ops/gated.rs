//! Activation functions of gated MLPs.

use cubecl::prelude::*;
use trike_core::GatedActivation;

use crate::math::exp;

/// Activation of the gate; NaN is propagated.
#[cube]
pub(super) fn activate(gate: f32, #[comptime] activation: GatedActivation) -> f32 {
    if comptime!(activation == GatedActivation::SiLu) {
        gate / (1.0 + exp(-gate))
    } else {
        // A comparison instead of a maximum, so that NaN propagates.
        let positive = select(gate < 0.0, 0.0f32, gate);
        positive * positive
    }
}
