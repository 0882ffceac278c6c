//! The norms and biases of a block.

use trike_nn::{DecoderSpec, DecoderWeights, NnError, WeightName};

/// Norms and biases of a block; `None` for those that are absent.
#[derive(Clone, Debug)]
pub(crate) struct Vectors {
    /// In the order of [`WeightName::norms`].
    pub(crate) norms: [Option<Vec<f32>>; 6],
    /// In the order of [`WeightName::matrices`].
    pub(crate) biases: [Option<Vec<f32>>; 7],
}

impl Vectors {
    pub(super) fn load(
        spec: &DecoderSpec,
        layer: usize,
        weights: &mut impl DecoderWeights,
    ) -> Result<Self, NnError> {
        let mut load = |name: Option<WeightName>| {
            let name = name.and_then(|name| spec.optional(name));
            name.map(|name| weights.vector(name)).transpose()
        };
        let (mut norms, mut biases) = ([const { None }; 6], [const { None }; 7]);
        for (norm, name) in norms.iter_mut().zip(WeightName::norms(layer)) {
            *norm = load(Some(name))?;
        }
        for (bias, name) in biases.iter_mut().zip(WeightName::matrices(layer)) {
            *bias = load(name.bias())?;
        }
        Ok(Self { norms, biases })
    }
}
