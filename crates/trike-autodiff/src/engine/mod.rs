//! The executor of a tape: it stores the tensors and runs the kernels.

mod count;
#[cfg(feature = "gpu")]
mod cube;
mod host;

use std::borrow::{Borrow, BorrowMut, Cow};
use std::ops::Range;

use trike_core::{AttentionSpec, GatedActivation, ProductPrecision, RopePairing};
use trike_cpu::Store;
use trike_trit::Granularity;

use crate::error::{GradError, check_len};

pub use count::{Count, CountList, CountTensor, Counted};
pub use host::Rotary;
pub(crate) use host::{least_squares, trit};

#[cfg(feature = "gpu")]
pub use cube::{CubeEngine, CubeEngineRopeTable, CubeEngineTensor, CubeRotary, Transfers};

/// A tensor of an executor: a number of f32 elements.
pub trait Elements {
    /// The number of elements.
    fn elements(&self) -> usize;
}

/// Values of the host in the memory of an executor: borrowed if that is the host's memory, otherwise a copy.
pub enum EngineValues<'v, E: EngineMemory> {
    /// The values themselves.
    Borrowed(&'v E::View),
    /// A tensor of the executor.
    Owned(E::Tensor),
}

impl<E: EngineMemory> std::fmt::Debug for EngineValues<'_, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineValues").field("elements", &self.view().elements()).finish_non_exhaustive()
    }
}

impl<E: EngineMemory> EngineValues<'_, E> {
    /// The values, as operations take them.
    pub fn view(&self) -> &E::View {
        match self {
            Self::Borrowed(values) => values,
            Self::Owned(tensor) => tensor.borrow(),
        }
    }
}

/// A matrix operand of [`EngineOps::matmul`]: some rows of a tensor, or the transpose of them.
#[derive(Debug)]
pub struct Operand<'v, V: ?Sized> {
    /// The tensor.
    pub values: &'v V,
    /// Index of the first element of the matrix.
    pub first: usize,
    /// Rows as stored.
    pub rows: usize,
    /// Elements per row as stored.
    pub cols: usize,
    /// Whether the matrix is transposed.
    pub transposed: bool,
}

impl<V: ?Sized> Clone for Operand<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V: ?Sized> Copy for Operand<'_, V> {}

impl<'v, V: Elements + ?Sized> Operand<'v, V> {
    /// All rows of `cols` elements of a tensor.
    ///
    /// # Errors
    ///
    /// [`GradError::Cpu`] when the tensor is not a whole number of rows.
    pub fn new(values: &'v V, cols: usize) -> Result<Self, GradError> {
        let rows = whole_rows(values.elements(), cols)?;
        Ok(Self { values, first: 0, rows, cols, transposed: false })
    }

    /// Some of its rows, as stored.
    #[must_use]
    pub fn rows(self, range: Range<usize>) -> Self {
        Self { first: self.first + range.start * self.cols, rows: range.len(), ..self }
    }

    /// The transpose, without a copy.
    #[must_use]
    pub fn t(self) -> Self {
        Self { transposed: !self.transposed, ..self }
    }

    /// Rows and columns as multiplied.
    #[must_use]
    pub fn shape(&self) -> (usize, usize) {
        if self.transposed { (self.cols, self.rows) } else { (self.rows, self.cols) }
    }
}

/// The number of rows of `cols` elements.
pub(crate) fn whole_rows(elements: usize, cols: usize) -> Result<usize, GradError> {
    if cols != 0 && elements.is_multiple_of(cols) {
        Ok(elements / cols)
    } else {
        Err(trike_cpu::CpuError::NotMultiple { what: "matrix", unit: cols, got: elements }.into())
    }
}

/// How the weights of a matrix are grouped by their scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleGroups {
    /// Rows of the matrix.
    pub rows: usize,
    /// Columns of the matrix.
    pub cols: usize,
    /// Weights per scale; the last group of a row may be shorter.
    pub len: usize,
    /// Scales per row; 0 if all rows share one.
    pub per_row: usize,
}

