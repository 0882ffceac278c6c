//! The backend on the host kernels.

mod cache;
mod errors;
mod eviction;

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use trike_core::{BlockBitmap, Cost, DenseData, ProductPrecision, TileLayout};
use trike_cpu::{
    Cpu, CpuOps, DenseMatrix, EditOutcome, FileRange, KeyScratch, Matrix, MatrixRef, RopeTable, Store, Tiles,
    choose_layout, matmul_rounded,
};
use trike_trit::{Edit, TritTensor};

use crate::{
    ActivationPolicy, ActivationPrecision, AttentionSpec, Backend, BackendBase, BackendCaches, BackendOps,
    BackendPlacement, BackendSteps, BackendTransfers, BackendWeights, CacheCapabilities, CacheSpec, Decoder,
    DecoderSequence, GatedActivation, KvPrecision, KvPrecisions, KvSpec, Layout, MatrixEdit, NnError,
    RopePairing, RopeSpec, Segment, SharedPage, StepInputs, Tensor,
    backend::{no_pages, no_saved_caches},
    check,
};

pub use cache::CpuCache;

/// Minimum rows for which products of an f32 matrix may be rounded: with fewer, they are memory-bound.
const MANY_ROWS: usize = 32;

/// Runs a decoder with the kernels of `trike-cpu`.
#[derive(Debug)]
pub struct CpuBackend {
    cpu: Cpu,
    activations: ActivationPolicy,
    /// The requested layout; chosen per matrix when `None`.
    layout: Option<Layout>,
    products: ProductPrecision,
    spare: Arc<Spare>,
    /// Scratch memory for key selection, one per concurrent thread.
    scratch: Mutex<Vec<KeyScratch>>,
}

impl CpuBackend {
    /// A backend with the threads and instruction set of `cpu`; `activations` is the activation precision of ternary layers,
    /// or the policy that chooses it per layer.
    pub fn new(cpu: Cpu, activations: impl Into<ActivationPolicy>) -> Self {
        let products = ProductPrecision::F32;
        let (spare, scratch) = (Arc::default(), Mutex::default());
        Self { cpu, activations: activations.into(), layout: None, products, spare, scratch }
    }

    /// Precision to which the operands of products with f32 matrices are rounded, for 32 rows of activations and more: a CPU with
    /// AVX-512 BF16 multiplies bf16 faster. By default nothing is rounded.
    #[must_use]
    pub fn with_products(self, products: ProductPrecision) -> Self {
        Self { products, ..self }
    }

    /// The layout of ternary matrices loaded after this call; two-bit if the host has no kernel for the layout. By default, the
    /// layout measured to be fastest is chosen per matrix ([`choose_layout`]).
    #[must_use]
    pub fn with_layout(self, layout: Option<Layout>) -> Self {
        Self { layout, ..self }
    }

    fn layout_of(&self, tensor: &TritTensor) -> Layout {
        match self.layout {
            // The bitmap layout exists on devices only.
            Some(Layout::Bitmap) => Layout::TwoBit,
            Some(layout) => layout,
            None => choose_layout(tensor, self.cpu.isa()),
        }
    }

    /// Replaces the executor; resident weights are kept.
    pub fn set_cpu(&mut self, cpu: Cpu) {
        self.cpu = cpu;
    }

    /// The executor.
    pub fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    /// The activation precision for a matrix; ignored by matrices that are not ternary.
    fn precision_of(&self, matrix: &Matrix) -> ActivationPrecision {
        self.activations.precision(match matrix {
            Matrix::Ternary(matrix) => matrix.group(),
            Matrix::Int8(_) | Matrix::Dense(_) => None,
        })
    }

    /// A tensor with unspecified values: the operation writes all of it.
    fn tensor(&self, rows: usize, width: usize) -> CpuTensor {
        CpuTensor {
            width,
            len: rows * width,
            data: self.spare.take(rows * width),
            spare: Arc::clone(&self.spare),
        }
    }

