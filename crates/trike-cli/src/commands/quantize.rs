//! `trike quantize`.

use std::{
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::{Context, bail};
use serde::Serialize;
use trike::{
    Calibration, Cpu, DeviceChoice, Encoding, ModelFile, ModelQuantizationConfig, QuantizeMethod,
    QuantizeReport, Split, Target,
    calibrate::{
        Budget, Compensation, Importance, OptionNames, Plan, PlanOptions, Pruning, ScaledInputs, Sensitivity,
        Tuning, is_resumable, plan_for, quantize_to,
    },
    format::OutputFile,
    hub::ModelId,
    quant::{CalibrationMethod, ColumnOrder, PrunePattern, ScaleRule, TritLayout},
    trit::{Coupling, Granularity, GroupSize},
};

use super::text::read;
use crate::{
    args::{Goal, HeadStorage, Method, Packing, QuantizeArgs},
    interrupt, invocation, output,
    progress::Progress,
};

/// The written output. The fields of either variant are the schema of `trike quantize --json`.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum QuantizeOutcome {
    /// A model.
    Model(WrittenModel),
    /// A plan, with `--plan-only`.
    Plan(PlanOutcome),
}

/// A model with its report.
#[derive(Debug, Serialize)]
pub(crate) struct WrittenModel {
    #[serde(flatten)]
    pub(crate) report: Box<QuantizeReport>,
    /// Whether the text has the table of layers.
    #[serde(skip)]
    pub(crate) verbose: bool,
}

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
    let out = output_of(args);
    if out.exists() {
        bail!("{} exists: remove it or choose another output", out.display());
    }
    let text = args.calibration.as_deref().map(read).transpose()?;
    let eval = args.eval.as_deref().map(read).transpose()?;
    let split = |text: &str| args.split.unwrap_or_else(|| Split::of(text));
    let calibration = match &text {
        Some(text) => Calibration::Text { text, split: split(text), limit: args.sequences },
        None => Calibration::Generated {
            sequences: args.sequences.unwrap_or(Calibration::GENERATED),
            seed: args.seed,
        },
    };
    check_gguf(args, &input)?;
    let quality =
        matches!(args.target, Some(Goal::Budget(Budget::PerplexityRatio(_) | Budget::Divergence(_))));
    if quality && args.recover > 0.0 {
        bail!(
            "--recover cannot be combined with a --target of quality, whose models are measured without it"
        );
    }
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
    advise(&out);
    if !quiet && let Some(note) = duration_note(args, &input)? {
        output::note(&note);
    }
    let steps = Steps::new(quiet);
    let mut set = |what: &str, done: usize, total: usize| steps.set(what, done, total);
    let report = match plan_options(args, &input)? {
        Some(options) => {
            if args.plan_only {
                let (plan, sensitivities) =
                    plan_for(&input, &out, &calibration, &config, &options, &mut set)?;
                let output = out.display().to_string();
                OutputFile::replace(&out, plan.to_json()).with_context(|| output.clone())?;
                return Ok(QuantizeOutcome::Plan(PlanOutcome { output, plan, sensitivities }));
            }
            quantize_to(&input, &out, &calibration, &config, &options, &mut set)?
        }
        None if args.plan_only => bail!(
            "--plan-only requires that precision is chosen per layer: leave out the options that set it, or give a --target \
             of size, bits or quality"
        ),
        None => trike::quantize(&input, &out, &calibration, &config, &mut set)?,
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
    if let (Some(Goal::Gguf(target)), false) = (args.target, quiet) {
        let out = out.display();
        output::note(&format!("for a GGUF file: trike convert {out} {out}.gguf --to {}", target.name()));
    }
    Ok(QuantizeOutcome::Model(WrittenModel { report: Box::new(report), verbose: args.verbose }))
}

/// The given output, or one in the current directory with the name of the model.
fn output_of(args: &QuantizeArgs) -> PathBuf {
    if let Some(output) = &args.output {
        return output.clone();
    }
    let given = args.model.given();
    let name = match given.to_str().and_then(|text| text.parse::<ModelId>().ok()) {
        Some(id) if !given.exists() => id.name().to_owned(),
        _ => {
            // The name of `.`, for example.
            let path = given.canonicalize().unwrap_or(given);
            let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
            name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
        }
    };
    let name = name.strip_suffix("-gguf").or_else(|| name.strip_suffix("-GGUF")).unwrap_or(&name);
    PathBuf::from(if args.plan_only { format!("{name}-plan.json") } else { format!("{name}-ternary") })
}

/// Hours that a model with blocks of 6.5 billion weights takes on two threads, calculated from measurements of one block (the page
/// `quantize` of the handbook): independent of the text, per 262,144 tokens of text, and for tuning with such a text.
const HOURS: [f64; 3] = [4.0, 9.0, 22.0];
const HOURS_WEIGHTS: f64 = 6.5e9;
/// Weights in the blocks below which a quantization takes minutes, which are not proportional to the weights.
const LARGE: u64 = 50_000_000;

/// A note with the estimated duration, for models that take long.
fn duration_note(args: &QuantizeArgs, input: &ModelFile) -> anyhow::Result<Option<String>> {
    let mut weights = 0;
    for name in input.weights().into_iter().filter(|name| name.is_block_matrix()) {
        weights += input.info(name)?.shape.iter().map(|&n| n as u64).product::<u64>();
    }
    if weights < LARGE || !matches!(args.method, Method::Compensate) {
        return Ok(None);
    }
    let threads = Cpu::new(args.threads)?.threads();
    let device = args.device.as_ref().filter(|device| **device != DeviceChoice::Cpu);
    let time = time(hours(weights, threads, !args.no_tune && !args.plain && device.is_none()));
    let tuning = device.map_or_else(String::new, |device| format!(" and without tuning on {device}"));
    Ok(Some(format!(
        "estimated time: roughly {time} on {threads} threads for a text of 262,144 tokens{tuning}, scaled from a measured block; an interrupted run continues when the same command is run again"
    )))
}

