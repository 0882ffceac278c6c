//! Trit vectors in bit planes, with the length of a typical hypervector: operations on pairs, bundles, matrix products and
//! nearest-neighbor search, the last as a fraction of the read bandwidth measured in the same run.
#![allow(clippy::print_stdout, reason = "a benchmark reports on stdout")]

mod common;

use std::error::Error;
use std::hint::black_box;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion};
use trike_cpu::{Cpu, Isa, probe};
use trike_popcount::{BitCounter, PlaneMatrix, PlaneVector, TritOps, TritPlanes, TritScore};
use trike_testkit::Rng;

/// Trits per vector.
const DIMENSION: usize = 10_000;
/// Vectors per bundle.
const BUNDLE: usize = 500;
/// Queries, stored rows and trits per vector of the products: one query, many, and a shape without round numbers.
const PRODUCTS: [(usize, usize, usize); 3] = [(1, 1024, DIMENSION), (128, 1024, DIMENSION), (37, 301, 4099)];
/// Stored rows of the search: far larger than any cache.
const STORED: usize = 100_000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut c = common::criterion();
    let mut lines = Vec::new();
    for isa in Isa::available() {
        let cpu = Cpu::with_isa(isa, 1)?;
        pairs(&mut c, &cpu, &mut lines)?;
        bundles(&mut c, &cpu, &mut lines)?;
        for threads in [1, 2] {
            products(&mut c, &Cpu::with_isa(isa, threads)?, &mut lines)?;
        }
    }
    search(&mut c, &mut lines)?;
    println!("\nMedians.\n\n| instructions | threads | operation | time | |\n|---|--:|---|--:|--:|");
    println!("{}\n", lines.join("\n"));
    c.final_summary();
    Ok(())
}

/// A random vector, 66 % nonzero.
fn vector(rng: &mut Rng, len: usize) -> Result<PlaneVector, Box<dyn Error>> {
    Ok(PlaneVector::from_trits(&rng.trits(len, 0.66))?)
}

fn matrix(rng: &mut Rng, rows: usize, cols: usize) -> Result<PlaneMatrix, Box<dyn Error>> {
    // Only 64 distinct rows, because generating random rows takes longer than the search.
    let vectors = (0..rows.min(64)).map(|_| vector(rng, cols)).collect::<Result<Vec<_>, _>>()?;
    let mut matrix = PlaneMatrix::with_capacity(rows, cols)?;
    for row in 0..rows {
        matrix.push(vectors[row % vectors.len()].view())?;
    }
    Ok(matrix)
}

/// A row of the report; `None` if the command line filtered the benchmark out.
fn line(cpu: &Cpu, what: &str, seconds: Option<f64>, rate: impl Fn(f64) -> String) -> Option<String> {
    let seconds = seconds?;
    let time = match seconds {
        s if s < 1e-6 => format!("{:.1} ns", s * 1e9),
        s if s < 1e-3 => format!("{:.1} us", s * 1e6),
        s => format!("{:.2} ms", s * 1e3),
    };
    Some(format!("| {} | {} | {what} | {time} | {} |", cpu.isa(), cpu.threads(), rate(seconds)))
}

fn pairs(c: &mut Criterion, cpu: &Cpu, lines: &mut Vec<String>) -> Result<(), Box<dyn Error>> {
    let mut rng = Rng::new(1);
    let (a, b) = (vector(&mut rng, DIMENSION)?, vector(&mut rng, DIMENSION)?);
    let mut out = PlaneVector::zeros(DIMENSION)?;
    let mut group = common::group(c, "popcount/pair");
    let mut add = |what: &str, seconds| lines.extend(line(cpu, what, seconds, |_| String::new()));
    let inputs = || (black_box(a.view()), black_box(b.view()));
    let id = |what: &str| BenchmarkId::new(what, cpu.isa());
    let score = |group: &mut BenchmarkGroup<'_, WallTime>, what: &str, score| {
        common::time(group, id(what), DIMENSION as u64, || {
            let (a, b) = inputs();
            cpu.trit_score(score, a, b)
        })
    };
    add("dot", score(&mut group, "dot", TritScore::Dot));
    add("matches", score(&mut group, "matches", TritScore::Matches));
    let time = common::time(&mut group, id("hamming"), DIMENSION as u64, || {
        let (a, b) = inputs();
        cpu.trit_hamming(a, b)
    });
    add("hamming", time);
    let time = common::time(&mut group, id("sum modulo 3"), DIMENSION as u64, || {
        let (a, b) = inputs();
        cpu.trit_sum_mod3(a, b, out.view_mut())
    });
    add("sum modulo 3", time);
    let time = common::time(&mut group, id("difference modulo 3"), DIMENSION as u64, || {
        let (a, b) = inputs();
        cpu.trit_difference_mod3(a, b, out.view_mut())
    });
    add("difference modulo 3", time);
    let time = common::time(&mut group, id("product"), DIMENSION as u64, || {
        let (a, b) = inputs();
        cpu.trit_product(a, b, out.view_mut())
    });
    add("product", time);
    group.finish();
    Ok(())
}

