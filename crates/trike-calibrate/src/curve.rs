//! Comparison of the same model at different settings.

use std::fs;

use trike_eval::EvalError;
use trike_format::{GgufType, Identity};
use trike_llm::{ModelFile, Split, WeightSource};

use crate::{
    CalibrateError, Calibration, CurvePoint, ModelQuantizationConfig, QuantizeReport, error::io,
    quantize::quantize, rounded::Rounded, store,
};

/// Maximum number of planes on the curve: more planes are nearly lossless.
const MOST_PLANES: usize = 4;
/// 4-bit and 8-bit types of llama.cpp on the curve, for comparison with trits.
const OTHERS: [GgufType; 3] = [GgufType::Q8_0, GgufType::Q4_0, GgufType::Q4K];

impl ModelQuantizationConfig {
    /// Checks that the points of [`QuantizeReport::measure_curve`], one to four planes, are possible with these
    /// options.
    ///
    /// # Errors
    ///
    /// Errors of [`validate`](Self::validate), for the first point that fails.
    pub fn validate_curve(&self) -> Result<(), CalibrateError> {
        (1..=MOST_PLANES).try_for_each(|planes| {
            let mut alike = self.clone();
            alike.layout.depth = planes;
            alike.validate()
        })
    }
}

impl QuantizeReport {
    /// Quantizes the same model with one to four planes for all layers, rounds the same layers to `Q8_0`, `Q4_0` and `Q4_K` of
    /// llama.cpp if their rows are multiples of the block size, measures each on the text of [`evaluate`](Self::evaluate), and
    /// stores bits and perplexities in [`curve`](Self::curve), together with this model's own. The other models are removed.
    /// `progress` is called with the number of models done and in total.
    ///
    /// # Errors
    ///
    /// [`EvalError::NothingToScore`] before `evaluate`; and errors of [`quantize`] and `evaluate`.
    #[expect(clippy::too_many_arguments, reason = "the settings of the model and of its measurement")]
    pub fn measure_curve(
        &mut self,
        input: &ModelFile,
        calibration: &Calibration<'_>,
        config: &ModelQuantizationConfig,
        text: &str,
        split: Split,
        limit: Option<usize>,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(), CalibrateError> {
        let own = self.point(if self.planning.is_some() { "this plan" } else { "this model" });
        let mut curve = vec![own.ok_or(EvalError::NothingToScore)?];
        let alike = ModelQuantizationConfig { layers: Default::default(), ..config.clone() };
        let depth = config.layout.depth;
        let scratch = store::beside(self.output.as_ref(), ".curve");
        for planes in 1..=MOST_PLANES {
            // This model is already such a point.
            let same = self.planning.is_none() && config.layers.is_empty() && planes == depth;
            if !same {
                let mut alike = alike.clone();
                alike.layout.depth = planes;
                // Discard leftovers of an interrupted call, because the model itself is measured again as well.
                let settings = Identity::new().with("the use", "a curve");
                if store::resume(&scratch, &settings)? == store::Opened::Same {
                    fs::remove_dir_all(&scratch).map_err(io(&scratch))?;
                    store::resume(&scratch, &settings)?;
                }
                let path = scratch.join("model");
                let mut report = quantize(input, &path, calibration, &alike, &mut |_, _, _| ())?;
                let measured = report.compare(text, split, limit, &alike);
                fs::remove_dir_all(&scratch).map_err(io(&scratch))?;
                report.evaluation = Some(measured?);
                let name = format!("{planes} {}", if planes == 1 { "plane" } else { "planes" });
                if let Some(point) = report.point(&name) {
                    self.fill_measured(planes, config, &point);
                    curve.push(point);
                }
            }
            progress(planes, MOST_PLANES + OTHERS.len());
        }
        for (done, to) in OTHERS.into_iter().enumerate() {
            curve.extend(self.rounded(input, config, (text, split, limit), to)?);
            progress(MOST_PLANES + done + 1, MOST_PLANES + OTHERS.len());
        }
        curve.sort_by(|a, b| a.bits_per_weight.total_cmp(&b.bits_per_weight));
        self.curve = curve;
        Ok(())
    }

    /// The same layers rounded to a type of llama.cpp; `None` if their rows are not multiples of its block size.
    fn rounded(
        &self,
        input: &ModelFile,
        config: &ModelQuantizationConfig,
        (text, split, limit): (&str, Split, Option<usize>),
        to: GgufType,
    ) -> Result<Option<CurvePoint>, CalibrateError> {
        // Layers that a plan left unchanged could have been ternary, too.
        let planned = |name: &String| {
            self.planning
                .iter()
                .flat_map(|planning| &planning.sensitivities)
                .any(|other| other.layer == *name)
        };
        let varied = || self.layers.iter().filter(|layer| layer.kept.is_none() || planned(&layer.name));
        let (weights, size) = (to.block(), to.block_bytes());
        if varied().any(|layer| layer.cols % weights != 0) {
            return Ok(None);
        }
        let rounded =
            Rounded { inner: input, to, layers: varied().map(|layer| layer.name.clone()).collect() };
        let evaluation = self.compare_source(&rounded, text, split, limit, config)?;
        let all: u64 = varied().map(|layer| (layer.rows * layer.cols / weights * size) as u64).sum();
        let own: u64 = varied().map(|layer| layer.bytes).sum();
        let kept: u64 = self.layers.iter().map(|layer| layer.bytes).sum::<u64>() - own;
        let named = input.weights().into_iter().filter(|name| rounded.layers.contains(&name.to_string()));
        let before: u64 = named.map(|name| input.stored_bytes(name)).sum::<Result<u64, _>>()?;
        let elements: f64 = self.layers.iter().map(|l| l.rows as f64 * l.cols as f64).sum();
        Ok(Some(CurvePoint {
            setting: to.to_string(),
            bits_per_weight: 8.0 * (kept + all) as f64 / elements.max(1.0),
            bytes: self.input_bytes.saturating_sub(before) + all,
            ratio: evaluation.ratio,
            ratio_error: evaluation.ratio_error,
            kl: evaluation.kl,
        }))
    }

    fn point(&self, setting: &str) -> Option<CurvePoint> {
        let evaluation = self.evaluation.as_ref()?;
        let weights: f64 = self.layers.iter().map(|l| l.rows as f64 * l.cols as f64).sum();
        let bytes: u64 = self.layers.iter().map(|l| l.bytes).sum();
        Some(CurvePoint {
            setting: setting.to_owned(),
            bits_per_weight: 8.0 * bytes as f64 / weights.max(1.0),
            bytes: self.output_bytes,
            ratio: evaluation.ratio,
            ratio_error: evaluation.ratio_error,
            kl: evaluation.kl,
        })
    }
}
