//! Capacity of bundles.

use pyo3::prelude::*;
use trike::vsa::capacity::{self, BundleForm};

use super::{Any, each, make};
use crate::errors;

fn form(name: &str) -> PyResult<BundleForm> {
    match name {
        "counts" => Ok(BundleForm::Counts),
        "trits" => Ok(BundleForm::Trits),
        got => Err(errors::unknown("kept", got, &["counts", "trits"])),
    }
}

/// A function of a named algebra that returns a number.
macro_rules! number {
    ($algebra:expr, $a:ident => $body:expr) => {{
        let value: Any<_, _, _> = make!($algebra, $a => $body);
        each!(value, number => number)
    }};
}

/// The probability that, among `candidates` vectors, the one contained in a bundle of `items` vectors scores highest.
#[pyfunction]
#[pyo3(signature = (dim, items, candidates, kept="counts", algebra="z3"))]
fn retrieval_probability(
    dim: usize,
    items: usize,
    candidates: usize,
    kept: &str,
    algebra: &str,
) -> PyResult<f64> {
    let kept = form(kept)?;
    Ok(number!(algebra, A => capacity::retrieval_probability::<A>(kept, dim, items, candidates)))
}

/// The largest number of items retrieved with at least this probability.
#[pyfunction]
#[pyo3(signature = (dim, candidates, probability, kept="counts", algebra="z3"))]
fn max_items(dim: usize, candidates: usize, probability: f64, kept: &str, algebra: &str) -> PyResult<usize> {
    let kept = form(kept)?;
    Ok(number!(algebra, A => capacity::max_items::<A>(kept, dim, candidates, probability)))
}

/// The smallest number of dimensions with at least this probability.
#[pyfunction]
#[pyo3(signature = (items, candidates, probability, kept="counts", algebra="z3"))]
fn min_dimensions(
    items: usize,
    candidates: usize,
    probability: f64,
    kept: &str,
    algebra: &str,
) -> PyResult<usize> {
    let kept = form(kept)?;
    Ok(number!(algebra, A => capacity::min_dimensions::<A>(kept, items, candidates, probability)))
}

pub(super) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(retrieval_probability, m)?)?;
    m.add_function(wrap_pyfunction!(max_items, m)?)?;
    m.add_function(wrap_pyfunction!(min_dimensions, m)?)
}
