//! The native module of the Python package `trike`.
//!
//! Start from [`model`], the language models, or from [`trits`], the trit tensors. The decision that shaped this crate: it has no
//! logic. Each function checks the types and shapes that Python does not, releases the GIL, calls the library and converts the
//! result or the error. Names that Python users expect from other packages (`trike.compat`, `trike.llama`, `trike.torch`) are
//! Python modules on top of it.
//!
//! * arrays, borrowed from NumPy: [`arrays`]; trit tensors: [`trits`], [`parts`]; quantizers: [`quantizers`]
//! * hypervectors: [`vsa`]; gradient codecs: [`codecs`]; predicted gradients: [`phases`]
//! * models: [`model`], on a thread of their own: [`work`]; options: [`options`]; text as it is generated: [`stream`]; its result: [`generation`]
//! * whole models on disk: [`jobs`], with the options of quantization: [`plan`]
//! * errors as exceptions: [`errors`]; threads and devices: [`host`]; single operations on a device: `gpu`; the command `trike`: [`command`]
#![forbid(unsafe_code)]

mod arrays;
mod codecs;
mod command;
mod errors;
mod generation;
#[cfg(feature = "gpu")]
mod gpu;
mod host;
mod jobs;
mod model;
mod options;
mod parts;
mod phases;
mod plan;
mod quantizers;
mod stream;
mod trits;
mod vsa;
mod work;

use pyo3::prelude::*;

/// The native part of the package `trike`.
#[pymodule]
fn _trike(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add("ModelError", m.py().get_type::<errors::ModelError>())?;
    host::register(m)?;
    trits::register(m)?;
    quantizers::register(m)?;
    vsa::register(m)?;
    codecs::register(m)?;
    phases::register(m)?;
    model::register(m)?;
    jobs::register(m)?;
    #[cfg(feature = "gpu")]
    gpu::register(m)?;
    command::register(m)
}
