//! The forward passes in f64, by the types of the kernels.

use trike_cpu::{AttentionSpec, GatedActivation, RopePairing};
use trike_testkit::exact::{self, Heads};

pub(crate) fn gated(activation: GatedActivation, gate: f64, up: f64) -> f64 {
    match activation {
        GatedActivation::SiLu => exact::silu(gate) * up,
        GatedActivation::SquaredReLu => exact::squared_relu(gate) * up,
    }
}

/// The heads of one token.
pub(crate) fn rope(
    x: &[f64],
    head_dim: usize,
    position: u32,
    frequencies: &[f64],
    pairing: RopePairing,
) -> Vec<f64> {
    exact::rope(x, head_dim, position, frequencies, pairing == RopePairing::Adjacent)
}

pub(crate) fn attention(spec: &AttentionSpec, qkv: [&[f64]; 3], lengths: &[usize]) -> Vec<f64> {
    let &AttentionSpec { heads, kv_heads, head_dim, scale, window } = spec;
    exact::attention(Heads { heads, kv_heads, head_dim, scale: f64::from(scale), window }, qkv, lengths)
}

pub(crate) fn divergence(out: &[f64], target: &[f64], vocab: usize) -> f64 {
    let softmax = |row: &[f64]| {
        let total: f64 = row.iter().map(|v| v.exp()).sum();
        row.iter().map(|v| v.exp() / total).collect::<Vec<_>>()
    };
    let rows = out.chunks_exact(vocab).zip(target.chunks_exact(vocab));
    rows.map(|(q, p)| softmax(p).iter().zip(softmax(q)).map(|(p, q)| p * (p / q).ln()).sum::<f64>()).sum()
}
