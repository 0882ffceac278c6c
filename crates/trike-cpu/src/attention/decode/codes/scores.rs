//! Products of queries with keys.

use bytemuck::cast_slice;

use super::{Codes, Queries, Query, beginning};
use crate::attention::decode::CHUNK;
use crate::attention::decode::ahead::Ahead;
use crate::attention::lanes::CodeLanes;
use crate::line::{CodeLine, FloatLine, IntLine};
use trike_host::{CacheLine, Loop};

/// Positions of a step: four groups of every fourth row.
const ROWS: usize = 16;

/// `scores[h][first + j] = q[h] . rows[j] * scales[j]`
pub(super) struct ScoreCodes<'a, S, E> {
    pub(super) s: S,
    pub(super) queries: &'a Queries,
    /// The query of the first head.
    pub(super) query: usize,
    /// `[scales.len()][width]`
    pub(super) rows: &'a [E],
    pub(super) scales: &'a [f32],
    /// The bytes read after `rows`, for prefetching.
    pub(super) next: &'a [u8],
    /// `[share][CHUNK]`
    pub(super) scores: &'a mut [f32],
    pub(super) first: usize,
}

/// Rows of a step.
struct Step<'a> {
    /// The bytes from the first row on, continuing past the last one.
    bytes: &'a [u8],
    width: usize,
    /// The last row, which is repeated for missing rows.
    last: usize,
    scales: FloatLine,
    /// The address to prefetch: one line per sixteen bytes of four rows.
    ahead: (&'a u8, usize),
}

impl<S: CodeLanes, E: Codes> Loop for ScoreCodes<'_, S, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        if const { E::PARTS == 2 } { self.of::<2, 1>() } else { self.of::<4, 2>() }
    }
}

impl<S: CodeLanes, E: Codes> ScoreCodes<'_, S, E> {
    #[inline(always)]
    fn of<const PARTS: usize, const HALVES: usize>(self) {
        let Self { s, queries, query, rows, scales, next, scores, first } = self;
        let share = scores.len() / CHUNK;
        let (rows, width): (&[u8], _) = (cast_slice(rows), queries.width);
        for (n, scales) in scales.chunks(ROWS).enumerate() {
            let at = n * ROWS;
            let ahead = Ahead::new(rows, at, next, width).place(0);
            let (bytes, last) = (&rows[at * width..], scales.len() - 1);
            let mut step = Step { bytes, width, last, scales: CacheLine([0.0; ROWS]), ahead };
            step.scales.0[..scales.len()].copy_from_slice(scales);
            let mut head = 0;
            while head < share {
                let heads = (share - head).min(heads_at_once::<S>());
                let fetch = head == 0;
                let scores = &mut scores[head * CHUNK + first + at..];
                match heads {
                    4 if const { heads_at_once::<S>() >= 4 } => {
                        score::<S, E, PARTS, HALVES, 4>(s, queries, query + head, &step, fetch, scores);
                    }
                    3 if const { heads_at_once::<S>() >= 3 } => {
                        score::<S, E, PARTS, HALVES, 3>(s, queries, query + head, &step, fetch, scores);
                    }
                    2 => score::<S, E, PARTS, HALVES, 2>(s, queries, query + head, &step, fetch, scores),
                    _ => score::<S, E, PARTS, HALVES, 1>(s, queries, query + head, &step, fetch, scores),
                }
                head += heads;
            }
        }
    }
}

/// Number of heads whose sums fit the registers.
const fn heads_at_once<S: CodeLanes>() -> usize {
    if S::PAIR_SUMS >= 4 { 4 } else { 2 }
}

/// The scores of `H` heads for the rows of a step.
#[inline(always)]
fn score<S: CodeLanes, E: Codes, const PARTS: usize, const HALVES: usize, const H: usize>(
    s: S,
    queries: &Queries,
    query: usize,
    step: &Step<'_>,
    fetch: bool,
    scores: &mut [f32],
) {
    let mut q = [queries.of::<PARTS, HALVES>(query); H];
    for h in 1..H {
        q[h] = queries.of(query + h);
    }
    let mut sums = [[s.splat_int(0); 4]; H];
    if const { S::PAIR_SUMS >= 16 } {
        tile::<S, E, PARTS, HALVES, H, 4>(s, q, step, 0, fetch, &mut sums);
    } else {
        // With fewer than four rows, the other groups would repeat the last one. A variable bound also keeps the compiler from
        // unrolling.
        for group in 0..(step.last + 1).min(4) {
            tile::<S, E, PARTS, HALVES, H, 1>(s, q, step, group, fetch, &mut sums);
        }
    }
    for h in 0..H {
        let mut sum = s.add_fours(sums[h]);
        if E::FACTOR == 2 {
            sum = s.add_ints(sum, sum);
        }
        sum = s.add_ints(sum, s.splat_int(queries.corrections[query + h]));
        let products = s.mul(s.to_floats(sum), s.splat(queries.steps[query + h]));
        let mut line = CacheLine([0.0; ROWS]);
        s.store_floats(s.mul(products, s.load_floats(&step.scales)), &mut line);
        let scores = &mut scores[h * CHUNK..][..step.last + 1];
        match scores.as_chunks_mut::<ROWS>().0 {
            [all] => *all = line.0,
            _ => scores.copy_from_slice(&line.0[..step.last + 1]),
        }
    }
}

