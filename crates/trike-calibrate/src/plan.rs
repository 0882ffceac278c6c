//! Which layer is stored how, as a file that can be edited and given back.

use std::{collections::BTreeMap, fmt, path::Path};

use serde::{Deserialize, Serialize};
use trike_llm::WeightSource;
use trike_quant::{Choice, QuantError, allocate};
use trike_trit::{Granularity, GroupSize, MAX_DEPTH};

use crate::{CalibrateError, LayerChoice, Sensitivity};

/// What the first line of a plan says.
const FORMAT: &str = "trike plan 1";
/// The same for messages.
const QUOTED_FORMAT: &str = "`trike plan 1`";
/// Why a plan leaves a layer as it is.
pub(crate) const NO_ROOM: &str = "no ternary form of it is within the budget";

/// How one layer is stored, as plans and reports write it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// What the layer is made of.
    #[serde(rename = "as")]
    pub kind: StoredKind,
    /// Planes of trits.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub planes: Option<usize>,
    /// Weights of a row that share a scale: 32, 64, 128, 256, or `row`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub group: Option<String>,
    /// Why it stays as it is.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
}

/// What a layer is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoredKind {
    /// Trits.
    Trits,
    /// Bytes, in groups of 32.
    Int8,
    /// As it was.
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

    /// The choice that this says; what is wrong with it, and what was expected, when it is none.
    fn choice(&self) -> Result<LayerChoice, (&'static str, String)> {
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
                reason: self.reason.clone().unwrap_or_else(|| "the plan says so".to_owned()),
            }),
            _ => Err(("`planes` and `group` for trits only", self.to_string())),
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

/// How each layer of a model is stored. Layers that a plan does not name are stored as the other options say.
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
    /// What it was made for; for readers only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub made_for: Option<String>,
    /// The layers.
    pub layers: Vec<PlannedLayer>,
}

/// A layer and how it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedLayer {
    /// Its name.
    pub name: String,
    /// How it is stored.
    #[serde(flatten)]
    pub stored: Stored,
}

impl Plan {
    pub(crate) fn new(made_for: String, layers: Vec<PlannedLayer>) -> Self {
        Self { format: FORMAT.to_owned(), made_for: Some(made_for), layers }
    }

    /// Reads a plan; `path` is for errors.
    ///
    /// # Errors
    ///
    /// [`CalibrateError::PlanFile`], which says what is wrong where.
    pub fn parse(path: &Path, text: &str) -> Result<Self, CalibrateError> {
        let plan: Self = serde_json::from_str(text)
            .map_err(|e| wrong(path, "the plan", "a plan as `trike quantize` writes it", e.to_string()))?;
        if plan.format != FORMAT {
            return Err(wrong(path, "format", QUOTED_FORMAT, format!("`{}`", plan.format)));
        }
        for (i, layer) in plan.layers.iter().enumerate() {
            layer.stored.choice().map_err(|(expected, got)| wrong(path, &layer.name, expected, got))?;
            if plan.layers[..i].iter().any(|l| l.name == layer.name) {
                return Err(wrong(path, &layer.name, "each layer once", "it again".to_owned()));
            }
        }
        Ok(plan)
    }

