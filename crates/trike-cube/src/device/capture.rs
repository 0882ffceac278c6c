//! State of the process's only capture: access to devices during a capture, and the launches and memory that it records.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::Launch;
use super::allocation::{Allocation, Captures};
use crate::error::{CubeError, Result};

/// Write-locked during a capture, read-locked during a call to a device.
///
/// One lock for all devices of the process: launches of other threads must not be recorded, streams of a runtime share a recording,
/// and CUDA ends a capture when any thread of the process waits or allocates. Work still queued on another GPU is not awaited: a
/// late allocation there can end a capture, after which steps are launched individually.
static GATE: RwLock<()> = RwLock::new(());

thread_local! {
    /// Address of the [`Captures`] of the device that this thread is capturing on; [`MEASURES`] within a measurement; else 0.
    static INSIDE: Cell<usize> = const { Cell::new(0) };
}

/// Marks a measurement; not a valid address.
const MEASURES: usize = 1;

/// Guard: this thread is within a capture or a measurement.
struct Inside(usize);

impl Inside {
    fn of(what: usize) -> Self {
        Self(INSIDE.replace(what))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(self.0);
    }
}

/// State of the process's capture, of which there is at most one. Shared by all devices: two devices opened on one GPU share
/// its queue, so the launches of one are recorded by the other.
static TAPE: Mutex<Option<Tape>> = Mutex::new(None);

fn tape() -> MutexGuard<'static, Option<Tape>> {
    TAPE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns true if this thread is capturing, on any device.
fn captures() -> bool {
    !matches!(INSIDE.get(), 0 | MEASURES)
}

/// State of one capture.
#[derive(Debug, Default)]
struct Tape {
    recording: bool,
    /// Allocations of the first run, reused when they have no other owner.
    room: Vec<Arc<Allocation>>,
    /// Allocations used by the recorded launches, by address.
    given: HashMap<usize, Arc<Allocation>>,
    /// Kernels and grids of the first run.
    first: Vec<(u64, [u32; 3])>,
    /// Number of them that the second run has repeated.
    again: usize,
    differs: Option<&'static str>,
}

impl Tape {
    /// An unused allocation of `bytes` bytes. Both runs drop buffers in the same order, so both find the same one.
    fn free(&self, bytes: u64) -> Option<&Arc<Allocation>> {
        self.room.iter().find(|allocation| {
            let held = 1 + usize::from(self.given.contains_key(&address(allocation)));
            allocation.bytes() == bytes && Arc::strong_count(allocation) == held
        })
    }

    fn differ(&mut self, what: &'static str) -> CubeError {
        self.differs = Some(what);
        CubeError::Capture { what }
    }
}

fn address(allocation: &Arc<Allocation>) -> usize {
    Arc::as_ptr(allocation) as usize
}

