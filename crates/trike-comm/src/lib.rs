//! Distributed training: messages between ranks, sums whose bits do not depend on the number of ranks, and codecs that compress
//! gradients.
//!
//! A [`Communicator`] connects the ranks of a run. Those of one process are [`Threads`]; the feature `mpi` adds processes that
//! `mpirun` starts (`Mpi`). Sums run on the host: ranks with a GPU read their gradients back first.
//!
//! Gradients are summed in a tree over the numbers of the micro-batches ([`ReductionPlan`]), so one, two and four ranks give the
//! same bits. A [`Codec`] replaces this exact sum by a compressed approximate mean; the error is kept for the next step (error
//! feedback, Karimireddy et al., 1901.09847). [`CodecConfig`] builds one; the module [`codec`] compares them.
//!
//! ```
//! use trike_comm::{PartialSum, ReductionPlan, Threads, TreeSum};
//!
//! // Four micro-batches, the gradient of each is its number.
//! let sums = Threads::run(2, |comm| {
//!     let plan = ReductionPlan::new(4, &comm);
//!     let mut sum = TreeSum::default();
//!     for block in plan.blocks() {
//!         let gradient = plan.units(block).map(|unit| unit as f32).sum();
//!         sum.push(block, Some([gradient]), |a, b| a[0] += b[0]);
//!     }
//!     let mut all = [f32::NAN];
//!     let parts = sum.into_parts();
//!     let parts: Vec<PartialSum<&[f32]>> = parts.iter().map(PartialSum::as_ref).collect();
//!     plan.all_reduce(&comm, &parts, &mut all)?;
//!     Ok::<f32, trike_comm::CommError>(all[0])
//! });
//! assert_eq!(sums, [Ok(6.0), Ok(6.0)]);
//! ```

mod agree;
pub mod codec;
mod communicator;
mod endpoint;
mod error;
mod floats;
#[cfg(feature = "mpi")]
mod mpi;
mod place;
mod sum;
mod threads;

pub use agree::agree;
pub use codec::{Codec, CodecConfig, MessageCodec};
pub use communicator::{Communicator, Traffic};
pub use endpoint::{Endpoint, Transport};
pub use error::CommError;
pub use floats::{exchange_floats, receive_floats, send_floats};
#[cfg(feature = "mpi")]
pub use mpi::{Mpi, World};
pub use place::{RankPlace, rank_places};
pub use sum::{PartialSum, ReductionPlan, Shards, TreeSum, Volume, broadcast_floats, mean};
pub use threads::Threads;
