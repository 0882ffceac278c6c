//! A model that meets a budget: what each layer costs is measured, a knapsack allots, and trials check it.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use trike_cpu::Cpu;
use trike_llm::{HeadPrecision, LanguageModel, LoadOptions, ModelFile, Split, WeightSource, compare_ids};
use trike_nn::{ActivationPrecision, CpuBackend, KvPrecision, WeightName};
use trike_quant::QuantError;
use trike_trit::{Granularity, GroupSize};

use crate::{
    CalibrateError, Calibration, ConfigError, ModelQuantizationConfig, Plan, Planning, QuantizeReport,
    Sensitivity,
    assemble::stored_bytes,
    plan::{plan, solve, solve_loss, totals},
    quantize::{calibration_ids, io, quantize_ids, refuse_existing},
    rewrite::Prepared,
    sensitivity, store,
};

/// Tokens on which sensitivities are measured.
const HELD_TOKENS: usize = 8192;
/// Models that are made on the way to a budget of quality.
const TRIALS: usize = 7;
/// Two sizes between which it is not worth to search on.
const NEAR: f64 = 1.004;
/// Standard errors by which a measured loss must lie under the budget: met with 95 % on text of the same kind.
const SURE: f64 = 1.645;
/// What a model may cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// Its perplexity over that of the dense model, on text that is neither calibrated on nor planned with.
    PerplexityRatio(f64),
    /// Its divergence from the dense model, in nats a token.
    Divergence(f64),
    /// Bits of a weight over the linear layers of the blocks, scales included.
    Bits(f64),
    /// Bytes of all of its tensors.
    Bytes(u64),
}

/// What a plan is made for, and what it chooses from beside int8 and the layers as they are.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanOptions {
    /// What the model may cost.
    pub budget: Budget,
    /// Most planes of a layer.
    pub planes: usize,
    /// What may share a scale.
    pub groups: Vec<Granularity>,
}

impl PlanOptions {
    /// Up to four planes, more of which would take the room of int8, and a scale for 32, 64 or 128 weights or a row.
    pub fn new(budget: Budget) -> Self {
        let sizes = [GroupSize::G32, GroupSize::G64, GroupSize::G128];
        let groups = sizes.map(Granularity::Group).into_iter().chain([Granularity::Row]).collect();
        Self { budget, planes: 4, groups }
    }
}

impl Budget {
    fn validate(&self) -> Result<(), ConfigError> {
        let (budget, got) = match *self {
            Self::PerplexityRatio(got) if got.is_finite() && got <= 1.0 => {
                return Err(ConfigError::PerplexityRatio { got });
            }
            Self::PerplexityRatio(got) => ("perplexity ratio", got),
            Self::Divergence(got) => ("divergence in nats per token", got),
            Self::Bits(got) => ("bits per weight", got),
            Self::Bytes(got) => ("bytes", got as f64),
        };
        match got.is_finite() && got > 0.0 {
            true => Ok(()),
            false => Err(ConfigError::BudgetRange { budget, got }),
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PerplexityRatio(ratio) => {
                write!(f, "a perplexity of at most {ratio} times the dense model's")
            }
            Self::Divergence(nats) => write!(f, "a divergence of at most {nats} nats a token"),
            Self::Bits(bits) => write!(f, "at most {bits} bits a weight"),
            Self::Bytes(bytes) => write!(f, "at most {bytes} bytes"),
        }
    }
}

/// A model that was made on the way to a budget of quality.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Trial {
    /// Bytes of the planned layers.
    pub bytes: u64,
    /// The same in bits a weight.
    pub bits_per_weight: f64,
    /// Divergence that the sensitivities add up to.
    pub predicted_kl: f64,
    /// Divergence on the text that was kept out of calibration.
    pub kl: f64,
    /// Perplexity over the dense model's on that text.
    pub ratio: f64,
    /// Standard error of the one of the two that the budget is about.
    pub error: f64,
    /// Whether it meets the budget, by 1.645 standard errors.
    pub met: bool,
}