/// A number of hours in words.
fn time(hours: f64) -> String {
    match hours {
        0.0..1.5 => format!("{:.0} minutes", (60.0 * hours).max(2.0)),
        _ => format!("{hours:.0} hours"),
    }
}

/// Estimated hours of a quantization.
fn hours(weights: u64, threads: usize, tunes: bool) -> f64 {
    let [fixed, text, tuning] = HOURS;
    let hours = fixed + text + if tunes { tuning } else { 0.0 };
    hours * weights as f64 / HOURS_WEIGHTS * 2.0 / threads as f64
}

/// Message of Ctrl-C: whether the same command resumes.
fn advise(output: &Path) {
    let (output, start) = (output.to_owned(), SystemTime::now());
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

/// Adds facts known only to the command to the report.
fn stamped(report: QuantizeReport, args: &QuantizeArgs) -> QuantizeReport {
    let mut report = report.with_command(invocation::command_line());
    if let Some(date) = invocation::date() {
        report = report.with_date(date);
    }
    report.with_model_name(args.model.given().display().to_string()).with_option_names(OptionNames {
        setting: |planes, group| format!("--planes {planes} --group {group}"),
        plan: "--plan plan.json",
        curve: Some("--curve"),
    })
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

/// The options of a budget; `None` if every layer gets the same planes.
fn plan_options(args: &QuantizeArgs, input: &ModelFile) -> anyhow::Result<Option<PlanOptions>> {
    let compensated = matches!(args.method, Method::Compensate) && !args.plain;
    let uniform = args.planes.is_some()
        || args.plan.is_some()
        || args.curve
        || args.mean
        || args.recover > 0.0
        || args.coupling == Coupling::Free
        || args.prune.is_some()
        || args.prune_pattern.is_some()
        || !compensated;
    let mut options = match args.target {
        Some(Goal::Budget(budget)) => PlanOptions::new(budget),
        None if !uniform => PlanOptions::unasked(input)?,
        Some(Goal::Gguf(_)) | None => return Ok(None),
    };
    if let Some(planes) = args.planes {
        options = options.with_planes(planes);
    }
    if let Some(group) = args.group {
        options = options.with_groups([group]);
    }
    Ok(Some(options.with_head(args.head.is_none())))
}

/// Weights that share a scale in a GGUF type.
fn block_of(target: Target) -> GroupSize {
    if target == Target::Q2_0 { GroupSize::G64 } else { GroupSize::G256 }
}

/// Checks the constraints of a GGUF target before the work begins, not at its conversion.
fn check_gguf(args: &QuantizeArgs, input: &ModelFile) -> anyhow::Result<()> {
    let Some(Goal::Gguf(target)) = args.target else { return Ok(()) };
    let (name, block) = (target.name(), block_of(target));
    let given = [
        ("--planes", args.planes.is_some_and(|planes| planes != 1)),
        // A coarser granularity can be stored as blocks with equal scales.
        (
            "--group",
            args.group.is_some_and(|group| match group {
                Granularity::Group(size) => size.get() % block.get() != 0,
                _ => false,
            }),
        ),
        ("--mean", args.mean),
        ("--hadamard", args.hadamard.is_some()),
        ("--skip", !args.skip.is_empty()),
        ("--min-size", args.min_size > 0),
    ];
    if let Some((flag, _)) = given.iter().find(|(_, wrong)| *wrong) {
        bail!(
            "{name} holds all layers in one plane with a scale for {} weights, which {flag} contradicts",
            block.get()
        );
    }
    for layer in input.weights().into_iter().filter(|name| name.is_block_matrix()) {
        let inputs = input.info(layer)?.shape.last().copied().unwrap_or(0);
        if inputs % block.get() != 0 {
            bail!(
                "{name} holds rows of whole blocks of {}, and {layer} has rows of {inputs}: choose another target",
                block.get()
            );
        }
    }
    Ok(())
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
    let (planes, group) = match args.target {
        Some(Goal::Gguf(target)) => (1, block_of(target)),
        _ => (3, GroupSize::G128),
    };
    let layout = TritLayout::default()
        .with_depth(args.planes.unwrap_or(planes))
        .with_coupling(args.coupling)
        .with_granularity(args.group.unwrap_or(Granularity::Group(group)))
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
        .with_salience(args.salience.unwrap_or(if args.plain {
            ScaledInputs::None
        } else {
            ScaledInputs::default()
        }))
        .with_rotation(args.rotate)
        .with_input_rotation(args.hadamard)
        .with_skip_patterns(args.skip.clone())
        .with_min_layer_size(args.min_size)
        .with_int8_head(args.head == Some(HeadStorage::Int8))
        .with_tokenizer(args.tokenizer.tokenizer.clone())
        .with_hold_out(args.eval.is_none())
        .with_threads(args.threads)
        .with_device(args.device.clone().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_proportional_to_weights_and_threads() {
        // The figures of the handbook for 32 blocks of a 7B model on two cores.
        for (weights, threads, tunes, expected) in [
            (6_500_000_000, 2, true, "35 hours"),
            (6_500_000_000, 2, false, "13 hours"),
            (6_500_000_000, 16, false, "2 hours"),
            (650_000_000, 4, false, "39 minutes"),
            (50_000_000, 64, false, "2 minutes"),
        ] {
            assert_eq!(time(hours(weights, threads, tunes)), expected);
        }
    }
}
