//! Masks of attention.

use std::ops::Range;

use candle_core::{DType, Device, Tensor};
use trike_core::{AttentionSpec, BlockBitmap};
use trike_cpu::CpuError;

use crate::exec::{check_device, check_len, to_f32};
use crate::{CandleError, NnError};

/// The positions that the queries of a step may attend to, restricted further by causality and windows.
///
/// At least one position must remain for every query: a softmax over none is undefined. A mask replaces the cache's own selection
/// of keys.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use trike_candle::{AttentionMask, AttentionSpec, Attention};
///
/// let spec = AttentionSpec { heads: 1, kv_heads: 1, head_dim: 1, scale: 1.0, window: None };
/// let (q, v) = (Tensor::zeros((1, 3, 1), candle_core::DType::F32, &Device::Cpu)?, Tensor::new(&[[[2f32], [4.0], [9.0]]], &Device::Cpu)?);
/// // The last query does not see position 1.
/// let mask = Tensor::new(&[[1u8, 0, 0], [1, 1, 0], [1, 0, 1]], &Device::Cpu)?;
/// let y = Attention::new(spec)?.forward(&q, &q, &v, None, Some(AttentionMask::Dense(&mask)))?;
/// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [2.0, 3.0, 5.5]);
/// # Ok::<(), trike_candle::CandleError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum AttentionMask<'a> {
    /// Blocks of 64 keys per block of 64 queries, for all heads or per key/value head. Masked blocks are neither read nor
    /// multiplied. It must cover the positions of the step, and attention must be causal.
    Blocks(&'a BlockBitmap),
    /// One number per query and position, `[tokens, positions]` or `[batch or 1, heads or 1, tokens, positions]`, where `positions`
    /// covers the cache and the step together. In u8, zero masks a position; in f32, f16 or bf16, the number is added to the score
    /// after scaling, and minus infinity masks the position. Gradients flow to such a mask.
    ///
    /// Candle's operations compute it, with the scores of all heads, tokens and positions in memory at the same time.
    Dense(&'a Tensor),
}

/// The validated mask of a step.
pub(crate) struct Visible<'a> {
    spec: AttentionSpec,
    causal: bool,
    first: usize,
    tokens: usize,
    mask: Checked<'a>,
}

enum Checked<'a> {
    Everything,
    Blocks(&'a BlockBitmap),
    /// Bias of the scores, `[batch or 1, heads or 1, tokens, positions]`, and its elements.
    Dense(Tensor, Vec<f32>),
}

impl<'a> Visible<'a> {
    /// The mask for `tokens` queries of `batch` sequences from position `first` on.
    pub(crate) fn new(
        spec: &AttentionSpec,
        causal: bool,
        batch: usize,
        positions: Range<usize>,
        mask: Option<AttentionMask<'a>>,
    ) -> Result<Self, CandleError> {
        let (first, tokens) = (positions.start, positions.len());
        let all = Self { spec: *spec, causal, first, tokens, mask: Checked::Everything };
        match mask {
            None => Ok(all),
            Some(AttentionMask::Blocks(_)) if !causal => {
                let rule = "must be dense for attention that is not causal";
                Err(NnError::Spec { field: "mask", rule, got: "blocks".to_owned() }.into())
            }
            Some(AttentionMask::Blocks(blocks)) => {
                blocks.check(spec.kv_heads, &positions).map_err(CpuError::from)?;
                Ok(Self { mask: Checked::Blocks(blocks), ..all })
            }
            Some(AttentionMask::Dense(mask)) => {
                let bias = bias_of(mask, batch, spec.heads, &positions)?;
                let values = bias.flatten_all()?.to_vec1()?;
                all.check_bias(&bias, &values)?;
                Ok(Self { mask: Checked::Dense(bias, values), ..all })
            }
        }
    }

    /// Checks that no element is NaN or plus infinity and that at least one position remains for each query.
    fn check_bias(&self, bias: &Tensor, values: &[f32]) -> Result<(), CandleError> {
        if let Some(index) = values.iter().position(|v| v.is_nan() || *v == f32::INFINITY) {
            let rule = "must be finite or minus infinity";
            let got = format!("{} at index {index}", values[index]);
            return Err(NnError::Spec { field: "an element of a mask", rule, got }.into());
        }
        let heads = bias.dim(1)?;
        for (row, values) in values.chunks_exact(self.end()).enumerate() {
            let token = row % self.tokens;
            if values[self.span(token)].iter().all(|v| *v == f32::NEG_INFINITY) {
                let (sequence, head) = (row / self.tokens / heads, row / self.tokens % heads);
                let rule = "must leave each query a position that it may attend to";
                let got = format!("none for token {token} of head {head} in sequence {sequence}");
                return Err(NnError::Spec { field: "mask", rule, got }.into());
            }
        }
        Ok(())
    }