/// Plans a model for a budget: measures what each way to store each layer costs, on calibration text, and allots planes, scales, int8
/// or dense.
///
/// Budgets of quality are checked: models are made and measured on sequences that they were not calibrated on, until the smallest
/// that meets the budget is found. A budget of bytes or bits needs no more than the allotment.
///
/// Planes and groups are those of `options`, not of `config.layout`. What was measured is kept in `<output>.plan`
/// until all is done, so that the same call after an interruption goes on. `progress` is called with what is being done, and
/// how much of it is done and to do.
///
/// # Errors
///
/// [`CalibrateError::Budget`] for a budget that cannot be met, with the nearest that can; and as [`quantize`](super::quantize()).
pub fn quantize_to(
    input: &ModelFile,
    output: &Path,
    calibration: &Calibration<'_>,
    config: &ModelQuantizationConfig,
    options: &PlanOptions,
    progress: &mut dyn FnMut(&str, usize, usize),
) -> Result<QuantizeReport, CalibrateError> {
    let mut planner = Planner::new(input, output, calibration, config, options, &mut |done, total| {
        progress("scaling the inputs of layers", done, total);
    })?;
    let sensitivities = planner.sensitivities(progress)?;
    match options.budget {
        Budget::Bits(_) | Budget::Bytes(_) => planner.allotted(sensitivities, progress),
        Budget::PerplexityRatio(_) | Budget::Divergence(_) => planner.searched(sensitivities, progress),
    }
}

/// The plan of [`quantize_to`] alone, for a budget of bytes or bits; for one of quality, the first that it would try.
///
/// # Errors
///
/// As [`quantize_to`].
pub fn plan_for(
    input: &ModelFile,
    output: &Path,
    calibration: &Calibration<'_>,
    config: &ModelQuantizationConfig,
    options: &PlanOptions,
    progress: &mut dyn FnMut(&str, usize, usize),
) -> Result<(Plan, Vec<Sensitivity>), CalibrateError> {
    let planner = Planner::new(input, output, calibration, config, options, &mut |done, total| {
        progress("scaling the inputs of layers", done, total);
    })?;
    let sensitivities = planner.sensitivities(progress)?;
    let chosen = match options.budget {
        Budget::Bits(_) | Budget::Bytes(_) => planner.within_or_clean(&sensitivities)?,
        Budget::PerplexityRatio(_) | Budget::Divergence(_) => {
            solve_loss(&sensitivities, planner.loss()).map_err(|e| CalibrateError::quantize("the plan", e))?
        }
    };
    let plan = plan(&sensitivities, &chosen, options.budget.to_string());
    planner.clean()?;
    Ok((plan, sensitivities))
}

struct Planner<'a> {
    prepared: Prepared<'a>,
    output: &'a Path,
    config: ModelQuantizationConfig,
    options: PlanOptions,
    budget: Budget,
    calibration: Vec<Vec<u32>>,
    held: Vec<Vec<u32>>,
    dir: PathBuf,
}

/// A trial with what made it.
struct Made {
    trial: Trial,
    plan: Plan,
    report: QuantizeReport,
}

