//! Gradient codecs.

use std::sync::Mutex;

use numpy::PyArray1;
use pyo3::{
    exceptions::{PyRuntimeError, PyValueError},
    prelude::*,
    types::{PyBytes, PyDict},
};
use trike::comm::codec::{CodecConfig, GradientCompressor, LocalExchange};

use crate::{arrays::borrow, errors};

const NAMES: [&str; 7] = ["ternary", "sign", "top_k", "demo", "sparse_loco", "sketch", "low_rank"];

/// Settings of codecs as Python passes them.
struct Settings {
    share: Option<f32>,
    momentum: Option<f32>,
    decay: Option<f32>,
    rank: usize,
}

impl Settings {
    fn config(self, codec: &str) -> PyResult<CodecConfig> {
        let (share, momentum) = (self.share.unwrap_or(0.01), self.momentum.unwrap_or(0.9));
        Ok(match codec {
            "ternary" => CodecConfig::Ternary,
            "sign" => CodecConfig::Sign,
            "top_k" => CodecConfig::TopK { share, momentum },
            "demo" => CodecConfig::Demo { share, momentum },
            "sparse_loco" => CodecConfig::SparseLoCo { share, decay: self.decay.unwrap_or(0.95) },
            "sketch" => CodecConfig::Sketch { share },
            "low_rank" => CodecConfig::LowRank { rank: self.rank },
            got => return Err(errors::unknown("codec", got, &NAMES)),
        })
    }
}

/// Gradients compressed to a few bits per element, with error feedback: the compression error is added to the next gradient.
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
        if codec == "low_rank" {
            return Err(PyValueError::new_err(
                "low_rank takes two rounds of messages between ranks: use GradientExchange",
            ));
        }
        let config = Settings { share, momentum, decay, rank: 0 }.config(codec)?;
        let inner = GradientCompressor::new(config, &shapes).map_err(errors::value)?;
        Ok(Self { inner: inner.into(), codec: codec.to_owned() })
    }

    /// The codec's name.
    #[getter]
    fn codec(&self) -> &str {
        &self.codec
    }

    /// Total number of elements of the gradients of all shapes.
    #[getter]
    fn size(&self) -> PyResult<usize> {
        Ok(self.lock()?.codec().len())
    }

    /// Compresses a gradient (n,). Returns the message, and a dict with `bytes`, `ratio` (bytes in f32 per byte) and `cosine` (of
    /// gradient and message).
    fn compress<'py>(
        &self,
        gradient: &Bound<'py, PyAny>,
    ) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyDict>)> {
        let py = gradient.py();
        let gradient = borrow::<f32>(gradient, "gradient", &["n"])?;
        gradient.expect(&[self.size()?])?;
        let values = gradient.copied()?;
        let done = py.detach(|| -> PyResult<_> { self.lock()?.compress(&values).map_err(errors::value) })?;
        let dict = PyDict::new(py);
        dict.set_item("bytes", done.stats.bytes)?;
        dict.set_item("ratio", done.stats.ratio)?;
        dict.set_item("cosine", done.stats.cosine)?;
        Ok((PyBytes::new(py, &done.message), dict))
    }

    /// Decompresses a message to a gradient (n,).
    fn decompress<'py>(&self, py: Python<'py>, message: &[u8]) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let done =
            py.detach(|| -> PyResult<_> { self.lock()?.decompress(message).map_err(errors::value) })?;
        Ok(PyArray1::from_vec(py, done))
    }

    fn __repr__(&self) -> PyResult<String> {
        Ok(format!("GradientCompressor('{}', size={})", self.codec, self.size()?))
    }
}

/// The exchange of gradients between ranks of this process, with any codec.
#[pyclass(name = "GradientExchange", module = "trike", frozen)]
struct PyGradientExchange {
    inner: Mutex<LocalExchange>,
    codec: String,
}

impl PyGradientExchange {
    fn lock(&self) -> PyResult<std::sync::MutexGuard<'_, LocalExchange>> {
        self.inner.lock().map_err(|_| PyRuntimeError::new_err("an earlier call of this exchange failed"))
    }
}

#[pymethods]
impl PyGradientExchange {
    #[new]
    #[pyo3(signature = (codec, shapes, ranks, *, share=None, momentum=None, decay=None, rank=4))]
    fn new(
        codec: &str,
        shapes: Vec<[usize; 2]>,
        ranks: usize,
        share: Option<f32>,
        momentum: Option<f32>,
        decay: Option<f32>,
        rank: usize,
    ) -> PyResult<Self> {
        let config = Settings { share, momentum, decay, rank }.config(codec)?;
        let inner = LocalExchange::new(config, &shapes, ranks).map_err(errors::value)?;
        Ok(Self { inner: inner.into(), codec: codec.to_owned() })
    }

    /// The codec's name.
    #[getter]
    fn codec(&self) -> &str {
        &self.codec
    }

    /// Number of ranks.
    #[getter]
    fn ranks(&self) -> PyResult<usize> {
        Ok(self.lock()?.ranks())
    }

    /// Bytes sent per exchange, of the rank that sends most.
    #[getter]
    fn sent_bytes(&self) -> PyResult<usize> {
        Ok(self.lock()?.sent_bytes())
    }

    /// The approximate mean (n,) of gradients (ranks, n).
    fn exchange<'py>(&self, gradients: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let py = gradients.py();
        let gradients = borrow::<f32>(gradients, "gradients", &["ranks", "n"])?;
        let (ranks, len) = {
            let exchange = self.lock()?;
            (exchange.ranks(), exchange.len())
        };
        gradients.expect(&[ranks, len])?;
        let values = gradients.copied()?;
        let done = py.detach(|| -> PyResult<_> {
            let all: Vec<&[f32]> = values.chunks(len.max(1)).collect();
            self.lock()?.exchange(&all).map_err(errors::value)
        })?;
        Ok(PyArray1::from_vec(py, done))
    }

    fn __repr__(&self) -> PyResult<String> {
        Ok(format!("GradientExchange('{}', ranks={})", self.codec, self.ranks()?))
    }
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyGradientCompressor>()?;
    m.add_class::<PyGradientExchange>()
}