fn bundles(c: &mut Criterion, cpu: &Cpu, lines: &mut Vec<String>) -> Result<(), Box<dyn Error>> {
    let mut rng = Rng::new(2);
    let vectors = (0..BUNDLE).map(|_| vector(&mut rng, DIMENSION)).collect::<Result<Vec<_>, _>>()?;
    let views: Vec<TritPlanes<'_>> = vectors.iter().map(PlaneVector::view).collect();
    let mut out = PlaneVector::zeros(DIMENSION)?;
    let mut group = common::group(c, "popcount/bundle");
    let id = |what| BenchmarkId::new(what, cpu.isa());
    let time = common::time(&mut group, id("majority of 500"), BUNDLE as u64, || {
        let mut counter = BitCounter::new(DIMENSION)?;
        counter.add_all(cpu, &views)?;
        counter.majority(cpu, 0, out.view_mut())
    });
    lines.extend(line(cpu, "majority of 500", time, |_| String::new()));
    let time = common::time(&mut group, id("plurality of 500"), BUNDLE as u64, || {
        let mut counter = BitCounter::new(DIMENSION)?;
        counter.add_all(cpu, &views)?;
        counter.plurality(cpu, out.view_mut())
    });
    lines.extend(line(cpu, "plurality of 500", time, |_| String::new()));
    group.finish();
    Ok(())
}

fn products(c: &mut Criterion, cpu: &Cpu, lines: &mut Vec<String>) -> Result<(), Box<dyn Error>> {
    let mut rng = Rng::new(3);
    let mut group = common::group(c, "popcount/matmul");
    for (m, n, k) in PRODUCTS {
        let (queries, stored) = (matrix(&mut rng, m, k)?, matrix(&mut rng, n, k)?);
        let mut out = vec![0; m * n];
        let macs = m * n * k;
        let what = format!("{m} x {n} x {k}");
        let id = BenchmarkId::new(&what, format!("{} {}T", cpu.isa(), cpu.threads()));
        let time = common::time(&mut group, id, macs as u64, || cpu.trit_matmul(&queries, &stored, &mut out));
        lines.extend(line(cpu, &what, time, |seconds| format!("{:.0} GMAC/s", macs as f64 / seconds / 1e9)));
    }
    group.finish();
    Ok(())
}

fn search(c: &mut Criterion, lines: &mut Vec<String>) -> Result<(), Box<dyn Error>> {
    let mut rng = Rng::new(4);
    let stored = matrix(&mut rng, STORED, DIMENSION)?;
    let queries = matrix(&mut rng, 1, DIMENSION)?;
    let mut group = common::group(c, "popcount/search");
    for threads in [1, 2] {
        let cpu = Cpu::new(threads)?;
        let what = format!("top-1 of {STORED}");
        let id = BenchmarkId::new(&what, format!("{} {threads}T", cpu.isa()));
        let time = common::time(&mut group, id, STORED as u64, || {
            cpu.trit_top_k(TritScore::Matches, &queries, &stored, 1)
        });
        let ceiling = match time {
            Some(_) => probe::memory_bandwidth(&cpu)?.best().figure,
            None => continue,
        };
        lines.extend(line(&cpu, &what, time, |seconds| {
            let rate = stored.bytes() as f64 / seconds;
            format!("{:.1} GB/s, {:.0} % of the read bandwidth", rate / 1e9, 100.0 * rate / ceiling)
        }));
    }
    group.finish();
    Ok(())
}