    /// Exclusive end of the positions.
    pub(crate) fn end(&self) -> usize {
        self.first + self.tokens
    }

    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    pub(crate) fn spec(&self) -> &AttentionSpec {
        &self.spec
    }

    /// The positions that a query attends to without the mask.
    pub(crate) fn span(&self, token: usize) -> Range<usize> {
        if self.causal { self.spec.span(self.first + token) } else { 0..self.end() }
    }

    /// The bias of a score; 0 without a mask.
    pub(crate) fn bias(&self, sequence: usize, head: usize, token: usize, position: usize) -> f32 {
        match &self.mask {
            Checked::Everything => 0.0,
            Checked::Blocks(blocks) => {
                let of_head =
                    if blocks.heads() == 1 { 0 } else { head / (self.spec.heads / self.spec.kv_heads) };
                let block = |position: usize| position / BlockBitmap::BLOCK;
                match blocks.contains(of_head, block(self.first + token), block(position)) {
                    true => 0.0,
                    false => f32::NEG_INFINITY,
                }
            }
            Checked::Dense(bias, values) => {
                // Axes of length 1 are broadcast.
                let (sequences, heads) = (bias.dims()[0], bias.dims()[1]);
                let row = (sequence % sequences * heads + head % heads) * self.tokens + token;
                values[row * self.end() + position]
            }
        }
    }

    /// The mask, if it is a block mask.
    pub(crate) fn blocks(&self) -> Option<&'a BlockBitmap> {
        match self.mask {
            Checked::Blocks(blocks) => Some(blocks),
            Checked::Everything | Checked::Dense(..) => None,
        }
    }

    /// Whether the kernels for exact attention support this mask.
    pub(crate) fn has_kernel(&self) -> bool {
        self.causal && !matches!(self.mask, Checked::Dense(..))
    }

    /// The bias of the scores at these positions, broadcast to `[batch, heads, tokens, positions]`.
    pub(crate) fn tensor(&self, positions: Range<usize>) -> Result<Tensor, CandleError> {
        let heads = match &self.mask {
            Checked::Blocks(blocks) if blocks.heads() > 1 => self.spec.heads,
            Checked::Everything | Checked::Blocks(_) | Checked::Dense(..) => 1,
        };
        let of = |(head, token, position)| match (&self.mask, self.span(token).contains(&position)) {
            (_, false) => f32::NEG_INFINITY,
            (Checked::Everything | Checked::Dense(..), true) => 0.0,
            (Checked::Blocks(_), true) => self.bias(0, head, token, position),
        };
        let tokens = |head| (0..self.tokens).map(move |token| (head, token));
        let rows = (0..heads).flat_map(tokens);
        let all = rows.flat_map(|(head, token)| positions.clone().map(move |p| of((head, token, p))));
        let shape = (1, heads, self.tokens, positions.len());
        let seen = Tensor::from_vec(all.collect::<Vec<f32>>(), shape, &Device::Cpu)?;
        match &self.mask {
            Checked::Dense(bias, _) => {
                Ok(bias.narrow(3, positions.start, positions.len())?.broadcast_add(&seen)?)
            }
            Checked::Everything | Checked::Blocks(_) => Ok(seen),
        }
    }
}

/// A dense mask as additive bias, `[batch or 1, heads or 1, tokens, positions]`.
fn bias_of(
    mask: &Tensor,
    batch: usize,
    heads: usize,
    positions: &Range<usize>,
) -> Result<Tensor, CandleError> {
    check_device(mask.device())?;
    let mask = match mask.rank() {
        2 => mask.unsqueeze(0)?.unsqueeze(0)?,
        4 => mask.clone(),
        axes => {
            let rule = "must be 2 or 4";
            return Err(NnError::Spec { field: "axes of a mask", rule, got: axes.to_string() }.into());
        }
    };
    let (of_sequences, of_heads, tokens, columns) = mask.dims4()?;
    if of_sequences != 1 {
        check_len("sequences of a mask", batch, of_sequences)?;
    }
    if of_heads != 1 {
        check_len("heads of a mask", heads, of_heads)?;
    }
    check_len("tokens of a mask", positions.len(), tokens)?;
    check_len("positions of a mask", positions.end, columns)?;
    if mask.dtype() != DType::U8 {
        return to_f32(&mask);
    }
    let numbers = |value: f32| Tensor::full(value, mask.shape(), &Device::Cpu);
    Ok(mask.where_cond(&numbers(0.0)?, &numbers(f32::NEG_INFINITY)?)?)
}
