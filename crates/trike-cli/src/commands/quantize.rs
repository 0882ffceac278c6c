//! `trike quantize`.

use std::{fs, path::Path, time::SystemTime};

use anyhow::{Context, bail};
use serde::Serialize;
use trike::{
    Calibration, Encoding, ModelFile, ModelQuantizationConfig, QuantizeMethod, QuantizeReport, Split,
    calibrate::{
        Budget, Compensation, Importance, Plan, PlanOptions, Pruning, Sensitivity, Tuning, is_resumable,
        plan_for, quantize_to,
    },
    quant::{CalibrationMethod, ColumnOrder, PrunePattern, ScaleRule, TritLayout},
    trit::{Granularity, GroupSize},
};

use super::text::read;
use crate::{
    args::{BudgetArgs, HeadStorage, Method, Packing, QuantizeArgs},
    interrupt, invocation, output,
    progress::Progress,
};

/// The written output. The fields of either variant are the schema of `trike quantize --json`.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum QuantizeOutcome {
    /// A model.
    Model(Box<QuantizeReport>),
    /// A plan, with `--plan-only`.
    Plan(PlanOutcome),
}

/// Sequences that the model generates without a text: writing takes longer than calibrating.
const GENERATED: usize = 128;

/// A plan and the measurements it is based on.
#[derive(Debug, Serialize)]
pub(crate) struct PlanOutcome {
    pub(crate) output: String,
    pub(crate) plan: Plan,
    pub(crate) sensitivities: Vec<Sensitivity>,
}

/// Quantizes a model and evaluates the result.
pub(crate) fn quantize(args: &QuantizeArgs, quiet: bool) -> anyhow::Result<QuantizeOutcome> {
    let input = ModelFile::open(args.model.path(quiet)?)?;
    if args.output.exists() {
        bail!("{} exists: remove it or choose another output", args.output.display());
    }
    let text = args.calibration.as_deref().map(read).transpose()?;
    let eval = args.eval.as_deref().map(read).transpose()?;
    let split = |text: &str| args.split.unwrap_or_else(|| Split::of(text));
    let calibration = match &text {
        Some(text) => Calibration::Text { text, split: split(text), limit: args.sequences },
        None => Calibration::Generated { sequences: args.sequences.unwrap_or(GENERATED), seed: args.seed },
    };
    let mut config = config(args)?;
    if let Some(text) = &eval {
        QuantizeReport::check_text(&input, text, split(text), &config)
            .with_context(|| args.eval.as_deref().unwrap_or(Path::new("")).display().to_string())?;
    }
    if args.curve {
        config.validate_curve().context("--curve measures one to four planes")?;
    }
    if let Some(path) = &args.plan {
        config.layers = Plan::parse(path, &read(path)?)?.choices(path, &input)?;
    }
    advise(args);
    let steps = Steps::new(quiet);
    let mut set = |what: &str, done: usize, total: usize| steps.set(what, done, total);
    let report = match args.budget.budget() {
        Some(budget) => {
            let mut options = PlanOptions::new(budget);
            if let Some(planes) = args.planes {
                options = options.with_planes(planes);
            }
            if let Some(group) = args.group {
                options = options.with_groups([group]);
            }
            if args.plan_only {
                let (plan, sensitivities) =
                    plan_for(&input, &args.output, &calibration, &config, &options, &mut set)?;
                let output = args.output.display().to_string();
                fs::write(&args.output, plan.to_json()).with_context(|| output.clone())?;
                return Ok(QuantizeOutcome::Plan(PlanOutcome { output, plan, sensitivities }));
            }
            quantize_to(&input, &args.output, &calibration, &config, &options, &mut set)?
        }
        None => trike::quantize(&input, &args.output, &calibration, &config, &mut set)?,
    };
    drop(steps);
    if !quiet {
        report.rejected().iter().for_each(|what| output::note(what));
    }
    let mut report = stamped(report, args);
    // Save first: the model is complete, and the evaluation can fail or be interrupted.
    report.save()?;
    if let (Some(text), Some(path)) = (&eval, &args.eval) {
        let name = path.display().to_string();
        let progress = Progress::start(format!("measuring on {name}"), quiet);
        report.evaluate(&name, text, split(text), None, &config, &mut |done, total| {
            progress.set(done, total);
        })?;
        drop(progress);
        report.save()?;
        if args.curve {
            let progress = Progress::start("measuring the curve", quiet);
            let mut set = |done, total| progress.set(done, total);
            report.measure_curve(&input, &calibration, &config, text, split(text), None, &mut set)?;
        }
    } else {
        let progress = Progress::start("measuring on held-out text", quiet);
        report.evaluate_held_out(&config, &mut |done, total| progress.set(done, total))?;
    }
    report.save()?;
    Ok(QuantizeOutcome::Model(Box::new(report)))
}

