//! The gradients of one key/value head, in tiles of queries.
//!
//! Positions lie across the lanes: keys and values are transposed once, so that products with heads of few elements fill whole
//! vectors. A tile of queries is multiplied with one line of positions after another; the elements of a line are contiguous in
//! memory.

use std::ops::Range;

use trike_core::AttentionSpec;
use trike_host::Loop;

use crate::grad::lanes::{dot, largest};
use crate::kernels::{FloatLanes, View};
use crate::math::exp;

/// Queries of a tile.
const QUERIES: usize = 8;
/// Queries and elements whose sums stay in registers for the gradient of the queries.
const SIDE: usize = 4;
/// Positions per line.
const LINE: usize = 16;

/// One line of positions, for one element of a head or for one query.
type Line = [f32; LINE];

/// A key/value head of one sequence and the query heads that share it. Computes the gradients of these queries, and of the keys and
/// values.
pub(super) struct Head<'a, S> {
    pub(super) simd: S,
    pub(super) spec: &'a AttentionSpec,
    pub(super) head: usize,
    /// All heads of the sequence.
    pub(super) queries: &'a [f32],
    pub(super) keys: View<'a>,
    pub(super) values: View<'a>,
    /// All heads of the sequence.
    pub(super) dy: &'a [f32],
}

/// Bytes of temporary memory for a key/value head of a sequence: keys, values and both gradients as lines, and the tile.
pub(super) fn head_bytes(dim: usize, tokens: usize) -> u64 {
    let (padded, lines) = (dim.next_multiple_of(SIDE) as u64, tokens.div_ceil(LINE) as u64);
    let (line, query) = (size_of::<Line>() as u64, size_of::<[f32; QUERIES]>() as u64);
    (4 * padded + 2 * QUERIES as u64) * lines * line + 2 * padded * query
}

impl<S: FloatLanes> Loop for Head<'_, S> {
    type Output = [Vec<f32>; 3];

    #[inline(always)]
    fn run(self) -> [Vec<f32>; 3] {
        let Self { simd, spec, head, queries, keys, values, dy } = self;
        let (tokens, dim) = (keys.rows, spec.head_dim);
        let (shared, width) = (spec.heads / spec.kv_heads, spec.heads * spec.head_dim);
        let lines = tokens.div_ceil(LINE);
        let padded = dim.next_multiple_of(SIDE);
        let [keys, values] = [keys, values].map(|x| transposed(x, padded, lines));
        let [mut dk, mut dv] = [(); 2].map(|()| vec![[0.0; LINE]; padded * lines]);
        let mut dq = vec![0.0; tokens * shared * dim];
        // Per query: scores and weights, and the gradients of both.
        let [mut weights, mut d_scores] = [(); 2].map(|()| vec![[0.0; LINE]; QUERIES * lines]);
        let [mut query, mut d_out] = [(); 2].map(|()| vec![[0.0; QUERIES]; padded]);
        for at in (0..shared).map(|at| (head * shared + at) * dim) {
            for first in (0..tokens).step_by(QUERIES) {
                let count = QUERIES.min(tokens - first);
                for (from, to) in [(queries, &mut query), (dy, &mut d_out)] {
                    gather(&from[first * width..], width, at, count, &mut to[..dim]);
                }
                let seen = spec.span(first).start / LINE..(first + count).div_ceil(LINE);
                // Two lines at a time if their sums fit the registers.
                let paired = if S::LANES == LINE { seen.len() / 2 * 2 } else { 0 };
                for line in seen.clone().take(paired).step_by(2) {
                    scores::<S, 2>(simd, &query, &keys, lines, line, &mut weights);
                    scores::<S, 2>(simd, &d_out, &values, lines, line, &mut d_scores);
                }
                for line in seen.clone().skip(paired) {
                    scores::<S, 1>(simd, &query, &keys, lines, line, &mut weights);
                    scores::<S, 1>(simd, &d_out, &values, lines, line, &mut d_scores);
                }
                let rows = weights.chunks_exact_mut(lines).zip(d_scores.chunks_exact_mut(lines));
                for (row, (weights, d_scores)) in rows.enumerate() {
                    // Padding rows see nothing.
                    let visible = if row < count { spec.span(first + row) } else { 0..0 };
                    let start = seen.start * LINE;
                    let visible = visible.start.max(start) - start..visible.end.max(start) - start;
                    let [weights, d_scores] = [weights, d_scores].map(|x| x[seen.clone()].as_flattened_mut());
                    soften(weights, d_scores, visible, spec.scale);
                }
                for line in seen.clone().take(paired).step_by(2) {
                    add_outer::<S, 2>(simd, &d_out, &weights, lines, line, &mut dv);
                    add_outer::<S, 2>(simd, &query, &d_scores, lines, line, &mut dk);
                }
                for line in seen.clone().skip(paired) {
                    add_outer::<S, 1>(simd, &d_out, &weights, lines, line, &mut dv);
                    add_outer::<S, 1>(simd, &query, &d_scores, lines, line, &mut dk);
                }
                let rows = dq[first * shared * dim..].chunks_exact_mut(shared * dim).take(count);
                let mut rows: Vec<&mut [f32]> =
                    rows.map(|row| &mut row[at - head * shared * dim..][..dim]).collect();
                let side = rows.chunks_mut(SIDE).zip(d_scores.chunks_exact(SIDE * lines));
                for (rows, d_scores) in side {
                    for element in (0..dim).step_by(SIDE) {
                        let keys = &keys[element..];
                        let sums = products(simd, d_scores, keys, padded, lines, seen.clone());
                        for (row, sums) in rows.iter_mut().zip(sums) {
                            row[element..].iter_mut().zip(sums).for_each(|(to, sum)| *to = sum);
                        }
                    }
                }
            }
        }
        [dq, restored(&dk, tokens, dim), restored(&dv, tokens, dim)]
    }
}

