//! The product of a ternary linear layer on a device.

use std::sync::Arc;

use trike_cpu::ActivationPrecision;
use trike_cube::Device;
use trike_trit::TritTensor;

use crate::{Backend, CubeBackend, CubeMatrix, DeviceUse, NnError, Tensor};

/// Weights on a device, and the way there.
#[derive(Debug)]
pub(super) struct OnDevice {
    backend: CubeBackend,
    weight: Arc<CubeMatrix>,
    cols: usize,
}

impl OnDevice {
    pub(super) fn load(
        device: &Device,
        weight: &TritTensor,
        activations: ActivationPrecision,
    ) -> Result<Self, NnError> {
        let backend = CubeBackend::new(device.clone(), activations);
        let on_device = backend.load_matrix(Tensor::Ternary(weight.clone()))?;
        Ok(Self { backend, weight: Arc::new(on_device), cols: weight.cols() })
    }

    pub(super) fn with_activations(&self, activations: ActivationPrecision) -> Self {
        let backend = CubeBackend::new(self.backend.device().clone(), activations);
        Self { backend, weight: Arc::clone(&self.weight), cols: self.cols }
    }

    /// `x W^T` of whole rows: one copy there and one back.
    pub(super) fn linear(&self, x: &[f32]) -> Result<Vec<f32>, NnError> {
        if x.is_empty() {
            return Ok(Vec::new());
        }
        let x = self.backend.upload(x, self.cols)?;
        let mut outs = self.backend.linear(&x, &[&*self.weight])?;
        let missing = NnError::Shape { what: "products of a layer", expected: 1, got: 0 };
        self.backend.to_host(&outs.pop().ok_or(missing)?)
    }

    pub(super) fn used(&self) -> Option<DeviceUse> {
        self.backend.device_use()
    }
}