impl ScaleGroups {
    /// The groups of a matrix.
    #[must_use]
    pub fn new(granularity: Granularity, rows: usize, cols: usize) -> Self {
        match granularity {
            Granularity::Tensor => Self { rows, cols, len: rows * cols, per_row: 0 },
            Granularity::Row | Granularity::Group(_) => {
                let per_row = granularity.groups_per_row(cols);
                Self { rows, cols, len: granularity.group_len(cols), per_row }
            }
        }
    }

    /// Number of scales.
    #[must_use]
    pub fn count(self) -> usize {
        if self.per_row == 0 { 1 } else { self.rows * self.per_row }
    }

    /// Number of consecutive weights that their groups divide evenly: a row, or all.
    #[must_use]
    pub fn span(self) -> usize {
        if self.per_row == 0 { (self.rows * self.cols).max(1) } else { self.cols }
    }
}

/// The constants of one AdamW update of one parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Factor of the gradient from gradient-norm clipping.
    pub limit: f32,
    /// Decay rate of the first moment.
    pub beta1: f32,
    /// Decay rate of the second moment.
    pub beta2: f32,
    /// Added to the square root of the second moment.
    pub epsilon: f32,
    /// Learning rate, divided by the bias correction of the first moment.
    pub rate: f32,
    /// Bias correction of the second moment.
    pub correction: f32,
    /// Factor of the value after weight decay.
    pub kept: f32,
}

/// An executor of the operations of a [`Tape`](crate::Tape) and of the updates of an optimizer: the host ([`Cpu`](trike_cpu::Cpu)),
/// a device, or [`Count`], which only counts the memory that the host would use.
///
/// Tensors stay in the executor's memory. Outputs are overwritten, unless a method says that it adds. The order of every reduction
/// depends only on the shapes, so repeated runs on one executor give the same bits.
///
/// Methods return [`GradError`] for lengths that do not match and for failures of the executor. A device reports the failure of a
/// running kernel in the next method that waits: [`download`](EngineMemory::download), [`totals`](EngineLosses::totals),
/// [`sum_of_squares`](EngineOptimization::sum_of_squares).
///
/// It is the sum of five traits, which whoever writes an executor implements.
pub trait TapeEngine: EngineOps + EngineQuantization + EngineLosses + EngineOptimization {}

impl<E: EngineOps + EngineQuantization + EngineLosses + EngineOptimization> TapeEngine for E {}

