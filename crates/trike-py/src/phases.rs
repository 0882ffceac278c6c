//! `DeterministicPhaseTrainer`: alternates steps with measured and with predicted gradients.

use numpy::PyArray1;
use pyo3::prelude::*;
use trike::train::{DeterministicPhaseTrainer, Phase, PhaseConfig};

use crate::{arrays::borrow, errors};

/// Decides which steps measure a gradient, and predicts the others: each element by least-squares linear extrapolation of its
/// measured values.
#[pyclass(name = "DeterministicPhaseTrainer", module = "trike.compat")]
struct PyPhaseTrainer {
    inner: DeterministicPhaseTrainer,
}

#[pymethods]
impl PyPhaseTrainer {
    /// `warm_up` measured steps once, then cycles of `full` measured and `predict` predicted ones, with a correction after every
    /// `correct_every` predicted ones.
    #[new]
    #[pyo3(signature = (warm_up=None, full=None, predict=None, correct_every=None, decay=None))]
    fn new(
        warm_up: Option<usize>,
        full: Option<usize>,
        predict: Option<usize>,
        correct_every: Option<usize>,
        decay: Option<f32>,
    ) -> PyResult<Self> {
        let default = PhaseConfig::default();
        let config = PhaseConfig {
            warm_up: warm_up.unwrap_or(default.warm_up),
            full: full.unwrap_or(default.full),
            predict: predict.unwrap_or(default.predict),
            correct_every: correct_every.unwrap_or(default.correct_every),
            decay: decay.unwrap_or(default.decay),
        };
        Ok(Self { inner: DeterministicPhaseTrainer::new(config).map_err(errors::value)? })
    }

    /// The phase of the current step: `warm_up`, `full`, `predict` or `correct`.
    fn begin_step(&self) -> &'static str {
        match self.inner.begin_step() {
            Phase::WarmUp => "warm_up",
            Phase::Full => "full",
            Phase::Predict => "predict",
            Phase::Correct => "correct",
        }
    }

    /// Whether the current step needs a measured gradient.
    fn is_measured(&self) -> bool {
        self.inner.begin_step().is_measured()
    }

    /// Records the measured gradients of the step, a list of f32 arrays (n,), and returns those to apply.
    fn record_full_gradients<'py>(
        &mut self,
        py: Python<'py>,
        gradients: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<Vec<Bound<'py, PyArray1<f32>>>> {
        let read = |gradient: &Bound<'py, PyAny>| {
            Ok(borrow::<f32>(gradient, "gradients", &["n"])?.values()?.to_vec())
        };
        let gradients = gradients.iter().map(read).collect::<PyResult<Vec<_>>>()?;
        let followed = self.inner.record_full_gradients(gradients).map_err(errors::value)?;
        Ok(followed.into_iter().map(|gradient| PyArray1::from_vec(py, gradient)).collect())
    }

    /// The predicted gradients of this step; empty before the first measured ones.
    fn get_predicted_gradients<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyArray1<f32>>> {
        let predicted = self.inner.get_predicted_gradients();
        predicted.into_iter().map(|gradient| PyArray1::from_vec(py, gradient)).collect()
    }

    /// Ends the step.
    fn end_step(&mut self) {
        self.inner.end_step();
    }

    /// The cosine between the last measured gradients and their prediction, or None.
    fn agreement(&self) -> Option<f64> {
        self.inner.agreement()
    }
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyPhaseTrainer>()
}
