//! Training data: documents of files, their tokens, and batches of them.
//!
//! [`Documents`] is an index of the records of text, JSONL and Parquet files, which are read on demand. An [`Encoder`] tokenizes a
//! record and masks the tokens that do not count in the loss. [`Batches`] packs the tokens of all documents, in an order determined
//! by seed and epoch, and can start from any [`Position`]. A [`DocumentSampler`](crate::DocumentSampler) generates further
//! documents with a teacher.

mod batches;
mod documents;
mod encoder;
mod keys;
mod list;
mod messages;
mod order;
#[cfg(feature = "parquet")]
mod parquet;
mod record;

pub(crate) use batches::unit_rows;
pub use batches::{Batch, BatchConfig, Batches, Cut, Position};
pub use documents::Documents;
pub use encoder::{EncodeError, Encoder, Tokens};
pub use messages::ChatRecord;
pub use order::{HeldOut, permutation};
pub use record::{DataRecord, RecordKind};
