//! Memory saved by gradient checkpointing: `memory_optimization MODEL`.
//!
//! Prints the estimated memory of a step for several segment lengths, and shows that the gradients are bit-identical.
#![expect(clippy::print_stdout, reason = "the example prints its results")]

use std::path::Path;
use std::time::Instant;

use trike_cpu::Cpu;
use trike_llm::ModelFile;
use trike_train::data::Batch;
use trike_train::{
    Objective, OptimizerKind, Parameters, RunShape, TernaryPolicy, Trained, TrainingMemory,
    estimate_training_memory,
};

/// Blocks per segment, the memory and time of a step, and the gradients of a batch.
type Row = (Option<usize>, TrainingMemory, f64, Vec<Vec<f32>>);

fn run(model: &Path, length: usize) -> Result<Vec<Row>, Box<dyn std::error::Error>> {
    let cpu = Cpu::new(0)?;
    let parameters = Parameters::open(&ModelFile::open(model)?)?;
    let spec = parameters.spec();
    let ids: Vec<u32> = (0..length as u32).map(|i| i * 7 % spec.vocab as u32).collect();
    let targets = ids.iter().skip(1).map(|&id| Some(id)).chain([None]).collect();
    let batch = Batch { targets, segments: std::iter::once(0..length).collect(), ids };
    let mut rows = Vec::new();
    for checkpoint in [None, Some(spec.layers.div_ceil(2)), Some(1)] {
        let memory = estimate_training_memory(&RunShape {
            spec,
            policy: &TernaryPolicy::DENSE,
            optimizer: OptimizerKind::AdamW,
            rows: 1,
            length,
            checkpoint,
            adapter: None,
            teacher: None,
            threads: cpu.threads(),
        })?;
        let model = Trained::new(&cpu, spec, checkpoint)?;
        let mut gradients = parameters.zeros();
        let start = Instant::now();
        model.gradients(
            &parameters,
            &batch,
            &TernaryPolicy::DENSE,
            Objective::Text,
            1.0 / length as f32,
            &mut gradients,
        )?;
        rows.push((checkpoint, memory, start.elapsed().as_secs_f64(), gradients));
    }
    Ok(rows)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model] = &arguments[..] else { return Err("usage: memory_optimization MODEL".into()) };
    let rows = run(model.as_ref(), 256)?;
    for (checkpoint, memory, seconds, gradients) in &rows {
        let blocks = checkpoint.map_or("all activations".to_owned(), |n| format!("segments of {n} blocks"));
        let same = *gradients == rows[0].3;
        println!(
            "{blocks}: {:.1} MB of activations, {seconds:.3} s, gradients equal: {same}",
            memory.activations as f64 / 1e6
        );
    }
    Ok(())
}

#[test]
fn less_memory_for_the_same_gradients() {
    let model = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny"));
    let rows = run(model, 64).expect("it runs");
    assert!(rows[2].1.activations < rows[1].1.activations && rows[1].1.activations < rows[0].1.activations);
    assert!(rows.iter().all(|row| row.3 == rows[0].3));
}