/// Tensors in the memory of a [`TapeEngine`], and tasks that run alone.
#[expect(
    clippy::missing_errors_doc,
    reason = "the same for all methods, in the documentation of `TapeEngine`"
)]
pub trait EngineMemory: Sized + Send + Sync + std::fmt::Debug + 'static {
    /// Memory with f32 elements.
    type Tensor: BorrowMut<Self::View> + Elements + std::fmt::Debug + Send + Sync + 'static;
    /// A borrowed tensor: a slice on the host.
    type View: Elements + Send + Sync + ?Sized + 'static;
    /// Frequencies of a rotary embedding, with the pairing of the rotated elements.
    type RopeTable: std::fmt::Debug + Send + Sync + 'static;
    /// The rotation of the heads of some tokens.
    type Rotary: Clone + Send + Sync + 'static;
    /// Lengths of consecutive documents.
    type Segments: Clone + Send + Sync + 'static;
    /// Rows of a table, one per token.
    type Ids: Send + Sync + 'static;
    /// One target per token, or none.
    type Targets: Send + Sync + 'static;
    /// Whether independent batches of a small model run concurrently with [`each_alone`](Self::each_alone).
    const SIDE_BY_SIDE: bool;
    /// A tensor with arbitrary contents.
    fn allocate(&self, len: usize) -> Result<Self::Tensor, GradError>;
    /// A tensor of these values.
    fn upload(&self, values: Vec<f32>) -> Result<Self::Tensor, GradError>;
    /// Values that the host keeps, for operations that read them.
    fn borrow_or_upload<'v>(&self, values: &'v [f32]) -> Result<EngineValues<'v, Self>, GradError> {
        Ok(EngineValues::Owned(self.upload(values.to_vec())?))
    }
    /// The values of a tensor.
    fn download<'v>(&self, tensor: &'v Self::View) -> Result<Cow<'v, [f32]>, GradError>;
    /// Tensors of lengths `lens` that `make` computes on the host from the values of other tensors, such as by an exchange between
    /// ranks.
    fn through_host<X: From<GradError>>(
        &self,
        from: &[&Self::View],
        lens: &[usize],
        make: impl FnOnce(&[Cow<'_, [f32]>]) -> Result<Vec<Vec<f32>>, X>,
    ) -> Result<Vec<Self::Tensor>, X> {
        let own = from.iter().map(|tensor| self.download(tensor)).collect::<Result<Vec<_>, _>>()?;
        let made = make(&own)?;
        drop(own);
        check_len("tensors that the host made", lens.len(), made.len())?;
        made.into_iter().map(|values| Ok(self.upload(values)?)).collect()
    }
    /// Sets all elements.
    fn fill(&self, tensor: &mut Self::View, value: f32) -> Result<(), GradError>;
    /// Copies all elements.
    fn copy(&self, from: &Self::View, to: &mut Self::View) -> Result<(), GradError>;
    /// Runs independent tasks, each on a single thread if the executor has several. At most as many tasks as threads run
    /// concurrently; results are consumed in the order of the items.
    fn each_alone<I: Send, R: Send>(
        &self,
        items: Vec<I>,
        run: impl Fn(&Self, I) -> R + Sync,
        take: impl FnMut(R) + Send,
    ) -> Result<(), GradError>;
}

/// The operations of a forward pass and their backward passes.
#[expect(
    clippy::missing_errors_doc,
    reason = "the same for all methods, in the documentation of `TapeEngine`"
)]
pub trait EngineOps: EngineMemory {
    /// Whether [`matmul`](Self::matmul) supports precisions below f32.
    const ROUNDS_OPERANDS: bool;
    /// The table of a rotary embedding; the first `positions` positions are precomputed.
    fn rope_table(
        &self,
        frequencies: Vec<f32>,
        pairing: RopePairing,
        positions: usize,
    ) -> Result<Self::RopeTable, GradError>;
    /// The rotation of tokens at these positions.
    fn rotary(&self, table: &Self::RopeTable, positions: Vec<u32>) -> Result<Self::Rotary, GradError>;
    /// Documents of these lengths.
    fn segments(&self, lengths: Vec<usize>) -> Result<Self::Segments, GradError>;
    /// Rows of a table of `rows` rows.
    fn ids(&self, ids: &[u32], rows: usize) -> Result<Self::Ids, GradError>;
    /// Targets, which were checked.
    fn targets(&self, targets: &[Option<u32>]) -> Result<Self::Targets, GradError>;
    /// `sum += x`.
    fn add(&self, sum: &mut Self::View, x: &Self::View) -> Result<(), GradError>;
    /// `x *= by`.
    fn scale(&self, x: &mut Self::View, by: f32) -> Result<(), GradError>;
    /// `x *= by`, a tensor of one element.
    fn scale_by(&self, x: &mut Self::View, by: &Self::View) -> Result<(), GradError>;
    /// Adds `row` to every row of `x` (broadcast).
    fn add_row(&self, x: &mut Self::View, row: &Self::View) -> Result<(), GradError>;
    /// The sum of the rows of `x`, each with as many elements as `out`.
    fn sum_rows(&self, x: &Self::View, out: &mut Self::View) -> Result<(), GradError>;
    /// `out = a b`, or `out += a b`, starting at element `at` of `out`, with operands rounded to `precision` and accumulation in
    /// f32. [`GradError::Precision`] for a precision that the executor does not support.
    fn matmul(
        &self,
        a: Operand<'_, Self::View>,
        b: Operand<'_, Self::View>,
        out: &mut Self::View,
        at: usize,
        store: Store,
        precision: ProductPrecision,
    ) -> Result<(), GradError>;
    /// Root-mean-square normalization of rows with as many elements as `weight`.
    fn rms_norm(
        &self,
        x: &Self::View,
        weight: &Self::View,
        eps: f32,
        out: &mut Self::View,
    ) -> Result<(), GradError>;
    /// Its gradient with respect to the input.
    fn rms_norm_input(
        &self,
        x: &Self::View,
        weight: &Self::View,
        eps: f32,
        dy: &Self::View,
        dx: &mut Self::View,
    ) -> Result<(), GradError>;
    /// Its gradient with respect to the weight.
    fn rms_norm_weight(
        &self,
        x: &Self::View,
        eps: f32,
        dy: &Self::View,
        dw: &mut Self::View,
    ) -> Result<(), GradError>;
    /// Rotates the heads of `x` in place, or rotates them back.
    fn rope(&self, x: &mut Self::View, heads: usize, how: &Self::Rotary, back: bool)
    -> Result<(), GradError>;
    /// Attention within documents, with the layout of [`attend`](trike_cpu::grad::attend).
    fn attention(
        &self,
        spec: &AttentionSpec,
        qkv: [&Self::View; 3],
        segments: &Self::Segments,
        out: &mut Self::View,
    ) -> Result<(), GradError>;
    /// Its gradients with respect to queries, keys and values.
    fn attention_back(
        &self,
        spec: &AttentionSpec,
        qkv: [&Self::View; 3],
        segments: &Self::Segments,
        dy: &Self::View,
        gradients: [&mut Self::View; 3],
    ) -> Result<(), GradError>;
    /// `out = f(gate) up`.
    fn gated(
        &self,
        gate: &Self::View,
        up: &Self::View,
        activation: GatedActivation,
        out: &mut Self::View,
    ) -> Result<(), GradError>;
    /// Its gradients with respect to gate and up projection.
    fn gated_back(
        &self,
        gate: &Self::View,
        up: &Self::View,
        activation: GatedActivation,
        dy: &Self::View,
        gradients: [&mut Self::View; 2],
    ) -> Result<(), GradError>;
    /// Copies rows of `cols` elements of a table.
    fn gather(
        &self,
        table: &Self::View,
        cols: usize,
        ids: &Self::Ids,
        out: &mut Self::View,
    ) -> Result<(), GradError>;
    /// Adds rows of `cols` elements to the table rows that they were gathered from, in the order of the tokens.
    fn scatter_add(
        &self,
        rows: &Self::View,
        cols: usize,
        ids: &Self::Ids,
        table: &mut Self::View,
    ) -> Result<(), GradError>;
}

