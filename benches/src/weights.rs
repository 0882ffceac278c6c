//! Weights of a problem, converted to the format of each kernel.

use trike_cpu::{CpuError, DenseData, DenseMatrix, Int8Matrix, Matrix};
use trike_testkit::Rng;
use trike_trit::{Coupling, Encoding, Granularity, GroupSize, ScaleValues, Scales, TritTensor};

use crate::catalogue::Case;
use crate::kernel::{Form, Kernel, Planes};

/// `rows x cols` trits, which with small integer scales give the same weight values in every kernel's format.
///
/// ```
/// use trike_benches::{LAYER, TERNARY, Weights};
///
/// let weights = Weights::new(1, 3, vec![1, 0, -1]);
/// assert_eq!(weights.integers(&TERNARY), [3, 0, -3]);
/// let f16 = LAYER.iter().find(|kernel| kernel.name == "f16 x f32").expect("in the list");
/// assert_eq!(weights.matrix(f16)?.bytes(), 6);
/// # Ok::<(), trike_cpu::CpuError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Weights {
    rows: usize,
    cols: usize,
    trits: Vec<i8>,
}

impl Weights {
    /// Scale of the kernels with one scale per tensor.
    const SCALE: u8 = 3;
    /// Granularity of the scale factors for int8 and dense kernels, which have no ternary scales.
    const GROUP: Granularity = Granularity::Group(GroupSize::G128);

    /// Weights with these trits, row-major.
    ///
    /// # Panics
    ///
    /// If there are not exactly `rows * cols` trits.
    #[must_use]
    pub fn new(rows: usize, cols: usize, trits: Vec<i8>) -> Self {
        assert_eq!(rows.checked_mul(cols), Some(trits.len()), "a trit for each weight");
        Self { rows, cols, trits }
    }

    /// Random weights for a case, with its distribution of zeros.
    #[must_use]
    pub fn random(case: &Case, rng: &mut Rng) -> Self {
        /// Rows and columns of the blocks that the kernel can skip.
        const BLOCK: (usize, usize) = (32, 32);
        Self::new(case.shape.rows, case.shape.cols, case.zeros.trits(case.shape, BLOCK, rng))
    }

    /// Number of outputs.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of inputs.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The weight values (trits times scales) of a kernel, row-major.
    #[must_use]
    pub fn integers(&self, kernel: &Kernel) -> Vec<i8> {
        let (planes, scales) = match kernel.form {
            Form::Ternary { planes, scales, .. } => (planes, scales),
            Form::Int8 | Form::F16 | Form::F32 => (Planes::One, Self::GROUP),
        };
        let len = scales.group_len(self.cols).max(1);
        let mut integers = vec![0i8; self.trits.len()];
        for plane in 0..planes.count() {
            let trits = self.plane(plane);
            let rows = integers.chunks_exact_mut(self.cols.max(1)).zip(trits.chunks_exact(self.cols.max(1)));
            for (row, (out, trits)) in rows.enumerate() {
                for (group, (out, trits)) in out.chunks_mut(len).zip(trits.chunks(len)).enumerate() {
                    let scale = plane_scale(planes, plane, shared_scale(scales, row, group)) as i8;
                    out.iter_mut().zip(trits).for_each(|(w, &t)| *w += scale * t);
                }
            }
        }
        integers
    }

    /// The trits of a plane: those of the first plane, rotated, so that planes differ but have equal density.
    fn plane(&self, plane: usize) -> Vec<i8> {
        let mut trits = self.trits.clone();
        trits.rotate_left(plane * (self.trits.len() / 3 + 1) % self.trits.len().max(1));
        trits
    }

    /// The weights in the format of a kernel.
    ///
    /// # Errors
    ///
    /// Errors of the constructors of the matrices and of [`TritTensor`]; none for shapes of the catalogue.
    pub fn matrix(&self, kernel: &Kernel) -> Result<Matrix, CpuError> {
        let (rows, cols) = (self.rows, self.cols);
        match kernel.form {
            Form::Ternary { planes, scales, pack } => pack(&self.tensor(planes, scales)?),
            Form::Int8 => {
                let scales = vec![1.0; rows * cols.div_ceil(32)];
                Ok(Int8Matrix::new(rows, cols, 32, self.integers(kernel), scales)?.into())
            }
            Form::F16 => {
                let data = DenseData::F16(self.integers(kernel).into_iter().map(Into::into).collect());
                Ok(DenseMatrix::new(rows, cols, data)?.into())
            }
            Form::F32 => {
                let data = DenseData::F32(self.integers(kernel).into_iter().map(Into::into).collect());
                Ok(DenseMatrix::new(rows, cols, data)?.into())
            }
        }
    }

