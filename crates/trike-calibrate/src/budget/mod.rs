//! Quantization to a budget: estimates the sensitivity of every layer to each precision, allocates precision by a knapsack solver,
//! and checks the result by trials.

mod allot;
mod options;
mod prices;
mod search;

use std::{
    collections::{HashMap, hash_map::Entry},
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use trike_cpu::Cpu;
use trike_format::{Claim, OutputFile};
use trike_llm::{ModelFile, WeightSource};
use trike_nn::{ActivationPrecision, CpuBackend, WeightName};
use trike_quant::{MatrixView, QuantError, QuantizeConfig, quantize_matrix};

use self::allot::{plan, solve, solve_loss};
pub use self::options::{Budget, PlanOptions};
#[cfg(test)]
pub(crate) use self::prices::{options, prices};
use crate::{
    CalibrateError, Calibration, ConfigError, LayerChoice, Measured, ModelQuantizationConfig, Plan, Planning,
    QuantizeReport, Sensitivity, Stored, TextSource,
    assemble::{HEAD_GROUP, stored_bytes},
    error::io,
    held_out::{calibration_ids, limited, without},
    memory, own_text,
    quantize::{SCALING, quantize, quantize_ids, refuse_existing, refuse_ternary},
    report::HeldOut,
    rewrite::Prepared,
    store,
    walk::PRODUCTS,
    weights::is_convertible,
};

/// Held-out tokens on which prices are computed.
const HELD_TOKENS: usize = 8192;
/// Version of the computation of stored sensitivities.
const PRICES: &str = "prices 1";
/// Held-out tokens on which the models of a search are measured.
const MEASURED: usize = 32_768;
/// Minimum number of unused held-out tokens on which the result is measured.
const LEAST_FRESH: usize = 1024;

/// Plans a model for a budget: estimates the loss of each candidate for each layer, from the gradients of the dense model and the
/// errors of the layer's outputs on text held out from calibration, and allocates planes, scales, int8 or dense.
///
/// Quality budgets are verified: models are quantized and measured on held-out sequences until the smallest one that
/// meets the budget is found. A budget of bytes or bits needs only the allocation.
///
/// Planes and groups are taken from `options`, not from `config.layout`. Prices are stored in `<output>.plan`
/// until everything is finished, so that the same call resumes after an interruption. `progress` is called with the
/// current step, and the units done and in total.
///
/// # Errors
///
/// [`CalibrateError::Budget`] for a budget that is not achievable, with the closest achievable one; and errors of
/// [`quantize`](super::quantize()).
pub fn quantize_to(
    input: &ModelFile,
    output: &Path,
    calibration: &Calibration<'_>,
    config: &ModelQuantizationConfig,
    options: &PlanOptions,
    progress: &mut dyn FnMut(&str, usize, usize),
) -> Result<QuantizeReport, CalibrateError> {
    match planned(input, output, calibration, config, options, progress) {
        Err(CalibrateError::Config(ConfigError::NothingHeldOut { .. })) if options.uniform => {
            let mut report = quantize(input, output, calibration, config, progress)?;
            report.notes.push(format!(
                "too little text to choose precisions with: planes in every layer: {}",
                config.layout.depth
            ));
            Ok(report)
        }
        report => report,
    }
}

fn planned(
    input: &ModelFile,
    output: &Path,
    calibration: &Calibration<'_>,
    config: &ModelQuantizationConfig,
    options: &PlanOptions,
    progress: &mut dyn FnMut(&str, usize, usize),
) -> Result<QuantizeReport, CalibrateError> {
    let start = Instant::now();
    let mut planner = Planner::new(input, output, calibration, config, options, progress)?;
    planner.check_smallest()?;
    let sensitivities = planner.sensitivities(progress)?;
    let mut report = match options.budget {
        Budget::Bits(_) | Budget::Bytes(_) => planner.allotted(sensitivities, progress),
        Budget::PerplexityRatio(_) | Budget::Divergence(_) if options.trials == 0 => {
            planner.allotted(sensitivities, progress).map(|mut report| {
                report
                    .notes
                    .push(format!("planned for {} from prices alone: no trial was measured", options.budget));
                report
            })
        }
        Budget::PerplexityRatio(_) | Budget::Divergence(_) => planner.searched(sensitivities, progress),
    }?;
    if let Some(planning) = report.planning.take() {
        report.fill_predicted(&planning.sensitivities);
        report.planning = Some(planning);
    }
    if report.ternary.layers == 0 {
        report.notes.push(format!("no layer is ternary: larger forms meet {}", options.budget));
    }
    let quality = matches!(options.budget, Budget::PerplexityRatio(_) | Budget::Divergence(_));
    if quality && planner.source == TextSource::Generated {
        report.notes.push(format!(
            "{}: chosen and measured on text that the dense model wrote itself; other text may lose more: calibrate with text of \
             the kind that the model is for",
            options.budget
        ));
    }
    if config.hold_out {
        report.held = planner.held_out();
    }
    report.notes.append(&mut planner.notes);
    // Includes the sensitivities and all trials.
    report.seconds = start.elapsed().as_secs_f64();
    Ok(report)
}

/// Only the plan of [`quantize_to`], with the sensitivities of the layers; writes no model. For a quality budget, the plan of the
/// first trial.
///
/// # Errors
///
/// Errors of [`quantize_to`].
pub fn plan_for(
    input: &ModelFile,
    output: &Path,
    calibration: &Calibration<'_>,
    config: &ModelQuantizationConfig,
    options: &PlanOptions,
    progress: &mut dyn FnMut(&str, usize, usize),
) -> Result<(Plan, Vec<Sensitivity>), CalibrateError> {
    let mut planner = Planner::new(input, output, calibration, config, options, progress)?;
    planner.check_smallest()?;
    let sensitivities = planner.sensitivities(progress)?;
    let chosen = planner.first(&sensitivities)?;
    let plan = plan(&sensitivities, &chosen, options.budget.to_string());
    planner.clean()?;
    Ok((plan, sensitivities))
}

/// Bytes of a matrix in int8.
fn int8_bytes(rows: usize, cols: usize) -> u64 {
    (rows * cols + 2 * rows * cols.div_ceil(HEAD_GROUP.min(cols))) as u64
}

/// Returns an error for a budget of bytes or bits that the dense model already meets, before anything is generated or measured.
fn check_largest(input: &dyn WeightSource, budget: Budget) -> Result<(), CalibrateError> {
    let sum = |wanted: fn(WeightName) -> bool| {
        let (mut bytes, mut weights) = (0, 0);
        for name in input.weights().into_iter().filter(|&name| wanted(name)) {
            bytes += input.stored_bytes(name)?;
            weights += input.info(name)?.elements();
        }
        Ok::<_, CalibrateError>((bytes, weights))
    };
    let (met, size) = match budget {
        Budget::Bytes(asked) => {
            let (bytes, _) = sum(|_| true)?;
            (bytes <= asked, format!("{bytes} bytes"))
        }
        Budget::Bits(asked) => {
            let (bytes, weights) = sum(WeightName::is_block_matrix)?;
            let bits = 8.0 * bytes as f64 / weights as f64;
            (bits <= asked, format!("{bits:.3} bits per weight"))
        }
        Budget::PerplexityRatio(_) | Budget::Divergence(_) => return Ok(()),
    };
    if met { Err(CalibrateError::BudgetMet { asked: budget.to_string(), size }) } else { Ok(()) }
}

struct Planner<'a> {
    prepared: Prepared<'a>,
    output: &'a Path,
    config: ModelQuantizationConfig,
    options: PlanOptions,
    budget: Budget,
    calibration: Vec<Vec<u32>>,
    held: Vec<Vec<u32>>,
    /// Source of the held-out text.
    source: TextSource,
    dir: PathBuf,
    /// For the report.
    notes: Vec<String>,
    /// Two runs would write to the same unfinished directories.
    _claim: Claim,
}

