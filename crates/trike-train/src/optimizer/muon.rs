//! Matrices made orthogonal.

use trike_cpu::{Cpu, CpuError, MatrixRef, Store, matmul};

/// Steps of the iteration.
const STEPS: usize = 5;
/// Coefficients of its polynomial `a s + b s^3 + c s^5`, which brings singular values near 1 (Jordan et al., 2024).
const COEFFICIENTS: [f32; 3] = [3.4445, -4.7750, 2.0315];

/// The factor of an update, with which it has the size of one of AdamW: `0.2 sqrt(max(rows, cols))` (2502.16982).
pub(super) fn scale(rows: usize, cols: usize) -> f32 {
    0.2 * (rows.max(cols) as f32).sqrt()
}

/// A matrix with the singular vectors of `matrix`, rows of `cols`, and singular values from about 0.7 to 1.2 (Newton and Schulz).
pub(super) fn orthogonal(cpu: &Cpu, matrix: Vec<f32>, cols: usize) -> Result<Vec<f32>, CpuError> {
    let rows = matrix.len() / cols.max(1);
    let norm = matrix.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>().sqrt();
    let mut x: Vec<f32> = matrix;
    x.iter_mut().for_each(|v| *v /= (norm + 1e-7) as f32);
    let [a, b, c] = COEFFICIENTS;
    // The smaller of `X X^T` and `X^T X`; the polynomial is applied from its side.
    let wide = rows <= cols;
    let side = rows.min(cols);
    let mut gram = vec![0.0; side * side];
    let mut square = vec![0.0; side * side];
    let mut next = vec![0.0; x.len()];
    for _ in 0..STEPS {
        let m = MatrixRef::new(&x, cols)?;
        let (left, right) = if wide { (m, m.t()) } else { (m.t(), m) };
        matmul(cpu, left, right, &mut gram, Store::Overwrite)?;
        let g = MatrixRef::new(&gram, side)?;
        matmul(cpu, g, g, &mut square, Store::Overwrite)?;
        for (i, (square, gram)) in square.iter_mut().zip(&gram).enumerate() {
            let diagonal = if i % (side + 1) == 0 { a } else { 0.0 };
            *square = diagonal + b * gram + c * *square;
        }
        let polynomial = MatrixRef::new(&square, side)?;
        let (left, right) = if wide { (polynomial, m) } else { (m, polynomial) };
        matmul(cpu, left, right, &mut next, Store::Overwrite)?;
        std::mem::swap(&mut x, &mut next);
    }
    Ok(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_or_columns_become_nearly_orthonormal() {
        let cpu = Cpu::new(2).expect("a cpu");
        for (rows, cols) in [(4, 9), (9, 4), (6, 6), (1, 5)] {
            let matrix: Vec<f32> =
                (0..rows * cols).map(|i| ((i * i * 7 + 3 * i) % 11) as f32 - 5.0).collect();
            let x = orthogonal(&cpu, matrix.clone(), cols).expect("a matrix");
            let side = rows.min(cols);
            let line = |i: usize, j: usize| if rows <= cols { x[i * cols + j] } else { x[j * cols + i] };
            for i in 0..side {
                let square: f32 = (0..rows.max(cols)).map(|j| line(i, j) * line(i, j)).sum();
                assert!((0.3..1.6).contains(&square), "{rows} x {cols}: {square}");
            }
            // It points where the matrix does.
            assert!(x.iter().zip(&matrix).map(|(a, b)| a * b).sum::<f32>() > 0.0);
        }
        assert_eq!(orthogonal(&cpu, vec![0.0; 6], 3).expect("a matrix"), [0.0; 6]);
    }
}
