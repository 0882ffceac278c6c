//! Gradient codecs.

use std::sync::Mutex;

use numpy::PyArray1;
use pyo3::{
    exceptions::PyRuntimeError,
    prelude::*,
    types::{PyBytes, PyDict},
};
use trike::comm::codec::{CodecConfig, GradientCompressor};

use crate::{arrays::borrow, errors};

const NAMES: [&str; 6] = ["ternary", "sign", "top_k", "demo", "sparse_loco", "sketch"];

/// Gradients as messages of a few bits per element, with error feedback: what a message leaves out is added to the next gradient.
#[pyclass(name = "GradientCompressor", module = "trike", frozen)]
struct PyGradientCompressor {
    inner: Mutex<GradientCompressor>,
    codec: String,
}

impl PyGradientCompressor {
    fn lock(&self) -> PyResult<std::sync::MutexGuard<'_, GradientCompressor>> {
        self.inner.lock().map_err(|_| PyRuntimeError::new_err("an earlier call of this compressor failed"))
    }
}

#[pymethods]
impl PyGradientCompressor {
    #[new]
    #[pyo3(signature = (codec, shapes, *, share=None, momentum=None, decay=None))]
    fn new(
        codec: &str,
        shapes: Vec<[usize; 2]>,
        share: Option<f32>,
        momentum: Option<f32>,
        decay: Option<f32>,
    ) -> PyResult<Self> {
        let (share, momentum) = (share.unwrap_or(0.01), momentum.unwrap_or(0.9));
        let config = match codec {
            "ternary" => CodecConfig::Ternary,
            "sign" => CodecConfig::Sign,
            "top_k" => CodecConfig::TopK { share, momentum },
            "demo" => CodecConfig::Demo { share, momentum },
            "sparse_loco" => CodecConfig::SparseLoCo { share, decay: decay.unwrap_or(0.95) },
            "sketch" => CodecConfig::Sketch { share },
            got => return Err(errors::unknown("codec", got, &NAMES)),
        };
        let inner = GradientCompressor::new(config, &shapes).map_err(errors::value)?;
        Ok(Self { inner: inner.into(), codec: codec.to_owned() })
    }

    /// The codec's name.
    #[getter]
    fn codec(&self) -> &str {
        &self.codec
    }

    /// Elements of a gradient: those of all shapes.
    #[getter]
    fn size(&self) -> PyResult<usize> {
        Ok(self.lock()?.codec().len())
    }

    /// The message of a gradient (n,), and a dict with `bytes`, `ratio` (bytes of f32 per byte) and `cosine` (of gradient and message).
    fn compress<'py>(
        &self,
        gradient: &Bound<'py, PyAny>,
    ) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyDict>)> {
        let py = gradient.py();
        let gradient = borrow::<f32>(gradient, "gradient", &["n"])?;
        gradient.expect(&[self.size()?])?;
        let values = gradient.values()?;
        let done = py.detach(|| -> PyResult<_> { self.lock()?.compress(values).map_err(errors::value) })?;
        let dict = PyDict::new(py);
        dict.set_item("bytes", done.stats.bytes)?;
        dict.set_item("ratio", done.stats.ratio)?;
        dict.set_item("cosine", done.stats.cosine)?;
        Ok((PyBytes::new(py, &done.message), dict))
    }

    /// The gradient (n,) of a message.
    fn decompress<'py>(&self, py: Python<'py>, message: &[u8]) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let done =
            py.detach(|| -> PyResult<_> { self.lock()?.decompress(message).map_err(errors::value) })?;
        Ok(PyArray1::from_vec(py, done))
    }

    fn __repr__(&self) -> PyResult<String> {
        Ok(format!("GradientCompressor('{}', size={})", self.codec, self.size()?))
    }
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyGradientCompressor>()
}
