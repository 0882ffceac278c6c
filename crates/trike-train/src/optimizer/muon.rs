//! Orthogonalization of matrices for Muon.

use std::borrow::{Borrow, BorrowMut};

use trike_autodiff::{Elements, GradError, Operand, ProductPrecision, TapeEngine};
use trike_cpu::Store;

/// Steps of the iteration.
const STEPS: usize = 5;
/// Coefficients of the Newton-Schulz polynomial `a s + b s^3 + c s^5`, which moves singular values towards 1 (Jordan et al., 2024).
const COEFFICIENTS: [f32; 3] = [3.4445, -4.7750, 2.0315];

/// The scale of an update that matches the magnitude of AdamW's: `0.2 sqrt(max(rows, cols))` (2502.16982).
pub(super) fn scale(rows: usize, cols: usize) -> f32 {
    0.2 * (rows.max(cols) as f32).sqrt()
}

/// Orthogonalizes `matrix`, rows of `cols`, by the Newton-Schulz iteration: the singular vectors are kept, the singular values
/// become about 0.7 to 1.2.
pub(crate) fn orthogonal<E: TapeEngine>(
    engine: &E,
    matrix: E::Tensor,
    cols: usize,
) -> Result<E::Tensor, GradError> {
    let rows = matrix.elements() / cols.max(1);
    let mut x = matrix;
    engine.normalize(x.borrow_mut())?;
    // The smaller of `X X^T` and `X^T X`; the polynomial is applied from that side.
    let wide = rows <= cols;
    let side = rows.min(cols);
    let mut gram = engine.allocate(side * side)?;
    let mut square = engine.allocate(side * side)?;
    let mut next = engine.allocate(x.elements())?;
    for _ in 0..STEPS {
        let m = Operand::new(x.borrow(), cols)?;
        let (left, right) = if wide { (m, m.t()) } else { (m.t(), m) };
        engine.matmul(left, right, gram.borrow_mut(), 0, Store::Overwrite, ProductPrecision::F32)?;
        let g = Operand::new(gram.borrow(), side)?;
        engine.matmul(g, g, square.borrow_mut(), 0, Store::Overwrite, ProductPrecision::F32)?;
        engine.polynomial(COEFFICIENTS, side, gram.borrow(), square.borrow_mut())?;
        let polynomial = Operand::new(square.borrow(), side)?;
        let (left, right) = if wide { (polynomial, m) } else { (m, polynomial) };
        engine.matmul(left, right, next.borrow_mut(), 0, Store::Overwrite, ProductPrecision::F32)?;
        std::mem::swap(&mut x, &mut next);
    }
    Ok(x)
}

#[cfg(test)]
mod tests {
    use trike_cpu::Cpu;

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
            // It has a positive inner product with the matrix.
            assert!(x.iter().zip(&matrix).map(|(a, b)| a * b).sum::<f32>() > 0.0);
        }
        assert_eq!(orthogonal(&cpu, vec![0.0; 6], 3).expect("a matrix"), [0.0; 6]);
    }
}
