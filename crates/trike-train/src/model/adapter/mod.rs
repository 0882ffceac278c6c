//! LoRA adapters on a frozen model (Hu et al., 2106.09685).
//!
//! A targeted layer with the frozen weight `W` (`out x in`) becomes `y = x W^T + s (x A^T) B^T`, with `A` of `rank x in`, `B` of
//! `out x rank` and the scale `s` of [`LoraConfig::scale`]. `W` is never rounded again, so weights of a packed ternary model keep
//! their trits; only `A` and `B` have gradients and optimizer state.

mod config;
mod error;
mod merge;
mod peft;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use trike_autodiff::{Elements, GradError, TapeEngine};
use trike_core::{Bounds, OptionError};
use trike_cpu::{Cpu, MatrixRef, Store, matmul};
use trike_nn::{DecoderSpec, NnError, WeightName};

pub use config::{LoraConfig, LoraTarget};
pub use error::AdapterError;
pub use merge::{MergeReport, MergedMatrix};

use crate::{Parameter, Parameters, Part, TrainError};

/// The two factors of every targeted matrix of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter<T = Vec<f32>> {
    config: LoraConfig,
    /// `A` and `B` of each matrix, layer by layer, in the order of the targets.
    factors: Parameters<T>,
}

impl Adapter {
    /// An adapter that does not change its model yet: `A` is uniform within `1 / sqrt(in)` (Kaiming initialization with a slope of
    /// `sqrt(5)`, as in peft), `B` is zero.
    ///
    /// # Errors
    ///
    /// [`TrainError::Nn`] for an inconsistent spec; [`TrainError::Option`] as [`LoraConfig::validate`], and for a rank that exceeds
    /// the rows or columns of a targeted matrix, which bound the rank of the product.
    ///
    /// ```
    /// use trike_nn::DecoderSpec;
    /// use trike_train::{Adapter, LoraConfig, LoraTarget};
    ///
    /// let spec = DecoderSpec::llama(8, 2, 2, 10);
    /// let targets = [LoraTarget::Query, LoraTarget::Down].into();
    /// let adapter = Adapter::new(LoraConfig { rank: 2, targets, ..LoraConfig::default() }, &spec, 1)?;
    /// // Two layers of a query projection of 8 x 8 and a down projection of 8 x 32.
    /// assert_eq!(adapter.parameters().count(), 2 * 2 * ((8 + 8) + (8 + 32)));
    /// # Ok::<(), trike_train::TrainError>(())
    /// ```
    pub fn new(config: LoraConfig, spec: &DecoderSpec, seed: u64) -> Result<Self, TrainError> {
        config.validate()?;
        spec.validate()?;
        for (_, (rows, cols)) in targeted(&config, spec) {
            OptionError::check("rank", Bounds::at_least(1usize).at_most(rows.min(cols)), config.rank)?;
        }
        let mut place = 0;
        Self::fill(config, spec, |_, part, (rows, cols)| {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            rng.set_stream(place);
            place += 1;
            let bound = 1.0 / (cols as f64).sqrt();
            let mut uniform = || {
                let unit = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
                ((2.0 * unit - 1.0) * bound) as f32
            };
            Ok::<_, TrainError>(match part {
                Part::LoraA => (0..rows * cols).map(|_| uniform()).collect(),
                _ => vec![0.0; rows * cols],
            })
        })
    }

    /// The update of a matrix, `s B A` of `out x in`; `None` if the matrix is not a target.
    ///
    /// # Errors
    ///
    /// [`TrainError::Nn`] for factors of wrong lengths.
    pub fn product(&self, cpu: &Cpu, name: WeightName) -> Result<Option<Vec<f32>>, TrainError> {
        let Some((_, [a, b])) = self.factors(name) else { return Ok(None) };
        let mut product = vec![0.0; b.rows() * a.cols];
        let operands = (MatrixRef::new(&b.values, b.cols)?, MatrixRef::new(&a.values, a.cols)?);
        matmul(cpu, operands.0, operands.1, &mut product, Store::Overwrite)?;
        let scale = self.config.scale();
        product.iter_mut().for_each(|v| *v *= scale);
        Ok(Some(product))
    }

