//! Matrix transpose.

/// Transposes a row-major matrix.
///
/// ```
/// assert_eq!(trike_cpu::transpose(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
/// ```
pub fn transpose(values: &[f32], cols: usize) -> Vec<f32> {
    let rows = values.len() / cols.max(1);
    let mut out = vec![0.0; values.len()];
    // In tiles, so that both sides stay in the cache.
    const TILE: usize = 16;
    for r0 in (0..rows).step_by(TILE) {
        for c0 in (0..cols).step_by(TILE) {
            for c in c0..(c0 + TILE).min(cols) {
                for r in r0..(r0 + TILE).min(rows) {
                    out[c * rows + r] = values[r * cols + c];
                }
            }
        }
    }
    out
}