/// Transposes a matrix to lines: for each [`LINE`] rows, `elements` lines, zero-padded.
fn transposed(x: View<'_>, elements: usize, lines: usize) -> Vec<Line> {
    let mut to = vec![[0.0; LINE]; elements * lines];
    for row in 0..x.rows {
        let from = &x.values[row * x.stride..][..x.cols];
        for (to, from) in to[row / LINE * elements..].iter_mut().zip(from) {
            to[row % LINE] = *from;
        }
    }
    to
}

/// Transposes lines back to rows of `elements`.
fn restored(x: &[Line], rows: usize, elements: usize) -> Vec<f32> {
    let padded = elements.next_multiple_of(SIDE);
    let mut to = vec![0.0; rows * elements];
    for (row, to) in to.chunks_exact_mut(elements).enumerate() {
        for (to, from) in to.iter_mut().zip(&x[row / LINE * padded..]) {
            *to = from[row % LINE];
        }
    }
    to
}

/// Transposes `count` rows of one head, element by element; further queries are zero.
#[inline(always)]
fn gather(rows: &[f32], width: usize, at: usize, count: usize, to: &mut [[f32; QUERIES]]) {
    for row in 0..QUERIES {
        if row < count {
            let from = &rows[row * width + at..][..to.len()];
            to.iter_mut().zip(from).for_each(|(to, from)| to[row] = *from);
        } else {
            to.iter_mut().for_each(|to| to[row] = 0.0);
        }
    }
}

/// The products of all queries of a tile with `V` lines of positions from `line` on.
#[inline(always)]
fn scores<S: FloatLanes, const V: usize>(
    simd: S,
    queries: &[[f32; QUERIES]],
    columns: &[Line],
    lines: usize,
    line: usize,
    out: &mut [Line],
) {
    let elements = queries.len();
    let mut of_lines = [columns; V];
    for v in 0..V {
        of_lines[v] = &columns[(line + v) * elements..][..elements];
    }
    for at in (0..LINE).step_by(S::LANES) {
        let mut sums = [[simd.splat_lanes(0.0); V]; QUERIES];
        for (element, query) in queries.iter().enumerate() {
            let mut x = [simd.splat_lanes(0.0); V];
            for v in 0..V {
                x[v] = simd.load_lanes(&of_lines[v][element], at);
            }
            for row in 0..QUERIES {
                let q = simd.splat_lanes(query[row]);
                for v in 0..V {
                    sums[row][v] = simd.mul_add(q, x[v], sums[row][v]);
                }
            }
        }
        for row in 0..QUERIES {
            for v in 0..V {
                simd.store_lanes(&mut out[row * lines + line + v], at, sums[row][v]);
            }
        }
    }
}

