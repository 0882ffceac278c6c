//! Policy for insertions that reduce the retrieval probability too far.

use crate::algebra::Algebra;
use crate::capacity::{BundleForm, retrieval_probability};
use crate::error::{VsaError, check_range, check_real};

/// Action for an item that exceeds the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FullAction {
    /// Insert it and report this in [`Insertion::sufficient`].
    Warn,
    /// Refuse it with [`VsaError::Capacity`].
    Refuse,
}

/// Minimum retrieval probability of a structure, by the theory in [`capacity`](crate::capacity).
///
/// ```
/// use trike_vsa::{CapacityPolicy, PackedTritVec, Record, VsaError, FullAction, Z3};
///
/// let policy = CapacityPolicy::new(100, 0.99, FullAction::Refuse)?;
/// let mut record = Record::<Z3>::with_policy(256, policy)?;
/// let vectors = PackedTritVec::random_set(256, 100, 1)?;
/// let refused = vectors.iter().find_map(|v| record.insert(&vectors[0], v).err());
/// assert!(matches!(refused, Some(VsaError::Capacity { items: 20, .. })), "{refused:?}");
/// assert_eq!(record.len(), 19);
/// # Ok::<(), VsaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CapacityPolicy {
    candidates: usize,
    minimum: f64,
    when_full: FullAction,
}

/// Effect of an insertion on retrieval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Insertion {
    /// Number of items after the insertion.
    pub items: usize,
    /// The probability that an item is retrieved among the candidates of the policy; 1 without a policy.
    pub probability: f64,
    /// Whether the probability reaches the minimum of the policy.
    pub sufficient: bool,
}

impl CapacityPolicy {
    /// A policy that requires items to be retrieved among `candidates` vectors with a probability of at least `minimum`.
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`] for no candidates, [`VsaError::Real`] for a minimum outside 0 to 1.
    pub fn new(candidates: usize, minimum: f64, when_full: FullAction) -> Result<Self, VsaError> {
        check_range("candidates", 1, usize::MAX, candidates)?;
        check_real("probability of retrieval", 0.0, 1.0, minimum)?;
        Ok(Self { candidates, minimum, when_full })
    }

    /// Applies the policy to a number of items that are retrieved from counts.
    pub(crate) fn judge<A: Algebra>(
        policy: Option<&Self>,
        dim: usize,
        items: usize,
    ) -> Result<Insertion, VsaError> {
        let Some(policy) = policy else {
            return Ok(Insertion { items, probability: 1.0, sufficient: true });
        };
        let Self { candidates, minimum, when_full } = *policy;
        let probability = retrieval_probability::<A>(BundleForm::Counts, dim, items, candidates)?;
        let sufficient = probability >= minimum;
        if !sufficient && when_full == FullAction::Refuse {
            return Err(VsaError::Capacity { items, candidates, dimensions: dim, probability, minimum });
        }
        Ok(Insertion { items, probability, sufficient })
    }
}
