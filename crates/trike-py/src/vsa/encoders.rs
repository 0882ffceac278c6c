//! Numbers, real vectors and texts as hypervectors.

use pyo3::prelude::*;
use trike::vsa::{Bipolar, RandomProjection, ScalarEncoder, Ternary, TextEncoder, Z3};

use super::{Any, both, bundle::PyBundle, each, error, make, map, vector::PyHypervector};
use crate::arrays::borrow;

/// Numbers of an interval as vectors whose similarity decreases with distance.
#[pyclass(name = "ScalarEncoder", module = "trike.vsa", frozen)]
struct PyScalarEncoder {
    inner: Any<ScalarEncoder<Z3>, ScalarEncoder<Bipolar>, ScalarEncoder<Ternary>>,
}

#[pymethods]
impl PyScalarEncoder {
    /// Equally spaced levels from `low` to `high`.
    #[new]
    #[pyo3(signature = (dim, low, high, levels, seed=0, algebra="z3"))]
    fn new(dim: usize, low: f64, high: f64, levels: usize, seed: u64, algebra: &str) -> PyResult<Self> {
        Ok(Self { inner: make!(algebra, A => ScalarEncoder::<A>::new(dim, low, high, levels, seed)) })
    }

    /// The vector of the nearest level.
    fn encode(&self, value: f64) -> PyResult<PyHypervector> {
        Ok(map!(&self.inner, e => e.encode(value)).into())
    }

    /// The value of the most similar level.
    fn decode(&self, vector: &PyHypervector) -> PyResult<f64> {
        both!(&self.inner, &vector.inner, e, v => e.decode(v)).map_err(error)
    }
}

/// Real vectors as hypervectors whose similarity is a function of the angle between the inputs.
#[pyclass(name = "RandomProjection", module = "trike.vsa", frozen)]
struct PyRandomProjection {
    inner: Any<RandomProjection<Z3>, RandomProjection<Bipolar>, RandomProjection<Ternary>>,
}

#[pymethods]
impl PyRandomProjection {
    /// A projection of `inputs` numbers to `dim` dimensions.
    #[new]
    #[pyo3(signature = (inputs, dim, seed=0, algebra="z3"))]
    fn new(inputs: usize, dim: usize, seed: u64, algebra: &str) -> PyResult<Self> {
        Ok(Self { inner: make!(algebra, A => RandomProjection::<A>::new(inputs, dim, seed)) })
    }

    /// The vector of an f32 array (inputs,).
    fn encode(&self, input: &Bound<'_, PyAny>) -> PyResult<PyHypervector> {
        let input = borrow::<f32>(input, "input", &["inputs"])?;
        input.expect(&[each!(&self.inner, p => p.inputs())])?;
        let values = input.values()?;
        Ok(map!(&self.inner, p => p.encode(values)).into())
    }
}

/// Texts as bundles of their byte n-grams.
#[pyclass(name = "TextEncoder", module = "trike.vsa", frozen)]
struct PyTextEncoder {
    inner: Any<TextEncoder<Z3>, TextEncoder<Bipolar>, TextEncoder<Ternary>>,
}

#[pymethods]
impl PyTextEncoder {
    /// An encoder with n-grams of `n` bytes.
    #[new]
    #[pyo3(signature = (dim, n=3, seed=0, algebra="z3"))]
    fn new(dim: usize, n: usize, seed: u64, algebra: &str) -> PyResult<Self> {
        Ok(Self { inner: make!(algebra, A => TextEncoder::<A>::new(dim, n, seed)) })
    }

    /// The bundle of all n-grams of a text.
    fn encode(&self, text: &str) -> PyResult<PyBundle> {
        Ok(PyBundle { inner: map!(&self.inner, e => e.encode(text)) })
    }
}

pub(super) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyScalarEncoder>()?;
    m.add_class::<PyRandomProjection>()?;
    m.add_class::<PyTextEncoder>()
}
