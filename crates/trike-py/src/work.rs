//! Work on other threads, while the caller waits for the result, Ctrl-C and progress.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    time::Duration,
};

use pyo3::{exceptions::PyRuntimeError, prelude::*};

use crate::errors;

/// Polling interval of a waiting caller for signals: the maximum delay of Ctrl-C, regardless of the work.
const PATIENCE: Duration = Duration::from_millis(50);

/// A message from a job to its caller.
pub(crate) enum Message<T> {
    /// A step, the units done and in total.
    Progress(String, usize, usize),
    /// New text.
    Text(String),
    /// The result.
    Done(PyResult<T>),
}

/// The job's side of the connection.
pub(crate) struct Line<T> {
    messages: Sender<Message<T>>,
    cancelled: Arc<AtomicBool>,
}

/// Panic payload that cancels an abandoned job.
struct Cancelled;

impl<T> Line<T> {
    /// Whether the caller has abandoned the job, which should then end.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Reports progress. If the caller has abandoned the job, this ends it by unwinding through the library, because a progress
    /// callback has no other way to cancel. Files are complete or marked as unfinished at any time, as on Ctrl-C in the command.
    pub(crate) fn progress(&self, step: &str, done: usize, total: usize) {
        let sent = self.messages.send(Message::Progress(step.to_owned(), done, total));
        if self.is_cancelled() || sent.is_err() {
            resume_unwind(Box::new(Cancelled));
        }
    }

    /// Reports progress of a job that polls [`is_cancelled`](Self::is_cancelled) and ends by itself.
    pub(crate) fn tell(&self, step: &str, done: usize, total: usize) {
        // A failed send means that the caller has abandoned the job, see `is_cancelled`.
        let _ = self.messages.send(Message::Progress(step.to_owned(), done, total));
    }

    /// Passes new text to the caller.
    pub(crate) fn text(&self, text: &str) {
        // A failed send means that the caller has abandoned the job, see `is_cancelled`.
        let _ = self.messages.send(Message::Text(text.to_owned()));
    }

    /// Runs a job and sends its result, or its panic as an error.
    pub(crate) fn run(&self, job: impl FnOnce(&Self) -> PyResult<T>) {
        let result = catch_unwind(AssertUnwindSafe(|| job(self)));
        let result = match result {
            Ok(result) => result,
            Err(payload) if payload.is::<Cancelled>() => Err(PyRuntimeError::new_err("cancelled")),
            Err(payload) => Err(errors::panic(&*payload)),
        };
        // A failed send means that the caller has abandoned the job.
        let _ = self.messages.send(Message::Done(result));
    }
}

/// The caller's side of the connection.
pub(crate) struct Ticket<T> {
    messages: Mutex<Receiver<Message<T>>>,
    cancelled: Arc<AtomicBool>,
    has_ended: AtomicBool,
}

/// Creates both sides.
pub(crate) fn connect<T>() -> (Line<T>, Ticket<T>) {
    let (sender, messages) = channel();
    let cancelled = Arc::new(AtomicBool::new(false));
    let line = Line { messages: sender, cancelled: cancelled.clone() };
    (line, Ticket { messages: messages.into(), cancelled, has_ended: false.into() })
}

impl<T> Drop for Ticket<T> {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

impl<T: Send> Ticket<T> {
    /// Waits for the result without the GIL; passes messages to a callable, as `watch(step, done, total)` or as `watch(text)`.
    ///
    /// # Errors
    ///
    /// Errors of the job; `KeyboardInterrupt` and exceptions of the callable, which cancel the job.
    pub(crate) fn wait(self, py: Python<'_>, watch: Option<&Bound<'_, PyAny>>) -> PyResult<T> {
        self.poll(py, watch)
    }

    /// As [`wait`](Self::wait), but when interrupted, waits until the job has saved its state and ended. A second Ctrl-C does not
    /// wait.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait); an error of the job while saving becomes the cause of the interrupting exception.
    pub(crate) fn wait_until_saved(self, py: Python<'_>, watch: Option<&Bound<'_, PyAny>>) -> PyResult<T> {
        let interrupted = match self.poll(py, watch) {
            // The job itself has ended.
            Err(error) if !self.has_ended.load(Ordering::Relaxed) => error,
            done => return done,
        };
        self.cancelled.store(true, Ordering::Relaxed);
        loop {
            match receive(py, &self.messages)? {
                Some(Message::Done(Err(error))) => {
                    interrupted.set_cause(py, Some(error));
                    return Err(interrupted);
                }
                Some(Message::Done(Ok(_))) | None => return Err(interrupted),
                Some(_) => {}
            }
        }
    }

    fn poll(&self, py: Python<'_>, watch: Option<&Bound<'_, PyAny>>) -> PyResult<T> {
        loop {
            match receive(py, &self.messages)? {
                Some(Message::Progress(step, done, total)) => {
                    if let Some(watch) = watch {
                        watch.call1((step, done, total))?;
                    }
                }
                Some(Message::Text(text)) => {
                    if let Some(watch) = watch {
                        watch.call1((text,))?;
                    }
                }
                Some(Message::Done(result)) => {
                    self.has_ended.store(true, Ordering::Relaxed);
                    return result;
                }
                None => {
                    self.has_ended.store(true, Ordering::Relaxed);
                    return Err(gone());
                }
            }
        }
    }
}

/// The next message; `None` if the sender was dropped.
///
/// # Errors
///
/// `KeyboardInterrupt`, and exceptions of other signal handlers.
pub(crate) fn receive<M: Send>(py: Python<'_>, messages: &Mutex<Receiver<M>>) -> PyResult<Option<M>> {
    loop {
        // Only the caller uses the receiver; the mutex makes it `Sync` for `detach`.
        let next = py.detach(|| match messages.lock() {
            Ok(messages) => messages.recv_timeout(PATIENCE),
            Err(_) => Err(RecvTimeoutError::Disconnected),
        });
        match next {
            Ok(message) => return Ok(Some(message)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
        }
    }
}

/// The error of a job whose thread ended without a result.
pub(crate) fn gone() -> PyErr {
    PyRuntimeError::new_err("the thread of the model has ended")
}

/// Runs a job on a thread of its own and waits for it.
pub(crate) fn run<T: Send + 'static>(
    py: Python<'_>,
    progress: Option<&Bound<'_, PyAny>>,
    job: impl FnOnce(&Line<T>) -> PyResult<T> + Send + 'static,
) -> PyResult<T> {
    start(job)?.wait(py, progress)
}

/// As [`run`], for a job that saves its work when it is cancelled.
pub(crate) fn run_and_save<T: Send + 'static>(
    py: Python<'_>,
    progress: Option<&Bound<'_, PyAny>>,
    job: impl FnOnce(&Line<T>) -> PyResult<T> + Send + 'static,
) -> PyResult<T> {
    start(job)?.wait_until_saved(py, progress)
}

fn start<T: Send + 'static>(
    job: impl FnOnce(&Line<T>) -> PyResult<T> + Send + 'static,
) -> PyResult<Ticket<T>> {
    let (line, ticket) = connect();
    std::thread::Builder::new().name("trike".to_owned()).spawn(move || line.run(job))?;
    Ok(ticket)
}
