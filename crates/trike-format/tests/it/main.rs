//! Readers and writers of model files, against hand-made files and other implementations.
//!
//! One binary for all files: each further one is linked anew.

mod bitnet;
mod common;
mod directories;
mod gguf;
mod gguf_python;
mod gguf_types;
mod hf_dir;
mod llama2c;
mod python;
