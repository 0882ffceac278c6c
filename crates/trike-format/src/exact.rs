//! Dense matrices that are ternary already.

use trike_trit::{Encoding, Granularity, GroupSize, ScaleValues, Scales, TritTensor};

use crate::DenseTensor;

/// The same matrix as trits, when every weight is `-s`, `0` or `+s` exactly; `None` otherwise.
///
/// The coarsest granularity that fits is taken: one `s` for the tensor, then one a row, then one for each 256,
/// 128, 64 or 32 weights along a row. Scales are f16 when all of them are f16 numbers, else f32. Where all
/// weights are zero the scale is 0. A weight of -0 becomes 0. Only matrices (two axes) are considered.
///
/// ```
/// use trike_format::{DenseData, DenseTensor, exact_trits};
/// use trike_trit::{Encoding, Granularity};
///
/// let dense = |values: [f32; 4]| DenseTensor::new(vec![2, 2], DenseData::F32(values.to_vec()));
/// let trits = exact_trits(&dense([0.5, 0.0, -0.5, 0.5])?, Encoding::Base3).expect("one scale fits");
/// assert_eq!(trits.scales().granularity(), Granularity::Tensor);
/// assert_eq!(trits.dequantize(), [0.5, 0.0, -0.5, 0.5]);
/// assert!(exact_trits(&dense([0.5, 0.25, -0.5, 0.5])?, Encoding::Base3).is_none());
/// # Ok::<(), trike_format::TensorError>(())
/// ```
pub fn exact_trits(dense: &DenseTensor, encoding: Encoding) -> Option<TritTensor> {
    let &[rows, cols] = dense.shape() else { return None };
    let groups = GroupSize::ALL.into_iter().rev().filter(|g| g.get() < cols).map(Granularity::Group);
    let mut candidates = [Granularity::Tensor, Granularity::Row].into_iter().chain(groups);
    let (granularity, scales) = candidates.find_map(|g| Some((g, scales(dense, g)?)))?;

    let mut trits = Vec::with_capacity(rows * cols);
    let mut row_values = vec![0.0; cols];
    for row in 0..rows {
        dense.read_row(row, &mut row_values).ok()?;
        // A weight that is not zero is its scale or minus that, so its sign says which.
        trits.extend(row_values.iter().map(|&v| i8::from(v > 0.0) - i8::from(v < 0.0)));
    }
    let scales = Scales::new(granularity, ScaleValues::exact(&scales), None);
    TritTensor::from_trits(rows, cols, &trits, encoding, scales).ok()
}

/// The one magnitude of each group, 0 where all weights are zero; `None` as soon as a group has two.
fn scales(dense: &DenseTensor, granularity: Granularity) -> Option<Vec<f32>> {
    let cols = dense.cols();
    let mut row_values = vec![0.0; cols];
    let mut scales = Vec::new();
    let mut whole = 0.0;
    for row in 0..dense.rows() {
        dense.read_row(row, &mut row_values).ok()?;
        if granularity == Granularity::Tensor {
            whole = magnitude(whole, &row_values)?;
        } else {
            for group in row_values.chunks(granularity.group_len(cols)) {
                scales.push(magnitude(0.0, group)?);
            }
        }
    }
    if granularity == Granularity::Tensor {
        scales.push(whole);
    }
    Some(scales)
}

/// `so_far`, or the magnitude of the first weight when that is 0; `None` when a weight has another one.
fn magnitude(so_far: f32, weights: &[f32]) -> Option<f32> {
    weights.iter().try_fold(so_far, |s, w| match w.abs() {
        0.0 => Some(s),
        a if s == 0.0 || a == s => Some(a),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use half::f16;
    use trike_testkit::Rng;
    use trike_trit::{Encoding, Granularity, GroupSize, ScaleValues};

    use super::exact_trits;
    use crate::{DenseData, DenseTensor};

    fn matrix(rows: usize, cols: usize, scale: impl Fn(usize, usize) -> f32) -> Vec<f32> {
        let trits = Rng::new(5).trits(rows * cols, 0.7);
        let place = |i: usize| (i / cols, i % cols);
        trits.iter().enumerate().map(|(i, &t)| f32::from(t) * scale(place(i).0, place(i).1)).collect()
    }

    fn granularity(rows: usize, cols: usize, values: &[f32]) -> Option<Granularity> {
        let dense = DenseTensor::new(vec![rows, cols], DenseData::F32(values.to_vec())).unwrap();
        let trits = exact_trits(&dense, Encoding::TwoBit)?;
        assert_eq!(trits.dequantize(), values);
        Some(trits.scales().granularity())
    }

    #[test]
    fn the_coarsest_granularity_that_fits() {
        let (rows, cols) = (3, 300);
        assert_eq!(granularity(rows, cols, &matrix(rows, cols, |_, _| 0.1)), Some(Granularity::Tensor));
        let by_row = matrix(rows, cols, |r, _| 0.1 + r as f32);
        assert_eq!(granularity(rows, cols, &by_row), Some(Granularity::Row));
        for size in GroupSize::ALL {
            let by_group = matrix(rows, cols, |r, c| 0.1 + (r * 10 + c / size.get()) as f32);
            assert_eq!(granularity(rows, cols, &by_group), Some(Granularity::Group(size)));
        }
        let by_16 = matrix(rows, cols, |r, c| 0.1 + (r * 20 + c / 16) as f32);
        assert_eq!(granularity(rows, cols, &by_16), None);
    }

    #[test]
    fn one_weight_that_is_off_by_an_ulp_is_enough() {
        let mut values = matrix(4, 16, |_, _| 0.1);
        let at = values.iter().position(|v| *v > 0.0).unwrap();
        values[at] = values[at].next_up();
        assert_eq!(granularity(1, 64, &values), None);
    }

    #[test]
    fn zeros_and_halves() {
        let dense = DenseTensor::new(vec![2, 3], DenseData::F32(vec![-0.0; 6])).unwrap();
        let trits = exact_trits(&dense, Encoding::Planes).unwrap();
        assert_eq!((trits.zeros(), trits.dequantize()), (6, vec![0.0; 6]));

        let s = f16::from_f32(0.1);
        let dense = DenseTensor::new(vec![1, 3], DenseData::F16(vec![s, -s, f16::ZERO])).unwrap();
        let trits = exact_trits(&dense, Encoding::Base3).unwrap();
        assert_eq!(trits.scales().values(), &ScaleValues::F16(vec![s]));
        let vector = DenseTensor::new(vec![3], DenseData::F32(vec![1.0; 3])).unwrap();
        assert!(exact_trits(&vector, Encoding::Base3).is_none());
    }
}
