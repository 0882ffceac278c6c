//! Tokenizers and chat templates, against reference output.
//!
//! One binary for all files: each further one is linked anew.

mod chat;
mod files;
mod keys;
mod mixed;
mod pre;
mod templates;
mod tokenizer;
