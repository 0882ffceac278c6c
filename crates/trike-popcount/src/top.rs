//! Top-k search: the stored rows with the highest scores for each query, without storing all scores.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use crate::error::{PopcountError, check_len, check_range};
use crate::matrix::PlaneMatrix;
use crate::scores::{BLOCK_ROWS, blocks, score_block, score_parts};
use trike_core::{TritHit, TritScore};
use trike_host::{Cpu, ranges};

/// The best rows of one query so far; the greatest entry is the worst row.
type Best = BinaryHeap<(Reverse<i32>, usize)>;

/// Offers a row with a higher index than all rows offered before, which therefore loses ties.
fn offer(best: &mut Best, k: usize, row: usize, score: i32) {
    if best.len() < k {
        best.push((Reverse(score), row));
    } else if let Some(mut worst) = best.peek_mut()
        && score > worst.0.0
    {
        *worst = (Reverse(score), row);
    }
}

/// For each query, the `k` stored rows with the highest scores, best first.
pub(crate) fn top_k(
    cpu: &Cpu,
    score: TritScore,
    queries: &PlaneMatrix,
    stored: &PlaneMatrix,
    k: usize,
) -> Result<Vec<Vec<TritHit>>, PopcountError> {
    check_len("columns of the queries", stored.cols(), queries.cols())?;
    check_range("k of a top-k search", 1, usize::MAX, k)?;
    check_range("stored rows", 1, usize::MAX, stored.rows())?;
    let m = queries.rows();
    if m == 0 {
        return Ok(Vec::new());
    }
    let mut parts: Vec<(Range<usize>, Vec<Best>)> = ranges(stored.rows(), score_parts(cpu, queries, stored))
        .map(|rows| (rows, vec![Best::new(); m]))
        .collect();
    cpu.pool().run(parts.iter_mut().collect(), |(rows, best): &mut (_, Vec<Best>)| {
        let mut scores = vec![0; m * BLOCK_ROWS];
        for block in blocks(rows.clone()) {
            score_block(cpu.isa(), score, (queries, stored), block.clone(), &mut scores);
            for (best, scores) in best.iter_mut().zip(scores.chunks_exact(BLOCK_ROWS)) {
                for (row, &score) in block.clone().zip(scores) {
                    offer(best, k, row, score);
                }
            }
        }
    });
    let merged = |q: usize| {
        let mut all: Vec<_> = parts.iter_mut().flat_map(|(_, best)| std::mem::take(&mut best[q])).collect();
        all.sort_unstable();
        all.into_iter().take(k).map(|(Reverse(score), row)| TritHit { row, score }).collect()
    };
    Ok((0..m).map(merged).collect())
}
