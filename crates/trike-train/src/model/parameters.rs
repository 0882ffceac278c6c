//! The trainable parameters of a decoder.

use std::borrow::{Borrow, BorrowMut};
use std::ops::Range;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use trike_autodiff::{Elements, GradError, TapeEngine};
use trike_core::{DenseData, DenseTensor, Tensor};
use trike_llm::WeightSource;
use trike_nn::{DecoderSpec, DecoderWeights, NnError, WeightName};

use super::partition::Partition;
use crate::TrainError;

/// Standard deviation of random weights.
const SPREAD: f64 = 0.02;

/// The part of a weight that a parameter represents: the whole weight, or an adapter factor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    #[default]
    Whole,
    /// The factor `A` of an adapter, `rank x in`.
    LoraA,
    /// The factor `B` of an adapter, `out x rank`.
    LoraB,
}

/// A matrix or vector, `rows x cols`, row-major; on the host, or in the memory of a [`TapeEngine`].
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter<T = Vec<f32>> {
    /// The weight that it belongs to.
    pub name: WeightName,
    /// [`Part::Whole`], except in an [`Adapter`](crate::Adapter).
    pub part: Part,
    /// Elements per row; a vector is one row.
    pub cols: usize,
    /// The values.
    pub values: T,
}

impl<T: Elements> Parameter<T> {
    /// The name of its tensor in a file; adapter factors have peft's names without the prefix of its wrapper models.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.values.elements() / self.cols
    }

    /// The name of its tensor in a file: a factor of an adapter has peft's, without the prefix of peft's models.
    #[must_use]
    pub fn key(&self) -> String {
        Parameter::key_of(self.name, self.part)
    }

    /// The same with other values.
    pub(super) fn with<U>(&self, values: U) -> Parameter<U> {
        Parameter { name: self.name, part: self.part, cols: self.cols, values }
    }
}

impl Parameter {
    pub(crate) fn key_of(name: WeightName, part: Part) -> String {
        let name = name.to_string();
        let layer = name.strip_suffix(".weight").unwrap_or(&name);
        match part {
            Part::Whole => name,
            Part::LoraA => format!("{layer}.lora_A.weight"),
            Part::LoraB => format!("{layer}.lora_B.weight"),
        }
    }
}

/// The elements of a weight, `rows x cols`, that a rank holds; `None` if it holds none.
type PartOf<'p> = dyn Fn(WeightName, (usize, usize)) -> Option<Range<usize>> + 'p;

#[expect(clippy::unnecessary_wraps, reason = "a `PartOf`")]
fn whole(_: WeightName, (rows, cols): (usize, usize)) -> Option<Range<usize>> {
    Some(0..rows * cols)
}

/// All trainable parameters of a decoder, in an order determined by its spec: embedding, blocks, final norm, head.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters<T = Vec<f32>> {
    spec: DecoderSpec,
    all: Vec<Parameter<T>>,
}

impl Parameters {
    /// Random weights: normal with a standard deviation of 0.02, divided by `sqrt(2 layers)` for the matrices that write to the
    /// residual stream (GPT-2); norms are one, biases zero.
    ///
    /// # Errors
    ///
    /// [`NnError::Spec`].
    ///
    /// ```
    /// use trike_nn::DecoderSpec;
    /// use trike_train::Parameters;
    ///
    /// let spec = DecoderSpec { tied_head: true, ..DecoderSpec::llama(8, 2, 2, 10) };
    /// let parameters = Parameters::random(&spec, 1)?;
    /// assert_eq!(parameters.count(), 10 * 8 + 2 * (4 * 64 + 3 * 8 * 32 + 2 * 8) + 8);
    /// # Ok::<(), trike_nn::NnError>(())
    /// ```
    pub fn random(spec: &DecoderSpec, seed: u64) -> Result<Self, NnError> {
        Self::random_of(spec, seed, &whole)
    }

    /// The elements of [`random`](Self::random) selected by `part`.
    pub(super) fn random_of(spec: &DecoderSpec, seed: u64, part: &PartOf<'_>) -> Result<Self, NnError> {
        let residual = SPREAD / (2.0 * spec.layers as f64).sqrt();
        Self::fill(spec, part, |place, name, (rows, cols)| {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            // One stream per weight, so that adding a layer does not change earlier ones.
            rng.set_stream(place as u64);
            Ok(match name {
                name if name.adds_to_stream() => normals(&mut rng, rows * cols, residual),
                name if !name.is_vector() => normals(&mut rng, rows * cols, SPREAD),
                name if name.is_bias() => vec![0.0; cols],
                _ => vec![1.0; cols],
            })
        })
    }

    /// The weights of a checkpoint in f32.
    ///
    /// # Errors
    ///
    /// [`NnError::Spec`], [`NnError::WeightShape`], and errors of `weights`.
    pub fn load(spec: &DecoderSpec, weights: &mut impl DecoderWeights) -> Result<Self, NnError> {
        Self::load_of(spec, weights, &whole)
    }

