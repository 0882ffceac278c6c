//! Tokenizers and chat templates compared with reference output.
//!
//! One binary for all files, since every binary is linked separately.

mod chat;
mod files;
mod keys;
mod mixed;
mod pre;
mod templates;
mod tokenizer;
mod tools;
