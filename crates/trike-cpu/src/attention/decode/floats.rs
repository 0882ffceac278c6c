//! Decode attention over floats: products of queries with keys, and of weights with values, in f32.
//!
//! Both read the rows in blocks that stay in the L1 cache, so that each byte is loaded from memory once for all heads of a group.

use bytemuck::cast_slice;

use super::ahead::Ahead;
use super::{CHUNK, Products, Reading};
use crate::attention::Job;
use crate::attention::lanes::Lanes;
use crate::kernels::{Element, Kernels as _, with_float_kernels};
use half::f16;
use trike_host::{Isa, Loop};

/// Rows per block, read by all heads of a group: 16 KiB of f16 for heads of 128.
const BLOCK: usize = 64;

macro_rules! products {
    ($($element:ty),*) => {
        $(impl Products for $element {
            /// Queries are not converted.
            type Queries<'a> = &'a [f32];
            type Room = ();

            fn queries<'a>(job: &Job<'a>) -> &'a [f32] {
                job.q
            }

            fn score(isa: Isa, q: &&[f32], query: usize, keys: Reading<'_, Self>, scores: &mut [f32]) {
                let (d, share) = (keys.head_dim, scores.len() / CHUNK);
                let q = &q[query * d..][..share * d];
                let mut first = 0;
                for (rows, _, next) in keys.runs() {
                    let scores = &mut *scores;
                    with_float_kernels!(isa, s => s.run(ScoreRows { s, q, rows, next, scores, first, share }));
                    first += rows.len() / d;
                }
            }

            fn add(isa: Isa, weights: &[f32], values: Reading<'_, Self>, sums: &mut [f32], (): &mut ()) {
                let (d, share) = (values.head_dim, weights.len() / CHUNK);
                sums.fill(0.0);
                let mut first = 0;
                for (rows, _, next) in values.runs() {
                    let sums = &mut *sums;
                    with_float_kernels!(isa, s => s.run(AddRows { s, weights, first, rows, next, sums, share }));
                    first += rows.len() / d;
                }
            }
        })*
    };
}

products!(f32, f16);

/// Number of heads whose running sums fit the registers.
const fn heads_at_once<S: Lanes>() -> usize {
    if S::LANES == 16 { 4 } else { 2 }
}

/// `scores[h][first + j] = q[h] . rows[j]`
struct ScoreRows<'a, S, E> {
    s: S,
    q: &'a [f32],
    rows: &'a [E],
    /// The bytes read after `rows`, for prefetching.
    next: &'a [u8],
    scores: &'a mut [f32],
    first: usize,
    share: usize,
}

impl<S: Lanes, E: Element + bytemuck::Pod> Loop for ScoreRows<'_, S, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { s, q, rows, next, scores, first, share } = self;
        let d = q.len() / share;
        for (n, block) in rows.chunks(BLOCK * d).enumerate() {
            let ahead = Ahead::new(cast_slice(rows), n * BLOCK, next, d * size_of::<E>());
            let first = first + n * BLOCK;
            let mut head = 0;
            while head < share {
                let heads = if share - head >= heads_at_once::<S>() { heads_at_once::<S>() } else { 1 };
                let (q, scores) = (&q[head * d..][..heads * d], &mut scores[head * CHUNK + first..]);
                let ahead = (head == 0).then_some(ahead);
                match heads {
                    4 if const { heads_at_once::<S>() == 4 } => {
                        score_rows_of::<S, E, 4>(s, q, block, ahead, scores);
                    }
                    2 if const { heads_at_once::<S>() == 2 } => {
                        score_rows_of::<S, E, 2>(s, q, block, ahead, scores);
                    }
                    _ => score_rows_of::<S, E, 1>(s, q, block, ahead, scores),
                }
                head += heads;
            }
        }
    }
}

