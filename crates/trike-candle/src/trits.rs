//! Queries and keys rounded to trits.

use trike_core::{DenseData, DenseTensor, absmean_trits};
use trike_popcount::PlaneMatrix;
use trike_trit::{Encoding, Granularity};

use crate::CandleError;
use crate::exec::check_finite;

/// How queries and keys are multiplied to scores; the softmax of the scores weights the values.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use trike_candle::{Attention, AttentionScores, AttentionSpec};
///
/// let spec = AttentionSpec { heads: 1, kv_heads: 1, head_dim: 4, scale: 0.5, window: None };
/// let attention = Attention::new(spec)?.with_scores(AttentionScores::Popcount);
/// let tensor = |rows: [[f32; 4]; 2]| Tensor::new(&[rows], &Device::Cpu);
/// // Trits [1, 1, 0, -1] with the scale 1, and keys [1, 1, 1, 1] and [1, 0, 0, -1] with the scales 2 and 1: scores 1 and 1.
/// let q = tensor([[0.0; 4], [1.0, 1.5, 0.25, -1.25]])?;
/// let k = tensor([[2.0; 4], [2.0, 0.25, 0.0, -1.75]])?;
/// let v = tensor([[1.0; 4], [3.0; 4]])?;
/// let y = attention.forward(&q, &k, &v, None, None)?.to_vec3::<f32>()?;
/// assert_eq!(y[0], [[1.0; 4], [2.0; 4]]);
/// # Ok::<(), trike_candle::CandleError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AttentionScores {
    /// `scale q . k` in f32.
    #[default]
    Exact,
    /// `scale s_q s_k (t_q . t_k)`: queries and keys rounded to trits `t`, with one scale `s` per head and token by BitNet's rule
    /// for weights, `s = max(mean|x|, 1e-5)` and `t = clamp(round(x / s), -1, 1)`. The products of trits are exact integers, by
    /// popcount; the softmax and the weighted sum of values are f32.
    ///
    /// For research: no supported model is trained for such scores, their quality loss was not measured, and the rest of the
    /// computation is not tuned for speed. Not differentiable.
    Popcount,
}

impl AttentionScores {
    /// `exact` or `popcount`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Popcount => "popcount",
        }
    }
}

/// Vectors rounded to trits by BitNet's rule for weights, with one scale each: `s = max(mean|x|, 1e-5)`, `t = clamp(round(x / s),
/// -1, 1)`, `x ~ s t`.
#[derive(Clone, Debug)]
pub(crate) struct TritRows {
    planes: PlaneMatrix,
    scales: Vec<f32>,
}

impl TritRows {
    /// No vectors of `cols` elements.
    pub(crate) fn new(cols: usize) -> Result<Self, CandleError> {
        Ok(Self { planes: PlaneMatrix::new(cols)?, scales: Vec::new() })
    }

    /// Rounds the rows of a nonempty matrix; `what` names a row in errors.
    pub(crate) fn round(what: &'static str, values: &[f32], cols: usize) -> Result<Self, CandleError> {
        check_finite(what, values)?;
        let dense = DenseTensor::new(vec![values.len() / cols, cols], DenseData::F32(values.to_vec()))?;
        let rounded = absmean_trits(&dense, Granularity::Row, Encoding::Planes)?;
        let scales = rounded.scales().values().iter().collect();
        Ok(Self { planes: PlaneMatrix::from_tensor(&rounded)?, scales })
    }

    /// The rounded vectors of each head of `tokens x heads x vectors x cols`, one row per token and vector.
    pub(crate) fn round_heads(
        what: &'static str,
        values: &[f32],
        heads: usize,
        vectors: usize,
        cols: usize,
    ) -> Result<Vec<Self>, CandleError> {
        let width = vectors * cols;
        let of_head = |head| {
            let rows = values.chunks_exact(heads * width).flat_map(|token| &token[head * width..][..width]);
            Self::round(what, &rows.copied().collect::<Vec<f32>>(), cols)
        };
        (0..heads).map(of_head).collect()
    }

    /// Copies a vector of `from` to the row of a slot, which is appended if it is the next one.
    pub(crate) fn set(&mut self, slot: usize, from: &Self, row: usize) -> Result<(), CandleError> {
        let Some(vector) = from.planes.row(row) else { return Ok(()) };
        match self.planes.row_mut(slot) {
            Some(mut to) => {
                to.copy_from(vector)?;
                self.scales[slot] = from.scales[row];
            }
            None => {
                self.planes.push(vector)?;
                self.scales.push(from.scales[row]);
            }
        }
        Ok(())
    }

    /// The trits, one row per vector.
    pub(crate) fn planes(&self) -> &PlaneMatrix {
        &self.planes
    }

    /// One scale per vector.
    pub(crate) fn scales(&self) -> &[f32] {
        &self.scales
    }

    pub(crate) fn bytes(&self) -> usize {
        self.planes.bytes() + size_of_val(self.scales.as_slice())
    }
}
