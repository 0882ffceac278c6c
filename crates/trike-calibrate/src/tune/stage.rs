//! A stage of tuning: its steps, and evaluations on held-out text that decide which weights are kept.

use std::time::Instant;

use super::text::{Span, schedule};
use crate::{CalibrateError, TuningReport};

/// Number of evaluations in a stage, the last one at its end.
const LOOKS: usize = 8;
/// The evaluation at which a stage without a gain ends. Learning rates have decayed to a sixth by then: earlier, the noise due to
/// high rates hides gains.
const LAST_CHANCE: usize = 6;
/// Factor on the learning rates when it is retried.
const LOWER: f32 = 1.0 / 3.0;
/// Standard errors that a gain must exceed.
pub(super) const ERRORS: f64 = 2.0;
/// Maximum number of attempts of a stage.
const ATTEMPTS: i32 = 3;

/// The loss of a held-out sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Loss {
    /// The sum over its tokens.
    pub(super) sum: f64,
    pub(super) tokens: usize,
}

/// Tuned weights.
pub(super) trait Tuned {
    /// Minimum gain, as a fraction of the loss. Above 0 if the loss is only a proxy.
    const LEAST_GAIN: f64;

    /// The loss of each held-out sequence, always in the same order.
    fn held_out(&self) -> Result<Vec<Loss>, CalibrateError>;
    /// Trains on the sequences of a step, with this fraction of the full learning rates.
    fn step(&mut self, step: &[Span], share: f32) -> Result<(), CalibrateError>;
    /// Stores the current weights as the result.
    fn keep(&mut self) -> Result<(), CalibrateError>;
    /// Restores the weights before the first step. Only called if nothing was stored.
    fn restart(&mut self) -> Result<(), CalibrateError>;
}

/// Takes the steps of `plan`. The result is the weights with the smallest evaluated loss, or the initial weights if none is better
/// by more than [`ERRORS`] standard errors and by [`Tuned::LEAST_GAIN`]. A stage without a gain at [`LAST_CHANCE`] is retried with
/// lower rates.
pub(super) fn run<T: Tuned>(
    tuned: &mut T,
    plan: &[Vec<Span>],
    progress: &mut dyn FnMut(usize, usize),
) -> Result<TuningReport, CalibrateError> {
    let start = Instant::now();
    let before = tuned.held_out()?;
    let mut report = TuningReport {
        steps: 0,
        before: mean(&before),
        after: mean(&before),
        gain_error: 0.0,
        kept: false,
        rate: 1.0,
        seconds: 0.0,
    };
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            tuned.restart()?;
        }
        let share = LOWER.powi(attempt);
        report.rate = f64::from(share);
        for (i, step) in plan.iter().enumerate() {
            progress(i, plan.len());
            tuned.step(step, share * schedule(i, plan.len()))?;
            report.steps += 1;
            let look = (i + 1) * LOOKS / plan.len();
            if look == i * LOOKS / plan.len() {
                continue;
            }
            let now = tuned.held_out()?;
            let (gain, error) = gained(&before, &now);
            let least = (ERRORS * error).max(T::LEAST_GAIN * report.before);
            if mean(&now) < report.after && gain > least {
                (report.after, report.gain_error, report.kept) = (mean(&now), error, true);
                tuned.keep()?;
            } else if !report.kept && look >= LAST_CHANCE {
                break;
            }
        }
        if report.kept {
            break;
        }
    }
    report.seconds = start.elapsed().as_secs_f64();
    Ok(report)
}

/// The mean loss per token.
pub(super) fn mean(losses: &[Loss]) -> f64 {
    let tokens: usize = losses.iter().map(|loss| loss.tokens).sum();
    losses.iter().map(|loss| loss.sum).sum::<f64>() / tokens.max(1) as f64
}

/// Decrease of the mean loss, and its standard error: sequences are independent, tokens of a sequence are not. Paired, because
/// sequences differ much more than their gains.
pub(super) fn gained(before: &[Loss], now: &[Loss]) -> (f64, f64) {
    let gain = mean(before) - mean(now);
    let tokens: usize = before.iter().map(|loss| loss.tokens).sum();
    let square = |(before, now): (&Loss, &Loss)| (before.sum - now.sum - gain * before.tokens as f64).powi(2);
    let squares: f64 = before.iter().zip(now).map(square).sum();
    let count = before.len() as f64;
    let error = (squares * count / (count - 1.0).max(1.0)).sqrt() / tokens.max(1) as f64;
    (gain, error)
}