/// Adds to each element of `V` lines of positions, from `line` on, its products with the weights of all queries of a tile.
#[inline(always)]
fn add_outer<S: FloatLanes, const V: usize>(
    simd: S,
    queries: &[[f32; QUERIES]],
    weights: &[Line],
    lines: usize,
    line: usize,
    out: &mut [Line],
) {
    let elements = queries.len();
    for at in (0..LINE).step_by(S::LANES) {
        let mut x = [[simd.splat_lanes(0.0); V]; QUERIES];
        for row in 0..QUERIES {
            for v in 0..V {
                x[row][v] = simd.load_lanes(&weights[row * lines + line + v], at);
            }
        }
        let out = &mut out[line * elements..][..V * elements];
        for (element, query) in queries.iter().enumerate() {
            let mut sums = [simd.splat_lanes(0.0); V];
            for v in 0..V {
                sums[v] = simd.load_lanes(&out[v * elements + element], at);
            }
            for row in 0..QUERIES {
                let q = simd.splat_lanes(query[row]);
                for v in 0..V {
                    sums[v] = simd.mul_add(q, x[row][v], sums[v]);
                }
            }
            for v in 0..V {
                simd.store_lanes(&mut out[v * elements + element], at, sums[v]);
            }
        }
    }
}

/// The products of [`SIDE`] queries with the first [`SIDE`] of `elements` elements, summed over some lines.
#[inline(always)]
fn products<S: FloatLanes>(
    simd: S,
    weights: &[Line],
    columns: &[Line],
    elements: usize,
    lines: usize,
    seen: Range<usize>,
) -> [[f32; SIDE]; SIDE] {
    let mut sums = [[simd.splat_lanes(0.0); SIDE]; SIDE];
    for line in seen {
        let columns = &columns[line * elements..][..SIDE];
        for at in (0..LINE).step_by(S::LANES) {
            for row in 0..SIDE {
                let weight = simd.load_lanes(&weights[row * lines + line], at);
                for element in 0..SIDE {
                    let x = simd.load_lanes(&columns[element], at);
                    sums[row][element] = simd.mul_add(weight, x, sums[row][element]);
                }
            }
        }
    }
    let mut out = [[0.0; SIDE]; SIDE];
    for row in 0..SIDE {
        out[row] = simd.fold_lanes(sums[row]);
    }
    out
}

/// The softmax of a query and its gradient: scores become weights, and the gradients of the weights become those of the unscaled
/// scores. Both are zero for masked positions.
#[inline(always)]
fn soften(weights: &mut [f32], d_scores: &mut [f32], visible: Range<usize>, scale: f32) {
    for x in [&mut *weights, &mut *d_scores] {
        x[..visible.start].fill(0.0);
        x[visible.end..].fill(0.0);
    }
    let (p, ds) = (&mut weights[visible.clone()], &mut d_scores[visible]);
    p.iter_mut().for_each(|p| *p *= scale);
    let top = largest(p);
    let mut lanes = [0f32; 16];
    let (chunks, tail) = p.as_chunks_mut::<16>();
    for chunk in chunks {
        for (lane, p) in lanes.iter_mut().zip(chunk) {
            *p = exp(*p - top);
            *lane += *p;
        }
    }
    let mut sum = 0.0;
    for p in tail {
        *p = exp(*p - top);
        sum += *p;
    }
    let factor = 1.0 / lanes.iter().fold(sum, |sum, lane| sum + lane);
    p.iter_mut().for_each(|p| *p *= factor);
    let mean = dot(p, ds);
    for (ds, p) in ds.iter_mut().zip(p.iter()) {
        *ds = p * (*ds - mean) * scale;
    }
}
