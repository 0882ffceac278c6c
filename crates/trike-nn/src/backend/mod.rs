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

/// The hardware that a decoder runs on: operations, weights, caches, transfers, recorded steps and placement, each a trait of its own,
/// and what describes the backend.
pub trait Backend:
    BackendOps + BackendWeights + BackendCaches + BackendTransfers + BackendSteps + BackendPlacement
{
    /// The activation precision of ternary layers.
    fn activations(&self) -> ActivationPolicy;

    /// Memory and traffic of a device; `None` on the host.
    fn device_use(&self) -> Option<DeviceUse> {
        None
    }

    /// [`device_use`](Self::device_use) of each device by itself, with its name; empty on the host.
    fn device_uses(&self) -> Vec<(String, DeviceUse)> {
        self.device_use().map(|used| (self.name(), used)).into_iter().collect()
    }

    /// Times the kernels for products of the loaded ternary matrices with so many tokens, and uses the fastest of each from now on.
    /// `progress` is called with the products measured and in total. Without effect on a backend that has no such choice, such as
    /// the host.
    ///
    /// # Errors
    ///
    /// When the device is lost or has no memory for the activations of so many tokens.
    fn tune(
        &self,
        tokens: &[usize],
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<KernelTuning, NnError> {
        let _ = (tokens, progress);
        Ok(KernelTuning::default())
    }

    /// What KV caches of the backend can do.
    fn capabilities(&self) -> CacheCapabilities;
}