    fn load_of(
        spec: &DecoderSpec,
        weights: &mut impl DecoderWeights,
        part: &PartOf<'_>,
    ) -> Result<Self, NnError> {
        Self::fill(spec, part, |_, name, shape| {
            let (got, values) = match name.is_vector() {
                true => {
                    let values = weights.vector(name)?;
                    ((1, values.len()), values)
                }
                false => {
                    let matrix = weights.matrix(name)?;
                    ((matrix.rows(), matrix.cols()), matrix.into_f32())
                }
            };
            match got == shape {
                true => Ok(values),
                false => Err(NnError::WeightShape {
                    name: name.to_string(),
                    expected_rows: shape.0,
                    expected_cols: shape.1,
                    got_rows: got.0,
                    got_cols: got.1,
                }),
            }
        })
    }

    /// The weights of a model file in f32.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn open(source: &dyn WeightSource) -> Result<Self, NnError> {
        Self::open_of(source, &whole)
    }

    /// The elements of [`open`](Self::open) selected by `part`.
    pub(super) fn open_of(source: &dyn WeightSource, part: &PartOf<'_>) -> Result<Self, NnError> {
        Self::load_of(&source.config().spec, &mut Loading(source), part)
    }

    fn fill(
        spec: &DecoderSpec,
        part: &PartOf<'_>,
        mut values: impl FnMut(usize, WeightName, (usize, usize)) -> Result<Vec<f32>, NnError>,
    ) -> Result<Self, NnError> {
        spec.validate()?;
        let mut all = Vec::new();
        for (place, (name, shape)) in shapes(spec).into_iter().enumerate() {
            let Some(elements) = part(name, shape) else { continue };
            let mut values = values(place, name, shape)?;
            let cols = if name.is_vector() { elements.len() } else { shape.1 };
            if elements.len() < values.len() {
                // Holds only one whole weight at a time.
                values = values[elements].to_vec();
            }
            all.push(Parameter { name, part: Part::Whole, cols, values });
        }
        Ok(Self { spec: spec.clone(), all })
    }

    /// The values as the weights of a dense decoder.
    pub(crate) fn weights(&self) -> impl DecoderWeights {
        Dense(self)
    }

    /// Zeros in the shapes of all parameters.
    #[must_use]
    pub fn zeros(&self) -> Vec<Vec<f32>> {
        self.all.iter().map(|parameter| vec![0.0; parameter.values.len()]).collect()
    }

    /// Copies the parameters to the memory of an executor; on the host they are only moved.
    ///
    /// # Errors
    ///
    /// [`GradError`] of the executor.
    pub fn upload<E: TapeEngine>(self, engine: &E) -> Result<Parameters<E::Tensor>, GradError> {
        let Self { spec, all } = self;
        let upload = |parameter: Parameter| {
            let Parameter { name, part, cols, values } = parameter;
            Ok::<_, GradError>(Parameter { name, part, cols, values: engine.upload(values)? })
        };
        Ok(Parameters { spec, all: all.into_iter().map(upload).collect::<Result<_, _>>()? })
    }
}

impl<T: Elements> Parameters<T> {
    /// A subset of a decoder's parameters.
    pub(crate) fn of(spec: &DecoderSpec, all: Vec<Parameter<T>>) -> Self {
        Self { spec: spec.clone(), all }
    }

    /// All parameters of a decoder, or those of a rank, uninitialized in the memory of an executor.
    pub(crate) fn allocate<E: TapeEngine<Tensor = T>>(
        engine: &E,
        spec: &DecoderSpec,
        of: Option<&dyn Partition>,
    ) -> Result<Self, GradError> {
        let mut all = Vec::new();
        for (name, shape) in shapes(spec) {
            let elements = of.map_or_else(|| whole(name, shape), |of| of.part(name, shape, of.rank()));
            let Some(len) = elements.map(|elements| elements.len()) else { continue };
            let cols = if name.is_vector() { len } else { shape.1 };
            all.push(Parameter { name, part: Part::Whole, cols, values: engine.allocate(len)? });
        }
        Ok(Self::of(spec, all))
    }

    /// The architecture.
    #[must_use]
    pub fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> &[Parameter<T>] {
        &self.all
    }

    /// All parameters, mutably.
    pub fn all_mut(&mut self) -> &mut [Parameter<T>] {
        &mut self.all
    }

    pub(super) fn into_all(self) -> Vec<Parameter<T>> {
        self.all
    }

    /// Number of values.
    #[must_use]
    pub fn count(&self) -> usize {
        self.all.iter().map(|parameter| parameter.values.elements()).sum()
    }

    /// The index of a parameter in [`all`](Self::all).
    #[must_use]
    pub fn place(&self, name: WeightName) -> Option<usize> {
        self.all.iter().position(|parameter| parameter.name == name)
    }

