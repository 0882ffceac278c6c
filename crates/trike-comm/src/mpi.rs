//! Ranks that MPI started.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use mpi::Threading;
use mpi::environment::Universe;
use mpi::request::{Request, StaticScope};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{
    Communicator as _, Destination as _, Equivalence as _, MatchedReceiveVec as _, Source as _,
};

use crate::endpoint::{Endpoint, Transport};
use crate::error::CommError;

/// The tag of all messages.
const TAG: i32 = 7;
/// Number of polls that only yield the processor; later polls sleep. With more ranks than cores, a rank that polls without a pause
/// starves the one it waits for.
const LOOKS: u32 = 100;
const PAUSE: Duration = Duration::from_micros(50);
/// Timeout for outstanding messages at the end of a run: their receivers may still be computing.
const FAREWELL: Duration = Duration::from_secs(600);

/// A rank of a program that `mpirun` started. Use it from the main thread only, as MPI requires.
pub type Mpi = Endpoint<World>;

/// The world of MPI.
pub struct World {
    /// Messages in flight, each with the memory that MPI reads. Dropped before `universe`, which finalizes MPI.
    sent: RefCell<Vec<Sent>>,
    world: SimpleCommunicator,
    _universe: Universe,
}

struct Sent {
    request: Request<'static, [u8], StaticScope>,
    message: *mut [u8],
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World")
            .field("rank", &self.rank())
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}

impl Mpi {
    /// This process as a rank; `None` if MPI was already initialized. Without `mpirun` it is the only rank.
    #[must_use]
    pub fn start() -> Option<Self> {
        let (universe, _) = mpi::initialize_with_threading(Threading::Funneled)?;
        let world = universe.world();
        Some(Endpoint::over(World { sent: RefCell::default(), world, _universe: universe }))
    }

    /// Terminates all ranks with this exit code, so that none waits for one that has failed.
    pub fn abort(&self, code: i32) -> ! {
        self.transport.world.abort(code)
    }
}

impl World {
    /// Lets MPI make progress and frees the memory of sent messages; returns whether all are sent.
    fn progress(&self) -> bool {
        let mut sent = self.sent.borrow_mut();
        for Sent { request, message } in std::mem::take(&mut *sent) {
            match request.test() {
                Ok(_) => {
                    // SAFETY: `put` got the pointer from `Box::into_raw`, and MPI has read the message, so no reference to it is
                    // left.
                    drop(unsafe { Box::from_raw(message) });
                }
                Err(request) => sent.push(Sent { request, message }),
            }
        }
        sent.is_empty()
    }

    /// Polls `look` until it returns `Some` or the deadline passes.
    fn poll<T>(&self, until: Instant, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        for looks in 0u32.. {
            if let found @ Some(_) = look() {
                return found;
            }
            if Instant::now() >= until {
                return None;
            }
            if looks < LOOKS { std::thread::yield_now() } else { std::thread::sleep(PAUSE) }
        }
        None
    }
}

impl Transport for World {
    fn rank(&self) -> usize {
        self.world.rank().unsigned_abs() as usize
    }

    fn size(&self) -> usize {
        self.world.size().unsigned_abs() as usize
    }

    fn put(&self, to: usize, message: Vec<u8>) -> Result<(), CommError> {
        let most = i32::MAX as usize;
        if message.len() > most {
            return Err(CommError::TooLong { rank: self.rank(), most, got: message.len() });
        }
        self.progress();
        let message: *mut [u8] = Box::into_raw(message.into_boxed_slice());
        // SAFETY: the pointer comes from a box, which `progress` drops only after MPI has read it and which is not modified before.
        let bytes: &'static [u8] = unsafe { &*message };
        let to = self.world.process_at_rank(to as i32);
        let request = to.immediate_send_with_tag(StaticScope, bytes, TAG);
        self.sent.borrow_mut().push(Sent { request, message });
        Ok(())
    }

    fn get(&self, from: usize, most: usize, until: Instant) -> Result<Option<Vec<u8>>, CommError> {
        let process = self.world.process_at_rank(from as i32);
        let found = self.poll(until, || {
            self.progress();
            process.immediate_matched_probe_with_tag(TAG)
        });
        let Some((message, status)) = found else { return Ok(None) };
        let got = status.count(u8::equivalent_datatype()).unsigned_abs() as usize;
        let (bytes, _): (Vec<u8>, _) = (message, status).matched_receive_vec();
        // The size limit cannot save memory here: MPI has already buffered the message.
        if got > most { Err(CommError::TooLong { rank: from, most, got }) } else { Ok(Some(bytes)) }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let until = Instant::now() + FAREWELL;
        // After a panic, ranks that wait for this one would block until their timeout.
        if std::thread::panicking() || self.poll(until, || self.progress().then_some(())).is_none() {
            self.world.abort(1);
        }
    }
}
