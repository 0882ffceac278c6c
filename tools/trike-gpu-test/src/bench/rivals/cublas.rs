//! cuBLAS by `dlopen`, through cudarc.
//!
//! Halves travel as their bits: cudarc's own f16 would turn on a feature of `half` that rebuilds half of the workspace.

use anyhow::{Context, Result, bail};
use cudarc::cublas::CudaBlas;
use cudarc::cublas::result::gemm_ex;
use cudarc::cublas::sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
use cudarc::cublas::sys::cublasGemmAlgo_t;
use cudarc::cublas::sys::cublasOperation_t::{CUBLAS_OP_N, CUBLAS_OP_T};
use cudarc::cublas::sys::cudaDataType_t::CUDA_R_16F;
use cudarc::driver::sys::CUevent_flags::CU_EVENT_DEFAULT;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DevicePtrMut};
use half::f16;
use half::slice::HalfFloatSliceExt;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;
use trike_cube::{Cost, Device, DeviceSpec, Runtime};

use super::oracle::{Operands, cost};
use super::{CUBLAS, caught, reason};
use crate::bench::catalogue::Product;
use crate::bench::timer::{Sample, Timer};
use crate::bench::{Arithmetic, Record};

/// The library on a device.
pub(super) struct Library {
    stream: Arc<CudaStream>,
    blas: CudaBlas,
}

impl Library {
    /// Loads it for the device that is timed. CUDA and CubeCL share the device's primary context.
    pub(super) fn open(device: &Device) -> Result<Self> {
        let DeviceSpec::Numbered(Runtime::Cuda, index) = device.spec() else {
            bail!("{} is not reached through CUDA", device.spec());
        };
        // The default stream: with another one cudarc would record events at each launch.
        let stream = CudaContext::new(index)?.default_stream();
        let blas = CudaBlas::new(stream.clone())?;
        Ok(Self { stream, blas })
    }

    /// Times products that differ in their tokens alone.
    pub(super) fn products(
        &self,
        timer: &Timer<'_>,
        group: &[Product],
        rotate: usize,
        record: &mut Record<'_>,
    ) {
        let operands = Operands::new(group, rotate);
        let uploaded = caught(|| {
            let copy = |_| self.stream.clone_htod(operands.w.reinterpret_cast());
            let weights: Vec<CudaSlice<u16>> = (0..operands.copies).map(copy).collect::<Result<_, _>>()?;
            Ok((weights, self.stream.clone_htod(operands.x.reinterpret_cast())?))
        });
        for product in group {
            let measured = match &uploaded {
                Ok((weights, x)) => caught(|| self.product(timer, product, &operands, weights, x)),
                Err(e) => Err(anyhow::anyhow!("{e:#}")),
            };
            match measured {
                Ok(measured) => record.figure(&product.name(), CUBLAS, Arithmetic::F16, Ok(measured)),
                Err(e) => record.not_run(CUBLAS, Some(&product.name()), &reason(&e)),
            }
        }
    }

    fn product(
        &self,
        timer: &Timer<'_>,
        product: &Product,
        operands: &Operands,
        weights: &[CudaSlice<u16>],
        x: &CudaSlice<u16>,
    ) -> Result<(Sample, Cost, String)> {
        let &Product { rows, cols, tokens, .. } = product;
        let side = |n: usize| i32::try_from(n).context("a side of a product");
        let (m, n, k) = (side(rows)?, side(tokens)?, side(cols)?);
        let mut y = self.stream.clone_htod(&vec![f16::NAN.to_bits(); tokens * rows])?;
        let (one, zero) = (1.0f32, 0.0f32);
        let mut launch = |i: usize| -> Result<()> {
            let (w, _use) = weights[i % weights.len()].device_ptr(&self.stream);
            let (x, _use) = x.device_ptr(&self.stream);
            let (y, _use) = y.device_ptr_mut(&self.stream);
            // Column-major: the output is rows x tokens, the weights lie as cols x rows.
            // SAFETY: `w` has rows * cols halves, `x` at least tokens * cols and `y` tokens * rows (`Operands::new` and the
            // lines above), which is what the sides say, and the library's stream is theirs.
            unsafe {
                gemm_ex(
                    *self.blas.handle(),
                    CUBLAS_OP_T,
                    CUBLAS_OP_N,
                    m,
                    n,
                    k,
                    (&raw const one).cast(),
                    w as *const c_void,
                    CUDA_R_16F,
                    k,
                    x as *const c_void,
                    CUDA_R_16F,
                    k,
                    (&raw const zero).cast(),
                    y as *mut c_void,
                    CUDA_R_16F,
                    m,
                    CUBLAS_COMPUTE_32F,
                    cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
                )
            }?;
            Ok(())
        };
        launch(0)?;
        let sample = timer.median_by(|launches, first| {
            let start = self.stream.record_event(Some(CU_EVENT_DEFAULT))?;
            (first..first + launches).try_for_each(&mut launch)?;
            let end = self.stream.record_event(Some(CU_EVENT_DEFAULT))?;
            Ok(Duration::from_secs_f64(f64::from(start.elapsed_ms(&end)?) / 1e3))
        })?;
        let y: Vec<f16> = self.stream.clone_dtoh(&y)?.into_iter().map(f16::from_bits).collect();
        operands.check(product, &y)?;
        Ok((sample, cost(product), "default algorithm".to_owned()))
    }
}
