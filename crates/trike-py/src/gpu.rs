//! Single operations on a device, for `trike.compat`. Arrays are copied to the device and back, which takes longer than the
//! operation.

use std::sync::Mutex;

use numpy::PyArray2;
use pyo3::{exceptions::PyRuntimeError, prelude::*};
use trike::{
    ActivationPrecision, CubeBackend,
    nn::{
        BackendOps, BackendTransfers, BackendWeights, NnError, Tensor,
        cube::{CubeDevice, DeviceSpec},
    },
    vsa::{Algebra, DeviceVectors, PackedTritVec, VsaError},
};

use crate::{
    arrays::{array, borrow},
    errors,
    trits::PyTritTensor,
    vsa::{join, of_one, vector::PyHypervector},
};

/// Open devices, with the process that opened them.
static OPENED: Mutex<Vec<(u32, DeviceSpec, CubeDevice)>> = Mutex::new(Vec::new());

fn open(name: &str) -> PyResult<CubeDevice> {
    let spec: DeviceSpec = name.parse().map_err(errors::value)?;
    let mut opened = OPENED.lock().map_err(|_| PyRuntimeError::new_err("a device could not be opened"))?;
    let here = std::process::id();
    let known = opened.iter().find(|(process, known, _)| (*process, *known) == (here, spec));
    if let Some((_, _, device)) = known {
        return Ok(device.clone());
    }
    let device = CubeDevice::open(spec).map_err(errors::value)?;
    opened.push((here, spec, device.clone()));
    Ok(device)
}

/// `x @ weights.T` for activations (tokens, cols): a new f32 array (tokens, rows).
#[pyfunction]
fn _device_matmul<'py>(
    device: &str,
    tensor: &PyTritTensor,
    x: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyArray2<f32>>> {
    let py = x.py();
    let (rows, cols) = (tensor.inner.rows(), tensor.inner.cols());
    let x = borrow::<f32>(x, "x", &["tokens", "cols"])?;
    let [tokens, width] = x.sides()?;
    if width != cols {
        return Err(x.wrong(&format!("(tokens, {cols})")));
    }
    let values = x.copied()?;
    let out = py.detach(|| -> PyResult<Vec<f32>> {
        if tokens == 0 {
            return Ok(Vec::new());
        }
        let backend = CubeBackend::new(open(device)?, ActivationPrecision::F32);
        let product = || -> Result<Vec<f32>, NnError> {
            let matrix = backend.load_matrix(Tensor::Ternary(tensor.inner.clone()))?;
            let mut out = backend.linear(&backend.upload(&values, cols)?, &[&matrix])?;
            out.pop().map_or_else(|| Ok(Vec::new()), |out| backend.to_host(&out))
        };
        product().map_err(errors::value)
    });
    array(py, out?, [tokens, rows])
}

/// Binds two vectors, or unbinds the second from the first.
#[pyfunction]
fn _device_bind(
    py: Python<'_>,
    device: &str,
    a: &PyHypervector,
    b: &PyHypervector,
    unbind: bool,
) -> PyResult<PyHypervector> {
    fn pair<A: Algebra>(
        device: &CubeDevice,
        a: &PackedTritVec<A>,
        b: &PackedTritVec<A>,
        unbind: bool,
    ) -> Result<PackedTritVec<A>, VsaError> {
        let a = DeviceVectors::upload(device, std::slice::from_ref(a))?;
        let b = DeviceVectors::upload(device, std::slice::from_ref(b))?;
        first(if unbind { a.unbind(&b) } else { a.bind(&b) }?)
    }
    let device = py.detach(|| open(device))?;
    Ok(join!(&a.inner, &b.inner, a, b => py.detach(|| pair(&device, a, b, unbind))).into())
}

/// Bundles vectors.
#[pyfunction]
fn _device_bundle(
    py: Python<'_>,
    device: &str,
    vectors: Vec<Bound<'_, PyHypervector>>,
) -> PyResult<PyHypervector> {
    fn sum<A: Algebra>(
        device: &CubeDevice,
        vectors: &[&PackedTritVec<A>],
    ) -> Result<PackedTritVec<A>, VsaError> {
        let vectors: Vec<_> = vectors.iter().copied().cloned().collect();
        first(DeviceVectors::upload(device, &vectors)?.bundle(vectors.len())?)
    }
    let device = py.detach(|| open(device))?;
    Ok(of_one!(vectors, all => py.detach(|| sum(&device, &all))).into())
}

fn first<A: Algebra>(vectors: DeviceVectors<A>) -> Result<PackedTritVec<A>, VsaError> {
    vectors.read()?.into_iter().next().ok_or(VsaError::Empty { what: "a batch of hypervectors" })
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(_device_matmul, m)?)?;
    m.add_function(wrap_pyfunction!(_device_bind, m)?)?;
    m.add_function(wrap_pyfunction!(_device_bundle, m)?)
}
