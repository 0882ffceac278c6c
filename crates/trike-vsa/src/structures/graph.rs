//! Graphs in one bundle.

use serde::{Deserialize, Serialize};

use crate::algebra::{Algebra, Z3};
use crate::bundle::Bundle;
use crate::error::{VsaError, check_real};
use crate::memory::{Hit, ItemMemory};
use crate::ops::{bind, permute};
use crate::vector::PackedTritVec;

/// A graph: the bundle of its edges. A directed edge is `bind(from, permute(to, 1))`, an undirected one `bind(a, b)`.
///
/// ```
/// use trike_vsa::{Graph, ItemMemory, PackedTritVec, Z3};
///
/// let nodes = PackedTritVec::<Z3>::random_set(4096, 10, 1)?;
/// let memory = ItemMemory::of(&nodes)?;
/// let mut graph = Graph::directed(4096)?;
/// for (from, to) in [(0, 1), (0, 2), (2, 0), (5, 6)] {
///     graph.add_edge(&nodes[from], &nodes[to])?;
/// }
/// let names = |hits: Vec<trike_vsa::Hit>| { let mut i: Vec<_> = hits.iter().map(|h| h.index).collect(); i.sort(); i };
/// assert_eq!(names(graph.successors(&nodes[0], &memory, 0.5)?), [1, 2]);
/// assert_eq!(names(graph.predecessors(&nodes[0], &memory, 0.5)?), [2]);
/// assert!(graph.has_edge(&nodes[5], &nodes[6])? > 0.5 && graph.has_edge(&nodes[6], &nodes[5])? < 0.5);
/// # Ok::<(), trike_vsa::VsaError>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Graph<A: Algebra = Z3> {
    bundle: Bundle<A>,
    /// Whether edges are directed: the second end of an edge is then rotated by 1.
    turn: bool,
}

impl<A: Algebra> Graph<A> {
    /// A directed graph without edges.
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`](crate::VsaError::Range) if `dim` is 0 or too large.
    pub fn directed(dim: usize) -> Result<Self, VsaError> {
        Ok(Self { bundle: Bundle::new(dim)?, turn: true })
    }

    /// An undirected graph without edges.
    ///
    /// # Errors
    ///
    /// As [`Graph::directed`].
    pub fn undirected(dim: usize) -> Result<Self, VsaError> {
        Ok(Self { bundle: Bundle::new(dim)?, turn: false })
    }

    fn rotation(&self) -> isize {
        isize::from(self.turn)
    }

    fn edge(&self, from: &PackedTritVec<A>, to: &PackedTritVec<A>) -> Result<PackedTritVec<A>, VsaError> {
        bind(from, &permute(to, self.rotation())?)
    }

    /// Adds an edge.
    ///
    /// # Errors
    ///
    /// [`VsaError::Dimension`](crate::VsaError::Dimension).
    pub fn add_edge(&mut self, from: &PackedTritVec<A>, to: &PackedTritVec<A>) -> Result<(), VsaError> {
        self.bundle.add(&self.edge(from, to)?)
    }

    /// Removes an edge.
    ///
    /// # Errors
    ///
    /// [`VsaError::NotInBundle`](crate::VsaError::NotInBundle) if the counts rule out that it was added.
    pub fn remove_edge(&mut self, from: &PackedTritVec<A>, to: &PackedTritVec<A>) -> Result<(), VsaError> {
        self.bundle.remove(&self.edge(from, to)?)
    }

    /// Estimated multiplicity of an edge: about 1 if it was added once, about 0 if it is absent.
    ///
    /// # Errors
    ///
    /// [`VsaError::Dimension`](crate::VsaError::Dimension).
    pub fn has_edge(&self, from: &PackedTritVec<A>, to: &PackedTritVec<A>) -> Result<f64, VsaError> {
        self.bundle.similarity(&self.edge(from, to)?)
    }

    /// The nodes of a memory with an edge from a node, of estimated multiplicity at least `threshold` (0.5 separates 1 from 0),
    /// in descending order of multiplicity. In an undirected graph, all neighbours.
    ///
    /// # Errors
    ///
    /// As [`ItemMemory::top_k_in_bundle`], and [`VsaError::Real`](crate::VsaError::Real) for a threshold that is negative, infinite
    /// or NaN.
    pub fn successors(
        &self,
        from: &PackedTritVec<A>,
        memory: &ItemMemory<A>,
        threshold: f64,
    ) -> Result<Vec<Hit>, VsaError> {
        let mut bundle = self.bundle.clone();
        bundle.unbind(from)?;
        bundle.permute(-self.rotation())?;
        at_least(memory.top_k_in_bundle(&bundle, memory.len().max(1))?, threshold)
    }

    /// The nodes of a memory with an edge to a node; `threshold` and order as in [`Graph::successors`].
    ///
    /// # Errors
    ///
    /// As [`Graph::successors`].
    pub fn predecessors(
        &self,
        to: &PackedTritVec<A>,
        memory: &ItemMemory<A>,
        threshold: f64,
    ) -> Result<Vec<Hit>, VsaError> {
        let mut bundle = self.bundle.clone();
        bundle.unbind(&permute(to, self.rotation())?)?;
        at_least(memory.top_k_in_bundle(&bundle, memory.len().max(1))?, threshold)
    }

    /// The counts of the edges.
    pub fn bundle(&self) -> &Bundle<A> {
        &self.bundle
    }
}

fn at_least(mut hits: Vec<Hit>, threshold: f64) -> Result<Vec<Hit>, VsaError> {
    check_real("threshold of edges", 0.0, f64::MAX, threshold)?;
    hits.retain(|hit| hit.similarity >= threshold);
    Ok(hits)
}
