//! An HTTP server for a language model, with the APIs of OpenAI and Anthropic.
//!
//! Start from [`Server`]: it binds an address, and [`Server::run`] serves the requests of an [`Engine`](trike_engine::Engine) until it
//! is told to stop, or receives SIGTERM. Ctrl-C is the caller's.
//!
//! * [`Server`], [`ServeOptions`], [`ServedModel`], [`Stop`], [`Waiter`]
//! * [`ServeError`]
//!
//! Routes: `/v1/chat/completions`, `/v1/responses`, `/v1/messages`, `/v1/completions`, `/v1/embeddings`, `/v1/models`, `/tokenize`, `/detokenize`, `/apply-template`,
//! `/health`, `/props`, `/slots`, `/metrics`; `/openapi.json` describes them.
//!
//! The decision that shaped this crate: a field of a request is read, known to be without effect here, or refused by its name with
//! status 400. A schema that cannot be enforced is an error and never free text. The cost: a client that sends fields of its own
//! must leave them out.
#![forbid(unsafe_code)]

mod app;
mod chat;
mod completions;
mod conversation;
mod embeddings;
mod error;
mod fields;
mod messages;
mod options;
mod responses;
mod routes;
mod running;
mod sampling;
mod server;
mod status;
mod text;
mod tools;

pub use error::ServeError;
pub use options::{ServeOptions, ServedModel};
pub use server::{Server, Stop, Waiter};
