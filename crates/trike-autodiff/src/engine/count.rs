//! An executor that counts the memory the host would use and computes nothing.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use trike_core::{AttentionSpec, GatedActivation, ProductPrecision, RopePairing};
use trike_cpu::{Store, grad};

use super::{
    AdamW, Elements, EngineLosses, EngineMemory, EngineOps, EngineOptimization, EngineQuantization, Operand,
    ScaleGroups,
};
use crate::error::{GradError, check_len};

/// Maximum size of a message between ranks, in bytes.
const MESSAGE: u64 = 1 << 20;

/// Bytes of everything that an executor has allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Bytes in use.
    pub held: u64,
    /// The most that were in use at once.
    pub peak: u64,
    /// Peak size of the logits alone, in bytes.
    pub logits: u64,
}

/// Sums do not overflow: a tensor has less than 2^64 bytes, and there are less than 2^64 of them.
#[derive(Debug)]
struct Tally {
    held: u128,
    peak: u128,
    logits: [u128; 2],
    /// Number of batches that run concurrently; their tensors are counted together.
    together: u64,
}

/// A host executor that counts memory and computes nothing: a tensor is a length. A tape on it allocates and frees what it would on
/// [`Cpu`](trike_cpu::Cpu), including the temporary memory of the host's kernels, so the memory of a training step is known without
/// allocating it.
///
/// The tape's own lists of operations and a few hundred kilobytes of kernel buffers per thread are not counted. Values that are
/// read are zero.
///
/// ```
/// use trike_autodiff::{Buffers, Count, EngineMemory, Tape};
///
/// let count = Count::new(1, 1);
/// let weight = count.allocate(3 * 5)?;
/// let x = count.allocate(7 * 5)?;
/// let mut tape = Tape::new(&count, &Buffers::default());
/// let (x, weight) = (tape.constant(&x, 5)?, tape.parameter(&weight, 5)?);
/// let y = tape.linear(x, weight, None)?;
/// assert_eq!(count.counted().held, 4 * (3 * 5 + 7 * 5 + 7 * 3));
/// assert_eq!(tape.shape(y)?, (7, 3));
/// # Ok::<(), trike_autodiff::GradError>(())
/// ```
#[derive(Debug)]
pub struct Count {
    threads: usize,
    together: u64,
    tally: Arc<Mutex<Tally>>,
}

impl Count {
    /// An executor that models a host with `threads` threads. [`EngineMemory::each_alone`] runs `together` independent batches
    /// concurrently; they are counted as if all reached their peak at the same time.
    #[must_use]
    pub fn new(threads: usize, together: usize) -> Self {
        let tally = Tally { held: 0, peak: 0, logits: [0; 2], together: 1 };
        Self { threads, together: together.max(1) as u64, tally: Arc::new(Mutex::new(tally)) }
    }

    /// What was counted so far.
    #[must_use]
    pub fn counted(&self) -> Counted {
        let Tally { held, peak, logits: [_, logits], .. } = *self.tally();
        let [held, peak, logits] = [held, peak, logits].map(|bytes| u64::try_from(bytes).unwrap_or(u64::MAX));
        Counted { held, peak, logits }
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        lock(&self.tally)
    }

    /// Counts `bytes` as in use until the result is dropped.
    fn hold(&self, bytes: u64) -> Taken {
        let mut tally = self.tally();
        let bytes = u128::from(bytes) * u128::from(tally.together);
        tally.held += bytes;
        tally.peak = tally.peak.max(tally.held);
        Taken { bytes, is_logits: false, tally: Arc::clone(&self.tally) }
    }

    /// Counts temporary memory that an operation frees before it returns.
    fn pass(&self, bytes: u64) {
        drop(self.hold(bytes));
    }

    fn list(&self, bytes: u64, lengths: Vec<usize>) -> CountList {
        CountList { lengths: lengths.into(), _taken: Arc::new(self.hold(bytes)) }
    }
}

fn lock(tally: &Mutex<Tally>) -> MutexGuard<'_, Tally> {
    // A panic between two updates leaves valid sums.
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes in use until they are dropped.
#[derive(Debug)]
struct Taken {
    bytes: u128,
    is_logits: bool,
    tally: Arc<Mutex<Tally>>,
}

