//! Sums over ranks whose bits do not depend on the number of ranks.
//!
//! The micro-batches of a step, its units, are numbered. They are divided into blocks: four for up to four ranks, else the number
//! of ranks rounded up to a power of two. The units of a block are added sequentially, the sums of blocks in a binary tree over
//! their numbers. Each rank has whole, consecutive blocks and computes the sums of the largest subtrees inside its range; the rest
//! of the tree is added across ranks. So one, two, three and four ranks add the same numbers in the same order.

mod volume;

use std::ops::Range;

use crate::{CommError, Communicator};

pub use volume::Volume;
pub(crate) use volume::mean_bytes;

/// Number of blocks of a step on up to this many ranks.
const BLOCKS: usize = 4;
/// Elements per message: messages of a mebibyte stay in caches and in memory that the allocator keeps; longer ones took five times
/// as long per element.
pub(crate) const PIECE: usize = 1 << 18;

/// Assigns the units of a step to ranks, and defines the order of their addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReductionPlan {
    units: usize,
    rank: usize,
    ranks: usize,
}

/// The consecutive elements of a vector that belong to each rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shards(Vec<usize>);

impl Shards {
    /// A vector of `len` elements in shards that are as equal as possible.
    #[must_use]
    pub fn even(len: usize, ranks: usize) -> Self {
        let (whole, rest) = (len / ranks.max(1), len % ranks.max(1));
        Self((0..=ranks).map(|rank| rank * whole + rank.min(rest)).collect())
    }

    /// Shards of these lengths, one per rank.
    ///
    /// # Errors
    ///
    /// [`CommError::Range`] if the total length overflows.
    pub fn of(lens: &[usize]) -> Result<Self, CommError> {
        let mut ends = vec![0usize];
        for len in lens {
            let end = ends[ends.len() - 1].checked_add(*len);
            let (what, expected) = ("elements of all shards", "at most usize::MAX");
            ends.push(end.ok_or(CommError::Range { what, expected, got: f64::INFINITY })?);
        }
        Ok(Self(ends))
    }

    /// The same for a vector with `count` elements per element of this one.
    ///
    /// ```
    /// use trike_comm::Shards;
    ///
    /// let rows = Shards::even(5, 2);
    /// assert_eq!((rows.of_rank(1), rows.times(10).of_rank(1)), (3..5, 30..50));
    /// ```
    #[must_use]
    pub fn times(&self, count: usize) -> Self {
        Self(self.0.iter().map(|end| end.saturating_mul(count)).collect())
    }

    /// The elements of a rank.
    #[must_use]
    pub fn of_rank(&self, rank: usize) -> Range<usize> {
        let last = self.0.len() - 1;
        self.0[rank.min(last)]..self.0[(rank + 1).min(last)]
    }

    /// Elements of the vector.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0[self.0.len() - 1]
    }

    /// Whether the vector has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn longest(&self) -> usize {
        self.0.windows(2).map(|ends| ends[1] - ends[0]).max().unwrap_or_default()
    }

    /// Gathers the shards of all ranks, in order, in `out`.
    ///
    /// # Errors
    ///
    /// [`CommError::Length`] for a shard or an `out` of a wrong length, and errors of messages.
    pub fn all_gather<C: Communicator + ?Sized>(
        &self,
        comm: &C,
        shard: &[f32],
        out: &mut [f32],
    ) -> Result<(), CommError> {
        check_len("shard", self.of_rank(comm.rank()).len(), shard.len())?;
        check_len("vector", self.len(), out.len())?;
        for at in (0..self.longest()).step_by(PIECE) {
            let end = at.saturating_add(PIECE).min(shard.len());
            let mut message = Vec::new();
            append(&mut message, &shard[at.min(end)..end]);
            for (rank, message) in comm.all_gather(&message, 4 * PIECE)?.iter().enumerate() {
                let to = &mut out[piece(self.of_rank(rank), at)];
                if message.len() != 4 * to.len() {
                    return Err(CommError::Cut { rank, expected: 4 * to.len(), got: message.len() });
                }
                to.copy_from_slice(&floats(message));
            }
        }
        Ok(())
    }
}

