//! Messages and bytes of collective operations, counted without sending.

use super::{PIECE, PartialSum, ReductionPlan, Shards};
use crate::endpoint::HEADER;

/// Messages and bytes that one rank sends in an exchange, including message headers, as [`Traffic`](crate::Traffic) counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Messages.
    pub messages: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Volume {
    /// `messages` messages with `content` bytes of content in total.
    #[must_use]
    pub fn of(messages: u64, content: u64) -> Self {
        let headers = messages.saturating_mul(HEADER as u64);
        Self { messages, bytes: headers.saturating_add(content) }
    }
}

impl std::ops::Add for Volume {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            messages: self.messages.saturating_add(other.messages),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }
}

impl ReductionPlan {
    /// The plan of one of several ranks, without connecting to the others.
    #[must_use]
    pub fn of_rank(units: usize, rank: usize, ranks: usize) -> Self {
        Self { units, rank, ranks }
    }

    /// The volume that this rank sends in a [`reduce_scatter`](Self::reduce_scatter).
    ///
    /// ```
    /// use trike_comm::{ReductionPlan, Shards};
    ///
    /// // One of four ranks sends three quarters of the vector; one of five may have two subtrees, which it sends both.
    /// let bytes = |rank, ranks| {
    ///     let volume = ReductionPlan::of_rank(100, rank, ranks).reduce_scatter_volume(&Shards::even(1000, ranks));
    ///     volume.bytes - 20 * volume.messages
    /// };
    /// assert_eq!((bytes(0, 4), bytes(0, 5), bytes(1, 5)), (3000, 3200, 6400));
    /// ```
    #[must_use]
    pub fn reduce_scatter_volume(&self, shards: &Shards) -> Volume {
        let parts = self.parts_of(self.rank);
        let full = parts.iter().filter(|PartialSum { sum, .. }| sum.is_some()).count() as u64;
        let others = (0..self.ranks).filter(|rank| *rank != self.rank);
        let elements: u64 = others.map(|rank| shards.of_rank(rank).len() as u64).sum();
        Volume::of(shards.rounds(self.ranks), (4 * full).saturating_mul(elements))
    }
}

impl Shards {
    /// The volume that a rank sends in an [`all_gather`](Self::all_gather).
    #[must_use]
    pub fn all_gather_volume(&self, rank: usize, ranks: usize) -> Volume {
        let others = ranks.saturating_sub(1) as u64;
        let elements = self.of_rank(rank).len() as u64;
        Volume::of(self.rounds(ranks), elements.saturating_mul(4 * others))
    }

    /// The volume that a rank sends in the [`mean`](super::mean) of vectors in these shards.
    #[must_use]
    pub fn mean_volume(&self, rank: usize, ranks: usize) -> Volume {
        let elements = (self.len() - self.of_rank(rank).len()) as u64;
        Volume::of(self.rounds(ranks), elements.saturating_mul(4)) + self.all_gather_volume(rank, ranks)
    }

    /// Messages of one rank to all others, one per rank and piece.
    fn rounds(&self, ranks: usize) -> u64 {
        let pieces = (0..self.longest()).step_by(PIECE).len() as u64;
        pieces * ranks.saturating_sub(1) as u64
    }
}

/// Bytes that a rank sends in the [`mean`](super::mean) of `len` values, without headers.
pub(crate) fn mean_bytes(len: usize, rank: usize, ranks: usize) -> usize {
    let shards = Shards::even(len, ranks);
    let own = shards.of_rank(rank).len();
    4 * (len - own) + 4 * ranks.saturating_sub(1) * own
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sum::piece;
    use crate::{Communicator as _, Threads, TreeSum, mean};

    /// Compared with the traffic that ranks count.
    #[test]
    fn volumes_are_what_ranks_send() {
        for (ranks, units, len) in
            [(1, 4, 10), (2, 4, 1001), (3, 7, 100), (4, 2, 99), (5, 100, 64), (7, 20, 0), (9, 40, 50)]
        {
            let lens: Vec<usize> = (0..ranks).map(|rank| len * rank / 2).collect();
            for shards in [Shards::even(len, ranks), Shards::of(&lens).expect("shards")] {
                let counted = Threads::run(ranks, |comm| {
                    let sent = || {
                        let traffic = comm.traffic();
                        Volume { messages: traffic.messages, bytes: traffic.sent }
                    };
                    let plan = ReductionPlan::new(units, &comm);
                    let vector = vec![1.0f32; shards.len()];
                    let mut sum = TreeSum::default();
                    for block in plan.blocks() {
                        let has_units = !plan.units(block).is_empty();
                        sum.push(block, has_units.then_some(vector.clone()), |_, _| {});
                    }
                    let parts = sum.into_parts();
                    let parts: Vec<PartialSum<&[f32]>> = parts.iter().map(PartialSum::as_ref).collect();
                    let shard = plan.reduce_scatter(&comm, &parts, &shards).expect("a sum");
                    let reduced = sent();
                    shards.all_gather(&comm, &shard, &mut vector.clone()).expect("all shards");
                    [reduced, sent()]
                });
                for (rank, [reduced, all]) in counted.into_iter().enumerate() {
                    let first = ReductionPlan::of_rank(units, rank, ranks).reduce_scatter_volume(&shards);
                    assert_eq!(reduced, first, "rank {rank} of {ranks}");
                    assert_eq!(all, first + shards.all_gather_volume(rank, ranks), "rank {rank} of {ranks}");
                }
            }
            let even = Shards::even(len, ranks);
            let counted = Threads::run(ranks, |comm| {
                mean(&comm, &mut vec![1.0; len]).expect("a mean");
                comm.traffic()
            });
            for (rank, traffic) in counted.into_iter().enumerate() {
                let expected = Volume { messages: traffic.messages, bytes: traffic.sent };
                assert_eq!(even.mean_volume(rank, ranks), expected, "rank {rank} of {ranks}");
            }
        }
    }

    #[test]
    fn vectors_of_several_pieces_have_more_messages() {
        let shards = Shards::even(2 * PIECE + 1, 2);
        assert_eq!(piece(shards.of_rank(0), PIECE).len(), 1);
        let volume = ReductionPlan::of_rank(4, 0, 2).reduce_scatter_volume(&shards);
        assert_eq!(volume, Volume::of(2, 4 * PIECE as u64));
    }
}
