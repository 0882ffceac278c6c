//! Configuration of a quantization.

mod method;
mod pruning;
mod text;
mod tuning;

use std::{collections::BTreeMap, path::PathBuf};

use trike_core::{Bounds, OptionError};
use trike_cpu::Cpu;
use trike_llm::{DeviceChoice, HeadPrecision, LoadOptions, ModelFile};
use trike_nn::{ActivationPrecision, WeightName};
use trike_quant::{QuantError, QuantizeConfig, ScaleRule, TritLayout};
use trike_trit::{Coupling, Encoding, Granularity, Hadamard};

pub use method::{Compensation, LayerChoice, QuantizeMethod, ScaledInputs};
pub use pruning::{Importance, Pruning};
pub use text::Calibration;
pub(crate) use text::{SEQUENCES, tokens};
pub use tuning::Tuning;

use crate::{CalibrateError, ConfigError};

/// Options of [`quantize()`](crate::quantize()): which layers become ternary, in which layout, by which method.
///
/// ```
/// use trike_calibrate::ModelQuantizationConfig;
///
/// let config = ModelQuantizationConfig::planes(2).with_skip_patterns(["layers.0.*down_proj".to_owned()]);
/// assert!(config.skips("model.layers.0.mlp.down_proj.weight"));
/// assert!(!config.skips("model.layers.10.mlp.down_proj.weight"));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelQuantizationConfig {
    /// Planes, scales and packing.
    pub layout: TritLayout,
    /// Rounding or error compensation.
    pub method: QuantizeMethod,
    /// Tuning of codes and scales after compensation; `None` for no tuning. Rounding without compensation and free
    /// planes are never tuned.
    pub tuning: Option<Tuning>,
    /// Which layer inputs are scaled first (AWQ), by scales searched on the calibration text: the more important weights of a group
    /// become larger. The preceding norms, value or up projections absorb the inverse scales, so inference is unchanged.
    pub salience: ScaledInputs,
    /// Whether the residual stream is rotated first, with random signs from this seed (QuaRot). A tied head becomes a
    /// separate matrix. See [`Fold`](crate::Fold).
    pub rotation: Option<u64>,
    /// Whether the inputs of output and down projections are rotated at run time, by Hadamard matrices in blocks of at
    /// most this many elements: no preceding weight could absorb the rotation. See
    /// [`TritTensor::rotation`](trike_trit::TritTensor::rotation).
    pub input_rotation: Option<usize>,
    /// Layers whose name contains one of these patterns are not quantized; `*` matches any characters.
    pub skip_patterns: Vec<String>,
    /// Layers with fewer weights are not quantized.
    pub min_layer_size: usize,
    /// Whether the embedding and the output head are rounded to int8 in groups of 32.
    pub int8_head: bool,
    /// A tokenizer to use and to write with the result, for a model without its own.
    pub tokenizer: Option<PathBuf>,
    /// Layers, by name, whose storage differs from `layout`: the choices of a plan.
    pub layers: BTreeMap<String, LayerChoice>,
    /// Weights that are pruned before quantization.
    pub prune: Option<Pruning>,
    /// Whether the encoding of each layer is chosen by its zeros (the measured crossover of the kernels, then size),
    /// overriding `layout.encoding`.
    pub auto_encoding: bool,
    /// Whether a tenth of the calibration text is held out from calibration and tuning, for
    /// [`QuantizeReport::evaluate_held_out`](crate::QuantizeReport::evaluate_held_out). Sequences beyond the limit of
    /// [`Calibration::Text`] are used first, so that a long text loses nothing.
    pub hold_out: bool,
    /// Threads; 0 = one per physical core.
    pub threads: usize,
    /// The executor of the forward and backward passes of tuning: blocks, the head and the losses. Statistics of inputs, rounding,
    /// latent weights with their optimizer, and packing stay on the host. Another device than the CPU needs tuning, and rounds
    /// differently: results differ in their last bits, and so does an occasional trit.
    pub device: DeviceChoice,
}

