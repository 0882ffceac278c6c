//! A weight tensor in memory.

use trike_trit::{ScaleValues, TritTensor};

use crate::{DenseData, DenseTensor, Int8Tensor, TensorError, dense::check_row};

/// A tensor in memory: dense, int8 or ternary.
///
/// Matrices are `[rows, cols]`, that is, output features x input features.
#[derive(Clone, Debug, PartialEq)]
pub enum Tensor {
    /// f32, f16 or bf16 numbers.
    Dense(DenseTensor),
    /// Int8 codes with one scale per group.
    Int8(Int8Tensor),
    /// Trits with scales.
    Ternary(TritTensor),
}

impl Tensor {
    /// Product of all axes but the last.
    pub fn rows(&self) -> usize {
        match self {
            Self::Dense(t) => t.rows(),
            Self::Int8(t) => t.rows(),
            Self::Ternary(t) => t.rows(),
        }
    }

    /// Length of the last axis.
    pub fn cols(&self) -> usize {
        match self {
            Self::Dense(t) => t.cols(),
            Self::Int8(t) => t.cols(),
            Self::Ternary(t) => t.cols(),
        }
    }

    /// Length of each axis, slowest-varying first.
    pub fn shape(&self) -> Vec<usize> {
        match self {
            Self::Dense(t) => t.shape().to_vec(),
            Self::Int8(_) | Self::Ternary(_) => vec![self.rows(), self.cols()],
        }
    }

    /// Memory size in bytes, including scales.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Dense(t) => t.bytes(),
            Self::Int8(t) => t.bytes(),
            Self::Ternary(t) => t.bytes(),
        }
    }

    /// Every weight as f32 in row-major order: exact for dense tensors, code times scale for the others.
    pub fn to_f32(&self) -> Vec<f32> {
        match self {
            Self::Dense(t) => t.to_f32(),
            Self::Int8(t) => t.dequantize(),
            Self::Ternary(t) => t.dequantize(),
        }
    }

    /// Like [`to_f32`](Self::to_f32), but without a copy if the weights are dense f32.
    pub fn into_f32(self) -> Vec<f32> {
        match self {
            Self::Dense(t) => t.into_f32(),
            other => other.to_f32(),
        }
    }

    /// Writes row `row` to `out` as f32.
    ///
    /// # Errors
    ///
    /// [`TensorError::Row`] for a row out of range, [`TensorError::Length`] unless `out` has
    /// [`cols`](Self::cols) elements.
    pub fn read_row(&self, row: usize, out: &mut [f32]) -> Result<(), TensorError> {
        let rows = self.rows();
        check_row(row, rows, self.cols(), out)?;
        match self {
            Self::Dense(t) => t.read_row(row, out),
            Self::Int8(t) => t.dequantize_row(row, out),
            Self::Ternary(t) => t.dequantize_row(row, out).map_err(|_| TensorError::Row { row, rows }),
        }
    }

    /// A selection or permutation of rows: row `i` of the result is row `rows[i]` of this tensor, with its scales. Each element of
    /// a dense vector is a row.
    ///
    /// # Errors
    ///
    /// [`TensorError::Row`] for a row out of range, [`TensorError::Shape`] if `rows` is empty.
    pub fn select_rows(&self, rows: &[usize]) -> Result<Self, TensorError> {
        let (count, width) = match self {
            Self::Dense(t) if t.shape().len() == 1 => (t.cols(), 1),
            other => (other.rows(), other.cols()),
        };
        if let Some(&row) = rows.iter().find(|&&row| row >= count) {
            return Err(TensorError::Row { row, rows: count });
        }
        Ok(match self {
            Self::Dense(t) => {
                let shape = match t.shape() {
                    [_] => vec![rows.len()],
                    _ => vec![rows.len(), width],
                };
                let data = match t.data() {
                    DenseData::F32(v) => DenseData::F32(pick(v, width, rows)),
                    DenseData::F16(v) => DenseData::F16(pick(v, width, rows)),
                    DenseData::Bf16(v) => DenseData::Bf16(pick(v, width, rows)),
                };
                Self::Dense(DenseTensor::new(shape, data)?)
            }
            Self::Int8(t) => {
                let groups = t.groups_per_row();
                let scales = match t.scales() {
                    ScaleValues::F16(v) => ScaleValues::F16(pick(v, groups, rows)),
                    ScaleValues::F32(v) => ScaleValues::F32(pick(v, groups, rows)),
                };
                let codes = pick(t.codes(), width, rows);
                Self::Int8(Int8Tensor::new(rows.len(), width, t.group(), codes, scales)?)
            }
            Self::Ternary(t) => {
                let empty = |_| TensorError::Shape { shape: vec![rows.len(), width] };
                Self::Ternary(t.select_rows(rows).map_err(empty)?)
            }
        })
    }
}