    /// A copy in host memory.
    ///
    /// # Errors
    ///
    /// [`GradError`] of the executor.
    pub fn download<E: TapeEngine<Tensor = T>>(&self, engine: &E) -> Result<Parameters, GradError>
    where
        T: Borrow<E::View>,
    {
        let download = |parameter: &Parameter<T>| {
            Ok::<_, GradError>(parameter.with(engine.download(parameter.values.borrow())?.into_owned()))
        };
        let all = self.all.iter().map(download).collect::<Result<_, _>>()?;
        Ok(Parameters { spec: self.spec.clone(), all })
    }

    /// Zeros in the shapes of all parameters, in the memory of an executor.
    pub(crate) fn zeros_on<E: TapeEngine<Tensor = T>>(
        &self,
        engine: &E,
    ) -> Result<Vec<E::Tensor>, GradError> {
        self.all.iter().map(|parameter| zeros(engine, parameter.values.elements())).collect()
    }
}

/// Zeros in the memory of an executor.
pub(crate) fn zeros<E: TapeEngine>(engine: &E, len: usize) -> Result<E::Tensor, GradError> {
    let mut tensor = engine.allocate(len)?;
    engine.fill(tensor.borrow_mut(), 0.0)?;
    Ok(tensor)
}

/// The weights of a source.
struct Loading<'a>(&'a dyn WeightSource);

impl Loading<'_> {
    fn load(&self, name: WeightName) -> Result<Tensor, NnError> {
        self.0.load(name).map_err(|error| NnError::Load { name: name.to_string(), source: Box::new(error) })
    }
}

impl DecoderWeights for Loading<'_> {
    fn matrix(&mut self, name: WeightName) -> Result<Tensor, NnError> {
        self.load(name)
    }

    fn vector(&mut self, name: WeightName) -> Result<Vec<f32>, NnError> {
        Ok(self.load(name)?.into_f32())
    }
}

/// Parameters as a checkpoint.
struct Dense<'a>(&'a Parameters);

impl Dense<'_> {
    fn find(&self, name: WeightName) -> Result<&Parameter, NnError> {
        let missing = || NnError::Load {
            name: name.to_string(),
            source: Box::new(TrainError::NoParameter { name: name.to_string() }),
        };
        self.0.place(name).map(|place| &self.0.all[place]).ok_or_else(missing)
    }
}

impl DecoderWeights for Dense<'_> {
    fn matrix(&mut self, name: WeightName) -> Result<Tensor, NnError> {
        let parameter = self.find(name)?;
        let shape = vec![parameter.rows(), parameter.cols];
        Ok(Tensor::Dense(DenseTensor::new(shape, DenseData::F32(parameter.values.clone()))?))
    }

    fn vector(&mut self, name: WeightName) -> Result<Vec<f32>, NnError> {
        self.find(name).map(|parameter| parameter.values.clone())
    }
}

/// Names and shapes of all parameters, in order.
pub(crate) fn shapes(spec: &DecoderSpec) -> Vec<(WeightName, (usize, usize))> {
    spec.weights().into_iter().map(|name| (name, spec.shape(name))).collect()
}

/// Normally distributed numbers (Box-Muller transform).
fn normals(rng: &mut ChaCha8Rng, count: usize, spread: f64) -> Vec<f32> {
    let mut uniform = || (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    let mut values = Vec::with_capacity(count + 1);
    while values.len() < count {
        let radius = spread * (-2.0 * (1.0 - uniform()).ln()).sqrt();
        let angle = std::f64::consts::TAU * uniform();
        values.extend([(radius * angle.cos()) as f32, (radius * angle.sin()) as f32]);
    }
    values.truncate(count);
    values
}

#[cfg(test)]
mod tests {
    use trike_testkit::assert_near;

    use super::*;

    #[test]
    fn random_weights_have_their_spread_and_a_seed() {
        let spec = DecoderSpec {
            qk_norm: true,
            biases: trike_nn::Biases { qkv: true, output: true, mlp: true },
            sub_norms: true,
            ..DecoderSpec::llama(64, 2, 4, 300)
        };
        let one = Parameters::random(&spec, 3).expect("parameters");
        assert_eq!(one, Parameters::random(&spec, 3).expect("parameters"));
        let other = Parameters::random(&spec, 4).expect("parameters");
        for (parameter, other) in one.all().iter().zip(other.all()) {
            let deviation = |values: &[f32]| {
                (values.iter().map(|v| f64::from(v * v)).sum::<f64>() / values.len() as f64).sqrt()
            };
            let want = match parameter.name {
                name if name.adds_to_stream() => 0.01,
                name if name.is_bias() => 0.0,
                name if name.is_vector() => 1.0,
                _ => 0.02,
            };
            let got = deviation(&parameter.values);
            assert_near!(got, want, abs = 0.05 * want + 1e-9, "{}", parameter.name);
            assert_eq!(parameter.values == other.values, parameter.name.is_vector());
        }
        assert_eq!(one.all().len(), 1 + 2 * 20 + 2);
        assert_eq!(one.place(WeightName::Head), Some(one.all().len() - 1));
    }
}
