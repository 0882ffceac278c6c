//! Running statistics of a run.

use std::time::Instant;

use super::log::{LogLine, StepLine};
use crate::{Loss, StepReport};

/// Window of the mean loss for detecting divergence, in steps.
const WINDOW: usize = 32;
/// A run diverges when that mean exceeds its minimum by this factor, plus one nat.
const DIVERGED: f64 = 1.5;

/// Mean loss over a window, to detect divergence.
#[derive(Default)]
pub(super) struct Watch {
    sum: f64,
    count: usize,
    lowest: Option<f64>,
}

impl Watch {
    /// Adds the loss of a step; returns whether the run diverges.
    pub(super) fn diverges(&mut self, loss: f64) -> bool {
        self.sum += loss;
        self.count += 1;
        if self.count < WINDOW {
            return false;
        }
        let mean = self.sum / WINDOW as f64;
        (self.sum, self.count) = (0.0, 0);
        let lowest = self.lowest.map_or(mean, |lowest| lowest.min(mean));
        self.lowest = Some(lowest);
        mean > DIVERGED * lowest + 1.0
    }
}

/// Means over the steps since the last log line.
#[derive(Default)]
pub(super) struct Means {
    pub(super) loss: Loss,
    /// Tokens of all ranks.
    pub(super) tokens: usize,
    pub(super) norm: f64,
    pub(super) steps: usize,
    pub(super) skipped: usize,
    pub(super) since: Option<Instant>,
}

impl Means {
    pub(super) fn add(&mut self, report: &StepReport) {
        if report.skipped {
            self.skipped += 1;
            return;
        }
        self.loss.sum += report.loss.sum;
        self.loss.divergence += report.loss.divergence;
        self.loss.tokens += report.loss.tokens;
        self.tokens += report.tokens;
        self.norm += report.norm;
        self.steps += 1;
    }

    pub(super) fn line(&mut self, report: &StepReport, tokens: u64) -> LogLine {
        let bits = |nats: f64| nats / self.loss.tokens.max(1) as f64 / std::f64::consts::LN_2;
        let seconds = self.since.map_or(0.0, |since| since.elapsed().as_secs_f64());
        let line = StepLine {
            step: report.step + 1,
            tokens,
            bits_per_token: bits(self.loss.sum),
            divergence: bits(self.loss.divergence),
            grad_norm: self.norm / self.steps.max(1) as f64,
            learning_rate: report.rate,
            lambda: report.lambda,
            tokens_per_second: self.tokens as f64 / seconds.max(1e-9),
            skipped: self.skipped,
        };
        *self = Self { since: Some(Instant::now()), ..Self::default() };
        LogLine::Steps(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_that_rises_and_stays_there_diverges() {
        let diverges = |losses: &mut dyn Iterator<Item = f64>| {
            let mut watch = Watch::default();
            losses.map(|loss| watch.diverges(loss)).fold(false, |any, diverges| any | diverges)
        };
        assert!(!diverges(&mut (0..500).map(|i| 8.0 - 0.01 * f64::from(i))));
        // One bad step is not a divergence.
        assert!(!diverges(&mut (0..500).map(|i| if i == 300 { 40.0 } else { 3.0 })));
        assert!(diverges(&mut (0..500).map(|i| if i < 250 { 3.0 } else { 9.0 })));
    }
}
