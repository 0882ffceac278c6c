//! How a model is made ternary.

use std::path::PathBuf;

use trike_quant::{ColumnOrder, QuantizeConfig, ScaleRule, TritLayout};
use trike_trit::{Coupling, Encoding};

use super::Tuning;
use crate::{LlmError, Split};

/// Text that a model runs on while it is made ternary.
#[derive(Clone, Copy, Debug)]
pub enum Calibration<'a> {
    /// A text, cut into sequences, at most so many of them.
    Text {
        /// The text.
        text: &'a str,
        /// How it is cut.
        split: Split,
        /// Most sequences.
        limit: Option<usize>,
    },
    /// Text that the model writes itself, sampled at temperature 1 from nothing but a beginning-of-text token.
    Generated {
        /// Number of texts.
        sequences: usize,
        /// Where chance starts.
        seed: u64,
    },
}

/// How weights become trits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum QuantizeMethod {
    /// To the nearest level, without looking at inputs. Needs no calibration.
    Round(ScaleRule),
    /// With error compensation.
    Compensate(Compensation),
}

/// How error compensation works.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compensation {
    /// In which order columns are rounded.
    pub order: ColumnOrder,
    /// Share of the Hessian's mean diagonal that is added to its diagonal.
    pub damping: f64,
    /// Rounds of refitting scales and improving codes.
    pub rounds: usize,
    /// Whether a layer aims at what the dense model's layer puts out, or only at its own weights: its inputs differ by what the
    /// layers before lost, and part of that can be made up for.
    pub follow: bool,
}

impl Default for Compensation {
    fn default() -> Self {
        Self { order: ColumnOrder::Activation, damping: 0.01, rounds: 3, follow: true }
    }
}

/// How a model is made ternary: which of its layers, in which shape, by which method.
///
/// ```
/// use trike_llm::ModelQuantizationConfig;
///
/// let mut config = ModelQuantizationConfig::planes(2);
/// config.skip_patterns = vec!["layers.0.*down_proj".to_owned()];
/// assert!(config.skips("model.layers.0.mlp.down_proj.weight"));
/// assert!(!config.skips("model.layers.10.mlp.down_proj.weight"));
/// ```
#[derive(Clone, Debug)]
pub struct ModelQuantizationConfig {
    /// Planes, scales and packing.
    pub layout: TritLayout,
    /// Rounding or compensation.
    pub method: QuantizeMethod,
    /// How codes and scales are tuned after compensation; `None` for not at all. Without compensation there is no text to tune on,
    /// and free planes are not tuned.
    pub tuning: Option<Tuning>,
    /// Layers whose name contains one of these stay as they are; `*` stands for any characters.
    pub skip_patterns: Vec<String>,
    /// Layers with fewer weights stay as they are.
    pub min_layer_size: usize,
    /// Round the embedding and the output head to int8 in groups of 32; else they stay as they are.
    pub int8_head: bool,
    /// A tokenizer to use and to put into the result, when none comes with the model.
    pub tokenizer: Option<PathBuf>,
    /// Threads; 0 for one a processor.
    pub threads: usize,
}

impl Default for ModelQuantizationConfig {
    /// Three tied planes in base 3 with a scale for 128 weights, compensated, every linear layer of the blocks.
    fn default() -> Self {
        Self::planes(3)
    }
}

impl ModelQuantizationConfig {
    /// The default with another number of planes.
    pub fn planes(depth: usize) -> Self {
        Self {
            layout: TritLayout { depth, encoding: Encoding::Base3, ..TritLayout::default() },
            method: QuantizeMethod::Compensate(Compensation::default()),
            tuning: Some(Tuning::default()),
            skip_patterns: Vec::new(),
            min_layer_size: 0,
            int8_head: false,
            tokenizer: None,
            threads: 0,
        }
    }

    /// Whether a layer of this name stays as it is.
    pub fn skips(&self, name: &str) -> bool {
        self.skip_patterns.iter().any(|pattern| contains(name, pattern))
    }

    /// Checks that the options go together.
    ///
    /// # Errors
    ///
    /// [`LlmError::Quantize`] and [`LlmError::Option`], which name the option.
    pub fn validate(&self) -> Result<(), LlmError> {
        let rule = match self.method {
            QuantizeMethod::Round(rule) => rule,
            QuantizeMethod::Compensate(_) => ScaleRule::LeastSquares,
        };
        let config = QuantizeConfig { rule, layout: self.layout, ..QuantizeConfig::default() };
        config.validate().map_err(|e| super::quant_error("the options", e))?;
        if let QuantizeMethod::Compensate(c) = &self.method {
            if !(c.damping > 0.0 && c.damping <= 1.0) {
                return Err(LlmError::Option {
                    option: "damping",
                    expected: "over 0 and up to 1",
                    got: c.damping.to_string(),
                });
            }
            if self.layout.granularity == trike_trit::Granularity::Tensor {
                return Err(LlmError::Option {
                    option: "granularity",
                    expected: "a scale per row or group, or the method of rounding",
                    got: "one scale per tensor".to_owned(),
                });
            }
        }
        if let Some(tuning) = &self.tuning {
            tuning.validate()?;
        }
        if let Some(empty) = self.skip_patterns.iter().find(|p| p.chars().all(|c| c == '*')) {
            return Err(LlmError::Option {
                option: "skip pattern",
                expected: "part of a layer's name; this one would skip every layer",
                got: format!("`{empty}`"),
            });
        }
        Ok(())
    }

    /// One word for a plane count and coupling, for reports: `2 tied`.
    pub(super) fn planes_name(&self) -> String {
        let coupling = if self.layout.coupling == Coupling::Free { "free" } else { "tied" };
        format!("{} {coupling}", self.layout.depth)
    }
}

/// Whether `pattern`, in which `*` stands for any characters, is somewhere in `name`.
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

    #[test]
    fn options_are_checked() {
        assert!(ModelQuantizationConfig::default().validate().is_ok());
        type Spoil = fn(&mut ModelQuantizationConfig);
        let table: [(&str, Spoil); 5] = [
            ("planes", |c| c.layout.depth = 0),
            ("damping", |c| {
                c.method =
                    QuantizeMethod::Compensate(Compensation { damping: 0.0, ..Compensation::default() });
            }),
            ("granularity", |c| c.layout.granularity = trike_trit::Granularity::Tensor),
            ("skip pattern", |c| c.skip_patterns = vec![String::new()]),
            ("coupling", |c| {
                c.method = QuantizeMethod::Round(ScaleRule::AbsMean);
                c.layout.depth = 2;
            }),
        ];
        for (name, spoil) in table {
            let mut config = ModelQuantizationConfig::default();
            spoil(&mut config);
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
    }
}
