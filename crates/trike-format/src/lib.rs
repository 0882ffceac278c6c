//! Model files, read and written: GGUF with ternary types, HuggingFace directories, llama2.c checkpoints.
//!
//! Start from [`detect`], which says what a path is, and open it with [`Gguf`], [`HfDir`] or [`Llama2c`]. All
//! three are a [`TensorSource`]: a list of tensors that load, one at a time, as a [`Tensor`]: dense, int8 or
//! ternary. [`GgufWriter`] and [`HfDirWriter`] are the way back.
//!
//! The decision a reader would question: files are mapped, and a tensor is copied out of the map when it is
//! loaded. Opening a file of any size touches its header only, nothing keeps two copies of a model, and a
//! loaded tensor has been checked once and owes the file nothing; the price is that copy, and a condition that
//! nobody can enforce: **a file must not be truncated or rewritten in place while it is open**. The writers here
//! put a finished file in place in one step, so they never break it.
//!
//! The second one: no reader guesses. A type, a transform, a layout or a version that is not implemented is
//! refused by its name with what to do, and no file, however broken, makes a reader panic or take more memory
//! than its tensors take when loaded, plus what named caps allow. No writer changes a value: what a type cannot hold
//! exactly is an error.
//!
//! * what is it: [`detect`], [`FileKind`]
//! * readers: [`TensorSource`], [`TensorInfo`], [`StoredType`]; [`Gguf`], [`HfDir`], [`Llama2c`]
//! * writers: [`GgufWriter`], [`GgufType`]; [`HfDirWriter`]
//! * tensors: [`Tensor`], [`DenseTensor`], [`Int8Tensor`]; [`exact_trits`], [`absmean_trits`]
//! * GGUF metadata: [`Metadata`], [`MetaValue`], [`MetaArray`], [`StringArray`]
//! * errors: [`FormatError`], [`TensorError`]
//!
//! It depends on the crate of the trits and a few file libraries; there are no features to turn on.

mod bytes;
mod detect;
mod error;
mod gguf;
mod hf;
mod llama2c;
mod look;
mod map;
mod spill;
mod tensor;

pub use detect::{FileKind, detect};
pub use error::FormatError;
pub use gguf::{Gguf, GgufType, GgufWriter, MetaArray, MetaValue, Metadata, StringArray};
pub use hf::{HfDir, HfDirWriter};
pub use llama2c::{Llama2c, Llama2cConfig};
pub use tensor::{StoredType, TensorInfo, TensorSource};
pub use trike_core::{
    DenseData, DenseTensor, Int8Tensor, MAX_DIMS, Tensor, TensorError, absmean_trits, exact_trits,
};
