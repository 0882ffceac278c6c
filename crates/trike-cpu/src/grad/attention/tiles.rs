//! The gradients of one key/value head, some queries at a time.
//!
//! Positions lie across the lanes: keys and values are transposed once, so that products with heads of few elements fill
//! whole vectors. A tile of queries is multiplied with one vector of positions after another.

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

/// Positions of one element of a head, or of one query.
type Line = [f32; LINE];

/// A key/value head of one sequence and the query heads that share it. Its result is the gradients of queries (of these
/// heads), keys and values.
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

impl<S: FloatLanes> Loop for Head<'_, S> {
    type Output = [Vec<f32>; 3];

    #[inline(always)]
    fn run(self) -> [Vec<f32>; 3] {
        let Self { simd, spec, head, queries, keys, values, dy } = self;
        let (tokens, dim) = (keys.rows, spec.head_dim);
        let (shared, width) = (spec.heads / spec.kv_heads, spec.heads * spec.head_dim);
        let lines = tokens.div_ceil(LINE);
        let [keys, values] = [keys, values].map(|x| transposed(x, dim.next_multiple_of(SIDE), lines));
        let [mut dk, mut dv] = [(); 2].map(|()| vec![[0.0; LINE]; dim * lines]);
        let mut dq = vec![0.0; tokens * shared * dim];
        // Of each query: scores and weights, and the gradients of both.
        let [mut weights, mut d_scores] = [(); 2].map(|()| vec![[0.0; LINE]; QUERIES * lines]);
        let [mut query, mut d_out] = [(); 2].map(|()| vec![[0.0; QUERIES]; dim]);
        for at in (0..shared).map(|at| (head * shared + at) * dim) {
            for first in (0..tokens).step_by(QUERIES) {
                let count = QUERIES.min(tokens - first);
                for (from, to) in [(queries, &mut query), (dy, &mut d_out)] {
                    gather(&from[first * width..], width, at, count, to);
                }
                let seen = spec.span(first).start / LINE..(first + count).div_ceil(LINE);
                for line in seen.clone() {
                    scores(simd, &query, &keys, lines, line, &mut weights);
                    scores(simd, &d_out, &values, lines, line, &mut d_scores);
                }
                let rows = weights.chunks_exact_mut(lines).zip(d_scores.chunks_exact_mut(lines));
                for (row, (weights, d_scores)) in rows.enumerate() {
                    // A row without a query sees nothing.
                    let visible = if row < count { spec.span(first + row) } else { 0..0 };
                    let start = seen.start * LINE;
                    let visible = visible.start.max(start) - start..visible.end.max(start) - start;
                    let [weights, d_scores] = [weights, d_scores].map(|x| x[seen.clone()].as_flattened_mut());
                    soften(weights, d_scores, visible, spec.scale);
                }
                for line in seen.clone() {
                    add_outer(simd, &d_out, &weights, lines, line, &mut dv);
                    add_outer(simd, &query, &d_scores, lines, line, &mut dk);
                }
                let rows = dq[first * shared * dim..].chunks_exact_mut(shared * dim).take(count);
                let mut rows: Vec<&mut [f32]> =
                    rows.map(|row| &mut row[at - head * shared * dim..][..dim]).collect();
                let side = rows.chunks_mut(SIDE).zip(d_scores.chunks_exact(SIDE * lines));
                for (rows, d_scores) in side {
                    for (element, keys) in (0..dim).step_by(SIDE).zip(keys.chunks_exact(SIDE * lines)) {
                        let sums = products(simd, d_scores, keys, lines, seen.start, seen.end);
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

/// Rows of a matrix as `elements` columns of `lines` lines, padded with zeros.
fn transposed(x: View<'_>, elements: usize, lines: usize) -> Vec<Line> {
    let mut to = vec![[0.0; LINE]; elements * lines];
    for row in 0..x.rows {
        for (element, from) in x.values[row * x.stride..][..x.cols].iter().enumerate() {
            to[element * lines + row / LINE][row % LINE] = *from;
        }
    }
    to
}

/// Columns of lines as rows.
fn restored(x: &[Line], rows: usize, elements: usize) -> Vec<f32> {
    let lines = rows.div_ceil(LINE);
    let mut to = vec![0.0; rows * elements];
    for (row, to) in to.chunks_exact_mut(elements).enumerate() {
        for (element, to) in to.iter_mut().enumerate() {
            *to = x[element * lines + row / LINE][row % LINE];
        }
    }
    to
}

/// Elements of one head of `count` rows, element by element; other queries are zero.
#[inline(always)]
fn gather(rows: &[f32], width: usize, at: usize, count: usize, to: &mut [[f32; QUERIES]]) {
    for (element, to) in to.iter_mut().enumerate() {
        for (row, to) in to.iter_mut().enumerate() {
            *to = if row < count { rows[row * width + at + element] } else { 0.0 };
        }
    }
}

/// The products of all queries of a tile with a line of positions.
#[inline(always)]
fn scores<S: FloatLanes>(
    simd: S,
    queries: &[[f32; QUERIES]],
    columns: &[Line],
    lines: usize,
    line: usize,
    out: &mut [Line],
) {
    for at in (0..LINE).step_by(S::LANES) {
        let mut sums = [simd.splat_lanes(0.0); QUERIES];
        for (query, column) in queries.iter().zip(columns.chunks_exact(lines)) {
            let x = simd.load_lanes(&column[line], at);
            for row in 0..QUERIES {
                sums[row] = simd.mul_add(simd.splat_lanes(query[row]), x, sums[row]);
            }
        }
        for row in 0..QUERIES {
            simd.store_lanes(&mut out[row * lines + line], at, sums[row]);
        }
    }
}

/// Adds to each element of a line of positions its products with the weights of all queries of a tile.
#[inline(always)]
fn add_outer<S: FloatLanes>(
    simd: S,
    queries: &[[f32; QUERIES]],
    weights: &[Line],
    lines: usize,
    line: usize,
    out: &mut [Line],
) {
    for at in (0..LINE).step_by(S::LANES) {
        let mut x = [simd.splat_lanes(0.0); QUERIES];
        for row in 0..QUERIES {
            x[row] = simd.load_lanes(&weights[row * lines + line], at);
        }
        for (query, column) in queries.iter().zip(out.chunks_exact_mut(lines)) {
            let out = &mut column[line];
            let mut sum = simd.load_lanes(out, at);
            for row in 0..QUERIES {
                sum = simd.mul_add(simd.splat_lanes(query[row]), x[row], sum);
            }
            simd.store_lanes(out, at, sum);
        }
    }
}

/// The sums over the lines from `start` to `end` of the products of [`SIDE`] queries with as many elements.
#[inline(always)]
fn products<S: FloatLanes>(
    simd: S,
    weights: &[Line],
    columns: &[Line],
    lines: usize,
    start: usize,
    end: usize,
) -> [[f32; SIDE]; SIDE] {
    let mut sums = [[simd.splat_lanes(0.0); SIDE]; SIDE];
    for line in start..end {
        for at in (0..LINE).step_by(S::LANES) {
            for row in 0..SIDE {
                let weight = simd.load_lanes(&weights[row * lines + line], at);
                for element in 0..SIDE {
                    let x = simd.load_lanes(&columns[element * lines + line], at);
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

/// The softmax of a query and its gradient: scores become weights, and the gradients of the weights those of the
/// scores before scaling. Both are zero where the query does not attend.
#[inline(always)]
fn soften(weights: &mut [f32], d_scores: &mut [f32], visible: std::ops::Range<usize>, scale: f32) {
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
