//! Other settings of the same model, and their sizes.

use std::collections::BTreeMap;

use serde::Serialize;
use trike_quant::{MatrixView, QuantizeConfig, TritLayout, quantize_matrix};
use trike_trit::{Granularity, GroupSize, MAX_DEPTH};

use super::{CurvePoint, LayerReport};
use crate::{LayerChoice, ModelQuantizationConfig, QuantizeReport, Sensitivity, Stored};

/// Common granularities, from fine to coarse.
const GROUPS: [Granularity; 5] = [
    Granularity::Group(GroupSize::G32),
    Granularity::Group(GroupSize::G64),
    Granularity::Group(GroupSize::G128),
    Granularity::Group(GroupSize::G256),
    Granularity::Row,
];
/// For a model with different layers: the number of uniform settings listed on either side of its size.
const NEXT: usize = 2;

/// A uniform setting, with the same planes and groups in every layer; no such model is stored. Sizes follow from the shapes;
/// quality is given only if it was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Alternative {
    /// Planes and group size of the layers, as in a plan.
    #[serde(flatten)]
    pub stored: Stored,
    /// Whether this is the setting of the model itself.
    pub current: bool,
    /// Bits per weight of these layers.
    pub bits_per_weight: f64,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// Sum of the sensitivities of the layers, each with the rest of the model dense: an estimate of the
    /// divergence before tuning, in nats per token.
    pub predicted_kl: Option<f64>,
    /// Ratio of the perplexity to that of the dense model, if a curve was measured.
    pub ratio: Option<f64>,
    /// Divergence from the dense model in nats per token, if a curve was measured.
    pub kl: Option<f64>,
}

/// The nearest alternatives: one plane fewer and one more, and the other group sizes. For a model whose layers differ, the uniform
/// settings closest in size. Empty if sizes depend on the weights.
pub(crate) fn listed(
    layers: &[LayerReport],
    config: &ModelQuantizationConfig,
    output_bytes: u64,
) -> Vec<Alternative> {
    // Unchanged layers of a plan could have been ternary.
    let varied: Vec<&LayerReport> =
        layers.iter().filter(|l| l.kept.is_none() || config.layers.contains_key(&l.name)).collect();
    let present: u64 = varied.iter().map(|l| l.bytes).sum();
    let weights: u64 = varied.iter().map(|l| (l.rows * l.cols) as u64).sum();
    let others = output_bytes.saturating_sub(present);
    if weights == 0 || config.auto_encoding || config.prune.is_some() {
        return Vec::new();
    }
    // Scales out of the range of f16 are stored as f32, and the size of some encodings depends on the zeros: sizes follow from the
    // shapes only if those of the model itself do.
    let own_size = |l: &LayerReport| stored_size(l.rows, l.cols, config.layout_of(&l.name));
    if varied.iter().any(|l| l.zeros.is_some() && own_size(l) != Some(l.bytes)) {
        return Vec::new();
    }
    let mut shapes: BTreeMap<(usize, usize), u64> = BTreeMap::new();
    for l in &varied {
        *shapes.entry((l.rows, l.cols)).or_default() += 1;
    }
    let one = |depth: usize, granularity: Granularity, current: bool| {
        let layout = config.layout.with_depth(depth).with_granularity(granularity);
        let sizes =
            shapes.iter().map(|(&(rows, cols), n)| stored_size(rows, cols, layout).map(|size| n * size));
        let bytes: u64 = sizes.sum::<Option<u64>>()?;
        Some(Alternative {
            stored: Stored::of(&LayerChoice::Trits { planes: depth, granularity }),
            current,
            bits_per_weight: 8.0 * bytes as f64 / weights as f64,
            bytes: others + bytes,
            predicted_kl: None,
            ratio: None,
            kl: None,
        })
    };
    let (depth, granularity) = (config.layout.depth, config.layout.granularity);
    let mut all: Vec<Alternative> = if config.layers.is_empty() {
        let Some(own) = one(depth, granularity, true) else { return Vec::new() };
        let depths = [depth.wrapping_sub(1), depth + 1].into_iter().filter(|d| (1..=MAX_DEPTH).contains(d));
        let by_depth = depths.filter_map(|d| one(d, granularity, false));
        let by_group = GROUPS.iter().filter_map(|&group| one(depth, group, false));
        let mut all = vec![own];
        for other in by_depth.chain(by_group) {
            // In narrow layers several group sizes coincide.
            if all.iter().all(|known| known.bytes != other.bytes) {
                all.push(other);
            }
        }
        all
    } else {
        let settings = (1..=MAX_DEPTH).flat_map(|depth| GROUPS.map(|group| (depth, group)));
        let mut all: Vec<Alternative> =
            settings.filter_map(|(depth, group)| one(depth, group, false)).collect();
        all.sort_by_key(|a| a.bytes);
        all.dedup_by_key(|a| a.bytes);
        let larger = all.partition_point(|a| a.bytes <= output_bytes);
        all.truncate(larger + NEXT);
        all.split_off(larger.saturating_sub(NEXT))
    };
    all.sort_by_key(|a| a.bytes);
    all
}

/// Bytes of a matrix in a layout; `None` if weights of this shape cannot have the layout.
fn stored_size(rows: usize, cols: usize, layout: TritLayout) -> Option<u64> {
    // The size does not depend on the values of a row.
    let zeros = vec![0.0; cols];
    let view = MatrixView::new(1, cols, &zeros).ok()?;
    let (row, _) = quantize_matrix(view, &QuantizeConfig::default().with_layout(layout)).ok()?;
    let rows = if layout.granularity == Granularity::Tensor { return None } else { rows };
    Some((row.bytes() * rows) as u64)
}

/// Number of weights per scale in a row of `cols` weights: in a narrow layer several group sizes coincide.
fn span(stored: &Stored, cols: usize) -> usize {
    stored.group.as_deref().and_then(|group| group.parse().ok()).map_or(cols, |size: usize| size.min(cols))
}

impl QuantizeReport {
    /// Adds the estimates that follow from the sensitivities, for settings in which all layers were estimated.
    pub(crate) fn fill_predicted(&mut self, sensitivities: &[Sensitivity]) {
        let cols = |layer: &str| self.layers.iter().find(|l| l.name == layer).map(|l| l.cols);
        let predicted = |wanted: &Stored| -> Option<f64> {
            let kl = |s: &Sensitivity| {
                let key = |stored: &Stored| Some((stored.planes?, span(stored, cols(&s.layer)?)));
                let wanted = key(wanted)?;
                s.choices.iter().find(|c| key(&c.stored) == Some(wanted)).map(|choice| choice.kl)
            };
            let layers = sensitivities.iter().filter(|s| s.choices.iter().any(|c| c.stored.planes.is_some()));
            layers.map(kl).sum()
        };
        let all: Vec<Option<f64>> = self.alternatives.iter().map(|a| predicted(&a.stored)).collect();
        for (alternative, kl) in self.alternatives.iter_mut().zip(all) {
            alternative.predicted_kl = kl;
        }
    }

    /// Adds the measured figures of a uniform setting with that many planes.
    pub(crate) fn fill_measured(
        &mut self,
        planes: usize,
        config: &ModelQuantizationConfig,
        point: &CurvePoint,
    ) {
        let granularity = config.layout.granularity;
        let setting = Stored::of(&LayerChoice::Trits { planes, granularity });
        for alternative in self.alternatives.iter_mut().filter(|a| a.stored == setting) {
            (alternative.ratio, alternative.kl) = (Some(point.ratio), Some(point.kl));
        }
    }
}
