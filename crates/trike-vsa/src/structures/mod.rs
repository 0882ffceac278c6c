//! Data structures, each stored in one bundle.

mod automaton;
mod distributed;
mod graph;
mod hierarchy;
mod multiset;
mod policy;
mod record;
mod resonator;
mod sequence;
mod tree;

pub use automaton::Automaton;
pub use distributed::DistributedMemory;
pub use graph::Graph;
pub use hierarchy::{Hierarchy, ROLES};
pub use multiset::Multiset;
pub use policy::{CapacityPolicy, FullAction, Insertion};
pub use record::Record;
pub use resonator::{Factors, factorize};
pub use sequence::{Sequence, bind_sequence, ngram, ngrams};
pub use tree::Tree;
