//! Int8 weights with group scales.

use trike_core::Int8Tensor;

use crate::error::{CpuError, check_len, check_range};

use super::dense::shape;
use crate::kernels::Rows;
use trike_host::Lines;

/// `rows x cols` weights `code * scale`, with one scale per `group` columns; the last group of a row may be shorter.
///
/// Activations stay f32: intended for embeddings and LM heads, where one byte per weight is accurate enough but int8
/// activations are not.
///
/// ```
/// use trike_cpu::Int8Matrix;
///
/// // Five columns in groups of four: two scales per row.
/// let matrix = Int8Matrix::new(2, 5, 4, vec![1; 10], vec![0.5; 4])?;
/// assert_eq!(matrix.bytes(), 10 + 4 * 4);
/// # Ok::<(), trike_cpu::CpuError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Int8Matrix {
    rows: usize,
    cols: usize,
    group: usize,
    codes: Lines<i8>,
    scales: Vec<f32>,
}

impl Int8Matrix {
    /// Creates a matrix from row-major codes and scales (`[row][group]`).
    ///
    /// # Errors
    ///
    /// [`CpuError::Shape`] for a dimension of zero, [`CpuError::Range`] for a group that is not `1..=cols`,
    /// [`CpuError::Length`] for a wrong number of codes or scales, [`CpuError::NonFiniteParameter`] for a non-finite
    /// scale, [`HostError::Memory`](crate::HostError::Memory) when out of memory.
    pub fn new(
        rows: usize,
        cols: usize,
        group: usize,
        codes: Vec<i8>,
        scales: Vec<f32>,
    ) -> Result<Self, CpuError> {
        let count = shape("int8 matrix", rows, cols)?;
        check_range("group of an int8 matrix", 1, cols, group)?;
        check_len("codes of an int8 matrix", count, codes.len())?;
        check_len("scales of an int8 matrix", rows * cols.div_ceil(group), scales.len())?;
        match scales.iter().enumerate().find(|(_, scale)| !scale.is_finite()) {
            Some((index, &value)) => Err(CpuError::NonFiniteParameter { what: "int8 scale", index, value }),
            None => {
                // LM heads are the largest matrices read in every step: use huge pages if available.
                let mut resident = Lines::zeroed(count)?;
                resident.copy_from_slice(&codes);
                Ok(Self { rows, cols, group, codes: resident, scales })
            }
        }
    }

    /// Copies the validated codes and scales of a tensor.
    ///
    /// # Errors
    ///
    /// [`HostError::Memory`](crate::HostError::Memory) when out of memory.
    pub fn from_tensor(tensor: &Int8Tensor) -> Result<Self, CpuError> {
        let mut codes = Lines::zeroed(tensor.codes().len())?;
        codes.copy_from_slice(tensor.codes());
        let (rows, cols, group) = (tensor.rows(), tensor.cols(), tensor.group());
        Ok(Self { rows, cols, group, codes, scales: tensor.scales().iter().collect() })
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Columns that share a scale.
    pub fn group(&self) -> usize {
        self.group
    }

    /// The codes, row-major.
    pub fn codes(&self) -> &[i8] {
        &self.codes
    }

    /// The scales, `[row][group]`.
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// Resident size in bytes: codes and scales.
    pub fn bytes(&self) -> usize {
        self.codes.len() + 4 * self.scales.len()
    }

    /// All weights, row-major.
    pub fn dequantize(&self) -> Vec<f32> {
        let groups = self.codes.chunks_exact(self.cols).flat_map(|row| row.chunks(self.group));
        groups
            .zip(&self.scales)
            .flat_map(|(codes, &scale)| codes.iter().map(move |&c| scale * f32::from(c)))
            .collect()
    }

    /// A range of rows for a kernel.
    pub(crate) fn slice(&self, rows: std::ops::Range<usize>) -> Rows<'_, i8> {
        let all = Rows { codes: &self.codes, cols: self.cols, scales: &self.scales, group: self.group };
        all.slice(rows)
    }
}