    fn like(&self, x: &CpuTensor) -> CpuTensor {
        self.tensor(x.rows(), x.width)
    }
}

/// Memory of dropped tensors, for reuse: a prompt's activations are megabytes, and the operating system takes longer to map
/// new pages for them than the smaller operations take.
#[derive(Debug, Default)]
struct Spare(Mutex<Vec<Vec<f32>>>);

impl Spare {
    /// Maximum number of buffers kept. A decoder block has fewer tensors alive at once.
    const MOST: usize = 12;

    /// A buffer of at least `len` elements with unspecified values.
    fn take(&self, len: usize) -> Vec<f32> {
        let mut buffers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = buffers.iter().enumerate().filter(|(_, buffer)| buffer.len() >= len);
        match fits.min_by_key(|(_, buffer)| buffer.len()).map(|(i, _)| i) {
            // Do not use a prompt's buffer for a single token: the next prompt needs it.
            Some(i) if buffers[i].len() / 8 <= len => buffers.swap_remove(i),
            _ => vec![0.0; len],
        }
    }

    fn give(&self, buffer: Vec<f32>) {
        let mut buffers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if buffers.len() == Self::MOST {
            // Drop the oldest: a buffer unused for long has a size that is no longer needed.
            buffers.remove(0);
        }
        if !buffer.is_empty() {
            buffers.push(buffer);
        }
    }
}

impl Decoder<CpuBackend> {
    /// Multiply-adds and compulsory bytes of a step of `tokens` tokens at `position` with logits for the last token:
    /// the linear layers, and the keys and values that attention reads.
    pub fn step_cost(&self, tokens: usize, position: usize, kv: impl Into<KvPrecisions>) -> Cost {
        self.batch_cost(1, tokens, position, &KvSpec::new(kv, position + tokens))
    }

    /// [`step_cost`](Self::step_cost) of one step of several sequences, each with `tokens` tokens at `position`: the weights are
    /// read once. In steps of one token with a key selector, all codes are read, but only the selected keys and values; scoring by
    /// codes, and the sampling of a prompt, do not count as multiply-adds.
    pub fn batch_cost(&self, sequences: usize, tokens: usize, position: usize, kv: &KvSpec) -> Cost {
        let (blocks, head) = self.matrices();
        let cost = |w: &Matrix, tokens| w.problem(tokens, self.backend().precision_of(w)).cost();
        let linear: Cost = blocks.map(|w| cost(w, sequences * tokens)).sum();
        let spec = self.spec();
        let (kv_heads, query_width) = (spec.kv_heads as u64, spec.query_width() as u64);
        let of_layer = |layer: usize| {
            let (keys, prompt) = (kv.keys.of_layer(layer), kv.prompt_keys.of_layer(layer));
            let head_bytes = kv.precision.of_layer(layer).bytes_per_position(spec.head_dim) as u64;
            let seen = position + tokens;
            if let Some(selected) = keys.select(seen).filter(|_| tokens == 1) {
                let (seen, selected) = (seen as u64, selected.total() as u64);
                let code = keys.bytes_per_head(spec.head_dim) as u64;
                let bytes = kv_heads * (selected * head_bytes + seen * code);
                return Cost { macs: 2 * selected * query_width, bytes };
            }
            // Within its own step (or its last block), a token attends to half of the positions on average.
            let scores = if tokens == 1 || prompt.is_all() {
                tokens as u64 * (position as u64 + (tokens as u64).div_ceil(2))
            } else {
                let of_token = |position: usize| {
                    let visible = position / BlockBitmap::BLOCK + 1;
                    prompt.kept(visible).unwrap_or(visible) * BlockBitmap::BLOCK - BlockBitmap::BLOCK / 2
                };
                (position..seen).map(|position| of_token(position) as u64).sum()
            };
            let scores = scores * query_width;
            Cost { macs: 2 * scores, bytes: seen as u64 * kv_heads * head_bytes }
        };
        let attention: Cost = (0..spec.layers).map(of_layer).sum();
        let caches = sequences as u64;
        let attention = Cost { macs: caches * attention.macs, bytes: caches * attention.bytes };
        linear + cost(head, sequences) + attention
    }
}