    /// The file's text.
    pub fn to_json(&self) -> String {
        // A plan is strings and numbers, which always serialize.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// What the plan says of each layer, for [`ModelQuantizationConfig::layers`](crate::ModelQuantizationConfig::layers).
    ///
    /// # Errors
    ///
    /// [`CalibrateError::PlanFile`] for a layer that `input` has not or that a plan has no say in.
    pub fn choices(
        &self,
        path: &Path,
        input: &dyn WeightSource,
    ) -> Result<BTreeMap<String, LayerChoice>, CalibrateError> {
        let known: Vec<String> = input
            .weights()
            .into_iter()
            .filter(|name| name.is_block_matrix())
            .map(|name| name.to_string())
            .collect();
        let one = |layer: &PlannedLayer| {
            if !known.contains(&layer.name) {
                let expected = "the name of a linear layer of the model's blocks";
                return Err(wrong(path, "layers", expected, format!("`{}`", layer.name)));
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

/// The choices of each layer that lose least within `budget` bytes.
pub(crate) fn solve(sensitivities: &[Sensitivity], budget: u64) -> Result<Vec<usize>, QuantError> {
    let lists: Vec<Vec<Choice>> = sensitivities
        .iter()
        .map(|s| s.choices.iter().map(|c| Choice { bytes: c.bytes, loss: c.kl }).collect())
        .collect();
    allocate(&lists, budget)
}

/// The same for the fewest bytes that are expected to lose at most `loss`.
pub(crate) fn solve_loss(sensitivities: &[Sensitivity], loss: f64) -> Result<Vec<usize>, QuantError> {
    let extreme = |pick: fn(u64, u64) -> u64| -> u64 {
        let of = |s: &Sensitivity| s.choices.iter().map(|c| c.bytes).reduce(pick).unwrap_or(0);
        sensitivities.iter().map(of).sum()
    };
    let (mut low, mut high) = (extreme(u64::min), extreme(u64::max));
    while high - low > (high / 2048).max(1) {
        let middle = low + (high - low) / 2;
        match totals(sensitivities, &solve(sensitivities, middle)?).1 <= loss {
            true => high = middle,
            false => low = middle,
        }
    }
    solve(sensitivities, high)
}

/// Bytes and expected loss of some choices.
pub(crate) fn totals(sensitivities: &[Sensitivity], chosen: &[usize]) -> (u64, f64) {
    let picked = sensitivities.iter().zip(chosen).map(|(s, &c)| &s.choices[c]);
    picked.fold((0, 0.0), |(bytes, kl), c| (bytes + c.bytes, kl + c.kl))
}

/// The plan that some choices are. A layer that stays dense says what ternary would have cost.
pub(crate) fn plan(sensitivities: &[Sensitivity], chosen: &[usize], made_for: String) -> Plan {
    let (_, loss) = totals(sensitivities, chosen);
    let mut layers = Vec::new();
    for (sensitivity, &chosen) in sensitivities.iter().zip(chosen) {
        let choice = &sensitivity.choices[chosen];
        let mut stored = choice.stored.clone();
        if stored.kind == StoredKind::Dense {
            let others = sensitivity.choices.iter().filter(|c| c.stored.kind != StoredKind::Dense);
            if let Some(best) = others.min_by(|a, b| a.kl.total_cmp(&b.kl)) {
                stored.reason = Some(format!(
                    "{NO_ROOM}: the nearest, {}, alone costs {:.2e} nats a token, all other layers together {loss:.2e}",
                    best.stored, best.kl
                ));
            }
        }
        layers.push(PlannedLayer { name: sensitivity.layer.clone(), stored });
    }
    Plan::new(made_for, layers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Measured;

    fn group(name: &str, harm: f64) -> Sensitivity {
        let trits = |planes, bytes, kl| Measured {
            stored: Stored::of(&LayerChoice::Trits {
                planes,
                granularity: Granularity::Group(GroupSize::G64),
            }),
            bytes,
            kl,
        };
        let dense = LayerChoice::Dense { reason: NO_ROOM.to_owned() };
        Sensitivity {
            layer: name.to_owned(),
            weights: 100,
            choices: vec![
                trits(1, 20, harm),
                trits(2, 40, harm / 8.0),
                trits(3, 60, harm / 64.0),
                Measured { stored: Stored::of(&dense), bytes: 400, kl: 0.0 },
            ],
        }
    }

    #[test]
    fn what_hurts_gets_planes() {
        let groups = [group("calm", 0.1), group("touchy", 10.0)];
        let chosen = solve(&groups, 80).unwrap();
        assert_eq!(chosen, [0, 2]);
        assert_eq!(totals(&groups, &chosen).0, 80);
        assert!(solve(&groups, 39).unwrap_err().to_string().contains("40"));
        // The fewest bytes for a loss, and not one more than needed.
        let chosen = solve_loss(&groups, 0.3).unwrap();
        assert_eq!((chosen, totals(&groups, &[0, 2]).1 <= 0.3), (vec![0, 2], true));
        assert_eq!(solve_loss(&groups, 0.0).unwrap(), [3, 3]);
        let plan = plan(&groups, &[0, 3], "a test".to_owned());
        assert_eq!(plan.layers.len(), 2);
        let reason = plan.layers[1].stored.reason.clone().unwrap();
        assert!(reason.contains("3 planes/64") && reason.contains("1.56e-1"), "{reason}");
        assert_eq!(Plan::parse(Path::new("p"), &plan.to_json()).unwrap(), plan);
    }

    #[test]
    fn plans_are_checked() {
        let text =
            |layer: &str| format!(r#"{{"format": "trike plan 1", "layers": [{{"name": "a", {layer}}}]}}"#);
        assert!(Plan::parse(Path::new("p"), &text(r#""as": "trits", "planes": 2, "group": "row""#)).is_ok());
        for (layer, part) in [
            (r#""as": "trits", "planes": 7, "group": "32""#, "1 to 6"),
            (r#""as": "trits", "planes": 2, "group": "33""#, "32, 64"),
            (r#""as": "trits", "planes": 2"#, "32, 64"),
            (r#""as": "int8", "planes": 2"#, "for trits only"),
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
