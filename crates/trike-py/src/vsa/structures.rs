//! `Record`, `Sequence` and factorization.

use pyo3::prelude::*;
use trike::vsa::{self, Bipolar, Record, Sequence, Ternary, Z3};

use super::{
    Any, both, each, error, make, map, memory::Found, memory::PyItemMemory, memory::found, mixed, same,
    vector::PyHypervector,
};

/// Key-value pairs in one bundle.
#[pyclass(name = "Record", module = "trike.vsa")]
struct PyRecord {
    inner: Any<Record<Z3>, Record<Bipolar>, Record<Ternary>>,
}

#[pymethods]
impl PyRecord {
    /// An empty record.
    #[new]
    #[pyo3(signature = (dim, algebra="z3"))]
    fn new(dim: usize, algebra: &str) -> PyResult<Self> {
        Ok(Self { inner: make!(algebra, A => Record::<A>::new(dim)) })
    }

    /// Adds a pair.
    fn insert(&mut self, key: &PyHypervector, value: &PyHypervector) -> PyResult<()> {
        same!((&mut self.inner, &key.inner, &value.inner), (r, k, v) => r.insert(k, v).map(drop))
            .map_err(error)
    }

    /// Removes a pair.
    fn remove(&mut self, key: &PyHypervector, value: &PyHypervector) -> PyResult<()> {
        same!((&mut self.inner, &key.inner, &value.inner), (r, k, v) => r.remove(k, v)).map_err(error)
    }

    /// The value of a key, searched in a memory, as (index, score, similarity).
    fn get(&self, key: &PyHypervector, memory: &PyItemMemory) -> PyResult<Found> {
        let hit = same!((&self.inner, &key.inner, memory.here()?), (r, k, m) => r.get(k, m));
        Ok(found(&hit.map_err(error)?))
    }

    /// The record as one vector.
    fn to_vector(&self) -> PyResult<PyHypervector> {
        Ok(map!(&self.inner, r => r.to_vector()).into())
    }

    fn __len__(&self) -> usize {
        each!(&self.inner, r => r.len())
    }
}

/// A list: the bundle of its vectors, each rotated by its index.
#[pyclass(name = "Sequence", module = "trike.vsa")]
struct PySequence {
    inner: Any<Sequence<Z3>, Sequence<Bipolar>, Sequence<Ternary>>,
}

#[pymethods]
impl PySequence {
    /// An empty list.
    #[new]
    #[pyo3(signature = (dim, algebra="z3"))]
    fn new(dim: usize, algebra: &str) -> PyResult<Self> {
        Ok(Self { inner: make!(algebra, A => Sequence::<A>::new(dim)) })
    }

    /// Appends a vector.
    fn push(&mut self, vector: &PyHypervector) -> PyResult<()> {
        both!(&mut self.inner, &vector.inner, s, v => s.push(v)).map_err(error)
    }

    /// Removes the last vector, which the caller must supply.
    fn pop(&mut self, last: &PyHypervector) -> PyResult<()> {
        both!(&mut self.inner, &last.inner, s, v => s.pop(v)).map_err(error)
    }

    /// The vector at an index, searched in a memory, as (index, score, similarity).
    fn get(&self, place: usize, memory: &PyItemMemory) -> PyResult<Found> {
        let hit = both!(&self.inner, memory.here()?, s, m => s.get(place, m));
        Ok(found(&hit.map_err(error)?))
    }

    fn __len__(&self) -> usize {
        each!(&self.inner, s => s.len())
    }
}

/// Factorizes a bound vector into one vector per memory, by a resonator network. Returns (indices, rounds, exact).
#[pyfunction]
#[pyo3(signature = (product, memories, max_rounds=100))]
fn factorize(
    py: Python<'_>,
    product: &PyHypervector,
    memories: Vec<PyRef<'_, PyItemMemory>>,
    max_rounds: usize,
) -> PyResult<(Vec<usize>, usize, bool)> {
    let here = memories.iter().map(|m| m.here()).collect::<PyResult<Vec<_>>>()?;
    macro_rules! solve {
        ($kind:ident, $product:expr) => {{
            let books = here.iter().map(|m| match m {
                Any::$kind(m) => Ok(m),
                other => Err(mixed(product.inner.algebra(), other.algebra())),
            });
            let books = books.collect::<PyResult<Vec<_>>>()?;
            py.detach(|| vsa::factorize($product, &books, max_rounds))
        }};
    }
    let factors = match &product.inner {
        Any::Z3(product) => solve!(Z3, product),
        Any::Bipolar(product) => solve!(Bipolar, product),
        Any::Ternary(product) => solve!(Ternary, product),
    };
    let factors = factors.map_err(error)?;
    Ok((factors.indices, factors.rounds, factors.exact))
}

pub(super) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyRecord>()?;
    m.add_class::<PySequence>()?;
    m.add_function(wrap_pyfunction!(factorize, m)?)
}
