//! Decode attention, for few query rows: keys and values are read once per group of heads.

mod ahead;
mod codes;
mod floats;

use std::ops::Range;

use bytemuck::cast_slice;

use super::cached::Cached;
use super::{Job, Ring, Runs, share_out};
use crate::kernels::{Kernels as _, fold, with_float_kernels, with_shared_kernels};
use crate::math::exp;
use crate::simd::Simd as _;
use trike_host::Isa;
use trike_host::Loop;
use trike_host::Pool;

/// Positions per partial sum. Longer spans are split at these boundaries for any number of threads, and the parts are
/// merged in order.
pub(super) const CHUNK: usize = 256;

/// Stored keys and values with the two products of decode attention. Both load each byte from memory once for all heads of a group.
pub(super) trait Products: Cached {
    /// Queries in the format of the product with keys.
    type Queries<'a>: Sync;
    /// Memory of a thread.
    type Room: Default;

    /// Prepares the queries of a job.
    fn queries<'a>(job: &Job<'a>) -> Self::Queries<'a>;

    /// `scores[h][j] = q[query + h] . keys[j]`, with `[share][CHUNK]` scores.
    fn score(isa: Isa, q: &Self::Queries<'_>, query: usize, keys: Reading<'_, Self>, scores: &mut [f32]);

    /// `sums[h] = sum_j weights[h][j] * values[j]`, with `[share][CHUNK]` weights.
    fn add(isa: Isa, weights: &[f32], values: Reading<'_, Self>, sums: &mut [f32], room: &mut Self::Room);
}

/// The keys or values of a head at the positions of a cell.
#[derive(Clone, Copy)]
pub(super) struct Reading<'a, E> {
    /// Run by run of consecutive slots.
    rows: Runs<'a, E>,
    /// Their scales if they are codes.
    scales: Runs<'a, f32>,
    /// The bytes read after them, for prefetching.
    after: &'a [u8],
    head_dim: usize,
}

impl<'a, E: Cached> Reading<'a, E> {
    /// Each run with its scales and the bytes read after it.
    fn runs(self) -> impl Iterator<Item = (&'a [E], &'a [f32], &'a [u8])> {
        let Self { rows, scales, after, .. } = self;
        let count = rows.iter().take_while(|rows| !rows.is_empty()).count();
        (0..count).map(move |run| {
            let next = if run + 1 < count { cast_slice(rows[run + 1]) } else { after };
            (rows[run], scales[run], next)
        })
    }
}

/// The heads of a group over a range of positions.
struct Cell<'o> {
    token: usize,
    kv_head: usize,
    positions: Range<usize>,
    /// Per head, the sum of the values weighted by `exp(score - largest)`.
    sums: &'o mut [f32],
    facts: &'o mut [Facts],
}

/// Softmax statistics of a cell, for merging the cells of a head.
#[derive(Clone, Copy, Default)]
struct Facts {
    /// The largest score.
    largest: f32,
    /// The sum of the exponentials.
    total: f32,
}

pub(super) fn run<K: Products, V: Products>(
    job: &Job<'_>,
    isa: Isa,
    pool: &Pool,
    k: Ring<'_, K>,
    v: Ring<'_, V>,
    out: &mut [f32],
) {
    let (share, d) = (job.share(), job.problem.head_dim);
    let mut places = Vec::new();
    for token in 0..job.tokens {
        let span = job.span(token);
        for kv_head in 0..job.problem.kv_heads {
            for start in span.clone().step_by(CHUNK) {
                places.push((token, kv_head, start..(start + CHUNK).min(span.end)));
            }
        }
    }
    let mut sums = vec![0.0; places.len() * share * d];
    let mut facts = vec![Facts::default(); places.len() * share];
    let cells: Vec<_> = places
        .iter()
        .zip(sums.chunks_exact_mut(share * d))
        .zip(facts.chunks_exact_mut(share))
        .map(|(((token, kv_head, positions), sums), facts)| Cell {
            token: *token,
            kv_head: *kv_head,
            positions: positions.clone(),
            sums,
            facts,
        })
        .collect();
    let seen = cells.iter().map(|cell| cell.positions.len()).sum::<usize>().saturating_mul(share);
    let shares = share_out(cells, |cell| cell.positions.len(), job.parts(pool, seen));
    let queries = K::queries(job);
    pool.run(shares, |cells| {
        let (mut scores, mut room) = (vec![0.0; share * CHUNK], V::Room::default());
        for cell in cells {
            attend(job, isa, &queries, (k, v), cell, &mut scores, &mut room);
        }
    });
    // The cells of a group are consecutive, and the groups are in the order of the output.
    let (mut sums, mut facts) = (sums.chunks_exact(share * d), facts.chunks_exact(share));
    let mut cells = places.iter();
    for out in out.chunks_exact_mut(share * d) {
        let Some((token, ..)) = cells.next() else { break };
        let n = job.span(*token).len().div_ceil(CHUNK);
        if n > 1 {
            cells.nth(n - 2);
        }
        let group: Vec<_> = sums.by_ref().zip(facts.by_ref()).take(n).collect();
        for (head, out) in out.chunks_exact_mut(d).enumerate() {
            join(&group, head, out);
        }
    }
}