/// The next [`PIECE`] elements of a shard, starting at its element `at`.
fn piece(shard: Range<usize>, at: usize) -> Range<usize> {
    let start = shard.start.saturating_add(at).min(shard.end);
    start..start.saturating_add(PIECE).min(shard.end)
}

/// A subtree of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialSum<T> {
    /// The first block, a multiple of `blocks`.
    pub first: usize,
    /// Number of blocks, a power of two.
    pub blocks: usize,
    /// Their sum; `None` if they have no units.
    pub sum: Option<T>,
}

/// Tree sum over consecutive blocks. At most one part of each size is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeSum<T>(Vec<PartialSum<T>>);

impl<T> Default for TreeSum<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> TreeSum<T> {
    /// Appends the sum of the units of `block`, which follows the previous one. `add` adds its second argument to its first.
    pub fn push(&mut self, block: usize, sum: Option<T>, add: impl FnMut(&mut T, &T)) {
        self.push_part(PartialSum { first: block, blocks: 1, sum }, add);
    }

    fn push_part(&mut self, mut part: PartialSum<T>, mut add: impl FnMut(&mut T, &T)) {
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
            part = PartialSum { first: left.first, blocks: 2 * left.blocks, sum };
        }
        self.0.push(part);
    }

    /// The largest subtrees of the blocks.
    #[must_use]
    pub fn into_parts(self) -> Vec<PartialSum<T>> {
        self.0
    }
}

impl<T> PartialSum<T> {
    /// The same with another form of the sum.
    pub fn as_ref<V: ?Sized>(&self) -> PartialSum<&V>
    where
        T: AsRef<V>,
    {
        PartialSum { first: self.first, blocks: self.blocks, sum: self.sum.as_ref().map(AsRef::as_ref) }
    }
}

