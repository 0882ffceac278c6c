//! The order of documents, and the held-out split.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// A permutation of `0..count`, determined by `seed` and `round` (Fisher-Yates shuffle).
#[must_use]
pub fn permutation(count: usize, seed: u64, round: u64) -> Vec<u32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(round);
    // Documents are counted in 32 bits (`Documents::open`).
    let mut order: Vec<u32> = (0..count).map(|i| i as u32).collect();
    for i in (1..count).rev() {
        // The modulo bias is below 2^-32.
        order.swap(i, (rng.next_u64() % (i as u64 + 1)) as usize);
    }
    order
}

/// A split into training and held-out documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldOut {
    /// Training documents, in ascending order.
    pub train: Vec<u32>,
    /// Held-out documents, in ascending order.
    pub held_out: Vec<u32>,
}

impl HeldOut {
    /// Holds out a fraction `share` of `count` documents, at least one unless it is zero, chosen by `seed`.
    ///
    /// ```
    /// use trike_train::data::HeldOut;
    ///
    /// let split = HeldOut::new(1000, 0.02, 7);
    /// assert_eq!((split.train.len(), split.held_out.len()), (980, 20));
    /// assert_eq!(split, HeldOut::new(1000, 0.02, 7));
    /// assert!(HeldOut::new(5, 0.0, 7).held_out.is_empty());
    /// ```
    #[must_use]
    pub fn new(count: usize, share: f64, seed: u64) -> Self {
        let kept = if share > 0.0 { ((count as f64 * share).round() as usize).clamp(1, count) } else { 0 };
        // A round that no epoch uses, since epochs count from 0.
        let order = permutation(count, seed, u64::MAX);
        let mut held_out = order[..kept].to_vec();
        let mut train = order[kept..].to_vec();
        held_out.sort_unstable();
        train.sort_unstable();
        Self { train, held_out }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_is_another_permutation() {
        let rounds: Vec<_> = (0..3).map(|round| permutation(100, 5, round)).collect();
        for round in &rounds {
            let mut sorted = round.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..100).collect::<Vec<_>>());
        }
        assert_eq!(rounds[1], permutation(100, 5, 1));
        assert!(rounds[0] != rounds[1] && rounds[1] != rounds[2] && rounds[0] != permutation(100, 6, 0));
        assert!(permutation(0, 1, 1).is_empty());
    }

    #[test]
    fn all_documents_are_on_one_side() {
        for (count, share) in [(1, 0.5), (10, 0.001), (10, 1.0), (997, 0.1)] {
            let split = HeldOut::new(count, share, 3);
            let mut all = [split.train.clone(), split.held_out.clone()].concat();
            all.sort_unstable();
            assert_eq!(all, (0..count as u32).collect::<Vec<_>>());
            assert!(!split.held_out.is_empty());
        }
    }
}
