//! Ranks as threads of one process.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Instant;

use crate::endpoint::{Endpoint, Transport};
use crate::error::CommError;

/// A rank of one process, for use by one thread: for tests, and for several devices in one machine.
pub type Threads = Endpoint<Channels>;

/// The channels of a rank in one process.
#[derive(Debug)]
pub struct Channels {
    rank: usize,
    to: Vec<Sender<Vec<u8>>>,
    from: Vec<Receiver<Vec<u8>>>,
}

impl Threads {
    /// Channels for `size` ranks, in order.
    ///
    /// ```
    /// use trike_comm::{Communicator, Threads};
    ///
    /// let [one, two] = &Threads::new(2)[..] else { unreachable!("two ranks") };
    /// one.send(1, b"from rank 0")?;
    /// assert_eq!(two.receive(0, 100)?, b"from rank 0");
    /// # Ok::<(), trike_comm::CommError>(())
    /// ```
    #[must_use]
    pub fn new(size: usize) -> Vec<Self> {
        let mut ranks: Vec<Channels> =
            (0..size).map(|rank| Channels { rank, to: Vec::new(), from: Vec::new() }).collect();
        for to in 0..size {
            for from in 0..size {
                let (sender, receiver) = channel();
                ranks[from].to.push(sender);
                ranks[to].from.push(receiver);
            }
        }
        ranks.into_iter().map(Endpoint::over).collect()
    }

    /// Runs `rank` on `size` threads and returns the results in rank order. Panics are propagated.
    ///
    /// ```
    /// use trike_comm::{Communicator, Threads};
    ///
    /// let all = Threads::run(3, |comm| comm.all_gather(&[comm.rank() as u8], 1));
    /// assert_eq!(all[2], Ok(vec![vec![0], vec![1], vec![2]]));
    /// ```
    pub fn run<R: Send>(size: usize, rank: impl Fn(Self) -> R + Sync) -> Vec<R> {
        std::thread::scope(|scope| {
            let rank = &rank;
            let running: Vec<_> =
                Self::new(size).into_iter().map(|comm| scope.spawn(move || rank(comm))).collect();
            let wait = |rank: std::thread::ScopedJoinHandle<'_, R>| match rank.join() {
                Ok(found) => found,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            running.into_iter().map(wait).collect()
        })
    }
}

impl Transport for Channels {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.to.len()
    }

    fn put(&self, to: usize, message: Vec<u8>) -> Result<(), CommError> {
        self.to[to].send(message).map_err(|_| CommError::Gone { rank: to })
    }

    fn get(&self, from: usize, most: usize, until: Instant) -> Result<Option<Vec<u8>>, CommError> {
        let wait = until.saturating_duration_since(Instant::now());
        match self.from[from].recv_timeout(wait) {
            Ok(message) if message.len() > most => {
                Err(CommError::TooLong { rank: from, most, got: message.len() })
            }
            Ok(message) => Ok(Some(message)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(CommError::Gone { rank: from }),
        }
    }
}
