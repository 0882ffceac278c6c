//! A communicator without peers.

use trike_comm::{CommError, Communicator, Traffic};

/// A rank without peers: messages sent are dropped, messages received are zeros.
pub(super) struct Silent {
    pub(super) rank: usize,
    pub(super) size: usize,
    /// Maximum message size of the other ranks in an all-gather.
    pub(super) most: usize,
}

impl Communicator for Silent {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn send(&self, _to: usize, _message: &[u8]) -> Result<(), CommError> {
        Ok(())
    }

    fn receive(&self, _from: usize, most: usize) -> Result<Vec<u8>, CommError> {
        Ok(vec![0; most])
    }

    fn traffic(&self) -> Traffic {
        Traffic::default()
    }

    fn all_gather(&self, message: &[u8], most: usize) -> Result<Vec<Vec<u8>>, CommError> {
        let of_rank = |rank: usize| match rank == self.rank {
            true => message.to_vec(),
            false => vec![0; most.min(self.most)],
        };
        Ok((0..self.size).map(of_rank).collect())
    }
}
