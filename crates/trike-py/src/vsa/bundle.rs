//! `Bundle`: superposition with counts.

use numpy::PyArray1;
use pyo3::prelude::*;
use trike::vsa::{Bipolar, Bundle, Ternary, Z3};

use super::{Any, both, each, error, make, map, vector::PyHypervector};

/// A bundle of any algebra.
pub(super) type AnyBundle = Any<Bundle<Z3>, Bundle<Bipolar>, Bundle<Ternary>>;

/// A superposition of vectors as the counts of its trits: vectors can be removed, and a key unbound from all at once.
#[pyclass(name = "Bundle", module = "trike.vsa")]
pub(crate) struct PyBundle {
    pub(super) inner: AnyBundle,
}

#[pymethods]
impl PyBundle {
    /// An empty bundle.
    #[new]
    #[pyo3(signature = (dim, algebra="z3"))]
    fn new(dim: usize, algebra: &str) -> PyResult<Self> {
        Ok(Self { inner: make!(algebra, A => Bundle::<A>::new(dim)) })
    }

    /// The algebra's name.
    #[getter]
    fn algebra(&self) -> &'static str {
        self.inner.algebra()
    }

    /// Number of dimensions.
    #[getter]
    fn dim(&self) -> usize {
        each!(&self.inner, b => b.dim())
    }

    /// Total weight: the number of vectors if each was added once.
    #[getter]
    fn total(&self) -> u32 {
        each!(&self.inner, b => b.total())
    }

    /// Adds a vector `weight` times.
    #[pyo3(signature = (vector, weight=1))]
    fn add(&mut self, vector: &PyHypervector, weight: u32) -> PyResult<()> {
        both!(&mut self.inner, &vector.inner, b, v => b.add_weighted(v, weight)).map_err(error)
    }

    /// Removes a vector that was added with this weight.
    #[pyo3(signature = (vector, weight=1))]
    fn remove(&mut self, vector: &PyHypervector, weight: u32) -> PyResult<()> {
        both!(&mut self.inner, &vector.inner, b, v => b.remove_weighted(v, weight)).map_err(error)
    }

    /// Binds a key to everything in the bundle.
    fn bind(&mut self, key: &PyHypervector) -> PyResult<()> {
        both!(&mut self.inner, &key.inner, b, v => b.bind(v)).map_err(error)
    }

    /// Unbinds a key from everything in the bundle.
    fn unbind(&mut self, key: &PyHypervector) -> PyResult<()> {
        both!(&mut self.inner, &key.inner, b, v => b.unbind(v)).map_err(error)
    }

    /// Adds the vectors of another bundle.
    fn merge(&mut self, other: PyRef<'_, Self>) -> PyResult<()> {
        both!(&mut self.inner, &other.inner, b, o => b.merge(o)).map_err(error)
    }

    /// The trits of the bundle.
    fn to_vector(&self) -> PyResult<PyHypervector> {
        Ok(map!(&self.inner, b => b.to_vector()).into())
    }

    /// Per dimension, the count of +1 minus the count of -1, as a new int32 array (dim,).
    fn sums<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<i32>>> {
        Ok(PyArray1::from_vec(py, each!(&self.inner, b => b.sums()).map_err(error)?))
    }

    /// The estimated weight of a vector in the bundle: about 1 if it was added once, about 0 for a random one.
    fn similarity(&self, vector: &PyHypervector) -> PyResult<f64> {
        both!(&self.inner, &vector.inner, b, v => b.similarity(v)).map_err(error)
    }

    fn __repr__(&self) -> String {
        format!("Bundle(dim={}, algebra='{}', total={})", self.dim(), self.algebra(), self.total())
    }
}

pub(super) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyBundle>()
}
