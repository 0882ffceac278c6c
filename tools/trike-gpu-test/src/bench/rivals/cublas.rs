//! cuBLAS, loaded at run time (`dlopen`) through cudarc.
//!
//! FP16 values are passed as `u16`: cudarc's `f16` support would enable a feature of `half` and rebuild half of the workspace.

use anyhow::{Context, Result, bail, ensure};
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
use trike_bench::{Contender, Product, Shape};
use trike_cube::{Device, DeviceSpec, Runtime};

use super::{CUBLAS, absent, caught, oracle};
use crate::bench::catalogue::{Case, HALVES};
use crate::bench::entrant::{Absent, Entrant, Operands};

/// cuBLAS on a device.
pub(super) struct Library {
    stream: Arc<CudaStream>,
    blas: CudaBlas,
}

impl Library {
    /// Loads the library for the timed device. cudarc and CubeCL share the device's primary context.
    pub(super) fn open(device: &Device) -> Result<Self> {
        let DeviceSpec::Numbered(Runtime::Cuda, index) = device.spec() else {
            bail!("expected a CUDA device, got {}", device.spec());
        };
        // The default stream, because with other streams cudarc records events at each launch.
        let stream = CudaContext::new(index)?.default_stream();
        let blas = CudaBlas::new(stream.clone())?;
        Ok(Self { stream, blas })
    }

    fn launch(
        &self,
        product: &Product,
        w: &CudaSlice<u16>,
        x: &CudaSlice<u16>,
        y: &mut CudaSlice<u16>,
    ) -> Result<()> {
        let &Product { shape: Shape { rows, cols, .. }, tokens, .. } = product;
        let side = |n: usize| i32::try_from(n).context("a dimension of the product exceeds i32");
        let (m, n, k) = (side(rows)?, side(tokens)?, side(cols)?);
        let (one, zero) = (1.0f32, 0.0f32);
        let fits = w.len() == rows * cols && x.len() >= tokens * cols && y.len() == tokens * rows;
        ensure!(fits, "operand lengths do not match the product");
        let (w, _use) = w.device_ptr(&self.stream);
        let (x, _use) = x.device_ptr(&self.stream);
        let (y, _use) = y.device_ptr_mut(&self.stream);
        // Column-major: the output is rows x tokens, the weights are stored as cols x rows.
        // SAFETY: the lengths were checked against the dimensions above, and the operands belong to the library's stream.
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
    }
}

impl super::Library for Library {
    fn name(&self) -> &'static str {
        CUBLAS
    }

    fn operands<'a>(
        &'a self,
        case: &'a Case,
        tokens: &[usize],
        rotate: usize,
    ) -> Result<Box<dyn Operands + 'a>> {
        let operands = oracle::Operands::new(case.shape, tokens, rotate);
        caught(|| {
            let copy = |_| self.stream.clone_htod(operands.w.reinterpret_cast());
            let weights: Vec<CudaSlice<u16>> = (0..operands.copies).map(copy).collect::<Result<_, _>>()?;
            let x = self.stream.clone_htod(operands.x.reinterpret_cast())?;
            Ok(Box::new(Held { library: self, case, operands, weights, x }) as _)
        })
    }
}

/// Operands of a product on the device.
struct Held<'a> {
    library: &'a Library,
    case: &'a Case,
    operands: oracle::Operands,
    weights: Vec<CudaSlice<u16>>,
    x: CudaSlice<u16>,
}

impl Held<'_> {
    fn entrant(&self, product: Product) -> Result<Entrant<'_>> {
        let Self { library, operands, weights, x, .. } = self;
        let stream = &library.stream;
        let mut y = stream.clone_htod(&vec![f16::NAN.to_bits(); product.tokens * product.shape.rows])?;
        library.launch(&product, &weights[0], x, &mut y)?;
        let written: Vec<f16> = stream.clone_dtoh(&y)?.into_iter().map(f16::from_bits).collect();
        operands.check(&product, &written)?;
        let mut turn = 0;
        let contender = Contender::by(move |calls| {
            caught(|| {
                let start = stream.record_event(Some(CU_EVENT_DEFAULT))?;
                for _ in 0..calls {
                    turn = (turn + 1) % weights.len();
                    library.launch(&product, &weights[turn], x, &mut y)?;
                }
                let end = stream.record_event(Some(CU_EVENT_DEFAULT))?;
                Ok(Duration::from_secs_f64(f64::from(start.elapsed_ms(&end)?) / 1e3))
            })
        });
        Ok(Entrant {
            problem: product.to_string(),
            kernel: CUBLAS.to_owned(),
            blueprint: "default algorithm".to_owned(),
            rival: true,
            cost: product.cost_in_halves(),
            limits: HALVES,
            contender,
        })
    }
}

impl Operands for Held<'_> {
    fn entrants<'a>(&'a self, tokens: usize) -> Vec<Result<Entrant<'a>, Absent>> {
        let product = self.case.product(tokens);
        let entrant = caught(|| self.entrant(product));
        vec![entrant.map_err(|error| absent(Some(product.to_string()), CUBLAS, error))]
    }
}