/// Adds the products of `H` heads with `G` groups of four rows, with the sums in registers: row `4 r + g` is row `r` of group `g`.
#[inline(always)]
fn tile<S: CodeLanes, E: Codes, const PARTS: usize, const HALVES: usize, const H: usize, const G: usize>(
    s: S,
    q: [Query<'_, PARTS, HALVES>; H],
    step: &Step<'_>,
    group: usize,
    fetch: bool,
    sums: &mut [[S::Ints; 4]; H],
) {
    let whole = step.width / 16;
    let mut rows: [[&[u8]; 4]; G] = [[&[]; 4]; G];
    let mut chunks: [[&[[u8; 16]]; 4]; G] = [[&[]; 4]; G];
    for g in 0..G {
        for r in 0..4 {
            rows[g][r] = &step.bytes[(4 * r + group + g).min(step.last) * step.width..];
            chunks[g][r] = &rows[g][r].as_chunks().0[..whole];
        }
    }
    let mut acc = [[s.splat_int(0); G]; H];
    let mut bytes = [s.splat_byte(0); G];
    let mut whole_q = q;
    for h in 0..H {
        whole_q[h] = Query { high: &q[h].high[..whole], low: &q[h].low[..whole] };
    }
    let (place, offset) = step.ahead;
    for i in 0..whole {
        // Spread over the step: issued together, prefetches would fill the load buffers.
        if fetch {
            for g in 0..G {
                s.prefetch(place, offset + 64 * (4 * i + group + g));
            }
        }
        for g in 0..G {
            bytes[g] = s.load_rows([&chunks[g][0][i], &chunks[g][1][i], &chunks[g][2][i], &chunks[g][3][i]]);
        }
        let mut lines = [(&whole_q[0].high[i], &whole_q[0].low[i]); H];
        for h in 1..H {
            lines[h] = (&whole_q[h].high[i], &whole_q[h].low[i]);
        }
        add_chunk::<S, E, PARTS, HALVES, H, G>(s, bytes, lines, &mut acc);
    }
    if whole < q[0].high.len() {
        let mut lines = [(&q[0].high[whole], &q[0].low[whole]); H];
        for h in 1..H {
            lines[h] = (&q[h].high[whole], &q[h].low[whole]);
        }
        for g in 0..G {
            let len = step.width - 16 * whole;
            let mut ends = [[0; 16]; 4];
            for r in 0..4 {
                ends[r] = beginning(&rows[g][r][16 * whole..], len);
            }
            bytes[g] = s.load_rows([&ends[0], &ends[1], &ends[2], &ends[3]]);
        }
        add_chunk::<S, E, PARTS, HALVES, H, G>(s, bytes, lines, &mut acc);
    }
    for h in 0..H {
        for g in 0..G {
            sums[h][group + g] = acc[h][g];
        }
    }
}

/// The lines of a query for sixteen bytes, high and low parts.
type Lines<'a, const PARTS: usize, const HALVES: usize> = (&'a [IntLine; PARTS], &'a [CodeLine; HALVES]);

/// Sixteen bytes of the rows.
#[inline(always)]
fn add_chunk<
    S: CodeLanes,
    E: Codes,
    const PARTS: usize,
    const HALVES: usize,
    const H: usize,
    const G: usize,
>(
    s: S,
    bytes: [S::Bytes; G],
    q: [Lines<'_, PARTS, HALVES>; H],
    acc: &mut [[S::Ints; G]; H],
) {
    // Written out with literals: a loop over the parts would add a jump for each.
    add_part::<S, E, PARTS, HALVES, H, G>(s, bytes, q, 0, acc);
    add_part::<S, E, PARTS, HALVES, H, G>(s, bytes, q, 1, acc);
    add_low::<S, E, PARTS, HALVES, H, G>(s, bytes, q, 0, acc);
    if const { PARTS == 4 } {
        add_part::<S, E, PARTS, HALVES, H, G>(s, bytes, q, 2, acc);
        add_part::<S, E, PARTS, HALVES, H, G>(s, bytes, q, 3, acc);
        add_low::<S, E, PARTS, HALVES, H, G>(s, bytes, q, 1, acc);
    }
}

/// Products of integers with 64 times the high parts of queries.
#[inline(always)]
fn add_part<
    S: CodeLanes,
    E: Codes,
    const PARTS: usize,
    const HALVES: usize,
    const H: usize,
    const G: usize,
>(
    s: S,
    bytes: [S::Bytes; G],
    q: [Lines<'_, PARTS, HALVES>; H],
    part: usize,
    acc: &mut [[S::Ints; G]; H],
) {
    let mut x = [s.splat_int(0); G];
    for g in 0..G {
        x[g] = E::widen_64(s, bytes[g], part);
    }
    for h in 0..H {
        let q = s.load_ints(&q[h].0[part]);
        for g in 0..G {
            acc[h][g] = s.dot_pairs(acc[h][g], x[g], q);
        }
    }
}

/// Products of integers with the low parts of queries.
#[inline(always)]
fn add_low<
    S: CodeLanes,
    E: Codes,
    const PARTS: usize,
    const HALVES: usize,
    const H: usize,
    const G: usize,
>(
    s: S,
    bytes: [S::Bytes; G],
    q: [Lines<'_, PARTS, HALVES>; H],
    half: usize,
    acc: &mut [[S::Ints; G]; H],
) {
    let mut x = bytes;
    for g in 0..G {
        x[g] = E::unsigned(s, bytes[g], half);
    }
    for h in 0..H {
        let q = s.load(&q[h].1[half]);
        for g in 0..G {
            acc[h][g] = s.dot_small(acc[h][g], x[g], q);
        }
    }
}
