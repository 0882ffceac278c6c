//! Scores of every query with every stored row, each stored row read once.

use std::ops::Range;

use crate::error::{PopcountError, check_len};
use crate::lanes::{LINE_WORDS, Lanes, with_lanes};
use crate::matrix::PlaneMatrix;
use crate::pair::{Score, with_score};
use trike_core::TritScore;
use trike_host::{Cpu, Isa, Loop, ranges};

/// Number of stored rows that are scored with all queries before the next rows are read: with 10,000 trits each they fit in the
/// L1 cache, together with a few queries.
pub(crate) const BLOCK_ROWS: usize = 8;

/// Words of a plane that are processed at a time, so that a block of longer rows also fits in the L1 cache.
const CHUNK_WORDS: usize = 256;

/// Prefetch distance for stored rows, in words.
const AHEAD: usize = 1024;

/// Multiply-adds of trits that take as long as one f32 multiply-add.
const TRITS_PER_F32: usize = 8;

/// The scores of all queries, at least one, with a few stored rows: `out[q * BLOCK_ROWS + r]`.
struct Block<'a, K, S> {
    lanes: K,
    score: S,
    queries: &'a PlaneMatrix,
    stored: &'a PlaneMatrix,
    rows: Range<usize>,
    out: &'a mut [i32],
}

impl<K: Lanes, S: Score> Loop for Block<'_, K, S> {
    type Output = ();

    #[inline(always)]
    fn run(mut self) {
        self.out.fill(self.score.start(self.stored.cols()));
        let words = self.stored.words();
        let queries = self.queries.rows();
        let step = if queries > 1 { CHUNK_WORDS } else { words };
        for start in (0..words).step_by(step) {
            let chunk = start..(start + step).min(words);
            // The first query loads the rows into the cache, which dominates the time if there are few queries.
            if step >= words {
                self.rows_of::<1, true>(0, &chunk);
            } else {
                self.rows_of::<1, false>(0, &chunk);
            }
            for q in (1..queries - 1).step_by(2) {
                self.rows_of::<2, false>(q, &chunk);
            }
            if queries.is_multiple_of(2) {
                self.rows_of::<1, false>(queries - 1, &chunk);
            }
        }
    }
}

impl<K: Lanes, S: Score> Block<'_, K, S> {
    /// Adds the scores of `Q` queries over a chunk of the columns; `FETCH` prefetches later rows and requires whole rows.
    #[inline(always)]
    fn rows_of<const Q: usize, const FETCH: bool>(&mut self, query: usize, chunk: &Range<usize>) {
        let (mut row, end) = (self.rows.start, self.rows.end);
        // Rows that come from memory are read sequentially, one at a time.
        if K::MANY_REGISTERS && !FETCH {
            while row + 4 <= end {
                self.tile::<4, Q, FETCH>(row, query, chunk);
                row += 4;
            }
        }
        while row < end {
            self.tile::<1, Q, FETCH>(row, query, chunk);
            row += 1;
        }
    }

    #[inline(always)]
    fn tile<const R: usize, const Q: usize, const FETCH: bool>(
        &mut self,
        row: usize,
        query: usize,
        chunk: &Range<usize>,
    ) {
        let (lanes, score) = (self.lanes, self.score);
        let len = chunk.len();
        let mut rows = [[[].as_slice(); 2]; R];
        for (r, row_planes) in rows.iter_mut().enumerate() {
            let [pos, neg] = self.stored.planes(row + r);
            *row_planes = [&pos[chunk.clone()][..len], &neg[chunk.clone()][..len]];
        }
        let mut queries = [[[].as_slice(); 2]; Q];
        for (q, query_planes) in queries.iter_mut().enumerate() {
            let [pos, neg] = self.queries.planes(query + q);
            *query_planes = [&pos[chunk.clone()][..len], &neg[chunk.clone()][..len]];
        }
        let mut tallies = [[[lanes.none(); 2]; Q]; R];
        let mut at = 0;
        while at + K::WORDS <= len {
            step::<K, S, R, Q, FETCH>(lanes, score, &mut tallies, rows, queries, at..at + K::WORDS);
            at += K::WORDS;
        }
        if at < len {
            step::<K, S, R, Q, FETCH>(lanes, score, &mut tallies, rows, queries, at..len);
        }
        for (r, tallies) in tallies.into_iter().enumerate() {
            for (q, tally) in tallies.into_iter().enumerate() {
                self.out[(query + q) * BLOCK_ROWS + row + r - self.rows.start] += score.total(lanes, tally);
            }
        }
    }
}

