//! Device statistics of a command.

use serde::Serialize;
use trike::{Model, nn::DeviceUse};

/// Memory and transfers of a device, or totals over all devices; part of the schema of `trike run --json` and `trike bench --json`.
#[derive(Debug, Serialize)]
pub(crate) struct DeviceOutcome {
    #[serde(flatten)]
    pub(crate) used: Used,
    /// Each device, if the layers of the model are divided between several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) devices: Vec<NamedUse>,
}

/// Memory and transfers of one of several devices.
#[derive(Debug, Serialize)]
pub(crate) struct NamedUse {
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) used: Used,
}

/// Memory and transfers.
#[derive(Debug, Serialize)]
pub(crate) struct Used {
    /// Peak bytes allocated in buffers.
    pub(crate) peak_bytes: u64,
    /// Bytes reserved by the runtime, and those in no buffer (free lists and fragmentation).
    pub(crate) reserved_bytes: u64,
    pub(crate) unused_bytes: u64,
    /// Total device memory in bytes, if the runtime reports it.
    pub(crate) memory_bytes: Option<u64>,
    /// Copies to the device, not counting the weights.
    pub(crate) uploads: u64,
    pub(crate) uploaded_bytes: u64,
    /// Synchronizing copies back to the host.
    pub(crate) read_backs: u64,
    pub(crate) read_bytes: u64,
    /// Copies of activations from another device.
    pub(crate) transfers: u64,
    pub(crate) transferred_bytes: u64,
    /// Steps recorded as a graph, and steps executed by replaying one.
    pub(crate) captures: u64,
    pub(crate) replays: u64,
}

impl DeviceOutcome {
    /// The statistics of a model; `None` on the CPU.
    pub(crate) fn of(model: &dyn Model) -> Option<Self> {
        let used = model.device_use()?.into();
        let mut devices = model.device_uses();
        if devices.len() == 1 {
            devices.clear();
        }
        let devices = devices.into_iter().map(|(name, used)| NamedUse { name, used: used.into() }).collect();
        Some(Self { used, devices })
    }
}

impl From<DeviceUse> for Used {
    fn from(used: DeviceUse) -> Self {
        Self {
            peak_bytes: used.peak,
            reserved_bytes: used.reserved,
            unused_bytes: used.unused(),
            memory_bytes: used.total,
            uploads: used.uploads,
            uploaded_bytes: used.uploaded_bytes,
            read_backs: used.read_backs,
            read_bytes: used.read_bytes,
            transfers: used.transfers,
            transferred_bytes: used.transferred_bytes,
            captures: used.captures,
            replays: used.replays,
        }
    }
}
