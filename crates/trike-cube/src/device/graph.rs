//! Launches recorded once and replayed with one call.

use std::sync::Arc;

use cubecl::client::Client;

use super::allocation::Allocation;
use super::capture::{close, enter, is_inside};
use super::{CubeDevice, DeviceSpec, Runtime, guarded};
use crate::capabilities::Graphs;
use crate::error::{CubeError, Result};

/// Launches recorded by [`CubeDevice::capture`]: each replay runs the same kernels over the same memory.
///
/// Overwrite the inputs between two replays with [`CubeDevice::write`]; read the outputs afterwards. The graph keeps all memory of
/// its launches alive, even after the buffers are dropped; the memory is freed with the last graph over it.
#[derive(Debug)]
pub struct LaunchGraph {
    /// `None` only during drop: the recording is dropped before the memory it uses.
    recorded: Option<cubecl::client::Graph>,
    device: CubeDevice,
    launches: usize,
    /// Every allocation used by a recorded launch.
    kept: Vec<Arc<Allocation>>,
}

impl LaunchGraph {
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

impl Drop for LaunchGraph {
    fn drop(&mut self) {
        // Dropping a graph may wait for the queue, which would end the capture of another thread.
        let _turn = enter();
        self.recorded = None;
    }
}

impl CubeDevice {
    /// Runs `run` twice: first normally, then to record its launches. Returns the recording and the result of the second run,
    /// whose buffers receive the outputs of each [`LaunchGraph::replay`].
    ///
    /// `run` may only launch kernels and allocate with [`CubeDevice::empty`]: a copy or a wait fails with [`CubeError::Capture`].
    /// Both runs must perform the same launches, so control flow must not depend on device data, and launching twice must be
    /// harmless. Memory is allocated in the first run and reused in the second.
    ///
    /// Other threads block on calls to any device until the capture ends, so `run` must not wait for them or for a lock that they
    /// may hold.
    ///
    /// ```no_run
    /// use trike_cube::{CubeDevice, CubeError, DeviceSpec};
    ///
    /// let device = CubeDevice::open(DeviceSpec::Auto)?;
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
    ) -> std::result::Result<(LaunchGraph, T), E> {
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
        Ok((LaunchGraph { recorded: Some(recorded), device: self.clone(), launches, kept }, made))
    }

    /// Returns true if this thread is capturing: operations with arguments that a replay cannot change are errors then.
    pub(crate) fn is_capturing(&self) -> bool {
        self.common.captures.is_mine()
    }
}

/// Graph support of a runtime. It is probed, because test harnesses also use the names of runtimes.
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
    // `started` says if there was a capture to end.
    let _ = guarded(|| client.stop_capture());
    if matches!(started, Ok(Ok(()))) { graphs } else { Graphs::None }
}

/// A capture of the runtime, ended on drop at the latest.
struct Window<'a> {
    device: &'a CubeDevice,
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
