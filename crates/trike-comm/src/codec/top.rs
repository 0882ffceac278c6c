//! The largest elements of gradients.

use crate::codec::sparse::{CHUNK, Geometric, Scratch, Sparse};
use crate::codec::{Carry, Codec, MessageCodec, Saved, check_gradient, check_len, exchange_messages, sums};
use crate::{CommError, Communicator};

/// Top-k sparsification with momentum (Lin et al., 1712.01887): sends the largest of every 4,096 elements, in 16 bits each.
///
/// A rank accumulates its gradients as `velocity = momentum velocity + gradient` and `waiting += velocity`. Sent values are
/// subtracted from `waiting`, and the velocity of sent elements is cleared, so that stale gradients lose their momentum. A value is
/// quantized to eight magnitudes, from the largest of its chunk down to 0.09 of it.
#[derive(Clone, Debug)]
pub struct TopK {
    sparse: Sparse<Geometric>,
    momentum: f32,
    velocity: Vec<f32>,
    waiting: Vec<f32>,
}

impl TopK {
    /// A codec for gradients of `len` elements that sends a fraction `share` of them, in (0, 1]; with a `momentum` of 0 it is plain
    /// top-k with error feedback.
    ///
    /// # Errors
    ///
    /// [`CommError::Range`].
    pub fn new(len: usize, share: f32, momentum: f32) -> Result<Self, CommError> {
        let sparse = Sparse::new(share)?;
        if !(0.0..1.0).contains(&momentum) {
            let got = f64::from(momentum);
            return Err(CommError::Range { what: "momentum", expected: "0 to less than 1", got });
        }
        let velocity = if momentum > 0.0 { vec![0.0; len] } else { Vec::new() };
        Ok(Self { sparse, momentum, velocity, waiting: vec![0.0; len] })
    }
}

impl Codec for TopK {
    fn len(&self) -> usize {
        self.waiting.len()
    }

    fn sent_bytes(&self, _rank: usize, ranks: usize) -> usize {
        ranks.saturating_sub(1) * self.bytes()
    }

    fn check(&self, rank: usize, gradient: &[f32]) -> Result<(), CommError> {
        if self.velocity.is_empty() {
            return check_gradient(rank, self.len(), gradient, sums(&self.waiting, gradient));
        }
        // `|velocity| <= |waiting before| + |waiting after|`, so it needs no check of its own.
        let all = self.velocity.iter().zip(&self.waiting).zip(gradient);
        let states = all.map(|((velocity, waiting), g)| waiting + (self.momentum * *velocity + g));
        check_gradient(rank, self.len(), gradient, states)
    }

    fn exchange(&mut self, comm: &dyn Communicator, gradient: &mut [f32]) -> Result<(), CommError> {
        exchange_messages(self, comm, gradient)
    }

    fn state(&self) -> Vec<Saved<'_>> {
        let saved = |name, values| Saved { name, carry: Carry::Mean, values };
        vec![saved("velocity", &self.velocity), saved("waiting", &self.waiting)]
    }

    fn state_mut(&mut self) -> Vec<&mut [f32]> {
        vec![&mut self.velocity, &mut self.waiting]
    }
}

impl MessageCodec for TopK {
    fn bytes(&self) -> usize {
        self.sparse.bytes(self.len())
    }

    fn encode(&mut self, gradient: &[f32]) -> Result<Vec<u8>, CommError> {
        self.check(0, gradient)?;
        if self.momentum > 0.0 {
            for ((velocity, waiting), g) in self.velocity.iter_mut().zip(&mut self.waiting).zip(gradient) {
                *velocity = self.momentum * *velocity + g;
                *waiting += *velocity;
            }
        } else {
            self.waiting.iter_mut().zip(gradient).for_each(|(waiting, g)| *waiting += g);
        }
        let mut message = Vec::with_capacity(self.bytes());
        let mut scratch = Scratch::default();
        for (chunk, waiting) in self.waiting.chunks_mut(CHUNK).enumerate() {
            self.sparse.write(waiting, &mut message, &mut scratch);
            for (place, value) in &scratch.sent {
                waiting[*place] -= value;
                if let Some(velocity) = self.velocity.get_mut(CHUNK * chunk + place) {
                    *velocity = 0.0;
                }
            }
        }
        Ok(message)
    }

    fn add(&self, rank: usize, message: &[u8], weight: f32, sum: &mut [f32]) -> Result<(), CommError> {
        check_len("sum", self.len(), sum.len())?;
        self.sparse.read(rank, message, sum.len(), |place, value| sum[place] += weight * value)
    }
}
