//! Prefill attention: blocks of query rows against blocks of keys.
//!
//! The rows of a group of heads (tokens times heads that share their keys) lie across the lanes. A panel has up to 48 rows: scores
//! are `keys x rows`, outputs `columns x rows`, and both products multiply eight scalars of the keys or values by three vectors of
//! rows at a time. The running maximum and sums of a row stay in its lane, so nothing is reduced across lanes. Keys and values are
//! converted once for all panels of an item.
//!
//! Two implementations: [`floats`] for caches in f32, and [`ints`] for caches of one or two bytes per element, whose
//! products are exact sums of 16-bit integers at twice the speed.

mod blocks;
mod floats;
mod ints;
mod product;
mod sampled;
mod shares;

use std::ops::Range;

use super::lanes::Lanes;
use super::{Job, share_out};
use crate::kernels::{Kernels as _, with_float_kernels};
use crate::line::FloatLine;
use trike_host::CacheLine;
use trike_host::Isa;
use trike_host::Loop;
use trike_host::Pool;

pub(super) use floats::run as floats;
pub(super) use ints::{Stored, query_factor, round_query, run as ints};
pub(crate) use sampled::{choose as choose_blocks, received as attention_received};

/// Positions per block. Blocks start at multiples of it, so the sums of a row do not depend on the other rows.
const KEYS: usize = 64;
/// Scalars multiplied with the vectors of a panel at a time.
const SCALARS: usize = 8;
/// Maximum rows per panel.
const ROWS: usize = 48;

/// A range of tokens and the heads that share one key/value head.
struct Item<'o> {
    kv_head: usize,
    tokens: Range<usize>,
    /// One head of the output per row, token by token.
    out: Vec<&'o mut [f32]>,
}

/// Divides the work into items, and the items into one share per thread.
fn items<'o>(job: &Job<'_>, pool: &Pool, out: &'o mut [f32]) -> Vec<Vec<Item<'o>>> {
    let (share, d, kv_heads) = (job.share(), job.problem.head_dim, job.problem.kv_heads);
    let seen = (0..job.tokens).map(|t| job.span(t).len().saturating_mul(job.problem.heads));
    let parts = job.parts(pool, seen.fold(0, usize::saturating_add));
    // The panels of an item share the conversion, but every thread needs several items.
    let block = |panels: usize| (panels * ROWS / share).max(1);
    let enough = |panels: &usize| kv_heads * job.tokens.div_ceil(block(*panels)) >= 4 * parts;
    let block = block([8, 4, 2].into_iter().find(enough).unwrap_or(1));
    let (mut items, mut rows) = (Vec::new(), out.chunks_exact_mut(d));
    let mut start = 0;
    while start < job.tokens {
        let mut end = (start + block).min(job.tokens);
        if job.mask.is_some() {
            // The tokens of an item have the same mask bits.
            let position = job.first_position + start;
            end = end.min(start + KEYS - position % KEYS);
        }
        let first = items.len();
        let tokens = start..end;
        items.extend((0..kv_heads).map(|kv_head| Item { kv_head, tokens: tokens.clone(), out: Vec::new() }));
        for (row, out) in rows.by_ref().take(tokens.len() * job.problem.heads).enumerate() {
            items[first + row % job.problem.heads / share].out.push(out);
        }
        start = end;
    }
    let cost =
        |item: &Item<'_>| item.tokens.clone().map(|t| job.span(t).len()).fold(0, usize::saturating_add);
    share_out(items, cost, parts)
}

/// One value per row, for `16 V` rows.
type Row<const V: usize> = [FloatLine; V];

fn row_of<const V: usize>(value: f32) -> Row<V> {
    [CacheLine([value; 16]); V]
}