    fn tensor(&self, planes: Planes, granularity: Granularity) -> Result<TritTensor, CpuError> {
        let trits: Vec<Vec<i8>> = (0..planes.count()).map(|plane| self.plane(plane)).collect();
        let trits: Vec<&[i8]> = trits.iter().map(Vec::as_slice).collect();
        let (coupling, sets) = match planes {
            // The scales of tied planes are derived from the first plane's.
            Planes::One | Planes::Tied(_) => {
                (if planes == Planes::One { Coupling::Free } else { Coupling::Tied }, 1)
            }
            Planes::Free(_) => (Coupling::Free, planes.count()),
        };
        let (rows, groups) = match granularity {
            Granularity::Tensor => (1, 1),
            Granularity::Row | Granularity::Group(_) => (self.rows, granularity.groups_per_row(self.cols)),
        };
        let mut values = Vec::with_capacity(sets * rows * groups);
        for plane in 0..sets {
            for row in 0..rows {
                let of = |group| plane_scale(planes, plane, shared_scale(granularity, row, group));
                values.extend((0..groups).map(of));
            }
        }
        // A single scale is f32, as in BitNet checkpoints; row and group scales are f16, as in GGUF blocks.
        let values = match granularity {
            Granularity::Tensor => ScaleValues::F32(values.into_iter().map(Into::into).collect()),
            Granularity::Row | Granularity::Group(_) => {
                ScaleValues::F16(values.into_iter().map(Into::into).collect())
            }
        };
        let scales = Scales::new(granularity, values, None);
        Ok(TritTensor::from_planes(self.rows, self.cols, &trits, Encoding::TwoBit, coupling, scales)?)
    }
}

/// Scale factor of a group, 1 to 7 for rows and groups. It differs between adjacent rows and groups, so that tests detect a
/// scale from the wrong position.
fn shared_scale(granularity: Granularity, row: usize, group: usize) -> u8 {
    match granularity {
        Granularity::Tensor => Weights::SCALE,
        Granularity::Row | Granularity::Group(_) => 1 + ((3 * row + 2 * group) % 7) as u8,
    }
}

/// Scale of a plane. Three tied planes have 9, 3 and 1 times the factor, so that the thirds are integers; each free plane
/// adds 1 to the previous one's scale. A weight is at most 91 (three tied planes with factor 7).
fn plane_scale(planes: Planes, plane: usize, shared: u8) -> u8 {
    match planes {
        Planes::One => shared,
        Planes::Tied(n) => shared * 3u8.pow(u32::from(n) - 1 - plane as u32),
        Planes::Free(_) => shared + plane as u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::EVERY;

    #[test]
    fn tensors_hold_the_integers() {
        let (rows, cols) = (5, 300);
        let weights = Weights::new(rows, cols, (0..rows * cols).map(|i| (i * i % 7 % 3) as i8 - 1).collect());
        for kernel in EVERY {
            let Form::Ternary { planes, scales, .. } = kernel.form else { continue };
            let tensor = weights.tensor(planes, scales).expect("a valid tensor");
            let want: Vec<f32> = weights.integers(kernel).into_iter().map(f32::from).collect();
            assert_eq!(tensor.dequantize(), want, "{}", kernel.name);
            assert_eq!(tensor.depth(), planes.count());
        }
    }

    #[test]
    fn no_weight_leaves_a_byte() {
        for planes in [Planes::One, Planes::Tied(2), Planes::Tied(3), Planes::Free(2), Planes::Free(3)] {
            let most: u32 = (0..planes.count()).map(|p| u32::from(plane_scale(planes, p, 7))).sum();
            assert!(most <= 127, "{planes:?}: {most}");
        }
    }
}