impl Taken {
    fn mark_logits(&mut self) {
        if !std::mem::replace(&mut self.is_logits, true) {
            let [now, most] = &mut lock(&self.tally).logits;
            *now += self.bytes;
            *most = (*most).max(*now);
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut tally = lock(&self.tally);
        tally.held -= self.bytes;
        if self.is_logits {
            tally.logits[0] -= self.bytes;
        }
    }
}

/// The length of a tensor, whose bytes are counted.
#[derive(Debug)]
pub struct CountTensor {
    len: usize,
    taken: Taken,
}

impl Elements for CountTensor {
    fn elements(&self) -> usize {
        self.len
    }
}

/// A list of tokens, positions or documents, whose bytes are counted.
#[derive(Clone, Debug)]
pub struct CountList {
    /// Of documents.
    lengths: Arc<[usize]>,
    _taken: Arc<Taken>,
}

fn bytes(len: usize) -> u64 {
    (len as u64).saturating_mul(4)
}

impl EngineMemory for Count {
    type Tensor = CountTensor;

    type View = CountTensor;

    type RopeTable = CountList;

    type Rotary = CountList;

    type Segments = CountList;

    type Ids = CountList;

    type Targets = CountList;

    const SIDE_BY_SIDE: bool = true;

    fn allocate(&self, len: usize) -> Result<CountTensor, GradError> {
        Ok(CountTensor { len, taken: self.hold(bytes(len)) })
    }

    fn upload(&self, values: Vec<f32>) -> Result<CountTensor, GradError> {
        self.allocate(values.len())
    }

