//! The backend over the host kernels.

use half::f16;
use trike_cpu::{
    ActivationPrecision, Attention, Cost, Cpu, CpuError, KvData, KvView, LinearProblem, Matrix, RopePairing,
    RopeTable, TernaryMatrix,
};

use crate::{
    AttentionSpec, Backend, CacheSpec, Decoder, GatedActivation, KvPrecision, NnError, RopeSpec, Segment,
    Weight,
};

/// Runs a decoder with the kernels of `trike-cpu`.
#[derive(Debug)]
pub struct CpuBackend {
    cpu: Cpu,
    activations: ActivationPrecision,
}

impl CpuBackend {
    /// A backend on the threads and instructions of `cpu`, whose ternary layers take `activations`.
    pub fn new(cpu: Cpu, activations: ActivationPrecision) -> Self {
        Self { cpu, activations }
    }

    /// Goes on with another executor; resident weights stay.
    pub fn set_cpu(&mut self, cpu: Cpu) {
        self.cpu = cpu;
    }

    /// The executor.
    pub fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    /// What ternary layers take.
    pub fn activations(&self) -> ActivationPrecision {
        self.activations
    }
}

impl Decoder<CpuBackend> {
    /// Multiply-adds and compulsory bytes of a step of `tokens` tokens at `position` whose last logits are asked
    /// for: the linear layers, and the keys and values that attention reads.
    pub fn step_cost(&self, tokens: usize, position: usize, kv: KvPrecision) -> Cost {
        let precision = self.backend().activations;
        let (blocks, head) = self.matrices();
        let linear: Cost = blocks.map(|w| LinearProblem::new(tokens, w, precision).cost()).sum();
        let spec = self.spec();
        let element = match kv {
            KvPrecision::F32 => 4,
            KvPrecision::F16 => 2,
        };
        let seen = (position + tokens) as u64;
        // A token sees half of its own step on average.
        let scores =
            tokens as u64 * (position as u64 + (tokens as u64).div_ceil(2)) * spec.query_width() as u64;
        let layers = spec.layers as u64;
        let attention =
            Cost { macs: 2 * layers * scores, bytes: 2 * layers * seen * spec.kv_width() as u64 * element };
        linear + LinearProblem::new(1, head, precision).cost() + attention
    }
}

/// Activations, `rows x width`, row-major.
#[derive(Clone, Debug)]
pub struct CpuTensor {
    width: usize,
    data: Vec<f32>,
}

impl CpuTensor {
    fn zeros(rows: usize, width: usize) -> Self {
        Self { width, data: vec![0.0; rows * width] }
    }

    fn rows(&self) -> usize {
        self.data.len() / self.width
    }

    fn like(&self) -> Self {
        Self { width: self.width, data: vec![0.0; self.data.len()] }
    }
}

/// Frequencies, and which dimensions they turn.
#[derive(Debug)]
pub struct CpuRope {
    table: RopeTable,
    head_dim: usize,
    pairing: RopePairing,
}

/// Positions whose sines and cosines are kept, at eight bytes a pair: 4 MiB for heads of 128.
const KEPT_POSITIONS: usize = 8192;

#[derive(Debug)]
enum Elements {
    F32(Vec<f32>),
    F16(Vec<f16>),
}

impl Elements {
    fn zeros(precision: KvPrecision, n: usize) -> Self {
        match precision {
            KvPrecision::F32 => Self::F32(vec![0.0; n]),
            KvPrecision::F16 => Self::F16(vec![f16::ZERO; n]),
        }
    }

    fn write(&mut self, at: usize, values: &[f32]) {
        match self {
            Self::F32(v) => v[at..at + values.len()].copy_from_slice(values),
            Self::F16(v) => {
                for (slot, &value) in v[at..at + values.len()].iter_mut().zip(values) {
                    *slot = f16::from_f32(value);
                }
            }
        }
    }

    fn view(&self) -> KvData<'_> {
        match self {
            Self::F32(v) => KvData::F32(v),
            Self::F16(v) => KvData::F16(v),
        }
    }
}