/// Running state of a panel over the blocks.
struct Panel<const V: usize> {
    /// `[head_dim][V]` queries.
    q: Vec<FloatLine>,
    /// `[head_dim][V]`, padded to whole groups of scalars: values weighted by the exponentials so far.
    out: Vec<FloatLine>,
    /// The largest score so far.
    largest: Row<V>,
    /// The sum of the exponentials so far.
    total: Row<V>,
    /// The visible range of each row: first position, and one past the last.
    seen: [(usize, usize); ROWS],
    /// Positions visible to at least one row.
    any: Range<usize>,
    /// Positions visible to every row.
    all: Range<usize>,
}

/// The panels of an item.
fn panels<const V: usize>(job: &Job<'_>, isa: Isa, item: &Item<'_>) -> Vec<Panel<V>> {
    let share = job.share();
    let row_at = |at: usize| (item.tokens.start + at / share, item.kv_head * share + at % share);
    let first = (0..item.out.len()).step_by(16 * V);
    let rows = |first: usize| (item.out.len() - first).min(16 * V);
    first.map(|first| panel(job, isa, rows(first), &|row| row_at(first + row))).collect()
}

/// The positions that an item attends to, block by block: the start of each block and the visible positions in it.
fn blocks_of(job: &Job<'_>, item: &Item<'_>) -> impl Iterator<Item = (usize, Range<usize>)> {
    let span = job.span(item.tokens.start).start..job.span(item.tokens.end - 1).end;
    let (mask, query_block) = (job.mask, (job.first_position + item.tokens.start) / KEYS);
    let head = mask.map_or(0, |mask| if mask.heads() == 1 { 0 } else { item.kv_head });
    let starts = (span.start / KEYS * KEYS..span.end).step_by(KEYS);
    let starts =
        starts.filter(move |start| mask.is_none_or(|mask| mask.contains(head, query_block, start / KEYS)));
    starts.map(move |start| (start, span.start.max(start)..span.end.min(start + KEYS)))
}

/// Number of 16-row vectors in the panels of `rows` rows.
fn vectors(rows: usize) -> usize {
    match rows {
        0..=16 => 1,
        // Three keep the multipliers busiest, unless more lanes stay empty.
        _ if rows.next_multiple_of(32) < rows.next_multiple_of(48) => 2,
        _ => 3,
    }
}

/// Creates a panel of the queries and visible ranges of some rows, each a token and a head, in token order.
fn panel<const V: usize>(
    job: &Job<'_>,
    isa: Isa,
    rows: usize,
    row_at: &dyn Fn(usize) -> (usize, usize),
) -> Panel<V> {
    let d = job.problem.head_dim;
    let mut from: [&[f32]; ROWS] = [&[]; ROWS];
    let mut seen = [(0, 0); ROWS];
    for row in 0..16 * V {
        // Unused lanes repeat the last row; their results are discarded.
        let (token, head) = row_at(row.min(rows - 1));
        let span = job.span(token);
        seen[row] = (span.start, span.end);
        from[row] = &job.q[(token * job.problem.heads + head) * d..][..d];
    }
    let mut q = bytemuck::zeroed_vec(d * V);
    let (from, to) = (&from, q.as_chunks_mut::<V>().0);
    with_float_kernels!(isa, s => s.run(Gather { s, from, q: to }));
    // Both ends increase with the token.
    let (low, high) = (seen[0], seen[16 * V - 1]);
    Panel {
        q,
        out: bytemuck::zeroed_vec(d.next_multiple_of(SCALARS) * V),
        largest: row_of(f32::NEG_INFINITY),
        total: row_of(0.0),
        seen,
        any: low.0..high.1,
        all: high.0..low.1,
    }
}

/// Copies by vectors: the compiler would turn short copies of two possible lengths into a call.
#[inline(always)]
fn copy<S: Lanes>(s: S, from: &[f32; 16], to: &mut [f32; 16]) {
    for part in 0..16 / S::LANES {
        s.store_lanes(to, part * S::LANES, s.load_lanes(from, part * S::LANES));
    }
}

/// Normalizes and writes the rows of a panel.
fn finish<const V: usize>(isa: Isa, panel: &Panel<V>, out: &mut [&mut [f32]]) {
    with_float_kernels!(isa, s => s.run(Finish { s, panel, out }));
}

