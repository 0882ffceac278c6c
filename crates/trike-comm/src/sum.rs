//! Sums over ranks whose bits do not depend on the number of ranks.
//!
//! The micro-batches of a step, its units, are numbered. They are divided into blocks: four for up to four ranks, else the next
//! power of two of the number of ranks. The units of a block are added one after another, the sums of blocks in a binary tree over
//! their numbers. Each rank has whole, consecutive blocks and computes the sums of the largest subtrees that are all its own; the
//! rest of the tree is added where the parts meet. So one, two, three and four ranks add the same numbers in the same order.

use std::ops::Range;

use crate::{CommError, Communicator};

/// Blocks of a step of up to as many ranks.
const BLOCKS: usize = 4;
/// Elements that are exchanged at once: the messages of a piece take as much memory as the piece.
const PIECE: usize = 1 << 22;

/// Which units of a step each rank computes, and how they are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    units: usize,
    rank: usize,
    ranks: usize,
}

/// A subtree of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<T> {
    /// The first block, a multiple of `blocks`.
    pub first: usize,
    /// Number of blocks, a power of two.
    pub blocks: usize,
    /// Their sum; `None` if they have no units.
    pub sum: Option<T>,
}

/// Adds up the sums of consecutive blocks as the tree does. At most one part of each size is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeSum<T>(Vec<Part<T>>);

impl<T> Default for TreeSum<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> TreeSum<T> {
    /// Appends the sum of the units of block `block`, the one after the last. `add` adds its second argument to its first.
    pub fn push(&mut self, block: usize, sum: Option<T>, add: impl FnMut(&mut T, &T)) {
        self.push_part(Part { first: block, blocks: 1, sum }, add);
    }

    fn push_part(&mut self, mut part: Part<T>, mut add: impl FnMut(&mut T, &T)) {
        while let Some(left) =
            self.0.pop_if(|left| left.blocks == part.blocks && left.first % (2 * part.blocks) == 0)
        {
            let sum = match (left.sum, part.sum) {
                (Some(mut left), Some(right)) => {
                    add(&mut left, &right);
                    Some(left)
                }
                (left, right) => left.or(right),
            };
            part = Part { first: left.first, blocks: 2 * left.blocks, sum };
        }
        self.0.push(part);
    }

    /// The largest subtrees of the blocks.
    #[must_use]
    pub fn into_parts(self) -> Vec<Part<T>> {
        self.0
    }
}

impl<T> Part<T> {
    /// The same with another form of the sum.
    pub fn as_ref<V: ?Sized>(&self) -> Part<&V>
    where
        T: AsRef<V>,
    {
        Part { first: self.first, blocks: self.blocks, sum: self.sum.as_ref().map(AsRef::as_ref) }
    }
}

impl Plan {
    /// The plan of a step of `units` units.
    pub fn new<C: Communicator + ?Sized>(units: usize, comm: &C) -> Self {
        Self { units, rank: comm.rank(), ranks: comm.size() }
    }

    fn count(&self) -> usize {
        self.ranks.next_power_of_two().max(BLOCKS)
    }

    fn blocks_of(&self, rank: usize) -> Range<usize> {
        let of = |rank: usize| rank * self.count() / self.ranks;
        of(rank)..of(rank + 1)
    }

    /// The blocks of this rank.
    #[must_use]
    pub fn blocks(&self) -> Range<usize> {
        self.blocks_of(self.rank)
    }

    /// The units of a block; none if there are fewer units than blocks.
    #[must_use]
    pub fn units(&self, block: usize) -> Range<usize> {
        // Not their product, which could be too large.
        let (whole, rest, count) = (self.units / self.count(), self.units % self.count(), self.count());
        let start = |block: usize| block * whole + block * rest / count;
        start(block)..start(block + 1)
    }

    /// The parts that a rank has, without their sums.
    fn parts_of(&self, rank: usize) -> Vec<Part<()>> {
        let mut sum = TreeSum::default();
        for block in self.blocks_of(rank) {
            sum.push(block, (!self.units(block).is_empty()).then_some(()), |(), ()| {});
        }
        sum.into_parts()
    }

    /// The elements of a vector of `len` that a rank adds up.
    #[must_use]
    pub fn shard(&self, rank: usize, len: usize) -> Range<usize> {
        let (whole, rest) = (len / self.ranks, len % self.ranks);
        let start = |rank: usize| rank * whole + rank.min(rest);
        start(rank)..start(rank + 1)
    }

