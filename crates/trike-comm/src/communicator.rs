//! Communication between ranks.

use std::time::Duration;

use crate::CommError;

/// Statistics of a rank's messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages sent.
    pub messages: u64,
    /// Bytes sent, including message headers.
    pub sent: u64,
    /// Bytes received, including message headers.
    pub received: u64,
    /// Time spent blocked on a message.
    pub waiting: Duration,
}

/// One rank of a run, connected with the others.
///
/// All ranks call the same collective functions in the same order. A message that does not arrive in time, is damaged, or was sent
/// by a call of another kind is an error of the receiving rank, never a wrong result.
pub trait Communicator {
    /// The number of this rank, below [`size`](Self::size).
    fn rank(&self) -> usize;

    /// Ranks of the run.
    fn size(&self) -> usize;

    /// Sends a message to another rank, without blocking. Messages between two ranks arrive in the order of sending.
    ///
    /// # Errors
    ///
    /// [`CommError::Rank`] for this rank and for one that does not exist, [`CommError::Gone`].
    fn send(&self, to: usize, message: &[u8]) -> Result<(), CommError>;

    /// Receives the next message of another rank, of at most `most` bytes. After [`CommError::Deadline`] the same message is still
    /// the next one, and the call may be repeated; a collective function may not, since it has already sent its own message.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), and all errors of messages.
    fn receive(&self, from: usize, most: usize) -> Result<Vec<u8>, CommError>;

    /// Statistics so far.
    fn traffic(&self) -> Traffic;

    /// The messages of all ranks, each of at most `most` bytes, in rank order.
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

    /// Sends message `i` to rank `i`, and returns the messages from all ranks to this one, in rank order.
    ///
    /// # Errors
    ///
    /// [`CommError::Length`] unless there is one message per rank, and as [`receive`](Self::receive).
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

    /// The message of rank `root`, of at most `most` bytes; the other ranks pass `None`.
    ///
    /// # Errors
    ///
    /// [`CommError::Length`] if `root` passes no message or another rank does, and as [`receive`](Self::receive).
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

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    ///
    /// As [`receive`](Self::receive).
    fn barrier(&self) -> Result<(), CommError> {
        self.all_gather(&[], 0).map(drop)
    }
}

/// The other ranks, starting with the next one, so that not all ranks send to the same one first.
fn others<C: Communicator + ?Sized>(comm: &C) -> impl Iterator<Item = usize> {
    let (rank, size) = (comm.rank(), comm.size());
    (1..size).map(move |step| (rank + step) % size)
}
