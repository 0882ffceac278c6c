//! Ranks that each have an NVIDIA GPU.
//!
//! NCCL's sends wait for their receivers on the device, one after another within a communicator. Two ranks that both send before they
//! receive would wait for each other for ever. Each direction between two ranks has therefore a communicator and a stream of its
//! own, on which nothing but its messages waits. The messages that a rank sends at the same time, one to each other rank, have to find
//! room on its device together, and every direction takes memory: this is for the GPUs of a machine and not for hundreds of ranks.
//! Messages are in the host's memory before and after.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaEvent, CudaSlice, CudaStream, DriverError};
use cudarc::nccl::result::NcclError;
use cudarc::nccl::safe::{Comm, Id};

use crate::communicator::Communicator;
use crate::endpoint::{Endpoint, Transport};
use crate::error::CommError;

/// Bytes of the number by which ranks find each other.
const ID: usize = 128;
/// Bytes of the length that goes before a message.
const LENGTH: usize = 8;
/// How often the device is asked whether it is ready.
const PAUSE: Duration = Duration::from_micros(10);
/// How long the last messages may take at the end of a run: their receivers may still compute.
const FAREWELL: Duration = Duration::from_secs(600);

/// A rank with an NVIDIA GPU, connected by NCCL.
///
/// It was compiled and not run: no machine with NVIDIA GPUs was at hand.
pub type Nccl = Endpoint<Devices>;

/// The connections of a GPU with those of the other ranks.
pub struct Devices {
    rank: usize,
    /// To and from each rank; `None` for this one.
    links: Vec<Option<[Link; 2]>>,
    /// The stream of copies to the device: a copy on the stream of a link would wait for the messages before it.
    copies: Arc<CudaStream>,
    sent: RefCell<VecDeque<Sent>>,
}

/// One direction between two ranks.
struct Link {
    comm: Comm,
    stream: Arc<CudaStream>,
    /// The number of the other rank in this communicator.
    peer: i32,
    /// The length of a message that was asked for when the time was over.
    asked: RefCell<Option<Pending>>,
}

/// Memory that the device writes until the event.
struct Pending {
    bytes: CudaSlice<u8>,
    done: CudaEvent,
}

/// Memory that the device reads until the event.
struct Sent {
    _length: CudaSlice<u8>,
    _message: Option<CudaSlice<u8>>,
    done: CudaEvent,
}

impl std::fmt::Debug for Devices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Devices")
            .field("rank", &self.rank)
            .field("size", &self.links.len())
            .finish_non_exhaustive()
    }
}

impl Nccl {
    /// This process as a rank with the GPU of this number. `over` connects the same ranks and carries the numbers by which NCCL finds
    /// them; it is not needed afterwards. All ranks call this, each with a GPU of its own. NCCL itself waits for ranks without a
    /// deadline.
    ///
    /// # Errors
    ///
    /// [`CommError::Device`] without NCCL's library, the driver or the GPU, and those of messages.
    pub fn start(over: &dyn Communicator, gpu: usize) -> Result<Self, CommError> {
        // All ranks learn of one that cannot, before NCCL waits for it.
        let own = Local::open(over.size(), gpu);
        let problem = own.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let problems = over.all_gather(problem.as_bytes(), 1 << 16)?;
        let own = own?;
        if let Some(rank) = problems.iter().position(|problem| !problem.is_empty()) {
            let theirs = String::from_utf8_lossy(&problems[rank]);
            return Err(CommError::Device { problem: format!("rank {rank}: {theirs}") });
        }
        let (rank, size) = (over.rank(), over.size());
        // The number of each direction is that of its sender.
        let messages: Vec<Vec<u8>> = own.ids.iter().map(bytes_of).collect();
        let messages: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
        let theirs = over.all_to_all(&messages, ID)?;
        let mut links: Vec<[Option<Link>; 2]> = (0..size).map(|_| [None, None]).collect();
        // In one order on all ranks, since both ranks of a direction have to come.
        for from in 0..size {
            for to in (0..size).filter(|to| *to != from) {
                if from == rank {
                    links[to][0] = Some(Link::new(&own.context, own.ids[to], 0)?);
                } else if to == rank {
                    links[from][1] = Some(Link::new(&own.context, id_of(from, &theirs[from])?, 1)?);
                }
            }
        }
        let links = links.into_iter().map(|[to, from]| Some([to?, from?])).collect();
        let copies = own.context.new_stream().map_err(device)?;
        Ok(Endpoint::over(Devices { rank, links, copies, sent: RefCell::default() }))
    }
}

/// What a rank has before it knows the others.
struct Local {
    context: Arc<CudaContext>,
    /// Numbers of the directions to all ranks.
    ids: Vec<Id>,
}

impl Local {
    fn open(ranks: usize, gpu: usize) -> Result<Self, CommError> {
        // Calls into a library that is missing would be panics.
        // SAFETY: this looks for the installed libraries of CUDA and NCCL and loads them, as every call of theirs does.
        let has_driver = unsafe { cudarc::driver::sys::is_culib_present() };
        // SAFETY: as above.
        let has_nccl = unsafe { cudarc::nccl::sys::is_culib_present() };
        for (is_there, name) in [(has_driver, "libcuda"), (has_nccl, "libnccl")] {
            if !is_there {
                return Err(CommError::Device { problem: format!("{name} is not installed") });
            }
        }
        let context = CudaContext::new(gpu).map_err(device)?;
        let ids = (0..ranks).map(|_| Id::new().map_err(|e| nccl(&e))).collect::<Result<_, _>>()?;
        Ok(Self { context, ids })
    }
}