impl Decoder<CpuBackend> {
    /// Advances `sequence` by `positions` positions with pseudo-random keys and values, uniform in -1 to 1, instead of running
    /// tokens. For benchmarks at a depth: a step takes as long as after a prompt of that length, but its logits mean nothing.
    ///
    /// # Errors
    ///
    /// As a step of `positions` tokens: [`NnError::EmptyStep`], [`NnError::ContextFull`] and [`NnError::StepTooLong`].
    pub fn fill_cache(
        &self,
        sequence: &mut DecoderSequence<CpuBackend>,
        positions: usize,
    ) -> Result<(), NnError> {
        sequence.check_step(positions)?;
        let mut values = vec![0.0; 2 * self.spec().kv_width()];
        let mut state = 1u32;
        let start = sequence.len();
        for cache in &mut sequence.caches {
            for position in start..start + positions {
                for value in &mut values {
                    // A linear congruential generator (Numerical Recipes); its high bits are the better ones.
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    *value = (state >> 8) as f32 / (1 << 23) as f32 - 1.0;
                }
                let (k, v) = values.split_at(values.len() / 2);
                cache.store(position, k, v)?;
            }
        }
        sequence.advance(positions);
        Ok(())
    }
}

/// Activations, `rows x width`, row-major.
#[derive(Clone, Debug)]
pub struct CpuTensor {
    width: usize,
    len: usize,
    /// The elements, followed by unspecified values.
    data: Vec<f32>,
    /// Pool to which the memory is returned on drop.
    spare: Arc<Spare>,
}

impl CpuTensor {
    fn rows(&self) -> usize {
        self.len / self.width
    }

    fn shape(&self) -> check::Shape {
        (self.rows(), self.width)
    }

    fn values(&self) -> &[f32] {
        &self.data[..self.len]
    }

    fn values_mut(&mut self) -> &mut [f32] {
        &mut self.data[..self.len]
    }
}

impl Drop for CpuTensor {
    fn drop(&mut self) {
        self.spare.give(std::mem::take(&mut self.data));
    }
}

/// Rotary frequencies and the pairing of dimensions.
#[derive(Debug)]
pub struct CpuRope {
    table: RopeTable,
    head_dim: usize,
    pairing: RopePairing,
}

/// Positions with precomputed sines and cosines, at eight bytes per pair: 4 MiB for heads of 128.
const KEPT_POSITIONS: usize = 8192;

impl BackendBase for CpuBackend {
    type Tensor = CpuTensor;
    type Matrix = Matrix;
    type Vector = Vec<f32>;
    type Rope = CpuRope;
    type Cache = CpuCache;
    type Inputs = StepInputs;
    type Recorded = ();

    fn name(&self) -> String {
        format!("cpu ({}, {} threads)", self.cpu.isa().name(), self.cpu.threads())
    }
}

impl BackendWeights for CpuBackend {
    fn load_matrix(&self, weight: Tensor) -> Result<Matrix, NnError> {
        Ok(match weight {
            Tensor::Ternary(w) => Matrix::Ternary(self.cpu.pack(&w, self.layout_of(&w))?),
            Tensor::Int8(w) => Matrix::Int8(self.cpu.pack_int8(&w)?),
            Tensor::Dense(w) => Matrix::Dense(DenseMatrix::from_tensor(w)),
        })
    }

