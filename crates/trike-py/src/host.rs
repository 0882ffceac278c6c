//! CPU threads, and devices.

use std::sync::Mutex;

use pyo3::{
    exceptions::{PyRuntimeError, PyValueError},
    prelude::*,
    types::PyDict,
};
use trike::{Cpu, Isa};

use crate::errors;

/// The threads for operations on arrays, and the process that started them.
static CPU: Mutex<Option<(u32, Cpu)>> = Mutex::new(None);

/// The shared executor, started on first use; after a fork, the child starts its own threads.
pub(crate) fn cpu() -> PyResult<Cpu> {
    let mut place = CPU.lock().map_err(|_| PyRuntimeError::new_err("the threads could not be started"))?;
    let process = std::process::id();
    match &*place {
        Some((owner, cpu)) if *owner == process => return Ok(cpu.clone()),
        // The parent's threads do not exist after a fork, so dropping the executor would wait for them forever.
        Some(_) => std::mem::forget(place.take()),
        None => {}
    }
    let cpu = Cpu::new(0).map_err(errors::value)?;
    *place = Some((process, cpu.clone()));
    Ok(cpu)
}

/// Sets the number of threads of operations on arrays; 0 = one per physical core. Models take their own number.
///
/// Raises ValueError for more than 1024.
#[pyfunction]
fn set_threads(threads: usize) -> PyResult<()> {
    let cpu = Cpu::new(threads).map_err(errors::value)?;
    let mut place = CPU.lock().map_err(|_| PyRuntimeError::new_err("the threads could not be started"))?;
    let old = place.replace((std::process::id(), cpu));
    if old.as_ref().is_some_and(|(owner, _)| *owner != std::process::id()) {
        std::mem::forget(old);
    }
    Ok(())
}

/// The CPU: the instruction set in use, the available ones, and the number of threads of operations on arrays.
#[pyfunction]
fn cpu_info(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let cpu = cpu()?;
    let info = PyDict::new(py);
    info.set_item("isa", cpu.isa().name())?;
    info.set_item("available", Isa::available().iter().map(|isa| isa.name()).collect::<Vec<_>>())?;
    info.set_item("threads", cpu.threads())?;
    Ok(info)
}

/// The GPUs supported by this build, each as a dict with `name` (for `device=`), `adapter`, `software`, `memory` (bytes or None)
/// and `features`; empty in a build without GPU runtimes.
#[pyfunction]
fn devices(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    let found = py.detach(trike::devices);
    let dicts = found.into_iter().map(|device| {
        let dict = PyDict::new(py);
        dict.set_item("name", device.name)?;
        dict.set_item("adapter", device.adapter)?;
        dict.set_item("software", device.software)?;
        dict.set_item("memory", device.memory)?;
        dict.set_item("features", device.features)?;
        Ok(dict)
    });
    dicts.collect()
}

/// `RuntimeError` in a process forked after an object with threads was made: the threads do not exist here.
pub(crate) fn check_process(owner: u32, made: &str, remedy: &str) -> PyResult<()> {
    if owner == std::process::id() {
        return Ok(());
    }
    Err(PyRuntimeError::new_err(format!(
        "the process was forked after {made}, and its threads are not in this one: {remedy}, or start processes with the method \"spawn\""
    )))
}

/// A device by its name.
pub(crate) fn device(name: &str) -> PyResult<trike::DeviceChoice> {
    name.parse().map_err(|error: trike::InvalidDevice| PyValueError::new_err(format!("device: {error}")))
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(set_threads, m)?)?;
    m.add_function(wrap_pyfunction!(cpu_info, m)?)?;
    m.add_function(wrap_pyfunction!(devices, m)?)
}