impl<'a> Planner<'a> {
    fn new(
        input: &'a ModelFile,
        output: &'a Path,
        calibration: &Calibration<'_>,
        config: &ModelQuantizationConfig,
        options: &PlanOptions,
        progress: &mut dyn FnMut(&str, usize, usize),
    ) -> Result<Self, CalibrateError> {
        let budget = options.budget;
        config.validate()?;
        refuse_existing(output)?;
        refuse_ternary(input)?;
        check_largest(input, budget)?;
        let claim = Claim::new(output)?;
        if config.prune.is_some() {
            return Err(ConfigError::BudgetPruned.into());
        }
        if config.compensation().is_none() {
            return Err(ConfigError::BudgetRounded.into());
        }
        options.validate()?;
        // Held-out text for planning and trials is separate from the calibration text.
        let calibration = limited(input, calibration, config, output, progress)?;
        let source = match calibration {
            Calibration::Text { .. } => TextSource::HeldOut,
            Calibration::Generated { .. } => TextSource::Generated,
        };
        let wanted = calibration.limit();
        let more = calibration.with_limit(wanted.saturating_mul(2));
        let mut all = calibration_ids(input, &more, config, output, progress)?;
        if all.len() < 2 {
            return Err(ConfigError::NothingHeldOut { got: all.len() }.into());
        }
        let keep = wanted.min((3 * all.len()).div_ceil(4)).min(all.len() - 1);
        let held = without(all.split_off(keep), &all);
        let held = prices::first(&held, MEASURED).to_vec();
        if held.is_empty() {
            return Err(ConfigError::NothingHeldOut { got: all.len() }.into());
        }
        let (config, options) = (config.clone(), options.clone());
        let prepared =
            Prepared::new(input, &config, &all, &mut |done, total| progress(SCALING, done, total))?;
        Ok(Self {
            prepared,
            output,
            config,
            options,
            budget,
            calibration: all,
            held,
            source,
            dir: store::beside(output, ".plan"),
            notes: Vec::new(),
            _claim: claim,
        })
    }

