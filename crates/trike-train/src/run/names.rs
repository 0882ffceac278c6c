//! Values of configuration settings, with axolotl's names.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use trike_comm::CodecConfig;

use crate::data::RecordKind;

/// A file of training data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dataset {
    /// A text, JSON or Parquet file, see [`Documents`](crate::data::Documents).
    pub path: PathBuf,
    /// The format of its records; detected from their keys by default.
    #[serde(default, rename = "type", skip_serializing_if = "is_any")]
    pub kind: RecordKind,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_any(kind: &RecordKind) -> bool {
    *kind == RecordKind::Any
}

/// Shape of the learning rate schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheduler {
    /// Half a cosine: [`crate::ScheduleShape::Cosine`].
    #[default]
    Cosine,
    /// Constant after the warm-up.
    #[serde(alias = "constant_with_warmup")]
    Constant,
    /// Linearly down to 0: [`crate::ScheduleShape::Linear`].
    Linear,
    /// Stable, then linear decay: [`crate::ScheduleShape::Wsd`].
    #[serde(alias = "warmup_stable_decay")]
    Wsd,
    /// The two stages of BitNet b1.58 2B4T: [`crate::ScheduleShape::TwoStage`].
    TwoStage,
}

/// Weights per scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Sharing {
    /// Consecutive weights of a row: 32, 64, 128 or 256.
    Group(usize),
    /// `"row"` or `"tensor"`.
    Named(Whole),
}

/// Weights per scale, other than groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Whole {
    /// A row.
    Row,
    /// A matrix.
    Tensor,
}

/// How scales are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScaleKind {
    /// [`TernaryScale::AbsMean`](trike_autodiff::TernaryScale::AbsMean).
    #[default]
    #[serde(alias = "absmean")]
    AbsMean,
    /// [`TernaryScale::LeastSquares`](trike_autodiff::TernaryScale::LeastSquares).
    LeastSquares,
}

/// Compression of the messages between ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CodecName {
    /// No compression.
    #[default]
    None,
    /// [`CodecConfig::Ternary`].
    Ternary,
    /// [`CodecConfig::Sign`].
    Sign,
    /// [`CodecConfig::TOP_K`].
    TopK,
    /// [`CodecConfig::DEMO`].
    Demo,
    /// [`CodecConfig::LOW_RANK`].
    LowRank,
    /// [`CodecConfig::SPARSE_LOCO`].
    Sparse,
    /// [`CodecConfig::SKETCH`].
    Sketch,
}

impl CodecName {
    /// The codec with its default settings.
    pub(super) fn config(self) -> Option<CodecConfig> {
        match self {
            Self::None => None,
            Self::Ternary => Some(CodecConfig::Ternary),
            Self::Sign => Some(CodecConfig::Sign),
            Self::TopK => Some(CodecConfig::TOP_K),
            Self::Demo => Some(CodecConfig::DEMO),
            Self::LowRank => Some(CodecConfig::LOW_RANK),
            Self::Sparse => Some(CodecConfig::SPARSE_LOCO),
            Self::Sketch => Some(CodecConfig::SKETCH),
        }
    }
}

/// Parallelism of the ranks of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Parallel {
    /// Data parallelism: each rank holds the whole model and computes some rows of a step, see
    /// [`Trainer::with_ranks`](crate::Trainer::with_ranks).
    #[default]
    Data,
    /// Pipeline parallelism: each rank holds consecutive blocks of the model and computes them for all rows, see
    /// [`Trainer::in_pipeline`](crate::Trainer::in_pipeline).
    Pipeline,
    /// Tensor parallelism: each rank holds some rows of every matrix and computes them for all rows of a step, see
    /// [`Trainer::in_tensor_parallel`](crate::Trainer::in_tensor_parallel).
    Tensor,
}

/// Names of optimizers in axolotl.
pub(super) mod optimizer_name {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::OptimizerKind;

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub(in crate::run) fn serialize<S: Serializer>(kind: &OptimizerKind, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(match kind {
            OptimizerKind::AdamW => "adamw",
            OptimizerKind::Muon => "muon",
            OptimizerKind::Sgd => "sgd",
        })
    }

    pub(in crate::run) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<OptimizerKind, D::Error> {
        let name = String::deserialize(from)?;
        match name.as_str() {
            "adamw" | "adamw_torch" | "adamw_torch_fused" | "adamw_hf" => Ok(OptimizerKind::AdamW),
            "muon" => Ok(OptimizerKind::Muon),
            "sgd" => Ok(OptimizerKind::Sgd),
            other => Err(D::Error::unknown_variant(other, &["adamw", "adamw_torch", "muon", "sgd"])),
        }
    }
}
