//! Quantizers on arrays.

use numpy::PyArray2;
use pyo3::{prelude::*, types::PyDict};
use trike::{
    core::{DenseData, DenseTensor},
    quant::{CalibrationMethod, MatrixView, QuantizeConfig, Rounding, ScaleRule, ScaleType, TritLayout},
    trit::{Coupling, Encoding, Granularity},
};

use crate::{
    arrays::{array, borrow},
    errors,
    trits::PyTritTensor,
};

const RULES: [&str; 4] = ["absmean", "twn", "absmax", "least_squares"];

fn rule(name: &str) -> PyResult<ScaleRule> {
    Ok(match name {
        "absmean" => ScaleRule::AbsMean,
        "twn" => ScaleRule::Twn,
        "absmax" => ScaleRule::Calibrated(CalibrationMethod::AbsMax),
        "least_squares" => ScaleRule::LeastSquares,
        got => return Err(errors::unknown("rule", got, &RULES)),
    })
}

fn dense(weights: &Bound<'_, PyAny>) -> PyResult<DenseTensor> {
    let weights = borrow::<f32>(weights, "weights", &["rows", "cols"])?;
    let values = weights.values()?.to_vec();
    DenseTensor::new(weights.shape().to_vec(), DenseData::F32(values)).map_err(errors::value)
}

/// Rounds a matrix of weights (rows, cols) to trits. Returns the tensor and a dict with `density` (fraction of nonzero trits),
/// `relative_error` (Frobenius norm of the error relative to that of the weights) and `clipped` (fraction of weights beyond the
/// outermost levels).
#[pyfunction]
#[pyo3(signature = (weights, *, planes=1, coupling="tied", granularity="group128", rule="least_squares", mean=false, encoding="2bit", scale_type="f16", seed=None))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
fn quantize_matrix<'py>(
    weights: &Bound<'py, PyAny>,
    planes: usize,
    coupling: &str,
    granularity: &str,
    rule: &str,
    mean: bool,
    encoding: &str,
    scale_type: &str,
    seed: Option<u64>,
) -> PyResult<(PyTritTensor, Bound<'py, PyDict>)> {
    let py = weights.py();
    let coupling: Coupling = coupling.parse().map_err(errors::value)?;
    let granularity: Granularity = granularity.parse().map_err(errors::value)?;
    let encoding: Encoding = encoding.parse().map_err(errors::value)?;
    let scales = match scale_type {
        "f16" => ScaleType::F16,
        "f32" => ScaleType::F32,
        got => return Err(errors::unknown("scale_type", got, &["f16", "f32"])),
    };
    let layout = TritLayout::default()
        .with_depth(planes)
        .with_coupling(coupling)
        .with_granularity(granularity)
        .with_mean(mean)
        .with_encoding(encoding)
        .with_scales(scales);
    let rounding = seed.map_or(Rounding::Nearest, |seed| Rounding::Stochastic { seed });
    let config =
        QuantizeConfig::default().with_rule(self::rule(rule)?).with_rounding(rounding).with_layout(layout);
    let weights = borrow::<f32>(weights, "weights", &["rows", "cols"])?;
    let [rows, cols] = weights.sides()?;
    let values = weights.copied()?;
    let done = py.detach(|| trike::quant::quantize_matrix(MatrixView::new(rows, cols, &values)?, &config));
    let (tensor, stats) = done.map_err(errors::value)?;
    let dict = PyDict::new(py);
    dict.set_item("density", stats.density)?;
    dict.set_item("relative_error", stats.relative_error)?;
    dict.set_item("clipped", stats.clipped)?;
    Ok((tensor.into(), dict))
}

/// BitNet b1.58's rule: `s = 1 / max(mean|w|, 1e-5)`, trits are `round(w * s)` clamped to -1..1, weights are the trits over `s`.
#[pyfunction]
#[pyo3(signature = (weights, *, granularity="tensor", encoding="2bit"))]
fn absmean_trits(weights: &Bound<'_, PyAny>, granularity: &str, encoding: &str) -> PyResult<PyTritTensor> {
    let granularity: Granularity = granularity.parse().map_err(errors::value)?;
    let encoding: Encoding = encoding.parse().map_err(errors::value)?;
    let dense = dense(weights)?;
    let done = weights.py().detach(|| trike::core::absmean_trits(&dense, granularity, encoding));
    Ok(done.map_err(errors::value)?.into())
}

/// The same weights as trits if each is exactly -s, 0 or s; else None.
#[pyfunction]
#[pyo3(signature = (weights, *, encoding="2bit"))]
fn exact_trits(weights: &Bound<'_, PyAny>, encoding: &str) -> PyResult<Option<PyTritTensor>> {
    let encoding: Encoding = encoding.parse().map_err(errors::value)?;
    let dense = dense(weights)?;
    let done = weights.py().detach(|| trike::core::exact_trits(&dense, encoding));
    Ok(done.map_err(errors::value)?.map(PyTritTensor::from))
}

/// Codes and scales.
type Codes<'py> = (Bound<'py, PyArray2<i8>>, Bound<'py, PyArray2<f32>>);

/// Activations (tokens, width) as int8 codes with one scale per `group` values, `max(|x|, 1e-5) / 127`; one per token if None.
/// Returns codes (tokens, width) and scales (tokens, groups); a value is approximately code times scale.
#[pyfunction]
#[pyo3(signature = (x, group=None))]
fn quantize_activations<'py>(x: &Bound<'py, PyAny>, group: Option<usize>) -> PyResult<Codes<'py>> {
    let py = x.py();
    let x = borrow::<f32>(x, "x", &["tokens", "width"])?;
    let [tokens, width] = x.sides()?;
    let values = x.copied()?;
    let group = group.unwrap_or(width);
    let done = py.detach(|| trike::quant::quantize_activations(&values, width, group));
    let (codes, scales) = done.map_err(errors::value)?;
    let groups = width.div_ceil(group.max(1));
    Ok((array(py, codes, [tokens, width])?, array(py, scales, [tokens, groups])?))
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(quantize_matrix, m)?)?;
    m.add_function(wrap_pyfunction!(absmean_trits, m)?)?;
    m.add_function(wrap_pyfunction!(exact_trits, m)?)?;
    m.add_function(wrap_pyfunction!(quantize_activations, m)?)
}
