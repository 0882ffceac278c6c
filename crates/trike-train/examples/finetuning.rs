//! Fine-tunes a ternary model on a text with LoRA: `finetuning MODEL TEXT OUTPUT`.
//!
//! The trits are frozen; the adapter is written in the layout of peft. Prints the loss on the text before and after.
#![expect(clippy::print_stdout, reason = "the example prints its results")]

use std::path::Path;

use trike_cpu::Cpu;
use trike_llm::ModelFile;
use trike_train::data::{BatchConfig, Batches, Documents, Encoder, Position};
use trike_train::{
    Adapter, LoraConfig, OptimizerConfig, Parameters, Schedule, ScheduleShape, TernaryPolicy, Trainer,
    TrainerConfig,
};

/// Losses in nats per token.
struct Result {
    before: f64,
    after: f64,
}

fn run(
    model: &Path,
    text: &Path,
    output: &Path,
    steps: usize,
) -> std::result::Result<Result, Box<dyn std::error::Error>> {
    let cpu = Cpu::new(0)?;
    let file = ModelFile::open(model)?;
    let frozen = Parameters::open(&file)?;
    let tokenizer = file.tokenizer(None)?;
    let documents = Documents::open(&[text])?;
    let used: Vec<u32> = (0..documents.len() as u32).collect();
    let encoder = Encoder::new(&tokenizer, None);
    let config = BatchConfig { rows: 2, length: 64, packed: true, seed: 1 };
    let mut batches = Batches::new(&documents, &used, encoder, config, Position::default())?;
    let held = Batches::new(&documents, &used, encoder, config, Position::default())?.next_batch()?;

    // The frozen weights are already dequantized ternary values; only activations are rounded.
    let adapter = Adapter::new(LoraConfig { rank: 8, ..LoraConfig::default() }, frozen.spec(), 1)?;
    let run = TrainerConfig {
        steps,
        accumulation: 1,
        optimizer: OptimizerConfig { learning_rate: 2e-2, weight_decay: 0.0, ..OptimizerConfig::default() },
        schedule: Schedule { warmup: 2, shape: ScheduleShape::Cosine { end: 0.1 } },
        lambda: 0.0,
        text: 0.0,
        ..TrainerConfig::default()
    };
    let mut trainer = Trainer::with_adapter(&cpu, run, TernaryPolicy::DENSE, &frozen, adapter, None)?;
    let before = trainer.evaluate([held.clone()])?.mean();
    for _ in 0..steps {
        trainer.step(&mut batches)?;
    }
    let after = trainer.evaluate([held])?.mean();
    if let Some(adapter) = trainer.adapter() {
        adapter.save(output, &model.display().to_string())?;
    }
    Ok(Result { before, after })
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, text, output] = &arguments[..] else {
        return Err("usage: finetuning MODEL TEXT OUTPUT".into());
    };
    let Result { before, after } = run(model.as_ref(), text.as_ref(), output.as_ref(), 200)?;
    println!("{before:.3} nats per token before, {after:.3} after; the adapter is {output}");
    Ok(())
}

#[test]
fn the_adapter_learns_and_is_read_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let (text, output) = (dir.path().join("a.txt"), dir.path().join("adapter"));
    std::fs::write(&text, "The parrot said: ahoy, ahoy, we sail at noon. ".repeat(20))
        .expect("it is written");
    let model = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny"));
    let losses = run(model, &text, &output, 30).expect("it runs");
    assert!(losses.after < 0.5 * losses.before, "{} {}", losses.before, losses.after);
    let file = ModelFile::open(model).expect("a model");
    Adapter::open(&output, &file.config().spec).expect("the adapter");
}
