//! Int8 matrices with one scale per group along a row.

use half::f16;
use trike_trit::ScaleValues;

use crate::{
    DenseTensor, TensorError,
    dense::{check_row, elements},
};

/// A `rows x cols` matrix of int8 codes: `w = code * scale`, with one scale per group along a row.
///
/// A group has [`group`](Self::group) columns; the last group of a row may be shorter. One scale per row is a
/// group size of `cols`. Scales are finite and ordered `[row][group]`.
///
/// ```
/// use trike_core::{DenseData, DenseTensor, Int8Tensor};
///
/// let dense = DenseTensor::new(vec![1, 3], DenseData::F32(vec![63.5, -0.75, 0.0]))?;
/// let w = Int8Tensor::quantize(&dense, 3, false)?;
/// assert_eq!((w.scale(0, 0), w.codes()), (0.5, &[127, -2, 0][..])); // -1.5 goes to the even neighbour
/// let mut row = [0.0; 3];
/// w.dequantize_row(0, &mut row)?;
/// assert_eq!(row, [63.5, -1.0, 0.0]);
/// # Ok::<(), trike_core::TensorError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Int8Tensor {
    rows: usize,
    cols: usize,
    group: usize,
    codes: Vec<i8>,
    scales: ScaleValues,
}

impl Int8Tensor {
    /// A matrix over codes in row-major order and scales in `[row][group]` order, validated in one pass.
    ///
    /// A `group` larger than `cols` means one scale per row and is stored as `cols`.
    ///
    /// # Errors
    ///
    /// [`TensorError::Shape`], [`TensorError::Group`] for a group size of 0, [`TensorError::Length`] for either
    /// buffer, [`TensorError::NonFinite`] for a scale.
    pub fn new(
        rows: usize,
        cols: usize,
        group: usize,
        codes: Vec<i8>,
        scales: ScaleValues,
    ) -> Result<Self, TensorError> {
        let n = elements(&[rows, cols])?;
        if group == 0 {
            return Err(TensorError::Group { got: group });
        }
        let group = group.min(cols);
        if codes.len() != n {
            return Err(TensorError::Length { what: "codes", expected: n, got: codes.len() });
        }
        let expected = rows * cols.div_ceil(group);
        if scales.len() != expected {
            return Err(TensorError::Length { what: "scales", expected, got: scales.len() });
        }
        if let Some((index, value)) = scales.iter().enumerate().find(|(_, v)| !v.is_finite()) {
            return Err(TensorError::NonFinite { what: "scale", index, value });
        }
        Ok(Self { rows, cols, group, codes, scales })
    }

    /// Quantizes a dense matrix: the scale of a group is its largest magnitude / 127, codes are rounded to nearest
    /// even. With `half_scales` the scale is first rounded to f16, and the codes are computed from the rounded scale.
    ///
    /// # Errors
    ///
    /// [`TensorError::Group`] for a group size of 0; [`TensorError::NonFinite`] when a scale overflows f16.
    pub fn quantize(dense: &DenseTensor, group: usize, half_scales: bool) -> Result<Self, TensorError> {
        let (rows, cols) = (dense.rows(), dense.cols());
        if group == 0 {
            return Err(TensorError::Group { got: group });
        }
        let mut row_values = vec![0.0; cols];
        let mut codes = Vec::with_capacity(rows * cols);
        let mut scales = Vec::with_capacity(rows * cols.div_ceil(group));
        for row in 0..rows {
            dense.read_row(row, &mut row_values)?;
            for values in row_values.chunks(group) {
                let exact = values.iter().fold(0f32, |m, v| m.max(v.abs())) / 127.0;
                let scale = if half_scales { f16::from_f32(exact).to_f32() } else { exact };
                // The scale is 0 if the group is all zeros or the scale underflows f16.
                let code = |v: &f32| (v / scale).round_ties_even().clamp(-127.0, 127.0) as i8;
                codes.extend(values.iter().map(|v| if scale > 0.0 { code(v) } else { 0 }));
                scales.push(scale);
            }
        }
        let scales = if half_scales {
            ScaleValues::F16(scales.into_iter().map(f16::from_f32).collect())
        } else {
            ScaleValues::F32(scales)
        };
        Self::new(rows, cols, group, codes, scales)
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Columns that share a scale; at most [`cols`](Self::cols).
    pub fn group(&self) -> usize {
        self.group
    }

    /// Scales per row.
    pub fn groups_per_row(&self) -> usize {
        self.cols.div_ceil(self.group)
    }

    /// The codes in row-major order.
    pub fn codes(&self) -> &[i8] {
        &self.codes
    }

    /// The scales, `[row][group]`.
    pub fn scales(&self) -> &ScaleValues {
        &self.scales
    }

    /// The scale of a group; 0 if the indices are out of range.
    pub fn scale(&self, row: usize, group: usize) -> f32 {
        let groups = self.groups_per_row();
        let index = row.checked_mul(groups).filter(|_| group < groups).and_then(|i| i.checked_add(group));
        index.and_then(|i| self.scales.get(i)).unwrap_or(0.0)
    }

    /// Size of codes and scales in bytes.
    pub fn bytes(&self) -> usize {
        self.codes.len() + self.scales.bytes()
    }

    /// Writes row `row` to `out` as f32.
    ///
    /// # Errors
    ///
    /// [`TensorError::Row`] for a row out of range, [`TensorError::Length`] unless `out` has
    /// [`cols`](Self::cols) elements.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) -> Result<(), TensorError> {
        check_row(row, self.rows, self.cols, out)?;
        self.dequantize_into(row, out);
        Ok(())
    }

