//! The model that the `trike` command carries, so that an installed command has one to run.
//!
//! Start from [`TINY`], the files of the model. The decision that shaped this crate: the files are part of the program and not
//! of its installation, because `cargo install` installs programs only. The cost: 0.7 MB in the program, and a copy in the
//! user's cache, because models are mapped from files.
#![forbid(unsafe_code)]

/// A file of a model: its name and its content.
pub type File = (&'static str, &'static [u8]);

/// A ternary Llama with 2.4 million weights, trained on TinyStories: it continues children's stories, and cannot chat.
///
/// ```
/// let config = trike_models::TINY.iter().find(|(name, _)| *name == "config.json");
/// assert!(config.is_some_and(|(_, content)| content.starts_with(b"{")));
/// ```
pub const TINY: &[File] = &[
    ("config.json", include_bytes!("../tiny/config.json")),
    ("generation_config.json", include_bytes!("../tiny/generation_config.json")),
    ("model.safetensors", include_bytes!("../tiny/model.safetensors")),
    ("tokenizer.json", include_bytes!("../tiny/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../tiny/tokenizer_config.json")),
];
