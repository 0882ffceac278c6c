//! Prefetching across the ends of pages and runs, where the hardware prefetchers stop.

use crate::simd::Simd;

/// Prefetch distance, in bytes.
const AHEAD: usize = 8192;
/// Bytes of a cache line.
const LINE: usize = 64;

/// Where the bytes to prefetch are.
#[derive(Clone, Copy)]
pub(super) struct Ahead<'a> {
    /// The current run, from its current block on.
    run: &'a [u8],
    /// The bytes that are read after the current run.
    next: &'a [u8],
    /// Bytes of a row.
    row: usize,
}

impl<'a> Ahead<'a> {
    /// A prefetcher for rows of `row` bytes starting at `at`.
    #[inline(always)]
    pub(super) fn new(rows: &'a [u8], at: usize, next: &'a [u8], row: usize) -> Self {
        Self { run: &rows[at * row..], next, row }
    }

    /// A base address and the offset from it to the bytes that are [`AHEAD`] of row `at`, for prefetching them line by line.
    #[inline(always)]
    pub(super) fn place(self, at: usize) -> (&'a u8, usize) {
        let from = at * self.row;
        let left = self.run.len() - from;
        match self.next.first() {
            Some(next) if left <= AHEAD => (next, AHEAD - left),
            _ => (&self.run[from], AHEAD),
        }
    }

    /// Prefetches as many bytes as the rows `at..at + rows` of the block have, [`AHEAD`] bytes in advance. One decision for all of
    /// them keeps the loop short: lines at the very end of the run are prefetched too early or not at all.
    #[inline(always)]
    pub(super) fn fetch<S: Simd>(self, s: S, at: usize, rows: usize) {
        let (place, offset) = self.place(at);
        for line in (0..rows * self.row).step_by(LINE) {
            s.prefetch(place, offset + line);
        }
    }
}
