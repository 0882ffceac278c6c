//! Dense float weights.

use trike_core::{DenseData, DenseTensor};

use crate::error::{CpuError, check_len};
use crate::kernels::{Element, Rows};

/// `rows x cols` floats; products and sums are f32 for all element types.
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
    /// Creates a matrix from row-major elements.
    ///
    /// # Errors
    ///
    /// [`CpuError::Shape`] for a dimension of zero, [`CpuError::Length`] when there are not `rows * cols` elements.
    pub fn new(rows: usize, cols: usize, data: DenseData) -> Result<Self, CpuError> {
        let count = shape("dense matrix", rows, cols)?;
        check_len("numbers of a dense matrix", count, data.len())?;
        Ok(Self { rows, cols, data })
    }

    /// Takes the elements of a tensor, without a copy; all axes but the last one are flattened into rows.
    #[must_use]
    pub fn from_tensor(tensor: DenseTensor) -> Self {
        Self { rows: tensor.rows(), cols: tensor.cols(), data: tensor.into_data() }
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The elements, row-major.
    pub fn data(&self) -> &DenseData {
        &self.data
    }

    /// The elements in f32, row-major.
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

    /// A range of rows of `data`, the elements of this matrix, for a kernel.
    pub(crate) fn slice<'a, E: Element>(&self, data: &'a [E], rows: std::ops::Range<usize>) -> Rows<'a, E> {
        let all = Rows { elements: data, cols: self.cols };
        all.slice(rows)
    }
}

/// Number of elements of a non-empty matrix.
pub(super) fn shape(what: &'static str, rows: usize, cols: usize) -> Result<usize, CpuError> {
    rows.checked_mul(cols).filter(|&count| count > 0).ok_or(CpuError::Shape { what, rows, cols })
}
