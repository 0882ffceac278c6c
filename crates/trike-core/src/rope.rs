//! Rotary position embedding and its frequency scaling for long contexts.

use crate::SpecError;

/// Pairing of the elements of a head that rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopePairing {
    /// `2i` with `2i + 1`: llama2.c checkpoints and `llama` GGUF files.
    Adjacent,
    /// `i` with `i + d / 2`, where `d` is the number of rotated elements of a head: HuggingFace checkpoints.
    Halves,
}

/// Rotary position embedding: dimensions `2 i` and `2 i + 1` of a head (or `i` and `i + d / 2`, see
/// [`RopePairing`]) are rotated by `position * theta^(-2 i / d)` (Su et al., RoFormer, 2021).
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Base of the frequencies, greater than 1.
    pub theta: f32,
    /// Dimensions that rotate together.
    pub pairing: RopePairing,
    /// Frequency scaling for positions beyond the original context.
    pub scaling: RopeScaling,
}

/// Frequency scaling of a rotary embedding.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    #[default]
    None,
    /// All frequencies are divided by `factor` (Chen et al., Position Interpolation, 2023).
    Linear {
        /// At least 1.
        factor: f32,
    },
    /// Llama 3.1: wavelengths above `original_context / low` are multiplied by `factor`, those below
    /// `original_context / high` are unchanged; in between, the frequency is interpolated linearly in
    /// `original_context / wavelength`.
    Llama3 {
        /// At least 1.
        factor: f32,
        /// `low_freq_factor`.
        low: f32,
        /// `high_freq_factor`, greater than `low`.
        high: f32,
        /// Context length before the extension.
        original_context: usize,
    },
    /// YaRN (Peng et al., 2023): dimensions with more than `beta_fast` rotations over the original context are unchanged,
    /// the wavelengths of those with fewer than `beta_slow` rotations are multiplied by `factor`, with a linear ramp in
    /// between. The rotated queries and keys are multiplied by `attention_factor`.
    Yarn {
        /// At least 1.
        factor: f32,
        /// Rotations, 32 by default.
        beta_fast: f32,
        /// Rotations, 1 by default.
        beta_slow: f32,
        /// Context length before the extension.
        original_context: usize,
        /// `0.1 ln(factor) + 1` by default.
        attention_factor: f32,
    },
    /// Each frequency is divided by its own factor, as listed in GGUF files.
    Factors(Vec<f32>),
}

impl RopeSpec {
    /// An embedding without scaling.
    #[must_use]
    pub fn new(theta: f32, pairing: RopePairing) -> Self {
        Self { theta, pairing, scaling: RopeScaling::None }
    }

    /// Checks the constants for heads of `head_dim`.
    ///
    /// # Errors
    ///
    /// [`SpecError`] with the field, the rule and the value.
    pub fn validate(&self, head_dim: usize) -> Result<(), SpecError> {
        let fail = |field, rule, got: String| Err(SpecError { field, rule, got });
        let at_least_1 = |factor: f32| factor >= 1.0 && factor.is_finite();
        if !(self.theta > 1.0 && self.theta.is_finite()) {
            return fail("rope.theta", "must be finite and over 1", self.theta.to_string());
        }
        match &self.scaling {
            RopeScaling::None => {}
            RopeScaling::Linear { factor } if at_least_1(*factor) => {}
            RopeScaling::Llama3 { factor, low, high, original_context } => {
                if !(at_least_1(*factor)
                    && *low > 0.0
                    && high > low
                    && high.is_finite()
                    && *original_context > 0)
                {
                    return fail(
                        "rope.scaling",
                        "needs factor >= 1, 0 < low < high and an original context",
                        format!("{:?}", self.scaling),
                    );
                }
            }
            RopeScaling::Yarn { factor, beta_fast, beta_slow, original_context, attention_factor } => {
                let betas = *beta_slow > 0.0 && beta_fast > beta_slow && beta_fast.is_finite();
                let attention = *attention_factor > 0.0 && attention_factor.is_finite();
                if !(at_least_1(*factor) && betas && attention && *original_context > 0) {
                    return fail(
                        "rope.scaling",
                        "needs factor >= 1, 0 < beta_slow < beta_fast, an attention factor and an original context",
                        format!("{:?}", self.scaling),
                    );
                }
            }
            RopeScaling::Linear { factor } => {
                return fail("rope.scaling", "needs a factor of at least 1", factor.to_string());
            }
            RopeScaling::Factors(factors) => {
                if factors.len() != head_dim / 2 {
                    return fail(
                        "rope.scaling",
                        "needs one factor for each pair of elements of a head",
                        factors.len().to_string(),
                    );
                }
                if let Some(bad) = factors.iter().find(|f| !(**f > 0.0 && f.is_finite())) {
                    return fail("rope.scaling", "needs positive, finite factors", bad.to_string());
                }
            }
        }
        Ok(())
    }

