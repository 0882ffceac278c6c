//! Models: loading, text, sessions, ranks, against independent implementations.
//!
//! One binary for all files: each further one is linked anew.

mod architectures;
mod backends;
mod common;
mod convert;
mod device;
mod edits;
mod files;
mod gguf_text;
mod golden;
mod model;
mod own_tokenizer;
mod ranks;
mod round_trip;
mod session;