    /// The sum over all units, of the elements in this rank's [`shard`](Self::shard) of vectors of `len` elements.
    ///
    /// # Errors
    ///
    /// [`CommError::Length`] for parts that are not this rank's, and those of messages.
    pub fn reduce_scatter<C: Communicator + ?Sized>(
        &self,
        comm: &C,
        parts: &[Part<&[f32]>],
        len: usize,
    ) -> Result<Vec<f32>, CommError> {
        self.check(parts, len)?;
        let own = self.shard(self.rank, len);
        let mut out = vec![0.0; own.len()];
        // All shards in pieces of one size, since all ranks send together.
        let longest = self.shard(0, len).len();
        for at in (0..longest).step_by(PIECE) {
            let piece = |shard: Range<usize>| {
                let start = (shard.start + at).min(shard.end);
                start..(start + PIECE).min(shard.end)
            };
            let messages: Vec<Vec<u8>> = (0..self.ranks)
                .map(|rank| {
                    let elements = piece(self.shard(rank, len));
                    let mut message = Vec::with_capacity(4 * parts.len() * elements.len());
                    for sum in parts.iter().filter_map(|part| part.sum) {
                        append(&mut message, &sum[elements.clone()]);
                    }
                    message
                })
                .collect();
            let messages: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
            let elements = piece(own.clone());
            let most = self.count().saturating_mul(4 * elements.len());
            let received = comm.all_to_all(&messages, most)?;
            let mut sum = TreeSum::<Vec<f32>>::default();
            for (rank, message) in received.iter().enumerate() {
                let parts = self.parts_of(rank);
                let full = parts.iter().filter(|part| part.sum.is_some()).count();
                let expected = 4 * full * elements.len();
                if message.len() != expected {
                    return Err(CommError::Cut { rank, expected, got: message.len() });
                }
                let mut sums = message.chunks_exact((4 * elements.len()).max(1)).map(floats);
                for Part { first, blocks, sum: full } in parts {
                    let values = full.map(|()| sums.next().unwrap_or_default());
                    sum.push_part(Part { first, blocks, sum: values }, |a, b| add(a, b));
                }
            }
            let whole = sum.into_parts().pop().and_then(|part| part.sum);
            if let Some(whole) = whole {
                out[at.min(own.len())..][..elements.len()].copy_from_slice(&whole);
            }
        }
        Ok(out)
    }

    /// The shards of all ranks, one after another, in `out`.
    ///
    /// # Errors
    ///
    /// [`CommError::Length`] for a shard of a wrong length, and those of messages.
    pub fn all_gather<C: Communicator + ?Sized>(
        &self,
        comm: &C,
        shard: &[f32],
        out: &mut [f32],
    ) -> Result<(), CommError> {
        let own = self.shard(self.rank, out.len());
        check_len("shard", own.len(), shard.len())?;
        let longest = self.shard(0, out.len()).len();
        for at in (0..longest).step_by(PIECE) {
            let end = (at + PIECE).min(shard.len());
            let mut message = Vec::new();
            append(&mut message, &shard[at.min(end)..end]);
            for (rank, message) in comm.all_gather(&message, 4 * PIECE)?.iter().enumerate() {
                let theirs = self.shard(rank, out.len());
                let start = (theirs.start + at).min(theirs.end);
                let to = &mut out[start..(start + PIECE).min(theirs.end)];
                if message.len() != 4 * to.len() {
                    return Err(CommError::Cut { rank, expected: 4 * to.len(), got: message.len() });
                }
                to.copy_from_slice(&floats(message));
            }
        }
        Ok(())
    }

    /// The sum over all units, on every rank.
    ///
    /// # Errors
    ///
    /// As [`reduce_scatter`](Self::reduce_scatter).
    pub fn all_reduce<C: Communicator + ?Sized>(
        &self,
        comm: &C,
        parts: &[Part<&[f32]>],
        out: &mut [f32],
    ) -> Result<(), CommError> {
        let shard = self.reduce_scatter(comm, parts, out.len())?;
        self.all_gather(comm, &shard, out)
    }

    fn check(&self, parts: &[Part<&[f32]>], len: usize) -> Result<(), CommError> {
        let expected = self.parts_of(self.rank);
        check_len("list of parts", expected.len(), parts.len())?;
        for (expected, part) in expected.iter().zip(parts) {
            check_len("first block of a part", expected.first, part.first)?;
            check_len("blocks of a part", expected.blocks, part.blocks)?;
            let full = if expected.sum.is_some() { len } else { 0 };
            check_len("sum of a part", full, part.sum.map_or(0, <[f32]>::len))?;
        }
        Ok(())
    }
}

fn check_len(what: &'static str, expected: usize, got: usize) -> Result<(), CommError> {
    if expected == got { Ok(()) } else { Err(CommError::Length { what, expected, got }) }
}

/// `sum += x`.
fn add(sum: &mut [f32], x: &[f32]) {
    sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
}

/// Appends numbers to a message.
pub(crate) fn append(message: &mut Vec<u8>, values: &[f32]) {
    message.reserve(4 * values.len());
    values.iter().for_each(|value| message.extend(value.to_le_bytes()));
}

/// The numbers of a message.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect()
}