/// The given rows of `width` values each.
fn pick<T: Copy>(values: &[T], width: usize, rows: &[usize]) -> Vec<T> {
    rows.iter().flat_map(|&row| values[row * width..(row + 1) * width].iter().copied()).collect()
}

impl From<DenseTensor> for Tensor {
    fn from(tensor: DenseTensor) -> Self {
        Self::Dense(tensor)
    }
}

impl From<Int8Tensor> for Tensor {
    fn from(tensor: Int8Tensor) -> Self {
        Self::Int8(tensor)
    }
}

impl From<TritTensor> for Tensor {
    fn from(tensor: TritTensor) -> Self {
        Self::Ternary(tensor)
    }
}

#[cfg(test)]
mod tests {
    use trike_trit::{Encoding, Granularity, Scales};

    use super::*;

    /// Selected rows keep their values in every kind of tensor, and their scales if each row has its own.
    #[test]
    fn selected_rows_have_the_values_of_the_whole() {
        let (rows, cols) = (4, 6);
        let values: Vec<f32> = (0..rows * cols).map(|i| i as f32).collect();
        let halves = values.iter().map(|v| half::f16::from_f32(*v)).collect();
        let short = values.iter().map(|v| half::bf16::from_f32(*v)).collect();
        let codes = (0..rows * cols).map(|i| i as i8 - 9).collect();
        let scales: Vec<f32> = (0..rows * 2).map(|i| 1.0 + i as f32).collect();
        let trits: Vec<i8> = (0..rows * cols).map(|i| i as i8 % 3 - 1).collect();
        let of_rows: Vec<f32> = (0..rows).map(|i| 0.5 + i as f32).collect();
        let of_rows = Scales::new(Granularity::Row, of_rows, None);
        let dense = |data| DenseTensor::new(vec![rows, cols], data).expect("a matrix").into();
        let all: [Tensor; 5] = [
            dense(DenseData::F32(values.clone())),
            dense(DenseData::F16(halves)),
            dense(DenseData::Bf16(short)),
            Int8Tensor::new(rows, cols, 4, codes, ScaleValues::F32(scales)).expect("a matrix").into(),
            TritTensor::from_trits(rows, cols, &trits, Encoding::Base3, of_rows).expect("a matrix").into(),
        ];
        for tensor in all {
            let whole = tensor.to_f32();
            let some = tensor.select_rows(&[3, 1, 1]).expect("rows");
            let want: Vec<f32> =
                [3, 1, 1].iter().flat_map(|row| whole[row * cols..(row + 1) * cols].to_vec()).collect();
            assert_eq!((some.shape(), some.to_f32()), (vec![3, cols], want));
            assert_eq!(tensor.select_rows(&[0, 4]), Err(TensorError::Row { row: 4, rows }));
            assert!(matches!(tensor.select_rows(&[]), Err(TensorError::Shape { .. })));
        }
        let vector = Tensor::from(DenseTensor::new(vec![24], DenseData::F32(values)).expect("a vector"));
        let some = vector.select_rows(&[23, 0]).expect("elements");
        assert_eq!((some.shape(), some.to_f32()), (vec![2], vec![23.0, 0.0]));
    }
}
