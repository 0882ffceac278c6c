//! Steps along predicted gradients compared with plain steps and local steps, at equal backward passes: `phases MODEL TEXT
//! [PASSES]`.
//!
//! Trains a small random decoder with the tokenizer of `MODEL` on `TEXT` by gradient descent, with small and with large batches,
//! and prints the best loss over several learning rates of: plain steps; the phases of [`DeterministicPhaseTrainer`]; and two
//! workers that take four local steps before their weights are averaged.
#![expect(clippy::print_stdout, reason = "the example prints its results")]

use std::path::Path;

use trike_cpu::Cpu;
use trike_llm::ModelFile;
use trike_nn::DecoderSpec;
use trike_train::data::{Batch, BatchConfig, Batches, Documents, Encoder, Position};
use trike_train::{
    DeterministicPhaseTrainer, OptimizerConfig, OptimizerKind, Parameters, PhaseConfig, Schedule,
    ScheduleShape, TernaryPolicy, TrainError, Trainer, TrainerConfig,
};

type Failed = Box<dyn std::error::Error>;

/// Backward passes per worker between two averages of the weights.
const LOCAL: usize = 4;
const WORKERS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Method {
    Plain,
    Phases,
    Local,
}

/// Settings shared by all runs.
struct Task<'a> {
    cpu: &'a Cpu,
    start: &'a Parameters,
    batches: &'a dyn Fn(usize) -> Result<Batches<'a>, TrainError>,
    held_out: &'a Batch,
}

impl Task<'_> {
    fn trainer(&self, rate: f32, start: &Parameters) -> Result<Trainer<'_>, TrainError> {
        let config = TrainerConfig {
            steps: usize::MAX,
            accumulation: 1,
            optimizer: OptimizerConfig {
                kind: OptimizerKind::Sgd,
                learning_rate: rate,
                momentum: 0.0,
                weight_decay: 0.0,
                ..OptimizerConfig::default()
            },
            schedule: Schedule { warmup: 0, shape: ScheduleShape::Constant },
            lambda: 0.0,
            text: 0.0,
            ..TrainerConfig::default()
        };
        Trainer::new(self.cpu, config, TernaryPolicy::DENSE, start.clone(), None)
    }

    /// Held-out loss after `passes` backward passes over batches of `rows`, in nats per token.
    fn run(&self, method: Method, rows: usize, rate: f32, passes: usize) -> Result<f64, TrainError> {
        let mut batches = (self.batches)(rows)?;
        let mut trainer = self.trainer(rate, self.start)?;
        let mut left = passes;
        match method {
            Method::Plain => {
                for _ in 0..passes {
                    trainer.step(&mut batches)?;
                }
            }
            Method::Phases => {
                let mut phases = DeterministicPhaseTrainer::new(PhaseConfig::default())?;
                while left > 0 {
                    let (phase, _) = phases.step(&mut trainer, &mut batches)?;
                    left -= usize::from(phase.is_measured());
                }
            }
            Method::Local => {
                let mut common = self.start.clone();
                while left > 0 {
                    let mut sum = common.zeros();
                    for _ in 0..WORKERS {
                        let mut worker = self.trainer(rate, &common)?;
                        for _ in 0..LOCAL.min(left) {
                            worker.step(&mut batches)?;
                        }
                        left -= LOCAL.min(left);
                        for (sum, parameter) in sum.iter_mut().zip(worker.parameters().all()) {
                            sum.iter_mut().zip(&parameter.values).for_each(|(s, v)| *s += v);
                        }
                    }
                    for (parameter, sum) in common.all_mut().iter_mut().zip(sum) {
                        let mean = sum.into_iter().map(|s| s / WORKERS as f32);
                        parameter.values.iter_mut().zip(mean).for_each(|(v, mean)| *v = mean);
                    }
                }
                trainer = self.trainer(rate, &common)?;
            }
        }
        Ok(trainer.evaluate([self.held_out.clone()])?.mean())
    }
}

/// The best loss and its rate, for both batch sizes and all methods.
fn compare(
    model: &Path,
    text: &Path,
    passes: usize,
    rates: &[f32],
) -> Result<Vec<(usize, Method, f64, f32)>, Failed> {
    let cpu = Cpu::new(0)?;
    let file = ModelFile::open(model)?;
    let tokenizer = file.tokenizer(None)?;
    let spec =
        DecoderSpec { tied_head: true, context: 64, ..DecoderSpec::llama(64, 2, 4, tokenizer.vocab_size()) };
    let start = Parameters::random(&spec, 1)?;
    let documents = Documents::open(&[text])?;
    let (held, used): (Vec<u32>, Vec<u32>) =
        (0..documents.len() as u32).partition(|document| document % 8 == 0);
    let encoder = Encoder::new(&tokenizer, None);
    let batches = |used, rows| {
        let config = BatchConfig { rows, length: 64, packed: true, seed: 5 };
        Batches::new(&documents, used, encoder, config, Position::default())
    };
    let held_out = batches(&held, 32)?.next_batch()?;
    let of_training = |rows| batches(&used, rows);
    let task = Task { cpu: &cpu, start: &start, batches: &of_training, held_out: &held_out };
    let mut results = Vec::new();
    for rows in [1, 16] {
        for method in [Method::Plain, Method::Phases, Method::Local] {
            let mut best = (f64::INFINITY, 0.0);
            for &rate in rates {
                match task.run(method, rows, rate, passes) {
                    Ok(loss) if loss < best.0 => best = (loss, rate),
                    // The rate is too high.
                    Ok(_) | Err(TrainError::NonFinite { .. }) => {}
                    Err(e) => return Err(e.into()),
                }
            }
            results.push((rows, method, best.0, best.1));
        }
    }
    Ok(results)
}

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (model, text, passes) = match &arguments[..] {
        [model, text] => (model, text, 400),
        [model, text, passes] => (model, text, passes.parse()?),
        _ => return Err("usage: phases MODEL TEXT [PASSES]".into()),
    };
    println!("{passes} backward passes; nats per token of text held out, at the best rate");
    for (rows, method, loss, rate) in
        compare(model.as_ref(), text.as_ref(), passes, &[0.1, 0.2, 0.4, 0.8, 1.6])?
    {
        println!("{:>5} tokens a batch, {method:?}: {loss:.4} at {rate}", 64 * rows);
    }
    Ok(())
}

#[test]
fn all_methods_learn() {
    let dir = tempfile::tempdir().expect("a folder");
    let text = dir.path().join("a.txt");
    let story = |i: usize| format!("Once upon a time there was a cat who had {i} fish. She was happy.");
    let stories: Vec<String> = (0..40).map(story).collect();
    std::fs::write(&text, stories.join("<|endoftext|>")).expect("it is written");
    let model = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny"));
    let results = compare(model, &text, 24, &[0.5]).expect("it runs");
    assert_eq!(results.len(), 6);
    // At random 6.9 nats.
    assert!(results.iter().all(|(_, _, loss, rate)| *loss < 6.0 && *rate == 0.5), "{results:?}");
}
