//! The weights that a rank holds.

use trike_llm::WeightSource;
use trike_nn::{DecoderSpec, NnError};

use super::partition::Partition;
use super::{Parameter, Parameters, shapes};
use crate::TrainError;

impl Parameters {
    /// A rank's part of the random weights, equal to the same elements of [`random`](Self::random).
    pub(super) fn random_part(spec: &DecoderSpec, seed: u64, of: &dyn Partition) -> Result<Self, NnError> {
        Self::random_of(spec, seed, &|name, shape| of.part(name, shape, of.rank()))
    }

    /// A rank's part of the weights of a model file.
    pub(super) fn open_part(source: &dyn WeightSource, of: &dyn Partition) -> Result<Self, NnError> {
        Self::open_of(source, &|name, shape| of.part(name, shape, of.rank()))
    }

    /// Reduces the weights to the part of a rank.
    pub(super) fn into_part(self, of: &dyn Partition) -> Result<Self, TrainError> {
        let spec = self.spec().clone();
        let mut given: Vec<Parameter> = self.into_all();
        let mut own = Vec::new();
        for (name, shape) in shapes(&spec) {
            let Some(part) = of.part(name, shape, of.rank()) else { continue };
            let Some(place) = given.iter().position(|parameter| parameter.name == name) else {
                return Err(TrainError::NoParameter { name: name.to_string() });
            };
            let mut parameter = given.swap_remove(place);
            let (got, whole) = (parameter.values.len(), shape.0 * shape.1);
            if got != part.len() {
                if got != whole {
                    return Err(TrainError::Grad(trike_autodiff::GradError::Length {
                        what: "weights of a rank",
                        expected: part.len(),
                        got,
                    }));
                }
                parameter.cols = if name.is_vector() { part.len() } else { shape.1 };
                parameter.values = parameter.values[part].to_vec();
            }
            own.push(parameter);
        }
        Ok(Self::of(&spec, own))
    }
}
