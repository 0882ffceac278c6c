//! The product of a ternary linear layer on a device.

use std::sync::Arc;

use trike_cpu::ActivationPrecision;
use trike_trit::TritTensor;

use trike_core::Tensor;
use trike_nn::cube::CubeDevice;
use trike_nn::{
    Backend, BackendOps, BackendTransfers, BackendWeights, CubeBackend, CubeMatrix, DeviceUse, NnError,
};

use crate::CandleError;

/// Weights on a device, with the backend that multiplies them.
#[derive(Debug)]
pub(crate) struct OnDevice {
    backend: CubeBackend,
    weight: Arc<CubeMatrix>,
    cols: usize,
}

impl OnDevice {
    pub(crate) fn load(
        device: &CubeDevice,
        weight: &TritTensor,
        activations: ActivationPrecision,
    ) -> Result<Self, CandleError> {
        let backend = CubeBackend::new(device.clone(), activations);
        let on_device = backend.load_matrix(Tensor::Ternary(weight.clone()))?;
        Ok(Self { backend, weight: Arc::new(on_device), cols: weight.cols() })
    }

    pub(crate) fn with_activations(&self, activations: ActivationPrecision) -> Self {
        let backend = CubeBackend::new(self.backend.device().clone(), activations);
        Self { backend, weight: Arc::clone(&self.weight), cols: self.cols }
    }

    /// `x W^T`: one copy to the device and one back.
    pub(crate) fn linear(&self, x: &[f32]) -> Result<Vec<f32>, CandleError> {
        if x.is_empty() {
            return Ok(Vec::new());
        }
        let x = self.backend.upload(x, self.cols)?;
        let mut outs = self.backend.linear(&x, &[&*self.weight])?;
        let missing = NnError::Shape { what: "products of a layer", expected: 1, got: 0 };
        Ok(self.backend.to_host(&outs.pop().ok_or(missing)?)?)
    }

    pub(crate) fn used(&self) -> Option<DeviceUse> {
        self.backend.device_use()
    }
}
