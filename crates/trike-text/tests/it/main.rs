//! Tokenizers and chat templates, against reference output.
//!
//! One binary for all files: each further one is linked anew.

mod chat;
mod mixed;
mod tokenizer;
