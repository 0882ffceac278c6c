//! The `gemm` crate, on which candle is built, called directly; it has no safe interface.
#![expect(unsafe_code, reason = "the only interface of the rival takes pointers")]

/// `x W^T` for `x` of `tokens x cols` and `weights` of `rows x cols`, both row-major, on the threads of the current rayon
/// pool. Returns `tokens x rows`.
///
/// # Panics
///
/// If a length is not a multiple of `cols`.
pub(crate) fn linear(weights: &[f32], cols: usize, x: &[f32], threads: usize) -> Vec<f32> {
    assert!(cols > 0 && weights.len().is_multiple_of(cols) && x.len().is_multiple_of(cols), "whole rows");
    let (rows, tokens) = (weights.len() / cols, x.len() / cols);
    let mut out = vec![f32::NAN; tokens * rows];
    let parallelism = if threads > 1 { gemm::Parallelism::Rayon(threads) } else { gemm::Parallelism::None };
    // A slice has at most `isize::MAX` bytes, so the length of a row fits into `isize`.
    let (across, down) = (cols as isize, rows as isize);
    // SAFETY: with these strides the call reads `tokens * cols` elements of `x` and `rows * cols` of `weights`, and writes
    // `tokens * rows` elements of `out`; these are the lengths of the slices, by the assertion and the allocation above.
    // `out` is not read, and no other reference to it exists.
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
