//! Sparse differences of weights after local steps.

use crate::codec::sparse::{CHUNK, Scratch, Sparse, Two};
use crate::codec::{
    Carry, Codec, MessageCodec, Saved, check_decay, check_gradient, check_len, exchange_messages,
};
use crate::{CommError, Communicator};

/// The outer step of SparseLoCo (Sarfi et al., 2508.15706): sends the largest of every 4,096 elements, in 14 bits each.
///
/// A rank takes some local steps. Its pseudo-gradient is the difference between the common weights before these steps and its own
/// weights after them; all ranks continue from the common weights minus the mean (times an outer learning rate). With `residual =
/// decay residual + gradient`, the largest elements of the residual are sent and subtracted from it. A value is its sign and one of
/// two magnitudes per chunk, chosen to minimize the squared error.
#[derive(Clone, Debug)]
pub struct SparseLoCo {
    sparse: Sparse<Two>,
    decay: f32,
    residual: Vec<f32>,
}

impl SparseLoCo {
    /// A codec for differences of `len` elements that sends a fraction `share` of them, in (0, 1]. The `decay`, in [0, 1], is the
    /// factor of the residual per exchange; with 1 nothing is lost.
    ///
    /// # Errors
    ///
    /// [`CommError::Range`].
    pub fn new(len: usize, share: f32, decay: f32) -> Result<Self, CommError> {
        check_decay("decay", decay)?;
        Ok(Self { sparse: Sparse::new(share)?, decay, residual: vec![0.0; len] })
    }
}

impl Codec for SparseLoCo {
    fn len(&self) -> usize {
        self.residual.len()
    }

    fn sent_bytes(&self, _rank: usize, ranks: usize) -> usize {
        ranks.saturating_sub(1) * self.bytes()
    }

    fn check(&self, rank: usize, gradient: &[f32]) -> Result<(), CommError> {
        let states = self.residual.iter().zip(gradient).map(|(r, g)| self.decay * *r + g);
        check_gradient(rank, self.len(), gradient, states)
    }

    fn exchange(&mut self, comm: &dyn Communicator, gradient: &mut [f32]) -> Result<(), CommError> {
        exchange_messages(self, comm, gradient)
    }

    fn state(&self) -> Vec<Saved<'_>> {
        vec![Saved { name: "residual", carry: Carry::Mean, values: &self.residual }]
    }

    fn state_mut(&mut self) -> Vec<&mut [f32]> {
        vec![&mut self.residual]
    }
}

impl MessageCodec for SparseLoCo {
    fn bytes(&self) -> usize {
        self.sparse.bytes(self.len())
    }

    fn encode(&mut self, gradient: &[f32]) -> Result<Vec<u8>, CommError> {
        self.check(0, gradient)?;
        let mut message = Vec::with_capacity(self.bytes());
        let mut scratch = Scratch::default();
        for (residual, gradient) in self.residual.chunks_mut(CHUNK).zip(gradient.chunks(CHUNK)) {
            residual.iter_mut().zip(gradient).for_each(|(r, g)| *r = self.decay * *r + g);
            self.sparse.write(residual, &mut message, &mut scratch);
            for (place, value) in &scratch.sent {
                residual[*place] -= value;
            }
        }
        Ok(message)
    }

    fn add(&self, rank: usize, message: &[u8], weight: f32, sum: &mut [f32]) -> Result<(), CommError> {
        check_len("sum", self.len(), sum.len())?;
        self.sparse.read(rank, message, sum.len(), |place, value| sum[place] += weight * value)
    }
}