    /// Copies the adapter to the memory of an executor; on the host it is only moved.
    ///
    /// # Errors
    ///
    /// [`GradError`] of the executor.
    pub fn upload<E: TapeEngine>(self, engine: &E) -> Result<Adapter<E::Tensor>, GradError> {
        Ok(Adapter { config: self.config, factors: self.factors.upload(engine)? })
    }
}

impl<T: Elements> Adapter<T> {
    /// An adapter whose factors are created by name, part and shape.
    fn fill<E>(
        config: LoraConfig,
        spec: &DecoderSpec,
        mut values: impl FnMut(WeightName, Part, (usize, usize)) -> Result<T, E>,
    ) -> Result<Self, E> {
        let mut all = Vec::new();
        for (name, (rows, cols)) in targeted(&config, spec) {
            let shapes = [(Part::LoraA, (config.rank, cols)), (Part::LoraB, (rows, config.rank))];
            for (part, shape) in shapes {
                all.push(Parameter { name, part, cols: shape.1, values: values(name, part, shape)? });
            }
        }
        Ok(Self { config, factors: Parameters::of(spec, all) })
    }

    /// An uninitialized adapter in the memory of an executor.
    pub(crate) fn allocate<E: TapeEngine<Tensor = T>>(
        engine: &E,
        config: &LoraConfig,
        spec: &DecoderSpec,
    ) -> Result<Self, GradError> {
        Self::fill(config.clone(), spec, |_, _, (rows, cols)| engine.allocate(rows * cols))
    }

    /// Hyperparameters of the adapter.
    #[must_use]
    pub fn config(&self) -> &LoraConfig {
        &self.config
    }

    /// The factors as trainable parameters, `A` and `B` of each matrix in turn.
    #[must_use]
    pub fn parameters(&self) -> &Parameters<T> {
        &self.factors
    }

    /// The factors, mutably.
    pub fn parameters_mut(&mut self) -> &mut Parameters<T> {
        &mut self.factors
    }

    /// The factors, consuming the adapter.
    #[must_use]
    pub fn into_parameters(self) -> Parameters<T> {
        self.factors
    }

    /// The index of a matrix's `A` in [`parameters`](Self::parameters), which its `B` follows, and both factors; `None` if the
    /// matrix is not a target.
    pub(crate) fn factors(&self, name: WeightName) -> Option<(usize, [&Parameter<T>; 2])> {
        let place = self.factors.place(name)?;
        match self.factors.all().get(place..place + 2)? {
            [a, b] => Some((place, [a, b])),
            _ => None,
        }
    }

    /// Checks that every target is a matrix of the model, and that the factors have matching shapes.
    ///
    /// # Errors
    ///
    /// [`TrainError::NoParameter`], and [`TrainError::Nn`] with [`NnError::WeightShape`].
    pub fn check(&self, model: &Parameters<T>) -> Result<(), TrainError> {
        for pair in self.factors.all().chunks_exact(2) {
            let [a, b] = [&pair[0], &pair[1]];
            let name = a.name.to_string();
            let Some(place) = model.place(a.name) else { return Err(TrainError::NoParameter { name }) };
            let weight = &model.all()[place];
            if (weight.rows(), weight.cols) != (b.rows(), a.cols) {
                return Err(TrainError::Nn(NnError::WeightShape {
                    name,
                    expected_rows: weight.rows(),
                    expected_cols: weight.cols,
                    got_rows: b.rows(),
                    got_cols: a.cols,
                }));
            }
        }
        Ok(())
    }
}

/// Names and shapes of all targeted matrices, in order.
pub(crate) fn targeted<'a>(
    config: &'a LoraConfig,
    spec: &'a DecoderSpec,
) -> impl Iterator<Item = (WeightName, (usize, usize))> + 'a {
    (0..spec.layers).flat_map(move |layer| {
        config.targets.iter().map(move |target| (target.weight(layer), shape(*target, spec)))
    })
}

/// Rows and columns of a target.
fn shape(target: LoraTarget, spec: &DecoderSpec) -> (usize, usize) {
    spec.shape(target.weight(0))
}
