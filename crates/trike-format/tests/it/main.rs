//! Readers and writers of model files, against handmade files and other implementations.
//!
//! One binary for all files, since every binary is linked separately.

mod bitnet;
mod common;
mod directories;
mod gguf;
mod gguf_python;
mod gguf_types;
mod hf_dir;
mod llama2c;
mod python;
