//! Quantization of one linear layer, and its report.

use std::time::Instant;

use trike_core::{DenseData, DenseTensor, Int8Tensor, Tensor};
use trike_llm::WeightSource;
use trike_nn::WeightName;
use trike_quant::{MatrixView, QuantizeConfig, quantize_matrix};
use trike_trit::TritTensor;

use super::solver::Solver;
use crate::{
    CalibrateError, LayerChoice, LayerReport, ModelQuantizationConfig, QuantizeMethod, assemble::HEAD_GROUP,
    factors::output_error, packing, weights::rotated,
};

/// An input has outliers if its largest magnitude exceeds its root mean square by this factor.
const OUTLIER: f64 = 10.0;

/// The report of a layer that is not quantized; `None` for one that is.
pub(super) fn kept_layer(
    source: &dyn WeightSource,
    config: &ModelQuantizationConfig,
    name: WeightName,
) -> Result<Option<LayerReport>, CalibrateError> {
    let info = source.info(name)?;
    let weights = info.elements();
    let text = name.to_string();
    let reason = if info.kind.is_ternary() || matches!(source.load(name)?, Tensor::Ternary(_)) {
        "it is ternary already".to_owned()
    } else if config.skips(&text) {
        "it matches a skip pattern".to_owned()
    } else if let Some(LayerChoice::Dense { reason }) = config.layers.get(&text) {
        reason.clone()
    } else if (weights as u128) < config.min_layer_size as u128 {
        format!("it has {weights} weights, fewer than {}", config.min_layer_size)
    } else {
        return Ok(None);
    };
    let bytes = source.stored_bytes(name)?;
    Ok(Some(LayerReport {
        name: text,
        rows: info.shape.first().copied().unwrap_or(0),
        cols: info.shape.last().copied().unwrap_or(0),
        kept: Some(reason),
        stored: info.kind.to_string(),
        bytes,
        bits_per_weight: 8.0 * bytes as f64 / weights.max(1) as f64,
        weight_error: None,
        output_error: None,
        zeros: None,
        damping: None,
        dead_inputs: None,
        outlier_inputs: None,
        seconds: 0.0,
    }))
}

/// Quantizes a layer to trits, or to int8 if the plan requires it: by error compensation if there is a `solver`, else
/// by rounding.
pub(super) fn quantize_layer(
    source: &dyn WeightSource,
    config: &ModelQuantizationConfig,
    name: WeightName,
    mut solver: Option<&mut Solver<'_>>,
) -> Result<(Tensor, LayerReport), CalibrateError> {
    let start = Instant::now();
    let tensor = source.load(name)?;
    let (rows, cols) = (tensor.rows(), tensor.cols());
    let weights = tensor.into_f32();
    let failed = |e| CalibrateError::quantize(name, e);
    let view = MatrixView::new(rows, cols, &weights).map_err(failed)?;
    let layout = config.layout_of(&name.to_string());
    if config.layers.get(&name.to_string()) == Some(&LayerChoice::Int8) {
        let dense = DenseTensor::new(vec![rows, cols], DenseData::F32(weights))?;
        let int8 = Int8Tensor::quantize(&dense, HEAD_GROUP.min(cols), true)?;
        return Ok(int8_layer(name, &dense, int8, solver.as_deref(), start));
    }
    let (tensor, output_error) = match &mut solver {
        Some(solver) => {
            let (tensor, error) = solver.solve(view, layout, config.prune.as_ref()).map_err(failed)?;
            (tensor, Some(error))
        }
        None => {
            let rule = match config.method {
                QuantizeMethod::Round(rule) => rule,
                QuantizeMethod::Compensate(_) => QuantizeConfig::default().rule,
            };
            let how = QuantizeConfig::default().with_rule(rule).with_layout(layout);
            let rotation = config.rotation_of(name, cols);
            let turned = rotated(rotation, cols, &weights).map_err(failed)?;
            let view = MatrixView::new(rows, cols, &turned).map_err(failed)?;
            let tensor = quantize_matrix(view, &how).map_err(failed)?.0;
            (tensor.with_rotation(rotation).map_err(|e| CalibrateError::quantize(name, e.into()))?, None)
        }
    };
    let tensor = match config.auto_encoding {
        true => packing::packed(tensor)?,
        false => tensor,
    };
    let (weight_error, zeros) = measured(&weights, &tensor);
    let mut report = LayerReport {
        name: name.to_string(),
        rows,
        cols,
        kept: None,
        bytes: tensor.bytes() as u64,
        bits_per_weight: tensor.bits_per_weight(),
        stored: layout_name(&tensor),
        weight_error,
        output_error,
        zeros,
        damping: None,
        dead_inputs: None,
        outlier_inputs: None,
        seconds: start.elapsed().as_secs_f64(),
    };
    if let Some(solver) = solver {
        let factor = solver.factor(layout.granularity).map_err(failed)?;
        (report.damping, report.dead_inputs) = (Some(factor.damping()), Some(factor.dead_inputs()));
        report.outlier_inputs = Some(solver.inputs.outliers(OUTLIER));
    }
    Ok((tensor.into(), report))
}