    fn load_part(&self, whole: Tensor, rows: Range<usize>) -> Result<Matrix, NnError> {
        // A shard may have a different share of zeros than the whole matrix; in its own layout the order of additions could differ.
        let layout = match &whole {
            Tensor::Ternary(w) => Some(self.layout_of(w)),
            Tensor::Int8(_) | Tensor::Dense(_) => None,
        };
        let part = whole.select_rows(&rows.collect::<Vec<_>>())?;
        // Drop the whole matrix before packing, so that two copies never coexist.
        drop(whole);
        match (part, layout) {
            (Tensor::Ternary(w), Some(layout)) => Ok(Matrix::Ternary(self.cpu.pack(&w, layout)?)),
            (part, _) => self.load_matrix(part),
        }
    }

    fn load_tiles(&self, tiles: &Tiles<FileRange>) -> Result<Option<Matrix>, NnError> {
        let wanted = match tiles {
            Tiles::Int8(_) => true,
            // Base 3 was chosen on a machine where it is fast, or for its size.
            Tiles::Trits(tiles) => match tiles.layout {
                TileLayout::TwoBit => matches!(self.layout, None | Some(Layout::TwoBit | Layout::Bitmap)),
                TileLayout::Base3 => match self.layout {
                    None => self.cpu.isa().has_vbmi(),
                    Some(layout) => layout == Layout::Base3,
                },
            },
        };
        Ok(if wanted { Some(self.cpu.map_tiles(tiles)?) } else { None })
    }

    fn edit(&self, matrix: &mut Matrix, edits: &[Edit], edited: &TritTensor) -> Result<MatrixEdit, NnError> {
        if let Matrix::Ternary(matrix) = matrix
            && matrix.edit(edits)? == EditOutcome::InPlace
        {
            return Ok(MatrixEdit::InPlace);
        }
        *matrix = Matrix::Ternary(self.cpu.pack(edited, self.layout_of(edited))?);
        Ok(MatrixEdit::Replaced)
    }

    fn matrix_layout(&self, matrix: &Matrix) -> Option<Layout> {
        match matrix {
            Matrix::Ternary(matrix) => Some(matrix.layout()),
            Matrix::Int8(_) | Matrix::Dense(_) => None,
        }
    }

    fn load_vector(&self, values: Vec<f32>) -> Result<Vec<f32>, NnError> {
        Ok(values)
    }

    fn load_rope(&self, spec: &RopeSpec, head_dim: usize, context: usize) -> Result<CpuRope, NnError> {
        let table = RopeTable::from_frequencies(spec.frequencies(head_dim))?;
        let table = table.precompute(context.min(KEPT_POSITIONS) as u32);
        Ok(CpuRope { table, head_dim, pairing: spec.pairing })
    }

    fn matrix_bytes(&self, matrix: &Matrix) -> usize {
        matrix.bytes()
    }
}

impl BackendCaches for CpuBackend {
    fn new_cache(&self, spec: &CacheSpec) -> Result<CpuCache, NnError> {
        CpuCache::new(spec)
    }

    fn new_paged_cache(&self, spec: &CacheSpec) -> Result<CpuCache, NnError> {
        Ok(CpuCache::paged(spec))
    }

    fn cache_pages(&self, cache: &CpuCache, positions: usize) -> Result<Vec<SharedPage>, NnError> {
        cache.pages(positions).ok_or_else(|| no_pages(self.name()))
    }

    fn adopt_pages(&self, cache: &mut CpuCache, pages: &[SharedPage]) -> Result<(), NnError> {
        if cache.adopt(pages) { Ok(()) } else { Err(no_pages(self.name())) }
    }

    fn save_cache(&self, cache: &CpuCache, positions: usize) -> Result<Vec<u8>, NnError> {
        cache.save(positions).ok_or_else(|| no_saved_caches(self.name()))
    }

    fn restore_cache(&self, cache: &mut CpuCache, positions: usize, saved: &[u8]) -> Result<(), NnError> {
        cache.restore(positions, saved)
    }
}

