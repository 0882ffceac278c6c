//! Launches recorded once and replayed with one call.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use cubecl::client::Client;

use super::buffer::Allocation;
use super::{Buffer, Device, DeviceSpec, Element, Launch, Runtime, guarded};
use crate::capabilities::Graphs;
use crate::error::{CubeError, Result};

/// Launches recorded by [`Device::capture`]: each replay runs the same kernels over the same memory.
///
/// Overwrite the inputs between two replays with [`Device::write`]; read the outputs afterwards. The graph keeps all memory of
/// its launches alive, even after the buffers are dropped; the memory is freed with the last graph over it.
#[derive(Debug)]
pub struct Graph {
    /// `None` only during drop: the recording is dropped before the memory it uses.
    recorded: Option<cubecl::client::Graph>,
    device: Device,
    launches: usize,
    /// Every allocation used by a recorded launch.
    kept: Vec<Arc<Allocation>>,
}

impl Graph {
    /// Enqueues the recorded launches without waiting for them, like other launches.
    ///
    /// # Errors
    ///
    /// [`CubeError::Capture`] within a capture, [`CubeError::Device`] when the device is lost.
    pub fn replay(&self) -> Result<()> {
        let _turn = self.device.common.captures.enter_to("a replay")?;
        let Some(recorded) = &self.recorded else { return Ok(()) };
        self.device.wait("replaying a graph", || {
            // SAFETY: all memory that the launches use is in `kept` (`Buffer::handle_of_launch` registered each allocation, and
            // nothing else creates arguments), and it is used only through the single queue of its device, on which they were
            // recorded.
            unsafe { recorded.replay() }
        })
    }

    /// Number of recorded launches.
    #[must_use]
    pub fn launches(&self) -> usize {
        self.launches
    }

    /// Bytes of the memory kept alive by the graph.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.kept.iter().map(|allocation| allocation.bytes()).sum()
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // Dropping a graph may wait for the queue, which would end the capture of another thread.
        let _turn = enter();
        self.recorded = None;
    }
}

impl Device {
    /// Runs `run` twice: first normally, then to record its launches. Returns the recording and the result of the second run,
    /// whose buffers receive the outputs of each [`Graph::replay`].
    ///
    /// `run` may only launch kernels and allocate with [`Device::empty`]: a copy or a wait fails with [`CubeError::Capture`].
    /// Both runs must perform the same launches, so control flow must not depend on device data, and launching twice must be
    /// harmless. Memory is allocated in the first run and reused in the second.
    ///
    /// Other threads block on calls to any device until the capture ends, so `run` must not wait for them or for a lock that
    /// they may hold.
    ///
    /// ```no_run
    /// use trike_cube::{CubeError, Device, DeviceSpec};
    ///
    /// let device = Device::open(DeviceSpec::Auto)?;
    /// let out = device.upload(&[0u32; 4])?;
    /// let (graph, ()) = device.capture(|| device.fill(&out, 7))?;
    /// device.write(&out, &[0; 4])?;
    /// graph.replay()?;
    /// assert_eq!(device.read(&out)?, [7; 4]);
    /// # Ok::<(), CubeError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of `run`, [`CubeError::Feature`] on a device without graphs, [`CubeError::Capture`] for an operation that
    /// cannot be recorded or when the two runs differ, [`CubeError::Device`] when the runtime fails. After an error nothing is
    /// recorded, and the device stays usable.
    pub fn capture<T, E: From<CubeError>>(
        &self,
        mut run: impl FnMut() -> std::result::Result<T, E>,
    ) -> std::result::Result<(Graph, T), E> {
        if self.capabilities.graphs == Graphs::None {
            let device = self.name().to_owned();
            return Err(CubeError::Feature { kernel: "capture", feature: "graphs", device }.into());
        }
        let captures = &self.common.captures;
        let alone = captures.alone()?;
        let mut window = Window { device: self, open: true };
        self.wait("preparing a capture", || self.client.graph_prepare())?;
        drop(run()?);
        self.wait("starting a capture", || self.client.start_capture())?;
        captures.record();
        let made = run()?;
        let recorded = window.seal()?;
        // From here on an error drops a complete graph.
        let (launches, kept) = captures.finish()?;
        drop(alone);
        Ok((Graph { recorded: Some(recorded), device: self.clone(), launches, kept }, made))
    }

    /// Returns true if this thread is capturing: operations with arguments that a replay cannot change are errors then.
    pub(crate) fn is_capturing(&self) -> bool {
        INSIDE.get() == self.common.captures.address()
    }
}