/// Adds the contribution of some words of all pairs of `R` rows and `Q` queries to the counts.
#[inline(always)]
fn step<K: Lanes, S: Score, const R: usize, const Q: usize, const FETCH: bool>(
    lanes: K,
    score: S,
    tallies: &mut [[[K::Tally; 2]; Q]; R],
    rows: [[&[u64]; 2]; R],
    queries: [[&[u64]; 2]; Q],
    words: Range<usize>,
) {
    let mut sides = [[lanes.splat(0); 2]; Q];
    for (side, [pos, neg]) in sides.iter_mut().zip(queries) {
        *side = score.side(lanes, lanes.load(&pos[words.clone()]), lanes.load(&neg[words.clone()]));
    }
    for (tallies, [pos, neg]) in tallies.iter_mut().zip(rows) {
        if FETCH {
            // The two planes are adjacent: prefetch two lines in memory order for every two lines read.
            lanes.prefetch(pos, AHEAD + 2 * words.start);
            lanes.prefetch(pos, AHEAD + 2 * words.start + LINE_WORDS);
        }
        let (pos, neg) = (&pos[words.clone()], &neg[words.clone()]);
        let row = score.side(lanes, lanes.load(pos), lanes.load(neg));
        for (tally, query) in tallies.iter_mut().zip(sides) {
            *tally = score.add(lanes, *tally, row, query);
        }
    }
}

/// The scores of all queries, at least one, with stored rows, at most [`BLOCK_ROWS`]: `out[q * BLOCK_ROWS + r]`.
pub(crate) fn score_block(
    isa: Isa,
    score: TritScore,
    (queries, stored): (&PlaneMatrix, &PlaneMatrix),
    rows: Range<usize>,
    out: &mut [i32],
) {
    with_score!(score, score => with_lanes!(isa, lanes => {
        lanes.run(Block { lanes, score, queries, stored, rows, out });
    }));
}

/// `rows` in blocks of at most [`BLOCK_ROWS`].
pub(crate) fn blocks(rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = rows.end;
    rows.step_by(BLOCK_ROWS).map(move |start| start..(start + BLOCK_ROWS).min(end))
}

/// The number of threads that the scores of two matrices justify.
pub(crate) fn score_parts(cpu: &Cpu, queries: &PlaneMatrix, stored: &PlaneMatrix) -> usize {
    let trits = queries.rows().saturating_mul(stored.rows()).saturating_mul(stored.cols());
    cpu.pool().parts(trits / TRITS_PER_F32)
}

/// The scores of `m` queries with `n` stored rows, `m x n`, row-major.
pub(crate) fn scores(
    cpu: &Cpu,
    score: TritScore,
    queries: &PlaneMatrix,
    stored: &PlaneMatrix,
    out: &mut [i32],
) -> Result<(), PopcountError> {
    check_len("columns of the queries", stored.cols(), queries.cols())?;
    let (m, n) = (queries.rows(), stored.rows());
    let len = m.checked_mul(n).ok_or(PopcountError::Shape { what: "scores", rows: m, cols: n })?;
    check_len("scores", len, out.len())?;
    if len == 0 {
        return Ok(());
    }
    // Each thread writes the output columns of its rows, in one piece per query.
    let parts: Vec<_> = ranges(n, score_parts(cpu, queries, stored)).collect();
    let mut tasks: Vec<_> = parts.into_iter().map(|rows| (rows, Vec::with_capacity(m))).collect();
    for mut line in out.chunks_exact_mut(n) {
        for (rows, pieces) in &mut tasks {
            let (piece, rest) = line.split_at_mut(rows.len());
            pieces.push(piece);
            line = rest;
        }
    }
    cpu.pool().run(tasks, |(rows, mut pieces): (Range<usize>, Vec<&mut [i32]>)| {
        let mut scores = vec![0; m * BLOCK_ROWS];
        for block in blocks(rows.clone()) {
            score_block(cpu.isa(), score, (queries, stored), block.clone(), &mut scores);
            let to = block.start - rows.start..block.end - rows.start;
            for (piece, scores) in pieces.iter_mut().zip(scores.chunks_exact(BLOCK_ROWS)) {
                piece[to.clone()].copy_from_slice(&scores[..block.len()]);
            }
        }
    });
    Ok(())
}