/// What Ctrl-C says: whether the same command resumes.
fn advise(args: &QuantizeArgs) {
    let (output, start) = (args.output.clone(), SystemTime::now());
    interrupt::advise(move || {
        if output.exists() {
            format!("interrupted: {} is complete, but its report is not", output.display())
        } else if is_resumable(&output, start) {
            "interrupted: run the same command again to continue".to_owned()
        } else {
            "interrupted: nothing was finished yet; the same command starts over".to_owned()
        }
    });
}

/// The report with what only the command knows.
fn stamped(report: QuantizeReport, args: &QuantizeArgs) -> QuantizeReport {
    let mut report = report.with_command(invocation::command_line());
    if let Some(date) = invocation::date() {
        report = report.with_date(date);
    }
    report.with_model_name(args.model.given().display().to_string())
}

/// One progress bar per step.
struct Steps {
    quiet: bool,
    current: std::cell::RefCell<Option<(String, Progress)>>,
}

impl Steps {
    fn new(quiet: bool) -> Self {
        Self { quiet, current: None.into() }
    }

    fn set(&self, what: &str, done: usize, total: usize) {
        let mut current = self.current.borrow_mut();
        if current.as_ref().is_none_or(|(name, _)| name != what) {
            // The old bar ends before the new one starts.
            drop(current.take());
            *current = Some((what.to_owned(), Progress::start(what.to_owned(), self.quiet)));
        }
        if let Some((_, progress)) = &*current {
            progress.set(done, total);
        }
    }
}

impl BudgetArgs {
    fn budget(&self) -> Option<Budget> {
        let quality = self.max_ppl_ratio.map(Budget::PerplexityRatio).or(self.max_kl.map(Budget::Divergence));
        quality.or(self.bits.map(Budget::Bits)).or(self.max_bytes.map(Budget::Bytes))
    }
}

fn config(args: &QuantizeArgs) -> anyhow::Result<ModelQuantizationConfig> {
    // An N:M pattern determines the fraction.
    let nm = matches!(args.prune_pattern, Some(PrunePattern::NOfM { .. }));
    let share = match (args.prune, nm) {
        (Some(_), true) => {
            bail!("--prune cannot be combined with an N:M pattern, which sets the fraction itself")
        }
        (None, true) => Some(0.0),
        (share, false) => share,
    };
    if share.is_none() && (args.prune_by.is_some() || args.prune_pattern.is_some()) {
        bail!("--prune-by and --prune-pattern require --prune or an N:M pattern such as 2:4");
    }
    let prune = share.map(|share| Pruning {
        importance: args.prune_by.unwrap_or(Importance::Compensated),
        pattern: args.prune_pattern.unwrap_or(PrunePattern::Unstructured),
        share,
    });
    let packing = match (args.encoding, &prune) {
        (Some(packing), _) => packing,
        (None, Some(_)) => Packing::Auto,
        (None, None) => Packing::Fixed(Encoding::Base3),
    };
    let layout = TritLayout::default()
        .with_depth(args.planes.unwrap_or(3))
        .with_coupling(args.coupling)
        .with_granularity(args.group.unwrap_or(Granularity::Group(GroupSize::G128)))
        .with_mean(args.mean)
        .with_encoding(match packing {
            Packing::Auto => Encoding::Base3,
            Packing::Fixed(encoding) => encoding,
        });
    if args.guided && !matches!(args.method, Method::Compensate) {
        bail!("--guided requires --method compensate: rounding has no statistics of inputs");
    }
    let method = match args.method {
        Method::Compensate if args.plain => QuantizeMethod::Compensate(Compensation {
            order: ColumnOrder::Stored,
            rounds: 0,
            follow: false,
            ..Compensation::default()
        }),
        Method::Compensate => {
            let (damping, guided) = (args.damping, args.guided);
            QuantizeMethod::Compensate(Compensation { damping, guided, ..Compensation::default() })
        }
        Method::LeastSquares => QuantizeMethod::Round(ScaleRule::LeastSquares),
        Method::AbsMean => QuantizeMethod::Round(ScaleRule::AbsMean),
        Method::Twn => QuantizeMethod::Round(ScaleRule::Twn),
        Method::AbsMax => QuantizeMethod::Round(ScaleRule::Calibrated(CalibrationMethod::AbsMax)),
    };
    let tuning = (!args.no_tune && !args.plain).then(|| Tuning {
        block_epochs: args.tune_block_epochs,
        model_epochs: args.tune_model_epochs,
        rate: args.tune_rate,
        max_weights: args.tune_max_weights,
        recover: args.recover,
        ..Tuning::default()
    });
    Ok(ModelQuantizationConfig::default()
        .with_layout(layout)
        .with_auto_encoding(packing == Packing::Auto)
        .with_prune(prune)
        .with_method(method)
        .with_tuning(tuning)
        .with_salience(args.salience)
        .with_rotation(args.rotate)
        .with_input_rotation(args.hadamard)
        .with_skip_patterns(args.skip.clone())
        .with_min_layer_size(args.min_size)
        .with_int8_head(args.head == HeadStorage::Int8)
        .with_tokenizer(args.tokenizer.tokenizer.clone())
        .with_hold_out(args.eval.is_none())
        .with_threads(args.threads))
}