/// Graph support of a runtime. It is probed, because test harnesses also use the names of runtimes.
pub(super) fn supported(client: &Client, spec: DeviceSpec) -> Graphs {
    let graphs = match spec {
        DeviceSpec::Numbered(Runtime::Cuda | Runtime::Hip, _) => Graphs::Hardware,
        DeviceSpec::Numbered(Runtime::Metal | Runtime::Vulkan | Runtime::Wgpu, _) => Graphs::Software,
        _ => return Graphs::None,
    };
    if INSIDE.get() != 0 {
        return Graphs::None;
    }
    let _gate = GATE.write().unwrap_or_else(PoisonError::into_inner);
    let started = guarded(|| client.graph_prepare().and_then(|()| client.start_capture()));
    // `started` says if there was a capture to end.
    let _ = guarded(|| client.stop_capture());
    if matches!(started, Ok(Ok(()))) { graphs } else { Graphs::None }
}

/// A capture of the runtime, ended on drop at the latest.
struct Window<'a> {
    device: &'a Device,
    open: bool,
}

impl Window<'_> {
    fn seal(&mut self) -> Result<cubecl::client::Graph> {
        self.open = false;
        self.device.wait("ending a capture", || self.device.client.stop_capture())
    }
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        if self.open {
            // The recording is discarded; the original error is already being returned.
            let _ = self.seal();
        }
    }
}

/// Write-locked during a capture, read-locked during a call to a device.
///
/// One lock for all devices of the process: launches of other threads must not be recorded, streams of a runtime share a
/// recording, and CUDA ends a capture when any thread of the process waits or allocates. Work still queued on another GPU is
/// not waited for: a late allocation there can end a capture, after which steps are launched one by one.
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

/// Identity of a device and its allocations: its address tells to which device a capture belongs.
#[derive(Debug, Default)]
pub(super) struct Captures {
    _place: u8,
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
    /// Allocations of the first run, reused when nothing else holds them.
    room: Vec<Arc<Allocation>>,
    /// Allocations used by the recorded launches, by address.
    given: HashMap<usize, Arc<Allocation>>,
    /// Kernels and grids of the first run.
    first: Vec<(u64, [u32; 3])>,
    /// Number of them repeated by the second run.
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

/// Permission to call a device.
pub(super) struct Turn(#[expect(dead_code, reason = "held, not read")] Option<RwLockReadGuard<'static, ()>>);

/// Waits for the capture of another thread.
pub(super) fn enter() -> Turn {
    let inside = INSIDE.get() != 0;
    Turn((!inside).then(|| GATE.read().unwrap_or_else(PoisonError::into_inner)))
}

/// As [`enter`], for operations not allowed within a capture or a measurement.
pub(super) fn enter_to_measure() -> Result<Turn> {
    if INSIDE.get() == 0 { Ok(enter()) } else { Err(CubeError::Capture { what: NESTED }) }
}

/// Wraps the measured closure. The runtime may call it from another thread, which must not wait for the gate.
pub(super) fn measured<T>(run: impl FnOnce() -> T) -> impl FnOnce() -> T {
    || {
        let _inside = Inside::of(MEASURES);
        run()
    }
}

/// Exclusive access of this thread to all devices; its calls to one of them are recorded on the tape.
struct Alone {
    _inside: Inside,
    _gate: RwLockWriteGuard<'static, ()>,
}

impl Drop for Alone {
    fn drop(&mut self) {
        let gone = tape().take();
        drop(gone);
    }
}

impl Captures {
    fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
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

    fn alone(&self) -> Result<Alone> {
        if INSIDE.get() != 0 {
            return Err(CubeError::Capture { what: NESTED });
        }
        let gate = GATE.write().unwrap_or_else(PoisonError::into_inner);
        *tape() = Some(Tape::default());
        Ok(Alone { _inside: Inside::of(self.address()), _gate: gate })
    }

    /// Starts the second run.
    fn record(&self) {
        if let Some(tape) = &mut *tape() {
            tape.recording = true;
        }
    }

    /// The number of launches and their allocations.
    fn finish(&self) -> Result<(usize, Vec<Arc<Allocation>>)> {
        let tape = tape().take().unwrap_or_default();
        let differs = tape.differs.or((tape.again != tape.first.len()).then_some(OTHER_LAUNCHES));
        match differs {
            Some(what) => Err(CubeError::Capture { what }),
            None => Ok((tape.again, tape.given.into_values().collect())),
        }
    }

    /// Memory of `bytes` bytes that this thread's capture has allocated before; `Ok(None)` if it must be allocated.
    pub(super) fn room<T: Element>(&self, bytes: u64, alignment: u64) -> Result<Option<Buffer<T>>> {
        let Some(mut mine) = self.mine()? else { return Ok(None) };
        let Some(tape) = &mut *mine else { return Ok(None) };
        match tape.free(bytes) {
            Some(free) => Ok(Some(Buffer::whole(Arc::clone(free), alignment))),
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
