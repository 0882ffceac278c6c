//! One capture at a time: who may use a device meanwhile, and what the capture sees.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::Launch;
use super::allocation::{Allocation, Captures};
use crate::error::{CubeError, Result};

/// Held to write during a capture, to read while something is asked of a device.
///
/// One for all devices of the process: what another thread launches must not be recorded, streams of a runtime share what is
/// recorded, and CUDA ends a capture when any thread of the process waits or allocates. What is still in the queue of another
/// GPU is not waited for: there an allocation that is made late can end a capture, after which steps are launched one by one.
static GATE: RwLock<()> = RwLock::new(());

thread_local! {
    /// The address of the captures of the device that this thread captures on; [`MEASURES`] inside of a measurement; else 0.
    static INSIDE: Cell<usize> = const { Cell::new(0) };
}

/// No address.
const MEASURES: usize = 1;

/// Inside of a capture or a measurement, for this thread.
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

/// What the capture of the process has seen, of which there is one at a time. One for all devices: two that were opened of one
/// GPU share its queue, and what one launches is recorded by the other.
static TAPE: Mutex<Option<Tape>> = Mutex::new(None);

fn tape() -> MutexGuard<'static, Option<Tape>> {
    TAPE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this thread captures, on whatever device.
fn captures() -> bool {
    !matches!(INSIDE.get(), 0 | MEASURES)
}

/// What one capture has seen.
#[derive(Debug, Default)]
struct Tape {
    recording: bool,
    /// Made in the first run, handed out again when nobody else holds them.
    room: Vec<Arc<Allocation>>,
    /// What the recorded launches were given, by address.
    given: HashMap<usize, Arc<Allocation>>,
    /// The kernels and grids of the first run.
    first: Vec<(u64, [u32; 3])>,
    /// How many of them came again.
    again: usize,
    differs: Option<&'static str>,
}

impl Tape {
    /// An allocation of so many bytes that nobody holds. As the runs drop theirs in the same order, both find the same.
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

/// Leave to ask something of a device.
pub(super) struct Turn(#[expect(dead_code, reason = "held, not read")] Option<RwLockReadGuard<'static, ()>>);

/// Waits for the capture of another thread.
pub(super) fn enter() -> Turn {
    Turn((!is_inside()).then(|| GATE.read().unwrap_or_else(PoisonError::into_inner)))
}

/// As [`enter`], for what has to be neither inside of a capture nor of a measurement.
pub(super) fn enter_to_measure() -> Result<Turn> {
    if INSIDE.get() == 0 { Ok(enter()) } else { Err(CubeError::Capture { what: NESTED }) }
}

/// Waits until no thread asks anything of a device, and keeps them all waiting.
pub(super) fn close() -> RwLockWriteGuard<'static, ()> {
    GATE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Runs what is measured without a capture in between. The runtime may call `run` from a thread of its own, which is let in.
pub(super) fn measured<T>(run: impl FnOnce() -> T) -> impl FnOnce() -> T {
    || {
        let _inside = Inside::of(MEASURES);
        run()
    }
}

/// All devices for this thread, whose calls of one of them go to a tape.
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

/// Whether this thread captures or measures, on whatever device.
pub(super) fn is_inside() -> bool {
    INSIDE.get() != 0
}

impl Captures {
    fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Whether this thread captures on this device.
    pub(super) fn is_mine(&self) -> bool {
        INSIDE.get() == self.address()
    }

    /// The tape, when it is this thread that captures on this device. On another one it can ask for nothing meanwhile.
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

    /// As [`enter`], for what cannot be recorded.
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

    /// The second run begins.
    pub(super) fn record(&self) {
        if let Some(tape) = &mut *tape() {
            tape.recording = true;
        }
    }

    /// The number of launches and what they were given.
    pub(super) fn finish(&self) -> Result<(usize, Vec<Arc<Allocation>>)> {
        let tape = tape().take().unwrap_or_default();
        let differs = tape.differs.or((tape.again != tape.first.len()).then_some(OTHER_LAUNCHES));
        match differs {
            Some(what) => Err(CubeError::Capture { what }),
            None => Ok((tape.again, tape.given.into_values().collect())),
        }
    }

    /// Room that a capture has made before: of this many bytes, for this thread. `Ok(None)` when it has to be made.
    pub(super) fn room(&self, bytes: u64) -> Result<Option<Arc<Allocation>>> {
        let Some(mut mine) = self.mine()? else { return Ok(None) };
        let Some(tape) = &mut *mine else { return Ok(None) };
        match tape.free(bytes) {
            Some(free) => Ok(Some(Arc::clone(free))),
            None if tape.recording => Err(tape.differ("memory that its first run did not ask for")),
            None => Ok(None),
        }
    }

    /// Keeps room that was made in a first run.
    pub(super) fn keep(&self, allocation: &Arc<Allocation>) {
        if let Ok(Some(mut mine)) = self.mine()
            && let Some(tape) = &mut *mine
        {
            tape.room.push(Arc::clone(allocation));
        }
    }

    /// Keeps what a recorded launch is given. Memory of another device ends the capture.
    pub(super) fn give(&self, allocation: &Arc<Allocation>) {
        if let Ok(Some(mut mine)) = self.mine()
            && let Some(tape) = mine.as_mut().filter(|tape| tape.recording)
        {
            tape.given.entry(address(allocation)).or_insert_with(|| Arc::clone(allocation));
        }
    }

    /// Notes a launch; of a second run it has to be that of the first. `proven` says whether it may do without a wait.
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
