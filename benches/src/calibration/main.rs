//! Seconds of the steps that make a matrix ternary with error compensation:
//! `cargo run --release -p trike-benches --bin bench-calibration -- [--rows N] [--cols N] [--tokens N] [--threads N]`.
//!
//! The matrix is random; its inputs are normal and correlated, as they are in a model. Steps are those of a layer in
//! `trike quantize`: sums over the inputs of a text, factors of the Hessian, columns in turn with refitted scales, and the error.
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::time::Instant;

use anyhow::Result;
use clap::Parser;
use trike_cpu::Cpu;
use trike_quant::{
    ColumnOrder, CompensateConfig, CrossProduct, Hessian, HessianFactor, MatrixView, TritLayout, compensate,
    hessian_error,
};
use trike_testkit::Rng;

#[derive(Parser)]
struct Options {
    /// Outputs of the layer.
    #[arg(long, default_value_t = 1024)]
    rows: usize,
    /// Inputs of the layer.
    #[arg(long, default_value_t = 2816)]
    cols: usize,
    /// Tokens of the text.
    #[arg(long, default_value_t = 4096)]
    tokens: usize,
    /// Planes of trits.
    #[arg(long, default_value_t = 1)]
    planes: usize,
    /// Threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

/// Seconds that a step took, with its result.
fn timed<T>(what: &str, weights: usize, step: impl FnOnce() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    let result = step()?;
    let seconds = start.elapsed().as_secs_f64();
    println!("{what:<26} {seconds:9.3} s {:9.3} s per million weights", seconds / weights as f64 * 1e6);
    Ok(result)
}

fn main() -> Result<()> {
    let Options { rows, cols, tokens, planes, threads } = Options::parse();
    let cpu = Cpu::new(threads)?;
    let mut rng = Rng::new(1);
    let common = rng.normals(cols);
    let mut x = rng.normals(tokens * cols);
    for row in x.chunks_exact_mut(cols) {
        let shared = rng.normals(1)[0];
        row.iter_mut().zip(&common).for_each(|(x, c)| *x += shared * c);
    }
    let weights = rng.normals(rows * cols);
    let size = rows * cols;
    println!("{rows} x {cols}, {planes} planes, {tokens} tokens, {threads} threads ({})", cpu.isa().name());
    let hessian = timed("X^T X", size, || {
        let mut sum = Hessian::new(cols)?;
        sum.add(&cpu, &x)?;
        Ok(sum.into_matrix()?.0)
    })?;
    timed("X0^T X", size, || {
        let mut sum = CrossProduct::new(cols, cols)?;
        Ok(sum.add(&cpu, &x, &x)?)
    })?;
    let layout = TritLayout::default().with_depth(planes);
    let factor = timed("factors", size, || {
        Ok(HessianFactor::new(&cpu, &hessian, layout.granularity, ColumnOrder::Activation, 0.01)?)
    })?;
    timed("what to aim at", size, || Ok(factor.corrected(&cpu, &weights, &weights)?))?;
    let config = CompensateConfig::default().with_layout(layout);
    let view = MatrixView::new(rows, cols, &weights)?;
    let (trits, _) =
        timed("columns, scales, codes", size, || Ok(compensate(&cpu, view, &factor, None, &config)?))?;
    let plain = config.with_rounds(0);
    timed("columns alone", size, || Ok(compensate(&cpu, view, &factor, None, &plain)?))?;
    let error = timed("error", size, || Ok(hessian_error(&cpu, &weights, &trits.dequantize(), &hessian)?))?;
    println!("squared error {error:.6e}");
    Ok(())
}
