//! `CentroidClassifier`, `DistributedMemory` and `Hierarchy`.

use pyo3::{exceptions::PyValueError, prelude::*};
use trike::{
    trit::Tryte3,
    vsa::{
        Bipolar, CapacityPolicy, CentroidClassifier, DistributedMemory, FullAction, Hierarchy, Ternary,
        VsaError, Z3,
    },
};

use super::{
    Any, both, bundle::PyBundle, each, error, make, map, memory::Found, memory::PyItemMemory, memory::found,
    same, vector::PyHypervector,
};

/// A classifier that bundles the examples of each class.
#[pyclass(name = "CentroidClassifier", module = "trike.vsa")]
struct PyCentroidClassifier {
    inner: Any<CentroidClassifier<Z3>, CentroidClassifier<Bipolar>, CentroidClassifier<Ternary>>,
}

#[pymethods]
impl PyCentroidClassifier {
    /// A classifier without examples.
    #[new]
    #[pyo3(signature = (dim, classes, algebra="z3"))]
    fn new(dim: usize, classes: usize, algebra: &str) -> PyResult<Self> {
        Ok(Self { inner: make!(algebra, A => CentroidClassifier::<A>::new(dim, classes)) })
    }

    /// Number of dimensions.
    #[getter]
    fn dim(&self) -> usize {
        each!(&self.inner, c => c.dim())
    }

    /// Adds an example of a class.
    fn add(&mut self, label: usize, example: &PyHypervector) -> PyResult<()> {
        both!(&mut self.inner, &example.inner, c, v => c.add(label, v)).map_err(error)
    }

    /// Adds the vectors of a bundle to a class.
    fn add_bundle(&mut self, label: usize, examples: &PyBundle) -> PyResult<()> {
        both!(&mut self.inner, &examples.inner, c, b => c.add_bundle(label, b)).map_err(error)
    }

    /// Learns from an example only if it is misclassified, and returns whether it was.
    fn correct(&mut self, label: usize, example: &PyHypervector) -> PyResult<bool> {
        both!(&mut self.inner, &example.inner, c, v => c.correct(label, v)).map_err(error)
    }

    /// The class that a vector is most similar to, as (class, score, similarity).
    fn classify(&self, py: Python<'_>, vector: &PyHypervector) -> PyResult<Found> {
        let hit = both!(&self.inner, &vector.inner, c, v => py.detach(|| c.classify(v)));
        Ok(found(&hit.map_err(error)?))
    }
}

/// Kanerva's sparse distributed memory.
#[pyclass(name = "DistributedMemory", module = "trike.vsa")]
struct PyDistributedMemory {
    inner: Any<DistributedMemory<Z3>, DistributedMemory<Bipolar>, DistributedMemory<Ternary>>,
}

#[pymethods]
impl PyDistributedMemory {
    /// An empty memory with random locations, active from a similarity of `threshold` to the address.
    #[new]
    #[pyo3(signature = (dim, locations, threshold, seed=0, algebra="z3"))]
    fn new(dim: usize, locations: usize, threshold: f64, seed: u64, algebra: &str) -> PyResult<Self> {
        let inner = make!(algebra, A => DistributedMemory::<A>::new(dim, locations, threshold, seed));
        Ok(Self { inner })
    }

    /// Writes a value and returns the number of locations written to.
    fn write(&mut self, py: Python<'_>, address: &PyHypervector, value: &PyHypervector) -> PyResult<usize> {
        same!((&mut self.inner, &address.inner, &value.inner), (m, a, v) => py.detach(|| m.write(a, v)))
            .map_err(error)
    }

    /// The value at an address; None if none of its active locations was written.
    fn read(&self, py: Python<'_>, address: &PyHypervector) -> PyResult<Option<PyHypervector>> {
        fn some<T>(found: Result<Option<T>, VsaError>) -> PyResult<Option<T>> {
            found.map_err(error)
        }
        Ok(match (&self.inner, &address.inner) {
            (Any::Z3(m), Any::Z3(a)) => some(py.detach(|| m.read(a)))?.map(Any::Z3),
            (Any::Bipolar(m), Any::Bipolar(a)) => some(py.detach(|| m.read(a)))?.map(Any::Bipolar),
            (Any::Ternary(m), Any::Ternary(a)) => some(py.detach(|| m.read(a)))?.map(Any::Ternary),
            (m, a) => return Err(super::mixed(m.algebra(), a.algebra())),
        }
        .map(PyHypervector::from))
    }
}

/// A record of three levels with slots at the addresses (a, b, c), each number from -13 to 13.
#[pyclass(name = "Hierarchy", module = "trike.vsa")]
struct PyHierarchy {
    inner: Any<Hierarchy<Z3>, Hierarchy<Bipolar>, Hierarchy<Ternary>>,
}

fn address(numbers: [i8; 3]) -> PyResult<[Tryte3; 3]> {
    let trytes = numbers.map(Tryte3::new);
    let [Some(a), Some(b), Some(c)] = trytes else {
        return Err(PyValueError::new_err(format!(
            "address: expected three numbers from -13 to 13, got {numbers:?}"
        )));
    };
    Ok([a, b, c])
}

#[pymethods]
impl PyHierarchy {
    /// An empty record. Values are to be retrieved among `candidates` vectors with at least this probability; with `refuse`, an
    /// insertion that would reduce it below raises ValueError.
    #[new]
    #[pyo3(signature = (dim, candidates, probability=0.99, refuse=false, seed=0, algebra="z3"))]
    fn new(
        dim: usize,
        candidates: usize,
        probability: f64,
        refuse: bool,
        seed: u64,
        algebra: &str,
    ) -> PyResult<Self> {
        let when_full = if refuse { FullAction::Refuse } else { FullAction::Warn };
        let policy = CapacityPolicy::new(candidates, probability, when_full).map_err(error)?;
        Ok(Self { inner: make!(algebra, A => Hierarchy::<A>::new(dim, seed, policy)) })
    }

    /// The key of a slot.
    fn key(&self, address: [i8; 3]) -> PyResult<PyHypervector> {
        let at = self::address(address)?;
        Ok(map!(&self.inner, h => h.key(at)).into())
    }

    /// Inserts a value into a slot. Returns the probability of retrieval, and whether it is sufficient.
    fn insert(&mut self, address: [i8; 3], value: &PyHypervector) -> PyResult<(f64, bool)> {
        let at = self::address(address)?;
        let judged = both!(&mut self.inner, &value.inner, h, v => h.insert(at, v)).map_err(error)?;
        Ok((judged.probability, judged.sufficient))
    }

    /// Removes a value from a slot.
    fn remove(&mut self, address: [i8; 3], value: &PyHypervector) -> PyResult<()> {
        let at = self::address(address)?;
        both!(&mut self.inner, &value.inner, h, v => h.remove(at, v)).map_err(error)
    }

    /// The value of a slot among the vectors of a memory, as (index, score, similarity).
    fn get(&self, py: Python<'_>, address: [i8; 3], memory: &PyItemMemory) -> PyResult<Found> {
        let at = self::address(address)?;
        let hit = both!(&self.inner, memory.here()?, h, m => py.detach(|| h.get(at, m)));
        Ok(found(&hit.map_err(error)?))
    }

    fn __len__(&self) -> usize {
        each!(&self.inner, h => h.len())
    }
}

pub(super) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyCentroidClassifier>()?;
    m.add_class::<PyDistributedMemory>()?;
    m.add_class::<PyHierarchy>()
}
