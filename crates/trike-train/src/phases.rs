//! Steps along predicted gradients, interleaved with steps along measured ones.

use serde::{Deserialize, Serialize};
use trike_autodiff::GradError;
use trike_core::{Bounds, OptionError};

use crate::data::Batches;
use crate::{StepReport, TrainError, Trainer};

/// The kind of gradient that the next step of a [`DeterministicPhaseTrainer`] follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// A measured gradient, before the first cycle.
    WarmUp,
    /// A measured gradient, at the beginning of a cycle.
    Full,
    /// A predicted gradient: no backward pass.
    Predict,
    /// A measured gradient plus a correction for the preceding predictions.
    Correct,
}

impl Phase {
    /// Whether the step needs a backward pass.
    #[must_use]
    pub fn is_measured(self) -> bool {
        self != Self::Predict
    }
}

/// Lengths of the phases: `warm_up` steps once, then cycles of `full` measured steps and `predict` predicted ones, with a
/// correction after every `correct_every` predicted steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PhaseConfig {
    /// Measured steps before the first cycle, at least 2, since a line needs two points.
    pub warm_up: usize,
    /// Measured steps at the beginning of a cycle.
    pub full: usize,
    /// Predicted steps of a cycle.
    pub predict: usize,
    /// Predicted steps before a correction, at least 1.
    pub correct_every: usize,
    /// Weight of a measured gradient in the fit, relative to one that is a step younger: in (0, 1).
    pub decay: f32,
}

impl Default for PhaseConfig {
    /// Two predicted steps for three measured ones.
    fn default() -> Self {
        Self { warm_up: 10, full: 2, predict: 2, correct_every: 2, decay: 0.8 }
    }
}

impl PhaseConfig {
    /// Checks that all numbers are in range.
    ///
    /// # Errors
    ///
    /// [`OptionError::OutOfRange`].
    pub fn validate(&self) -> Result<(), OptionError> {
        OptionError::check("warm_up", Bounds::at_least(2usize), self.warm_up)?;
        OptionError::check("correct_every", Bounds::at_least(1usize), self.correct_every)?;
        OptionError::check("decay", Bounds::over(0.0).at_most(0.999_999), self.decay)
    }
}

/// A trainer that takes some of its steps along predicted gradients.
///
/// Each element of a gradient is predicted by a least-squares line through its measured values, with weights that decay by `decay`
/// per step. At a correction the measured gradient `g` gives the error `e = g - p` of the prediction `p`. The error grew about
/// linearly from zero over the `k` steps since the last measurement, so the step follows `g + e k / 2`. A prediction that points
/// away from the gradient, `p . g <= 0`, ends the phase, and the next cycle begins.
///
/// Nothing is random. The history has two values per parameter, whatever its length.
///
/// It helps where gradients change little from step to step: with large batches or low rates. With the noise of small batches a
/// predicted step repeats the noise of the preceding steps, and plain steps with the same number of backward passes are better. The
/// example `phases` measures both.
///
/// ```
/// use trike_train::{DeterministicPhaseTrainer, PhaseConfig};
///
/// // f(x) = x^2 / 2, whose gradient is x.
/// let config = PhaseConfig { warm_up: 3, full: 1, predict: 2, correct_every: 2, decay: 0.9 };
/// let mut phases = DeterministicPhaseTrainer::new(config)?;
/// let (mut x, mut measured) = (8f32, 0);
/// for _ in 0..20 {
///     let gradient = if phases.begin_step().is_measured() {
///         measured += 1;
///         phases.record_full_gradients(vec![vec![x]])?
///     } else {
///         phases.get_predicted_gradients()
///     };
///     x -= 0.1 * gradient[0][0];
///     phases.end_step();
/// }
/// assert_eq!(measured, 3 + 9);
/// // Twenty plain steps, of twenty measured gradients, get to 0.97.
/// assert!(x.abs() < 1.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct DeterministicPhaseTrainer {
    config: PhaseConfig,
    /// Steps that have ended.
    steps: u64,
    /// Completed steps of the cycle; `None` in the warm-up.
    cycle: Option<usize>,
    /// Predicted steps since the last measurement.
    predicted: usize,
    /// Cosine between the last prediction that was followed by a measurement and the measured gradient.
    agreement: Option<f64>,
    history: History,
}

