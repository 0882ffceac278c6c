//! Checked messages over a byte transport.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::communicator::{Communicator, Traffic};
use crate::error::CommError;

/// Default receive timeout, in seconds.
const DEADLINE: Duration = Duration::from_secs(600);
/// Magic number of this version of the message format.
const MAGIC: u32 = u32::from_le_bytes(*b"TKC1");
/// Size of the header: magic, message number, checksum, and the content length in eight bytes.
pub(crate) const HEADER: usize = 20;

/// A transport of bytes between ranks.
pub trait Transport {
    /// The number of this rank.
    fn rank(&self) -> usize;

    /// Ranks of the run.
    fn size(&self) -> usize;

    /// Sends a message to another rank, without blocking.
    ///
    /// # Errors
    ///
    /// [`CommError::Gone`].
    fn put(&self, to: usize, message: Vec<u8>) -> Result<(), CommError>;

    /// The next message of another rank; `None` if none arrived before `until`. Messages of more than `most` bytes are refused, if
    /// possible before memory is allocated for them.
    ///
    /// # Errors
    ///
    /// [`CommError::Gone`], [`CommError::TooLong`].
    fn get(&self, from: usize, most: usize, until: Instant) -> Result<Option<Vec<u8>>, CommError>;
}

/// A rank over a [`Transport`]: numbers its messages and checks received ones.
#[derive(Debug)]
pub struct Endpoint<T> {
    pub(crate) transport: T,
    deadline: Duration,
    /// Numbers of the next message to and from each rank.
    numbers: Vec<[Cell<u32>; 2]>,
    traffic: Cell<Traffic>,
}

impl<T: Transport> Endpoint<T> {
    /// A rank over this transport, with a receive timeout of ten minutes.
    pub fn over(transport: T) -> Self {
        let numbers = (0..transport.size()).map(|_| <[Cell<u32>; 2]>::default()).collect();
        Self { transport, deadline: DEADLINE, numbers, traffic: Cell::default() }
    }

    /// The same with another receive timeout.
    #[must_use]
    pub fn with_deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// Number of the next message to (0) or from (1) a rank. It is [incremented](count_message) after a message was sent or
    /// received, so that a late message is still the next one after a timeout.
    fn number(&self, rank: usize, direction: usize) -> Result<&Cell<u32>, CommError> {
        let wrong = CommError::Rank { rank, size: self.size() };
        if rank == self.rank() {
            return Err(wrong);
        }
        Ok(&self.numbers.get(rank).ok_or(wrong)?[direction])
    }

    fn count(&self, change: impl FnOnce(&mut Traffic)) {
        let mut traffic = self.traffic.get();
        change(&mut traffic);
        self.traffic.set(traffic);
    }
}

impl<T: Transport> Communicator for Endpoint<T> {
    fn rank(&self) -> usize {
        self.transport.rank()
    }

    fn size(&self) -> usize {
        self.transport.size()
    }

    fn send(&self, to: usize, message: &[u8]) -> Result<(), CommError> {
        let number = self.number(to, 0)?;
        let whole = seal(number.get(), message);
        let bytes = whole.len() as u64;
        self.transport.put(to, whole)?;
        count_message(number);
        self.count(|traffic| {
            traffic.messages += 1;
            traffic.sent += bytes;
        });
        Ok(())
    }

    fn receive(&self, from: usize, most: usize) -> Result<Vec<u8>, CommError> {
        let number = self.number(from, 1)?;
        let start = Instant::now();
        // Out of the clock's range: use the default timeout.
        let until = start.checked_add(self.deadline).unwrap_or(start + DEADLINE);
        let whole = self.transport.get(from, most.saturating_add(HEADER), until).map_err(|e| match e {
            // The message has arrived and was discarded.
            CommError::TooLong { rank, got, .. } => {
                count_message(number);
                CommError::TooLong { rank, most, got: got.saturating_sub(HEADER) }
            }
            other => other,
        })?;
        let waiting = start.elapsed();
        self.count(|traffic| {
            traffic.waiting += waiting;
            traffic.received += whole.as_ref().map_or(0, |whole| whole.len() as u64);
        });
        let seconds = self.deadline.as_secs();
        let whole = whole.ok_or(CommError::Deadline { rank: from, seconds })?;
        open(from, count_message(number), most, whole)
    }

