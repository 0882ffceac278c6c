//! What follows from the measurements: the model, its check, and predictions.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use trike_bench::{Machine, Software, median};

use super::{
    Assumed, CodecCost, Exchange, Model, Place, Prediction, Probe, Run, Setting, Task, fit, predictions,
};

/// The part of the time that a rank alone runs on a machine that has a core for it.
const ENOUGH: f64 = 0.95;

/// What a run of `cargo xtask bench-report --ranks` measures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Version of the fields.
    pub schema: u32,
    /// `ranks`.
    pub kind: String,
    /// The end of the run in UTC.
    pub date: String,
    /// The machine.
    pub machine: Machine,
    /// Versions.
    pub software: Software,
    /// Load averages before and after.
    pub load: [f64; 2],
    /// Rounds, of which medians are taken.
    pub rounds: usize,
    /// The model that was trained: its weights, tokens of a rank in weak scaling, weights of the largest tensor.
    pub task: Task,
    /// All runs.
    pub runs: Vec<Run>,
    /// Messages and sums without training.
    pub probes: Vec<Probe>,
    /// Codecs.
    pub codecs: BTreeMap<Exchange, CodecCost>,
    /// Processor seconds per element of an exchange of one rank without a codec.
    pub mean: f64,
}

/// Measurements, and what follows from them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The measurements.
    #[serde(flatten)]
    pub measured: Measured,
    /// The model, fitted to the processor time of one rank and to messages.
    pub model: Model,
    /// The cores that other programs left to all ranks together.
    pub available_cores: f64,
    /// Measured against predicted.
    pub checks: Vec<Check>,
    /// What the predictions assume.
    pub assumed: Assumed,
    /// Predictions.
    pub predictions: Vec<Prediction>,
}

/// A setting, measured and predicted: medians of the rounds, per rank and step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// The setting.
    pub setting: Setting,
    /// Its runs.
    pub measured: Run,
    /// Predicted seconds.
    pub seconds: f64,
    /// Predicted processor seconds.
    pub processor_seconds: f64,
    /// Predicted messages.
    pub messages: f64,
    /// Predicted bytes, in the mean over the ranks.
    pub bytes: f64,
}

impl Check {
    /// Relative error of the predicted time.
    #[must_use]
    pub fn error(&self) -> f64 {
        self.seconds / self.measured.seconds - 1.0
    }

    /// Relative error of the predicted processor time.
    #[must_use]
    pub fn processor_error(&self) -> f64 {
        self.processor_seconds / self.measured.processor_seconds - 1.0
    }
}

/// The medians of runs of one setting.
fn medians(runs: &[Run], setting: Setting) -> Option<Run> {
    let of = |part: fn(&Run) -> f64| {
        median(&runs.iter().filter(|run| run.setting == setting).map(part).collect::<Vec<_>>())
    };
    Some(Run {
        setting,
        seconds: of(|run| run.seconds)?,
        processor_seconds: of(|run| run.processor_seconds)?,
        waiting_seconds: of(|run| run.waiting_seconds)?,
        messages: of(|run| run.messages)?,
        bytes: of(|run| run.bytes)?,
    })
}

/// The cores that other programs leave to ranks. A rank alone that runs all the time has enough of them, and then all count. A rank
/// that gets only a part of its time shows the part: schedulers divide a busy machine between programs and not between threads, so
/// more ranks together get no more.
#[must_use]
pub fn available_cores(runs: &[Run], cores: usize) -> f64 {
    let alone = runs.iter().filter(|run| run.setting.ranks == 1);
    let share = median(&alone.map(|run| run.processor_seconds / run.seconds).collect::<Vec<_>>());
    share.filter(|share| *share < ENOUGH).unwrap_or(cores as f64)
}

/// Compares all settings of the runs with the model.
///
/// # Errors
///
/// No runs of a setting.
pub fn checks(
    runs: &[Run],
    model: &Model,
    codecs: &BTreeMap<Exchange, CodecCost>,
    elements: u64,
    cores: f64,
) -> Result<Vec<Check>> {
    let mut settings: Vec<Setting> = runs.iter().map(|run| run.setting).collect();
    settings.sort_by_key(|s| (s.scaling, s.exchange, s.ranks));
    settings.dedup();
    settings
        .into_iter()
        .map(|setting| {
            let Setting { exchange, ranks, .. } = setting;
            let measured = medians(runs, setting).context("a setting without runs")?;
            // On one machine the bytes of all ranks count, and not those of the one that has most.
            let task = Task { elements, tokens: setting.tokens_per_rank(), largest: 0 };
            let place = Place { ranks, threads: 1, cores };
            let step = model.step(exchange, ranks, task, codecs.get(&exchange), place, None);
            Ok(Check {
                setting,
                measured,
                seconds: step.total,
                processor_seconds: step.busy,
                messages: step.messages,
                bytes: step.bytes,
            })
        })
        .collect()
}

