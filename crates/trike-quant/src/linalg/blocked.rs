//! Blocked Cholesky factorization and triangular inversion on all threads: equal to [`cholesky`] and [`invert_lower`] up to
//! rounding.

use std::ops::Range;

use trike_cpu::{Cpu, Loop, vectorized};

use super::{
    cholesky, invert_lower,
    tile::{COLUMNS, DEPTH, Panels, Subtract},
};

/// Columns per block of a factorization.
const BLOCK: usize = 4 * COLUMNS;
/// Rows per block of an inversion: each block copies the inverse computed so far once.
const ROWS: usize = 8 * COLUMNS;
/// Parts of the work per thread, because parts differ in size.
const PARTS: usize = 4;

/// [`cholesky`] on all threads; the strict upper triangle is overwritten.
pub(crate) fn cholesky_blocked(cpu: &Cpu, a: &mut [f64], n: usize) -> Result<(), (usize, f64)> {
    for start in (0..n).step_by(BLOCK) {
        let width = BLOCK.min(n - start);
        let (_, rest) = a.split_at_mut(start * n);
        // Left-looking update by the preceding columns: rest -= rest[..start] (rows of the block)^T.
        let panels = Panels::new(start, width, |k, c| rest[c * n + k]);
        let share = (rest.len() / n).div_ceil(PARTS * cpu.threads()).next_multiple_of(12);
        if start > 0 {
            cpu.pool().run(rest.chunks_mut(share * n).collect(), |rows: &mut [f64]| {
                vectorized(cpu, Subtract::new(cpu, rows, n, 0..start, start, &panels));
            });
        }
        let (block, below) = rest.split_at_mut(width * n);
        let mut diagonal: Vec<f64> =
            block.chunks_exact(n).flat_map(|row| &row[start..start + width]).copied().collect();
        cholesky(&mut diagonal, width).map_err(|(column, pivot)| (start + column, pivot))?;
        for (i, (row, done)) in block.chunks_exact_mut(n).zip(diagonal.chunks_exact(width)).enumerate() {
            row[start..=start + i].copy_from_slice(&done[..=i]);
        }
        cpu.pool().run(below.chunks_mut(share * n).collect(), |rows: &mut [f64]| {
            vectorized(cpu, Divide { rows, stride: n, columns: start..start + width, lower: &diagonal });
        });
    }
    Ok(())
}

/// `rows[columns] = rows[columns] lower^-T`.
struct Divide<'a> {
    rows: &'a mut [f64],
    stride: usize,
    columns: Range<usize>,
    lower: &'a [f64],
}

impl Loop for Divide<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let width = self.columns.len();
        for row in self.rows.chunks_exact_mut(self.stride) {
            let row = &mut row[self.columns.clone()];
            for (c, lower) in self.lower.chunks_exact(width).enumerate() {
                let mut lanes = [0.0; 8];
                let ((heads, tail), (of, of_tail)) = (row[..c].as_chunks::<8>(), lower[..c].as_chunks::<8>());
                for (a, b) in heads.iter().zip(of) {
                    for l in 0..8 {
                        lanes[l] += a[l] * b[l];
                    }
                }
                let mut sum = 0.0;
                for lane in lanes {
                    sum += lane;
                }
                for (a, b) in tail.iter().zip(of_tail) {
                    sum += a * b;
                }
                row[c] = (row[c] - sum) / lower[c];
            }
        }
    }
}

/// [`invert_lower`] on all threads; the strict upper triangle is ignored.
pub(crate) fn invert_lower_blocked(cpu: &Cpu, l: &mut [f64], n: usize) {
    for start in (0..n).step_by(ROWS) {
        let width = ROWS.min(n - start);
        let (done, rest) = l.split_at_mut(start * n);
        let block = &mut rest[..width * n];
        let mut diagonal: Vec<f64> =
            block.chunks_exact(n).flat_map(|row| &row[start..start + width]).copied().collect();
        invert_lower(&mut diagonal, width);
        // inverse = -diagonal (block times the inverse of the rows above), in column ranges.
        let share = start.div_ceil(PARTS * cpu.threads()).next_multiple_of(COLUMNS);
        let ranges: Vec<Range<usize>> =
            (0..start).step_by(share.max(1)).map(|c| c..(c + share).min(start)).collect();
        let parts = cpu.pool().map(ranges, |columns| {
            // The strict upper triangle holds other data. Sums are split at multiples of `DEPTH`, so that they do not depend on the
            // number of threads.
            let first = columns.start / DEPTH * DEPTH;
            let value = |k: usize, c: usize| {
                let (k, c) = (first + k, columns.start + c);
                if c > k { 0.0 } else { done[k * n + c] }
            };
            let (inner, count) = (start - first, columns.len());
            let panels = Panels::new(inner, count, value);
            let mut product = vec![0.0; width * (inner + count)];
            for (row, from) in product.chunks_exact_mut(inner + count).zip(block.chunks_exact(n)) {
                row[..inner].copy_from_slice(&from[first..start]);
            }
            vectorized(cpu, Subtract::new(cpu, &mut product, inner + count, 0..inner, inner, &panels));
            let right = Panels::new(width, count, |k, c| product[k * (inner + count) + inner + c]);
            let mut result = vec![0.0; width * (width + count)];
            let rows = result.chunks_exact_mut(width + count).zip(diagonal.chunks_exact(width));
            for (i, (row, from)) in rows.enumerate() {
                row[..=i].iter_mut().zip(from).for_each(|(to, from)| *to = -from);
            }
            vectorized(cpu, Subtract::new(cpu, &mut result, width + count, 0..width, width, &right));
            (columns, result)
        });
        for (columns, part) in parts {
            let count = columns.len();
            for (row, part) in block.chunks_exact_mut(n).zip(part.chunks_exact(width + count)) {
                row[columns.clone()].copy_from_slice(&part[width..]);
            }
        }
        for (i, (row, from)) in block.chunks_exact_mut(n).zip(diagonal.chunks_exact(width)).enumerate() {
            row[start..=start + i].copy_from_slice(&from[..=i]);
        }
    }
}