/// One head's output from the cells of its group.
fn join(cells: &[(&[f32], &[Facts])], head: usize, out: &mut [f32]) {
    let largest = cells.iter().fold(f32::NEG_INFINITY, |m, (_, facts)| m.max(facts[head].largest));
    let mut total = 0.0;
    out.fill(0.0);
    for (sums, facts) in cells {
        let weight = exp(facts[head].largest - largest);
        total += weight * facts[head].total;
        let sums = &sums[head * out.len()..];
        for (out, sum) in out.iter_mut().zip(sums) {
            *out += weight * sum;
        }
    }
    out.iter_mut().for_each(|v| *v /= total);
}

/// Computes one cell.
fn attend<K: Products, V: Products>(
    job: &Job<'_>,
    isa: Isa,
    queries: &K::Queries<'_>,
    (k, v): (Ring<'_, K>, Ring<'_, V>),
    cell: Cell<'_>,
    scores: &mut [f32],
    room: &mut V::Room,
) {
    let (head_dim, n) = (job.problem.head_dim, cell.positions.len());
    let values = job.runs(v, cell.kv_head, &cell.positions);
    // The next cell of the thread usually has the next positions of the same head.
    let next = cell.positions.end..cell.positions.end + 1;
    let next_keys = cast_slice(job.runs(k, cell.kv_head, &next)[0]);
    let keys = Reading {
        rows: job.runs(k, cell.kv_head, &cell.positions),
        scales: job.scales(k, cell.kv_head, &cell.positions),
        after: cast_slice(values[0]),
        head_dim,
    };
    let scales = job.scales(v, cell.kv_head, &cell.positions);
    let values = Reading { rows: values, scales, after: next_keys, head_dim };
    // Needed after the keys, and too short for the hardware prefetchers.
    with_shared_kernels!(isa, s => for scales in keys.scales.into_iter().chain(scales) {
        scales.chunks(16).for_each(|line| s.prefetch(&line[0], 0));
    });
    let query = cell.token * job.problem.heads + cell.kv_head * job.share();
    K::score(isa, queries, query, keys, scores);
    for (scores, facts) in scores.chunks_exact_mut(CHUNK).zip(cell.facts) {
        let softmax = Softmax { scores: &mut scores[..n], scale: job.problem.scale };
        *facts = with_float_kernels!(isa, s => s.run(softmax));
    }
    V::add(isa, scores, values, cell.sums, room);
}

/// Replaces each score by `exp(score - largest)`.
struct Softmax<'a> {
    scores: &'a mut [f32],
    scale: f32,
}

impl Loop for Softmax<'_> {
    type Output = Facts;

    #[inline(always)]
    fn run(self) -> Facts {
        // Whole chunks first: their length is constant, so that the loops over the lanes are vectorized.
        let (chunks, tail) = self.scores.as_chunks_mut::<16>();
        let mut lanes = [f32::NEG_INFINITY; 16];
        for scores in chunks.iter_mut() {
            scale_scores(scores, self.scale, &mut lanes);
        }
        scale_scores(tail, self.scale, &mut lanes);
        let largest = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
        // If every score is minus infinity, the exponentials are zero: other cells may have finite scores.
        let from = if largest == f32::NEG_INFINITY { 0.0 } else { largest };
        let mut sums = [0.0; 16];
        for scores in chunks.iter_mut() {
            soften(scores, from, &mut sums);
        }
        soften(tail, from, &mut sums);
        Facts { largest, total: fold(sums) }
    }
}

/// Scales up to 16 scores, and updates the largest of each lane.
#[inline(always)]
fn scale_scores(scores: &mut [f32], scale: f32, lanes: &mut [f32; 16]) {
    for (score, largest) in scores.iter_mut().zip(lanes) {
        *score *= scale;
        *largest = if *score > *largest { *score } else { *largest };
    }
}

/// Replaces up to 16 scores by exponentials, and adds these to the sum of each lane.
#[inline(always)]
fn soften(scores: &mut [f32], from: f32, sums: &mut [f32; 16]) {
    for (score, sum) in scores.iter_mut().zip(sums) {
        *score = exp(*score - from);
        *sum += *score;
    }
}
