//! A rank without others.

use trike_comm::{CommError, Communicator, Traffic};

/// One of several ranks of which no other exists: what it sends is dropped, and what it receives is zeros.
pub(super) struct Silent {
    pub(super) rank: usize,
    pub(super) size: usize,
    /// Bytes that each of the others gives to all, at most.
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
