//! What ranks can say to each other.

use std::time::Duration;

use crate::CommError;

/// What a rank has sent and waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages sent.
    pub messages: u64,
    /// Bytes sent, with the headers of messages.
    pub sent: u64,
    /// Bytes received, with the headers of messages.
    pub received: u64,
    /// Time in which nothing was done but waiting for a message.
    pub waiting: Duration,
}

/// One rank of a run, connected with the others.
///
/// All ranks call the same collective functions in the same order. A message that does not arrive in time, that is damaged, or that
/// was sent by a call of another kind is an error of the rank that waits for it, never a wrong result.
pub trait Communicator {
    /// The number of this rank, below [`size`](Self::size).
    fn rank(&self) -> usize;

    /// Ranks of the run.
    fn size(&self) -> usize;

    /// Sends a message to another rank, without waiting for it. Messages between two ranks arrive in the order of their sending.
    ///
    /// # Errors
    ///
    /// [`CommError::Rank`] for this rank and for one that does not exist, [`CommError::Gone`].
    fn send(&self, to: usize, message: &[u8]) -> Result<(), CommError>;

    /// The next message of another rank, of at most `most` bytes. After [`CommError::Deadline`] that message is still the next one, for
    /// which this may be called again; a collective function may not, since it has sent its own already.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), and all errors of messages.
    fn receive(&self, from: usize, most: usize) -> Result<Vec<u8>, CommError>;

    /// What was sent so far.
    fn traffic(&self) -> Traffic;

    /// The message of each rank, each of at most `most` bytes, in the order of the ranks.
    ///
    /// # Errors
    ///
    /// As [`receive`](Self::receive).
    fn all_gather(&self, message: &[u8], most: usize) -> Result<Vec<Vec<u8>>, CommError> {
        for to in others(self) {
            self.send(to, message)?;
        }
        let all = (0..self.size()).map(|from| match from == self.rank() {
            true => Ok(message.to_vec()),
            false => self.receive(from, most),
        });
        all.collect()
    }

    /// Gives message `i` to rank `i`, and returns what the ranks have given to this one, in their order.
    ///
    /// # Errors
    ///
    /// [`CommError::Length`] unless there is a message for each rank, and as [`receive`](Self::receive).
    fn all_to_all(&self, messages: &[&[u8]], most: usize) -> Result<Vec<Vec<u8>>, CommError> {
        if messages.len() != self.size() {
            return Err(CommError::Length { what: "messages", expected: self.size(), got: messages.len() });
        }
        for to in others(self) {
            self.send(to, messages[to])?;
        }
        let all = (0..self.size()).map(|from| match from == self.rank() {
            true => Ok(messages[from].to_vec()),
            false => self.receive(from, most),
        });
        all.collect()
    }

    /// The message of rank `root`, of at most `most` bytes; the others give nothing.
    ///
    /// # Errors
    ///
    /// [`CommError::Length`] if `root` gives no message or another rank does, and as [`receive`](Self::receive).
    fn broadcast(&self, root: usize, message: Option<&[u8]>, most: usize) -> Result<Vec<u8>, CommError> {
        if root >= self.size() {
            return Err(CommError::Rank { rank: root, size: self.size() });
        }
        let (expected, got) = (usize::from(root == self.rank()), usize::from(message.is_some()));
        let Some(message) = message.filter(|_| expected == 1) else {
            if expected != got {
                return Err(CommError::Length { what: "messages of a broadcast", expected, got });
            }
            return self.receive(root, most);
        };
        for to in others(self) {
            self.send(to, message)?;
        }
        Ok(message.to_vec())
    }

    /// Returns when all ranks have come here.
    ///
    /// # Errors
    ///
    /// As [`receive`](Self::receive).
    fn barrier(&self) -> Result<(), CommError> {
        self.all_gather(&[], 0).map(drop)
    }
}

/// The other ranks, from the next one on, so that not all send to the same one first.
fn others<C: Communicator + ?Sized>(comm: &C) -> impl Iterator<Item = usize> {
    let (rank, size) = (comm.rank(), comm.size());
    (1..size).map(move |step| (rank + step) % size)
}