/// Sums for least-squares lines over time, where time 0 is the step of the last gradient.
#[derive(Clone, Debug, Default, PartialEq)]
struct History {
    /// Sums of `w`, `w t` and `w t^2`.
    weights: [f64; 3],
    /// Sums of `w g` and `w t g` per element.
    sums: Vec<[Vec<f32>; 2]>,
    /// Steps since the last gradient.
    age: u32,
}

impl History {
    /// The decay of the sums since the last gradient, and the number of steps since then.
    fn kept(&self, decay: f32) -> (f64, f64) {
        (f64::from(decay).powi(self.age.cast_signed()), f64::from(self.age))
    }

    /// Whether the sums stay finite with these gradients, which have the right shapes.
    fn takes(&self, gradients: &[Vec<f32>], decay: f32) -> bool {
        let (kept, passed) = self.kept(decay);
        let (kept, passed) = (kept as f32, passed as f32);
        let fits = |([sum, moment], gradient): (&[Vec<f32>; 2], &Vec<f32>)| {
            let mut all = sum.iter().zip(moment).zip(gradient);
            all.all(|((sum, moment), g)| {
                let [sum, moment] = next([*sum, *moment], *g, kept, passed);
                sum.is_finite() && moment.is_finite()
            })
        };
        self.sums.iter().zip(gradients).all(fits)
    }

    fn add(&mut self, gradients: &[Vec<f32>], decay: f32) {
        if self.sums.is_empty() {
            self.sums = gradients.iter().map(|g| [vec![0.0; g.len()], vec![0.0; g.len()]]).collect();
        }
        let (kept, passed) = self.kept(decay);
        let [s0, s1, s2] = self.weights;
        self.weights = [
            kept * s0 + 1.0,
            kept * (s1 - passed * s0),
            kept * (s2 - 2.0 * passed * s1 + passed * passed * s0),
        ];
        let (kept, passed) = (kept as f32, passed as f32);
        for ([sum, moment], gradient) in self.sums.iter_mut().zip(gradients) {
            for ((sum, moment), g) in sum.iter_mut().zip(moment).zip(gradient) {
                [*sum, *moment] = next([*sum, *moment], *g, kept, passed);
            }
        }
        self.age = 0;
    }

    /// Evaluates the lines `age` steps after the last gradient.
    fn predict(&self) -> Vec<Vec<f32>> {
        let ([s0, s1, s2], t) = (self.weights, f64::from(self.age));
        let determinant = s0 * s2 - s1 * s1;
        let of_sum = ((s2 - s1 * t) / determinant) as f32;
        let of_moment = ((s0 * t - s1) / determinant) as f32;
        let line = |[sum, moment]: &[Vec<f32>; 2]| {
            sum.iter().zip(moment).map(|(sum, moment)| of_sum * sum + of_moment * moment).collect()
        };
        self.sums.iter().map(line).collect()
    }
}

/// Updates the sums of an element with its next gradient.
fn next([sum, moment]: [f32; 2], g: f32, kept: f32, passed: f32) -> [f32; 2] {
    [kept * sum + g, kept * (moment - passed * sum)]
}

/// The gradients that a step follows instead of the measured ones, and the cosine of prediction and measurement; both `None`
/// without a prediction.
#[derive(Default)]
struct Correction {
    gradients: Option<Vec<Vec<f32>>>,
    agreement: Option<f64>,
}

impl DeterministicPhaseTrainer {
    /// A trainer before its first step.
    ///
    /// # Errors
    ///
    /// As [`PhaseConfig::validate`].
    pub fn new(config: PhaseConfig) -> Result<Self, OptionError> {
        config.validate()?;
        let history = History::default();
        Ok(Self { config, steps: 0, cycle: None, predicted: 0, agreement: None, history })
    }

