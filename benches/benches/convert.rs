//! Conversion between all pairs of encodings, and packing into the kernel layout, in weights per second.
#![allow(clippy::print_stdout, reason = "a benchmark reports on stdout")]

mod common;

use std::error::Error;

use criterion::BenchmarkId;
use trike_cpu::TernaryMatrix;
use trike_testkit::Rng;
use trike_trit::{Encoding, Scales, TritTensor};

/// Rows and columns: the attention projections of a 2B decoder.
const SIDE: usize = 2560;

fn main() -> Result<(), Box<dyn Error>> {
    let mut c = common::criterion();
    let weights = (SIDE * SIDE) as u64;
    let trits = Rng::new(1).trits(SIDE * SIDE, 0.6);
    let mut lines = Vec::new();
    for from in Encoding::ALL {
        let tensor = TritTensor::from_trits(SIDE, SIDE, &trits, from, Scales::tensor(1.0))?;
        let mut group = common::group(&mut c, "convert");
        let rate = |seconds: Option<f64>| {
            seconds.map_or("-".to_owned(), |s| format!("{:.0}", weights as f64 / s / 1e6))
        };
        let mut line = format!("| {from} |");
        for to in Encoding::ALL {
            let cell = if to == from {
                String::new()
            } else {
                let id = BenchmarkId::new(from.to_string(), to);
                rate(common::time(&mut group, id, weights, || tensor.to_encoding(to)))
            };
            line.push_str(&format!(" {cell} |"));
        }
        let id = BenchmarkId::new(from.to_string(), "kernel layout");
        let pack = common::time(&mut group, id, weights, || TernaryMatrix::pack(&tensor));
        group.finish();
        lines.push(format!("{line} {} |", rate(pack)));
    }
    let names = Encoding::ALL.map(|encoding| encoding.to_string()).join(" | ");
    println!("\nMillions of weights per second, {SIDE} x {SIDE}, 60 % nonzero.\n");
    println!(
        "| from \\ to | {names} | kernel layout |\n|---|--:|--:|--:|--:|--:|--:|\n{}\n",
        lines.join("\n")
    );
    c.final_summary();
    Ok(())
}
