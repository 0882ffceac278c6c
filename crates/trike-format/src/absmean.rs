//! The ternary weights of a BitNet layer from its dense master weights.

use trike_trit::{Encoding, Scales, TritError, TritTensor};

use crate::DenseTensor;

/// The smallest mean that a scale is made from, as in training.
const MIN_MEAN: f32 = 1e-5;

/// The trits that a BitNet layer makes of its master weights each time it runs: `s = 1 / max(mean|w|, 1e-5)`, a
/// trit is `w * s` rounded half to even and clamped to -1..1, and a weight is the trit over `s`.
///
/// This is the rule of checkpoints that [`HfDir::online_ternary`](crate::HfDir::online_ternary) names. All of it is
/// in f32, but for the mean, whose sum is in f64: a sum in f32 depends on its order, which the rule leaves open. A model that
/// runs in bf16 elsewhere rounds the weight to bf16 once more; here it stays f32.
///
/// The result is a matrix of [`rows`](DenseTensor::rows) by [`cols`](DenseTensor::cols) with one scale, f32.
///
/// # Errors
///
/// [`TritError`] for a matrix larger than the encoding allows, or weights so large that the scale overflows.
///
/// ```
/// use trike_format::{DenseData, DenseTensor, absmean_trits};
/// use trike_trit::Encoding;
///
/// // The mean is 0.5: 0.25 is a tie, which goes to the even 0, and -1.5 is clamped.
/// let w = DenseTensor::new(vec![2, 2], DenseData::F32(vec![0.25, -1.5, 0.25, 0.0]))?;
/// assert_eq!(absmean_trits(&w, Encoding::TwoBit)?.dequantize(), [0.0, -0.5, 0.0, 0.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn absmean_trits(dense: &DenseTensor, encoding: Encoding) -> Result<TritTensor, TritError> {
    let (rows, cols) = (dense.rows(), dense.cols());
    let weights = dense.to_f32();
    let sum: f64 = weights.iter().map(|w| f64::from(w.abs())).sum();
    let scale = 1.0 / ((sum / weights.len() as f64) as f32).max(MIN_MEAN);
    let trit = |w: &f32| (w * scale).round_ties_even().clamp(-1.0, 1.0) as i8;
    let trits: Vec<i8> = weights.iter().map(trit).collect();
    TritTensor::from_trits(rows, cols, &trits, encoding, Scales::tensor(1.0 / scale))
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use trike_testkit::Rng;
    use trike_trit::{Encoding, Granularity, TritTensor};

    use super::absmean_trits;
    use crate::{DenseData, DenseTensor};

    fn absmean(shape: &[usize], data: DenseData) -> TritTensor {
        absmean_trits(&DenseTensor::new(shape.to_vec(), data).unwrap(), Encoding::Planes).unwrap()
    }

    #[test]
    fn a_matrix_of_bf16() {
        let weights = Rng::new(3).normals(5 * 33);
        let rounded: Vec<bf16> = weights.iter().map(|&w| bf16::from_f32(w)).collect();
        let mean = rounded.iter().map(|w| w.to_f64().abs()).sum::<f64>() / 165.0;
        let tensor = absmean(&[5, 33], DenseData::Bf16(rounded.clone()));
        assert_eq!(
            (tensor.scales().granularity(), tensor.encoding()),
            (Granularity::Tensor, Encoding::Planes)
        );
        for (w, got) in rounded.iter().map(|w| w.to_f64() / mean).zip(tensor.dequantize()) {
            // No weight of this seed is near a tie.
            let want = if w.abs() < 0.5 { 0.0 } else { mean.copysign(w) };
            assert!((f64::from(got) - want).abs() < 1e-6, "{w}: {got} {want}");
        }
    }

    #[test]
    fn tiny_and_huge_weights() {
        // Below the smallest mean everything rounds to zero.
        assert_eq!(absmean(&[1, 2], DenseData::F32(vec![1e-6, 4e-6])).dequantize(), [0.0, 0.0]);
        assert_eq!(absmean(&[1, 2], DenseData::F32(vec![1e-5, 0.0])).dequantize(), [1e-5, 0.0]);
        let huge = DenseTensor::new(vec![1, 2], DenseData::F32(vec![1e38, -1e38])).unwrap();
        assert_eq!(absmean_trits(&huge, Encoding::Base3).unwrap().zeros(), 0);
        // One over f32's largest is subnormal, and one over that is past the largest again.
        let largest = DenseTensor::new(vec![1, 1], DenseData::F32(vec![f32::MAX])).unwrap();
        assert!(absmean_trits(&largest, Encoding::Base3).is_err_and(|e| e.to_string().contains("scale")));
    }
}
