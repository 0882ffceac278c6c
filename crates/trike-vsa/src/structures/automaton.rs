//! Finite automata in one bundle.

use serde::{Deserialize, Serialize};

use crate::algebra::{Algebra, Z3};
use crate::bundle::Bundle;
use crate::error::VsaError;
use crate::memory::{Hit, ItemMemory};
use crate::ops::{bind, permute};
use crate::vector::PackedTritVec;

/// A finite automaton: the bundle of its transitions `bind(symbol, bind(from, permute(to, 1)))`.
///
/// A turnstile:
///
/// ```
/// use trike_vsa::{Automaton, ItemMemory, PackedTritVec, Z3};
///
/// let states = PackedTritVec::<Z3>::random_set(2048, 2, 1)?; // locked, unlocked
/// let symbols = PackedTritVec::random_set(2048, 2, 2)?; // push, coin
/// let memory = ItemMemory::of(&states)?;
/// let mut turnstile = Automaton::new(2048)?;
/// for (from, symbol, to) in [(0, 0, 0), (0, 1, 1), (1, 1, 1), (1, 0, 0)] {
///     turnstile.add(&symbols[symbol], &states[from], &states[to])?;
/// }
/// let mut state = 0;
/// let mut seen = Vec::new();
/// for symbol in [0, 1, 1, 0, 0] {
///     state = turnstile.next(&symbols[symbol], &states[state], &memory)?.unwrap().index;
///     seen.push(state);
/// }
/// assert_eq!(seen, [0, 1, 1, 0, 0]);
/// let unknown = PackedTritVec::random(2048, 3)?;
/// assert_eq!(turnstile.next(&unknown, &states[0], &memory)?, None);
/// # Ok::<(), trike_vsa::VsaError>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Automaton<A: Algebra = Z3> {
    bundle: Bundle<A>,
}

/// Similarity from which a transition counts as present: halfway between 0 (absent) and 1 (added once).
const THRESHOLD: f64 = 0.5;

impl<A: Algebra> Automaton<A> {
    /// An automaton without transitions.
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`](crate::VsaError::Range) if `dim` is 0 or too large.
    pub fn new(dim: usize) -> Result<Self, VsaError> {
        Ok(Self { bundle: Bundle::new(dim)? })
    }

    fn transition(
        symbol: &PackedTritVec<A>,
        from: &PackedTritVec<A>,
        to: &PackedTritVec<A>,
    ) -> Result<PackedTritVec<A>, VsaError> {
        bind(symbol, &bind(from, &permute(to, 1)?)?)
    }

    /// Adds a transition.
    ///
    /// # Errors
    ///
    /// [`VsaError::Dimension`](crate::VsaError::Dimension).
    pub fn add(
        &mut self,
        symbol: &PackedTritVec<A>,
        from: &PackedTritVec<A>,
        to: &PackedTritVec<A>,
    ) -> Result<(), VsaError> {
        self.bundle.add(&Self::transition(symbol, from, to)?)
    }

    /// Removes a transition.
    ///
    /// # Errors
    ///
    /// [`VsaError::NotInBundle`](crate::VsaError::NotInBundle) if the counts rule out that it was added.
    pub fn remove(
        &mut self,
        symbol: &PackedTritVec<A>,
        from: &PackedTritVec<A>,
        to: &PackedTritVec<A>,
    ) -> Result<(), VsaError> {
        self.bundle.remove(&Self::transition(symbol, from, to)?)
    }

    /// The successor of a state for a symbol, among the vectors of `states`; `None` if there probably is no such transition.
    ///
    /// # Errors
    ///
    /// As [`ItemMemory::nearest_in_bundle`].
    pub fn next(
        &self,
        symbol: &PackedTritVec<A>,
        from: &PackedTritVec<A>,
        states: &ItemMemory<A>,
    ) -> Result<Option<Hit>, VsaError> {
        let mut bundle = self.bundle.clone();
        bundle.unbind(symbol)?;
        bundle.unbind(from)?;
        bundle.permute(-1)?;
        let hit = states.nearest_in_bundle(&bundle)?;
        Ok((hit.similarity >= THRESHOLD).then_some(hit))
    }

    /// The counts of the transitions.
    pub fn bundle(&self) -> &Bundle<A> {
        &self.bundle
    }
}