/// Updates the statistics of the weights after tuning.
pub(super) fn renew<'t>(
    source: &dyn WeightSource,
    layers: &mut [LayerReport],
    tensors: impl Iterator<Item = &'t (WeightName, Tensor)>,
) -> Result<(), CalibrateError> {
    for (name, tensor) in tensors {
        let Tensor::Ternary(tensor) = tensor else { continue };
        let text = name.to_string();
        if let Some(report) = layers.iter_mut().find(|l| l.name == text) {
            let weights = source.load(*name)?.into_f32();
            (report.weight_error, report.zeros) = measured(&weights, tensor);
            report.bytes = tensor.bytes() as u64;
            report.stored = layout_name(tensor);
            report.bits_per_weight = tensor.bits_per_weight();
        }
    }
    Ok(())
}

/// An int8 layer with its report.
fn int8_layer(
    name: WeightName,
    dense: &DenseTensor,
    int8: Int8Tensor,
    solver: Option<&Solver<'_>>,
    start: Instant,
) -> (Tensor, LayerReport) {
    let (rows, cols) = (int8.rows(), int8.cols());
    let (before, after) = (dense.to_f32(), int8.dequantize());
    let output_error =
        solver.and_then(|s| Some(output_error(s.cpu, &before, &after, &s.factors.hessian).ok()?.sqrt()));
    let report = LayerReport {
        name: name.to_string(),
        rows,
        cols,
        kept: None,
        stored: "int8".to_owned(),
        bytes: int8.bytes() as u64,
        bits_per_weight: 8.0 * int8.bytes() as f64 / (rows * cols) as f64,
        weight_error: Some(relative_error(&before, &after)),
        output_error,
        zeros: None,
        damping: None,
        dead_inputs: None,
        outlier_inputs: None,
        seconds: start.elapsed().as_secs_f64(),
    };
    (int8.into(), report)
}

/// Relative error of a ternary weight, and its fraction of zero trits.
fn measured(weights: &[f32], tensor: &TritTensor) -> (Option<f64>, Option<f64>) {
    let trits = (weights.len() * tensor.depth()) as f64;
    (Some(relative_error(weights, &tensor.dequantize())), Some(tensor.zeros() as f64 / trits))
}

/// `||w - v|| / ||w||`.
fn relative_error(w: &[f32], v: &[f32]) -> f64 {
    let lost: f64 = w.iter().zip(v).map(|(w, v)| f64::from(w - v).powi(2)).sum();
    let whole: f64 = w.iter().map(|w| f64::from(*w).powi(2)).sum();
    if whole > 0.0 { (lost / whole).sqrt() } else { 0.0 }
}

/// Description of the storage of a ternary layer, for reports.
fn layout_name(tensor: &TritTensor) -> String {
    let planes = if tensor.depth() == 1 { "plane" } else { "planes" };
    let granularity = tensor.scales().granularity();
    let rotated = tensor.rotation().map_or_else(String::new, |r| format!(", rotated in {}", r.block()));
    format!("{} {planes}, {granularity}, {}{rotated}", tensor.depth(), tensor.encoding().name())
}
