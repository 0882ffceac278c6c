//! Launches that are recorded once and run again with one call.

use std::sync::Arc;

use cubecl::client::Client;

use super::allocation::Allocation;
use super::capture::{close, enter, is_inside};
use super::{Device, DeviceSpec, Runtime, guarded};
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
        self.common.captures.is_mine()
    }
}

/// What a runtime has. It is asked, because harnesses stand behind the names of runtimes, too.
pub(super) fn supported(client: &Client, spec: DeviceSpec) -> Graphs {
    let graphs = match spec {
        DeviceSpec::Numbered(Runtime::Cuda | Runtime::Hip, _) => Graphs::Hardware,
        DeviceSpec::Numbered(Runtime::Metal | Runtime::Vulkan | Runtime::Wgpu, _) => Graphs::Software,
        _ => return Graphs::None,
    };
    if is_inside() {
        return Graphs::None;
    }
    let _gate = close();
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
