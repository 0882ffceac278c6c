//! `Tree`, `Graph`, `Automaton` and `Multiset`.

use pyo3::prelude::*;
use trike::vsa::{Automaton, Bipolar, Graph, Hit, Multiset, Ternary, Tree, VsaError, Z3};

use super::{
    Any, both, bundle::PyBundle, each, error, make, map, memory::Found, memory::PyItemMemory, memory::found,
    same, vector::PyHypervector,
};

fn all_found(hits: Result<Vec<Hit>, VsaError>) -> PyResult<Vec<Found>> {
    Ok(hits.map_err(error)?.iter().map(found).collect())
}

/// A binary tree in one bundle. A path from the root is a list of turns: False is left, True is right.
#[pyclass(name = "Tree", module = "trike.vsa")]
struct PyTree {
    inner: Any<Tree<Z3>, Tree<Bipolar>, Tree<Ternary>>,
}

#[pymethods]
impl PyTree {
    /// A tree without values.
    #[new]
    #[pyo3(signature = (dim, seed=0, algebra="z3"))]
    fn new(dim: usize, seed: u64, algebra: &str) -> PyResult<Self> {
        Ok(Self { inner: make!(algebra, A => Tree::<A>::new(dim, seed)) })
    }

    /// The vector of a path.
    fn path(&self, path: Vec<bool>) -> PyResult<PyHypervector> {
        Ok(map!(&self.inner, t => t.path(&path)).into())
    }

    /// Inserts a value at the end of a path.
    fn insert(&mut self, path: Vec<bool>, value: &PyHypervector) -> PyResult<()> {
        both!(&mut self.inner, &value.inner, t, v => t.insert(&path, v)).map_err(error)
    }

    /// Removes a value.
    fn remove(&mut self, path: Vec<bool>, value: &PyHypervector) -> PyResult<()> {
        both!(&mut self.inner, &value.inner, t, v => t.remove(&path, v)).map_err(error)
    }

    /// The value at the end of a path, searched in a memory, as (index, score, similarity).
    fn get(&self, py: Python<'_>, path: Vec<bool>, memory: &PyItemMemory) -> PyResult<Found> {
        let hit = both!(&self.inner, memory.here()?, t, m => py.detach(|| t.get(&path, m)));
        Ok(found(&hit.map_err(error)?))
    }

    /// A copy of the counts.
    fn bundle(&self) -> PyResult<PyBundle> {
        Ok(PyBundle { inner: map!(&self.inner, t => Ok(t.bundle().clone())) })
    }
}

/// A graph in one bundle of edges.
#[pyclass(name = "Graph", module = "trike.vsa")]
struct PyGraph {
    inner: Any<Graph<Z3>, Graph<Bipolar>, Graph<Ternary>>,
}

#[pymethods]
impl PyGraph {
    /// A graph without edges.
    #[new]
    #[pyo3(signature = (dim, directed=true, algebra="z3"))]
    fn new(dim: usize, directed: bool, algebra: &str) -> PyResult<Self> {
        Ok(Self {
            inner: make!(algebra, A => match directed {
                true => Graph::<A>::directed(dim),
                false => Graph::<A>::undirected(dim),
            }),
        })
    }

    /// Adds an edge.
    fn add_edge(&mut self, start: &PyHypervector, end: &PyHypervector) -> PyResult<()> {
        same!((&mut self.inner, &start.inner, &end.inner), (g, a, b) => g.add_edge(a, b)).map_err(error)
    }

    /// Removes an edge.
    fn remove_edge(&mut self, start: &PyHypervector, end: &PyHypervector) -> PyResult<()> {
        same!((&mut self.inner, &start.inner, &end.inner), (g, a, b) => g.remove_edge(a, b)).map_err(error)
    }

    /// The estimated multiplicity of an edge: about 1 if it was added once, about 0 if it is absent.
    fn has_edge(&self, start: &PyHypervector, end: &PyHypervector) -> PyResult<f64> {
        same!((&self.inner, &start.inner, &end.inner), (g, a, b) => g.has_edge(a, b)).map_err(error)
    }

    /// The nodes in a memory with an edge from a node, as (index, score, similarity); in an undirected graph, all neighbours.
    #[pyo3(signature = (node, memory, threshold=0.5))]
    fn successors(
        &self,
        py: Python<'_>,
        node: &PyHypervector,
        memory: &PyItemMemory,
        threshold: f64,
    ) -> PyResult<Vec<Found>> {
        all_found(same!((&self.inner, &node.inner, memory.here()?), (g, n, m) => {
            py.detach(|| g.successors(n, m, threshold))
        }))
    }