/// Permission for calls to a device.
pub(super) struct Turn(#[expect(dead_code, reason = "held, not read")] Option<RwLockReadGuard<'static, ()>>);

/// Waits for the capture of another thread.
pub(super) fn enter() -> Turn {
    Turn((!is_inside()).then(|| GATE.read().unwrap_or_else(PoisonError::into_inner)))
}

/// As [`enter`], for operations not allowed within a capture or a measurement.
pub(super) fn enter_to_measure() -> Result<Turn> {
    if INSIDE.get() == 0 { Ok(enter()) } else { Err(CubeError::Capture { what: NESTED }) }
}

/// Waits until no thread uses a device, and blocks all of them.
pub(super) fn close() -> RwLockWriteGuard<'static, ()> {
    GATE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Wraps the measured closure. The runtime may call it from another thread, which must not wait for the gate.
pub(super) fn measured<T>(run: impl FnOnce() -> T) -> impl FnOnce() -> T {
    || {
        let _inside = Inside::of(MEASURES);
        run()
    }
}

/// Exclusive access of this thread to all devices; its calls to the captured device are recorded.
pub(super) struct Alone {
    _inside: Inside,
    _gate: RwLockWriteGuard<'static, ()>,
}

impl Drop for Alone {
    fn drop(&mut self) {
        let gone = tape().take();
        drop(gone);
    }
}

/// Whether this thread is capturing or measuring, on any device.
pub(super) fn is_inside() -> bool {
    INSIDE.get() != 0
}

impl Captures {
    fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Whether this thread is capturing on this device.
    pub(super) fn is_mine(&self) -> bool {
        INSIDE.get() == self.address()
    }

    /// The tape, if this thread is capturing on this device. While it captures, calls to another device are errors.
    fn mine(&self) -> Result<Option<MutexGuard<'static, Option<Tape>>>> {
        if !captures() {
            return Ok(None);
        }
        let mut tape = tape();
        if INSIDE.get() != self.address()
            && let Some(tape) = &mut *tape
        {
            return Err(tape.differ(OTHER_DEVICE));
        }
        Ok(Some(tape))
    }

    /// As [`enter`], for operations that cannot be recorded.
    pub(super) fn enter_to(&self, what: &'static str) -> Result<Turn> {
        match self.mine()? {
            Some(_) => Err(CubeError::Capture { what }),
            None => Ok(enter()),
        }
    }

    pub(super) fn alone(&self) -> Result<Alone> {
        if INSIDE.get() != 0 {
            return Err(CubeError::Capture { what: NESTED });
        }
        let gate = close();
        *tape() = Some(Tape::default());
        Ok(Alone { _inside: Inside::of(self.address()), _gate: gate })
    }

    /// Starts the second run.
    pub(super) fn record(&self) {
        if let Some(tape) = &mut *tape() {
            tape.recording = true;
        }
    }

    /// The number of launches and their allocations.
    pub(super) fn finish(&self) -> Result<(usize, Vec<Arc<Allocation>>)> {
        let tape = tape().take().unwrap_or_default();
        let differs = tape.differs.or((tape.again != tape.first.len()).then_some(OTHER_LAUNCHES));
        match differs {
            Some(what) => Err(CubeError::Capture { what }),
            None => Ok((tape.again, tape.given.into_values().collect())),
        }
    }

    /// Memory of `bytes` bytes that this thread's capture has allocated before; `Ok(None)` if it must be allocated.
    pub(super) fn room(&self, bytes: u64) -> Result<Option<Arc<Allocation>>> {
        let Some(mut mine) = self.mine()? else { return Ok(None) };
        let Some(tape) = &mut *mine else { return Ok(None) };
        match tape.free(bytes) {
            Some(free) => Ok(Some(Arc::clone(free))),
            None if tape.recording => Err(tape.differ("memory that its first run did not allocate")),
            None => Ok(None),
        }
    }

    /// Keeps memory that was allocated in a first run.
    pub(super) fn keep(&self, allocation: &Arc<Allocation>) {
        if let Ok(Some(mut mine)) = self.mine()
            && let Some(tape) = &mut *mine
        {
            tape.room.push(Arc::clone(allocation));
        }
    }

    /// Keeps the memory of a recorded launch. Memory of another device ends the capture.
    pub(super) fn give(&self, allocation: &Arc<Allocation>) {
        if let Ok(Some(mut mine)) = self.mine()
            && let Some(tape) = mine.as_mut().filter(|tape| tape.recording)
        {
            tape.given.entry(address(allocation)).or_insert_with(|| Arc::clone(allocation));
        }
    }

    /// Registers a launch; in the second run it must match the first run's. `proven`: the kernel needs no wait.
    pub(super) fn note(&self, launch: &Launch, proven: bool) -> Result<()> {
        let Some(mut mine) = self.mine()? else { return Ok(()) };
        let Some(tape) = &mut *mine else { return Ok(()) };
        let this = (launch.key, launch.settings.cubes);
        if !tape.recording {
            tape.first.push(this);
            return Ok(());
        }
        if !proven || tape.first.get(tape.again) != Some(&this) {
            return Err(tape.differ(OTHER_LAUNCHES));
        }
        tape.again += 1;
        Ok(())
    }
}

const OTHER_DEVICE: &str = "launches or memory of another device";
const NESTED: &str = "another capture or a measurement";
const OTHER_LAUNCHES: &str = "other launches than its first run";
