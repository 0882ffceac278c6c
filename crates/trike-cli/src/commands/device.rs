//! What a command used of a device.

use serde::Serialize;
use trike::nn::DeviceUse;

/// Memory of a device and copies to and from it; part of the schema of `trike run --json` and `trike bench --json`.
#[derive(Debug, Serialize)]
pub(crate) struct DeviceOutcome {
    /// Bytes in buffers at most.
    pub(crate) peak_bytes: u64,
    /// Bytes that the device has, where its runtime says so.
    pub(crate) memory_bytes: Option<u64>,
    /// Copies to the device after the weights.
    pub(crate) uploads: u64,
    pub(crate) uploaded_bytes: u64,
    /// Times that something was waited for and copied back.
    pub(crate) read_backs: u64,
    pub(crate) read_bytes: u64,
    /// Steps that were recorded as a graph, and steps that were done by running one.
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
