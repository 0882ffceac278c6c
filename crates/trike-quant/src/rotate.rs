//! Hadamard rotations that spread outliers over a block.

use trike_core::{Bounds, OptionError};
use trike_trit::Hadamard;

use crate::{
    QuantError,
    error::{check_len, check_whole},
    quantize::SplitMix64,
};

/// An orthogonal matrix `R = H D`: random signs `D`, then a block-diagonal normalized Walsh-Hadamard matrix `H`, whose block size
/// is the largest power of two that divides the width.
///
/// A layer `W x` equals `(W R^T)(R x)`. An outlier of `x` or in a row of the weights is spread over its block, so that the
/// values of a group are closer to a normal distribution and fit one scale better (QuaRot, Ashkboos et al., 2404.00456). For an
/// odd width the block size is 1: only signs change.
///
/// ```
/// use trike_quant::Rotation;
///
/// let rotation = Rotation::new(6, 1)?;
/// assert_eq!(rotation.block(), 2);
/// let mut x = [3.0, 0.0, 0.0, 4.0, 0.0, 0.0];
/// rotation.rows(&mut x)?;
/// let norm: f32 = x.iter().map(|v| v * v).sum();
/// assert!((norm - 25.0).abs() < 1e-4 && x.iter().all(|v| v.abs() < 3.0));
/// # Ok::<(), trike_quant::QuantError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Rotation {
    /// `D`: 1 or -1 per element.
    signs: Vec<f32>,
    block: usize,
}

impl Rotation {
    /// A rotation of vectors of `width` elements; the same seed gives the same rotation on every machine.
    ///
    /// # Errors
    ///
    /// [`QuantError::Option`] for a width of 0.
    pub fn new(width: usize, seed: u64) -> Result<Self, QuantError> {
        OptionError::check("width", Bounds::at_least(1usize), width)?;
        let mut rng = SplitMix64(seed);
        let signs = (0..width).map(|_| if rng.bits() >> 63 == 0 { 1.0 } else { -1.0 }).collect();
        Ok(Self { signs, block: 1 << width.trailing_zeros() })
    }

    /// `hadamard` without signs, for vectors of `width` elements: the rotation of the inputs of a
    /// [`TritTensor`](trike_trit::TritTensor) that is stored rotated.
    ///
    /// # Errors
    ///
    /// [`QuantError::Option`] for a width of zero, [`QuantError::Partial`] unless it is a multiple of the block size.
    pub fn plain(width: usize, hadamard: Hadamard) -> Result<Self, QuantError> {
        let block = hadamard.block();
        OptionError::check("width", Bounds::at_least(1usize), width)?;
        check_whole("vectors", block, width)?;
        Ok(Self { signs: vec![1.0; width], block })
    }

    /// Length of the vectors.
    pub fn width(&self) -> usize {
        self.signs.len()
    }

    /// Block size of `H`.
    pub fn block(&self) -> usize {
        self.block
    }

    /// Replaces each row `x` of `values` (`rows x width`) by `R x`: rotates activations, or a weight that reads them (`W R^T`).
    ///
    /// # Errors
    ///
    /// [`QuantError::Partial`] for a partial row.
    pub fn rows(&self, values: &mut [f32]) -> Result<(), QuantError> {
        let width = self.width();
        check_whole("rows to rotate", width, values.len())?;
        let scale = (self.block as f32).sqrt().recip();
        for row in values.chunks_exact_mut(width) {
            for (v, sign) in row.iter_mut().zip(&self.signs) {
                *v *= sign * scale;
            }
            row.chunks_exact_mut(self.block).for_each(|block| walsh(block, 1));
        }
        Ok(())
    }

    /// Replaces `values`, the `width x cols` weight `W` of a layer whose output is to be rotated, by `R W`; a bias has one column.
    ///
    /// # Errors
    ///
    /// [`QuantError::Length`] unless there are `width * cols` values.
    pub fn columns(&self, values: &mut [f32], cols: usize) -> Result<(), QuantError> {
        let width = self.width();
        check_len("weights of a rotated output", width.saturating_mul(cols), values.len())?;
        if cols == 0 {
            return Ok(());
        }
        let scale = (self.block as f32).sqrt().recip();
        for (row, sign) in values.chunks_exact_mut(cols).zip(&self.signs) {
            row.iter_mut().for_each(|v| *v *= sign * scale);
        }
        values.chunks_exact_mut(self.block * cols).for_each(|rows| walsh(rows, cols));
        Ok(())
    }
}

