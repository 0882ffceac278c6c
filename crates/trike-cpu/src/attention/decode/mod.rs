//! Decode attention, for few query rows: keys and values are read once per group of heads.

mod products;

use std::ops::Range;

use bytemuck::cast_slice;

use super::cached::Cached;
use super::lanes::Lanes;
use super::{Job, Ring, share_out};
use crate::kernels::{Element as _, fold, with_float_kernels};
use crate::math::exp;
use trike_host::Isa;
use trike_host::Loop;
use trike_host::Pool;

use products::{AddRows, ScoreRows};

/// Positions per partial sum. Longer spans are split at these boundaries for any number of threads, and the parts are
/// merged in order.
const CHUNK: usize = 256;

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

pub(super) fn run<K: Cached, V: Cached>(
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
    pool.run(shares, |cells| {
        let mut room = Room { scores: vec![0.0; share * CHUNK], codes: Vec::new() };
        for cell in cells {
            with_float_kernels!(isa, s => attend(job, s, k, v, cell, &mut room));
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

/// Memory of a thread.
struct Room {
    /// `[share][CHUNK]`
    scores: Vec<f32>,
    /// Unpacked codes.
    codes: Vec<i8>,
}

/// Computes one cell.
fn attend<S: Lanes, K: Cached, V: Cached>(
    job: &Job<'_>,
    s: S,
    k: Ring<'_, K>,
    v: Ring<'_, V>,
    cell: Cell<'_>,
    Room { scores, codes: room }: &mut Room,
) {
    let (share, d) = (job.share(), job.problem.head_dim);
    let q = &job.q[(cell.token * job.problem.heads + cell.kv_head * share) * d..][..share * d];
    let [keys, more_keys] = job.runs(k, cell.kv_head, &cell.positions);
    let [values, more_values] = job.runs(v, cell.kv_head, &cell.positions);
    let (wrap, n) = (keys.len() / K::width(d), cell.positions.len());
    // The next cell of the thread usually has the next positions of the same head.
    let next = cell.positions.end..cell.positions.end + 1;
    let next_keys: &[u8] = cast_slice(job.runs(k, cell.kv_head, &next)[0]);
    let after_keys: &[u8] = if more_keys.is_empty() { cast_slice(values) } else { cast_slice(more_keys) };
    let k_scales = job.scales(k, cell.kv_head, &cell.positions);
    let v_scales = job.scales(v, cell.kv_head, &cell.positions);
    if K::Element::CODES {
        // Needed after the keys, and too few lines for the hardware to fetch them ahead.
        for scales in [k_scales, v_scales] {
            scales.into_iter().flat_map(|scales| scales.chunks(16)).for_each(|line| s.prefetch(&line[0], 0));
        }
    }
    s.run(ScoreRows { s, q, rows: keys, next: after_keys, scores, first: 0, share, room });
    let next = cast_slice(values);
    s.run(ScoreRows { s, q, rows: more_keys, next, scores, first: wrap, share, room });
    if K::Element::CODES {
        s.run(Rescale { scores, scales: k_scales });
    }
    for (scores, facts) in scores.chunks_exact_mut(CHUNK).zip(cell.facts) {
        *facts = s.run(Softmax { scores: &mut scores[..n], scale: job.problem.scale });
    }
    if V::Element::CODES {
        s.run(Rescale { scores, scales: v_scales });
    }
    let sums = cell.sums;
    sums.fill(0.0);
    let weights = &*scores;
    let next = if more_values.is_empty() { next_keys } else { cast_slice(more_values) };
    s.run(AddRows { s, weights, first: 0, rows: values, next, sums, share, room });
    s.run(AddRows { s, weights, first: wrap, rows: more_values, next: next_keys, sums, share, room });
}

/// Multiplies the scores or weights of every head with the scales of their positions.
struct Rescale<'a> {
    scores: &'a mut [f32],
    scales: [&'a [f32]; 2],
}

impl Loop for Rescale<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for scores in self.scores.chunks_exact_mut(CHUNK) {
            let (low, high) = scores.split_at_mut(self.scales[0].len());
            for (score, scale) in low.iter_mut().zip(self.scales[0]) {
                *score *= scale;
            }
            for (score, scale) in high.iter_mut().zip(self.scales[1]) {
                *score *= scale;
            }
        }
    }
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
        // Whole chunks first: their length is known, so that the loops over the lanes become vectors.
        let (chunks, tail) = self.scores.as_chunks_mut::<16>();
        let mut lanes = [f32::NEG_INFINITY; 16];
        for scores in chunks.iter_mut() {
            scale_scores(scores, self.scale, &mut lanes);
        }
        scale_scores(tail, self.scale, &mut lanes);
        let largest = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
        // If every score is minus infinity, the exponentials are zero: other cells may have larger scores.
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
