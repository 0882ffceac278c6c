//! cuBLAS, loaded at run time (`dlopen`) through cudarc, with operands in f16, f32 and int8.
//!
//! Operands are passed as bytes: cudarc's `f16` support would enable a feature of `half` and rebuild half of the workspace.

use anyhow::{Context, Result, bail, ensure};
use cudarc::cublas::CudaBlas;
use cudarc::cublas::result::gemm_ex;
use cudarc::cublas::sys::cublasOperation_t::{CUBLAS_OP_N, CUBLAS_OP_T};
use cudarc::cublas::sys::{cublasComputeType_t as Compute, cublasGemmAlgo_t, cudaDataType_t as Data};
use cudarc::driver::sys::CUevent_flags::CU_EVENT_DEFAULT;
use cudarc::driver::sys::CUgraphInstantiate_flags;
use cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
use cudarc::driver::{CudaContext, CudaGraph, CudaSlice, CudaStream, DevicePtr, DevicePtrMut};
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;
use trike_bench::{Contender, Launching, Limit, Product, Shape};
use trike_cube::{Cost, CubeDevice, DeviceSpec, Runtime};

use super::oracle::{self, Numbers};
use super::{absent, caught};
use crate::bench::catalogue::{Case, HALVES};
use crate::bench::entrant::{
    Absent, Entrant, LONG, Operands, Timed, calls_to_record, live_seconds, replayed,
};

/// cuBLAS on a device, with operands of one type.
pub(super) struct Library {
    numbers: Numbers,
    stream: Arc<CudaStream>,
    blas: CudaBlas,
}

/// Name in records.
pub(super) fn name(numbers: Numbers) -> &'static str {
    match numbers {
        Numbers::F16 => super::CUBLAS,
        Numbers::F32 => "cuBLAS f32",
        Numbers::Int8 => "cuBLAS int8",
    }
}

impl Library {
    /// Loads the library for the timed device. cudarc and CubeCL share the device's primary context.
    pub(super) fn open(device: &CubeDevice, numbers: Numbers) -> Result<Self> {
        let DeviceSpec::Numbered(Runtime::Cuda, index) = device.spec() else {
            bail!("expected a CUDA device, got {}", device.spec());
        };
        let context = CudaContext::new(index)?;
        // SAFETY: operands are used on the one stream of their library, so nothing has to wait for another stream.
        unsafe { context.disable_event_tracking() };
        // Not the default stream, which cannot be captured.
        let stream = context.new_stream()?;
        let blas = CudaBlas::new(stream.clone())?;
        Ok(Self { numbers, stream, blas })
    }

    fn launch(
        &self,
        product: &Product,
        w: &CudaSlice<u8>,
        x: &CudaSlice<u8>,
        y: &mut CudaSlice<u8>,
    ) -> Result<()> {
        let &Product { shape: Shape { rows, cols, .. }, tokens, .. } = product;
        let side = |n: usize| i32::try_from(n).context("a dimension of the product exceeds i32");
        let (m, n, k) = (side(rows)?, side(tokens)?, side(cols)?);
        let (of_floats, of_integers) = ((1.0f32, 0.0f32), (1i32, 0i32));
        let (one, zero): (*const c_void, *const c_void) = match self.numbers {
            Numbers::Int8 => ((&raw const of_integers.0).cast(), (&raw const of_integers.1).cast()),
            _ => ((&raw const of_floats.0).cast(), (&raw const of_floats.1).cast()),
        };
        let (from, to, compute) = match self.numbers {
            Numbers::F16 => (Data::CUDA_R_16F, Data::CUDA_R_16F, Compute::CUBLAS_COMPUTE_32F),
            Numbers::F32 => (Data::CUDA_R_32F, Data::CUDA_R_32F, Compute::CUBLAS_COMPUTE_32F),
            Numbers::Int8 => (Data::CUDA_R_8I, Data::CUDA_R_32I, Compute::CUBLAS_COMPUTE_32I),
        };
        let (size, output) = (self.numbers.size(), self.numbers.output_size());
        let fits = w.len() == size * rows * cols
            && x.len() >= size * tokens * cols
            && y.len() == output * tokens * rows;
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
                one,
                w as *const c_void,
                from,
                k,
                x as *const c_void,
                from,
                k,
                zero,
                y as *mut c_void,
                to,
                m,
                compute,
                cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        }?;
        Ok(())
    }

    /// Time of the work that `enqueue` enqueues, by events on the stream.
    fn timed(&self, enqueue: impl FnOnce() -> Result<()>) -> Result<Duration> {
        let start = self.stream.record_event(Some(CU_EVENT_DEFAULT))?;
        enqueue()?;
        let end = self.stream.record_event(Some(CU_EVENT_DEFAULT))?;
        Ok(Duration::from_secs_f64(f64::from(start.elapsed_ms(&end)?) / 1e3))
    }

    fn cost(&self, product: &Product) -> (Cost, &'static [Limit]) {
        let &Product { shape: Shape { rows, cols, .. }, tokens, .. } = product;
        match self.numbers {
            Numbers::F16 => (product.cost_in_halves(), HALVES),
            Numbers::F32 => (product.cost(4 * rows * cols), &[Limit::Memory]),
            Numbers::Int8 => {
                let bytes = (rows * cols + tokens * cols + 4 * tokens * rows) as u64;
                (Cost { bytes, ..product.cost_in_halves() }, &[Limit::Memory, Limit::Int8])
            }
        }
    }
}

