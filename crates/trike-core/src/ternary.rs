//! Ternarization of dense matrices: exact for values that are already ternary, BitNet's absmean rule for others.

use trike_trit::{Encoding, Granularity, GroupSize, ScaleValues, Scales, TritError, TritTensor};

use crate::DenseTensor;

/// Lower bound of the mean magnitude in BitNet's rule, as in training.
const MIN_ABSMEAN: f32 = 1e-5;

/// The mean magnitude of `weights`, 0 if empty. Summed in f64, because an f32 sum depends on the order.
///
/// ```
/// assert_eq!(trike_core::absmean(&[0.25, -1.5, 0.25, 0.0]), 0.5);
/// ```
pub fn absmean(weights: &[f32]) -> f32 {
    // A single accumulator would serialize the additions on their latency.
    let mut lanes = [0f64; 8];
    let (chunks, rest) = weights.as_chunks::<8>();
    for chunk in chunks {
        for (lane, w) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(w.abs());
        }
    }
    let sum = lanes.into_iter().chain(rest.iter().map(|w| f64::from(w.abs()))).sum::<f64>();
    (sum / weights.len().max(1) as f64) as f32
}

/// Absmean ternarization of BitNet b1.58 master weights (Ma et al., 2024), per group of weights that share a scale under
/// `granularity`: `s = 1 / max(mean|w|, 1e-5)`, a trit is `w * s` rounded to nearest even and clamped to -1..1, and a weight
/// is the trit divided by `s`.
///
/// All steps except the mean ([`absmean`]) are in f32. With [`Granularity::Tensor`] this is what checkpoints with master
/// weights compute at each run; other engines that run the model in bf16 also round the weight to bf16, here it stays f32.
///
/// The result is a matrix of [`rows`](DenseTensor::rows) by [`cols`](DenseTensor::cols) with f32 scales.
///
/// ```
/// use trike_core::{DenseData, DenseTensor, absmean_trits};
/// use trike_trit::{Encoding, Granularity};
///
/// // The mean is 0.5: 0.25 is a tie, which goes to the even 0, and -1.5 is clamped.
/// let w = DenseTensor::new(vec![2, 2], DenseData::F32(vec![0.25, -1.5, 0.25, 0.0]))?;
/// let trits = |granularity| absmean_trits(&w, granularity, Encoding::TwoBit);
/// assert_eq!(trits(Granularity::Tensor)?.dequantize(), [0.0, -0.5, 0.0, 0.0]);
/// // One scale per row: 0.875 and 0.125.
/// let rows = trits(Granularity::Row)?.dequantize();
/// assert!(rows.iter().zip([0.0, -0.875, 0.125, 0.0]).all(|(w, want)| (w - want).abs() < 1e-6));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`TritError`] for an empty matrix, a matrix larger than the encoding allows, and weights so large that a scale overflows.
pub fn absmean_trits(
    dense: &DenseTensor,
    granularity: Granularity,
    encoding: Encoding,
) -> Result<TritTensor, TritError> {
    let (rows, cols) = (dense.rows(), dense.cols());
    let weights = dense.to_f32();
    let (mut trits, mut scales) = (Vec::with_capacity(weights.len()), Vec::new());
    for group in groups(&weights, cols, granularity) {
        let scale = 1.0 / absmean(group).max(MIN_ABSMEAN);
        trits.extend(group.iter().map(|w| (w * scale).round_ties_even().clamp(-1.0, 1.0) as i8));
        scales.push(1.0 / scale);
    }
    TritTensor::from_trits(rows, cols, &trits, encoding, Scales::new(granularity, scales, None))
}