impl BackendTransfers for CpuBackend {
    fn upload(&self, values: &[f32], width: usize) -> Result<CpuTensor, NnError> {
        check::upload(values.len(), width)?;
        let mut out = self.tensor(values.len() / width, width);
        out.values_mut().copy_from_slice(values);
        Ok(out)
    }

    fn to_host(&self, x: &CpuTensor) -> Result<Vec<f32>, NnError> {
        Ok(x.values().to_vec())
    }

    fn move_to_host(&self, mut x: CpuTensor) -> Result<Vec<f32>, NnError> {
        let mut data = std::mem::take(&mut x.data);
        data.truncate(x.len);
        Ok(data)
    }

    fn inputs(&self, inputs: StepInputs) -> Result<StepInputs, NnError> {
        Ok(inputs)
    }
}

impl BackendOps for CpuBackend {
    fn embed(&self, table: &Matrix, inputs: &StepInputs, factor: f32) -> Result<CpuTensor, NnError> {
        check::embed(inputs, table.rows())?;
        let mut out = self.tensor(inputs.rows(), table.cols());
        self.cpu.embed(table, inputs.ids(), out.values_mut())?;
        if factor != 1.0 {
            out.values_mut().iter_mut().for_each(|value| *value *= factor);
        }
        Ok(out)
    }

    fn rms_norm(&self, x: &CpuTensor, weight: &Vec<f32>, eps: f32) -> Result<CpuTensor, NnError> {
        check::norm(x.width, weight.len())?;
        let mut out = self.like(x);
        self.cpu.rms_norm(x.values(), weight, eps, out.values_mut())?;
        Ok(out)
    }

    fn head_norm(&self, x: &CpuTensor, weight: &Vec<f32>, eps: f32) -> Result<CpuTensor, NnError> {
        check::head_norm(x.width, weight.len())?;
        let mut out = self.like(x);
        self.cpu.rms_norm(x.values(), weight, eps, out.values_mut())?;
        Ok(out)
    }

    fn add_bias(&self, x: &mut CpuTensor, bias: &Vec<f32>) -> Result<(), NnError> {
        check::bias(x.width, bias.len())?;
        let width = x.width;
        for token in x.values_mut().chunks_exact_mut(width) {
            for (x, b) in token.iter_mut().zip(bias) {
                *x += b;
            }
        }
        Ok(())
    }

    fn linear(&self, x: &CpuTensor, weights: &[&Matrix]) -> Result<Vec<CpuTensor>, NnError> {
        for w in weights {
            check::linear(w.cols(), x.width)?;
        }
        let mut outs: Vec<CpuTensor> = weights.iter().map(|w| self.tensor(x.rows(), w.rows())).collect();
        let mut slices: Vec<&mut [f32]> = outs.iter_mut().map(CpuTensor::values_mut).collect();
        if self.products != ProductPrecision::F32 && x.rows() >= MANY_ROWS {
            for (w, out) in weights.iter().zip(slices) {
                match w {
                    Matrix::Dense(dense) if let DenseData::F32(values) = dense.data() => {
                        let (x, w) = (MatrixRef::new(x.values(), x.width)?, MatrixRef::new(values, x.width)?);
                        matmul_rounded(&self.cpu, x, w.t(), out, Store::Overwrite, self.products)?;
                    }
                    w => self.cpu.linear(x.values(), w, self.precision_of(w), out)?,
                }
            }
            return Ok(outs);
        }
        let ternary = weights.iter().filter(|w| matches!(w, Matrix::Ternary(_)));
        let mut precisions = ternary.map(|w| self.precision_of(w));
        let first = precisions.next().unwrap_or_else(|| self.activations.precision(None));
        if precisions.all(|precision| precision == first) {
            self.cpu.linear_many(x.values(), weights, first, &mut slices)?;
        } else {
            for (w, out) in weights.iter().zip(slices) {
                self.cpu.linear(x.values(), w, self.precision_of(w), out)?;
            }
        }
        Ok(outs)
    }

