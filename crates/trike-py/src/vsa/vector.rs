//! `Hypervector` and its operations.

use std::hash::{DefaultHasher, Hash, Hasher};

use numpy::PyArray1;
use pyo3::{exceptions::PyIndexError, prelude::*, types::PyType};
use trike::vsa::{self, PackedTritVec};

use super::{AnyVector, both, each, error, join, make, map, of_one};
use crate::{
    arrays::{borrow, converted},
    errors,
};

/// A hypervector: trits in two bits per dimension, with the algebra `z3`, `bipolar` or `ternary`.
#[pyclass(name = "Hypervector", module = "trike.vsa", frozen)]
pub(crate) struct PyHypervector {
    pub(crate) inner: AnyVector,
}

impl From<AnyVector> for PyHypervector {
    fn from(inner: AnyVector) -> Self {
        Self { inner }
    }
}

#[pymethods]
impl PyHypervector {
    /// A vector of the trits of an int8 array (dim,).
    #[new]
    #[pyo3(signature = (trits, algebra="z3"))]
    fn new(trits: &Bound<'_, PyAny>, algebra: &str) -> PyResult<Self> {
        let trits = borrow::<i8>(trits, "trits", &["dim"])?;
        let values = trits.values()?;
        Ok(make!(algebra, A => PackedTritVec::<A>::from_trits(values)).into())
    }

    /// A random vector, the same for the same seed on every machine.
    #[classmethod]
    #[pyo3(signature = (dim, seed, algebra="z3"))]
    fn random(_class: &Bound<'_, PyType>, dim: usize, seed: u64, algebra: &str) -> PyResult<Self> {
        Ok(make!(algebra, A => PackedTritVec::<A>::random(dim, seed)).into())
    }

    /// A random vector of signs, without zeros.
    #[classmethod]
    #[pyo3(signature = (dim, seed, algebra="z3"))]
    fn random_dense(_class: &Bound<'_, PyType>, dim: usize, seed: u64, algebra: &str) -> PyResult<Self> {
        Ok(make!(algebra, A => PackedTritVec::<A>::random_dense(dim, seed)).into())
    }

    /// The identity of binding.
    #[classmethod]
    #[pyo3(signature = (dim, algebra="z3"))]
    fn identity(_class: &Bound<'_, PyType>, dim: usize, algebra: &str) -> PyResult<Self> {
        Ok(make!(algebra, A => PackedTritVec::<A>::identity(dim)).into())
    }

    /// The algebra's name.
    #[getter]
    fn algebra(&self) -> &'static str {
        self.inner.algebra()
    }

    /// Number of dimensions.
    #[getter]
    fn dim(&self) -> usize {
        each!(&self.inner, v => v.dim())
    }

    /// Number of nonzero dimensions.
    #[getter]
    fn nonzeros(&self) -> PyResult<usize> {
        each!(&self.inner, v => v.nonzeros()).map_err(error)
    }

    /// The trits as a new int8 array (dim,).
    fn to_numpy<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i8>> {
        PyArray1::from_vec(py, each!(&self.inner, v => v.to_trits()))
    }

    /// The vector rotated by some dimensions: `out[(j + by) % dim] = self[j]`.
    fn permute(&self, by: isize) -> PyResult<Self> {
        Ok(map!(&self.inner, v => vsa::permute(v, by)).into())
    }

    /// The inverse of binding.
    fn inverse(&self) -> PyResult<Self> {
        Ok(map!(&self.inner, v => vsa::inverse(v)).into())
    }

    fn __neg__(&self) -> PyResult<Self> {
        Ok(map!(&self.inner, v => vsa::negate(v)).into())
    }

    fn __mul__(&self, other: &Self) -> PyResult<Self> {
        bind(self, other)
    }

    fn __len__(&self) -> usize {
        self.dim()
    }

    fn __getitem__(&self, index: isize) -> PyResult<i8> {
        let dim = self.dim();
        let at = if index < 0 { index.checked_add_unsigned(dim) } else { Some(index) };
        let trit =
            at.and_then(|at| usize::try_from(at).ok()).and_then(|at| each!(&self.inner, v => v.get(at)));
        let out = || PyIndexError::new_err(format!("index {index} is out of range for {dim} dimensions"));
        Ok(trit.ok_or_else(out)?.value())
    }

    fn __eq__(&self, other: &Self) -> bool {
        match (&self.inner, &other.inner) {
            (super::Any::Z3(a), super::Any::Z3(b)) => a == b,
            (super::Any::Bipolar(a), super::Any::Bipolar(b)) => a == b,
            (super::Any::Ternary(a), super::Any::Ternary(b)) => a == b,
            _ => false,
        }
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.algebra().hash(&mut hasher);
        each!(&self.inner, v => v.to_trits()).hash(&mut hasher);
        hasher.finish()
    }

    /// NumPy's array protocol: the trits as a new array.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        converted(self.to_numpy(py).into_any(), dtype, copy)
    }

    fn __repr__(&self) -> String {
        format!("Hypervector(dim={}, algebra='{}')", self.dim(), self.algebra())
    }
}

/// Binds two vectors.
#[pyfunction]
fn bind(a: &PyHypervector, b: &PyHypervector) -> PyResult<PyHypervector> {
    Ok(join!(&a.inner, &b.inner, a, b => vsa::bind(a, b)).into())
}