    /// The phase of the step that begins now.
    #[must_use]
    pub fn begin_step(&self) -> Phase {
        let PhaseConfig { full, predict, correct_every, .. } = self.config;
        let Some(at) = self.cycle else { return Phase::WarmUp };
        let Some(after) = at.checked_sub(full).filter(|_| predict > 0) else { return Phase::Full };
        let (group, within) = (after / (correct_every + 1), after % (correct_every + 1));
        // The last group may be shorter.
        let predicted = if group < predict / correct_every { correct_every } else { predict % correct_every };
        if within < predicted { Phase::Predict } else { Phase::Correct }
    }

    /// Records the measured gradients of the step and returns the gradients to follow.
    ///
    /// # Errors
    ///
    /// [`TrainError::Grad`] for gradients of other shapes than the first ones, [`TrainError::NonFinite`] for gradients that are not
    /// finite, or whose sums or corrections overflow. Nothing is recorded then.
    pub fn record_full_gradients(&mut self, gradients: Vec<Vec<f32>>) -> Result<Vec<Vec<f32>>, TrainError> {
        let Correction { gradients: corrected, agreement } = self.correction(&gradients)?;
        self.record(&gradients, agreement);
        Ok(corrected.unwrap_or(gradients))
    }

    /// The correction of a step along measured gradients.
    fn correction(&self, gradients: &[Vec<f32>]) -> Result<Correction, TrainError> {
        let check = |what, expected, got| match expected == got {
            true => Ok(()),
            false => Err(GradError::Length { what, expected, got }),
        };
        if !self.history.sums.is_empty() {
            check("list of gradients", self.history.sums.len(), gradients.len())?;
            for ([sum, _], gradient) in self.history.sums.iter().zip(gradients) {
                check("gradient", sum.len(), gradient.len())?;
            }
        }
        let refused = |what| Err(TrainError::NonFinite { what, step: self.steps });
        if !is_finite(gradients) {
            return refused("gradient");
        }
        if !self.history.takes(gradients, self.config.decay) {
            return refused("prediction");
        }
        if self.predicted == 0 {
            return Ok(Correction::default());
        }
        let mut corrected = self.history.predict();
        let agreement = Some(cosine(&corrected, gradients));
        let share = 0.5 * self.predicted as f32;
        for (prediction, gradient) in corrected.iter_mut().zip(gradients) {
            prediction.iter_mut().zip(gradient).for_each(|(p, g)| *p = g + share * (g - *p));
        }
        if !is_finite(&corrected) {
            return refused("correction");
        }
        Ok(Correction { gradients: Some(corrected), agreement })
    }

    /// Adds measured gradients, which [`correction`](Self::correction) has checked, to the history.
    fn record(&mut self, gradients: &[Vec<f32>], agreement: Option<f64>) {
        self.history.add(gradients, self.config.decay);
        self.agreement = agreement.or(self.agreement);
        self.predicted = 0;
    }

    /// The predicted gradients of this step, in the shapes of the parameters; empty before the first measurement.
    #[must_use]
    pub fn get_predicted_gradients(&self) -> Vec<Vec<f32>> {
        self.history.predict()
    }

    /// Ends the step.
    pub fn end_step(&mut self) {
        let phase = self.begin_step();
        if phase == Phase::Predict {
            self.predicted += 1;
        }
        self.history.age = self.history.age.saturating_add(1);
        self.steps += 1;
        let PhaseConfig { warm_up, full, predict, correct_every, .. } = self.config;
        let corrections = predict.div_ceil(correct_every);
        let misled =
            phase == Phase::Correct && self.agreement.is_some_and(|cosine| cosine.is_nan() || cosine <= 0.0);
        self.cycle = match self.cycle {
            None if self.steps < warm_up as u64 => None,
            None => Some(0),
            Some(at) if misled || at + 1 >= (full + predict + corrections).max(1) => Some(0),
            Some(at) => Some(at + 1),
        };
    }

    /// The cosine between the last prediction that was followed by a measurement and the measured gradient.
    #[must_use]
    pub fn agreement(&self) -> Option<f64> {
        self.agreement
    }