/// Rounding of activations and weights, and its backward passes.
#[expect(
    clippy::missing_errors_doc,
    reason = "the same for all methods, in the documentation of `TapeEngine`"
)]
pub trait EngineQuantization: EngineMemory {
    /// Activations rounded to int8, as [`round_int8`](trike_cpu::grad::round_int8).
    fn round_activations(
        &self,
        x: &Self::View,
        width: usize,
        group: usize,
        smallest: f32,
        out: &mut Self::View,
    ) -> Result<(), GradError>;
    /// Weights rounded to int8 with an f16 scale per `group` columns, as [`Int8Tensor`](trike_core::Int8Tensor) stores them. `take`
    /// allocates the output; it is called after temporary memory was freed.
    fn round_weights(
        &self,
        weights: &Self::View,
        cols: usize,
        group: usize,
        take: impl FnOnce() -> Result<Self::Tensor, GradError>,
    ) -> Result<Self::Tensor, GradError>;
    /// The scales of groups of weights: the mean magnitude, or the least-squares scale.
    fn scales(
        &self,
        weights: &Self::View,
        groups: ScaleGroups,
        least_squares: bool,
    ) -> Result<Self::Tensor, GradError>;
    /// Weights interpolated between dense and ternary, see [`TernarizeSpec`](crate::TernarizeSpec).
    fn ternarize(
        &self,
        weights: &Self::View,
        scales: &Self::View,
        groups: ScaleGroups,
        lambda: f32,
        out: &mut Self::View,
    ) -> Result<(), GradError>;
    /// Multiplies the gradients of weights with `|w| > clip s` by `factor`.
    fn clip(
        &self,
        weights: &Self::View,
        scales: &Self::View,
        groups: ScaleGroups,
        clip: f32,
        factor: f32,
        gradient: &mut Self::View,
    ) -> Result<(), GradError>;
    /// The gradient of learned scales.
    fn scales_back(
        &self,
        weights: &Self::View,
        scales: &Self::View,
        groups: ScaleGroups,
        lambda: f32,
        dy: &Self::View,
    ) -> Result<Self::Tensor, GradError>;
}