impl Default for ModelQuantizationConfig {
    /// Three tied planes in base 3 with one scale per 128 weights, compensated, every linear layer of the blocks.
    fn default() -> Self {
        Self::planes(3)
    }
}

impl ModelQuantizationConfig {
    /// The default configuration with `depth` planes.
    #[must_use]
    pub fn planes(depth: usize) -> Self {
        Self {
            layout: TritLayout::default().with_depth(depth).with_encoding(Encoding::Base3),
            method: QuantizeMethod::Compensate(Compensation::default()),
            tuning: Some(Tuning::default()),
            salience: ScaledInputs::default(),
            rotation: None,
            input_rotation: None,
            skip_patterns: Vec::new(),
            min_layer_size: 0,
            int8_head: false,
            tokenizer: None,
            layers: BTreeMap::new(),
            prune: None,
            auto_encoding: false,
            hold_out: true,
            threads: 0,
            device: DeviceChoice::Cpu,
        }
    }

    /// Sets [`layout`](Self::layout).
    #[must_use]
    pub fn with_layout(self, layout: TritLayout) -> Self {
        Self { layout, ..self }
    }

    /// Sets [`method`](Self::method).
    #[must_use]
    pub fn with_method(self, method: QuantizeMethod) -> Self {
        Self { method, ..self }
    }

    /// Sets [`tuning`](Self::tuning).
    #[must_use]
    pub fn with_tuning(self, tuning: impl Into<Option<Tuning>>) -> Self {
        Self { tuning: tuning.into(), ..self }
    }

    /// Sets [`salience`](Self::salience).
    #[must_use]
    pub fn with_salience(self, salience: ScaledInputs) -> Self {
        Self { salience, ..self }
    }

    /// Sets [`rotation`](Self::rotation).
    #[must_use]
    pub fn with_rotation(self, rotation: impl Into<Option<u64>>) -> Self {
        Self { rotation: rotation.into(), ..self }
    }

    /// Sets [`input_rotation`](Self::input_rotation).
    #[must_use]
    pub fn with_input_rotation(self, input_rotation: impl Into<Option<usize>>) -> Self {
        Self { input_rotation: input_rotation.into(), ..self }
    }

    /// Sets [`skip_patterns`](Self::skip_patterns).
    #[must_use]
    pub fn with_skip_patterns(self, skip_patterns: impl Into<Vec<String>>) -> Self {
        Self { skip_patterns: skip_patterns.into(), ..self }
    }

    /// Sets [`min_layer_size`](Self::min_layer_size).
    #[must_use]
    pub fn with_min_layer_size(self, min_layer_size: usize) -> Self {
        Self { min_layer_size, ..self }
    }

    /// Sets [`int8_head`](Self::int8_head).
    #[must_use]
    pub fn with_int8_head(self, int8_head: bool) -> Self {
        Self { int8_head, ..self }
    }

    /// Sets [`tokenizer`](Self::tokenizer).
    #[must_use]
    pub fn with_tokenizer(self, tokenizer: impl Into<Option<PathBuf>>) -> Self {
        Self { tokenizer: tokenizer.into(), ..self }
    }

    /// Sets [`layers`](Self::layers).
    #[must_use]
    pub fn with_layers(self, layers: BTreeMap<String, LayerChoice>) -> Self {
        Self { layers, ..self }
    }

    /// Sets [`prune`](Self::prune).
    #[must_use]
    pub fn with_prune(self, prune: impl Into<Option<Pruning>>) -> Self {
        Self { prune: prune.into(), ..self }
    }

    /// Sets [`auto_encoding`](Self::auto_encoding).
    #[must_use]
    pub fn with_auto_encoding(self, auto_encoding: bool) -> Self {
        Self { auto_encoding, ..self }
    }

    /// Sets [`hold_out`](Self::hold_out).
    #[must_use]
    pub fn with_hold_out(self, hold_out: bool) -> Self {
        Self { hold_out, ..self }
    }

