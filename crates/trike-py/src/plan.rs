//! Options of quantization, from keyword arguments.

use std::path::PathBuf;

use pyo3::{exceptions::PyValueError, prelude::*};
use trike::{
    Encoding, ModelFile, ModelQuantizationConfig, QuantizeMethod,
    calibrate::{Budget, PlanOptions, Tuning},
    quant::{CalibrationMethod, ScaleRule, TritLayout},
    trit::{Granularity, GroupSize},
};

use crate::errors;

/// Options of `trike.quantize` as Python passes them.
#[derive(FromPyObject)]
pub(crate) struct Quantization {
    planes: Option<usize>,
    group: Option<String>,
    max_ppl_ratio: Option<f64>,
    bits: Option<f64>,
    max_bytes: Option<u64>,
    method: String,
    encoding: Option<String>,
    skip: Vec<String>,
    min_size: usize,
    int8_head: bool,
    tune: bool,
    recover: f64,
    threads: usize,
    tokenizer: Option<PathBuf>,
    /// Calibration text, or `None` to generate it with the model.
    pub(crate) text: Option<String>,
    /// Number of sequences of the text, or to generate.
    pub(crate) sequences: Option<usize>,
    pub(crate) seed: u64,
    pub(crate) split: Option<String>,
    /// Name and content of the evaluation text.
    pub(crate) eval: Option<(String, String)>,
}

impl Quantization {
    /// The granularity of scales, if it was given.
    fn granularity(&self) -> PyResult<Option<Granularity>> {
        self.group.as_ref().map(|name| name.parse().map_err(errors::value)).transpose()
    }

    /// The configuration for the library.
    pub(crate) fn config(&self) -> PyResult<ModelQuantizationConfig> {
        let encoding = match &self.encoding {
            Some(name) => name.parse().map_err(errors::value)?,
            None => Encoding::Base3,
        };
        let layout = TritLayout::default()
            .with_depth(self.planes.unwrap_or(3))
            .with_granularity(self.granularity()?.unwrap_or(Granularity::Group(GroupSize::G128)))
            .with_encoding(encoding);
        let rounded = |rule| Some(QuantizeMethod::Round(rule));
        let method = match self.method.as_str() {
            "compensate" => None,
            "least_squares" => rounded(ScaleRule::LeastSquares),
            "absmean" => rounded(ScaleRule::AbsMean),
            "twn" => rounded(ScaleRule::Twn),
            "absmax" => rounded(ScaleRule::Calibrated(CalibrationMethod::AbsMax)),
            got => {
                let all = ["compensate", "least_squares", "absmean", "twn", "absmax"];
                return Err(errors::unknown("method", got, &all));
            }
        };
        let tuning = self.tune.then(|| Tuning { recover: self.recover, ..Tuning::default() });
        let config = ModelQuantizationConfig::default()
            .with_layout(layout)
            .with_tuning(tuning)
            .with_skip_patterns(self.skip.clone())
            .with_min_layer_size(self.min_size)
            .with_int8_head(self.int8_head)
            .with_tokenizer(self.tokenizer.clone())
            .with_hold_out(self.eval.is_none())
            .with_threads(self.threads);
        let config = match method {
            Some(method) => config.with_method(method),
            None => config,
        };
        config.validate().map_err(errors::value)?;
        Ok(config)
    }

    /// The options of a budget; `None` for the same planes in every layer.
    pub(crate) fn goal(&self, input: &ModelFile) -> PyResult<Option<PlanOptions>> {
        let given = [
            self.max_ppl_ratio.map(Budget::PerplexityRatio),
            self.bits.map(Budget::Bits),
            self.max_bytes.map(Budget::Bytes),
        ];
        let mut given = given.into_iter().flatten();
        let budget = given.next();
        if given.next().is_some() {
            return Err(PyValueError::new_err("expected at most one of max_ppl_ratio, bits and max_bytes"));
        }
        let uniform = self.planes.is_some() || self.recover > 0.0 || self.method != "compensate";
        let mut options = match budget {
            Some(budget) => PlanOptions::new(budget),
            None if uniform => return Ok(None),
            None => PlanOptions::unasked(input).map_err(errors::model)?,
        };
        if let Some(planes) = self.planes {
            options = options.with_planes(planes);
        }
        if let Some(group) = self.granularity()? {
            options = options.with_groups([group]);
        }
        Ok(Some(options.with_head(!self.int8_head)))
    }
}