/// Losses over rows of logits, with their gradients.
#[expect(
    clippy::missing_errors_doc,
    reason = "the same for all methods, in the documentation of `TapeEngine`"
)]
pub trait EngineLosses: EngineMemory {
    /// Losses that are being summed.
    type Losses;
    /// Zeroed losses of `rows` rows.
    fn losses(&self, rows: usize) -> Result<Self::Losses, GradError>;
    /// The sums of both kinds of losses in nats: cross-entropies and divergences.
    fn totals(&self, losses: Self::Losses) -> Result<[f64; 2], GradError>;
    /// Adds the cross-entropies of some rows of logits, which become their gradient times `scale`.
    fn cross_entropy(
        &self,
        logits: &mut Self::View,
        rows: Range<usize>,
        targets: &Self::Targets,
        scale: f32,
        losses: &mut Self::Losses,
    ) -> Result<(), GradError>;
    /// Adds the divergences of some rows of logits from those of a teacher; the logits become their gradient times `scale`. The
    /// contents of `teacher` are arbitrary afterwards.
    fn divergence(
        &self,
        logits: &mut Self::View,
        rows: Range<usize>,
        teacher: &mut Self::View,
        scale: f32,
        losses: &mut Self::Losses,
    ) -> Result<(), GradError>;
    /// Adds both losses of the rows with a target; the logits become the gradient of `scales[0]` times the first plus
    /// `scales[1]` times the second. The contents of `teacher` are arbitrary afterwards.
    fn distill(
        &self,
        logits: &mut Self::View,
        rows: Range<usize>,
        teacher: &mut Self::View,
        targets: &Self::Targets,
        scales: [f32; 2],
        losses: &mut Self::Losses,
    ) -> Result<(), GradError>;
}

/// Sums and updates of an optimizer.
#[expect(
    clippy::missing_errors_doc,
    reason = "the same for all methods, in the documentation of `TapeEngine`"
)]
pub trait EngineOptimization: EngineMemory {
    /// The sum of the squares of all elements of some tensors.
    fn sum_of_squares(&self, all: &[&Self::View]) -> Result<f64, GradError>;
    /// `sum` plus the squares of all elements of a tensor. The host adds them one after another, so summing the parts of a tensor
    /// gives the same bits as summing the whole.
    fn add_squares(&self, sum: f64, x: &Self::View) -> Result<f64, GradError> {
        Ok(sum + self.sum_of_squares(&[x])?)
    }
    /// An AdamW update; `means` are the first and second moment.
    fn adamw(
        &self,
        step: &AdamW,
        value: &mut Self::View,
        gradient: &Self::View,
        means: [&mut Self::View; 2],
    ) -> Result<(), GradError>;
    /// `out = decay mean + limit gradient`.
    fn momentum(
        &self,
        decay: f32,
        limit: f32,
        mean: &Self::View,
        gradient: &Self::View,
        out: &mut Self::View,
    ) -> Result<(), GradError>;
    /// `mean = decay mean + limit gradient`.
    fn add_momentum(
        &self,
        decay: f32,
        limit: f32,
        mean: &mut Self::View,
        gradient: &Self::View,
    ) -> Result<(), GradError>;
    /// `value = kept value - rate update`.
    fn descend(
        &self,
        kept: f32,
        rate: f32,
        value: &mut Self::View,
        update: &Self::View,
    ) -> Result<(), GradError>;
    /// Divides `x` by its norm plus `1e-7`.
    fn normalize(&self, x: &mut Self::View) -> Result<(), GradError>;
    /// `square = a I + b gram + c square` for matrices of `side x side`: a Newton-Schulz iteration step.
    fn polynomial(
        &self,
        coefficients: [f32; 3],
        side: usize,
        gram: &Self::View,
        square: &mut Self::View,
    ) -> Result<(), GradError>;
}
