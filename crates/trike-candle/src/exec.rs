//! The shared executor, and checks of inputs.

use std::sync::OnceLock;

use candle_core::{CpuStorage, DType, Device, Layout, Tensor};
use trike_cpu::Cpu;

use crate::{CandleError, NnError};

/// The default executor of every module: one thread per physical core, started once.
///
/// # Errors
///
/// [`HostError::Threads`](trike_cpu::HostError::Threads) if the threads cannot be started.
///
/// ```
/// let cpu = trike_candle::shared_cpu()?;
/// assert!(cpu.threads() >= 1);
/// # Ok::<(), trike_candle::CandleError>(())
/// ```
pub fn shared_cpu() -> Result<Cpu, CandleError> {
    static SHARED: OnceLock<Cpu> = OnceLock::new();
    if let Some(cpu) = SHARED.get() {
        return Ok(cpu.clone());
    }
    let cpu = Cpu::new(0)?;
    Ok(SHARED.get_or_init(|| cpu).clone())
}

/// Returns an error for tensors on other devices: the kernels read host memory, and copying back and forth in every call
/// would cost more than the kernels save.
pub(crate) fn check_device(device: &Device) -> Result<(), CandleError> {
    let got = match device {
        Device::Cpu => return Ok(()),
        Device::Cuda(_) => "CUDA",
        Device::Metal(_) => "Metal",
    };
    let rule = "must be the CPU: copy the tensor to the CPU first";
    Err(NnError::Spec { field: "device", rule, got: got.to_owned() }.into())
}

/// `x` as contiguous f32, by differentiable operations.
pub(crate) fn to_f32(x: &Tensor) -> Result<Tensor, CandleError> {
    check_device(x.device())?;
    if !matches!(x.dtype(), DType::F32 | DType::F16 | DType::BF16) {
        let rule = "must be f32, f16 or bf16";
        return Err(NnError::Spec { field: "dtype", rule, got: format!("{:?}", x.dtype()) }.into());
    }
    Ok(x.to_dtype(DType::F32)?.contiguous()?)
}

/// Checks the length of the last axis.
pub(crate) fn check_width(what: &'static str, x: &Tensor, expected: usize) -> Result<(), CandleError> {
    // A scalar has no axis, and no module accepts a width of zero.
    check_len(what, expected, x.dims().last().copied().unwrap_or(0))
}

pub(crate) fn check_len(what: &'static str, expected: usize, got: usize) -> Result<(), CandleError> {
    if expected == got { Ok(()) } else { Err(NnError::Shape { what, expected, got }.into()) }
}

/// Checks that all values are finite; `field` names one of them.
pub(crate) fn check_finite(field: &'static str, values: &[f32]) -> Result<(), CandleError> {
    match values.iter().position(|v| !v.is_finite()) {
        None => Ok(()),
        Some(index) => {
            let got = format!("{} at index {index}", values[index]);
            Err(NnError::Spec { field, rule: "must be finite", got }.into())
        }
    }
}

/// The elements of an argument of a custom operation, made contiguous by [`to_f32`].
pub(crate) fn floats<'a>(
    op: &'static str,
    storage: &'a CpuStorage,
    layout: &Layout,
) -> candle_core::Result<&'a [f32]> {
    let (start, end) = layout.contiguous_offsets().ok_or(candle_core::Error::RequiresContiguous { op })?;
    Ok(&storage.as_slice::<f32>()?[start..end])
}

/// Checks that no tensor is tracked for gradients.
pub(crate) fn check_untracked(
    field: &'static str,
    rule: &'static str,
    tensors: &[&Tensor],
) -> Result<(), CandleError> {
    if tensors.iter().any(|x| x.track_op()) {
        return Err(NnError::Spec { field, rule, got: "a tracked tensor".to_owned() }.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use candle_core::{CudaDevice, Device};

    use super::check_device;

    #[test]
    fn other_devices_are_refused_by_name() {
        assert!(check_device(&Device::Cpu).is_ok());
        // Without Candle's `cuda` feature this is a dummy device.
        let error = check_device(&Device::Cuda(CudaDevice)).map_err(|e| e.to_string());
        assert!(error.is_err_and(|e| e.contains("must be the CPU") && e.contains("got CUDA")));
    }
}