    /// The model to quantize.
    fn input(&self) -> &dyn WeightSource {
        self.prepared.source()
    }

    /// Held-out sequences on which prices are computed.
    fn probed(&self) -> &[Vec<u32>] {
        prices::first(&self.held, HELD_TOKENS)
    }

    /// Whether embedding and head are in the plan: not for a budget of bits per weight, which counts only the layers of the blocks.
    fn plans_head(&self) -> bool {
        self.options.head && !self.config.int8_head && !matches!(self.budget, Budget::Bits(_))
    }

    /// The text on which the result is measured: held-out sequences not used by the search, or else the used ones.
    fn held_out(&self) -> HeldOut {
        let source = self.source;
        let fresh = match self.budget {
            // Trials were measured on the whole text.
            Budget::PerplexityRatio(_) | Budget::Divergence(_) if self.options.trials > 0 => Vec::new(),
            _ => without(self.held[self.probed().len()..].to_vec(), self.probed()),
        };
        let searched = fresh.iter().map(Vec::len).sum::<usize>() < LEAST_FRESH;
        match searched {
            // The same text as for the trials, so that the figures agree.
            true => HeldOut::whole(self.held.clone(), source),
            false => HeldOut::new(fresh, source, false),
        }
    }

    /// Removes the stored measurements and the generated text.
    fn clean(&self) -> Result<(), CalibrateError> {
        own_text::remove(self.output)?;
        fs::remove_dir_all(&self.dir).map_err(io(&self.dir))
    }

    /// Measures the sensitivities, or loads those of an earlier call with the same settings.
    fn sensitivities(
        &mut self,
        progress: &mut dyn FnMut(&str, usize, usize),
    ) -> Result<Vec<Sensitivity>, CalibrateError> {
        let priced = (PRICES, self.options.planes, &self.options.groups, self.plans_head());
        let settings =
            store::identity(self.prepared.original, &self.config, &[&self.calibration, &self.held])?
                .with("the way of pricing", format!("{priced:?}"));
        let path = self.dir.join(store::SENSITIVITIES);
        let opened = store::resume(&self.dir, &settings)?;
        if let store::Opened::Replaced(difference) = &opened {
            self.notes.push(store::note(difference));
        }
        if opened == store::Opened::Same
            && let Ok(text) = fs::read(&path)
            && let Ok(measured) = serde_json::from_slice(&text)
        {
            return Ok(measured);
        }
        let texts = [prices::first(&self.calibration, prices::FITTED), self.probed()];
        memory::check_plan(self.input(), &self.config, texts, self.options.groups.len())?;
        let cpu = Cpu::new(self.config.threads)?;
        let backend = CpuBackend::new(cpu, ActivationPrecision::F32).with_products(PRODUCTS);
        let options = prices::options(self.options.planes, &self.options.groups);
        let measured = prices::prices(
            self.input(),
            &self.config,
            &backend,
            texts,
            (&options, self.plans_head()),
            progress,
        )?;
        if measured.is_empty() {
            self.clean()?;
            return Err(ConfigError::NothingToPlan.into());
        }
        let text = serde_json::to_vec(&measured).map_err(|e| io(&path)(e.into()))?;
        OutputFile::replace(&path, text).map_err(io(&path))?;
        Ok(measured)
    }