    /// Every weight as f32 in row-major order.
    pub fn dequantize(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.codes.len()];
        for (row, out) in out.chunks_exact_mut(self.cols).enumerate() {
            self.dequantize_into(row, out);
        }
        out
    }

    fn dequantize_into(&self, row: usize, out: &mut [f32]) {
        let codes = &self.codes[row * self.cols..(row + 1) * self.cols];
        for (g, (codes, out)) in codes.chunks(self.group).zip(out.chunks_mut(self.group)).enumerate() {
            let scale = self.scale(row, g);
            codes.iter().zip(out).for_each(|(&c, o)| *o = f32::from(c) * scale);
        }
    }
}

#[cfg(test)]
mod tests {
    use half::f16;
    use trike_testkit::Rng;
    use trike_testkit::assert_near;
    use trike_trit::ScaleValues;

    use super::Int8Tensor;
    use crate::{DenseData, DenseTensor, TensorError};

    #[test]
    fn quantizing_is_within_half_a_step_and_ragged_groups_have_their_own_scale() {
        let mut rng = Rng::new(3);
        for (rows, cols, group) in [(1, 1, 32), (3, 70, 32), (5, 64, 64), (2, 17, 100)] {
            let values = rng.normals(rows * cols);
            let dense = DenseTensor::new(vec![rows, cols], DenseData::F32(values.clone())).unwrap();
            for half in [false, true] {
                let int8 = Int8Tensor::quantize(&dense, group, half).unwrap();
                let back = int8.dequantize();
                let mut row = vec![0.0; cols];
                for r in 0..rows {
                    int8.dequantize_row(r, &mut row).unwrap();
                    assert_eq!(row, back[r * cols..(r + 1) * cols]);
                    for c in 0..cols {
                        let step = int8.scale(r, c / int8.group());
                        // An f16 scale may be slightly less than absmax / 127, which adds a clamping error.
                        let bound = if half { 0.6 } else { 0.5001 } * step;
                        assert_near!(row[c], values[r * cols + c], abs = bound);
                    }
                }
            }
        }
    }

    #[test]
    fn zeros_and_bad_parts() {
        let zeros = DenseTensor::new(vec![1, 4], DenseData::F32(vec![0.0; 4])).unwrap();
        assert_eq!(Int8Tensor::quantize(&zeros, 2, true).unwrap().dequantize(), [0.0; 4]);
        assert_eq!(Int8Tensor::quantize(&zeros, 0, true), Err(TensorError::Group { got: 0 }));
        let scales = |n| ScaleValues::F32(vec![1.0; n]);
        assert!(Int8Tensor::new(2, 3, 2, vec![0; 6], scales(4)).is_ok());
        assert!(Int8Tensor::new(2, 3, 2, vec![0; 5], scales(4)).is_err());
        assert!(Int8Tensor::new(2, 3, 2, vec![0; 6], scales(3)).is_err());
        assert!(Int8Tensor::new(0, 3, 2, vec![], scales(0)).is_err());
        let bad = ScaleValues::F16(vec![f16::INFINITY]);
        let error = Int8Tensor::new(1, 3, 3, vec![0; 3], bad).unwrap_err();
        assert!(matches!(error, TensorError::NonFinite { what: "scale", index: 0, .. }), "{error}");
        let huge = DenseTensor::new(vec![1, 1], DenseData::F32(vec![f32::MAX])).unwrap();
        assert!(Int8Tensor::quantize(&huge, 1, true).is_err());
    }
}
