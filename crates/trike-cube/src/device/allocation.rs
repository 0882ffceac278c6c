//! Allocations of a device, and the state shared with its buffers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cubecl::server::Handle;

/// Bytes allocated by the buffers of a device.
#[derive(Debug, Default)]
pub(super) struct Counter {
    now: AtomicU64,
    peak: AtomicU64,
}

impl Counter {
    pub(super) fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    pub(super) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    fn add(&self, bytes: u64) {
        let now = self.now.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(now, Ordering::Relaxed);
    }
}

/// State shared by the clones of a device and its buffers.
#[derive(Debug, Default)]
pub(super) struct Common {
    pub(super) counter: Counter,
    /// Kernels launched so far.
    pub(super) launches: AtomicU64,
    pub(super) captures: Captures,
    /// Maximum bytes in buffers.
    pub(super) limit: Option<u64>,
}

/// One allocation, freed when the last buffer over it is dropped.
#[derive(Debug)]
pub(super) struct Allocation {
    handle: Handle,
    bytes: u64,
    common: Arc<Common>,
}

impl Allocation {
    pub(super) fn new(handle: Handle, bytes: u64, common: &Arc<Common>) -> Self {
        common.counter.add(bytes);
        Self { handle, bytes, common: Arc::clone(common) }
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Whether the memory belongs to the device with this state.
    pub(super) fn is_of(&self, common: &Arc<Common>) -> bool {
        Arc::ptr_eq(&self.common, common)
    }

    pub(super) fn captures(&self) -> &Captures {
        &self.common.captures
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.common.counter.now.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Identity of a device and its allocations: its address tells to which device a capture belongs.
#[derive(Debug, Default)]
pub(super) struct Captures {
    _place: u8,
}