    /// Returns an error for a budget of bytes or bits below the smallest size possible for the shapes, before anything is measured.
    fn check_smallest(&self) -> Result<(), CalibrateError> {
        if !matches!(self.budget, Budget::Bits(_) | Budget::Bytes(_)) {
            return Ok(());
        }
        let mut smallest: HashMap<(usize, usize), u64> = HashMap::new();
        let mut layers = Vec::new();
        for name in self.input().weights() {
            let info = self.input().info(name)?;
            let is_head = matches!(name, WeightName::Embedding | WeightName::Head);
            if !(is_head && self.plans_head() && !self.config.skips(&name.to_string())
                || name.is_block_matrix() && is_convertible(self.input(), &self.config, name)?)
            {
                continue;
            }
            let &[rows, cols] = info.shape.as_slice() else { continue };
            let bytes = match smallest.entry((rows, cols)) {
                _ if is_head => int8_bytes(rows, cols).min(stored_bytes(self.input(), &self.config, name)?),
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(place) => *place.insert(self.smallest(rows, cols)),
            };
            let stored = Stored::of(&LayerChoice::Int8);
            let choices = vec![Measured { stored, bytes, kl: 0.0 }];
            layers.push(Sensitivity { layer: name.to_string(), weights: info.elements(), choices });
        }
        // An empty plan is reported as another error.
        if layers.is_empty() { Ok(()) } else { self.within(&layers).map(drop) }
    }

    /// The bytes of the smallest candidate for a matrix of a shape; 0 for a layout that least squares cannot fit.
    fn smallest(&self, rows: usize, cols: usize) -> u64 {
        let zeros = vec![0.0; rows * cols];
        let mut smallest = int8_bytes(rows, cols);
        for &granularity in &self.options.groups {
            let layout = self.config.layout.with_depth(1).with_granularity(granularity);
            let config = QuantizeConfig::default().with_layout(layout);
            let trits = MatrixView::new(rows, cols, &zeros).and_then(|view| quantize_matrix(view, &config));
            smallest = smallest.min(trits.map_or(0, |(trits, _)| trits.bytes() as u64));
        }
        smallest
    }

    /// Bytes and weights of the `wanted` tensors that are not part of the plan.
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

    /// The allocation of the first plan.
    fn first(&self, sensitivities: &[Sensitivity]) -> Result<Vec<usize>, CalibrateError> {
        match self.budget {
            Budget::Bits(_) | Budget::Bytes(_) => self.within_or_clean(sensitivities),
            Budget::PerplexityRatio(_) | Budget::Divergence(_) => {
                solve_loss(sensitivities, self.first_goal()?)
                    .map_err(|e| CalibrateError::quantize("the plan", e))
            }
        }
    }

    /// The allocation within a budget of bytes or bits; removes the stored measurements on failure.
    fn within_or_clean(&self, sensitivities: &[Sensitivity]) -> Result<Vec<usize>, CalibrateError> {
        let chosen = self.within(sensitivities);
        if chosen.is_err() {
            self.clean()?;
        }
        chosen
    }

    /// The allocation within a budget of bytes or bits.
    fn within(&self, sensitivities: &[Sensitivity]) -> Result<Vec<usize>, CalibrateError> {
        let mut weights: u64 = sensitivities.iter().map(|s| s.weights).sum();
        let (budget, others) = match self.budget {
            Budget::Bytes(bytes) => {
                let others = self.others(sensitivities, |_| true)?.0;
                (bytes.saturating_sub(others), others)
            }
            Budget::Bits(bits) => {
                // Unchanged layers count as well.
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
                // Rounded up, so that the reported budget is achievable.
                closest: format!(
                    "{:.3} bits per weight",
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
        let chosen = self.first(&sensitivities)?;
        let plan = plan(&sensitivities, &chosen, self.budget.to_string());
        let mut config = self.config.clone();
        config.layers = plan.choices(self.output, self.input())?;
        let mut report = quantize_ids(&self.prepared, self.output, &self.calibration, &config, progress)?;
        if let Budget::Bytes(asked) = self.budget
            && report.output_bytes > asked
        {
            let got = report.output_bytes;
            report.notes.push(format!(
                "the tensors take {got} bytes: sizes that depend on the weights were estimated"
            ));
        }
        report.planning = Some(Planning {
            budget: self.budget.to_string(),
            source: self.source,
            sensitivities,
            trials: Vec::new(),
            plan,
        });
        self.clean()?;
        Ok(report)
    }
}
