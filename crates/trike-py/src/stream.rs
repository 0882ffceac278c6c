//! Text as it is generated.

use std::sync::mpsc::Receiver;

use pyo3::{exceptions::PyRuntimeError, prelude::*, types::PyDict};
use trike::Generation;

use crate::{generation::as_dict, host, work};

/// What the model's thread sends.
pub(crate) enum Piece {
    Text(String),
    Done(PyResult<Generation>),
}

/// The state of an iterator, which one caller at a time may advance.
enum State {
    Running(std::sync::Mutex<Receiver<Piece>>),
    Ended,
}

/// An iterator over the pieces of a text. `result` has the whole generation when it has ended; `close` ends it early.
#[pyclass(name = "Stream", module = "trike", frozen)]
pub(crate) struct PyStream {
    // Not held while the model runs: a piece is received without it.
    state: std::sync::Mutex<State>,
    result: std::sync::Mutex<Option<Generation>>,
    process: u32,
}

impl PyStream {
    pub(crate) fn new(pieces: Receiver<Piece>) -> Self {
        Self { state: State::Running(pieces.into()).into(), result: None.into(), process: std::process::id() }
    }

    fn take(&self) -> PyResult<State> {
        let mut state = self.state.lock().map_err(|_| busy())?;
        Ok(std::mem::replace(&mut *state, State::Ended))
    }

    fn put(&self, state: State) -> PyResult<()> {
        *self.state.lock().map_err(|_| busy())? = state;
        Ok(())
    }
}

fn busy() -> PyErr {
    PyRuntimeError::new_err("an earlier call of this stream failed")
}

#[pymethods]
impl PyStream {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<String>> {
        host::check_process(self.process, "the model was loaded", "load it in the child")?;
        let State::Running(pieces) = self.take()? else { return Ok(None) };
        // An error drops the receiver, which ends the generation.
        match work::receive(py, &pieces)? {
            Some(Piece::Text(text)) => {
                self.put(State::Running(pieces))?;
                Ok(Some(text))
            }
            Some(Piece::Done(result)) => {
                *self.result.lock().map_err(|_| busy())? = Some(result?);
                Ok(None)
            }
            None => Err(work::gone()),
        }
    }

    /// Ends the generation; the iterator has no more pieces.
    fn close(&self) -> PyResult<()> {
        self.take().map(drop)
    }

    /// The whole generation as a dict, or None before the end and after `close`.
    #[getter]
    fn result<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let result = self.result.lock().map_err(|_| busy())?;
        result.as_ref().map(|generation| as_dict(py, generation)).transpose()
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, _error: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.close()
    }
}
