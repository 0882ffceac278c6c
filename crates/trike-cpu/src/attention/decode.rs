//! Decode attention, for few query rows: keys and values are read once per group of heads.

use std::ops::Range;

use super::lanes::Lanes;
use super::{Job, share_out};
use crate::kernels::{Element, fold, with_float_kernels};
use crate::math::exp;
use trike_host::Isa;
use trike_host::Loop;
use trike_host::Pool;

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

pub(super) fn run<E: Element>(job: &Job<'_>, isa: Isa, pool: &Pool, k: &[E], v: &[E], out: &mut [f32]) {
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
        let mut scores = vec![0.0; share * CHUNK];
        for cell in cells {
            with_float_kernels!(isa, s => attend(job, s, k, v, cell, &mut scores));
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
fn attend<S: Lanes, E: Element>(job: &Job<'_>, s: S, k: &[E], v: &[E], cell: Cell<'_>, scores: &mut [f32]) {
    let (share, d) = (job.share(), job.problem.head_dim);
    let q = &job.q[(cell.token * job.problem.heads + cell.kv_head * share) * d..][..share * d];
    let [keys, more_keys] = job.runs(k, cell.kv_head, &cell.positions);
    let [values, more_values] = job.runs(v, cell.kv_head, &cell.positions);
    let (wrap, n) = (keys.len() / d, cell.positions.len());
    s.run(ScoreRows { s, q, rows: keys, scores, first: 0, share });
    s.run(ScoreRows { s, q, rows: more_keys, scores, first: wrap, share });
    for (scores, facts) in scores.chunks_exact_mut(CHUNK).zip(cell.facts) {
        *facts = s.run(Softmax { scores: &mut scores[..n], scale: job.problem.scale });
    }
    cell.sums.fill(0.0);
    s.run(AddRows { s, weights: scores, first: 0, rows: values, sums: cell.sums, share });
    s.run(AddRows { s, weights: scores, first: wrap, rows: more_values, sums: cell.sums, share });
}

/// Number of heads whose running sums fit the registers.
#[inline(always)]
fn heads_at_once<S: Lanes>(left: usize) -> usize {
    let most = if S::LANES == 16 { 4 } else { 2 };
    if left >= most { most } else { 1 }
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
        let mut lanes = [f32::NEG_INFINITY; 16];
        for scores in self.scores.chunks_mut(16) {
            for (score, largest) in scores.iter_mut().zip(&mut lanes) {
                *score *= self.scale;
                *largest = if *score > *largest { *score } else { *largest };
            }
        }
        let largest = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
        // If every score is minus infinity, the exponentials are zero: other cells may have larger scores.
        let from = if largest == f32::NEG_INFINITY { 0.0 } else { largest };
        let mut sums = [0.0; 16];
        for scores in self.scores.chunks_mut(16) {
            for (score, sum) in scores.iter_mut().zip(&mut sums) {
                *score = exp(*score - from);
                *sum += *score;
            }
        }
        Facts { largest, total: fold(sums) }
    }
}

/// `scores[h][first + j] = q[h] . rows[j]`
struct ScoreRows<'a, S, E> {
    s: S,
    q: &'a [f32],
    rows: &'a [E],
    scores: &'a mut [f32],
    first: usize,
    share: usize,
}

impl<S: Lanes, E: Element> Loop for ScoreRows<'_, S, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let d = self.q.len() / self.share;
        let mut head = 0;
        while head < self.share {
            let heads = heads_at_once::<S>(self.share - head);
            let (q, scores) = (&self.q[head * d..][..heads * d], &mut self.scores[head * CHUNK..]);
            match heads {
                4 => score_rows_of::<S, E, 4>(self.s, q, self.rows, scores, self.first),
                2 => score_rows_of::<S, E, 2>(self.s, q, self.rows, scores, self.first),
                _ => score_rows_of::<S, E, 1>(self.s, q, self.rows, scores, self.first),
            }
            head += heads;
        }
    }
}

#[inline(always)]
fn score_rows_of<S: Lanes, E: Element, const H: usize>(
    s: S,
    q: &[f32],
    rows: &[E],
    scores: &mut [f32],
    first: usize,
) {
    let d = q.len() / H;
    let mut at = first;
    let fours = rows.chunks_exact(4 * d);
    let rest = fours.remainder();
    for rows in fours {
        let dots = dots::<S, E, H>(s, q, [&rows[..d], &rows[d..2 * d], &rows[2 * d..3 * d], &rows[3 * d..]]);
        for h in 0..H {
            scores[h * CHUNK + at..][..4].copy_from_slice(&dots[h]);
        }
        at += 4;
    }
    for row in rest.chunks_exact(d) {
        // Reading the row four times is cheaper than a second loop.
        let dots = dots::<S, E, H>(s, q, [row; 4]);
        for h in 0..H {
            scores[h * CHUNK + at] = dots[h][0];
        }
        at += 1;
    }
}