#[inline(always)]
fn score_rows_of<S: Lanes, E: Element, const H: usize>(
    s: S,
    q: &[f32],
    rows: &[E],
    ahead: Option<Ahead<'_>>,
    scores: &mut [f32],
) {
    let d = q.len() / H;
    let mut tails = [[0.0; 16]; H];
    if !d.is_multiple_of(16) {
        for h in 0..H {
            tails[h] = padded(&q[h * d..][d / 16 * 16..d]);
        }
    }
    let n = rows.len() / d;
    for at in (0..n).step_by(4) {
        let (count, from) = ((n - at).min(4), at * d);
        let four = if count == 4 {
            if let Some(ahead) = ahead {
                ahead.fetch(s, at, 4);
            }
            [&rows[from..], &rows[from + d..], &rows[from + 2 * d..], &rows[from + 3 * d..]]
        } else {
            // Missing rows repeat the last one, so that only one instance is compiled.
            let (second, last) = (1.min(count - 1), count - 1);
            [&rows[from..], &rows[from + second * d..], &rows[from + last * d..], &rows[from + last * d..]]
        };
        let dots = dots::<S, E, H>(s, q, &tails, four);
        for h in 0..H {
            let scores = &mut scores[h * CHUNK + at..];
            match scores.first_chunk_mut() {
                Some(all) if count == 4 => *all = dots[h],
                _ => scores[..count].copy_from_slice(&dots[h][..count]),
            }
        }
    }
}

/// Four rows times `H` queries. Row slices start at the row and may extend past it. `tails` are the elements of the queries after
/// their last whole chunk, zero-padded.
#[inline(always)]
fn dots<S: Lanes, E: Element, const H: usize>(
    s: S,
    q: &[f32],
    tails: &[[f32; 16]; H],
    rows: [&[E]; 4],
) -> [[f32; 4]; H] {
    let d = q.len() / H;
    let n = d / 16;
    let mut q_chunks: [&[[f32; 16]]; H] = [&[]; H];
    let mut row_chunks: [&[[E; 16]]; 4] = [&[]; 4];
    for h in 0..H {
        q_chunks[h] = &q[h * d..][..d].as_chunks().0[..n];
    }
    for r in 0..4 {
        row_chunks[r] = &rows[r].as_chunks().0[..n];
    }
    let mut acc = [[s.splat_lanes(0.0); 4]; H];
    for i in 0..n {
        for part in 0..16 / S::LANES {
            let at = part * S::LANES;
            let mut x = [s.splat_lanes(0.0); H];
            for h in 0..H {
                x[h] = s.load_lanes(&q_chunks[h][i], at);
            }
            for r in 0..4 {
                let row = s.load_lanes(&row_chunks[r][i], at);
                for h in 0..H {
                    acc[h][r] = s.mul_add(row, x[h], acc[h][r]);
                }
            }
        }
    }
    let mut out = [[0.0; 4]; H];
    for h in 0..H {
        out[h] = s.fold_lanes(acc[h]);
    }
    if !d.is_multiple_of(16) {
        // Separate sums: sharing the ones above would keep them in memory for every `d`.
        let mut ends = [[E::ZERO; 16]; 4];
        for r in 0..4 {
            ends[r] = beginning(&rows[r][16 * n..], d - 16 * n);
        }
        for h in 0..H {
            let mut acc = [s.splat_lanes(0.0); 4];
            for r in 0..4 {
                for part in 0..16 / S::LANES {
                    let at = part * S::LANES;
                    acc[r] = s.mul_add(s.load_lanes(&ends[r], at), s.load_lanes(&tails[h], at), acc[r]);
                }
            }
            let more = s.fold_lanes(acc);
            for r in 0..4 {
                out[h][r] += more[r];
            }
        }
    }
    out
}

/// The elements after the last whole chunk, zero-padded.
#[inline(always)]
fn padded<E: Element>(tail: &[E]) -> [E; 16] {
    let mut padded = [E::ZERO; 16];
    padded[..tail.len()].copy_from_slice(tail);
    padded
}

/// A chunk whose first `len` elements are those of `from`, followed by the next elements if there are enough, otherwise by zeros: a
/// whole chunk is a single load, while a partial one is a copy that the next load must wait for.
#[inline(always)]
fn beginning<E: Element>(from: &[E], len: usize) -> [E; 16] {
    match from.first_chunk() {
        Some(chunk) => *chunk,
        None => padded(&from[..len]),
    }
}

/// `sums[h] += sum_j weights[h][first + j] * rows[j]`
struct AddRows<'a, S, E> {
    s: S,
    weights: &'a [f32],
    first: usize,
    rows: &'a [E],
    /// The bytes read after `rows`, for prefetching.
    next: &'a [u8],
    sums: &'a mut [f32],
    share: usize,
}

