//! Weights that stayed floats.

use trike_core::{DenseData, DenseTensor};

use crate::error::{CpuError, check_len};
use crate::kernels::{Element, Rows};

/// `rows x cols` floats; products and sums are f32 whatever the weights' type.
///
/// ```
/// use trike_cpu::{DenseData, DenseMatrix};
///
/// let matrix = DenseMatrix::new(2, 3, DenseData::F32(vec![1.0; 6]))?;
/// assert_eq!((matrix.rows(), matrix.cols(), matrix.bytes()), (2, 3, 24));
/// assert!(DenseMatrix::new(2, 3, DenseData::F32(vec![1.0; 5])).is_err());
/// # Ok::<(), trike_cpu::CpuError>(())
/// ```
#[derive(Clone, Debug)]
pub struct DenseMatrix {
    rows: usize,
    cols: usize,
    data: DenseData,
}

impl DenseMatrix {
    /// Takes the numbers of a row-major matrix.
    ///
    /// # Errors
    ///
    /// [`CpuError::Shape`] for a dimension of zero, [`CpuError::Length`] when there are not `rows * cols` numbers.
    pub fn new(rows: usize, cols: usize, data: DenseData) -> Result<Self, CpuError> {
        let count = shape("dense matrix", rows, cols)?;
        check_len("numbers of a dense matrix", count, data.len())?;
        Ok(Self { rows, cols, data })
    }

    /// Takes the numbers of a tensor, without a copy; more than two axes are rows of the last one.
    #[must_use]
    pub fn from_tensor(tensor: DenseTensor) -> Self {
        Self { rows: tensor.rows(), cols: tensor.cols(), data: tensor.into_data() }
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The numbers, row-major.
    pub fn data(&self) -> &DenseData {
        &self.data
    }

    /// The numbers in f32, row-major.
    pub fn to_f32(&self) -> Vec<f32> {
        match &self.data {
            DenseData::F32(v) => v.clone(),
            DenseData::F16(v) => v.iter().map(|x| x.to_f32()).collect(),
            DenseData::Bf16(v) => v.iter().map(|x| x.to_f32()).collect(),
        }
    }

    /// Resident size in bytes.
    pub fn bytes(&self) -> usize {
        match &self.data {
            DenseData::F32(v) => 4 * v.len(),
            DenseData::F16(v) => 2 * v.len(),
            DenseData::Bf16(v) => 2 * v.len(),
        }
    }

    /// Some rows of `data`, which the caller took from this matrix, for a kernel.
    pub(crate) fn slice<'a, E: Element>(&self, data: &'a [E], rows: std::ops::Range<usize>) -> Rows<'a, E> {
        let all = Rows { codes: data, cols: self.cols, scales: &[], group: self.cols };
        all.slice(rows)
    }
}

/// Elements of a matrix whose sides must not be zero.
pub(super) fn shape(what: &'static str, rows: usize, cols: usize) -> Result<usize, CpuError> {
    rows.checked_mul(cols).filter(|&count| count > 0).ok_or(CpuError::Shape { what, rows, cols })
}
