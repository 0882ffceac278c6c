//! The rival that candle stands on, called directly: the `gemm` crate has no safe interface.
#![expect(unsafe_code, reason = "the only interface of the rival takes pointers")]

/// `x W^T` for `x` of `tokens x cols` and `weights` of `rows x cols`, both row-major, on the threads of the current pool.
///
/// # Panics
///
/// When the lengths are not whole rows of `cols`.
pub(crate) fn linear(weights: &[f32], cols: usize, x: &[f32], threads: usize) -> Vec<f32> {
    assert!(cols > 0 && weights.len().is_multiple_of(cols) && x.len().is_multiple_of(cols), "whole rows");
    let (rows, tokens) = (weights.len() / cols, x.len() / cols);
    let mut out = vec![f32::NAN; tokens * rows];
    let parallelism = if threads > 1 { gemm::Parallelism::Rayon(threads) } else { gemm::Parallelism::None };
    // A slice has at most `isize::MAX` bytes, so a row of one fits.
    let (across, down) = (cols as isize, rows as isize);
    // SAFETY: with these strides the call reads `tokens * cols` numbers of `x` and `cols * rows` of `weights` and writes
    // `tokens * rows` of `out`: the lengths of the three slices, by the assertion and the allocation above. `out` is not
    // read, and no other reference to it exists.
    unsafe {
        gemm::gemm(
            tokens,
            rows,
            cols,
            out.as_mut_ptr(),
            1,
            down,
            false,
            x.as_ptr(),
            1,
            across,
            weights.as_ptr(),
            across,
            1,
            0.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_product_by_hand() {
        let weights = [1.0, 2.0, 3.0, 0.0, -1.0, 1.0];
        assert_eq!(super::linear(&weights, 3, &[1.0, 1.0, 1.0, 0.0, 2.0, 0.5], 1), [6.0, 0.0, 5.5, -1.5]);
    }
}