/// Keys and values of one layer of one sequence, `kv_heads x capacity x head_dim` each.
#[derive(Debug)]
pub struct CpuCache {
    k: Elements,
    v: Elements,
    spec: CacheSpec,
}

impl CpuCache {
    /// Stores a token's keys and values, `kv_heads x head_dim` each, in the slot of `position`.
    fn store(&mut self, position: usize, k: &[f32], v: &[f32]) {
        let CacheSpec { head_dim, capacity, .. } = self.spec;
        let slot = position % capacity;
        for (head, (k, v)) in k.chunks_exact(head_dim).zip(v.chunks_exact(head_dim)).enumerate() {
            let at = (head * capacity + slot) * head_dim;
            self.k.write(at, k);
            self.v.write(at, v);
        }
    }
}

fn same_width(what: &'static str, expected: usize, got: usize) -> Result<(), NnError> {
    if expected == got { Ok(()) } else { Err(NnError::Shape { what, expected, got }) }
}

impl Backend for CpuBackend {
    type Tensor = CpuTensor;
    type Matrix = Matrix;
    type Vector = Vec<f32>;
    type Rope = CpuRope;
    type Cache = CpuCache;

    fn name(&self) -> String {
        format!("cpu ({}, {} threads)", self.cpu.isa().name(), self.cpu.threads())
    }

    fn load_matrix(&self, weight: Weight) -> Result<Matrix, NnError> {
        Ok(match weight {
            Weight::Ternary(w) => Matrix::Ternary(TernaryMatrix::pack(&w)?),
            Weight::Int8(w) => Matrix::Int8(w),
            Weight::Dense(w) => Matrix::Dense(w),
        })
    }

    fn load_vector(&self, values: Vec<f32>) -> Result<Vec<f32>, NnError> {
        Ok(values)
    }

    fn load_rope(&self, spec: &RopeSpec, head_dim: usize, context: usize) -> Result<CpuRope, NnError> {
        let table = RopeTable::from_frequencies(spec.frequencies(head_dim))?;
        let table = table.precompute(context.min(KEPT_POSITIONS) as u32);
        Ok(CpuRope { table, head_dim, pairing: spec.pairing })
    }

    fn new_cache(&self, spec: &CacheSpec) -> Result<CpuCache, NnError> {
        let len = spec.kv_heads.checked_mul(spec.head_dim).and_then(|n| n.checked_mul(spec.capacity));
        let len = len.filter(|n| *n <= isize::MAX as usize / 4).ok_or(NnError::Spec {
            field: "capacity",
            rule: "must make an addressable cache",
            got: spec.capacity.to_string(),
        })?;
        Ok(CpuCache {
            k: Elements::zeros(spec.precision, len),
            v: Elements::zeros(spec.precision, len),
            spec: *spec,
        })
    }

    fn matrix_bytes(&self, matrix: &Matrix) -> usize {
        matrix.bytes()
    }

    fn embed(&self, table: &Matrix, ids: &[u32]) -> Result<CpuTensor, NnError> {
        let mut out = CpuTensor::zeros(ids.len(), table.cols());
        match self.cpu.embed(table, ids, &mut out.data) {
            Err(CpuError::IdOutOfRange { id, rows, .. }) => Err(NnError::Token { id, vocab: rows }),
            other => Ok(other.map(|()| out)?),
        }
    }

    fn rms_norm(&self, x: &CpuTensor, weight: &Vec<f32>, eps: f32) -> Result<CpuTensor, NnError> {
        same_width("width of a norm", x.width, weight.len())?;
        let mut out = x.like();
        self.cpu.rms_norm(&x.data, weight, eps, &mut out.data)?;
        Ok(out)
    }

    fn head_norm(&self, x: &CpuTensor, weight: &Vec<f32>, eps: f32) -> Result<CpuTensor, NnError> {
        same_width("width beyond whole heads", 0, x.width % weight.len().max(1))?;
        let mut out = x.like();
        self.cpu.rms_norm(&x.data, weight, eps, &mut out.data)?;
        Ok(out)
    }

