//! Two-stage codecs (reduce-scatter, all-gather), whose bytes do not grow with the number of ranks.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::ops::Range;

use crate::codec::{Carry, Codec, MessageCodec, Saved, check_gradient, check_len, sums};
use crate::{CommError, Communicator, Shards};

/// Quantization of values to a few bits.
pub trait StagedQuantizer: Debug + Send {
    /// Size in bytes of a message of `len` values.
    fn bytes(len: usize) -> usize;

    /// Encodes values and replaces them by the quantization errors. The sum of the magnitudes is finite, as [`Codec::check`]
    /// ensures.
    fn write(values: &mut [f32]) -> Vec<u8>;

    /// Adds `weight` times the decoded message of `rank` to `sum`.
    ///
    /// # Errors
    ///
    /// As [`MessageCodec::add`].
    fn read(rank: usize, message: &[u8], weight: f32, sum: &mut [f32]) -> Result<(), CommError>;
}

/// A codec that quantizes gradients, with error feedback.
///
/// Each rank owns a shard. It receives the messages of this shard from the other ranks, adds them to its own unquantized gradient,
/// and sends the sum to all in one message. The error of that message is added to the owner's residual. An exchange computes a
/// mean, so the mean of the residuals over the ranks is the update that the weights have yet to receive. The chunks of a message
/// start at the first element of its shard.
#[derive(Clone, Debug)]
pub struct Staged<R> {
    residual: Vec<f32>,
    rounding: PhantomData<R>,
}

impl<R: StagedQuantizer> Staged<R> {
    /// A codec for gradients of `len` elements.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self { residual: vec![0.0; len], rounding: PhantomData }
    }

    /// Adds the gradient of a range to the residual.
    fn take_up(&mut self, range: Range<usize>, gradient: &[f32]) {
        self.residual[range].iter_mut().zip(gradient).for_each(|(r, g)| *r += g);
    }
}

impl<R: StagedQuantizer> Codec for Staged<R> {
    fn len(&self) -> usize {
        self.residual.len()
    }

    fn sent_bytes(&self, rank: usize, ranks: usize) -> usize {
        let shards = Shards::even(self.len(), ranks);
        let bytes = |rank: usize| R::bytes(shards.of_rank(rank).len());
        let others: usize = (0..ranks).filter(|other| *other != rank).map(bytes).sum();
        others + ranks.saturating_sub(1) * bytes(rank)
    }

    fn check(&self, rank: usize, gradient: &[f32]) -> Result<(), CommError> {
        check_gradient(rank, self.len(), gradient, sums(&self.residual, gradient))
    }

    fn exchange(&mut self, comm: &dyn Communicator, gradient: &mut [f32]) -> Result<(), CommError> {
        let (rank, ranks) = (comm.rank(), comm.size());
        self.check(rank, gradient)?;
        let shards = Shards::even(self.len(), ranks);
        let own = shards.of_rank(rank);
        let mut messages = Vec::with_capacity(ranks);
        for to in 0..ranks {
            let range = shards.of_rank(to);
            self.take_up(range.clone(), &gradient[range.clone()]);
            messages.push(if to == rank { Vec::new() } else { R::write(&mut self.residual[range]) });
        }
        let messages: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
        let received = comm.all_to_all(&messages, R::bytes(own.len()))?;
        let others = &mut gradient[own.clone()];
        others.fill(0.0);
        for (from, message) in received.iter().enumerate().filter(|(from, _)| *from != rank) {
            R::read(from, message, 1.0, others)?;
        }
        let waiting = &mut self.residual[own];
        waiting.iter_mut().zip(&*others).for_each(|(waiting, x)| *waiting += x);
        let most = (0..ranks).map(|rank| R::bytes(shards.of_rank(rank).len())).max();
        let sums = comm.all_gather(&R::write(waiting), most.unwrap_or_default())?;
        gradient.fill(0.0);
        let weight = 1.0 / ranks as f32;
        for (rank, message) in sums.iter().enumerate() {
            R::read(rank, message, weight, &mut gradient[shards.of_rank(rank)])?;
        }
        Ok(())
    }

    fn state(&self) -> Vec<Saved<'_>> {
        vec![Saved { name: "residual", carry: Carry::Mean, values: &self.residual }]
    }

    fn state_mut(&mut self) -> Vec<&mut [f32]> {
        vec![&mut self.residual]
    }
}

impl<R: StagedQuantizer> MessageCodec for Staged<R> {
    fn bytes(&self) -> usize {
        R::bytes(self.len())
    }

    fn encode(&mut self, gradient: &[f32]) -> Result<Vec<u8>, CommError> {
        self.check(0, gradient)?;
        self.take_up(0..gradient.len(), gradient);
        Ok(R::write(&mut self.residual))
    }

    fn add(&self, rank: usize, message: &[u8], weight: f32, sum: &mut [f32]) -> Result<(), CommError> {
        check_len("sum", self.len(), sum.len())?;
        R::read(rank, message, weight, sum)
    }
}