impl super::Library for Library {
    fn name(&self) -> &'static str {
        name(self.numbers)
    }

    fn operands<'a>(
        &'a self,
        case: &'a Case,
        tokens: &[usize],
        rotate: usize,
    ) -> Result<Box<dyn Operands + 'a>> {
        let operands = oracle::Operands::new(case.shape, tokens, rotate, self.numbers);
        caught(|| {
            let [w, x] = [&operands.w, &operands.x].map(|values| self.numbers.bytes(values));
            let copy = |_| self.stream.clone_htod(&w);
            let weights: Vec<CudaSlice<u8>> = (0..operands.copies).map(copy).collect::<Result<_, _>>()?;
            let x = self.stream.clone_htod(&x)?;
            Ok(Box::new(Held { library: self, case, operands, weights, x }) as _)
        })
    }
}

/// Operands of a product on the device.
struct Held<'a> {
    library: &'a Library,
    case: &'a Case,
    operands: oracle::Operands,
    weights: Vec<CudaSlice<u8>>,
    x: CudaSlice<u8>,
}

impl Held<'_> {
    fn entrant(&self, product: Product) -> Result<Entrant<'_>> {
        let Self { library, operands, weights, x, .. } = self;
        let stream = &library.stream;
        let outputs = product.tokens * product.shape.rows;
        // Not a number in f16 and f32, and no sum in integers.
        let mut y = stream.clone_htod(&vec![0xffu8; outputs * library.numbers.output_size()])?;
        library.launch(&product, &weights[0], x, &mut y)?;
        operands.check(&product, &library.numbers.outputs(&stream.clone_dtoh(&y)?))?;
        let (cost, limits) = library.cost(&product);
        Ok(Entrant {
            problem: product.to_string(),
            kernel: name(library.numbers).to_owned(),
            blueprint: "default algorithm".to_owned(),
            rival: true,
            cost,
            limits,
            timed: self.timed(product, y)?,
        })
    }

    /// The contender: replays of a graph, as Trike's kernels are timed; launches where they are long.
    fn timed(&self, product: Product, mut y: CudaSlice<u8>) -> Result<Timed<'_>> {
        let Self { library, weights, x, .. } = self;
        let mut turn = 0;
        let mut launch = move |calls: u64| -> Result<()> {
            for _ in 0..calls {
                turn = (turn + 1) % weights.len();
                library.launch(&product, &weights[turn], x, &mut y)?;
            }
            Ok(())
        };
        if library.timed(|| launch(1))? >= LONG {
            let contender = Contender::by(move |calls| caught(|| library.timed(|| launch(calls))));
            return Ok(Timed { contender, launching: Launching::default() });
        }
        let length = calls_to_record(weights.len());
        let live_seconds = live_seconds(length, || library.timed(|| launch(length as u64)))?;
        library.stream.begin_capture(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        let recorded = launch(length as u64);
        // Ends the capture whether or not it failed.
        let graph = library.stream.end_capture(CUgraphInstantiate_flags(0));
        recorded?;
        let graph: CudaGraph = graph?.context("nothing was recorded")?;
        Ok(replayed(Launching { recorded: length, live_seconds }, move |replays| {
            // The outputs, which the graph writes.
            let _kept = &launch;
            caught(|| library.timed(|| (0..replays).try_for_each(|_| Ok(graph.launch()?))))
        }))
    }
}

impl Operands for Held<'_> {
    fn entrants<'a>(&'a self, tokens: usize) -> Vec<Result<Entrant<'a>, Absent>> {
        let product = self.case.product(tokens);
        let entrant = caught(|| self.entrant(product));
        vec![entrant.map_err(|error| absent(Some(product.to_string()), name(self.library.numbers), error))]
    }
}
