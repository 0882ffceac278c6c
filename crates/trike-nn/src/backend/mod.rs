//! The hardware that a decoder runs on.

mod base;
mod caches;
mod capabilities;
mod ops;
mod placement;
mod steps;
mod transfers;
mod weights;

pub use self::base::BackendBase;
pub use self::caches::BackendCaches;
pub(crate) use self::caches::{no_pages, no_saved_caches};
pub use self::capabilities::CacheCapabilities;
pub use self::ops::{BackendOps, Input, Norm};
pub use self::placement::BackendPlacement;
pub(crate) use self::steps::logits_of;
#[cfg(feature = "gpu")]
pub(crate) use self::steps::split;
pub use self::steps::{BackendSteps, RunStep, StepCaches, TokenStep};
pub use self::transfers::BackendTransfers;
pub use self::weights::{BackendWeights, MatrixEdit};
use crate::{ActivationPolicy, DeviceUse, KernelTuning, NnError};

/// The hardware that a decoder runs on: operations, weights, caches, transfers, recorded steps and placement as separate traits,
/// and its properties.
pub trait Backend:
    BackendOps + BackendWeights + BackendCaches + BackendTransfers + BackendSteps + BackendPlacement
{
    /// The activation precision of ternary layers.
    fn activations(&self) -> ActivationPolicy;

    /// Memory and traffic of a device; `None` on the host.
    fn device_use(&self) -> Option<DeviceUse> {
        None
    }

    /// [`device_use`](Self::device_use) of each device, with its name; empty on the host.
    fn device_uses(&self) -> Vec<(String, DeviceUse)> {
        self.device_use().map(|used| (self.name(), used)).into_iter().collect()
    }

    /// Autotunes the matmul kernels of all loaded ternary matrices for each batch size in `tokens`. `progress` is called with the
    /// number of products measured so far and in total. Without effect on a backend with one kernel per product, such as the host.
    ///
    /// # Errors
    ///
    /// When the device is lost or lacks memory for the activations of that many tokens.
    fn tune(
        &self,
        tokens: &[usize],
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<KernelTuning, NnError> {
        let _ = (tokens, progress);
        Ok(KernelTuning::default())
    }

    /// Capabilities of the backend's KV caches.
    fn capabilities(&self) -> CacheCapabilities;
}
