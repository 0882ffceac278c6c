//! Per-layer storage choices, as a file that can be edited and passed back.

use std::{collections::BTreeMap, path::Path};

use serde::{Deserialize, Serialize};
use trike_llm::WeightSource;
use trike_nn::WeightName;

use crate::{CalibrateError, LayerChoice, Stored, StoredKind};

/// Value of the `format` field of a plan.
const FORMAT: &str = "trike plan 1";
/// [`FORMAT`] in backquotes, for messages.
const QUOTED_FORMAT: &str = "`trike plan 1`";

/// Storage of each layer of a model. The storage of other layers follows from the other options.
///
/// ```
/// use std::path::Path;
/// use trike_calibrate::Plan;
///
/// let text = r#"{ "format": "trike plan 1", "layers": [
///     { "name": "model.layers.0.mlp.down_proj.weight", "as": "trits", "planes": 3, "group": "64" },
///     { "name": "model.layers.0.mlp.up_proj.weight", "as": "int8" }
/// ] }"#;
/// let plan = Plan::parse(Path::new("plan.json"), text)?;
/// assert_eq!(plan.layers[1].stored.to_string(), "int8");
/// assert!(Plan::parse(Path::new("plan.json"), &text.replace("int8", "int7")).is_err());
/// # Ok::<(), trike_calibrate::CalibrateError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    format: String,
    /// The budget of the plan; informational only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub made_for: Option<String>,
    /// The layers.
    pub layers: Vec<PlannedLayer>,
}

/// A layer and how it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedLayer {
    /// Name of the layer.
    pub name: String,
    /// Storage of the layer.
    #[serde(flatten)]
    pub stored: Stored,
}

impl Plan {
    pub(crate) fn new(made_for: String, layers: Vec<PlannedLayer>) -> Self {
        Self { format: FORMAT.to_owned(), made_for: Some(made_for), layers }
    }

    /// Parses a plan; `path` is used in errors.
    ///
    /// # Errors
    ///
    /// [`CalibrateError::PlanFile`], with the position and kind of the problem.
    pub fn parse(path: &Path, text: &str) -> Result<Self, CalibrateError> {
        let plan: Self = serde_json::from_str(text)
            .map_err(|e| wrong(path, "the plan", "a plan as `Plan::to_json` writes it", e.to_string()))?;
        if plan.format != FORMAT {
            return Err(wrong(path, "format", QUOTED_FORMAT, format!("`{}`", plan.format)));
        }
        for (i, layer) in plan.layers.iter().enumerate() {
            layer.stored.choice().map_err(|(expected, got)| wrong(path, &layer.name, expected, got))?;
            if plan.layers[..i].iter().any(|l| l.name == layer.name) {
                return Err(wrong(path, &layer.name, "each layer once", "a duplicate".to_owned()));
            }
        }
        Ok(plan)
    }

    /// The plan as JSON, as [`Plan::parse`] reads it.
    pub fn to_json(&self) -> String {
        // A plan contains only strings and numbers, so serialization cannot fail.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// The choices of the plan, for [`ModelQuantizationConfig::layers`](crate::ModelQuantizationConfig::layers).
    ///
    /// # Errors
    ///
    /// [`CalibrateError::PlanFile`] for a name that is neither a linear layer of the blocks of `input` nor its embedding or head,
    /// and for trits in the latter two.
    pub fn choices(
        &self,
        path: &Path,
        input: &dyn WeightSource,
    ) -> Result<BTreeMap<String, LayerChoice>, CalibrateError> {
        let heads = [WeightName::Embedding, WeightName::Head];
        let known: BTreeMap<String, WeightName> = input
            .weights()
            .into_iter()
            .filter(|name| name.is_block_matrix() || heads.contains(name))
            .map(|name| (name.to_string(), name))
            .collect();
        let one = |layer: &PlannedLayer| {
            let Some(name) = known.get(&layer.name) else {
                let expected =
                    "the name of a linear layer of the model's blocks, of its embedding or its head";
                return Err(wrong(path, "layers", expected, format!("`{}`", layer.name)));
            };
            if heads.contains(name) && layer.stored.kind == StoredKind::Trits {
                return Err(wrong(path, &layer.name, "int8 or dense", layer.stored.to_string()));
            }
            let choice = layer.stored.choice();
            Ok((
                layer.name.clone(),
                choice.map_err(|(expected, got)| wrong(path, &layer.name, expected, got))?,
            ))
        };
        self.layers.iter().map(one).collect()
    }
}

fn wrong(path: &Path, key: &str, expected: &'static str, got: String) -> CalibrateError {
    CalibrateError::PlanFile { path: path.to_owned(), key: key.to_owned(), expected, got }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_checked() {
        let text =
            |layer: &str| format!(r#"{{"format": "trike plan 1", "layers": [{{"name": "a", {layer}}}]}}"#);
        assert!(Plan::parse(Path::new("p"), &text(r#""as": "trits", "planes": 2, "group": "row""#)).is_ok());
        for (layer, part) in [
            (r#""as": "trits", "planes": 7, "group": "32""#, "1 to 6"),
            (r#""as": "trits", "planes": 2, "group": "33""#, "32, 64"),
            (r#""as": "trits", "planes": 2"#, "32, 64"),
            (r#""as": "int8", "planes": 2"#, "only for trits"),
            (r#""as": "int4""#, "int4"),
            (r#""as": "int8"}, {"name": "a", "as": "int8""#, "each layer once"),
        ] {
            let error = Plan::parse(Path::new("p"), &text(layer)).unwrap_err().to_string();
            assert!(error.contains(part), "{layer}: {error}");
        }
        let other = text(r#""as": "int8""#).replace("plan 1", "plan 2");
        assert!(Plan::parse(Path::new("p"), &other).unwrap_err().to_string().contains("plan 2"));
    }
}
