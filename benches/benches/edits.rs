//! Reading and changing single trits at random positions, in every encoding, in a tensor that fits into the L1 cache and in
//! tensors far larger than the caches.
#![allow(clippy::print_stdout, reason = "a benchmark reports on stdout")]

mod common;

use std::{error::Error, time::Instant};

use criterion::BenchmarkId;
use trike_testkit::Rng;
use trike_trit::{Edit, Encoding, Scales, Trit, TritTensor};

/// Rows, columns, and fraction of zero trits.
const TENSORS: [(usize, usize, f32); 4] =
    [(64, 512, 0.4), (4096, 4096, 0.4), (4096, 4096, 0.95), (16_384, 16_384, 0.95)];
/// Number of positions visited cyclically: several per row of the largest tensor.
const PLACES: usize = 1 << 17;
/// Changes per call of `edit`.
const BATCH: usize = 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let mut c = common::criterion();
    let mut rng = Rng::new(1);
    let mut lines = Vec::new();
    for (rows, cols, zeros) in TENSORS {
        let name = format!("{rows} x {cols}, {:.0} % zeros", 100.0 * zeros);
        let trits = rng.trits(rows * cols, 1.0 - zeros);
        let mut place = || (rng.below(rows) as u32, rng.below(cols) as u32);
        let places: Vec<(u32, u32)> = (0..PLACES).map(|_| place()).collect();
        for encoding in Encoding::ALL {
            let mut tensor = TritTensor::from_trits(rows, cols, &trits, encoding, Scales::tensor(1.0))?;
            let mut group = common::group(&mut c, &format!("edits/{name}"));
            let id = |what| BenchmarkId::new(what, encoding);
            let mut walk = Walk::new(&places);
            // In compressed encodings the first edit of a row moves the row out of the packed buffers.
            let start = Instant::now();
            for _ in 0..PLACES {
                let (row, col, trit) = walk.step();
                tensor.set(0, row, col, trit)?;
            }
            let first = start.elapsed().as_secs_f64() / PLACES as f64;
            let get = common::time(&mut group, id("get"), 1, || {
                let (row, col, _) = walk.step();
                tensor.get(0, row, col)
            });
            let set = common::time(&mut group, id("set"), 1, || {
                let (row, col, trit) = walk.step();
                tensor.set(0, row, col, trit)
            });
            let mut edits = Vec::with_capacity(BATCH);
            let batch = common::time(&mut group, id("edit"), BATCH as u64, || {
                edits.clear();
                edits.extend((0..BATCH).map(|_| {
                    let (row, col, trit) = walk.step();
                    Edit { plane: 0, row, col, trit }
                }));
                tensor.edit(&edits)
            });
            group.finish();
            let ns = |seconds: Option<f64>| seconds.map_or("-".to_owned(), |s| format!("{:.1}", s * 1e9));
            let each = batch.map(|seconds| seconds / BATCH as f64);
            let first = ns(Some(first));
            lines.push(format!(
                "| {name} | {encoding} | {first} | {} | {} | {} |",
                ns(get),
                ns(set),
                ns(each)
            ));
        }
    }
    println!(
        "\nNanoseconds: the mean of the first {PLACES} changes of a tensor, then medians of one read, one change, and one"
    );
    println!("change in a batch of {BATCH}.\n");
    println!(
        "| tensor | encoding | first | get | set | edit |\n|---|---|--:|--:|--:|--:|\n{}\n",
        lines.join("\n")
    );
    c.final_summary();
    Ok(())
}

/// Cycles through random positions with a different trit in each pass, so that every write changes the trit.
struct Walk<'a> {
    places: &'a [(u32, u32)],
    next: usize,
    trits: [Trit; 3],
}

impl<'a> Walk<'a> {
    fn new(places: &'a [(u32, u32)]) -> Self {
        Self { places, next: 0, trits: [Trit::N, Trit::Z, Trit::P] }
    }

    #[inline]
    fn step(&mut self) -> (usize, usize, Trit) {
        if self.next == self.places.len() {
            self.next = 0;
            self.trits.rotate_left(1);
        }
        let (row, col) = self.places[self.next];
        let (row, col) = (row as usize, col as usize);
        // The low bits of the column are random, because the position is.
        let trit = self.trits[(col % 64) % 3];
        self.next += 1;
        (row, col, trit)
    }
}