fn bytes_of(id: &Id) -> Vec<u8> {
    id.internal().iter().map(|byte| byte.cast_unsigned()).collect()
}

fn id_of(rank: usize, bytes: &[u8]) -> Result<Id, CommError> {
    let cut = CommError::Cut { rank, expected: ID, got: bytes.len() };
    let bytes: &[u8; ID] = bytes.try_into().map_err(|_| cut)?;
    Ok(Id::uninit(bytes.map(u8::cast_signed)))
}

impl Link {
    /// A direction of which this rank is the sender, number 0, or the receiver, number 1.
    fn new(context: &Arc<CudaContext>, id: Id, number: usize) -> Result<Self, CommError> {
        let stream = context.new_stream().map_err(device)?;
        let comm = Comm::from_rank(stream.clone(), number, 2, id).map_err(|e| nccl(&e))?;
        Ok(Self { comm, stream, peer: if number == 0 { 1 } else { 0 }, asked: RefCell::default() })
    }

    /// Asks for the next bytes.
    fn ask(&self, len: usize) -> Result<Pending, CommError> {
        let mut bytes = self.stream.alloc_zeros::<u8>(len).map_err(device)?;
        self.comm.recv(&mut bytes, self.peer).map_err(|e| nccl(&e))?;
        let done = self.stream.record_event(None).map_err(device)?;
        Ok(Pending { bytes, done })
    }

    fn read(&self, pending: &Pending) -> Result<Vec<u8>, CommError> {
        self.stream.clone_dtoh(&pending.bytes).map_err(device)
    }
}

impl Devices {
    fn link(&self, rank: usize, direction: usize) -> Result<&Link, CommError> {
        let links = self.links.get(rank).and_then(Option::as_ref);
        links.map(|links| &links[direction]).ok_or(CommError::Rank { rank, size: self.links.len() })
    }

    /// Frees the memory of messages that have left; returns whether all have.
    fn progress(&self) -> bool {
        let mut sent = self.sent.borrow_mut();
        sent.retain(|message| !message.done.is_complete());
        sent.is_empty()
    }

    /// Waits for something; returns whether it came before the time.
    fn wait(&self, until: Instant, is_done: impl Fn() -> bool) -> bool {
        loop {
            self.progress();
            if is_done() {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(PAUSE);
        }
    }
}

impl Transport for Devices {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.links.len()
    }

    fn put(&self, to: usize, message: Vec<u8>) -> Result<(), CommError> {
        let link = self.link(to, 0)?;
        self.progress();
        let on_device = |bytes: &[u8]| self.copies.clone_htod(bytes).map_err(device);
        let send = |bytes: &CudaSlice<u8>| link.comm.send(bytes, link.peer).map_err(|e| nccl(&e));
        let length = on_device(&(message.len() as u64).to_le_bytes())?;
        send(&length)?;
        let message = if message.is_empty() { None } else { Some(on_device(&message)?) };
        message.as_ref().map(send).transpose()?;
        let done = link.stream.record_event(None).map_err(device)?;
        self.sent.borrow_mut().push_back(Sent { _length: length, _message: message, done });
        Ok(())
    }

    fn get(&self, from: usize, most: usize, until: Instant) -> Result<Option<Vec<u8>>, CommError> {
        let link = self.link(from, 1)?;
        let asked = match link.asked.take() {
            Some(asked) => asked,
            None => link.ask(LENGTH)?,
        };
        if !self.wait(until, || asked.done.is_complete()) {
            link.asked.replace(Some(asked));
            return Ok(None);
        }
        let length = link.read(&asked)?;
        let length = length.first_chunk().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes));
        let got = usize::try_from(length).unwrap_or(usize::MAX);
        if got > most {
            return Err(CommError::TooLong { rank: from, most, got });
        }
        if got == 0 {
            return Ok(Some(Vec::new()));
        }
        let message = link.ask(got)?;
        // The sender has it on its device; one that ended meanwhile is gone.
        match self.wait(until, || message.done.is_complete()) {
            true => link.read(&message).map(Some),
            false => Err(CommError::Gone { rank: from }),
        }
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        // Communicators that are dropped abort what is on its way.
        if !std::thread::panicking() {
            self.wait(Instant::now() + FAREWELL, || self.sent.borrow().is_empty());
        }
    }
}

fn device(error: DriverError) -> CommError {
    CommError::Device { problem: format!("CUDA: {error}") }
}

fn nccl(NcclError(code): &NcclError) -> CommError {
    CommError::Device { problem: format!("NCCL: {code:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Threads;

    /// Most machines have no NCCL; all ranks must say so instead of waiting for each other.
    #[test]
    fn ranks_without_nccl_say_so() {
        // SAFETY: as in `Local::open`.
        if unsafe { cudarc::nccl::sys::is_culib_present() } {
            println!("skipped: NCCL is installed");
            return;
        }
        for error in Threads::run(2, |comm| Nccl::start(&comm, 0).map(drop)) {
            let text = error.expect_err("no library").to_string();
            assert!(text.contains("lib"), "{text}");
        }
    }

    #[test]
    fn ids_are_bytes() {
        let bytes: Vec<u8> = (0..ID).map(|i| (2 * i) as u8).collect();
        assert_eq!(id_of(0, &bytes).map(|id| bytes_of(&id)), Ok(bytes));
        assert_eq!(id_of(3, &[0; 5]).map(drop), Err(CommError::Cut { rank: 3, expected: ID, got: 5 }));
    }
}
