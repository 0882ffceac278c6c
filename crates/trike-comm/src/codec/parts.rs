//! Exchanges in two stages, whose bytes do not grow with the number of ranks.

use std::ops::Range;

use crate::codec::{check_gradient, check_len};
use crate::{CommError, Communicator, Shards};

/// A codec that can write any range of a gradient by itself.
///
/// Such a range has chunks of its own: the first one begins with its first element.
pub(super) trait Parts {
    /// Elements of the gradients.
    fn elements(&self) -> usize;

    /// Bytes of a message of so many elements.
    fn part_bytes(&self, elements: usize) -> usize;

    /// Takes up the gradient of a range, of the same length.
    fn take_up(&mut self, range: Range<usize>, gradient: &[f32]);

    /// What a range has to send: what was taken up and not sent.
    fn waiting(&mut self, range: Range<usize>) -> &mut [f32];

    /// The message of what a range has to send; what it leaves out goes on waiting.
    fn write(&mut self, range: Range<usize>) -> Vec<u8>;

    /// Adds `weight` times the values of a message of as many elements.
    fn read(&self, rank: usize, message: &[u8], weight: f32, sum: &mut [f32]) -> Result<(), CommError>;
}

/// The message of a whole gradient.
pub(super) fn encode(codec: &mut impl Parts, gradient: &[f32]) -> Result<Vec<u8>, CommError> {
    let all = 0..codec.elements();
    check_len("gradient", all.len(), gradient.len())?;
    codec.take_up(all.clone(), gradient);
    Ok(codec.write(all))
}

/// Adds `weight` times the gradient of a message.
pub(super) fn add(
    codec: &impl Parts,
    rank: usize,
    message: &[u8],
    weight: f32,
    sum: &mut [f32],
) -> Result<(), CommError> {
    check_len("sum", codec.elements(), sum.len())?;
    codec.read(rank, message, weight, sum)
}

/// Bytes that rank `rank` sends in an [`exchange`].
pub(super) fn sent_bytes(codec: &impl Parts, rank: usize, ranks: usize) -> usize {
    let shards = Shards::even(codec.elements(), ranks);
    let bytes = |rank: usize| codec.part_bytes(shards.of_rank(rank).len());
    let others: usize = (0..ranks).filter(|other| *other != rank).map(bytes).sum();
    others + ranks.saturating_sub(1) * bytes(rank)
}

/// The mean of the gradients of all ranks, approximately.
///
/// Each rank owns a shard. It gets the messages of this shard from the others, adds them to its own gradient, which was not rounded,
/// and sends the sum to all in one message. What that leaves out waits with what the owner has to send itself. An exchange gives a
/// mean, so the mean over the ranks of what waits is what the weights still have to get.
pub(super) fn exchange(
    codec: &mut impl Parts,
    comm: &dyn Communicator,
    gradient: &mut [f32],
) -> Result<(), CommError> {
    let (rank, ranks) = (comm.rank(), comm.size());
    check_gradient(rank, codec.elements(), gradient)?;
    let shards = Shards::even(codec.elements(), ranks);
    let own = shards.of_rank(rank);
    let mut messages = Vec::with_capacity(ranks);
    for to in 0..ranks {
        let range = shards.of_rank(to);
        codec.take_up(range.clone(), &gradient[range.clone()]);
        messages.push(if to == rank { Vec::new() } else { codec.write(range) });
    }
    let messages: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
    let received = comm.all_to_all(&messages, codec.part_bytes(own.len()))?;
    let others = &mut gradient[own.clone()];
    others.fill(0.0);
    for (from, message) in received.iter().enumerate().filter(|(from, _)| *from != rank) {
        codec.read(from, message, 1.0, others)?;
    }
    codec.waiting(own.clone()).iter_mut().zip(&*others).for_each(|(waiting, x)| *waiting += x);
    let most = (0..ranks).map(|rank| codec.part_bytes(shards.of_rank(rank).len())).max();
    let sums = comm.all_gather(&codec.write(own), most.unwrap_or_default())?;
    gradient.fill(0.0);
    let weight = 1.0 / ranks as f32;
    for (rank, message) in sums.iter().enumerate() {
        codec.read(rank, message, weight, &mut gradient[shards.of_rank(rank)])?;
    }
    Ok(())
}