    /// Radians per position of each of the `head_dim / 2` pairs.
    ///
    /// ```
    /// use trike_core::{RopePairing, RopeScaling, RopeSpec};
    ///
    /// let mut rope = RopeSpec::new(10_000.0, RopePairing::Halves);
    /// assert_eq!(rope.frequencies(4), [1.0, 0.01]);
    /// rope.scaling = RopeScaling::Linear { factor: 4.0 };
    /// assert_eq!(rope.frequencies(4), [0.25, 0.0025]);
    /// ```
    pub fn frequencies(&self, head_dim: usize) -> Vec<f32> {
        let pairs = head_dim / 2;
        let plain = |i: usize| f64::from(self.theta).powf(-2.0 * i as f64 / head_dim as f64);
        let scaled = |i: usize| match &self.scaling {
            RopeScaling::None => plain(i),
            RopeScaling::Linear { factor } => plain(i) / f64::from(*factor),
            RopeScaling::Llama3 { factor, low, high, original_context } => {
                let turns = *original_context as f64 * plain(i) / std::f64::consts::TAU;
                let kept = (turns - f64::from(*low)) / f64::from(high - low);
                blend(plain(i), f64::from(*factor), kept)
            }
            RopeScaling::Yarn { factor, beta_fast, beta_slow, original_context, .. } => {
                // The (fractional) index of the pair with `beta` rotations over the original context.
                let pair = |beta: f32| {
                    let wavelength = *original_context as f64 / (f64::from(beta) * std::f64::consts::TAU);
                    head_dim as f64 * wavelength.ln() / (2.0 * f64::from(self.theta).ln())
                };
                let first = pair(*beta_fast).floor().max(0.0);
                let last = pair(*beta_slow).ceil().min(head_dim as f64 - 1.0);
                let ramp = (i as f64 - first) / (last - first).max(1e-3);
                blend(plain(i), f64::from(*factor), 1.0 - ramp)
            }
            RopeScaling::Factors(factors) => plain(i) / f64::from(factors[i]),
        };
        (0..pairs).map(|i| scaled(i) as f32).collect()
    }

    /// The factor that multiplies the rotated queries and, separately, the rotated keys.
    pub fn attention_factor(&self) -> f32 {
        match self.scaling {
            RopeScaling::Yarn { attention_factor, .. } => attention_factor,
            _ => 1.0,
        }
    }
}

/// Interpolates between `frequency` (`kept >= 1`) and `frequency / factor` (`kept <= 0`).
fn blend(frequency: f64, factor: f64, kept: f64) -> f64 {
    let kept = kept.clamp(0.0, 1.0);
    frequency * kept + frequency / factor * (1.0 - kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trike_testkit::assert_near;

    fn with(scaling: RopeScaling) -> RopeSpec {
        RopeSpec { theta: 10_000.0, pairing: RopePairing::Halves, scaling }
    }

    #[test]
    fn scalings_keep_what_turns_fast_and_stretch_what_turns_slowly() {
        let plain = with(RopeScaling::None).frequencies(64);
        let yarn = RopeScaling::Yarn {
            factor: 8.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original_context: 512,
            attention_factor: 1.2,
        };
        let llama3 = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original_context: 512 };
        for scaling in [yarn, llama3] {
            let scaled = with(scaling).frequencies(64);
            assert_eq!(scaled[0], plain[0]);
            assert_near!(scaled[31] * 8.0, plain[31], rel = 1e-6);
            assert!(scaled.iter().zip(&plain).any(|(s, p)| *s < 0.99 * p && *s > 0.13 * p), "a ramp between");
        }
        assert_eq!(with(RopeScaling::Factors(vec![2.0, 4.0])).frequencies(4), [0.5, 0.0025]);
    }

    #[test]
    fn constants_out_of_range_are_refused() {
        let yarn = |factor, beta_fast, beta_slow, original_context, attention_factor| RopeScaling::Yarn {
            factor,
            beta_fast,
            beta_slow,
            original_context,
            attention_factor,
        };
        let llama3 =
            |factor, low, high, original_context| RopeScaling::Llama3 { factor, low, high, original_context };
        for good in [
            RopeScaling::Linear { factor: 1.0 },
            yarn(1.0, 32.0, 1.0, 1, 1.0),
            llama3(1.0, 1.0, 4.0, 1),
            RopeScaling::Factors(vec![1.0; 2]),
        ] {
            assert_eq!(with(good).validate(4), Ok(()));
        }
        for bad in [
            RopeScaling::Linear { factor: 0.99 },
            RopeScaling::Linear { factor: f32::NAN },
            yarn(0.5, 32.0, 1.0, 1, 1.0),
            yarn(2.0, 1.0, 1.0, 1, 1.0),
            yarn(2.0, 32.0, 0.0, 1, 1.0),
            yarn(2.0, 32.0, 1.0, 0, 1.0),
            yarn(2.0, 32.0, 1.0, 1, f32::INFINITY),
            llama3(2.0, 4.0, 4.0, 1),
            llama3(2.0, 1.0, 4.0, 0),
            RopeScaling::Factors(vec![1.0; 3]),
            RopeScaling::Factors(vec![1.0, 0.0]),
        ] {
            assert!(with(bad.clone()).validate(4).is_err(), "{bad:?}");
        }
    }
}
