//! Models: loading, text, sessions, ranks, against independent implementations.
//!
//! All files are in one binary, since each further one would be linked separately.

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
