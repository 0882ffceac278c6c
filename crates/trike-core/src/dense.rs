//! Dense tensors: f32, f16 or bf16 in row-major order.

use half::{bf16, f16, slice::HalfFloatSliceExt};

use crate::TensorError;

/// Maximum number of axes of a tensor; no transformer weight has more.
pub const MAX_DIMS: usize = 4;

/// The numbers of a dense tensor in their storage format.
#[derive(Clone, Debug, PartialEq)]
pub enum DenseData {
    /// Four bytes each.
    F32(Vec<f32>),
    /// Two bytes each, 5 exponent bits.
    F16(Vec<f16>),
    /// Two bytes each, 8 exponent bits.
    Bf16(Vec<bf16>),
}

impl DenseData {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(v) => v.len(),
            Self::F16(v) => v.len(),
            Self::Bf16(v) => v.len(),
        }
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Index and value of the first number that is infinite or NaN.
    fn first_non_finite(&self) -> Option<(usize, f32)> {
        let find = |index: Option<usize>, value: &dyn Fn(usize) -> f32| index.map(|i| (i, value(i)));
        match self {
            Self::F32(v) => find(v.iter().position(|x| !x.is_finite()), &|i| v[i]),
            Self::F16(v) => find(v.iter().position(|x| !x.is_finite()), &|i| v[i].to_f32()),
            Self::Bf16(v) => find(v.iter().position(|x| !x.is_finite()), &|i| v[i].to_f32()),
        }
    }
}

/// A dense tensor of 1 to 4 axes in row-major order; every weight is finite.
///
/// A matrix is `[rows, cols]`, that is, output features x input features.
///
/// ```
/// use trike_core::{DenseData, DenseTensor};
///
/// let w = DenseTensor::new(vec![2, 3], DenseData::F32(vec![1.0, 0.0, -1.0, 0.5, 0.5, 0.0]))?;
/// assert_eq!((w.rows(), w.cols()), (2, 3));
/// assert!(DenseTensor::new(vec![2, 3], DenseData::F32(vec![1.0])).is_err());
/// assert!(DenseTensor::new(vec![1], DenseData::F32(vec![f32::NAN])).is_err());
/// # Ok::<(), trike_core::TensorError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct DenseTensor {
    shape: Vec<usize>,
    data: DenseData,
}

impl DenseTensor {
    /// A tensor of `shape` over `data`, validated in one pass.
    ///
    /// # Errors
    ///
    /// [`TensorError::Shape`], [`TensorError::Length`], or [`TensorError::NonFinite`] for the first weight
    /// that is infinite or NaN.
    pub fn new(shape: Vec<usize>, data: DenseData) -> Result<Self, TensorError> {
        let expected = elements(&shape)?;
        if data.len() != expected {
            return Err(TensorError::Length { what: "weights", expected, got: data.len() });
        }
        match data.first_non_finite() {
            Some((index, value)) => Err(TensorError::NonFinite { what: "weight", index, value }),
            None => Ok(Self { shape, data }),
        }
    }

    /// Length of each axis, slowest-varying first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Product of all axes but the last: 1 for a vector.
    pub fn rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }

    /// Length of the last axis.
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(0)
    }

    /// The numbers as stored.
    pub fn data(&self) -> &DenseData {
        &self.data
    }

    /// Consumes the tensor and returns its numbers.
    pub fn into_data(self) -> DenseData {
        self.data
    }

    /// Size of the numbers in bytes.
    pub fn bytes(&self) -> usize {
        match &self.data {
            DenseData::F32(v) => 4 * v.len(),
            DenseData::F16(v) => 2 * v.len(),
            DenseData::Bf16(v) => 2 * v.len(),
        }
    }

    /// Every weight as f32, exactly, in row-major order.
    pub fn to_f32(&self) -> Vec<f32> {
        match &self.data {
            DenseData::F32(v) => v.clone(),
            DenseData::F16(v) => v.to_f32_vec(),
            DenseData::Bf16(v) => v.to_f32_vec(),
        }
    }

    /// Like [`to_f32`](Self::to_f32), but without a copy if the weights are f32 already.
    pub fn into_f32(self) -> Vec<f32> {
        match self.data {
            DenseData::F32(v) => v,
            _ => self.to_f32(),
        }
    }

    /// Writes row `row` to `out` as f32, exactly.
    ///
    /// # Errors
    ///
    /// [`TensorError::Row`] for a row out of range, [`TensorError::Length`] unless `out` has
    /// [`cols`](Self::cols) elements.
    pub fn read_row(&self, row: usize, out: &mut [f32]) -> Result<(), TensorError> {
        let (rows, cols) = (self.rows(), self.cols());
        check_row(row, rows, cols, out)?;
        let range = row * cols..(row + 1) * cols;
        match &self.data {
            DenseData::F32(v) => out.copy_from_slice(&v[range]),
            DenseData::F16(v) => v[range].convert_to_f32_slice(out),
            DenseData::Bf16(v) => v[range].convert_to_f32_slice(out),
        }
        Ok(())
    }
}