    fn add_bias(&self, x: &mut CpuTensor, bias: &Vec<f32>) -> Result<(), NnError> {
        same_width("width of a bias", x.width, bias.len())?;
        for token in x.data.chunks_exact_mut(x.width) {
            for (x, b) in token.iter_mut().zip(bias) {
                *x += b;
            }
        }
        Ok(())
    }

    fn linear(&self, x: &CpuTensor, weights: &[&Matrix]) -> Result<Vec<CpuTensor>, NnError> {
        for w in weights {
            same_width("columns of a linear layer", x.width, w.cols())?;
        }
        let mut outs: Vec<CpuTensor> = weights.iter().map(|w| CpuTensor::zeros(x.rows(), w.rows())).collect();
        let mut slices: Vec<&mut [f32]> = outs.iter_mut().map(|out| out.data.as_mut_slice()).collect();
        self.cpu.linear_many(&x.data, weights, self.activations, &mut slices)?;
        Ok(outs)
    }

    fn rope(&self, x: &mut CpuTensor, rope: &CpuRope, positions: &[u32]) -> Result<(), NnError> {
        let heads = x.width / rope.head_dim;
        self.cpu.rope(&mut x.data, heads, rope.head_dim, positions, &rope.table, rope.pairing)?;
        Ok(())
    }

    fn attention(
        &self,
        spec: &AttentionSpec,
        q: &CpuTensor,
        k: &CpuTensor,
        v: &CpuTensor,
        segments: &mut [Segment<'_, CpuCache>],
    ) -> Result<CpuTensor, NnError> {
        let kv_width = spec.kv_heads * spec.head_dim;
        same_width("width of queries", spec.heads * spec.head_dim, q.width)?;
        same_width("width of keys", kv_width, k.width)?;
        same_width("width of values", kv_width, v.width)?;
        let rows = segments.iter().map(|s| s.rows.end).max().unwrap_or(0);
        for got in [q.rows(), k.rows(), v.rows()] {
            same_width("rows of a batch", rows, got)?;
        }
        let mut out = q.like();
        for segment in segments {
            same_width("heads of a cache", spec.kv_heads, segment.cache.spec.kv_heads)?;
            same_width("width of a cached head", spec.head_dim, segment.cache.spec.head_dim)?;
            for (i, row) in segment.rows.clone().enumerate() {
                let span = row * kv_width..(row + 1) * kv_width;
                segment.cache.store(segment.first_position + i, &k.data[span.clone()], &v.data[span]);
            }
            let problem = Attention {
                heads: spec.heads,
                kv_heads: spec.kv_heads,
                head_dim: spec.head_dim,
                scale: spec.scale,
                window: segment.window,
            };
            let cache = &*segment.cache;
            let view = KvView { k: cache.k.view(), v: cache.v.view(), capacity: cache.spec.capacity };
            let span = segment.rows.start * q.width..segment.rows.end * q.width;
            let out = &mut out.data[span.clone()];
            self.cpu.attention(&problem, &q.data[span], segment.first_position, view, out)?;
        }
        Ok(out)
    }

    fn gated(
        &self,
        gate: &CpuTensor,
        up: &CpuTensor,
        activation: GatedActivation,
    ) -> Result<CpuTensor, NnError> {
        let mut out = gate.like();
        self.cpu.gated(&gate.data, &up.data, activation, &mut out.data)?;
        Ok(out)
    }

    fn add(&self, x: &mut CpuTensor, y: &CpuTensor) -> Result<(), NnError> {
        same_width("width of an addend", x.width, y.width)?;
        self.cpu.add(&mut x.data, &y.data)?;
        Ok(())
    }

    fn select_rows(&self, x: &CpuTensor, rows: &[usize]) -> Result<CpuTensor, NnError> {
        let mut data = Vec::with_capacity(rows.len() * x.width);
        for &row in rows {
            let Some(values) = x.data.get(row * x.width..(row + 1) * x.width) else {
                return Err(NnError::Shape { what: "row to select", expected: x.rows(), got: row });
            };
            data.extend_from_slice(values);
        }
        Ok(CpuTensor { width: x.width, data })
    }

    fn read(&self, x: CpuTensor) -> Result<Vec<f32>, NnError> {
        Ok(x.data)
    }
}