/// The unnormalized Walsh-Hadamard transform of vectors of `unit` elements, in butterfly stages; the number of vectors is a power
/// of two.
fn walsh(values: &mut [f32], unit: usize) {
    let mut half = unit;
    while half < values.len() {
        for pair in values.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
}

#[cfg(test)]
mod tests {
    use trike_testkit::assert_near;
    use trike_testkit::{Rng, assert_close};

    use super::*;

    /// `R` by its definition: the sign of entry `i, j` of a Hadamard matrix is the parity of the bits that `i` and `j` share.
    fn matrix(rotation: &Rotation) -> Vec<f32> {
        let (n, block) = (rotation.width(), rotation.block());
        let entry = |i: usize, j: usize| match i / block == j / block {
            true if ((i % block) & (j % block)).count_ones().is_multiple_of(2) => rotation.signs[j],
            true => -rotation.signs[j],
            false => 0.0,
        };
        (0..n * n).map(|k| entry(k / n, k % n) / (block as f32).sqrt()).collect()
    }

    #[test]
    fn rows_and_columns_are_products_with_the_matrix() {
        for (width, block) in [(1, 1), (2, 2), (3, 1), (12, 4), (64, 64), (96, 32)] {
            let rotation = Rotation::new(width, 7).unwrap();
            assert_eq!((rotation.block(), rotation.width()), (block, width));
            let r = matrix(&rotation);
            let x = Rng::new(width as u64).normals(3 * width);
            // R R^T is the identity.
            for k in 0..width * width {
                let (i, j) = (k / width, k % width);
                let dot: f32 = (0..width).map(|k| r[i * width + k] * r[j * width + k]).sum();
                assert_near!(dot, f32::from(i == j), abs = 1e-5, "{width}: {i}, {j}");
            }
            let mut rows = x.clone();
            rotation.rows(&mut rows).unwrap();
            let at =
                |t: usize, i: usize| (0..width).map(|j| r[i * width + j] * x[t * width + j]).sum::<f32>();
            let want: Vec<f32> = (0..3 * width).map(|k| at(k / width, k % width)).collect();
            assert_close(&rows, &want, 1e-5);
            let mut columns = x.clone();
            rotation.columns(&mut columns, 3).unwrap();
            let at = |i: usize, c: usize| (0..width).map(|j| r[i * width + j] * x[j * 3 + c]).sum::<f32>();
            let want: Vec<f32> = (0..3 * width).map(|k| at(k / 3, k % 3)).collect();
            assert_close(&columns, &want, 1e-5);
        }
    }

    #[test]
    fn plain_ones_are_the_transform_of_tensors() {
        for (width, block) in [(12, 4), (96, 32), (64, 16)] {
            let hadamard = Hadamard::new(block).unwrap();
            let rotation = Rotation::plain(width, hadamard).unwrap();
            let (mut got, mut want) = (Rng::new(3).normals(2 * width), Rng::new(3).normals(2 * width));
            rotation.rows(&mut got).unwrap();
            hadamard.apply(&mut want).unwrap();
            assert_close(&got, &want, 1e-6);
        }
        let hadamard = Hadamard::new(8).unwrap();
        assert!(Rotation::plain(12, hadamard).is_err() && Rotation::plain(0, hadamard).is_err());
    }

    #[test]
    fn seeds_differ_and_what_does_not_fit_is_refused() {
        assert_eq!(Rotation::new(64, 1).unwrap(), Rotation::new(64, 1).unwrap());
        assert_ne!(Rotation::new(64, 1).unwrap(), Rotation::new(64, 2).unwrap());
        assert!(matches!(Rotation::new(0, 1), Err(QuantError::Option(e)) if e.field() == "width"));
        let rotation = Rotation::new(4, 1).unwrap();
        assert!(matches!(rotation.rows(&mut [0.0; 6]), Err(QuantError::Partial { unit: 4, got: 6, .. })));
        for len in [7, 9] {
            let error = rotation.columns(&mut vec![0.0; len], 2).unwrap_err();
            assert!(matches!(error, QuantError::Length { expected: 8, .. }), "{len}");
        }
        assert!(rotation.columns(&mut [], usize::MAX).is_err());
    }
}
