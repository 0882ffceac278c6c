//! `ItemMemory`.

use std::{fs::File, io::BufReader, path::PathBuf};

use pyo3::{prelude::*, types::PyType};
use trike::{
    format::OutputFile,
    vsa::{Bipolar, Hit, ItemMemory, Ternary, VsaError, Z3},
};

use super::{Any, both, bundle::PyBundle, each, error, make, map, vector::PyHypervector};
use crate::{errors, host};

pub(super) type AnyMemory = Any<ItemMemory<Z3>, ItemMemory<Bipolar>, ItemMemory<Ternary>>;

/// A hit as (index, score, similarity).
pub(super) type Found = (usize, i64, f64);

pub(super) fn found(hit: &Hit) -> Found {
    (hit.index, hit.score, hit.similarity)
}

/// Vectors of the same dimensions with exact search.
#[pyclass(name = "ItemMemory", module = "trike.vsa")]
pub(super) struct PyItemMemory {
    pub(super) inner: AnyMemory,
    /// The process that owns the search threads.
    process: u32,
}

impl PyItemMemory {
    /// The memory; an error in another process than the one that made it.
    pub(super) fn here(&self) -> PyResult<&AnyMemory> {
        host::check_process(self.process, "the item memory was made", "make it in the child")?;
        Ok(&self.inner)
    }
}

#[pymethods]
impl PyItemMemory {
    /// An empty memory.
    #[new]
    #[pyo3(signature = (dim, algebra="z3"))]
    fn new(dim: usize, algebra: &str) -> PyResult<Self> {
        let cpu = host::cpu()?;
        Ok(Self {
            inner: make!(algebra, A => ItemMemory::<A>::with_cpu(dim, cpu)),
            process: std::process::id(),
        })
    }

    /// Reads a file written by `save`.
    #[classmethod]
    #[pyo3(signature = (path, algebra="z3"))]
    fn load(_class: &Bound<'_, PyType>, py: Python<'_>, path: PathBuf, algebra: &str) -> PyResult<Self> {
        let cpu = host::cpu()?;
        let file = BufReader::new(File::open(&path).map_err(|e| errors::file(&path, &e))?);
        let inner = py.detach(|| -> PyResult<AnyMemory> {
            Ok(make!(algebra, A => ItemMemory::<A>::read(file).map(|memory| memory.on(cpu))))
        });
        Ok(Self { inner: inner?, process: std::process::id() })
    }

    /// Writes all vectors to a file.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let mut file = OutputFile::create(&path).map_err(|e| errors::file(&path, &e))?;
        py.detach(|| each!(&self.inner, m => m.write(&mut file))).map_err(error)?;
        py.detach(|| file.finish()).map_err(|e| errors::file(&path, &e))
    }

    /// The algebra's name.
    #[getter]
    fn algebra(&self) -> &'static str {
        self.inner.algebra()
    }

    /// Number of dimensions.
    #[getter]
    fn dim(&self) -> usize {
        each!(&self.inner, m => m.dim())
    }

    /// Stores a vector and returns its index.
    fn add(&mut self, vector: &PyHypervector) -> PyResult<usize> {
        both!(&mut self.inner, &vector.inner, m, v => m.push(v)).map_err(error)
    }

    /// A copy of a stored vector.
    fn get(&self, index: usize) -> PyResult<PyHypervector> {
        Ok(map!(&self.inner, m => m.get(index)).into())
    }

    /// Overwrites a stored vector.
    fn replace(&mut self, index: usize, vector: &PyHypervector) -> PyResult<()> {
        both!(&mut self.inner, &vector.inner, m, v => m.replace(index, v)).map_err(error)
    }

    /// The `k` most similar vectors, best first, as (index, score, similarity).
    #[pyo3(signature = (query, k=1))]
    fn search(&self, py: Python<'_>, query: &PyHypervector, k: usize) -> PyResult<Vec<Found>> {
        let hits = both!(self.here()?, &query.inner, m, v => py.detach(|| m.top_k(v, k)));
        Ok(hits.map_err(error)?.iter().map(found).collect())
    }

    /// The `k` vectors with the largest weights in a bundle, according to its counts.
    #[pyo3(signature = (bundle, k=1))]
    fn search_bundle(&self, py: Python<'_>, bundle: &PyBundle, k: usize) -> PyResult<Vec<Found>> {
        let hits = both!(self.here()?, &bundle.inner, m, b => py.detach(|| m.top_k_in_bundle(b, k)));
        Ok(hits.map_err(error)?.iter().map(found).collect())
    }

    /// The most similar stored vector, or None below a similarity of `threshold`.
    fn cleanup(&self, query: &PyHypervector, threshold: f64) -> PyResult<Option<PyHypervector>> {
        fn some<T>(found: Result<Option<T>, VsaError>) -> PyResult<Option<T>> {
            found.map_err(error)
        }
        Ok(match (self.here()?, &query.inner) {
            (Any::Z3(m), Any::Z3(v)) => some(m.cleanup(v, threshold))?.map(Any::Z3),
            (Any::Bipolar(m), Any::Bipolar(v)) => some(m.cleanup(v, threshold))?.map(Any::Bipolar),
            (Any::Ternary(m), Any::Ternary(v)) => some(m.cleanup(v, threshold))?.map(Any::Ternary),
            (a, b) => return Err(super::mixed(a.algebra(), b.algebra())),
        }
        .map(PyHypervector::from))
    }

    fn __len__(&self) -> usize {
        each!(&self.inner, m => m.len())
    }

    fn __repr__(&self) -> String {
        format!("ItemMemory(dim={}, algebra='{}', items={})", self.dim(), self.algebra(), self.__len__())
    }
}

pub(super) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyItemMemory>()
}