    fn download<'v>(&self, tensor: &'v CountTensor) -> Result<Cow<'v, [f32]>, GradError> {
        Ok(Cow::Owned(vec![0.0; tensor.len]))
    }

    fn through_host<X: From<GradError>>(
        &self,
        from: &[&CountTensor],
        lens: &[usize],
        _make: impl FnOnce(&[Cow<'_, [f32]>]) -> Result<Vec<Vec<f32>>, X>,
    ) -> Result<Vec<CountTensor>, X> {
        let made = lens.iter().map(|len| self.allocate(*len)).collect::<Result<_, _>>()?;
        // The tensors given, plus the larger of the tensors received and the messages in flight: one sent, those received, and
        // their floats.
        let given = from.iter().map(|tensor| bytes(tensor.len)).fold(0, u64::saturating_add);
        let received = lens.iter().map(|len| bytes(*len)).fold(0, u64::saturating_add);
        let messages = given.min(MESSAGE) + received.min(2 * MESSAGE) + received.min(MESSAGE);
        self.pass(given.saturating_add(received.max(messages)));
        Ok(made)
    }

    fn fill(&self, _tensor: &mut CountTensor, _value: f32) -> Result<(), GradError> {
        Ok(())
    }

    fn copy(&self, from: &CountTensor, to: &mut CountTensor) -> Result<(), GradError> {
        check_len("copy", from.len, to.len)
    }

    fn each_alone<I: Send, R: Send>(
        &self,
        items: Vec<I>,
        run: impl Fn(&Self, I) -> R + Sync,
        take: impl FnMut(R) + Send,
    ) -> Result<(), GradError> {
        let alone = Self { threads: 1, together: 1, tally: Arc::clone(&self.tally) };
        self.tally().together = self.together;
        items.into_iter().map(|item| run(&alone, item)).for_each(take);
        self.tally().together = 1;
        Ok(())
    }
}

impl EngineOps for Count {
    const ROUNDS_OPERANDS: bool = true;

    fn rope_table(
        &self,
        frequencies: Vec<f32>,
        _pairing: RopePairing,
        positions: usize,
    ) -> Result<CountList, GradError> {
        // Frequencies, and a cosine and a sine of each position.
        Ok(self.list(bytes(frequencies.len()) * (1 + 2 * positions as u64), Vec::new()))
    }

    fn rotary(&self, _table: &CountList, positions: Vec<u32>) -> Result<CountList, GradError> {
        Ok(self.list(bytes(positions.len()), Vec::new()))
    }

    fn segments(&self, lengths: Vec<usize>) -> Result<CountList, GradError> {
        Ok(self.list(size_of_val(&*lengths) as u64, lengths))
    }

    fn ids(&self, ids: &[u32], _rows: usize) -> Result<CountList, GradError> {
        Ok(self.list(size_of_val(ids) as u64, Vec::new()))
    }

    fn targets(&self, targets: &[Option<u32>]) -> Result<CountList, GradError> {
        Ok(self.list(size_of_val(targets) as u64, Vec::new()))
    }

    fn add(&self, sum: &mut CountTensor, x: &CountTensor) -> Result<(), GradError> {
        check_len("summand", sum.len, x.len)
    }

    fn scale(&self, _x: &mut CountTensor, _by: f32) -> Result<(), GradError> {
        Ok(())
    }

    fn scale_by(&self, _x: &mut CountTensor, by: &CountTensor) -> Result<(), GradError> {
        check_len("factor", 1, by.len)
    }

    fn add_row(&self, _x: &mut CountTensor, _row: &CountTensor) -> Result<(), GradError> {
        Ok(())
    }

    fn sum_rows(&self, _x: &CountTensor, out: &mut CountTensor) -> Result<(), GradError> {
        // Sums in f64.
        self.pass(2 * bytes(out.len));
        Ok(())
    }

    fn matmul(
        &self,
        a: Operand<'_, CountTensor>,
        b: Operand<'_, CountTensor>,
        out: &mut CountTensor,
        at: usize,
        _store: Store,
        _precision: ProductPrecision,
    ) -> Result<(), GradError> {
        let ((rows, inner), (steps, cols)) = (a.shape(), b.shape());
        check_len("rows of the second matrix of a product", inner, steps)?;
        let end = at + rows * cols;
        if end > out.len {
            return Err(GradError::Length { what: "output of a product", expected: end, got: out.len });
        }
        Ok(())
    }

    fn rms_norm(
        &self,
        x: &CountTensor,
        _weight: &CountTensor,
        _eps: f32,
        out: &mut CountTensor,
    ) -> Result<(), GradError> {
        check_len("output of rms_norm", x.len, out.len)
    }

    fn rms_norm_input(
        &self,
        _x: &CountTensor,
        _weight: &CountTensor,
        _eps: f32,
        dy: &CountTensor,
        dx: &mut CountTensor,
    ) -> Result<(), GradError> {
        check_len("gradient of rms_norm's output", dx.len, dy.len)
    }

    fn rms_norm_weight(
        &self,
        _x: &CountTensor,
        _eps: f32,
        _dy: &CountTensor,
        dw: &mut CountTensor,
    ) -> Result<(), GradError> {
        self.pass(2 * bytes(dw.len));
        Ok(())
    }

    fn rope(
        &self,
        _x: &mut CountTensor,
        _heads: usize,
        _how: &CountList,
        _back: bool,
    ) -> Result<(), GradError> {
        Ok(())
    }

    fn attention(
        &self,
        spec: &AttentionSpec,
        _qkv: [&CountTensor; 3],
        segments: &CountList,
        _out: &mut CountTensor,
    ) -> Result<(), GradError> {
        self.pass(grad::attend_bytes(spec, &segments.lengths));
        Ok(())
    }

    fn attention_back(
        &self,
        spec: &AttentionSpec,
        _qkv: [&CountTensor; 3],
        segments: &CountList,
        _dy: &CountTensor,
        _gradients: [&mut CountTensor; 3],
    ) -> Result<(), GradError> {
        self.pass(grad::attention_bytes(spec, &segments.lengths, self.threads));
        Ok(())
    }

    fn gated(
        &self,
        gate: &CountTensor,
        up: &CountTensor,
        _activation: GatedActivation,
        _out: &mut CountTensor,
    ) -> Result<(), GradError> {
        check_len("up projection", gate.len, up.len)
    }

    fn gated_back(
        &self,
        gate: &CountTensor,
        up: &CountTensor,
        _activation: GatedActivation,
        _dy: &CountTensor,
        _gradients: [&mut CountTensor; 2],
    ) -> Result<(), GradError> {
        check_len("up projection", gate.len, up.len)
    }

    fn gather(
        &self,
        _table: &CountTensor,
        _cols: usize,
        _ids: &CountList,
        _out: &mut CountTensor,
    ) -> Result<(), GradError> {
        Ok(())
    }

    fn scatter_add(
        &self,
        _rows: &CountTensor,
        _cols: usize,
        _ids: &CountList,
        _table: &mut CountTensor,
    ) -> Result<(), GradError> {
        Ok(())
    }
}

impl EngineQuantization for Count {
    fn round_activations(
        &self,
        x: &CountTensor,
        _width: usize,
        _group: usize,
        _smallest: f32,
        out: &mut CountTensor,
    ) -> Result<(), GradError> {
        check_len("rounded activations", x.len, out.len)
    }

    fn round_weights(
        &self,
        weights: &CountTensor,
        cols: usize,
        group: usize,
        take: impl FnOnce() -> Result<CountTensor, GradError>,
    ) -> Result<CountTensor, GradError> {
        let (len, cols) = (weights.len as u64, cols.max(1) as u64);
        let scales = len / cols * cols.div_ceil(group.max(1) as u64);
        // The host holds an f32 copy with codes and scales, whose f32 and f16 forms overlap, then the codes with the dequantized
        // values.
        let dense = self.hold(4 * len);
        let codes = self.hold(len + 2 * scales);
        self.pass(4 * cols + 4 * scales);
        drop(dense);
        let rounded = self.hold(4 * len);
        drop(codes);
        let out = take()?;
        drop(rounded);
        Ok(out)
    }

    fn scales(
        &self,
        _weights: &CountTensor,
        groups: ScaleGroups,
        least_squares: bool,
    ) -> Result<CountTensor, GradError> {
        let count = groups.count();
        // One slice per group and, for sorting, the magnitudes of one group per thread.
        let slices = self.hold((size_of::<&[f32]>() as u64).saturating_mul(count as u64));
        let scales = self.allocate(count)?;
        if least_squares {
            self.pass(bytes(groups.len).saturating_mul(self.threads.clamp(1, count.max(1)) as u64));
        }
        drop(slices);
        Ok(scales)
    }

    fn ternarize(
        &self,
        weights: &CountTensor,
        _scales: &CountTensor,
        _groups: ScaleGroups,
        _lambda: f32,
        out: &mut CountTensor,
    ) -> Result<(), GradError> {
        check_len("ternary weights", weights.len, out.len)
    }

    fn clip(
        &self,
        _weights: &CountTensor,
        _scales: &CountTensor,
        _groups: ScaleGroups,
        _clip: f32,
        _factor: f32,
        _gradient: &mut CountTensor,
    ) -> Result<(), GradError> {
        Ok(())
    }

    fn scales_back(
        &self,
        _weights: &CountTensor,
        scales: &CountTensor,
        _groups: ScaleGroups,
        _lambda: f32,
        _dy: &CountTensor,
    ) -> Result<CountTensor, GradError> {
        self.allocate(scales.len)
    }
}

impl EngineLosses for Count {
    type Losses = [f64; 2];

    fn losses(&self, _rows: usize) -> Result<[f64; 2], GradError> {
        Ok([0.0; 2])
    }

    fn totals(&self, losses: [f64; 2]) -> Result<[f64; 2], GradError> {
        Ok(losses)
    }

    fn cross_entropy(
        &self,
        logits: &mut CountTensor,
        rows: Range<usize>,
        _targets: &CountList,
        _scale: f32,
        _losses: &mut [f64; 2],
    ) -> Result<(), GradError> {
        logits.taken.mark_logits();
        // One f64 loss per row.
        self.pass(8 * rows.len() as u64);
        Ok(())
    }

    fn divergence(
        &self,
        logits: &mut CountTensor,
        rows: Range<usize>,
        teacher: &mut CountTensor,
        _scale: f32,
        _losses: &mut [f64; 2],
    ) -> Result<(), GradError> {
        logits.taken.mark_logits();
        teacher.taken.mark_logits();
        self.pass(8 * rows.len() as u64);
        Ok(())
    }

    fn distill(
        &self,
        logits: &mut CountTensor,
        rows: Range<usize>,
        teacher: &mut CountTensor,
        _targets: &CountList,
        _scales: [f32; 2],
        _losses: &mut [f64; 2],
    ) -> Result<(), GradError> {
        logits.taken.mark_logits();
        teacher.taken.mark_logits();
        self.pass(16 * rows.len() as u64);
        Ok(())
    }
}

impl EngineOptimization for Count {
    fn sum_of_squares(&self, _all: &[&CountTensor]) -> Result<f64, GradError> {
        Ok(0.0)
    }

    fn adamw(
        &self,
        _step: &AdamW,
        value: &mut CountTensor,
        gradient: &CountTensor,
        _means: [&mut CountTensor; 2],
    ) -> Result<(), GradError> {
        check_len("gradient", value.len, gradient.len)
    }

    fn momentum(
        &self,
        _decay: f32,
        _limit: f32,
        _mean: &CountTensor,
        gradient: &CountTensor,
        out: &mut CountTensor,
    ) -> Result<(), GradError> {
        check_len("gradient", out.len, gradient.len)
    }

    fn add_momentum(
        &self,
        _decay: f32,
        _limit: f32,
        mean: &mut CountTensor,
        gradient: &CountTensor,
    ) -> Result<(), GradError> {
        check_len("gradient", mean.len, gradient.len)
    }

    fn descend(
        &self,
        _kept: f32,
        _rate: f32,
        value: &mut CountTensor,
        update: &CountTensor,
    ) -> Result<(), GradError> {
        check_len("update", value.len, update.len)
    }

    fn normalize(&self, _x: &mut CountTensor) -> Result<(), GradError> {
        Ok(())
    }

    fn polynomial(
        &self,
        _coefficients: [f32; 3],
        _side: usize,
        gram: &CountTensor,
        square: &mut CountTensor,
    ) -> Result<(), GradError> {
        check_len("square", gram.len, square.len)
    }
}