    /// Sets [`threads`](Self::threads).
    #[must_use]
    pub fn with_threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// Sets [`device`](Self::device).
    #[must_use]
    pub fn with_device(self, device: DeviceChoice) -> Self {
        Self { device, ..self }
    }

    /// Whether a layer of this name is not quantized.
    pub fn skips(&self, name: &str) -> bool {
        self.skip_patterns.iter().any(|pattern| contains(name, pattern))
    }

    /// Options of error compensation; `None` for rounding.
    pub(crate) fn compensation(&self) -> Option<Compensation> {
        match self.method {
            QuantizeMethod::Round(_) => None,
            QuantizeMethod::Compensate(how) => Some(how),
        }
    }

    /// Whether free planes of layers without a choice of their own exclude tuning.
    pub(crate) fn has_free_planes(&self) -> bool {
        self.layout.coupling == Coupling::Free && self.layout.depth > 1
    }

    /// Whether anything is tuned.
    fn is_tuned(&self) -> bool {
        let tunes = |t: &Tuning| t.tunes_blocks() || t.tunes_model() || t.recover > 0.0;
        self.tuning.as_ref().is_some_and(tunes) && self.compensation().is_some() && !self.has_free_planes()
    }

    /// Load options for measurements: f32 activations and the head as stored, so that only the weights matter.
    pub(crate) fn measured(&self, file: &ModelFile) -> Result<LoadOptions, CalibrateError> {
        Ok(LoadOptions::default()
            .with_tokenizer(file.tokenizer(self.tokenizer.as_deref())?)
            .with_cpu(Cpu::new(self.threads)?)
            .with_activations(ActivationPrecision::F32)
            .with_head(HeadPrecision::AsStored))
    }

    /// The rotation of a layer's inputs, if it becomes ternary.
    pub(crate) fn rotation_of(&self, name: WeightName, cols: usize) -> Option<Hadamard> {
        if name.adds_to_stream() { Hadamard::largest(cols, self.input_rotation?) } else { None }
    }

    /// Planes, scales and packing of a layer that becomes ternary.
    pub(crate) fn layout_of(&self, name: &str) -> TritLayout {
        match self.layers.get(name) {
            Some(&LayerChoice::Trits { planes, granularity }) => {
                self.layout.with_depth(planes).with_granularity(granularity)
            }
            _ => self.layout,
        }
    }

    /// Checks that the options are compatible.
    ///
    /// # Errors
    ///
    /// [`CalibrateError::Option`] and [`CalibrateError::Config`], with the option; [`CalibrateError::Quantize`] for a layer.
    pub fn validate(&self) -> Result<(), CalibrateError> {
        let rule = match self.method {
            QuantizeMethod::Round(rule) => rule,
            QuantizeMethod::Compensate(_) => ScaleRule::LeastSquares,
        };
        let planned = self.layers.keys().map(|name| (Some(name), self.layout_of(name)));
        let layouts: Vec<_> = std::iter::once((None, self.layout)).chain(planned).collect();
        for (name, layout) in &layouts {
            let config = QuantizeConfig::default().with_rule(rule).with_layout(*layout);
            config.validate().map_err(|e| match (name, e) {
                (None, QuantError::Option(e)) => e.into(),
                (name, e) => CalibrateError::quantize(name.map_or("the options", String::as_str), e),
            })?;
        }
        if let Some(block) = self.input_rotation {
            OptionError::check("input_rotation", Bounds::at_least(2usize).at_most(Hadamard::MAX), block)?;
            if self.prune.is_some() {
                return Err(ConfigError::PruneRotated.into());
            }
        }
        if let Some(prune) = &self.prune {
            prune.validate(&self.method, self.layout.with_mean)?;
        }
        if let QuantizeMethod::Compensate(c) = &self.method {
            OptionError::check("damping", Bounds::over(0.0).at_most(1.0), c.damping)?;
            if layouts.iter().any(|(_, layout)| layout.granularity == Granularity::Tensor) {
                return Err(ConfigError::TensorScale.into());
            }
        }
        if let Some(tuning) = &self.tuning {
            tuning.validate()?;
            if tuning.recover > 0.0 && matches!(self.method, QuantizeMethod::Round(_)) {
                return Err(ConfigError::RecoverRounded.into());
            }
        }
        match &self.device {
            DeviceChoice::Cpu => {}
            DeviceChoice::Several(shares) => {
                return Err(ConfigError::SeveralDevices { got: shares.len() }.into());
            }
            device if !self.is_tuned() => {
                return Err(ConfigError::DeviceUntuned { device: device.to_string() }.into());
            }
            DeviceChoice::Auto | DeviceChoice::Numbered(..) => {}
        }
        if let Some(pattern) = self.skip_patterns.iter().find(|p| p.chars().all(|c| c == '*')) {
            return Err(ConfigError::SkipsAll { pattern: pattern.clone() }.into());
        }
        Ok(())
    }