impl ReductionPlan {
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
        // Written without the product of both, which could overflow.
        let (whole, rest, count) = (self.units / self.count(), self.units % self.count(), self.count());
        let start = |block: usize| block * whole + block * rest / count;
        start(block)..start(block + 1)
    }

    /// The parts that a rank has, without their sums.
    fn parts_of(&self, rank: usize) -> Vec<PartialSum<()>> {
        let mut sum = TreeSum::default();
        for block in self.blocks_of(rank) {
            sum.push(block, (!self.units(block).is_empty()).then_some(()), |(), ()| {});
        }
        sum.into_parts()
    }

    /// The sum over all units of this rank's shard.
    ///
    /// # Errors
    ///
    /// [`CommError::Length`] for parts that do not match the plan, and errors of messages.
    pub fn reduce_scatter<C: Communicator + ?Sized>(
        &self,
        comm: &C,
        parts: &[PartialSum<&[f32]>],
        shards: &Shards,
    ) -> Result<Vec<f32>, CommError> {
        self.check(parts, shards.len())?;
        check_len("list of shards", self.ranks + 1, shards.0.len())?;
        let own = shards.of_rank(self.rank);
        let mut out = vec![0.0; own.len()];
        // Every shard in pieces of one size, since all ranks send in lockstep.
        for at in (0..shards.longest()).step_by(PIECE) {
            let messages: Vec<Vec<u8>> = (0..self.ranks)
                .map(|rank| {
                    let elements = piece(shards.of_rank(rank), at);
                    let mut message = Vec::with_capacity(4 * parts.len() * elements.len());
                    for sum in parts.iter().filter_map(|part| part.sum) {
                        append(&mut message, &sum[elements.clone()]);
                    }
                    message
                })
                .collect();
            let messages: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
            let elements = piece(own.clone(), at);
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
                for PartialSum { first, blocks, sum: full } in parts {
                    let values = full.map(|()| sums.next().unwrap_or_default());
                    sum.push_part(PartialSum { first, blocks, sum: values }, |a, b| add(a, b));
                }
            }
            let whole = sum.into_parts().pop().and_then(|part| part.sum);
            if let Some(whole) = whole {
                out[at.min(own.len())..][..elements.len()].copy_from_slice(&whole);
            }
        }
        Ok(out)
    }

    /// The sum over all units, on every rank.
    ///
    /// # Errors
    ///
    /// As [`reduce_scatter`](Self::reduce_scatter).
    pub fn all_reduce<C: Communicator + ?Sized>(
        &self,
        comm: &C,
        parts: &[PartialSum<&[f32]>],
        out: &mut [f32],
    ) -> Result<(), CommError> {
        let shards = Shards::even(out.len(), self.ranks);
        let shard = self.reduce_scatter(comm, parts, &shards)?;
        shards.all_gather(comm, &shard, out)
    }

    fn check(&self, parts: &[PartialSum<&[f32]>], len: usize) -> Result<(), CommError> {
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

/// The values of rank `root` on every rank; the other ranks pass only their length.
///
/// # Errors
///
/// [`CommError::Length`] if `root` does not have `len` values, and errors of messages.
pub fn broadcast_floats<C: Communicator + ?Sized>(
    comm: &C,
    root: usize,
    values: Option<&[f32]>,
    len: usize,
) -> Result<Vec<f32>, CommError> {
    if let Some(values) = values {
        check_len("values", len, values.len())?;
    }
    let mut all = Vec::new();
    for at in (0..len).step_by(PIECE) {
        let elements = at..at.saturating_add(PIECE).min(len);
        let message = values.map(|values| {
            let mut message = Vec::new();
            append(&mut message, &values[elements.clone()]);
            message
        });
        let bytes = comm.broadcast(root, message.as_deref(), 4 * elements.len())?;
        if bytes.len() != 4 * elements.len() {
            return Err(CommError::Cut { rank: root, expected: 4 * elements.len(), got: bytes.len() });
        }
        all.extend(floats(&bytes));
    }
    Ok(all)
}

/// Replaces the values of each rank by their mean over the ranks, added in rank order. All ranks get the same bits.
///
/// # Errors
///
/// [`CommError::Cut`] for ranks with fewer values, [`CommError::NonFinite`] for a rank with values that are not finite, and errors
/// of messages.
pub fn mean<C: Communicator + ?Sized>(comm: &C, values: &mut [f32]) -> Result<(), CommError> {
    let shards = Shards::even(values.len(), comm.size());
    let own = shards.of_rank(comm.rank());
    let ranks = comm.size() as f64;
    let mut means = vec![0.0; own.len()];
    for at in (0..shards.longest()).step_by(PIECE) {
        let messages: Vec<Vec<u8>> = (0..comm.size())
            .map(|rank| {
                let mut message = Vec::new();
                append(&mut message, &values[piece(shards.of_rank(rank), at)]);
                message
            })
            .collect();
        let messages: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
        let elements = piece(0..own.len(), at);
        // In f64, since an f32 sum may overflow where the mean does not.
        let mut sum = vec![0f64; elements.len()];
        for (rank, message) in comm.all_to_all(&messages, 4 * elements.len())?.iter().enumerate() {
            let (expected, got) = (4 * elements.len(), message.len());
            if expected != got {
                return Err(CommError::Cut { rank, expected, got });
            }
            let numbers = floats(message);
            if !numbers.iter().fold(true, |finite, x| finite & x.is_finite()) {
                return Err(CommError::NonFinite { rank });
            }
            sum.iter_mut().zip(&numbers).for_each(|(sum, x)| *sum += f64::from(*x));
        }
        means[elements].iter_mut().zip(&sum).for_each(|(mean, sum)| *mean = (sum / ranks) as f32);
    }
    shards.all_gather(comm, &means, values)
}

/// `sum += x`.
fn add(sum: &mut [f32], x: &[f32]) {
    sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
}

/// The sum of `of(x)` over all elements, in lanes.
#[inline(always)]
pub(crate) fn sum_of(x: &[f32], of: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0f32; 16];
    let (chunks, rest) = x.as_chunks::<16>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += of(*x);
        }
    }
    lanes.iter().sum::<f32>() + rest.iter().map(|x| of(*x)).sum::<f32>()
}

/// Appends values to a message.
pub(crate) fn append(message: &mut Vec<u8>, values: &[f32]) {
    let start = message.len();
    message.resize(start + 4 * values.len(), 0);
    let (fours, _) = message[start..].as_chunks_mut();
    fours.iter_mut().zip(values).for_each(|(four, value)| *four = value.to_le_bytes());
}

/// Decodes the values of a message.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    let (fours, _) = bytes.as_chunks();
    fours.iter().map(|four| f32::from_le_bytes(*four)).collect()
}
