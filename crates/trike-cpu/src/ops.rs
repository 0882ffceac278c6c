//! The operations of a decoder, as methods of [`Cpu`].

use trike_core::{
    ActivationPrecision, AttentionSpec, BlockBitmap, GatedActivation, Int8Tensor, Layout, PromptKeys,
    RopePairing, Tiles,
};
use trike_host::{Cpu, FileRange};
use trike_trit::{Hadamard, TritTensor};

use crate::attention::{self, KeySelection, KvView};
use crate::error::CpuError;
use crate::matrix::{self, Int8Matrix, Matrix, TernaryMatrix};
use crate::rope::{self, RopeTable};
use crate::{gated, linear, norm, rotate};

/// The operations of a decoder, as methods of [`Cpu`].
///
/// All operations work on slices; shapes are checked before anything is written. No result depends on the number of
/// threads.
///
/// ```
/// use trike_cpu::{Cpu, CpuOps};
///
/// let mut x = [1.0, 2.0];
/// Cpu::new(1)?.add(&mut x, &[0.5, 0.5])?;
/// assert_eq!(x, [1.5, 2.5]);
/// # Ok::<(), trike_cpu::CpuError>(())
/// ```
pub trait CpuOps {
    /// `out = x W^T`: `x` is `m x k`, `w` is `n x k`, `out` is `m x n`, all row-major; `m` is `x.len() / k`.
    ///
    /// With f32 activations, a non-finite value affects every output of its token: NaN with ternary weights, IEEE arithmetic
    /// otherwise.
    ///
    /// # Errors
    ///
    /// [`CpuError::NotMultiple`] and [`CpuError::Length`] for wrong lengths; [`CpuError::NonFinite`] for a non-finite
    /// int8 activation with ternary weights. Nothing is written then.
    ///
    /// ```
    /// use trike_cpu::{ActivationPrecision, Cpu, CpuOps, TernaryMatrix};
    /// use trike_trit::{Encoding, Scales, TritTensor};
    ///
    /// let tensor = TritTensor::from_trits(2, 3, &[1, 0, -1, 1, 1, 1], Encoding::TwoBit, Scales::tensor(0.5))?;
    /// let w = TernaryMatrix::pack(&tensor)?.into();
    /// let mut y = [f32::NAN; 2];
    /// Cpu::new(1)?.linear(&[1.0, 2.0, 4.0], &w, ActivationPrecision::F32, &mut y)?;
    /// assert_eq!(y, [-1.5, 3.5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn linear(
        &self,
        x: &[f32],
        w: &Matrix,
        precision: ActivationPrecision,
        out: &mut [f32],
    ) -> Result<(), CpuError>;

    /// [`CpuOps::linear`] for several matrices with the same input (q/k/v, gate/up): the activations are prepared once, and the
    /// rows of all matrices are distributed over the threads together. Matrices with different rotations are computed separately.
    ///
    /// # Errors
    ///
    /// Errors of [`CpuOps::linear`], and [`CpuError::Length`] when the lists differ in length or the matrices in columns.
    fn linear_many(
        &self,
        x: &[f32],
        ws: &[&Matrix],
        precision: ActivationPrecision,
        outs: &mut [&mut [f32]],
    ) -> Result<(), CpuError>;

    /// Row lookup: `out[i] = table[ids[i]]` as f32, `out` is `ids.len() x cols`.
    ///
    /// # Errors
    ///
    /// [`CpuError::IdOutOfRange`], or [`CpuError::Length`] for a wrong output length; nothing is written then.
    fn embed(&self, table: &Matrix, ids: &[u32], out: &mut [f32]) -> Result<(), CpuError>;

    /// `out = x / sqrt(mean(x^2) + eps) * weight` for each row of `weight.len()` elements.
    ///
    /// Squares are summed in f64, so the result does not depend on the instruction set or on the length of a row.
    ///
    /// # Errors
    ///
    /// [`CpuError::NotMultiple`] when `x` is not a whole number of rows, [`CpuError::Length`] when `out` does not have
    /// the length of `x`.
    ///
    /// ```
    /// use trike_cpu::{Cpu, CpuOps};
    ///
    /// let mut out = [f32::NAN; 2];
    /// Cpu::new(1)?.rms_norm(&[3.0, -3.0], &[1.0, 2.0], 0.0, &mut out)?;
    /// assert_eq!(out, [1.0, -2.0]);
    /// # Ok::<(), trike_cpu::CpuError>(())
    /// ```
    fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) -> Result<(), CpuError>;

    /// Applies the rotary embedding to `x` (`tokens x heads x head_dim`) in place, with one position per token.
    ///
    /// Elements of a head beyond [`RopeTable::rotated`] are unchanged.
    ///
    /// # Errors
    ///
    /// [`CpuError::Range`] when the table rotates more elements than a head has, [`CpuError::Length`] when the length
    /// of `x` is not `positions.len() * heads * head_dim`.
    fn rope(
        &self,
        x: &mut [f32],
        heads: usize,
        head_dim: usize,
        positions: &[u32],
        table: &RopeTable,
        pairing: RopePairing,
    ) -> Result<(), CpuError>;

    /// Softmax attention of `m` queries at consecutive positions from `first_position`; `q` and `out` are
    /// `m x heads x head_dim`.
    ///
    /// The query at position `p` attends to positions `max(0, p + 1 - window)..=p`, all of which must already be in the ring buffer
    /// (its own included). Scores, their maximum and exponentials are f32. Products with keys and values in int8 and int4, and
    /// those of long prompts in f16, are exact sums of 16-bit integers, to which queries and weights are rounded; all other
    /// products are f32.
    ///
    /// # Errors
    ///
    /// [`CpuError::Heads`], [`CpuError::Range`], [`CpuError::NotMultiple`] and [`CpuError::Length`] for shapes that do
    /// not match, [`CpuError::KvCapacity`] when the ring buffer cannot hold every visible position.
    ///
    /// ```
    /// use trike_cpu::{AttentionSpec, Cpu, CpuOps, KvData, KvView};
    ///
    /// let problem = AttentionSpec { heads: 2, kv_heads: 1, head_dim: 2, scale: 1.0, window: None };
    /// // Two slots; equal keys, so every query averages the values that it sees.
    /// let (k, v) = ([1.0, 0.0, 1.0, 0.0], [1.0, 2.0, 3.0, 4.0]);
    /// let kv = KvView { k: KvData::F32(&k), v: KvData::F32(&v), capacity: 2 };
    /// let mut out = [f32::NAN; 8];
    /// Cpu::new(1)?.attention(&problem, &[1.0; 8], 0, kv, &mut out)?;
    /// assert_eq!(out, [1.0, 2.0, 1.0, 2.0, 2.0, 3.0, 2.0, 3.0]);
    /// # Ok::<(), trike_cpu::CpuError>(())
    /// ```
    fn attention(
        &self,
        problem: &AttentionSpec,
        q: &[f32],
        first_position: usize,
        kv: KvView<'_>,
        out: &mut [f32],
    ) -> Result<(), CpuError>;

    /// [`attention`](Self::attention) over the pages of a sequence instead of a ring: position `p` is in slot `p % KV_PAGE` of page
    /// `p / KV_PAGE`, of [`KV_PAGE`](crate::KV_PAGE) positions each and one precision. Pages can be shared between sequences. The
    /// result is bit-identical to that over a ring that starts at position 0, unless a window begins within a page.
    ///
    /// # Errors
    ///
    /// As [`attention`](Self::attention), and [`CpuError::Length`] for pages of another size or of several precisions.
    ///
    /// ```
    /// use trike_cpu::{AttentionSpec, Cpu, CpuOps, KV_PAGE, KvData, KvView};
    ///
    /// let problem = AttentionSpec { heads: 1, kv_heads: 1, head_dim: 1, scale: 1.0, window: None };
    /// let (k, low, high) = ([0.0; KV_PAGE], [1.0; KV_PAGE], [3.0; KV_PAGE]);
    /// let pages = [&low, &high].map(|v| KvView { k: KvData::F32(&k), v: KvData::F32(v), capacity: KV_PAGE });
    /// let mut out = [f32::NAN];
    /// Cpu::new(1)?.attention_paged(&problem, &[1.0], 127, &pages, &mut out)?;
    /// assert_eq!(out, [2.0]);
    /// # Ok::<(), trike_cpu::CpuError>(())
    /// ```
    fn attention_paged(
        &self,
        problem: &AttentionSpec,
        q: &[f32],
        first_position: usize,
        pages: &[KvView<'_>],
        out: &mut [f32],
    ) -> Result<(), CpuError>;

    /// Block-sparse [`attention`](Self::attention): each query attends only to the key blocks that `mask` has for its query block,
    /// as far as they are visible to it. Masked key blocks are neither read nor multiplied. With a full mask the result is
    /// bit-identical to [`attention`](Self::attention) of enough tokens for the prefill kernels.
    ///
    /// # Errors
    ///
    /// As [`attention`](Self::attention); [`CpuError::Blocks`] for a mask that does not cover these positions, or has another
    /// number of heads.
    ///
    /// ```
    /// use trike_cpu::{AttentionSpec, BlockBitmap, Cpu, CpuOps, KvData, KvView};
    ///
    /// let problem = AttentionSpec { heads: 1, kv_heads: 1, head_dim: 1, scale: 1.0, window: None };
    /// // The query at position 128 does not see the second block of 64 positions.
    /// let (k, v): (_, Vec<f32>) = ([0.0; 129], (0..129).map(|p| if p / 64 == 1 { 9.0 } else { 1.0 }).collect());
    /// let kv = KvView { k: KvData::F32(&k), v: KvData::F32(&v), capacity: 129 };
    /// let mask = BlockBitmap::from_fn(1, 128..129, |_, _, key_block| key_block == 0)?;
    /// let mut out = [f32::NAN];
    /// Cpu::new(1)?.attention_masked(&problem, &[1.0], 128, kv, &mask, &mut out)?;
    /// assert_eq!(out, [1.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn attention_masked(
        &self,
        problem: &AttentionSpec,
        q: &[f32],
        first_position: usize,
        kv: KvView<'_>,
        mask: &BlockBitmap,
        out: &mut [f32],
    ) -> Result<(), CpuError>;

    /// The key blocks for [`attention_masked`](Self::attention_masked) with the most attention of four sampled tokens per query
    /// block, for each key/value head: as many as `keys` keeps, always including the first visible block and the query block's own.
    /// `None` if all are kept. The result does not depend on the number of threads.
    ///
    /// # Errors
    ///
    /// As [`attention`](Self::attention); [`CpuError::Blocks`] for more positions than a mask supports.
    fn choose_blocks(
        &self,
        problem: &AttentionSpec,
        q: &[f32],
        first_position: usize,
        kv: KvView<'_>,
        keys: PromptKeys,
    ) -> Result<Option<BlockBitmap>, CpuError>;

    /// The attention that each position receives, summed over all queries and over the heads that share its key:
    /// `[kv_heads][positions]`, from position 0 to that of the last query. Every query head of every token contributes a total of
    /// 1.
    ///
    /// In f32 for f32 keys, otherwise with queries and keys in 16-bit integers, as in [`attention`](Self::attention) of prompts.
    ///
    /// # Errors
    ///
    /// As [`attention`](Self::attention).
    ///
    /// ```
    /// use trike_cpu::{AttentionSpec, Cpu, CpuOps, KvData, KvView};
    ///
    /// let problem = AttentionSpec { heads: 2, kv_heads: 1, head_dim: 1, scale: 1.0, window: None };
    /// let (k, v) = ([0.0, 0.0, 40.0, 0.0], [1.0; 4]);
    /// let kv = KvView { k: KvData::F32(&k), v: KvData::F32(&v), capacity: 4 };
    /// // One head looks for the third key, the other for none of them.
    /// let received = Cpu::new(1)?.attention_received(&problem, &[1.0, 0.0], 3, kv)?;
    /// assert_eq!(received, [0.25, 0.25, 1.25, 0.25]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn attention_received(
        &self,
        problem: &AttentionSpec,
        q: &[f32],
        first_position: usize,
        kv: KvView<'_>,
    ) -> Result<Vec<f32>, CpuError>;

    /// Top-k [`attention`](Self::attention) of one query token at `position`: to the positions that the selector chooses for each
    /// key/value head, or to all positions if it would keep all of them.
    ///
    /// Keys that are not in the index yet are coded first. The result depends on neither the number of threads nor the division of
    /// the keys into steps.
    ///
    /// # Errors
    ///
    /// As [`attention`](Self::attention); [`CpuError::Length`] for more than one query token, [`CpuError::KeyIndex`] for an index
    /// whose shape is not that of the cache.
    ///
    /// ```
    /// use trike_cpu::{AttentionSpec, Cpu, CpuOps, KeyIndex, KeyScratch, KeySelection, KeySelector, KvData, KvView};
    ///
    /// let problem = AttentionSpec { heads: 1, kv_heads: 1, head_dim: 4, scale: 1.0, window: None };
    /// // The tenth of 64 keys is the one that the query looks for.
    /// let mut k = vec![[0.0, 0.0, 0.0, -1.0]; 64];
    /// k[10] = [20.0, 0.0, 0.0, 1.0];
    /// let v: Vec<f32> = (0..4 * 64).map(|i| (i / 4) as f32).collect();
    /// let kv = KvView { k: KvData::F32(k.as_flattened()), v: KvData::F32(&v), capacity: 64 };
    /// let (mut index, mut scratch) = (KeyIndex::new(1, 4, 64)?, KeyScratch::default());
    /// let selector = KeySelector::signs(4)?;
    /// let selection = KeySelection { selector, index: &mut index, scratch: &mut scratch };
    /// let mut out = [f32::NAN; 4];
    /// Cpu::new(1)?.attention_selected(&problem, &[2.0, 0.0, 0.0, 1.0], 63, kv, selection, &mut out)?;
    /// assert_eq!(out, [10.0; 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn attention_selected(
        &self,
        problem: &AttentionSpec,
        q: &[f32],
        position: usize,
        kv: KvView<'_>,
        selection: KeySelection<'_>,
        out: &mut [f32],
    ) -> Result<(), CpuError>;

    /// The positions that [`attention_selected`](Self::attention_selected) attends to, in order, for each key/value head; `None`
    /// for all visible ones.
    ///
    /// # Errors
    ///
    /// As [`attention_selected`](Self::attention_selected).
    fn select_keys(
        &self,
        problem: &AttentionSpec,
        q: &[f32],
        position: usize,
        kv: KvView<'_>,
        selection: KeySelection<'_>,
    ) -> Result<Option<Vec<Vec<usize>>>, CpuError>;

    /// `out = activation(gate) * up`, element by element.
    ///
    /// # Errors
    ///
    /// [`CpuError::Length`] when the three slices differ in length.
    ///
    /// ```
    /// use trike_cpu::{Cpu, CpuOps, GatedActivation};
    ///
    /// let mut out = [f32::NAN; 2];
    /// Cpu::new(1)?.gated(&[2.0, -1.0], &[3.0, 3.0], GatedActivation::SquaredReLu, &mut out)?;
    /// assert_eq!(out, [12.0, 0.0]);
    /// # Ok::<(), trike_cpu::CpuError>(())
    /// ```
    fn gated(
        &self,
        gate: &[f32],
        up: &[f32],
        activation: GatedActivation,
        out: &mut [f32],
    ) -> Result<(), CpuError>;

    /// `x += y`, the residual sum.
    ///
    /// # Errors
    ///
    /// [`CpuError::Length`] when the slices differ in length.
    fn add(&self, x: &mut [f32], y: &[f32]) -> Result<(), CpuError>;

    /// Transforms every block of `x` in place, bit-identical to [`Hadamard::apply`].
    ///
    /// [`CpuOps::linear`] applies this to the activations of rotated weights.
    ///
    /// # Errors
    ///
    /// [`CpuError::NotMultiple`] for a partial block.
    ///
    /// ```
    /// use trike_cpu::{Cpu, CpuOps};
    /// use trike_trit::Hadamard;
    ///
    /// let mut x = [3.0, 1.0, -1.0, 1.0];
    /// Cpu::new(1)?.rotate(&mut x, Hadamard::new(4)?)?;
    /// assert_eq!(x, [2.0, 0.0, 2.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn rotate(&self, x: &mut [f32], rotation: Hadamard) -> Result<(), CpuError>;

    /// [`TernaryMatrix::pack_as`] on all threads, with a bit-identical result.
    ///
    /// ```
    /// use trike_cpu::{Cpu, CpuOps, Isa, Layout, choose_layout};
    /// use trike_trit::{Encoding, Scales, TritTensor};
    ///
    /// let tensor = TritTensor::from_trits(40, 64, &[1; 40 * 64], Encoding::TwoBit, Scales::tensor(0.5))?;
    /// let matrix = Cpu::new(2)?.pack(&tensor, choose_layout(&tensor, Isa::detect()))?;
    /// assert_eq!((matrix.rows(), matrix.layout()), (40, Layout::TwoBit));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Errors of [`TernaryMatrix::pack_as`].
    fn pack(&self, tensor: &TritTensor, layout: Layout) -> Result<TernaryMatrix, CpuError>;

    /// [`Int8Matrix::from_tensor`] on all threads, with a bit-identical result.
    ///
    /// # Errors
    ///
    /// Errors of [`Int8Matrix::from_tensor`].
    fn pack_int8(&self, tensor: &Int8Tensor) -> Result<Int8Matrix, CpuError>;

    /// The matrix of tiles in a mapped file, in place: pages are read when they are used, and shared with other processes. Products
    /// are bit-identical to those of the packed tensor. Codes and scales are checked, on all threads.
    ///
    /// # Errors
    ///
    /// [`CpuError::Range`], [`CpuError::Tensor`], [`CpuError::Code`] and [`CpuError::NonFiniteParameter`] for invalid tiles.
    fn map_tiles(&self, tiles: &Tiles<FileRange>) -> Result<Matrix, CpuError>;
}