    /// Plane count and coupling for reports: `2 tied`.
    pub(crate) fn planes_name(&self) -> String {
        let coupling = if self.layout.coupling == Coupling::Free { "free" } else { "tied" };
        format!("{} {coupling}", self.layout.depth)
    }
}

/// Whether `name` contains `pattern`, in which `*` matches any characters.
fn contains(name: &str, pattern: &str) -> bool {
    let mut rest = name;
    pattern.split('*').all(|part| match rest.find(part) {
        Some(at) => {
            rest = &rest[at + part.len()..];
            true
        }
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use trike_quant::PrunePattern;

    use super::*;

    #[test]
    fn patterns() {
        for (pattern, matches) in [
            ("down", true),
            ("layers.1.*proj", true),
            ("layers.1.*q_proj", false),
            ("*up*", false),
            ("mlp*layers", false),
        ] {
            assert_eq!(contains("model.layers.1.mlp.down_proj.weight", pattern), matches, "{pattern}");
        }
    }

    fn vulkan() -> DeviceChoice {
        "vulkan".parse().unwrap()
    }

    #[test]
    fn options_are_checked() {
        assert!(ModelQuantizationConfig::default().with_device(vulkan()).validate().is_ok());
        assert!(ModelQuantizationConfig::default().validate().is_ok());
        type Spoil = fn(&mut ModelQuantizationConfig);
        let table: [(&str, Spoil); 12] = [
            ("input_rotation", |c| c.input_rotation = Some(1)),
            ("prune with input_rotation", |c| {
                c.input_rotation = Some(64);
                c.prune = Some(Pruning {
                    share: 0.5,
                    pattern: PrunePattern::Unstructured,
                    importance: Importance::Magnitude,
                });
            }),
            ("depth", |c| c.layout.depth = 0),
            ("damping", |c| {
                c.method =
                    QuantizeMethod::Compensate(Compensation { damping: 0.0, ..Compensation::default() });
            }),
            ("granularity", |c| c.layout.granularity = Granularity::Tensor),
            ("skip pattern", |c| c.skip_patterns = vec![String::new()]),
            ("coupling", |c| {
                c.method = QuantizeMethod::Round(ScaleRule::AbsMean);
                c.layout.depth = 2;
            }),
            ("device vulkan:0", |c| {
                (c.device, c.tuning) = (vulkan(), None);
            }),
            ("nothing is tuned", |c| {
                (c.device, c.method) = (vulkan(), QuantizeMethod::Round(ScaleRule::LeastSquares));
            }),
            ("nothing is tuned", |c| {
                (c.device, c.layout.coupling) = (vulkan(), Coupling::Free);
            }),
            ("nothing is tuned", |c| {
                let none = Tuning { block_epochs: Some(0), model_epochs: Some(0), ..Tuning::default() };
                (c.device, c.tuning) = (vulkan(), Some(none));
            }),
            ("a single device, got 2", |c| c.device = "cuda:0,cuda:1".parse().unwrap()),
        ];
        for (name, spoil) in table {
            let mut config = ModelQuantizationConfig::default();
            spoil(&mut config);
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
    }
}