/// The same matrix as trits, if every weight is exactly `-s`, `0` or `+s`; `None` otherwise.
///
/// Uses the coarsest granularity that fits: one `s` per tensor, then one per row, then one per 256, 128, 64 or 32
/// weights along a row. Scales are f16 if all of them are exact in f16, otherwise f32. If all weights of a group are
/// zero, its scale is 0. A weight of -0 becomes 0. Returns `None` unless the tensor has two axes.
///
/// ```
/// use trike_core::{DenseData, DenseTensor, exact_trits};
/// use trike_trit::{Encoding, Granularity};
///
/// let dense = |values: [f32; 4]| DenseTensor::new(vec![2, 2], DenseData::F32(values.to_vec()));
/// let trits = exact_trits(&dense([0.5, 0.0, -0.5, 0.5])?, Encoding::Base3)?.expect("one scale fits");
/// assert_eq!(trits.scales().granularity(), Granularity::Tensor);
/// assert_eq!(trits.dequantize(), [0.5, 0.0, -0.5, 0.5]);
/// assert!(exact_trits(&dense([0.5, 0.25, -0.5, 0.5])?, Encoding::Base3)?.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`TritError`] for an empty matrix or a matrix larger than the encoding allows.
pub fn exact_trits(dense: &DenseTensor, encoding: Encoding) -> Result<Option<TritTensor>, TritError> {
    let &[rows, cols] = dense.shape() else { return Ok(None) };
    let groups = GroupSize::ALL.into_iter().rev().filter(|g| g.get() < cols).map(Granularity::Group);
    let mut candidates = [Granularity::Tensor, Granularity::Row].into_iter().chain(groups);
    let weights = dense.to_f32();
    let Some((granularity, scales)) = candidates.find_map(|g| Some((g, scales(&weights, cols, g)?))) else {
        return Ok(None);
    };
    // A nonzero weight is plus or minus its scale, so its sign is the trit.
    let trits: Vec<i8> = weights.iter().map(|&v| i8::from(v > 0.0) - i8::from(v < 0.0)).collect();
    let scales = Scales::new(granularity, ScaleValues::exact(&scales), None);
    TritTensor::from_trits(rows, cols, &trits, encoding, scales).map(Some)
}

/// The single nonzero magnitude of each group, 0 if all weights are zero; `None` if a group has more than one.
fn scales(weights: &[f32], cols: usize, granularity: Granularity) -> Option<Vec<f32>> {
    groups(weights, cols, granularity).map(magnitude).collect()
}

/// The weights that share each scale, in the order of [`Scales`].
fn groups(weights: &[f32], cols: usize, granularity: Granularity) -> impl Iterator<Item = &[f32]> {
    // Chunked row by row, because `cols` need not be a multiple of the group size.
    let (row, group) = match granularity {
        Granularity::Tensor => (weights.len(), weights.len()),
        _ => (cols, granularity.group_len(cols)),
    };
    weights.chunks(row.max(1)).flat_map(move |row| row.chunks(group.max(1)))
}