    /// Takes a step of `trainer`; batches are read only for measured gradients. A predicted step has no loss: its report is that of
    /// zero tokens. A measured step that is [skipped](StepReport::skipped) or refused is not recorded: the next step has the same
    /// phase.
    ///
    /// # Errors
    ///
    /// As [`Trainer::step`].
    pub fn step(
        &mut self,
        trainer: &mut Trainer<'_>,
        batches: &mut Batches<'_>,
    ) -> Result<(Phase, StepReport), TrainError> {
        let phase = self.begin_step();
        if !phase.is_measured() {
            let report = trainer.step_with(crate::Loss::default(), &self.get_predicted_gradients())?;
            self.end_step();
            return Ok((phase, report));
        }
        let (loss, measured) = trainer.gradients(batches)?;
        let measured = measured.to_vec();
        // Non-finite gradients are left to the trainer, which skips the step if a smaller loss scale may help.
        let correction =
            if is_finite(&measured) { self.correction(&measured)? } else { Correction::default() };
        let report = trainer.step_with(loss, correction.gradients.as_ref().unwrap_or(&measured))?;
        if !report.skipped {
            self.record(&measured, correction.agreement);
            self.end_step();
        }
        Ok((phase, report))
    }
}

fn is_finite(gradients: &[Vec<f32>]) -> bool {
    // Without a branch per element, so that the loop is vectorized.
    gradients.iter().all(|gradient| gradient.iter().fold(true, |finite, g| finite & g.is_finite()))
}

