//! One measure of error for float results.

/// `max|got - want| / max|want|`; infinite when the lengths differ or a value is not finite.
pub fn max_rel(got: &[f32], want: &[f32]) -> f32 {
    if got.len() != want.len() || got.iter().chain(want).any(|v| !v.is_finite()) {
        return f32::INFINITY;
    }
    let scale = want.iter().fold(0f32, |m, v| m.max(v.abs())).max(f32::MIN_POSITIVE);
    got.iter().zip(want).fold(0f32, |m, (g, w)| m.max((g - w).abs())) / scale
}

/// Asserts `max|got - want| <= bound * max|want|`.
///
/// # Panics
///
/// When the bound does not hold, naming the error and the place of the worst element.
#[track_caller]
pub fn assert_close(got: &[f32], want: &[f32], bound: f32) {
    let error = max_rel(got, want);
    if error > bound {
        let worst = (0..got.len().min(want.len()))
            .max_by(|&a, &b| (got[a] - want[a]).abs().total_cmp(&(got[b] - want[b]).abs()));
        let at = worst.map(|i| (i, got[i], want[i]));
        panic!(
            "error {error:e} over the bound {bound:e}; lengths {} and {}; worst (index, got, want): {at:?}",
            got.len(),
            want.len()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::max_rel;

    #[test]
    fn a_wrong_length_or_a_nan_is_never_close() {
        assert_eq!(max_rel(&[1.0], &[1.0, 2.0]), f32::INFINITY);
        assert_eq!(max_rel(&[f32::NAN], &[1.0]), f32::INFINITY);
        assert_eq!(max_rel(&[1.5, -2.0], &[1.0, -2.0]), 0.25);
    }
}
