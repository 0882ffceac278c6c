//! Tensors to and from the host, and the inputs of a step.

use super::BackendBase;
use crate::{NnError, StepInputs};

/// Tensors between the host, a backend and its stages, and the inputs of a step.
pub trait BackendTransfers: BackendBase {
    /// A copy, in the memory of this stage, of a tensor of `width` columns of the stage `from`.
    ///
    /// # Errors
    ///
    /// When a device fails or has too little memory.
    fn receive(&self, from: &Self, x: &Self::Tensor, width: usize) -> Result<Self::Tensor, NnError> {
        self.upload(&from.to_host(x)?, width)
    }

    /// Copies rows of `width` values, row-major, from the host.
    ///
    /// # Errors
    ///
    /// [`NnError::Rows`] unless `values` is a whole number of rows, and errors of the device.
    fn upload(&self, values: &[f32], width: usize) -> Result<Self::Tensor, NnError>;

    /// Copies a tensor to the host, row-major.
    ///
    /// # Errors
    ///
    /// When the device fails.
    fn to_host(&self, x: &Self::Tensor) -> Result<Vec<f32>, NnError>;

    /// [`to_host`](Self::to_host) that consumes the tensor: without a copy if it is in host memory.
    ///
    /// # Errors
    ///
    /// When the device fails.
    fn move_to_host(&self, x: Self::Tensor) -> Result<Vec<f32>, NnError> {
        self.to_host(&x)
    }

    /// Copies the inputs of a step to the backend's memory, once per step.
    ///
    /// # Errors
    ///
    /// When the device fails.
    fn inputs(&self, inputs: StepInputs) -> Result<Self::Inputs, NnError>;
}
