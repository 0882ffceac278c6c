//! Exact nearest-neighbour search: scores of a batch of queries with every row, and the top k per query.

use crate::device::{Buffer, CubeDevice};
use crate::error::{Result, check_len, check_range, check_shape};
use crate::ops;
use crate::plan::Strategy;
use crate::popcount::TritTable;
use trike_core::{TritHit, TritScore};

/// Maximum dimensions of a search: every score is an integer that is exact in f32.
pub const MAX_SEARCH_DIMS: usize = 1 << 24;

/// Maximum bytes of scores held at a time.
const SCORES: usize = 64 << 20;
/// A part of a table may begin at multiples of this many rows, for any number of columns: a step takes 32 bytes.
const BOUNDARY: usize = 8;

impl CubeDevice {
    /// Finds, for every query, the `k` rows of `table` with the largest scores, in descending order, ties by index; all rows if
    /// there are fewer than `k`. Only the results are copied to the host.
    ///
    /// # Errors
    ///
    /// [`CubeError::Length`](crate::CubeError::Length) for queries of another length,
    /// [`CubeError::Range`](crate::CubeError::Range) for a `k` of 0 or over [`ops::MOST`] and for more than [`MAX_SEARCH_DIMS`]
    /// dimensions, and those of the kernels.
    pub fn nearest(
        &self,
        score: TritScore,
        queries: &TritTable,
        table: &TritTable,
        k: usize,
    ) -> Result<Vec<Vec<TritHit>>> {
        check_len("trits of a query", table.cols(), queries.cols())?;
        check_range("dimensions of a search", 1, MAX_SEARCH_DIMS, table.cols())?;
        check_range("k of a search", 1, ops::MOST, k)?;
        let k = k.min(table.rows());
        let at_once = (SCORES / 4 / table.rows())
            .next_multiple_of(BOUNDARY)
            .clamp(BOUNDARY, queries.rows().max(BOUNDARY));
        let mut found = Vec::with_capacity(queries.rows());
        let mut first = 0;
        while first < queries.rows() {
            let some = at_once.min(queries.rows() - first);
            let part = queries.rows_from(first, some)?;
            let scores: Buffer<i32> = self.empty(check_shape("scores of queries", some, table.rows())?)?;
            self.scores_as(score, &part, table, &scores, &Strategy::Inferred, true)?;
            let values = self.empty::<f32>(some * k)?;
            let rows = self.top(&scores.cast()?, table.rows(), k, &values, &Strategy::Inferred)?;
            let (rows, values) = self.read_both(rows.buffer(), &values)?;
            let hits = rows.chunks_exact(k).zip(values.chunks_exact(k));
            // Integers of magnitude at most 2^24.
            let hit = |(&row, &value): (&u32, &f32)| TritHit { row: row as usize, score: value as i32 };
            found.extend(hits.map(|(rows, values)| rows.iter().zip(values).map(hit).collect::<Vec<_>>()));
            first += some;
        }
        Ok(found)
    }
}