fn cosine(a: &[Vec<f32>], b: &[Vec<f32>]) -> f64 {
    let dot = |a: &[Vec<f32>], b: &[Vec<f32>]| {
        let each = a.iter().flatten().zip(b.iter().flatten());
        each.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
    };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[cfg(test)]
mod tests {
    use trike_testkit::assert_near;

    use super::*;

    fn config(warm_up: usize, full: usize, predict: usize, correct_every: usize) -> PhaseConfig {
        PhaseConfig { warm_up, full, predict, correct_every, decay: 0.7 }
    }

    /// Phases of the first steps as letters, with perfect predictions.
    fn letters(config: PhaseConfig, steps: usize) -> String {
        let mut phases = DeterministicPhaseTrainer::new(config).expect("a trainer");
        let step = |_| {
            let phase = phases.begin_step();
            if phase.is_measured() {
                phases.record_full_gradients(vec![vec![1.0]]).expect("gradients");
            }
            phases.end_step();
            match phase {
                Phase::WarmUp => 'w',
                Phase::Full => 'f',
                Phase::Predict => 'p',
                Phase::Correct => 'c',
            }
        };
        (0..steps).map(step).collect()
    }

    #[test]
    fn phases_follow_each_other() {
        assert_eq!(letters(config(3, 2, 2, 2), 14), "wwwffppcffppcf");
        assert_eq!(letters(config(2, 1, 4, 2), 14), "wwfppcppcfppcp");
        assert_eq!(letters(config(2, 0, 1, 5), 8), "wwpcpcpc");
        assert_eq!(letters(config(2, 1, 3, 2), 14), "wwfppcpcfppcpc");
        assert_eq!(letters(config(2, 3, 0, 1), 8), "wwffffff");
        assert_eq!(letters(config(2, 0, 0, 1), 5), "wwfff");
    }

    /// Lines are extrapolated without corrections; the weighted fit agrees with the normal equations.
    #[test]
    fn lines_go_on() {
        let mut phases = DeterministicPhaseTrainer::new(config(4, 1, 3, 3)).expect("a trainer");
        let line = |step: usize| vec![vec![2.0 - 0.5 * step as f32, 7.0], vec![], vec![step as f32]];
        for step in 0..40 {
            let got = match phases.begin_step().is_measured() {
                true => phases.record_full_gradients(line(step)).expect("gradients"),
                false => phases.get_predicted_gradients(),
            };
            for (&got, want) in got.iter().flatten().zip(line(step).into_iter().flatten()) {
                assert_near!(got, want, abs = 2e-4 * (1.0 + want.abs()), "step {step}");
            }
            phases.end_step();
        }
        let mut history = History::default();
        let points = [(0, 3.0f32), (1, -1.0), (4, 2.0), (5, 6.0)];
        for (at, (time, g)) in points.into_iter().enumerate() {
            history.age = if at == 0 { 0 } else { time - points[at - 1].0 };
            history.add(&[vec![g]], 0.7);
        }
        history.age = 2;
        let (mut s, mut y) = ([0f64; 3], [0f64; 2]);
        for (time, g) in points {
            let (t, w) = (f64::from(time), 0.7f64.powi(5 - time.cast_signed()));
            s = [s[0] + w, s[1] + w * t, s[2] + w * t * t];
            y = [y[0] + w * f64::from(g), y[1] + w * t * f64::from(g)];
        }
        let slope = (s[0] * y[1] - s[1] * y[0]) / (s[0] * s[2] - s[1] * s[1]);
        let want = ((y[0] - slope * s[1]) / s[0] + slope * 7.0) as f32;
        assert_near!(history.predict()[0][0], want, rel = 1e-5);
    }

    /// In every phase, values that are not finite or would overflow are refused before anything is recorded.
    #[test]
    fn what_overflows_leaves_no_trace() {
        let mut phases = DeterministicPhaseTrainer::new(config(2, 1, 2, 2)).expect("a trainer");
        for step in 0..12 {
            let before = phases.clone();
            for wrong in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                let refused = phases.record_full_gradients(vec![vec![1.0, wrong]]);
                assert!(
                    matches!(refused, Err(TrainError::NonFinite { what: "gradient", .. })),
                    "{refused:?}"
                );
            }
            // Finite, but doubled they overflow the sums or the gradients to follow.
            let mut other = phases.clone();
            let twice = (0..2).find_map(|_| other.record_full_gradients(vec![vec![1.0, f32::MAX]]).err());
            assert!(matches!(twice, Some(TrainError::NonFinite { .. })), "{twice:?}");
            assert_eq!(phases, before, "step {step}");
            if phases.begin_step().is_measured() {
                let followed = phases.record_full_gradients(vec![vec![1.0, -2.0]]).expect("gradients");
                assert_near!(followed[0][1], -2.0, abs = 1e-5);
            } else {
                assert_near!(phases.get_predicted_gradients()[0][1], -2.0, abs = 1e-5);
            }
            phases.end_step();
        }
    }

    #[test]
    fn corrections_add_what_was_missed_and_wrong_directions_end_the_phase() {
        let mut phases = DeterministicPhaseTrainer::new(config(2, 0, 4, 2)).expect("a trainer");
        for _ in 0..2 {
            assert_eq!(phases.record_full_gradients(vec![vec![1.0]]).expect("gradients"), [[1.0]]);
            phases.end_step();
        }
        for _ in 0..2 {
            assert_eq!(phases.begin_step(), Phase::Predict);
            assert_near!(phases.get_predicted_gradients()[0][0], 1.0, abs = 1e-6);
            phases.end_step();
        }
        // The prediction was 1, the gradient is 3: the error is 1 per step on average over two steps.
        let followed = phases.record_full_gradients(vec![vec![3.0]]).expect("gradients");
        assert_near!(followed[0][0], 3.0 + 2.0, abs = 1e-5);
        assert_near!(phases.agreement().expect("a cosine"), 1.0, abs = 1e-9);
        phases.end_step();
        for _ in 0..2 {
            phases.end_step();
        }
        assert_eq!(phases.begin_step(), Phase::Correct);
        phases.record_full_gradients(vec![vec![-9.0]]).expect("gradients");
        assert_near!(phases.agreement().expect("a cosine"), -1.0, abs = 1e-9);
        phases.end_step();
        assert_eq!(phases.begin_step(), Phase::Predict, "a new cycle, which has no full steps");
        for wrong in [vec![], vec![vec![1.0, 2.0]]] {
            assert!(matches!(phases.record_full_gradients(wrong), Err(TrainError::Grad(_))));
        }
        for wrong in
            [config(1, 1, 1, 1), config(2, 1, 1, 0), PhaseConfig { decay: 1.0, ..config(2, 1, 1, 1) }]
        {
            assert!(DeterministicPhaseTrainer::new(wrong).is_err());
        }
    }
}
