//! Readers and writers of model files: GGUF with ternary types, HuggingFace directories, llama2.c checkpoints.
//!
//! Start from [`detect`], which returns the kind of a file, and open it with [`Gguf`], [`HfDir`] or [`Llama2c`]. All
//! three implement [`TensorSource`]: a list of tensors that load, one at a time, as a dense, int8 or ternary
//! [`Tensor`]. [`GgufWriter`] and [`HfDirWriter`] write models.
//!
//! The decision that shaped this crate: files are memory-mapped, and a tensor is copied out of the map when it is loaded
//! ([`HfDir::tiles`] alone gives parts of the map). Opening a file of any size touches only its header, no second copy of a model
//! stays in memory, and a loaded tensor is validated once and independent of the file. The price is that copy, and a condition that
//! cannot be enforced: **a file must not be truncated or rewritten in place while it is open**. The writers of this crate replace a
//! file atomically, so they never violate it. If another program does, loading a tensor afterwards is an error
//! ([`FormatError::Changed`]); [`exit_on_unreadable_map`] handles a read that is in progress.
//!
//! The second decision: readers never guess. A type, transform, layout or version that is not implemented is rejected,
//! with its name and a remedy in the error. No file, however damaged, makes a reader panic or allocate more memory than its tensors
//! take when loaded, plus named limits. No writer changes a value: if a type cannot hold a value exactly, that is an
//! error.
//!
//! * detection: [`detect`], [`FileKind`]
//! * readers: [`TensorSource`], [`TensorInfo`], [`StoredType`]; [`Gguf`], [`gguf_parts`], [`HfDir`], [`Llama2c`]
//! * writers: [`GgufWriter`], [`GgufType`]; [`HfDirWriter`]
//! * atomic outputs of any kind: [`OutputFile`], which replaces a file when it is complete; [`Claim`] for whole models; [`Lock`]
//! * tensors: [`Tensor`], [`DenseTensor`], [`Int8Tensor`]; [`exact_trits`], [`absmean_trits`]; [`round_to_blocks`] for block types that lose
//! * GGUF metadata: [`Metadata`], [`MetaValue`], [`MetaArray`], [`StringArray`]
//! * identity of a stored result: [`Identity`], [`Digest`]
//! * errors: [`FormatError`], [`TensorError`]
//!
//! It depends on `trike-trit`, `trike-core`, `trike-host` and a few file libraries; it has no Cargo features.
#![deny(unsafe_code)]

mod bytes;
mod claim;
mod detect;
mod error;
mod gguf;
mod hf;
mod identity;
mod llama2c;
mod lock;
mod look;
mod map;
mod output;
mod spill;
mod tensor;

pub use claim::Claim;
pub use detect::{FileKind, detect};
pub use error::FormatError;
pub use gguf::{
    Gguf, GgufType, GgufWriter, MetaArray, MetaValue, Metadata, StringArray, gguf_parts, round_to_blocks,
};
pub use hf::{HfDir, HfDirWriter};
pub use identity::{Difference, Digest, Identity};
pub use llama2c::{Llama2c, Llama2cConfig};
pub use lock::Lock;
pub use output::{OutputFile, publish, remove_unfinished};
pub use tensor::{StoredType, TensorInfo, TensorSource};
pub use trike_core::{
    DenseData, DenseTensor, Int8Tensor, MAX_DIMS, Tensor, TensorError, absmean_trits, exact_trits,
};
pub use trike_host::exit_on_unreadable_map;
