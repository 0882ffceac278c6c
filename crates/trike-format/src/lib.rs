//! Model files.

mod bytes;
mod dense;
mod error;
mod gguf;
mod int8;
mod llama2c;
mod map;
mod spill;
mod tensor;

pub use dense::{DenseData, DenseTensor, MAX_DIMS};
pub use error::{FormatError, TensorError};
pub use gguf::{Gguf, GgufType, GgufWriter, MetaArray, MetaValue, Metadata, StringArray};
pub use int8::Int8Tensor;
pub use llama2c::{Llama2c, Llama2cConfig};
pub use tensor::{StoredType, Tensor, TensorInfo, TensorSource};
