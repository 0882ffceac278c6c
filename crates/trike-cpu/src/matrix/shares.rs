//! Parallel packing of weights in shares of tiles.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::error::CpuError;
use trike_host::{Pool, ranges};

/// A range of tiles and their part of the memory.
pub(super) struct Share<'a, T> {
    pub(super) tiles: Range<usize>,
    pub(super) part: &'a mut [T],
}

/// Fills the tiles of a matrix in contiguous shares, on the threads of `pool` or on the current thread, and returns
/// the results of the shares in order. The elements of tile `t` start at `start(t)`.
///
/// `work` is the number of weights; packing one costs about as much as two f32 multiply-adds.
pub(super) fn for_tiles<T: Send, R: Send>(
    pool: Option<&Pool>,
    work: usize,
    tiles: usize,
    memory: &mut [T],
    start: &(impl Fn(usize) -> usize + Sync),
    fill: impl Fn(Share<'_, T>) -> Result<R, CpuError> + Sync,
) -> Result<Vec<R>, CpuError> {
    let parts = pool.map_or(1, |pool| pool.parts(work.saturating_mul(2)));
    let mut rest = memory;
    let mut results: Vec<Mutex<Option<Result<R, CpuError>>>> = Vec::new();
    let mut shares = Vec::new();
    for tiles in ranges(tiles, parts) {
        let (part, tail) = rest.split_at_mut(start(tiles.end) - start(tiles.start));
        shares.push((shares.len(), Share { tiles, part }));
        results.push(Mutex::new(None));
        rest = tail;
    }
    let run = |(number, share): (usize, Share<'_, T>)| {
        let result = fill(share);
        // No share panics while holding the lock.
        *results[number].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
    };
    match pool {
        Some(pool) => pool.run(shares, run),
        None => shares.into_iter().for_each(run),
    }
    results
        .into_iter()
        .filter_map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner))
        .collect()
}
