//! Storage of one layer.

use std::fmt;

use serde::{Deserialize, Serialize};
use trike_trit::{Granularity, GroupSize, MAX_DEPTH};

use crate::LayerChoice;

/// Storage of one layer, in the form of plans and reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// Kind of storage.
    #[serde(rename = "as")]
    pub kind: StoredKind,
    /// Number of trit planes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub planes: Option<usize>,
    /// Weights of a row that share a scale: 32, 64, 128, 256, or `row`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub group: Option<String>,
    /// The reason why the layer is not quantized.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
}

/// Kind of storage of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoredKind {
    /// Trits.
    Trits,
    /// int8, in groups of 32.
    Int8,
    /// Unchanged.
    Dense,
}

impl Stored {
    pub(crate) fn of(choice: &LayerChoice) -> Self {
        let bare = |kind| Self { kind, planes: None, group: None, reason: None };
        match choice {
            LayerChoice::Trits { planes, granularity } => {
                let group = granularity.to_string().replace("group", "");
                Self { planes: Some(*planes), group: Some(group), ..bare(StoredKind::Trits) }
            }
            LayerChoice::Int8 => bare(StoredKind::Int8),
            LayerChoice::Dense { reason } => Self { reason: Some(reason.clone()), ..bare(StoredKind::Dense) },
        }
    }

    /// The corresponding choice; on an error, what was expected and what was found.
    pub(crate) fn choice(&self) -> Result<LayerChoice, (&'static str, String)> {
        let group = || match self.group.as_deref() {
            Some("row") => Some(Granularity::Row),
            Some(size) => size.parse().ok().and_then(GroupSize::from_usize).map(Granularity::Group),
            None => None,
        };
        match (self.kind, self.planes, &self.group) {
            (StoredKind::Trits, Some(planes @ 1..=MAX_DEPTH), _) => match group() {
                Some(granularity) => Ok(LayerChoice::Trits { planes, granularity }),
                None => Err(("`group` of 32, 64, 128, 256 or row", format!("{:?}", self.group))),
            },
            (StoredKind::Trits, planes, _) => Err(("1 to 6 `planes`", format!("{planes:?}"))),
            (StoredKind::Int8, None, None) => Ok(LayerChoice::Int8),
            (StoredKind::Dense, None, None) => Ok(LayerChoice::Dense {
                reason: self.reason.clone().unwrap_or_else(|| "kept dense by the plan".to_owned()),
            }),
            _ => Err(("`planes` and `group` only for trits", self.to_string())),
        }
    }
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.kind, self.planes, &self.group) {
            (StoredKind::Trits, Some(planes), Some(group)) => {
                write!(f, "{planes} {}/{group}", if planes == 1 { "plane" } else { "planes" })
            }
            (StoredKind::Trits, ..) => f.write_str("trits"),
            (StoredKind::Int8, ..) => f.write_str("int8"),
            (StoredKind::Dense, ..) => f.write_str("dense"),
        }
    }
}