/// Unbinds a key from a vector bound to it.
#[pyfunction]
fn unbind(bound: &PyHypervector, key: &PyHypervector) -> PyResult<PyHypervector> {
    Ok(join!(&bound.inner, &key.inner, a, b => vsa::unbind(a, b)).into())
}

/// Bundles vectors: the result is similar to each. With integer weights, each is added that many times.
#[pyfunction]
#[pyo3(signature = (vectors, weights=None))]
fn bundle(vectors: Vec<Bound<'_, PyHypervector>>, weights: Option<Vec<u32>>) -> PyResult<PyHypervector> {
    let Some(weights) = weights else {
        return Ok(of_one!(vectors, all => vsa::bundle_many(all)).into());
    };
    if weights.len() != vectors.len() {
        return Err(pyo3::exceptions::PyValueError::new_err(format!(
            "weights: expected one for each of {} vectors, got {}",
            vectors.len(),
            weights.len()
        )));
    }
    Ok(of_one!(vectors, all => vsa::bundle_weighted(all.into_iter().zip(weights.iter().copied()))).into())
}

/// Similarity in the algebra: 1 for equal vectors, about 0 for random ones.
#[pyfunction]
fn similarity(a: &PyHypervector, b: &PyHypervector) -> PyResult<f64> {
    both!(&a.inner, &b.inner, a, b => vsa::similarity(a, b)).map_err(error)
}

/// The cosine; 0 if one vector is all zeros.
#[pyfunction]
fn cosine_similarity(a: &PyHypervector, b: &PyHypervector) -> PyResult<f64> {
    both!(&a.inner, &b.inner, a, b => vsa::cosine_similarity(a, b)).map_err(error)
}

/// The dot product.
#[pyfunction]
fn dot(a: &PyHypervector, b: &PyHypervector) -> PyResult<i32> {
    both!(&a.inner, &b.inner, a, b => vsa::dot(a, b)).map_err(error)
}

/// Number of dimensions with different trits.
#[pyfunction]
fn hamming_distance(a: &PyHypervector, b: &PyHypervector) -> PyResult<usize> {
    both!(&a.inner, &b.inner, a, b => vsa::hamming_distance(a, b)).map_err(error)
}

/// The vectors of a named algebra that an expression makes.
macro_rules! set {
    ($algebra:expr, $a:ident => $body:expr) => {{
        let all = make!($algebra, $a => $body);
        match all {
            super::Any::Z3(all) => all.into_iter().map(|v| PyHypervector { inner: super::Any::Z3(v) }).collect(),
            super::Any::Bipolar(all) => {
                all.into_iter().map(|v| PyHypervector { inner: super::Any::Bipolar(v) }).collect()
            }
            super::Any::Ternary(all) => {
                all.into_iter().map(|v| PyHypervector { inner: super::Any::Ternary(v) }).collect()
            }
        }
    }};
}

/// Independent random vectors.
#[pyfunction]
#[pyo3(signature = (dim, count, seed, algebra="z3"))]
fn random_set(dim: usize, count: usize, seed: u64, algebra: &str) -> PyResult<Vec<PyHypervector>> {
    Ok(set!(algebra, A => PackedTritVec::<A>::random_set(dim, count, seed)))
}

/// Vectors of the levels of a scale, circle or thermometer: `kind` is `level`, `circular` or `thermometer` (which has no seed).
#[pyfunction]
#[pyo3(signature = (kind, dim, levels, seed=0, algebra="z3"))]
fn ordered_set(
    kind: &str,
    dim: usize,
    levels: usize,
    seed: u64,
    algebra: &str,
) -> PyResult<Vec<PyHypervector>> {
    Ok(match kind {
        "level" => set!(algebra, A => vsa::level_set::<A>(dim, levels, seed)),
        "circular" => set!(algebra, A => vsa::circular_set::<A>(dim, levels, seed)),
        "thermometer" => set!(algebra, A => vsa::thermometer_set::<A>(dim, levels)),
        got => return Err(errors::unknown("kind", got, &["level", "circular", "thermometer"])),
    })
}

/// Binds a sequence: each vector rotated by its distance from the last one.
#[pyfunction]
fn bind_sequence(vectors: Vec<Bound<'_, PyHypervector>>) -> PyResult<PyHypervector> {
    Ok(of_one!(vectors, all => vsa::bind_sequence(all)).into())
}

pub(super) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyHypervector>()?;
    m.add_function(wrap_pyfunction!(bind, m)?)?;
    m.add_function(wrap_pyfunction!(unbind, m)?)?;
    m.add_function(wrap_pyfunction!(bundle, m)?)?;
    m.add_function(wrap_pyfunction!(similarity, m)?)?;
    m.add_function(wrap_pyfunction!(cosine_similarity, m)?)?;
    m.add_function(wrap_pyfunction!(dot, m)?)?;
    m.add_function(wrap_pyfunction!(hamming_distance, m)?)?;
    m.add_function(wrap_pyfunction!(random_set, m)?)?;
    m.add_function(wrap_pyfunction!(ordered_set, m)?)?;
    m.add_function(wrap_pyfunction!(bind_sequence, m)?)
}
