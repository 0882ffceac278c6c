//! The Hadamard rotation of a tensor's inputs.

use crate::TritError;

/// The normalized block-wise Walsh-Hadamard transform: orthogonal, symmetric and its own inverse. The block size is a power of
/// two.
///
/// Element `i` of a block becomes `sum over j of (-1)^popcount(i & j) x[j] / sqrt(block)`, in `log2(block)` butterfly stages.
/// An outlier is spread over its block, so that the values of a block fit one scale better (QuaRot, Ashkboos et al.,
/// 2404.00456).
///
/// ```
/// use trike_trit::Hadamard;
///
/// let hadamard = Hadamard::new(4)?;
/// let mut x = [2.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0];
/// hadamard.apply(&mut x)?;
/// assert_eq!(x, [1.0, 1.0, 1.0, 1.0, 2.0, 0.0, 0.0, 0.0]);
/// # Ok::<(), trike_trit::TritError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hadamard(u32);

impl Hadamard {
    /// The largest block size: 256 GPU threads (available on all GPUs) with four registers each.
    pub const MAX: usize = 1024;

    /// A transform of blocks of `block` elements.
    ///
    /// # Errors
    ///
    /// [`TritError::Rotation`] unless `block` is a power of two from 2 to [`Hadamard::MAX`].
    pub fn new(block: usize) -> Result<Self, TritError> {
        match u32::try_from(block) {
            Ok(n) if n.is_power_of_two() && (2..=Self::MAX).contains(&block) => Ok(Self(n)),
            _ => Err(TritError::Rotation { what: "rotation block size", got: block }),
        }
    }

    /// The largest block size of at most `most` that divides `cols`; `None` if `cols` is odd or `most < 2`.
    pub fn largest(cols: usize, most: usize) -> Option<Self> {
        let fits = |block: &usize| cols.is_multiple_of(*block);
        (1..=Self::MAX.ilog2())
            .rev()
            .map(|bits| 1 << bits)
            .filter(|&b| b <= most)
            .find(fits)
            .and_then(|b| Self::new(b).ok())
    }

    /// Elements per block.
    pub const fn block(self) -> usize {
        self.0 as usize
    }

    /// The normalization factor, `1 / sqrt(block)`.
    pub fn factor(self) -> f32 {
        (1.0 / f64::from(self.0).sqrt()) as f32
    }

    /// Transforms every block of `values` in place.
    ///
    /// # Errors
    ///
    /// [`TritError::Length`] unless the length is a multiple of the block size.
    pub fn apply(self, values: &mut [f32]) -> Result<(), TritError> {
        let rest = values.len() % self.block();
        if rest != 0 {
            return Err(TritError::Length {
                what: "values after the last full block",
                expected: 0,
                got: rest,
            });
        }
        self.apply_blocks(values);
        Ok(())
    }

    /// [`Hadamard::apply`] without the length check.
    pub(crate) fn apply_blocks(self, values: &mut [f32]) {
        for block in values.chunks_exact_mut(self.block()) {
            let mut half = 1;
            while half < block.len() {
                for pair in block.chunks_exact_mut(2 * half) {
                    let (low, high) = pair.split_at_mut(half);
                    for (a, b) in low.iter_mut().zip(high) {
                        (*a, *b) = (*a + *b, *a - *b);
                    }
                }
                half *= 2;
            }
            block.iter_mut().for_each(|v| *v *= self.factor());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trike_testkit::assert_near;

    #[test]
    fn transforms_are_the_product_with_the_matrix_and_their_own_inverse() {
        for bits in 1..=Hadamard::MAX.ilog2() {
            let n = 1 << bits;
            let hadamard = Hadamard::new(n).unwrap();
            let x: Vec<f32> = (0..2 * n).map(|i| ((i * 37 + 11) % 19) as f32 - 9.0).collect();
            let mut got = x.clone();
            hadamard.apply(&mut got).unwrap();
            for at in [0, 1, n / 2, n - 1, n, 2 * n - 1] {
                let (block, i) = (at / n, at % n);
                let sign = |j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
                let sum: f64 = (0..n).map(|j| sign(j) * f64::from(x[block * n + j])).sum();
                assert_near!(f64::from(got[at]), sum / (n as f64).sqrt(), abs = 1e-3, "{n}: {at}");
            }
            hadamard.apply(&mut got).unwrap();
            for (got, want) in got.iter().zip(&x) {
                assert_near!(*got, *want, abs = 1e-4, "{n}");
            }
        }
    }

    #[test]
    fn blocks_that_do_not_fit_are_refused() {
        for block in [0, 1, 3, 48, 2048, usize::MAX] {
            assert!(matches!(Hadamard::new(block), Err(TritError::Rotation { got, .. }) if got == block));
        }
        let hadamard = Hadamard::new(8).unwrap();
        assert!(matches!(hadamard.apply(&mut [0.0; 12]), Err(TritError::Length { got: 4, .. })));
        let largest = |cols, most| Hadamard::largest(cols, most).map(Hadamard::block);
        assert_eq!(
            [largest(172, 512), largest(11_008, 512), largest(4096, 512)],
            [Some(4), Some(256), Some(512)]
        );
        assert_eq!(
            [largest(7, 512), largest(64, 1), largest(64, 63), largest(0, 2)],
            [None, None, Some(32), Some(2)]
        );
    }
}