    fn rope(&self, x: &mut CpuTensor, rope: &CpuRope, inputs: &StepInputs) -> Result<(), NnError> {
        check::rope(x.shape(), rope.head_dim, inputs)?;
        let (heads, positions) = (x.width / rope.head_dim, inputs.positions());
        self.cpu.rope(x.values_mut(), heads, rope.head_dim, positions, &rope.table, rope.pairing)?;
        Ok(())
    }

    fn attention(
        &self,
        spec: &AttentionSpec,
        q: &CpuTensor,
        k: &CpuTensor,
        v: &CpuTensor,
        inputs: &StepInputs,
        caches: &mut [&mut CpuCache],
    ) -> Result<CpuTensor, NnError> {
        let shapes = [q.shape(), k.shape(), v.shape()];
        check::attention(spec, shapes, inputs, caches.iter().map(|cache| cache.spec()))?;
        let mut out = self.like(q);
        let mut rest = out.values_mut();
        let mut jobs = Vec::with_capacity(caches.len());
        for (segment, cache) in inputs.segments().iter().zip(caches) {
            // Segments are in the order of their rows.
            let (part, tail) = rest.split_at_mut(segment.rows.len() * q.width);
            jobs.push((segment, cache, part));
            rest = tail;
        }
        let attend = |(segment, cache, out): (&Segment, &mut &mut CpuCache, &mut [f32])| {
            let position = cache.admit(&self.cpu, spec, segment.first_position, segment.rows.len())?;
            for (i, row) in segment.rows.clone().enumerate() {
                let span = row * k.width..(row + 1) * k.width;
                cache.store(position + i, &k.values()[span.clone()], &v.values()[span])?;
            }
            let q = &q.values()[segment.rows.start * q.width..segment.rows.end * q.width];
            let pop = |all: &Mutex<Vec<_>>| all.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut scratch = pop(&self.scratch).unwrap_or_default();
            let attended =
                cache.attend(&self.cpu, &spec.within(segment.window), q, position, &mut scratch, out);
            self.scratch.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
            attended
        };
        let pairs = |segment: &Segment| {
            segment.rows.len().saturating_mul(segment.first_position + segment.rows.len())
        };
        let pairs = inputs.segments().iter().map(pairs).fold(0, usize::saturating_add);
        let pool = self.cpu.pool();
        if jobs.len() >= pool.threads() && pool.parts(pairs.saturating_mul(2 * q.width)) > 1 {
            // One parallel region for all sequences, whose lengths may differ; a few long ones are split by positions instead.
            pool.map(jobs, attend).into_iter().collect::<Result<(), _>>()?;
        } else {
            jobs.into_iter().try_for_each(attend)?;
        }
        Ok(out)
    }

    fn gated(
        &self,
        gate: &CpuTensor,
        up: &CpuTensor,
        activation: GatedActivation,
    ) -> Result<CpuTensor, NnError> {
        check::gated(gate.shape(), up.shape())?;
        let mut out = self.like(gate);
        self.cpu.gated(gate.values(), up.values(), activation, out.values_mut())?;
        Ok(out)
    }

    fn add(&self, x: &mut CpuTensor, y: &CpuTensor) -> Result<(), NnError> {
        check::add(x.shape(), y.shape())?;
        self.cpu.add(x.values_mut(), y.values())?;
        Ok(())
    }

    fn select_rows(&self, x: &CpuTensor, rows: &[usize]) -> Result<CpuTensor, NnError> {
        check::select_rows(x.rows(), rows)?;
        let mut out = self.tensor(rows.len(), x.width);
        for (&row, out) in rows.iter().zip(out.values_mut().chunks_exact_mut(x.width)) {
            out.copy_from_slice(&x.values()[row * x.width..(row + 1) * x.width]);
        }
        Ok(out)
    }
}

impl BackendPlacement for CpuBackend {}

impl BackendSteps for CpuBackend {}