impl<S: Lanes, E: Element + bytemuck::Pod> Loop for AddRows<'_, S, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { s, weights, first, rows, next, sums, share } = self;
        let d = sums.len() / share;
        for (n, block) in rows.chunks(BLOCK * d).enumerate() {
            let ahead = Ahead::new(cast_slice(rows), n * BLOCK, next, d * size_of::<E>());
            let first = first + n * BLOCK;
            let mut head = 0;
            while head < share {
                let heads = if share - head >= heads_at_once::<S>() { heads_at_once::<S>() } else { 1 };
                let (weights, sums) = (&weights[head * CHUNK + first..], &mut sums[head * d..][..heads * d]);
                let ahead = (head == 0).then_some(ahead);
                match heads {
                    4 if const { heads_at_once::<S>() == 4 } => {
                        add_rows_of::<S, E, 4>(s, weights, block, ahead, sums);
                    }
                    2 if const { heads_at_once::<S>() == 2 } => {
                        add_rows_of::<S, E, 2>(s, weights, block, ahead, sums);
                    }
                    _ => add_rows_of::<S, E, 1>(s, weights, block, ahead, sums),
                }
                head += heads;
            }
        }
    }
}

#[inline(always)]
fn add_rows_of<S: Lanes, E: Element, const H: usize>(
    s: S,
    weights: &[f32],
    rows: &[E],
    ahead: Option<Ahead<'_>>,
    sums: &mut [f32],
) {
    let d = sums.len() / H;
    // Columns whose sums stay in registers during the loop over the rows.
    let wide = if S::LANES == 16 { 64 } else { 32 };
    let mut column = 0;
    while column < d {
        let ahead = if column == 0 { ahead } else { None };
        if d - column >= wide {
            if const { S::LANES == 16 } {
                add_columns::<S, E, H, 4>(s, weights, rows, ahead, sums, column);
            } else {
                add_columns::<S, E, H, 2>(s, weights, rows, ahead, sums, column);
            }
            column += wide;
        } else {
            add_columns::<S, E, H, 1>(s, weights, rows, ahead, sums, column);
            column += 16;
        }
    }
}

/// `C` blocks of 16 columns, or the tail of the last block.
#[inline(always)]
fn add_columns<S: Lanes, E: Element, const H: usize, const C: usize>(
    s: S,
    weights: &[f32],
    rows: &[E],
    ahead: Option<Ahead<'_>>,
    sums: &mut [f32],
    column: usize,
) {
    let d = sums.len() / H;
    let width = (d - column).min(16 * C);
    let n = rows.len() / d;
    let mut weight_rows: [&[f32]; H] = [&[]; H];
    for h in 0..H {
        weight_rows[h] = &weights[h * CHUNK..][..n];
    }
    // At most four vectors of 16 lanes, or four of 8, per head; `[4]` holds the parts of 16 columns.
    let mut acc = [[[s.splat_lanes(0.0); 4]; C]; H];
    let mut j = 0;
    for few in rows.chunks(4 * d) {
        if let Some(ahead) = ahead {
            ahead.fetch(s, j, (n - j).min(4));
        }
        for row in few.chunks_exact(d) {
            if width == 16 * C {
                let chunks = &row[column..][..width].as_chunks::<16>().0[..C];
                for c in 0..C {
                    for part in 0..16 / S::LANES {
                        let value = s.load_lanes(&chunks[c], part * S::LANES);
                        for h in 0..H {
                            let weight = s.splat_lanes(weight_rows[h][j]);
                            acc[h][c][part] = s.mul_add(weight, value, acc[h][c][part]);
                        }
                    }
                }
            } else {
                let chunk = beginning(&rows[j * d + column..], width);
                for part in 0..16 / S::LANES {
                    let value = s.load_lanes(&chunk, part * S::LANES);
                    for h in 0..H {
                        let weight = s.splat_lanes(weight_rows[h][j]);
                        acc[h][0][part] = s.mul_add(weight, value, acc[h][0][part]);
                    }
                }
            }
            j += 1;
        }
    }
    for h in 0..H {
        for c in 0..C {
            let mut lanes = [0.0; 16];
            for part in 0..16 / S::LANES {
                s.store_lanes(&mut lanes, part * S::LANES, acc[h][c][part]);
            }
            let columns = sums[h * d + column..][..width].iter_mut().skip(16 * c);
            for (sum, lane) in columns.zip(lanes) {
                *sum += lane;
            }
        }
    }
}