/// Number of elements of a shape.
///
/// # Errors
///
/// [`TensorError::Shape`] for a shape that is invalid for a [`DenseTensor`].
pub fn elements(shape: &[usize]) -> Result<usize, TensorError> {
    let error = || TensorError::Shape { shape: shape.to_vec() };
    if shape.is_empty() || shape.len() > MAX_DIMS || shape.contains(&0) {
        return Err(error());
    }
    // No type takes more than 16 bytes per element, so later products with an element size cannot overflow.
    let n = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).ok_or_else(error)?;
    if n > isize::MAX as usize / 16 { Err(error()) } else { Ok(n) }
}

pub(crate) fn check_row(row: usize, rows: usize, cols: usize, out: &[f32]) -> Result<(), TensorError> {
    if row >= rows {
        return Err(TensorError::Row { row, rows });
    }
    if out.len() != cols {
        return Err(TensorError::Length { what: "row buffer", expected: cols, got: out.len() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::{DenseData, DenseTensor};
    use crate::TensorError;

    #[test]
    fn shapes_at_and_past_the_limits() {
        let ones = |shape: Vec<usize>, n| DenseTensor::new(shape, DenseData::F32(vec![1.0; n]));
        assert!(ones(vec![1], 1).is_ok());
        assert!(ones(vec![1, 2, 3, 4], 24).is_ok());
        for shape in [vec![], vec![1, 1, 1, 1, 1], vec![2, 0], vec![usize::MAX, 2], vec![usize::MAX]] {
            assert_eq!(ones(shape.clone(), 1), Err(TensorError::Shape { shape }));
        }
        let length = TensorError::Length { what: "weights", expected: 6, got: 7 };
        assert_eq!(ones(vec![2, 3], 7), Err(length));
    }

    #[test]
    fn every_type_reads_as_exact_f32_and_refuses_non_finite() {
        let values = [1.5f32, -0.25, 0.0, 2.0];
        let all = [
            DenseData::F32(values.to_vec()),
            DenseData::F16(values.iter().map(|&v| f16::from_f32(v)).collect()),
            DenseData::Bf16(values.iter().map(|&v| bf16::from_f32(v)).collect()),
        ];
        for data in all {
            let tensor = DenseTensor::new(vec![2, 2], data).unwrap();
            assert_eq!(tensor.to_f32(), values);
            let mut row = [9.0; 2];
            tensor.read_row(1, &mut row).unwrap();
            assert_eq!(row, [0.0, 2.0]);
            assert_eq!(tensor.read_row(2, &mut row), Err(TensorError::Row { row: 2, rows: 2 }));
            assert!(tensor.read_row(0, &mut row[..1]).is_err());
            assert_eq!(tensor.into_f32(), values);
        }
        for bad in [
            DenseData::F32(vec![0.0, f32::INFINITY]),
            DenseData::F16(vec![f16::ZERO, f16::NAN]),
            DenseData::Bf16(vec![bf16::ZERO, bf16::NEG_INFINITY]),
        ] {
            let error = DenseTensor::new(vec![2], bad).unwrap_err();
            assert!(matches!(error, TensorError::NonFinite { index: 1, .. }), "{error}");
        }
    }
}