/// Transposes rows into lanes.
struct Gather<'a, 'q, S, const V: usize> {
    s: S,
    from: &'a [&'q [f32]; ROWS],
    q: &'a mut [Row<V>],
}

impl<S: Lanes, const V: usize> Loop for Gather<'_, '_, S, V> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (i, q) in self.q.chunks_mut(16).enumerate() {
            for v in 0..V {
                let mut square = [[0.0; 16]; 16];
                for l in 0..16 {
                    let from = &self.from[16 * v + l][16 * i..];
                    match from.first_chunk::<16>() {
                        Some(whole) => copy(self.s, whole, &mut square[l]),
                        None => square[l][..from.len()].copy_from_slice(from),
                    }
                }
                self.s.transpose(&mut square);
                for (q, row) in q.iter_mut().zip(&square) {
                    q[v].0 = *row;
                }
            }
        }
    }
}

/// The part of a block that is visible to any row of a panel, widened to whole groups of scalars, and whether some of it is
/// invisible to a row; `None` if no row sees any.
#[inline(always)]
fn seen_part<const V: usize>(panel: &Panel<V>, start: usize) -> Option<(Range<usize>, bool)> {
    let low = panel.any.start.max(start) - start;
    let high = panel.any.end.min(start + KEYS).saturating_sub(start);
    if low >= high {
        return None;
    }
    let (low, high) = (low / SCALARS * SCALARS, high.next_multiple_of(SCALARS));
    Some((low..high, start + low < panel.all.start || start + high > panel.all.end))
}

/// Sets the scores of invisible positions to minus infinity.
#[inline(always)]
fn mask<const V: usize>(seen: &[(usize, usize); ROWS], start: usize, scores: &mut [Row<V>]) {
    // Relative to `start` the ends fit an i32: they are clamped to the length of a block.
    let (mut low, mut high) = ([[0i32; 16]; V], [[0i32; 16]; V]);
    for row in 0..16 * V {
        low[row / 16][row % 16] = seen[row].0.saturating_sub(start).min(KEYS) as i32;
        high[row / 16][row % 16] = seen[row].1.saturating_sub(start).min(KEYS) as i32;
    }
    for (position, scores) in (0i32..).zip(scores) {
        for v in 0..V {
            for l in 0..16 {
                let visible = position >= low[v][l] && position < high[v][l];
                scores[v].0[l] = if visible { scores[v].0[l] } else { f32::NEG_INFINITY };
            }
        }
    }
}

/// [`finish`] in one loop.
struct Finish<'a, 'o, S, const V: usize> {
    s: S,
    panel: &'a Panel<V>,
    out: &'a mut [&'o mut [f32]],
}

impl<S: Lanes, const V: usize> Loop for Finish<'_, '_, S, V> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let s = self.s;
        let mut shares = row_of::<V>(0.0);
        for v in 0..V {
            for l in 0..16 {
                shares[v].0[l] = 1.0 / self.panel.total[v].0[l];
            }
        }
        for (i, columns) in self.panel.out.as_chunks::<V>().0.chunks(16).enumerate() {
            for (v, out) in self.out.chunks_mut(16).enumerate() {
                let mut square = [[0.0; 16]; 16];
                for (row, column) in square.iter_mut().zip(columns) {
                    for part in 0..16 / S::LANES {
                        let at = part * S::LANES;
                        s.store_lanes(
                            row,
                            at,
                            s.mul_lanes(s.load_lanes(&column[v].0, at), s.load_lanes(&shares[v].0, at)),
                        );
                    }
                }
                s.transpose(&mut square);
                for (out, row) in out.iter_mut().zip(&square) {
                    let out = &mut out[16 * i..];
                    match out.first_chunk_mut::<16>() {
                        Some(whole) => copy(s, row, whole),
                        None => {
                            let n = out.len();
                            out.copy_from_slice(&row[..n]);
                        }
                    }
                }
            }
        }
    }
}