/// Four rows times `H` queries.
#[inline(always)]
fn dots<S: Lanes, E: Element, const H: usize>(s: S, q: &[f32], rows: [&[E]; 4]) -> [[f32; 4]; H] {
    let d = rows[0].len();
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
    if !d.is_multiple_of(16) {
        for h in 0..H {
            let x = padded(&q[h * d..][16 * n..d]);
            for r in 0..4 {
                let row = padded(&rows[r][16 * n..]);
                for part in 0..16 / S::LANES {
                    let at = part * S::LANES;
                    acc[h][r] = s.mul_add(s.load_lanes(&row, at), s.load_lanes(&x, at), acc[h][r]);
                }
            }
        }
    }
    let mut out = [[0.0; 4]; H];
    for h in 0..H {
        out[h] = s.fold_lanes(acc[h]);
    }
    out
}

/// The elements after the last whole chunk, padded with zeros.
#[inline(always)]
fn padded<E: Element>(tail: &[E]) -> [E; 16] {
    let mut padded = [E::ZERO; 16];
    padded[..tail.len()].copy_from_slice(tail);
    padded
}

/// `sums[h] += sum_j weights[h][first + j] * rows[j]`
struct AddRows<'a, S, E> {
    s: S,
    weights: &'a [f32],
    first: usize,
    rows: &'a [E],
    sums: &'a mut [f32],
    share: usize,
}

impl<S: Lanes, E: Element> Loop for AddRows<'_, S, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let d = self.sums.len() / self.share;
        let mut head = 0;
        while head < self.share {
            let heads = heads_at_once::<S>(self.share - head);
            let (weights, sums) = (&self.weights[head * CHUNK..], &mut self.sums[head * d..][..heads * d]);
            match heads {
                4 => add_rows_of::<S, E, 4>(self.s, weights, self.first, self.rows, sums),
                2 => add_rows_of::<S, E, 2>(self.s, weights, self.first, self.rows, sums),
                _ => add_rows_of::<S, E, 1>(self.s, weights, self.first, self.rows, sums),
            }
            head += heads;
        }
    }
}

#[inline(always)]
fn add_rows_of<S: Lanes, E: Element, const H: usize>(
    s: S,
    weights: &[f32],
    first: usize,
    rows: &[E],
    sums: &mut [f32],
) {
    let d = sums.len() / H;
    // Columns whose sums stay in registers during the loop over the rows.
    let wide = if S::LANES == 16 { 64 } else { 32 };
    let mut column = 0;
    while column < d {
        if d - column >= wide {
            if S::LANES == 16 {
                add_columns::<S, E, H, 4>(s, weights, first, rows, sums, column);
            } else {
                add_columns::<S, E, H, 2>(s, weights, first, rows, sums, column);
            }
            column += wide;
        } else {
            add_columns::<S, E, H, 1>(s, weights, first, rows, sums, column);
            column += 16;
        }
    }
}

/// `C` blocks of 16 columns, or the tail of the last block.
#[inline(always)]
fn add_columns<S: Lanes, E: Element, const H: usize, const C: usize>(
    s: S,
    weights: &[f32],
    first: usize,
    rows: &[E],
    sums: &mut [f32],
    column: usize,
) {
    let d = sums.len() / H;
    let width = (d - column).min(16 * C);
    let n = rows.len() / d;
    let mut weight_rows: [&[f32]; H] = [&[]; H];
    for h in 0..H {
        weight_rows[h] = &weights[h * CHUNK + first..][..n];
    }
    // At most four vectors of 16 lanes, or four of 8, per head; `[4]` holds the parts of 16 columns.
    let mut acc = [[[s.splat_lanes(0.0); 4]; C]; H];
    for j in 0..n {
        let row = &rows[j * d + column..][..width];
        if width == 16 * C {
            let chunks = &row.as_chunks::<16>().0[..C];
            for c in 0..C {
                for part in 0..16 / S::LANES {
                    let value = s.load_lanes(&chunks[c], part * S::LANES);
                    for h in 0..H {
                        acc[h][c][part] = s.mul_add(s.splat_lanes(weight_rows[h][j]), value, acc[h][c][part]);
                    }
                }
            }
        } else {
            let chunk = padded(row);
            for part in 0..16 / S::LANES {
                let value = s.load_lanes(&chunk, part * S::LANES);
                for h in 0..H {
                    acc[h][0][part] = s.mul_add(s.splat_lanes(weight_rows[h][j]), value, acc[h][0][part]);
                }
            }
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