    fn traffic(&self) -> Traffic {
        self.traffic.get()
    }
}

/// Increments a message number after sending or receiving; returns the old one.
fn count_message(number: &Cell<u32>) -> u32 {
    number.replace(number.get().wrapping_add(1))
}

/// Prepends the header to a message.
fn seal(number: u32, message: &[u8]) -> Vec<u8> {
    let mut whole = Vec::with_capacity(HEADER + message.len());
    whole.extend(MAGIC.to_le_bytes());
    whole.extend(number.to_le_bytes());
    whole.extend(crc32c::crc32c(message).to_le_bytes());
    whole.extend((message.len() as u64).to_le_bytes());
    whole.extend(message);
    whole
}

/// Checks the header and returns the content of a message.
fn open(rank: usize, expected: u32, most: usize, mut whole: Vec<u8>) -> Result<Vec<u8>, CommError> {
    let cut = CommError::Cut { rank, expected: HEADER, got: whole.len() };
    let (header, message) = whole.split_at_checked(HEADER).ok_or(cut)?;
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    if word(0) != MAGIC {
        return Err(CommError::Damaged { rank, problem: "not a message of this version" });
    }
    let length = u64::from(word(12)) | u64::from(word(16)) << 32;
    if length != message.len() as u64 {
        let expected = usize::try_from(length).unwrap_or(usize::MAX);
        return Err(CommError::Cut { rank, expected, got: message.len() });
    }
    if message.len() > most {
        return Err(CommError::TooLong { rank, most, got: message.len() });
    }
    if word(8) != crc32c::crc32c(message) {
        return Err(CommError::Damaged { rank, problem: "wrong checksum" });
    }
    if word(4) != expected {
        return Err(CommError::Order { rank, expected, got: word(4) });
    }
    whole.drain(..HEADER);
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link stays usable after a timeout, after an oversized message, and after a failed send.
    #[test]
    fn links_outlive_what_went_wrong() {
        let mut ranks = crate::Threads::new(2).into_iter();
        let [one, two] = [(); 2].map(|()| ranks.next().expect("a rank").with_deadline(Duration::ZERO));
        for message in [&b"late"[..], b"later"] {
            assert_eq!(two.receive(0, 5), Err(CommError::Deadline { rank: 0, seconds: 0 }));
            one.send(1, message).expect("it is sent");
            assert_eq!(two.receive(0, 5), Ok(message.to_vec()));
        }
        one.send(1, b"too long").expect("it is sent");
        assert_eq!(two.receive(0, 5), Err(CommError::TooLong { rank: 0, most: 5, got: 8 }));
        one.send(1, b"fits").expect("it is sent");
        assert_eq!(two.receive(0, 5), Ok(b"fits".to_vec()));
    }

    #[test]
    fn what_was_not_sent_is_refused() {
        let whole = seal(7, b"trits");
        assert_eq!(open(3, 7, 5, whole.clone()), Ok(b"trits".to_vec()));
        for len in 0..whole.len() {
            let cut = open(3, 7, 5, whole[..len].to_vec());
            assert!(matches!(cut, Err(CommError::Cut { rank: 3, .. })), "{len}: {cut:?}");
        }
        for bit in 0..8 * whole.len() {
            let mut other = whole.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(open(3, 7, 5, other).is_err(), "bit {bit}");
        }
        assert_eq!(open(3, 7, 4, whole.clone()), Err(CommError::TooLong { rank: 3, most: 4, got: 5 }));
        assert_eq!(open(3, 8, 5, whole), Err(CommError::Order { rank: 3, expected: 8, got: 7 }));
    }
}
