//! Adds activation outliers to a model: the same function with other weights.
//!
//! In large models a few inputs of linear layers are tens of times larger than the others, in the same channels of all layers
//! (Dettmers et al., 2208.07339). Here the gains of norms (and, before the down projection, the rows of the up projection) are
//! multiplied by a strength in a few channels, and the columns of the following matrices divided by it: the function of the model
//! is unchanged up to rounding. `cargo run --release -p trike-calibrate --example outliers -- MODEL DIR [STRENGTH [EVERY]]` makes
//! one input in EVERY (64) STRENGTH (30) times larger and writes a HuggingFace directory without a tokenizer.
#![expect(clippy::print_stdout, reason = "the example prints its result")]

use std::path::Path;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use trike_calibrate::{Fold, Folded};
use trike_format::{DenseData, DenseTensor, HfDirWriter};
use trike_llm::{ModelFile, WeightSource, hf_config, hf_tensor};
use trike_nn::{HookPoint, WeightName};

/// Divisors of `width` inputs: 1 for most channels, and a fraction for one in `every`.
fn divisors(width: usize, every: usize, strength: f32, seed: u64) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut all = vec![1.0; width];
    for _ in 0..width.div_ceil(every) {
        all[rng.next_u32() as usize % width] = strength.recip();
    }
    all
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (model, dir) = match &arguments[..] {
        [model, dir, ..] => (model, Path::new(dir)),
        _ => return Err("usage: outliers MODEL DIR [STRENGTH [EVERY]]".into()),
    };
    let strength = arguments.get(2).map_or(Ok(30.0), |text| text.parse())?;
    let every = arguments.get(3).map_or(Ok(64), |text| text.parse::<usize>())?.max(1);
    let file = ModelFile::open(model)?;
    let spec = file.config().spec.clone();
    let mut fold = Fold::default();
    for layer in 0..spec.layers {
        let stream = divisors(spec.hidden, every, strength, 0);
        let inner = divisors(spec.intermediate, every, strength, 1 + layer as u64);
        fold = fold
            .with_scales(layer, HookPoint::Attention, stream.clone())
            .with_scales(layer, HookPoint::Mlp, stream)
            .with_scales(layer, HookPoint::Down, inner);
    }
    let source = Folded::new(&file, fold)?;
    let config = hf_config(&file, file.config(), dir).ok_or("the architecture has no config.json")?;
    let mut writer = HfDirWriter::create(dir, config)?;
    for name in source.weights() {
        // As floats, which every tool can read.
        let stored = source.load_stored(name)?;
        let dense = DenseTensor::new(stored.shape(), DenseData::F32(stored.into_f32()))?;
        writer.tensor(&name.to_string(), &hf_tensor(&spec, name, dense.into())?)?;
        if matches!(name, WeightName::AttentionNorm(0)) {
            let largest = |tensor: trike_format::Tensor| {
                tensor.into_f32().into_iter().fold(0f32, |m, v| m.max(v.abs()))
            };
            println!(
                "largest gain of the first norm: {} before, {} now",
                largest(file.load(name)?),
                largest(source.load(name)?)
            );
        }
    }
    writer.finish()?;
    Ok(())
}
