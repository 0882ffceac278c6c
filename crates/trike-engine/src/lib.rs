//! Many requests for one language model at once.
//!
//! Start from [`Engine`]: a thread that owns the model and runs the requests that others submit. Decoding is limited by memory
//! bandwidth, so each weight that is read serves all requests of a step, and a second conversation costs little.
//!
//! * [`Engine`], [`EngineOptions`]
//! * [`Request`], [`Ticket`], [`Event`], [`Outcome`]
//! * [`Metrics`] with [`Histogram`], [`Slot`]
//! * [`EngineError`]
//!
//! How a step is made: every text that is being generated gets one token, and prompts share a budget of tokens, in the order of
//! their arrival; a long prompt is read in parts beside the others' tokens. Requests join and leave between any two steps.
//!
//! Invariant: the result of a request does not depend on what else runs, bit by bit on the CPU. A row of a step does not depend on
//! the other rows, whatever parts a prompt is read in, and a preempted text is read again the way it was generated. One thing is by
//! choice not part of it: with [`EngineOptions::reuse_generated`], the keys and values of a generated text are reused by a prompt that
//! continues it, and those differ from the ones of a prompt in their last bits.
//!
//! The decision that shaped this crate: keys and values are in pages of [`KV_PAGE`](trike_nn::KV_PAGE) positions, referred to by
//! sequences and by a tree over the tokens of earlier texts. A prompt that begins like an earlier one shares its pages; a page is
//! copied when one of its owners writes to it. Backends without pages (devices) run the same batches without sharing.
#![forbid(unsafe_code)]

mod active;
mod engine;
mod error;
mod metrics;
mod options;
mod prefix;
mod request;
mod scheduler;

pub use engine::{Engine, LoadedModel};
pub use error::EngineError;
pub use metrics::{Histogram, Metrics, Slot};
pub use options::EngineOptions;
pub use request::{Event, Outcome, Request, Ticket};
