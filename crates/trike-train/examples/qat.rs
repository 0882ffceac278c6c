//! Quantization-aware training of a dense model to one ternary plane: `qat MODEL TOKENIZER EVALUATION STEPS|- TEXT...`.
//!
//! The dense model is the teacher and also generates most of the training text. Prints the bits per token on the held-out documents
//! of `EVALUATION`: of the dense model, of its rounded weights, and during training. The recipe is the library's default.
#![expect(clippy::print_stdout, reason = "the example prints its results")]

use std::time::Instant;

use trike_cpu::Cpu;
use trike_llm::ModelFile;
use trike_text::tokenizer::Tokenizer;
use trike_train::data::{Batch, BatchConfig, Batches, Documents, Encoder, Position};
use trike_train::{
    DocumentSampler, Parameters, SampleConfig, Teacher, TernaryPolicy, Trained, Trainer, TrainerConfig,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, tokenizer, evaluation, steps, texts @ ..] = &arguments[..] else {
        return Err("usage: qat MODEL TOKENIZER EVALUATION STEPS|- TEXT...".into());
    };
    let (mut run, mut sampling) = (TrainerConfig::default(), SampleConfig::default());
    if steps != "-" {
        run.steps = steps.parse()?;
        sampling.documents = run.steps * 2;
    }
    let cpu = Cpu::new(0)?;
    let file = ModelFile::open(model)?;
    let dense = Parameters::open(&file)?;
    let spec = file.config().spec.clone();
    let tokenizer = Tokenizer::from_llama2c(tokenizer, spec.vocab)?;
    let encoder = Encoder::new(&tokenizer, None).with_eos(false);

    let held_out = Documents::open(&[evaluation])?;
    let all: Vec<u32> = (0..held_out.len() as u32).collect();
    let config = BatchConfig { rows: 1, length: spec.context, packed: false, seed: 0 };
    let mut batches = Batches::new(&held_out, &all, encoder, config, Position::default())?;
    let held_out: Vec<Batch> = all.iter().map(|_| batches.next_batch()).collect::<Result<_, _>>()?;
    let bits = |parameters: &Parameters, policy: &TernaryPolicy| -> Result<f64, Box<dyn std::error::Error>> {
        let model = Trained::new(&cpu, &spec, None)?;
        let (mut nats, mut tokens) = (0.0, 0);
        for batch in &held_out {
            let loss = model.loss(parameters, batch, policy)?;
            (nats, tokens) = (nats + loss.sum, tokens + loss.tokens);
        }
        Ok(nats / tokens as f64 / std::f64::consts::LN_2)
    };
    let policy = TernaryPolicy::default();
    let of_dense = bits(&dense, &TernaryPolicy::DENSE)?;
    println!("dense {of_dense:.4} bits per token, rounded {:.4}", bits(&dense, &policy)?);

    let start = Instant::now();
    let sampler = DocumentSampler::new(&dense, &tokenizer, sampling)?;
    let written = sampler.documents(&cpu, 0..sampling.documents)?;
    let tokens: usize = written.iter().map(Vec::len).sum();
    println!("{tokens} tokens written by the teacher, {:.1?}", start.elapsed());
    let documents = Documents::open(texts)?.with_tokens(written)?;
    let used: Vec<u32> = (0..documents.len() as u32).collect();
    let config =
        BatchConfig { length: spec.context.min(BatchConfig::default().length), ..BatchConfig::default() };
    let mut batches = Batches::new(&documents, &used, encoder, config, Position::default())?;

    let steps = run.steps;
    let teacher = Teacher { parameters: &dense, policy: TernaryPolicy::DENSE };
    let mut trainer = Trainer::new(&cpu, run, policy.clone(), dense.clone(), Some(teacher))?;
    for step in 1..=steps {
        let report = trainer.step(&mut batches)?;
        if step % (steps / 10).max(1) == 0 || step == steps {
            let bits = bits(trainer.parameters(), &policy)?;
            let divergence = report.loss.divergence / report.loss.tokens as f64;
            println!(
                "step {step}: {bits:.4} bits per token, {:.4} of dense, divergence {divergence:.4} nats, {:.1?}",
                bits / of_dense,
                start.elapsed()
            );
        }
    }
    Ok(())
}
