//! The decoder for training: f32 parameters, and gradients with respect to all of them.

mod adapter;
mod backward;
mod block;
mod forward;
mod objective;
mod parameters;
mod partition;
mod parts;
mod pass;
mod resident;
mod sharded;
mod stage;
mod tensor;
mod weights;

pub(crate) use adapter::targeted;
pub use adapter::{Adapter, AdapterError, LoraConfig, LoraTarget, MergeReport, MergedMatrix};
pub(crate) use backward::GradientSource;
pub use forward::Trained;
pub(crate) use forward::check_gradients;
pub use objective::{EMBEDDING_GROUP, Loss, Objective, TeacherLogits, TernaryPolicy};
pub use parameters::{Parameter, Parameters, Part};
pub(crate) use parameters::{shapes, zeros};
pub(crate) use partition::Partition;
pub(crate) use pass::{ByPlace, GradientSink};
pub use resident::{Resident, TrainEngine};
pub(crate) use sharded::ShardedModel;
pub use stage::Stage;
pub(crate) use stage::{StageModel, count};
pub(crate) use tensor::Prepared;
pub use tensor::TensorShard;
pub use weights::Weights;
