//! Hyperdimensional computing on trit planes.
//!
//! Start from [`PackedTritVec`], a hypervector with two bits per dimension, and its operations [`bind()`], [`bundle_many`] and
//! [`similarity()`]; store vectors in an [`ItemMemory`], and superpositions with their counts in a [`Bundle`].
//!
//! ```
//! use trike_vsa::{Bundle, ItemMemory, PackedTritVec, Z3, bind, similarity, unbind};
//!
//! let colours = PackedTritVec::<Z3>::random_set(10_000, 5, 1)?;
//! let [sky, grass] = [2, 3].map(|seed| PackedTritVec::random(10_000, seed).unwrap());
//! // "The sky is colour 0, grass is colour 4", in one vector.
//! let mut scene = Bundle::new(10_000)?;
//! scene.add(&bind(&sky, &colours[0])?)?;
//! scene.add(&bind(&grass, &colours[4])?)?;
//! let scene = scene.to_vector()?;
//! // Query: the colour of grass.
//! let noisy = unbind(&scene, &grass)?;
//! assert!(similarity(&noisy, &colours[4])? > 0.4);
//! assert_eq!(ItemMemory::of(&colours)?.nearest(&noisy)?.index, 4);
//! # Ok::<(), trike_vsa::VsaError>(())
//! ```
//!
//! Main design decision: the algebra is a type parameter. [`Z3`] adds trits modulo 3, [`Bipolar`] and [`Ternary`] multiply
//! them; mixing vectors of two algebras is a compile error, and every structure works with each algebra. The cost: choosing an
//! algebra at run time needs a `match`. Files and serialized values name their algebra, which is checked on reading. Second
//! decision: bundles keep bit-sliced counts, so that items can be removed and a key can be unbound from all items at once; the
//! counts are reduced to trits on request.
//!
//! * vectors: [`PackedTritVec`], [`SparseVec`], [`Algebra`] with [`AlgebraKind`]
//! * operations: [`bind()`], [`unbind`], [`inverse`], [`negate`], [`permute`], [`bundle()`], [`bundle_many`], [`bundle_weighted`],
//!   [`bundle_balanced`]; [`bind_into`], [`unbind_into`] and [`permute_into`] for loops
//! * comparison: [`similarity()`], [`dot`], [`matches`](matches()), [`hamming_distance`], [`cosine_similarity`]
//! * ordered sets: [`level_set`], [`thermometer_set`], [`circular_set`]
//! * counts: [`Bundle`]
//! * search: [`ItemMemory`] with [`Hit`] and [`IterativeCleanup`]; its file is described at [`ItemMemory::write`]
//! * structures: [`Record`], [`Multiset`], [`Sequence`], [`bind_sequence`], [`ngram`], [`ngrams`], [`Tree`], [`Graph`],
//!   [`Automaton`], [`Hierarchy`], [`DistributedMemory`], [`factorize`]
//! * capacity: [`capacity`], [`CapacityPolicy`]
//! * encodings: [`ScalarEncoder`], [`RandomProjection`], [`TextEncoder`], [`CentroidClassifier`]
//! * batches on a device, with the feature `gpu`: `DeviceVectors`, `DeviceMemory`
//! * errors: [`VsaError`]
//!
//! Programs that compute with hypervectors need only this crate. The instruction set is selected at run time; single operations
//! run on the caller's thread, searches on the threads of a [`trike_popcount::Cpu`]. The feature `gpu` adds batches on a device;
//! `wgpu`, `vulkan`, `cuda`, `hip` and `metal` each add one runtime.
#![forbid(unsafe_code)]

// Compiles the examples of the handbook as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/vsa.md")]
struct Handbook;

mod algebra;
mod balanced;
mod basis;
mod bundle;
pub mod capacity;
#[cfg(feature = "gpu")]
mod device;
mod encode;
mod error;
mod file;
mod memory;
mod ops;
mod random;
mod sparse;
mod structures;
mod vector;

pub use algebra::{Algebra, AlgebraKind, Bipolar, Ternary, Z3};
pub use balanced::bundle_balanced;
pub use basis::{circular_set, level_set, thermometer_set};
pub use bundle::Bundle;
#[cfg(feature = "gpu")]
pub use device::{DeviceMemory, DeviceVectors, SearchDevice};
pub use encode::{CentroidClassifier, RandomProjection, ScalarEncoder, TextEncoder};
pub use error::VsaError;
pub use file::MAX_FILE_DIM;
pub use memory::{Hit, ItemMemory, IterativeCleanup};
pub use ops::{
    bind, bind_into, bundle, bundle_many, bundle_weighted, cosine_similarity, dot, hamming_distance, inverse,
    matches, negate, permute, permute_into, similarity, unbind, unbind_into,
};
pub use sparse::SparseVec;
pub use structures::{
    Automaton, CapacityPolicy, DistributedMemory, Factors, FullAction, Graph, Hierarchy, Insertion, Multiset,
    ROLES, Record, Sequence, Tree, bind_sequence, factorize, ngram, ngrams,
};
#[cfg(feature = "gpu")]
pub use trike_cube as cube;
pub use vector::PackedTritVec;
