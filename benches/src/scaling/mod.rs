//! Strong and weak scaling of training: measured on the ranks that this machine can start, compared with a model of the cost, and
//! predicted for more ranks on a network.
//!
//! Start from [`Model`], the cost of a step: latency and bandwidth of messages, time per token and per step. [`fit`] finds its
//! numbers: those of messages from [`Probe`]s between ranks of MPI, those of computing from the processor time of one rank. Runs of several
//! ranks ([`Run`]) are then the check and not part of the fit. [`predictions`] applies the same formula to other models and networks, with
//! the assumptions of [`Assumed`].
//!
//! Design decision: bytes and messages come from the formulas of `trike-comm`, which its tests compare with what ranks count, so a
//! changed exchange changes the predictions. The cost: the exchanges are listed a second time, in [`Exchange`].

mod codec;
mod evaluate;
mod exchange;
mod fit;
mod measure;
mod model;
mod predict;
mod report;

pub use codec::{CodecCost, Scheme, measure_codec, measure_mean};
pub use evaluate::{Check, Measured, Report, available_cores, checks};
pub use exchange::Exchange;
pub use fit::{Line, fit, fit_messages, fit_steps};
pub use measure::{Probe, Programs, Run, Scaling, Setting, parameters, probe, train};
pub use model::{Link, Model, Place, StepTime, Task};
pub use predict::{Assumed, ModelSize, Prediction, predictions};
pub use report::tables;