impl Backend for CpuBackend {
    fn activations(&self) -> ActivationPolicy {
        self.activations
    }

    fn capabilities(&self) -> CacheCapabilities {
        CacheCapabilities {
            kv: &KvPrecision::ALL,
            mixed: true,
            select: true,
            select_prompt: true,
            evict: true,
            pages: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use half::f16;
    use trike_testkit::Rng;

    use super::*;
    use crate::DenseTensor;

    /// Products are rounded only for an f32 matrix with many rows.
    #[test]
    fn products_are_rounded_where_they_may_be() {
        let exact = CpuBackend::new(Cpu::new(1).unwrap(), ActivationPrecision::F32);
        let rounding = CpuBackend::new(Cpu::new(1).unwrap(), ActivationPrecision::F32)
            .with_products(ProductPrecision::Bf16);
        let (rows, cols) = (3, 40);
        let mut rng = Rng::new(1);
        let values = rng.normals(rows * cols);
        let short: Vec<f32> = values.iter().map(|v| ProductPrecision::Bf16.round(*v)).collect();
        let halves = values.iter().map(|v| f16::from_f32(*v)).collect();
        let load =
            |data| exact.load_matrix(DenseTensor::new(vec![rows, cols], data).unwrap().into()).unwrap();
        let (matrix, rounded) = (load(DenseData::F32(values)), load(DenseData::F32(short)));
        let half = load(DenseData::F16(halves));
        for tokens in [MANY_ROWS - 1, MANY_ROWS] {
            let x = rng.normals(tokens * cols);
            let short: Vec<f32> = x.iter().map(|v| ProductPrecision::Bf16.round(*v)).collect();
            let run = |backend: &CpuBackend, x: &[f32], w: &Matrix| {
                let x = backend.upload(x, cols).unwrap();
                backend.linear(&x, &[w]).unwrap().remove(0).values().to_vec()
            };
            let got = run(&rounding, &x, &matrix);
            let want = match tokens < MANY_ROWS {
                true => run(&exact, &x, &matrix),
                false => run(&exact, &short, &rounded),
            };
            trike_testkit::assert_close(&got, &want, 1e-6);
            assert_eq!(got == run(&exact, &x, &matrix), tokens < MANY_ROWS);
            assert_eq!(run(&rounding, &x, &half), run(&exact, &x, &half));
        }
    }

    /// The first rows are all zeros; a shard of only these would be stored in a sparse layout.
    #[test]
    fn a_part_has_the_layout_of_the_whole() {
        let backend = CpuBackend::new(Cpu::new(1).unwrap(), ActivationPrecision::F32);
        let (rows, cols) = (128, 256);
        let mut rng = Rng::new(2);
        let mut trits = rng.trits(rows * cols, 0.7);
        trits[..16 * cols].fill(0);
        let scales = trike_trit::Scales::tensor(0.5);
        let whole = TritTensor::from_trits(rows, cols, &trits, trike_trit::Encoding::TwoBit, scales).unwrap();
        let layout = |matrix: &Matrix| backend.matrix_layout(matrix).unwrap();
        let all = backend.load_matrix(whole.clone().into()).unwrap();
        let alone = backend.load_matrix(Tensor::from(whole.clone()).select_rows(&[0, 1]).unwrap()).unwrap();
        assert_ne!(layout(&alone), layout(&all));
        let x = backend.upload(&rng.normals(cols), cols).unwrap();
        let mut joined = Vec::new();
        for part in [0..16, 16..128] {
            let part = backend.load_part(whole.clone().into(), part).unwrap();
            assert_eq!(layout(&part), layout(&all));
            joined.extend_from_slice(backend.linear(&x, &[&part]).unwrap()[0].values());
        }
        assert_eq!(joined, backend.linear(&x, &[&all]).unwrap()[0].values());
        backend.load_part(whole.into(), 16..129).expect_err("no row 128");
    }
}
