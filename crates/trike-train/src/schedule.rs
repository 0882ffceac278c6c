//! Schedules of learning rate and weight decay.

use serde::{Deserialize, Serialize};
use trike_core::{Bounds, OptionError};

/// The shape of the learning rate and weight decay over a run, as factors of the configured values.
///
/// All shapes start with a linear warm-up. A run of `n` steps has the steps `0..n`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum ScheduleShape {
    /// Stays at 1.
    Constant,
    /// Cosine decay to `end`.
    Cosine {
        /// The last factor.
        end: f32,
    },
    /// Linear decay to 0.
    Linear,
    /// Warm-up, stable, decay: constant at 1, then linear decay to 0 (Hu et al., 2024).
    Wsd {
        /// Fraction of the steps in the decay.
        decay: f32,
    },
    /// The two stages of BitNet b1.58 2B4T: linearly from 1 to 8/15, then from 1/3 to 0 and without weight decay.
    TwoStage {
        /// Fraction of the steps in the first stage.
        first: f32,
    },
}

/// Factors of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScheduleFactors {
    /// Of the learning rate.
    pub rate: f32,
    /// Of the weight decay.
    pub decay: f32,
}

/// A shape with its warm-up.
///
/// ```
/// use trike_train::{Schedule, ScheduleShape};
///
/// let schedule = Schedule { warmup: 10, shape: ScheduleShape::Wsd { decay: 0.2 } };
/// let rate = |step| schedule.factors(step, 100).rate;
/// assert_eq!([rate(0), rate(9), rate(50), rate(79)], [0.1, 1.0, 1.0, 1.0]);
/// assert!(rate(90) < 0.6 && rate(99) < 0.06);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// Number of warm-up steps.
    pub warmup: usize,
    /// Shape after the warm-up.
    pub shape: ScheduleShape,
}

impl Schedule {
    /// Checks that fractions are between 0 and 1.
    ///
    /// # Errors
    ///
    /// [`OptionError::OutOfRange`].
    pub fn validate(&self) -> Result<(), OptionError> {
        let share = |field, value: f32| OptionError::check(field, Bounds::at_least(0.0).at_most(1.0), value);
        match self.shape {
            ScheduleShape::Constant | ScheduleShape::Linear => Ok(()),
            ScheduleShape::Cosine { end } => share("schedule.end", end),
            ScheduleShape::Wsd { decay } => share("schedule.decay", decay),
            ScheduleShape::TwoStage { first } => share("schedule.first", first),
        }
    }

    /// The factors of step `step` of `steps`.
    #[must_use]
    pub fn factors(&self, step: usize, steps: usize) -> ScheduleFactors {
        let warm = if step < self.warmup { (step + 1) as f32 / self.warmup as f32 } else { 1.0 };
        // From 0 after the warm-up to just below 1 at the last step.
        let rest = steps.saturating_sub(self.warmup).max(1);
        let done = (step.saturating_sub(self.warmup) as f32 / rest as f32).min(1.0);
        let (rate, decay) = match self.shape {
            ScheduleShape::Constant => (1.0, 1.0),
            ScheduleShape::Linear => (1.0 - done, 1.0),
            ScheduleShape::Cosine { end } => {
                (end + (1.0 - end) * 0.5 * (1.0 + (std::f32::consts::PI * done).cos()), 1.0)
            }
            ScheduleShape::Wsd { decay } => {
                let left = steps.saturating_sub(step) as f32;
                ((left / (decay * steps as f32).max(1.0)).min(1.0), 1.0)
            }
            ScheduleShape::TwoStage { first } if done < first => (1.0 - done / first * (7.0 / 15.0), 1.0),
            ScheduleShape::TwoStage { first } => ((1.0 - done) / (1.0 - first).max(f32::EPSILON) / 3.0, 0.0),
        };
        ScheduleFactors { rate: warm * rate, decay }
    }
}

#[cfg(test)]
mod tests {
    use trike_testkit::assert_near;

    use super::*;

    #[test]
    fn shapes_go_where_they_say() {
        let at = |shape, step| Schedule { warmup: 0, shape }.factors(step, 1000);
        let table = [
            (ScheduleShape::Constant, 999, 1.0, 1.0),
            (ScheduleShape::Linear, 0, 1.0, 1.0),
            (ScheduleShape::Linear, 250, 0.75, 1.0),
            (ScheduleShape::Linear, 999, 0.001, 1.0),
            (ScheduleShape::Cosine { end: 0.1 }, 0, 1.0, 1.0),
            (ScheduleShape::Cosine { end: 0.1 }, 500, 0.55, 1.0),
            (ScheduleShape::Cosine { end: 0.1 }, 999, 0.1, 1.0),
            (ScheduleShape::Wsd { decay: 0.5 }, 500, 1.0, 1.0),
            (ScheduleShape::Wsd { decay: 0.5 }, 750, 0.5, 1.0),
            (ScheduleShape::Wsd { decay: 0.0 }, 999, 1.0, 1.0),
            (ScheduleShape::TwoStage { first: 0.5 }, 499, 8.0 / 15.0, 1.0),
            (ScheduleShape::TwoStage { first: 0.5 }, 500, 1.0 / 3.0, 0.0),
            (ScheduleShape::TwoStage { first: 0.5 }, 999, 0.0, 0.0),
            (ScheduleShape::TwoStage { first: 1.0 }, 999, 8.0 / 15.0, 1.0),
        ];
        for (shape, step, rate, decay) in table {
            let got = at(shape, step);
            assert_near!(got.rate, rate, abs = 2e-3, "{shape:?} {step}");
            assert_eq!(got.decay, decay, "{shape:?} {step}");
        }
    }

    #[test]
    fn every_factor_is_usable() {
        for shape in [
            ScheduleShape::Constant,
            ScheduleShape::Cosine { end: 0.0 },
            ScheduleShape::Wsd { decay: 1.0 },
            ScheduleShape::TwoStage { first: 0.0 },
        ] {
            for (warmup, steps) in [(0, 1), (5, 3), (0, 0), (3, 10)] {
                let schedule = Schedule { warmup, shape };
                schedule.validate().expect("shares are in range");
                for step in 0..steps {
                    let ScheduleFactors { rate, decay } = schedule.factors(step, steps);
                    assert!(
                        (0.0..=1.0).contains(&rate) && (0.0..=1.0).contains(&decay),
                        "{schedule:?} {step}"
                    );
                }
            }
        }
        let wrong = Schedule { warmup: 0, shape: ScheduleShape::Wsd { decay: f32::NAN } };
        assert!(wrong.validate().is_err());
    }
}
