//! Search for the smallest model within a quality budget, by trials.

use std::{fs, path::Path};

use trike_eval::{ScoreOptions, compare_ids};
use trike_format::publish;
use trike_llm::{LanguageModel, ModelFile, Split};
use trike_nn::KvPrecision;

use super::{
    Budget, Planner,
    allot::{plan, solve, solve_loss, totals},
};
use crate::{
    CalibrateError, Plan, Planning, QuantizeReport, Sensitivity, Trial, error::io, quantize::quantize_ids,
    weights::block_weights,
};

/// Ratio of two sizes below which the search stops.
const NEAR: f64 = 1.02;
/// Standard errors by which a measured loss must be below the budget: 95 % confidence on text of the same kind.
const SURE: f64 = 1.645;

/// Ratio of measured model loss to the sum of per-layer estimates; below 1 because later layers compensate earlier ones.
const OF_PRICES: f64 = 0.75;
/// The same ratio with codes tuned on enough text.
const OF_PRICES_TUNED: f64 = 0.5;
/// Fraction of the budget that a trial aims at: aiming at all of it would often miss narrowly.
const AIM: f64 = 0.97;

/// A trial with its plan and report.
struct Made {
    trial: Trial,
    plan: Plan,
    report: QuantizeReport,
}

impl Planner<'_> {
    /// The divergence that corresponds to the budget. For a model evaluated on its own text, the logarithm of the perplexity ratio
    /// equals the divergence; the trials measure the deviation of a real model.
    pub(super) fn loss(&self) -> f64 {
        match self.budget {
            Budget::PerplexityRatio(ratio) => ratio.ln(),
            Budget::Divergence(nats) => nats,
            Budget::Bits(_) | Budget::Bytes(_) => f64::INFINITY,
        }
    }

    /// The sum of estimates aimed at by the first trial.
    pub(super) fn first_goal(&self) -> Result<f64, CalibrateError> {
        let tuned = self.config.tuning.is_some_and(|tuning| tuning.tunes_model());
        let small = block_weights(self.input())? <= self.config.tuning.map_or(0, |tuning| tuning.max_weights);
        Ok(AIM * self.loss() / if tuned && small { OF_PRICES_TUNED } else { OF_PRICES })
    }

    pub(super) fn searched(
        &mut self,
        sensitivities: Vec<Sensitivity>,
        progress: &mut dyn FnMut(&str, usize, usize),
    ) -> Result<QuantizeReport, CalibrateError> {
        let failed = |e| CalibrateError::quantize("the plan", e);
        let wanted = self.loss();
        let mut trials: Vec<Trial> = Vec::new();
        let mut best: Option<Made> = None;
        // The largest size that failed and the smallest that met the budget, in bytes of the planned layers.
        let (mut low, mut high) = (0u64, u64::MAX);
        // With all layers unchanged the loss is zero: an upper bound of the search.
        let whole: u64 = sensitivities.iter().filter_map(|s| s.choices.iter().map(|c| c.bytes).max()).sum();
        let mut goal = self.first_goal()?;
        let mut tried: Vec<Vec<usize>> = Vec::new();
        for number in 0..self.options.trials {
            let mut chosen = solve_loss(&sensitivities, goal).map_err(failed)?;
            let bytes = totals(&sensitivities, &chosen).0;
            if tried.contains(&chosen) || bytes <= low || bytes >= high {
                let top = high.min(whole);
                if low == 0 || (top as f64 / low as f64) < NEAR {
                    break;
                }
                chosen = solve(&sensitivities, low + top.saturating_sub(low) / 2).map_err(failed)?;
                let bytes = totals(&sensitivities, &chosen).0;
                if tried.contains(&chosen) || bytes <= low || bytes >= high {
                    break;
                }
            }
            let name = format!("trial {}", number + 1);
            let mut say =
                |step: &str, done: usize, total: usize| progress(&format!("{name}: {step}"), done, total);
            let made = self.trial(&sensitivities, &chosen, number, &mut say)?;
            let (bytes, predicted, lost) =
                (made.trial.bytes, made.trial.predicted_kl, self.measured(&made.trial));
            trials.push(made.trial.clone());
            tried.push(chosen);
            match made.trial.met {
                true => high = bytes,
                false => low = low.max(bytes),
            }
            let better = match &best {
                None => made.trial.met || self.options.nearest,
                // Of two that meet the budget, the later one is smaller.
                Some(old) if old.trial.met => made.trial.met,
                Some(old) => made.trial.met || lost < self.measured(&old.trial),
            };
            let worse = if better { best.replace(made) } else { Some(made) };
            if let Some(worse) = worse {
                remove(&worse.report.output)?;
            }
            if high != u64::MAX && low != 0 && (high as f64 / low as f64) < NEAR {
                break;
            }
            // A loss of zero or less gives no estimate of the next step.
            let step = if lost > 0.0 { (AIM * wanted / lost).clamp(0.1, 10.0) } else { 4.0 };
            goal = predicted.max(wanted * 1e-6) * step;
        }
        let Some(made) = best else {
            self.clean()?;
            let closest = trials.iter().map(|t| self.measured(t)).fold(f64::INFINITY, f64::min);
            let closest = match self.budget {
                Budget::PerplexityRatio(_) => format!("{:.5} times the dense model's", closest.exp()),
                _ => format!("{closest:.2e} nats per token"),
            };
            return Err(CalibrateError::Budget { asked: self.budget.to_string(), closest });
        };
        let Made { plan, mut report, trial } = made;
        if !trial.met {
            report.notes.push(format!(
                "{} was not reached with 95 % confidence: held-out text gives a ratio of {:.4} and a divergence of {:.4} nats per token",
                self.budget, trial.ratio, trial.kl
            ));
        }
        publish(Path::new(&report.output), self.output).map_err(io(self.output))?;
        report.output = self.output.display().to_string();
        report.planning = Some(Planning {
            budget: self.budget.to_string(),
            source: self.source,
            sensitivities,
            trials,
            plan,
        });
        self.clean()?;
        Ok(report)
    }

    /// 95 % upper confidence bound of the loss of a trial, in nats per token.
    fn measured(&self, trial: &Trial) -> f64 {
        match self.budget {
            Budget::Divergence(_) => trial.kl + SURE * trial.error,
            _ => trial.ratio.ln() + SURE * trial.error / trial.ratio,
        }
    }

    /// Loads a model for measurement.
    fn load(&self, file: &ModelFile) -> Result<LanguageModel, CalibrateError> {
        let options = self.config.measured(file)?;
        Ok(LanguageModel::load_with(file, &options, &mut |_, _| ())?)
    }

    fn trial(
        &self,
        sensitivities: &[Sensitivity],
        chosen: &[usize],
        number: usize,
        progress: &mut dyn FnMut(&str, usize, usize),
    ) -> Result<Made, CalibrateError> {
        let plan = plan(sensitivities, chosen, self.budget.to_string());
        let mut config = self.config.clone();
        config.layers = plan.choices(self.output, self.input())?;
        let path = self.dir.join(format!("trial-{number}"));
        if path.exists() {
            fs::remove_dir_all(&path).map_err(io(&path))?;
        }
        let report = quantize_ids(&self.prepared, &path, &self.calibration, &config, &self.on, progress)?;
        // Here both models are in memory, but not during a quantization.
        let (dense, made) = (self.load(self.prepared.original)?, self.load(&ModelFile::open(&path)?)?);
        let options = ScoreOptions::new(Split::Stories).with_kv(KvPrecision::F32);
        let comparison = compare_ids(&made, &dense, &self.held, &options, &mut |done, total| {
            progress("measuring", done, total);
        })?;
        let (bytes, predicted_kl) = totals(sensitivities, chosen);
        let weights: u64 = sensitivities.iter().map(|s| s.weights).sum();
        let ratio = comparison.score.perplexity / comparison.base.perplexity;
        let mut trial = Trial {
            bytes,
            bits_per_weight: 8.0 * bytes as f64 / weights.max(1) as f64,
            predicted_kl,
            kl: comparison.kl,
            ratio,
            error: match self.budget {
                Budget::Divergence(_) => comparison.kl_error,
                _ => ratio * comparison.gap_error,
            },
            met: false,
        };
        trial.met = self.measured(&trial) <= self.loss();
        Ok(Made { trial, plan, report })
    }
}

fn remove(dir: &str) -> Result<(), CalibrateError> {
    fs::remove_dir_all(dir).map_err(io(Path::new(dir)))
}
