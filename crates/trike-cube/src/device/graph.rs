//! Launches that are recorded once and run again with one call.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use cubecl::client::Client;

use super::buffer::Allocation;
use super::{Buffer, Device, DeviceSpec, Element, Launch, Runtime, guarded};
use crate::capabilities::Graphs;
use crate::error::{CubeError, Result};

/// Launches that [`Device::capture`] recorded: the same kernels over the same memory each time.
///
/// What they read is overwritten between two replays with [`Device::write`], what they leave is read afterwards. The graph
/// keeps all memory that its launches were given, whatever becomes of the buffers. The last graph over some memory gives it
/// back when it is dropped.
#[derive(Debug)]
pub struct Graph {
    /// Gone only while the graph is dropped, and before what it was recorded over.
    recorded: Option<cubecl::client::Graph>,
    device: Device,
    launches: usize,
    /// Every allocation that a recorded launch was given.
    kept: Vec<Arc<Allocation>>,
}

impl Graph {
    /// Adds the recorded launches to the queue. Nothing waits for them, as with other launches.
    ///
    /// # Errors
    ///
    /// [`CubeError::Capture`] inside of a capture, [`CubeError::Device`] when the device is lost.
    pub fn replay(&self) -> Result<()> {
        let _turn = self.device.common.captures.enter_to("a replay")?;
        let Some(recorded) = &self.recorded else { return Ok(()) };
        self.device.wait("replaying a graph", || {
            // SAFETY: all memory that the launches use is in `kept` (`Buffer::handle_of_launch` saw each of them, and nothing
            // else makes arguments), and it is used through the one queue of its device, on which they were recorded.
            unsafe { recorded.replay() }
        })
    }

    /// How many launches were recorded.
    #[must_use]
    pub fn launches(&self) -> usize {
        self.launches
    }

    /// Bytes of the memory that the graph keeps.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.kept.iter().map(|allocation| allocation.bytes()).sum()
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // Giving a graph back may wait for the queue, which would end the capture of another thread.
        let _turn = enter();
        self.recorded = None;
    }
}

impl Device {
    /// Runs `run` twice: for real, and once more so that what it launches is recorded. Returns the recording, and what the second
    /// run made: buffers that hold what the next [`Graph::replay`] leaves in them.
    ///
    /// `run` launches and makes room with [`Device::empty`], and nothing else: a copy or a wait ends it with
    /// [`CubeError::Capture`]. Both runs have to launch the same, so it must not decide by what it finds on the device, and
    /// launching twice must do no harm. What it makes room for is made in the first run and handed out again in the second.
    ///
    /// Other threads wait with what they want of any device until the capture is over, so `run` must not wait for them, nor for
    /// a lock that they hold meanwhile.
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
    /// What `run` says, [`CubeError::Feature`] on a device without graphs, [`CubeError::Capture`] for what cannot be recorded
    /// and when the two runs differ, [`CubeError::Device`] when the runtime refuses. After an error nothing is recorded, and the
    /// device goes on.
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
        // From here on an error drops a whole graph.
        let (launches, kept) = captures.finish()?;
        drop(alone);
        Ok((Graph { recorded: Some(recorded), device: self.clone(), launches, kept }, made))
    }

    /// Whether this thread captures: operations whose arguments a replay could not change refuse then.
    pub(crate) fn is_capturing(&self) -> bool {
        INSIDE.get() == self.common.captures.address()
    }
}

/// What a runtime has. It is asked, because harnesses stand behind the names of runtimes, too.
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
    // Whether there was one to end is what `started` says.
    let _ = guarded(|| client.stop_capture());
    if matches!(started, Ok(Ok(()))) { graphs } else { Graphs::None }
}

/// A capture of the runtime, which is ended however it ends.
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
            // What it would have recorded is not wanted, and the reason is being returned already.
            let _ = self.seal();
        }
    }
}

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

/// Stands for a device and all that was made on it: its address says whose capture one is.
#[derive(Debug, Default)]
pub(super) struct Captures {
    _place: u8,
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
    let inside = INSIDE.get() != 0;
    Turn((!inside).then(|| GATE.read().unwrap_or_else(PoisonError::into_inner)))
}

/// As [`enter`], for what has to be neither inside of a capture nor of a measurement.
pub(super) fn enter_to_measure() -> Result<Turn> {
    if INSIDE.get() == 0 { Ok(enter()) } else { Err(CubeError::Capture { what: NESTED }) }
}

/// Runs what is measured without a capture in between. The runtime may call `run` from a thread of its own, which is let in.
pub(super) fn measured<T>(run: impl FnOnce() -> T) -> impl FnOnce() -> T {
    || {
        let _inside = Inside::of(MEASURES);
        run()
    }
}

/// All devices for this thread, whose calls of one of them go to a tape.
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

    fn alone(&self) -> Result<Alone> {
        if INSIDE.get() != 0 {
            return Err(CubeError::Capture { what: NESTED });
        }
        let gate = GATE.write().unwrap_or_else(PoisonError::into_inner);
        *tape() = Some(Tape::default());
        Ok(Alone { _inside: Inside::of(self.address()), _gate: gate })
    }

    /// The second run begins.
    fn record(&self) {
        if let Some(tape) = &mut *tape() {
            tape.recording = true;
        }
    }

    /// The number of launches and what they were given.
    fn finish(&self) -> Result<(usize, Vec<Arc<Allocation>>)> {
        let tape = tape().take().unwrap_or_default();
        let differs = tape.differs.or((tape.again != tape.first.len()).then_some(OTHER_LAUNCHES));
        match differs {
            Some(what) => Err(CubeError::Capture { what }),
            None => Ok((tape.again, tape.given.into_values().collect())),
        }
    }

    /// Room that a capture has made before: of this many bytes, for this thread. `Ok(None)` when it has to be made.
    pub(super) fn room<T: Element>(&self, bytes: u64, alignment: u64) -> Result<Option<Buffer<T>>> {
        let Some(mut mine) = self.mine()? else { return Ok(None) };
        let Some(tape) = &mut *mine else { return Ok(None) };
        match tape.free(bytes) {
            Some(free) => Ok(Some(Buffer::whole(Arc::clone(free), alignment))),
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
