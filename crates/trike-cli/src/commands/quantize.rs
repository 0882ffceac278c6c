//! `trike quantize`.

use anyhow::bail;
use trike::{
    Calibration, ModelFile, ModelQuantizationConfig, QuantizeMethod, QuantizeReport, Split,
    llm::Compensation,
    quant::{CalibrationMethod, ColumnOrder, ScaleRule, ScaleType, TritLayout},
};

use super::text::read;
use crate::{
    args::{Embeddings, Method, QuantizeArgs},
    progress::Progress,
};

/// Makes a model ternary and measures what that cost.
pub(crate) fn quantize(args: &QuantizeArgs, quiet: bool) -> anyhow::Result<QuantizeReport> {
    let input = ModelFile::open(args.model.path(quiet)?)?;
    if args.output.exists() {
        bail!("{} exists: remove it or name another output", args.output.display());
    }
    let text = args.calibration.as_deref().map(read).transpose()?;
    let eval = args.eval.as_deref().map(read).transpose()?;
    let split = |text: &str| {
        args.split.unwrap_or(if text.contains("<|endoftext|>") { Split::Stories } else { Split::Window })
    };
    let calibration = match &text {
        Some(text) => Calibration::Text { text, split: split(text), limit: Some(args.sequences) },
        None => Calibration::Generated { sequences: args.sequences, seed: args.seed },
    };
    let config = config(args);
    let progress = Progress::start(format!("writing {}", args.output.display()), quiet);
    let mut report = trike::quantize(&input, &args.output, &calibration, &config, &mut |done, total| {
        progress.set(done, total);
    })?;
    drop(progress);
    if let (Some(text), Some(path)) = (&eval, &args.eval) {
        let progress = Progress::start("measuring", quiet);
        let name = path.display().to_string();
        report.evaluate(&name, text, split(text), None, &config, &mut |done, total| {
            progress.set(done, total);
        })?;
    }
    report.save()?;
    Ok(report)
}

fn config(args: &QuantizeArgs) -> ModelQuantizationConfig {
    ModelQuantizationConfig {
        layout: TritLayout {
            depth: args.planes,
            coupling: args.coupling,
            granularity: args.group,
            with_mean: args.mean,
            encoding: args.encoding,
            scales: ScaleType::F16,
        },
        method: match args.method {
            Method::Compensate if args.plain => QuantizeMethod::Compensate(Compensation {
                order: ColumnOrder::Stored,
                rounds: 0,
                follow: false,
                ..Compensation::default()
            }),
            Method::Compensate => {
                QuantizeMethod::Compensate(Compensation { damping: args.damping, ..Compensation::default() })
            }
            Method::LeastSquares => QuantizeMethod::Round(ScaleRule::LeastSquares),
            Method::AbsMean => QuantizeMethod::Round(ScaleRule::AbsMean),
            Method::Twn => QuantizeMethod::Round(ScaleRule::Twn),
            Method::AbsMax => QuantizeMethod::Round(ScaleRule::Calibrated(CalibrationMethod::AbsMax)),
        },
        skip_patterns: args.skip.clone(),
        min_layer_size: args.min_size,
        int8_head: args.head == Embeddings::Int8,
        tokenizer: args.tokenizer.tokenizer.clone(),
        threads: args.threads,
    }
}