impl Report {
    /// The report of measurements.
    ///
    /// # Errors
    ///
    /// Too few measurements for the model.
    pub fn of(measured: Measured) -> Result<Self> {
        let Measured { runs, probes, codecs, machine, task, mean, .. } = &measured;
        let mut model = fit(&messages(probes)?, &steps_of_one(runs))?;
        // What the exact exchange of one rank takes longer than local steps is done per weight that a rank owns, but for its numbers
        // that become bytes and come back.
        let more = model.fixed_of(Exchange::Exact, 1) - model.fixed_of(Exchange::Local, 1);
        model.divided = (more - mean * task.elements as f64).max(0.0);
        let available_cores = available_cores(runs, machine.cores);
        let checks = checks(runs, &model, codecs, task.elements, available_cores)?;
        let assumed = Assumed::default();
        let predictions = predictions(&model, codecs, *mean, ("the bundled model", *task), &assumed);
        Ok(Self { model, available_cores, checks, assumed, predictions, measured })
    }
}

/// Bytes and seconds of messages between the fewest ranks that have any: of two ranks on two cores, since more of them would measure
/// how cores are shared. Of these the fast ones: while other programs run, the median of a short message is the time that the
/// scheduler gives to them.
fn messages(probes: &[Probe]) -> Result<Vec<(f64, f64)>> {
    let sent = || probes.iter().filter(|probe| probe.message_bytes.is_some());
    let ranks = sent().map(|probe| probe.ranks).min().context("no messages")?;
    let mut times: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for probe in sent().filter(|probe| probe.ranks == ranks) {
        times.entry(probe.message_bytes.unwrap_or_default()).or_default().push(probe.fast);
    }
    Ok(times.iter().filter_map(|(bytes, times)| Some((*bytes as f64, median(times)?))).collect())
}

/// Exchange, tokens and processor seconds of steps of one rank.
fn steps_of_one(runs: &[Run]) -> Vec<(Exchange, f64, f64)> {
    let mut settings: Vec<Setting> =
        runs.iter().map(|run| run.setting).filter(|setting| setting.ranks == 1).collect();
    settings.sort_unstable();
    settings.dedup();
    let step = |setting: Setting| {
        let run = medians(runs, setting)?;
        Some((setting.exchange, setting.tokens() as f64, run.processor_seconds))
    };
    settings.into_iter().filter_map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scaling::Scaling;
    use trike_testkit::assert_near;

    fn run(ranks: usize, seconds: f64) -> Run {
        let setting = Setting { exchange: Exchange::Exact, scaling: Scaling::Strong, ranks };
        Run { setting, seconds, processor_seconds: seconds, waiting_seconds: 0.0, messages: 0.0, bytes: 0.0 }
    }

    #[test]
    fn predicted_steps_stand_beside_the_median_of_the_measured_ones() {
        let model = Model {
            alpha: 0.0,
            beta: 0.0,
            token: 1e-4,
            fixed: BTreeMap::from([(Exchange::Exact, 0.1)]),
            divided: 0.0,
        };
        let runs = [run(4, 9.0), run(4, 0.3), run(4, 0.4), run(1, 0.3)];
        let checks = checks(&runs, &model, &BTreeMap::new(), 1000, 2.0).expect("checks");
        assert_eq!(checks.iter().map(|check| check.setting.ranks).collect::<Vec<_>>(), [1, 4]);
        assert_near!(checks[1].measured.seconds, 0.4, rel = 1e-12);
        // 512 tokens on each, and four ranks on two cores.
        assert_near!(checks[1].seconds, 2.0 * (0.1 + 0.0512), rel = 1e-12);
        assert_near!(checks[1].processor_seconds, 0.1 + 0.0512, rel = 1e-12);
        assert_near!(checks[1].error(), 0.3024 / 0.4 - 1.0, rel = 1e-12);
    }

    #[test]
    fn a_rank_that_gets_a_part_of_its_time_shows_the_cores_that_are_left() {
        let alone = |share: f64| Run { processor_seconds: share, ..run(1, 1.0) };
        assert_near!(available_cores(&[alone(0.99), run(4, 9.0)], 2), 2.0, rel = 1e-12);
        assert_near!(available_cores(&[alone(0.4), alone(0.5), alone(0.6)], 2), 0.5, rel = 1e-12);
    }
}
