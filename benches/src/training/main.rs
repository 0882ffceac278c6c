//! Tokens per second of training, against plain Candle and, where Python has them, PyTorch and JAX:
//! `cargo run --release -p trike-benches --bin bench-training -- [--python PYTHON] [--rounds N]`.
//!
//! Every engine takes the same step: the model that comes with Trike (4 blocks, hidden 256, one ternary plane with one scale per
//! matrix, int8 activations, straight-through gradients) from random weights, 16 rows of 256 tokens, cross-entropy, AdamW, in
//! f32 on the same number of threads. They take turns; the figures are medians, and the ratios those of the rounds.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark prints its figures")]

mod candle;
mod python;
mod trike;

use anyhow::{Result, ensure};
use clap::Parser;
use trike_nn::DecoderSpec;

/// Sizes of the task, which the Python script has too.
pub(crate) const ROWS: usize = 16;
pub(crate) const LENGTH: usize = 256;
pub(crate) const RATE: f64 = 1e-3;

#[derive(Parser)]
struct Options {
    /// A Python with torch or jax; without it they are left out.
    #[arg(long)]
    python: Option<String>,
    /// Rounds in which every engine has a turn of three steps.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Threads of every engine.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

/// An engine that takes a step and returns its loss.
pub(crate) trait Engine {
    fn step(&mut self) -> Result<f64>;
    /// Seconds of the last step by the engine's own clock, if its step contains other work.
    fn seconds(&self) -> Option<f64> {
        None
    }
}

pub(crate) fn spec() -> DecoderSpec {
    DecoderSpec {
        intermediate: 512,
        kv_heads: 2,
        context: LENGTH,
        tied_head: true,
        ..DecoderSpec::llama(256, 4, 4, 512)
    }
}

/// Ids of all rows with the one that follows each row: the same for all engines.
pub(crate) fn ids() -> Vec<u32> {
    let (mut state, vocab) = (1u32, spec().vocab);
    let next = |_| {
        // Numerical Recipes' generator; small ids are frequent, so that there is something to learn.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let uniform = f64::from(state >> 8) / f64::from(1u32 << 24);
        (vocab as f64 * uniform * uniform) as u32
    };
    (0..ROWS * (LENGTH + 1)).map(next).collect()
}

fn main() -> Result<()> {
    let options = Options::parse();
    ensure!(options.rounds > 0 && options.threads > 0, "rounds and threads are at least 1");
    rayon::ThreadPoolBuilder::new().num_threads(options.threads).build_global()?;
    let mut engines: Vec<(String, Box<dyn Engine>)> = vec![
        ("trike".to_owned(), Box::new(trike::Trike::new(options.threads)?)),
        ("candle".to_owned(), Box::new(candle::Candle::new()?)),
    ];
    for name in ["torch", "torch-compiled", "jax"] {
        match options.python.as_deref().map(|python| python::Python::new(python, name, options.threads)) {
            None => {}
            Some(Ok(engine)) => engines.push((name.to_owned(), Box::new(engine))),
            Some(Err(e)) => eprintln!("{name} is left out: {e:#}"),
        }
    }
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); engines.len()];
    let mut losses = vec![(f64::NAN, f64::NAN); engines.len()];
    // The first round warms up.
    for round in 0..=options.rounds {
        for (at, (_, engine)) in engines.iter_mut().enumerate() {
            let mut seconds = Vec::new();
            for _ in 0..3 {
                let start = std::time::Instant::now();
                let loss = engine.step()?;
                seconds.push(engine.seconds().unwrap_or_else(|| start.elapsed().as_secs_f64()));
                if losses[at].0.is_nan() {
                    losses[at].0 = loss;
                }
                losses[at].1 = loss;
            }
            if round > 0 {
                times[at].push(median(&mut seconds));
            }
        }
    }
    println!(
        "{:<16}{:>10}{:>12}{:>16}{:>22}",
        "engine", "ms/step", "tokens/s", "speed of trike", "loss first, last"
    );
    for (at, (name, _)) in engines.iter().enumerate() {
        let seconds = median(&mut times[at].clone());
        let mut ratios: Vec<f64> =
            times[at].iter().zip(&times[0]).map(|(theirs, ours)| theirs / ours).collect();
        println!(
            "{name:<16}{:>10.1}{:>12.0}{:>15.2}x{:>12.3}, {:>8.3}",
            1e3 * seconds,
            (ROWS * LENGTH) as f64 / seconds,
            median(&mut ratios),
            losses[at].0,
            losses[at].1
        );
    }
    Ok(())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
