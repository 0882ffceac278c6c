//! Gradients over the wire.

mod convergence;
mod exchange;
mod messages;
mod names;
mod state;

use trike_comm::{Codec, CodecConfig};
use trike_testkit::Rng;

/// All codecs with lossless settings, with small and large shares and ranks.
const LOSSLESS: [CodecConfig; 10] = [
    CodecConfig::Ternary,
    CodecConfig::Sign,
    CodecConfig::TOP_K,
    CodecConfig::TopK { share: 1.0, momentum: 0.0 },
    CodecConfig::Demo { share: 0.1, momentum: 1.0 },
    CodecConfig::LowRank { rank: 1 },
    CodecConfig::LOW_RANK,
    CodecConfig::SparseLoCo { share: 0.05, decay: 1.0 },
    CodecConfig::SKETCH,
    CodecConfig::Sketch { share: 1.0 },
];

/// No elements, and lengths at and around the boundaries of bytes, transforms and chunks; matrices that are sent whole and as
/// factors.
const SHAPES: [&[[usize; 2]]; 15] = [
    &[],
    &[[1, 0], [0, 7]],
    &[[1, 1]],
    &[[1, 4]],
    &[[1, 5]],
    &[[1, 6]],
    &[[1, 63]],
    &[[8, 8]],
    &[[1, 65]],
    &[[1, 4095]],
    &[[64, 64]],
    &[[1, 4097]],
    &[[40, 30], [1, 30], [7, 5], [3, 0], [30, 41]],
    &[[100, 100]],
    &[[2, 2100], [1, 4000]],
];

/// All codecs: with lossless settings, and with default settings and with momentum.
fn all() -> Vec<CodecConfig> {
    let momentum = CodecConfig::TopK { share: 0.1, momentum: 0.9 };
    [&LOSSLESS[..], &CodecConfig::DEFAULTS, &[momentum]].concat()
}

fn normals(seed: u64, len: usize) -> Vec<f32> {
    Rng::new(seed).normals(len)
}

/// The gradient of a rank at a step.
fn gradient(rank: usize, step: usize, len: usize) -> Vec<f32> {
    normals(1 + rank as u64 + 100 * step as u64, len)
}

/// A copy of the state.
fn saved(codec: &dyn Codec) -> Vec<Vec<f32>> {
    codec.state().iter().map(|vector| vector.values.to_vec()).collect()
}

/// The residual of a codec.
fn kept(codec: &dyn Codec) -> Vec<f32> {
    let state = codec.state();
    let vector = state.iter().find(|vector| ["residual", "waiting", "momentum"].contains(&vector.name));
    vector.expect("each codec keeps something").values.to_vec()
}

fn add(sum: &mut [f32], weight: f32, x: &[f32]) {
    sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += weight * x);
}

fn length(x: &[f32]) -> f64 {
    x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt()
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot / (length(a) * length(b))
}