    /// The nodes in a memory with an edge to a node.
    #[pyo3(signature = (node, memory, threshold=0.5))]
    fn predecessors(
        &self,
        py: Python<'_>,
        node: &PyHypervector,
        memory: &PyItemMemory,
        threshold: f64,
    ) -> PyResult<Vec<Found>> {
        all_found(same!((&self.inner, &node.inner, memory.here()?), (g, n, m) => {
            py.detach(|| g.predecessors(n, m, threshold))
        }))
    }

    /// A copy of the counts.
    fn bundle(&self) -> PyResult<PyBundle> {
        Ok(PyBundle { inner: map!(&self.inner, g => Ok(g.bundle().clone())) })
    }
}

/// A finite automaton in one bundle of transitions.
#[pyclass(name = "Automaton", module = "trike.vsa")]
struct PyAutomaton {
    inner: Any<Automaton<Z3>, Automaton<Bipolar>, Automaton<Ternary>>,
}

#[pymethods]
impl PyAutomaton {
    /// An automaton without transitions.
    #[new]
    #[pyo3(signature = (dim, algebra="z3"))]
    fn new(dim: usize, algebra: &str) -> PyResult<Self> {
        Ok(Self { inner: make!(algebra, A => Automaton::<A>::new(dim)) })
    }

    /// Adds a transition.
    fn add(&mut self, symbol: &PyHypervector, start: &PyHypervector, end: &PyHypervector) -> PyResult<()> {
        same!((&mut self.inner, &symbol.inner, &start.inner, &end.inner), (m, s, a, b) => m.add(s, a, b))
            .map_err(error)
    }

    /// Removes a transition.
    fn remove(&mut self, symbol: &PyHypervector, start: &PyHypervector, end: &PyHypervector) -> PyResult<()> {
        same!((&mut self.inner, &symbol.inner, &start.inner, &end.inner), (m, s, a, b) => m.remove(s, a, b))
            .map_err(error)
    }

    /// The next state for a state and a symbol, searched in a memory, as (index, score, similarity); None if there is probably no
    /// such transition.
    fn next(
        &self,
        py: Python<'_>,
        symbol: &PyHypervector,
        state: &PyHypervector,
        states: &PyItemMemory,
    ) -> PyResult<Option<Found>> {
        let hit = same!((&self.inner, &symbol.inner, &state.inner, states.here()?), (a, s, f, m) => {
            py.detach(|| a.next(s, f, m))
        });
        Ok(hit.map_err(error)?.as_ref().map(found))
    }
}

/// A multiset in one bundle.
#[pyclass(name = "Multiset", module = "trike.vsa")]
struct PyMultiset {
    inner: Any<Multiset<Z3>, Multiset<Bipolar>, Multiset<Ternary>>,
}

#[pymethods]
impl PyMultiset {
    /// An empty multiset.
    #[new]
    #[pyo3(signature = (dim, algebra="z3"))]
    fn new(dim: usize, algebra: &str) -> PyResult<Self> {
        Ok(Self { inner: make!(algebra, A => Multiset::<A>::new(dim)) })
    }

    /// Adds a vector `times` times.
    #[pyo3(signature = (vector, times=1))]
    fn add(&mut self, vector: &PyHypervector, times: u32) -> PyResult<()> {
        both!(&mut self.inner, &vector.inner, s, v => s.add(v, times)).map_err(error)
    }

    /// Removes a vector `times` times.
    #[pyo3(signature = (vector, times=1))]
    fn remove(&mut self, vector: &PyHypervector, times: u32) -> PyResult<()> {
        both!(&mut self.inner, &vector.inner, s, v => s.remove(v, times)).map_err(error)
    }

    /// The estimated multiplicity of a vector.
    fn count(&self, vector: &PyHypervector) -> PyResult<u32> {
        both!(&self.inner, &vector.inner, s, v => s.count(v)).map_err(error)
    }

    fn __len__(&self) -> usize {
        each!(&self.inner, s => s.len())
    }
}

pub(super) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyTree>()?;
    m.add_class::<PyGraph>()?;
    m.add_class::<PyAutomaton>()?;
    m.add_class::<PyMultiset>()
}
