//! Streaming of generated text.

use std::sync::mpsc::Receiver;

use pyo3::{exceptions::PyRuntimeError, prelude::*, types::PyDict};
use trike::Generation;

use crate::{generation::as_dict, host, work};

/// Messages of the model's thread.
pub(crate) enum Piece {
    Text(String),
    Done(PyResult<Generation>),
}

/// The state of an iterator, which only one caller at a time may advance.
enum State {
    Running(std::sync::Mutex<Receiver<Piece>>),
    /// A caller waits for the next piece.
    Waiting,
    Ended,
}

/// An iterator over the pieces of a text. `result` is the whole generation once it has ended; `close` ends it early.
#[pyclass(name = "Stream", module = "trike", frozen)]
pub(crate) struct PyStream {
    // Not held while the model runs: pieces are received without it.
    state: std::sync::Mutex<State>,
    result: std::sync::Mutex<Option<Generation>>,
    process: u32,
}

impl PyStream {
    pub(crate) fn new(pieces: Receiver<Piece>) -> Self {
        Self { state: State::Running(pieces.into()).into(), result: None.into(), process: std::process::id() }
    }

    /// Takes the receiver, for one caller; `None` at the end.
    fn take(&self) -> PyResult<Option<std::sync::Mutex<Receiver<Piece>>>> {
        let mut state = self.state.lock().map_err(|_| busy())?;
        match std::mem::replace(&mut *state, State::Waiting) {
            State::Running(pieces) => Ok(Some(pieces)),
            State::Waiting => Err(PyRuntimeError::new_err("another thread waits for the next piece")),
            State::Ended => {
                *state = State::Ended;
                Ok(None)
            }
        }
    }

    /// Puts the receiver back, or ends; `false` if the stream was closed meanwhile.
    fn put(&self, next: State) -> PyResult<bool> {
        let mut state = self.state.lock().map_err(|_| busy())?;
        let is_open = matches!(*state, State::Waiting);
        if is_open {
            *state = next;
        }
        Ok(is_open)
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
        let Some(pieces) = self.take()? else { return Ok(None) };
        // Dropping the receiver ends the generation: after an error, and if another thread has closed the stream.
        let piece = match work::receive(py, &pieces) {
            Ok(piece) => piece,
            Err(error) => {
                self.put(State::Ended)?;
                return Err(error);
            }
        };
        match piece {
            Some(Piece::Text(text)) => {
                let is_open = self.put(State::Running(pieces))?;
                Ok(is_open.then_some(text))
            }
            Some(Piece::Done(result)) => {
                if self.put(State::Ended)? {
                    *self.result.lock().map_err(|_| busy())? = Some(result?);
                }
                Ok(None)
            }
            None if self.put(State::Ended)? => Err(work::gone()),
            None => Ok(None),
        }
    }

    /// Ends the generation; the iterator yields no more pieces, even to a thread that is waiting for one.
    fn close(&self) -> PyResult<()> {
        *self.state.lock().map_err(|_| busy())? = State::Ended;
        Ok(())
    }

    /// The whole generation as a dict, or None before the end or after `close`.
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