impl<'a> Planner<'a> {
    fn new(
        input: &'a ModelFile,
        output: &'a Path,
        calibration: &Calibration<'_>,
        config: &ModelQuantizationConfig,
        options: &PlanOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, CalibrateError> {
        let budget = options.budget;
        config.validate()?;
        refuse_existing(output)?;
        if config.prune.is_some() {
            return Err(ConfigError::BudgetPruned.into());
        }
        if !(1..=trike_trit::MAX_DEPTH).contains(&options.planes) {
            return Err(ConfigError::PlanPlanes { got: options.planes, most: trike_trit::MAX_DEPTH }.into());
        }
        if options.groups.is_empty() {
            return Err(ConfigError::PlanGroups.into());
        }
        if config.compensation().is_none() {
            return Err(ConfigError::BudgetRounded.into());
        }
        budget.validate()?;
        // What is planned and tried with is not what is calibrated on.
        let wanted = calibration.limit();
        let mut all = calibration_ids(input, &calibration.with_limit(wanted.saturating_mul(2)), config)?;
        if all.len() < 2 {
            return Err(ConfigError::NothingHeldOut { got: all.len() }.into());
        }
        let keep = wanted.min((3 * all.len()).div_ceil(4)).min(all.len() - 1);
        let held = all.split_off(keep);
        let (config, options) = (config.clone(), options.clone());
        let prepared = Prepared::new(input, &config, &all, progress)?;
        Ok(Self {
            prepared,
            output,
            config,
            options,
            budget,
            calibration: all,
            held,
            dir: store::beside(output, ".plan"),
        })
    }

    /// The model that becomes ternary.
    fn input(&self) -> &dyn WeightSource {
        self.prepared.source()
    }

    /// Removes what was kept for a second call.
    fn clean(&self) -> Result<(), CalibrateError> {
        fs::remove_dir_all(&self.dir).map_err(io(&self.dir))
    }

    /// Measures, or reads what an earlier call with the same settings measured.
    fn sensitivities(
        &self,
        progress: &mut dyn FnMut(&str, usize, usize),
    ) -> Result<Vec<Sensitivity>, CalibrateError> {
        let settings = format!(
            "{} {:?}",
            store::fingerprint(self.input().path(), &self.config, &[&self.calibration, &self.held]),
            (self.options.planes, &self.options.groups)
        );
        let path = self.dir.join("sensitivities.json");
        if store::resume(&self.dir, &settings)?
            && let Ok(text) = fs::read(&path)
            && let Ok(measured) = serde_json::from_slice(&text)
        {
            return Ok(measured);
        }
        let backend = CpuBackend::new(Cpu::new(self.config.threads)?, ActivationPrecision::F32);
        let mut tokens = 0;
        let few: Vec<Vec<u32>> = self
            .held
            .iter()
            .take_while(|ids| {
                let room = tokens < HELD_TOKENS;
                tokens += ids.len();
                room
            })
            .cloned()
            .collect();
        let options = sensitivity::options(self.options.planes, &self.options.groups);
        let measured = sensitivity::measure(
            self.input(),
            &self.config,
            &backend,
            [&self.calibration, &few],
            &options,
            &mut |done, total| progress("measuring what each layer costs", done, total),
        )?;
        if measured.is_empty() {
            self.clean()?;
            return Err(ConfigError::NothingToPlan.into());
        }
        let text = serde_json::to_vec(&measured).map_err(|e| io(&path)(e.into()))?;
        fs::write(&path, text).map_err(io(&path))?;
        Ok(measured)
    }

    /// Bytes and weights of what a plan has no say in, of the tensors that are `wanted`.
    fn others(
        &self,
        sensitivities: &[Sensitivity],
        wanted: impl Fn(WeightName) -> bool,
    ) -> Result<(u64, u64), CalibrateError> {
        let (mut bytes, mut weights) = (0, 0);
        for name in self.input().weights().into_iter().filter(|&name| wanted(name)) {
            let text = name.to_string();
            if !sensitivities.iter().any(|s| s.layer == text) {
                bytes += stored_bytes(self.input(), &self.config, name)?;
                weights += self.input().info(name)?.elements();
            }
        }
        Ok((bytes, weights))
    }

    /// The choices within a budget of bytes or bits; one that cannot be met leaves nothing behind.
    fn within_or_clean(&self, sensitivities: &[Sensitivity]) -> Result<Vec<usize>, CalibrateError> {
        let chosen = self.within(sensitivities);
        if chosen.is_err() {
            self.clean()?;
        }
        chosen
    }

    /// The choices within a budget of bytes or bits.
    fn within(&self, sensitivities: &[Sensitivity]) -> Result<Vec<usize>, CalibrateError> {
        let mut weights: u64 = sensitivities.iter().map(|s| s.weights).sum();
        let (budget, others) = match self.budget {
            Budget::Bytes(bytes) => {
                let others = self.others(sensitivities, |_| true)?.0;
                (bytes.saturating_sub(others), others)
            }
            Budget::Bits(bits) => {
                // Layers that are left as they are count, too.
                let (others, kept) = self.others(sensitivities, WeightName::is_block_matrix)?;
                weights += kept;
                (((bits * weights as f64 / 8.0) as u64).saturating_sub(others), others)
            }
            Budget::PerplexityRatio(_) | Budget::Divergence(_) => (u64::MAX, 0),
        };
        solve(sensitivities, budget).map_err(|e| match (e, self.budget) {
            (QuantError::Budget { smallest, .. }, Budget::Bytes(_)) => CalibrateError::Budget {
                asked: self.budget.to_string(),
                closest: format!("{} bytes", smallest + others),
            },
            (QuantError::Budget { smallest, .. }, _) => CalibrateError::Budget {
                asked: self.budget.to_string(),
                // Rounded up, so that what is said can be asked for.
                closest: format!(
                    "{:.3} bits a weight",
                    (8e3 * (smallest + others) as f64 / weights as f64).ceil() / 1e3
                ),
            },
            (other, _) => CalibrateError::quantize("the plan", other),
        })
    }

    fn allotted(
        &mut self,
        sensitivities: Vec<Sensitivity>,
        progress: &mut dyn FnMut(&str, usize, usize),
    ) -> Result<QuantizeReport, CalibrateError> {
        let chosen = self.within_or_clean(&sensitivities)?;
        let plan = plan(&sensitivities, &chosen, self.budget.to_string());
        let mut config = self.config.clone();
        config.layers = plan.choices(self.output, self.input())?;
        let mut report =
            quantize_ids(&self.prepared, self.output, &self.calibration, &config, &mut |done, total| {
                progress("writing", done, total);
            })?;
        report.planning =
            Some(Planning { budget: self.budget.to_string(), sensitivities, trials: Vec::new(), plan });
        self.clean()?;
        Ok(report)
    }

    /// The divergence that the budget comes to. For a model that predicts its own text, the logarithm of the ratio of perplexities is
    /// the divergence; how far a real one is from that is seen in the trials.
    fn loss(&self) -> f64 {
        match self.budget {
            Budget::PerplexityRatio(ratio) => ratio.ln(),
            Budget::Divergence(nats) => nats,
            Budget::Bits(_) | Budget::Bytes(_) => f64::INFINITY,
        }
    }

    fn searched(
        &mut self,
        sensitivities: Vec<Sensitivity>,
        progress: &mut dyn FnMut(&str, usize, usize),
    ) -> Result<QuantizeReport, CalibrateError> {
        let dense = LanguageModel::load_with(self.prepared.original, &self.load_options(), &mut |_, _| ())?;
        let failed = |e| CalibrateError::quantize("the plan", e);
        let wanted = self.loss();
        let mut trials: Vec<Trial> = Vec::new();
        let mut best: Option<Made> = None;
        // The largest that was too bad, and the smallest that was good enough, in bytes of the planned layers.
        let (mut low, mut high) = (0u64, u64::MAX);
        // All layers as they are lose nothing: there is always something to search below.
        let whole: u64 = sensitivities.iter().filter_map(|s| s.choices.iter().map(|c| c.bytes).max()).sum();
        let mut goal = wanted;
        let mut tried: Vec<Vec<usize>> = Vec::new();
        for number in 0..TRIALS {
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
            let mut say = |done: usize, total: usize| progress(&name, done, total);
            let made = self.trial(&dense, &sensitivities, &chosen, number, &mut say)?;
            let (bytes, predicted, lost) =
                (made.trial.bytes, made.trial.predicted_kl, self.measured(&made.trial));
            trials.push(made.trial.clone());
            tried.push(chosen);
            if made.trial.met {
                high = bytes;
                if let Some(old) = best.replace(made) {
                    remove(&old.report.output)?;
                }
            } else {
                low = low.max(bytes);
                remove(&made.report.output)?;
            }
            if high != u64::MAX && low != 0 && (high as f64 / low as f64) < NEAR {
                break;
            }
            // A loss that is not over zero says nothing about the next one.
            let step = if lost > 0.0 { (wanted / lost).clamp(0.1, 10.0) } else { 4.0 };
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
        let Made { plan, mut report, .. } = made;
        fs::rename(&report.output, self.output).map_err(io(self.output))?;
        report.output = self.output.display().to_string();
        report.planning = Some(Planning { budget: self.budget.to_string(), sensitivities, trials, plan });
        self.clean()?;
        Ok(report)
    }

    /// What a trial lost at most, in nats a token, with 95 %.
    fn measured(&self, trial: &Trial) -> f64 {
        match self.budget {
            Budget::Divergence(_) => trial.kl + SURE * trial.error,
            _ => trial.ratio.ln() + SURE * trial.error / trial.ratio,
        }
    }

    fn load_options(&self) -> LoadOptions {
        LoadOptions {
            tokenizer: self.config.tokenizer.clone(),
            threads: self.config.threads,
            activations: Some(ActivationPrecision::F32),
            head: HeadPrecision::AsStored,
        }
    }

    fn trial(
        &self,
        dense: &LanguageModel,
        sensitivities: &[Sensitivity],
        chosen: &[usize],
        number: usize,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Made, CalibrateError> {
        let plan = plan(sensitivities, chosen, self.budget.to_string());
        let mut config = self.config.clone();
        config.layers = plan.choices(self.output, self.input())?;
        let path = self.dir.join(format!("trial-{number}"));
        if path.exists() {
            fs::remove_dir_all(&path).map_err(io(&path))?;
        }
        let report = quantize_ids(&self.prepared, &path, &self.calibration, &config, progress)?;
        let made = LanguageModel::load_with(&ModelFile::open(&path)?, &self.load_options(), &mut |_, _| ())?;
        let kv = KvPrecision::F32;
        let comparison = compare_ids(&made, kv, dense, kv, &self.held, Split::Stories, &mut |_, _| ())?;
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
