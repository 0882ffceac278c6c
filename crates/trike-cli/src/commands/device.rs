//! Device statistics of a command.

use serde::Serialize;
use trike::nn::DeviceUse;

/// Device memory and transfers; part of the schema of `trike run --json` and `trike bench --json`.
#[derive(Debug, Serialize)]
pub(crate) struct DeviceOutcome {
    /// Peak bytes allocated in buffers.
    pub(crate) peak_bytes: u64,
    /// Total device memory in bytes, if the runtime reports it.
    pub(crate) memory_bytes: Option<u64>,
    /// Copies to the device, not counting the weights.
    pub(crate) uploads: u64,
    pub(crate) uploaded_bytes: u64,
    /// Synchronizing copies back to the host.
    pub(crate) read_backs: u64,
    pub(crate) read_bytes: u64,
    /// Steps recorded as a graph, and steps executed by replaying one.
    pub(crate) captures: u64,
    pub(crate) replays: u64,
}

impl From<DeviceUse> for DeviceOutcome {
    fn from(used: DeviceUse) -> Self {
        Self {
            peak_bytes: used.peak,
            memory_bytes: used.total,
            uploads: used.uploads,
            uploaded_bytes: used.uploaded_bytes,
            read_backs: used.read_backs,
            read_bytes: used.read_bytes,
            captures: used.captures,
            replays: used.replays,
        }
    }
}
