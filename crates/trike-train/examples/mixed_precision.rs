//! The same run in f32, bf16 and f16: `mixed_precision TOKENIZER STEPS TEXT`, with a HuggingFace `tokenizer.json`.
//!
//! Trains a small model from random weights and prints its time and loss, and for f16 the loss scale and the number of steps
//! skipped because of overflowing gradients.
#![expect(clippy::print_stdout, reason = "the example prints its results")]

use std::path::Path;
use std::time::Instant;

use trike_cpu::Cpu;
use trike_nn::DecoderSpec;
use trike_text::tokenizer::Tokenizer;
use trike_train::data::{BatchConfig, Batches, Documents, Encoder, Position};
use trike_train::{
    Parameters, Precision, PrecisionPolicy, StepReport, TernaryPolicy, Trainer, TrainerConfig,
};

/// A precision, the seconds of a run, its last step, its mean loss over the last tenth of the steps, and the steps skipped.
struct Row {
    precision: Precision,
    seconds: f64,
    last: StepReport,
    nats: f64,
    skipped: usize,
}

fn run(tokenizer: &Path, steps: usize, text: &Path) -> Result<Vec<Row>, Box<dyn std::error::Error>> {
    let cpu = Cpu::new(0)?;
    let tokenizer = Tokenizer::from_hf_json(tokenizer)?;
    let documents = Documents::open(&[text])?;
    let used: Vec<u32> = (0..documents.len() as u32).collect();
    let spec = DecoderSpec {
        tied_head: true,
        intermediate: 256,
        kv_heads: 2,
        context: 128,
        ..DecoderSpec::llama(128, 2, 4, tokenizer.vocab_size())
    };
    let mut rows = Vec::new();
    for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
        let batches = BatchConfig { rows: 2, length: spec.context, packed: true, seed: 1 };
        let encoder = Encoder::new(&tokenizer, None);
        let mut batches = Batches::new(&documents, &used, encoder, batches, Position::default())?;
        let config =
            TrainerConfig { steps, precision: PrecisionPolicy::all(precision), ..TrainerConfig::default() };
        let start = Parameters::random(&spec, 1)?;
        let mut trainer = Trainer::new(&cpu, config, TernaryPolicy::default(), start, None)?;
        let began = Instant::now();
        let reports: Vec<StepReport> =
            (0..steps).map(|_| trainer.step(&mut batches)).collect::<Result<_, _>>()?;
        let seconds = began.elapsed().as_secs_f64();
        let learned: Vec<&StepReport> = reports.iter().filter(|report| !report.skipped).collect();
        let end = &learned[learned.len() - learned.len().div_ceil(10)..];
        let nats = end.iter().map(|report| report.loss.mean()).sum::<f64>() / end.len().max(1) as f64;
        let last = *reports.last().ok_or("expected at least one step")?;
        rows.push(Row { precision, seconds, last, nats, skipped: reports.len() - learned.len() });
    }
    Ok(rows)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [tokenizer, steps, text] = &arguments[..] else {
        return Err("usage: mixed_precision TOKENIZER STEPS TEXT".into());
    };
    for Row { precision, seconds, last, nats, skipped } in
        run(tokenizer.as_ref(), steps.parse()?, text.as_ref())?
    {
        println!(
            "{precision:?}: {seconds:.1} s, {nats:.4} nats, loss scaled by {}, {skipped} steps skipped",
            last.loss_scale
        );
    }
    Ok(())
}

#[test]
fn the_loss_is_that_of_f32() {
    let dir = tempfile::tempdir().expect("a folder");
    let tokenizer = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny/tokenizer.json"));
    let text = dir.path().join("stories.txt");
    let story = "Once upon a time there was a cat. The cat saw a bird, and the bird flew away.";
    std::fs::write(&text, [story; 40].join("<|endoftext|>")).expect("it is written");
    let rows = run(tokenizer, 30, &text).expect("it runs");
    let [f32, bf16, f16] = &rows[..] else { panic!("three rows") };
    assert!((bf16.nats / f32.nats - 1.0).abs() < 0.05, "{} and {}", bf16.nats, f32.nats);
    assert!((f16.nats / f32.nats - 1.0).abs() < 0.05, "{} and {}", f16.nats, f32.nats);
    assert!(f32.last.loss_scale == 1.0 && f16.last.loss_scale >= 1.0 && f16.skipped < 10);
}
