//! Rounding methods without a calibration text, compared with error compensation on one model:
//! `cargo run --release -p trike-calibrate --example methods -- MODEL TOKENIZER CALIBRATION TEXT [GROUP]`.
//!
//! Prints the perplexity ratio to the dense model and the divergence in nats per token on TEXT (stories separated by
//! `<|endoftext|>`), with one scale per GROUP (32) weights and without tuning.
#![expect(clippy::print_stdout, reason = "the example prints its result")]

use std::path::PathBuf;

use trike_calibrate::{
    Calibration, Compensation, ModelQuantizationConfig, QuantizeMethod, ScaledInputs, quantize,
};
use trike_llm::{ModelFile, Split};
use trike_quant::{CalibrationMethod, ScaleRule};
use trike_trit::{Coupling, Granularity, GroupSize};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, tokenizer, calibration, text, more @ ..] = &arguments[..] else {
        return Err("usage: methods MODEL TOKENIZER CALIBRATION TEXT [GROUP]".into());
    };
    let group = more.first().map_or(Ok(32), |text| text.parse())?;
    let group = GroupSize::from_usize(group).ok_or("groups have 32, 64, 128 or 256 weights")?;
    let (calibration, text) = (std::fs::read_to_string(calibration)?, std::fs::read_to_string(text)?);
    let input = ModelFile::open(model)?;
    let dir = tempfile::tempdir()?;
    let range = |method| QuantizeMethod::Round(ScaleRule::Calibrated(method));
    let methods = [
        ("largest magnitude", range(CalibrationMethod::AbsMax)),
        ("99th percentile", range(CalibrationMethod::Percentile(99.0))),
        ("90th percentile", range(CalibrationMethod::Percentile(90.0))),
        ("75th percentile", range(CalibrationMethod::Percentile(75.0))),
        ("mean + 3 deviations", range(CalibrationMethod::MeanStd(3.0))),
        ("mean + 1 deviation", range(CalibrationMethod::MeanStd(1.0))),
        ("absmean, free planes", QuantizeMethod::Round(ScaleRule::AbsMean)),
        ("TWN, free planes", QuantizeMethod::Round(ScaleRule::Twn)),
        ("least squares", QuantizeMethod::Round(ScaleRule::LeastSquares)),
        ("error compensation", QuantizeMethod::Compensate(Compensation::default())),
    ];
    println!("| method | planes | perplexity ratio | KL, nats |\n|---|--:|--:|--:|");
    for (name, method) in methods {
        for planes in 1..=3 {
            let free = matches!(method, QuantizeMethod::Round(ScaleRule::AbsMean | ScaleRule::Twn));
            let mut config = ModelQuantizationConfig::planes(planes)
                .with_method(method)
                .with_tuning(None)
                .with_salience(ScaledInputs::None)
                .with_tokenizer(PathBuf::from(tokenizer));
            config.layout.granularity = Granularity::Group(group);
            config.layout.coupling = if free { Coupling::Free } else { Coupling::Tied };
            let out = dir.path().join(format!("{name}-{planes}"));
            let source = Calibration::Text { text: &calibration, split: Split::Stories, limit: None };
            let mut report = quantize(&input, &out, &source, &config, &mut |_, _, _| ())?;
            report.evaluate("", &text, Split::Stories, None, &config, &mut |_, _| ())?;
            let of = report.evaluation.ok_or("nothing was measured")?;
            println!(
                "| {name} | {planes} | {:.4} ± {:.4} | {:.4} ± {:.4} |",
                of.ratio, of.ratio_error, of.kl, of.kl_error
            );
        }
    }
    Ok(())
}