#[cfg(test)]
mod tests {
    use trike_testkit::assert_near;

    use super::*;

    /// A weight with a given loss function; a full step adds 1.
    struct Weight<F> {
        at: f32,
        kept: Option<f32>,
        loss: F,
    }

    impl<F: Fn(f32) -> [f64; 2]> Tuned for Weight<F> {
        const LEAST_GAIN: f64 = 0.01;

        fn held_out(&self) -> Result<Vec<Loss>, CalibrateError> {
            Ok((self.loss)(self.at).map(|sum| Loss { sum, tokens: 1 }).to_vec())
        }

        fn step(&mut self, _: &[Span], share: f32) -> Result<(), CalibrateError> {
            self.at += share;
            Ok(())
        }

        fn keep(&mut self) -> Result<(), CalibrateError> {
            self.kept = Some(self.at);
            Ok(())
        }

        fn restart(&mut self) -> Result<(), CalibrateError> {
            assert_eq!(self.kept, None);
            self.at = 0.0;
            Ok(())
        }
    }

    fn run_with(loss: impl Fn(f32) -> [f64; 2]) -> (TuningReport, Option<f32>) {
        let plan = vec![vec![(0, 0..1)]; 64];
        let mut weight = Weight { at: 0.0, kept: None, loss };
        let report = run(&mut weight, &plan, &mut |_, _| ()).unwrap();
        assert_eq!(report.kept, weight.kept.is_some());
        (report, weight.kept)
    }

    #[test]
    fn the_best_weights_are_kept() {
        // The minimum is in the middle of the steps.
        let (report, kept) = run_with(|at| [f64::from((at - 14.0).powi(2)); 2]);
        let kept = kept.unwrap();
        assert!((10.0..18.0).contains(&kept), "{kept}");
        assert_near!(report.after, f64::from((kept - 14.0).powi(2)), rel = 1e-9);
        assert_eq!((report.before, report.steps, report.rate), (196.0, 64, 1.0));
        // Both sequences gain equally.
        assert_eq!(report.gain_error, 0.0);
    }

    #[test]
    fn rates_are_lowered_until_something_is_gained() {
        // A single step at the full rate already overshoots.
        let (report, kept) = run_with(|at| [f64::from((at - 3.0).powi(2)); 2]);
        assert_near!(report.rate, 1.0 / 3.0, rel = 1e-6);
        assert_eq!(report.steps, 48 + 64);
        assert!((0.0..6.0).contains(&kept.unwrap()));
    }

    #[test]
    fn a_gain_that_shows_late_is_one() {
        let (report, kept) =
            run_with(|at| [if (1.0..28.0).contains(&at) { 2.0 } else { 1.0 - f64::from(at) / 100.0 }; 2]);
        assert!(kept.unwrap() >= 28.0 && report.rate == 1.0 && report.steps == 64, "{report:?}");
    }

    #[test]
    fn a_stage_that_loses_ends_early_and_changes_nothing() {
        let (report, kept) = run_with(|at| [1.0 + f64::from(at); 2]);
        assert_eq!((report.before, report.after, kept), (1.0, 1.0, None));
        // Three quarters of the steps, in three attempts.
        assert_eq!(report.steps, 3 * 48);
        assert_near!(report.rate, 1.0 / 9.0, rel = 1e-6);
    }

    #[test]
    fn a_gain_that_is_too_small_is_none() {
        let (report, kept) = run_with(|at| [if at == 0.0 { 1.0 } else { 0.991 }; 2]);
        assert_eq!((report.after, kept), (1.0, None));
        assert!(run_with(|at| [if at == 0.0 { 1.0 } else { 0.989 }; 2]).1.is_some());
    }

    #[test]
    fn a_gain_within_its_error_is_none() {
        // One sequence gains 3, the other loses 2.
        let (report, kept) = run_with(|at| if at == 0.0 { [10.0, 10.0] } else { [7.0, 12.0] });
        assert_eq!((report.after, kept), (10.0, None));
        let (before, now) =
            ([Loss { sum: 10.0, tokens: 1 }; 2], [7.0, 12.0].map(|sum| Loss { sum, tokens: 1 }));
        let (gain, error) = gained(&before, &now);
        assert_near!(gain, 0.5, rel = 1e-12);
        // The standard error of the mean of 3 and -2.
        assert_near!(error, 2.5, rel = 1e-12);
        assert_eq!(gained(&before[..1], &now[..1]).1, 0.0);
    }
}