impl CpuOps for Cpu {
    fn linear(
        &self,
        x: &[f32],
        w: &Matrix,
        precision: ActivationPrecision,
        out: &mut [f32],
    ) -> Result<(), CpuError> {
        linear::linear(self, x, w, precision, out)
    }

    fn linear_many(
        &self,
        x: &[f32],
        ws: &[&Matrix],
        precision: ActivationPrecision,
        outs: &mut [&mut [f32]],
    ) -> Result<(), CpuError> {
        linear::linear_many(self, x, ws, precision, outs)
    }

    fn embed(&self, table: &Matrix, ids: &[u32], out: &mut [f32]) -> Result<(), CpuError> {
        linear::embed(self, table, ids, out)
    }

    fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) -> Result<(), CpuError> {
        norm::rms_norm(self, x, weight, eps, out)
    }

    fn rope(
        &self,
        x: &mut [f32],
        heads: usize,
        head_dim: usize,
        positions: &[u32],
        table: &RopeTable,
        pairing: RopePairing,
    ) -> Result<(), CpuError> {
        rope::rope(self, x, heads, head_dim, positions, table, pairing, 1.0)
    }

    fn attention(
        &self,
        problem: &AttentionSpec,
        q: &[f32],
        first_position: usize,
        kv: KvView<'_>,
        out: &mut [f32],
    ) -> Result<(), CpuError> {
        attention::attention(self, problem, q, first_position, kv, out)
    }

    fn attention_paged(
        &self,
        problem: &AttentionSpec,
        q: &[f32],
        first_position: usize,
        pages: &[KvView<'_>],
        out: &mut [f32],
    ) -> Result<(), CpuError> {
        attention::attention_paged(self, problem, q, first_position, pages, out)
    }

    fn attention_masked(
        &self,
        problem: &AttentionSpec,
        q: &[f32],
        first_position: usize,
        kv: KvView<'_>,
        mask: &BlockBitmap,
        out: &mut [f32],
    ) -> Result<(), CpuError> {
        attention::attention_masked(self, problem, q, first_position, kv, mask, out)
    }

    fn choose_blocks(
        &self,
        problem: &AttentionSpec,
        q: &[f32],
        first_position: usize,
        kv: KvView<'_>,
        keys: PromptKeys,
    ) -> Result<Option<BlockBitmap>, CpuError> {
        attention::choose_blocks(self, problem, q, first_position, kv, keys)
    }

    fn attention_received(
        &self,
        problem: &AttentionSpec,
        q: &[f32],
        first_position: usize,
        kv: KvView<'_>,
    ) -> Result<Vec<f32>, CpuError> {
        attention::attention_received(self, problem, q, first_position, kv)
    }

    fn attention_selected(
        &self,
        problem: &AttentionSpec,
        q: &[f32],
        position: usize,
        kv: KvView<'_>,
        selection: KeySelection<'_>,
        out: &mut [f32],
    ) -> Result<(), CpuError> {
        attention::attention_selected(self, problem, q, position, kv, selection, out)
    }

    fn select_keys(
        &self,
        problem: &AttentionSpec,
        q: &[f32],
        position: usize,
        kv: KvView<'_>,
        selection: KeySelection<'_>,
    ) -> Result<Option<Vec<Vec<usize>>>, CpuError> {
        attention::select_keys(self, problem, q, position, kv, selection)
    }

    fn gated(
        &self,
        gate: &[f32],
        up: &[f32],
        activation: GatedActivation,
        out: &mut [f32],
    ) -> Result<(), CpuError> {
        gated::gated(self, gate, up, activation, out)
    }

    fn add(&self, x: &mut [f32], y: &[f32]) -> Result<(), CpuError> {
        gated::add(self, x, y)
    }

    fn rotate(&self, x: &mut [f32], rotation: Hadamard) -> Result<(), CpuError> {
        rotate::rotate(self, x, rotation)
    }

    fn pack(&self, tensor: &TritTensor, layout: Layout) -> Result<TernaryMatrix, CpuError> {
        matrix::pack(self, tensor, layout)
    }

    fn pack_int8(&self, tensor: &Int8Tensor) -> Result<Int8Matrix, CpuError> {
        matrix::pack_int8(self, tensor)
    }

    fn map_tiles(&self, tiles: &Tiles<FileRange>) -> Result<Matrix, CpuError> {
        matrix::map_tiles(self, tiles)
    }
}