/// The common magnitude of the nonzero weights, 0 if all are zero; `None` if they have more than one.
fn magnitude(weights: &[f32]) -> Option<f32> {
    weights.iter().try_fold(0.0, |s, w| match w.abs() {
        0.0 => Some(s),
        a if s == 0.0 || a == s => Some(a),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};
    use trike_testkit::{Rng, assert_near};
    use trike_trit::{Encoding, Granularity, GroupSize, ScaleValues, TritTensor};

    use super::{absmean_trits, exact_trits};
    use crate::{DenseData, DenseTensor};

    fn matrix(rows: usize, cols: usize, scale: impl Fn(usize, usize) -> f32) -> Vec<f32> {
        let trits = Rng::new(5).trits(rows * cols, 0.7);
        let place = |i: usize| (i / cols, i % cols);
        trits.iter().enumerate().map(|(i, &t)| f32::from(t) * scale(place(i).0, place(i).1)).collect()
    }

    fn granularity(rows: usize, cols: usize, values: &[f32]) -> Option<Granularity> {
        let dense = DenseTensor::new(vec![rows, cols], DenseData::F32(values.to_vec())).unwrap();
        let trits = exact_trits(&dense, Encoding::TwoBit).unwrap()?;
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
        let trits = exact_trits(&dense, Encoding::Planes).unwrap().unwrap();
        assert_eq!((trits.zeros(), trits.dequantize()), (6, vec![0.0; 6]));

        let s = f16::from_f32(0.1);
        let dense = DenseTensor::new(vec![1, 3], DenseData::F16(vec![s, -s, f16::ZERO])).unwrap();
        let trits = exact_trits(&dense, Encoding::Base3).unwrap().unwrap();
        assert_eq!(trits.scales().values(), &ScaleValues::F16(vec![s]));
        let vector = DenseTensor::new(vec![3], DenseData::F32(vec![1.0; 3])).unwrap();
        assert_eq!(exact_trits(&vector, Encoding::Base3), Ok(None));
    }

    fn absmean(shape: &[usize], data: DenseData, granularity: Granularity) -> TritTensor {
        let dense = DenseTensor::new(shape.to_vec(), data).unwrap();
        absmean_trits(&dense, granularity, Encoding::Planes).unwrap()
    }

    /// Each group is ternarized like a tensor with one scale.
    #[test]
    fn groups_are_tensors_of_their_own() {
        let (rows, cols) = (3, 100);
        let weights = Rng::new(4).normals(rows * cols);
        for granularity in [Granularity::Row, Granularity::Group(GroupSize::G32)] {
            let got = absmean(&[rows, cols], DenseData::F32(weights.clone()), granularity);
            let group = granularity.group_len(cols);
            let parts = weights.chunks(cols).flat_map(|row| row.chunks(group));
            let want: Vec<f32> = parts
                .flat_map(|part| {
                    let data = DenseData::F32(part.to_vec());
                    absmean(&[1, part.len()], data, Granularity::Tensor).dequantize()
                })
                .collect();
            assert_eq!(got.dequantize(), want);
            assert_eq!(got.scales().granularity(), granularity);
        }
    }

    #[test]
    fn a_matrix_of_bf16() {
        let weights = Rng::new(3).normals(5 * 33);
        let rounded: Vec<bf16> = weights.iter().map(|&w| bf16::from_f32(w)).collect();
        let mean = rounded.iter().map(|w| w.to_f64().abs()).sum::<f64>() / 165.0;
        let tensor = absmean(&[5, 33], DenseData::Bf16(rounded.clone()), Granularity::Tensor);
        assert_eq!(
            (tensor.scales().granularity(), tensor.encoding()),
            (Granularity::Tensor, Encoding::Planes)
        );
        for (w, got) in rounded.iter().map(|w| w.to_f64() / mean).zip(tensor.dequantize()) {
            // No weight of this seed is close to a tie.
            let want = if w.abs() < 0.5 { 0.0 } else { mean.copysign(w) };
            assert_near!(f64::from(got), want, abs = 1e-6, "weight {w}");
        }
    }

    #[test]
    fn tiny_and_huge_weights() {
        // Below the lower bound of the mean, everything rounds to zero.
        let pair = |pair: [f32; 2]| absmean(&[1, 2], DenseData::F32(pair.to_vec()), Granularity::Tensor);
        assert_eq!(pair([1e-6, 4e-6]).dequantize(), [0.0, 0.0]);
        assert_eq!(pair([1e-5, 0.0]).dequantize(), [1e-5, 0.0]);
        let huge = DenseTensor::new(vec![1, 2], DenseData::F32(vec![1e38, -1e38])).unwrap();
        assert_eq!(absmean_trits(&huge, Granularity::Tensor, Encoding::Base3).unwrap().zeros(), 0);
        // The reciprocal of f32's maximum is subnormal, and the reciprocal of that overflows.
        let largest = DenseTensor::new(vec![1, 1], DenseData::F32(vec![f32::MAX])).unwrap();
        let refused = absmean_trits(&largest, Granularity::Tensor, Encoding::Base3);
        assert!(refused.is_err_and(|e| e.to_string().contains("scale")));
    }
}
