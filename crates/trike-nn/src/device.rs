//! The backend over the kernels of a device.

mod recorded;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use trike_core::DenseData;
use trike_cube::attention::{self, CacheShape, KvCache, Positions};
use trike_cube::linear::{ActivationShape, Activations, DenseMatrix, DenseValues, TernaryMatrix};
use trike_cube::ops::{self, Indices, RopeTable, RowInput};
use trike_cube::{Buffer, CubeError, Device, Graphs, Strategy};
use trike_trit::TritTensor;

pub use self::recorded::CubeRecorded;
use self::recorded::{Recording, Token, can_find, host_table};
use crate::backend::{Input, Norm};
use crate::{
    ActivationPrecision, AttentionSpec, Backend, Best, CacheSpec, DeviceUse, GatedActivation, KvPrecision,
    MemoryPlan, NnError, RopeSpec, Segment, Tensor, TokenStep,
};

/// Runs a decoder on a device of `trike-cube`.
///
/// Tensors stay on the device: ids and positions go there once a step, logits come back. The step of one sequence that reads
/// one token is recorded and run again, where the device can ([`CubeBackend::with_graphs`]).
///
/// ```no_run
/// use trike_cube::{Device, DeviceSpec};
/// use trike_nn::{ActivationPrecision, Backend, CubeBackend};
///
/// let device = Device::open(DeviceSpec::Auto)?;
/// let backend = CubeBackend::new(device, ActivationPrecision::F32);
/// println!("{}", backend.name());
/// # Ok::<(), trike_cube::CubeError>(())
/// ```
#[derive(Debug)]
pub struct CubeBackend {
    device: Device,
    activations: ActivationPrecision,
    /// The positions of this step: every layer has the same ones.
    positions: Mutex<Option<Positions>>,
    /// Whether steps are recorded; a device that refuses turns it off.
    graphs: AtomicBool,
    /// Held while a step is recorded.
    record_alone: Mutex<()>,
    /// The step that is being recorded. Never held while something is asked of the device.
    recording: Mutex<Option<Recording>>,
    copies: Copies,
}

/// What went over the bus since the backend was made, weights left out.
#[derive(Debug, Default)]
struct Copies {
    uploads: AtomicU64,
    uploaded_bytes: AtomicU64,
    read_backs: AtomicU64,
    read_bytes: AtomicU64,
    captures: AtomicU64,
    replays: AtomicU64,
}

impl Copies {
    fn uploaded(&self, bytes: usize) {
        self.uploads.fetch_add(1, Ordering::Relaxed);
        self.uploaded_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn read(&self, bytes: usize) {
        self.read_backs.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn captured(&self) {
        self.captures.fetch_add(1, Ordering::Relaxed);
    }

    fn replayed(&self) {
        self.replays.fetch_add(1, Ordering::Relaxed);
    }
}

/// Activations, `rows x width`, row-major.
#[derive(Debug)]
pub struct CubeTensor {
    buffer: Buffer<f32>,
    width: usize,
}

impl CubeTensor {
    fn rows(&self) -> usize {
        self.buffer.len() / self.width
    }
}

/// A resident matrix.
#[derive(Debug)]
pub struct CubeMatrix(Kind);

#[derive(Debug)]
enum Kind {
    /// One of the matrices that lie side by side.
    Ternary {
        packed: Arc<TernaryMatrix>,
        part: usize,
        /// The host's copy of a matrix that came alone and may be looked up in: a table is read in so few rows that those
        /// are made on the host.
        table: Option<Arc<TritTensor>>,
    },
    Dense(DenseMatrix),
}

impl CubeMatrix {
    fn shape(&self) -> (usize, usize) {
        match &self.0 {
            Kind::Ternary { packed, part, .. } => (packed.form().parts[*part], packed.form().cols),
            Kind::Dense(matrix) => (matrix.rows(), matrix.cols()),
        }
    }
}

/// Cosines and sines, for as many positions as were asked for so far.
#[derive(Debug)]
pub struct CubeRope {
    frequencies: Vec<f32>,
    pairing: ops::RopePairing,
    head_dim: usize,
    table: Mutex<RopeTable>,
}

/// Positions whose cosines and sines are on the device from the start, at eight bytes a pair: 4 MiB for heads of 128.
const KEPT_POSITIONS: usize = 8192;

impl CubeBackend {
    /// A backend on a device, whose ternary layers take `activations`.
    pub fn new(device: Device, activations: ActivationPrecision) -> Self {
        let graphs = device.capabilities().graphs != Graphs::None;
        Self {
            device,
            activations,
            positions: Mutex::new(None),
            graphs: graphs.into(),
            record_alone: Mutex::new(()),
            recording: Mutex::new(None),
            copies: Copies::default(),
        }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What ternary layers take.
    pub fn activations(&self) -> ActivationPrecision {
        self.activations
    }

    /// Compares a plan with what the device has left. A device that does not say how much it has is taken at its word only for
    /// single allocations, when they are made.
    ///
    /// # Errors
    ///
    /// [`NnError::Memory`].
    pub fn check_memory(&self, plan: &MemoryPlan) -> Result<(), NnError> {
        // What models before this one left in the runtime's pools is free, and of no use to weights of other sizes.
        self.device.release()?;
        let memory = self.device.memory();
        let available = memory.total.map(|total| total.saturating_sub(memory.in_use.max(memory.reserved)));
        match available {
            Some(available) if plan.total() > available => {
                Err(NnError::Memory { device: self.name(), plan: *plan, needed: plan.total(), available })
            }
            _ => Ok(()),
        }
    }

    /// A copy of activations of the host, row-major.
    ///
    /// # Errors
    ///
    /// [`NnError::Shape`] for what is not whole rows, and what the device says.
    pub fn upload(&self, values: &[f32], width: usize) -> Result<CubeTensor, NnError> {
        same("numbers beyond whole rows", 0, values.len().checked_rem(width).unwrap_or(values.len()))?;
        self.copies.uploaded(size_of_val(values));
        Ok(CubeTensor { buffer: self.device.upload(values)?, width })
    }

    fn tensor(&self, rows: usize, width: usize) -> Result<CubeTensor, NnError> {
        let len = rows.checked_mul(width).ok_or(CubeError::Shape { what: "tensor", rows, cols: width })?;
        Ok(CubeTensor { buffer: self.device.empty(len)?, width })
    }

    /// The positions on the device, kept for the layers that follow.
    fn positions(&self, values: &[u32]) -> Result<Positions, NnError> {
        if let Some(recorded) = self.recorded_position() {
            same("positions of a recorded step", recorded.values().len(), values.len())?;
            return Ok(recorded);
        }
        let kept = || self.positions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(positions) = kept().as_ref().filter(|positions| positions.values() == values) {
            return Ok(positions.clone());
        }
        self.copies.uploaded(size_of_val(values));
        // Not under the lock: what is asked of the device may wait for a thread that records, which may want the lock.
        let positions = Positions::upload(&self.device, values)?;
        *kept() = Some(positions.clone());
        Ok(positions)
    }

    /// Codes for the ternary layer `of`, straight from what `input` is made of.
    fn codes(&self, input: &Input<'_, Self>, of: &TernaryMatrix) -> Result<Activations, NnError> {
        let (rows, norm, tokens, cols) = match input {
            Input::Plain(x) => (RowInput::Plain(&x.buffer), None, x.rows(), x.width),
            Input::Normed(x, norm) => (RowInput::Plain(&x.buffer), Some(norm), x.rows(), x.width),
            Input::Gated { gate, up, activation, norm } => {
                let activation = *activation;
                let rows = RowInput::Gated { gate: &gate.buffer, up: &up.buffer, activation };
                (rows, norm.as_ref(), gate.rows(), gate.width)
            }
        };
        let codes =
            Activations::empty(&self.device, ActivationShape { tokens, cols, precision: self.activations })?;
        let codes = codes.with_rotation(of.rotation())?;
        let norm = norm.map(|norm| ops::Norm { weight: norm.weight, eps: norm.eps });
        self.device.quantize(rows, norm, &codes, &Strategy::Inferred)?;
        Ok(codes)
    }

    /// What `input` stands for, in floats; `None` when it is a tensor already.
    fn floats(&self, input: &Input<'_, Self>) -> Result<Option<CubeTensor>, NnError> {
        Ok(match input {
            Input::Plain(_) => None,
            Input::Normed(x, norm) => Some(self.rms_norm(x, norm.weight, norm.eps)?),
            Input::Gated { gate, up, activation, norm: None } => Some(self.gated(gate, up, *activation)?),
            Input::Gated { gate, up, activation, norm: Some(norm) } => {
                let out = self.tensor(gate.rows(), gate.width)?;
                let activation = *activation;
                let rows = RowInput::Gated { gate: &gate.buffer, up: &up.buffer, activation };
                let norm = ops::Norm { weight: norm.weight, eps: norm.eps };
                self.device.rms_norm(rows, norm, &out.buffer, &Strategy::Inferred)?;
                Some(out)
            }
        })
    }
}

/// Tokens and columns of what an input stands for, which is checked to be of one shape.
fn shape_of(input: &Input<'_, CubeBackend>) -> Result<(usize, usize), NnError> {
    let normed = |norm: &Norm<'_, CubeBackend>, width| same("width of a norm", width, norm.weight.len());
    let (x, norm) = match input {
        Input::Plain(x) => (x, None),
        Input::Normed(x, norm) => (x, Some(norm)),
        Input::Gated { gate, up, norm, .. } => {
            same("width of an up projection", gate.width, up.width)?;
            same("rows of an up projection", gate.rows(), up.rows())?;
            (gate, norm.as_ref())
        }
    };
    norm.map_or(Ok(()), |norm| normed(norm, x.width))?;
    Ok((x.rows(), x.width))
}

fn same(what: &'static str, expected: usize, got: usize) -> Result<(), NnError> {
    if expected == got { Ok(()) } else { Err(NnError::Shape { what, expected, got }) }
}

impl Backend for CubeBackend {
    type Tensor = CubeTensor;
    type Matrix = CubeMatrix;
    type Vector = Buffer<f32>;
    type Rope = CubeRope;
    type Cache = KvCache;
    type Recorded = CubeRecorded;

    fn name(&self) -> String {
        format!("{} ({})", self.device.spec(), self.device.name())
    }

    fn device_use(&self) -> Option<DeviceUse> {
        let memory = self.device.memory();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Some(DeviceUse {
            in_use: memory.in_use,
            peak: memory.peak,
            total: memory.total,
            uploads: count(&self.copies.uploads),
            uploaded_bytes: count(&self.copies.uploaded_bytes),
            read_backs: count(&self.copies.read_backs),
            read_bytes: count(&self.copies.read_bytes),
            captures: count(&self.copies.captures),
            replays: count(&self.copies.replays),
        })
    }

    fn load_matrix(&self, weight: Tensor) -> Result<CubeMatrix, NnError> {
        let device = &self.device;
        Ok(CubeMatrix(match weight {
            Tensor::Ternary(tensor) => {
                let packed = Arc::new(TernaryMatrix::pack(device, &[&tensor])?);
                Kind::Ternary { packed, part: 0, table: Some(Arc::new(tensor)) }
            }
            Tensor::Int8(w) => {
                let scales: Vec<f32> = w.scales().iter().collect();
                let values = DenseValues::Int8 { codes: w.codes(), scales: &scales, group: w.group() };
                Kind::Dense(DenseMatrix::upload(device, w.rows(), w.cols(), values)?)
            }
            Tensor::Dense(w) => {
                let values = match w.data() {
                    DenseData::F32(v) => DenseValues::F32(v),
                    DenseData::F16(v) => DenseValues::F16(v),
                    DenseData::Bf16(v) => DenseValues::Bf16(v),
                };
                Kind::Dense(DenseMatrix::upload(device, w.rows(), w.cols(), values)?)
            }
        }))
    }

    fn load_matrices(
        &self,
        weights: &mut dyn Iterator<Item = Result<Tensor, NnError>>,
    ) -> Result<Vec<CubeMatrix>, NnError> {
        let weights = weights.collect::<Result<Vec<_>, _>>()?;
        let mut tensors = Vec::with_capacity(weights.len());
        for weight in &weights {
            if let Tensor::Ternary(tensor) = weight {
                tensors.push(tensor);
            }
        }
        let pack = |tensors: &[&TritTensor]| -> Result<Vec<CubeMatrix>, NnError> {
            let packed = Arc::new(TernaryMatrix::pack(&self.device, tensors)?);
            let part = |part| CubeMatrix(Kind::Ternary { packed: Arc::clone(&packed), part, table: None });
            Ok((0..tensors.len()).map(part).collect())
        };
        if tensors.len() == weights.len() {
            match pack(&tensors) {
                // Tensors of different kinds lie apart, and those that are too large for one allocation together.
                Err(NnError::Cube(
                    CubeError::PartsDiffer { .. }
                    | CubeError::Range { .. }
                    | CubeError::Shape { .. }
                    | CubeError::Memory { .. },
                )) if tensors.len() > 1 => {}
                other => return other,
            }
        }
        let alone = weights.into_iter().map(|weight| match weight {
            Tensor::Ternary(tensor) => Ok(pack(&[&tensor])?.remove(0)),
            other => self.load_matrix(other),
        });
        alone.collect()
    }

    fn can_cache(&self, precision: KvPrecision) -> bool {
        precision == KvPrecision::F32 || self.device.capabilities().f16
    }

    fn load_vector(&self, values: Vec<f32>) -> Result<Buffer<f32>, NnError> {
        Ok(self.device.upload_weights(&values)?)
    }

    fn load_rope(&self, spec: &RopeSpec, head_dim: usize, context: usize) -> Result<CubeRope, NnError> {
        let frequencies = spec.frequencies(head_dim);
        let pairing = spec.pairing;
        let kept = context.clamp(1, KEPT_POSITIONS);
        let table = Mutex::new(RopeTable::upload(&self.device, &frequencies, kept, pairing)?);
        Ok(CubeRope { frequencies, pairing, head_dim, table })
    }

    fn new_cache(&self, spec: &CacheSpec) -> Result<KvCache, NnError> {
        let shape = CacheShape {
            kv_heads: spec.kv_heads,
            head_dim: spec.head_dim,
            capacity: spec.capacity,
            precision: spec.precision,
        };
        Ok(KvCache::empty(&self.device, shape)?)
    }

    fn matrix_bytes(&self, matrix: &CubeMatrix) -> usize {
        match &matrix.0 {
            // What lies side by side is counted with the first.
            Kind::Ternary { packed, part: 0, .. } => packed.bytes(),
            Kind::Ternary { .. } => 0,
            Kind::Dense(matrix) => matrix.bytes(),
        }
    }

    fn embed(&self, table: &CubeMatrix, ids: &[u32]) -> Result<CubeTensor, NnError> {
        let (vocab, width) = table.shape();
        if let Some(&id) = ids.iter().find(|&&id| id as usize >= vocab) {
            return Err(NnError::Token { id, vocab });
        }
        let recorded = self.recorded_input();
        match &table.0 {
            Kind::Dense(table) => {
                let out = self.tensor(ids.len(), width)?;
                let ids = match recorded {
                    Some(Token::Id(id)) => id,
                    _ => {
                        self.copies.uploaded(size_of_val(ids));
                        // A table has fewer than 2^32 rows.
                        Indices::upload(&self.device, ids, vocab as u32)?
                    }
                };
                self.device.lookup(table, &ids, &out.buffer, &Strategy::Inferred)?;
                Ok(out)
            }
            Kind::Ternary { .. } => {
                let table = host_table(table)?;
                if let Some(Token::Row { row, .. }) = recorded {
                    return Ok(CubeTensor { buffer: row, width });
                }
                let rows: Vec<usize> = ids.iter().map(|&id| id as usize).collect();
                let values = table.select_rows(&rows)?.dequantize();
                self.upload(&values, width)
            }
        }
    }

    fn rms_norm(&self, x: &CubeTensor, weight: &Buffer<f32>, eps: f32) -> Result<CubeTensor, NnError> {
        same("width of a norm", x.width, weight.len())?;
        self.head_norm(x, weight, eps)
    }

    fn head_norm(&self, x: &CubeTensor, weight: &Buffer<f32>, eps: f32) -> Result<CubeTensor, NnError> {
        same("width beyond whole heads", 0, x.width % weight.len())?;
        let out = self.tensor(x.rows(), x.width)?;
        let norm = ops::Norm { weight, eps };
        self.device.rms_norm(RowInput::Plain(&x.buffer), norm, &out.buffer, &Strategy::Inferred)?;
        Ok(out)
    }

    fn add_bias(&self, x: &mut CubeTensor, bias: &Buffer<f32>) -> Result<(), NnError> {
        same("width of a bias", x.width, bias.len())?;
        Ok(self.device.add(&x.buffer, bias, &Strategy::Inferred)?)
    }

    fn linear(&self, x: &CubeTensor, weights: &[&CubeMatrix]) -> Result<Vec<CubeTensor>, NnError> {
        self.linear_of(Input::Plain(x), weights)
    }

    fn linear_of(&self, input: Input<'_, Self>, weights: &[&CubeMatrix]) -> Result<Vec<CubeTensor>, NnError> {
        let (tokens, cols) = shape_of(&input)?;
        let (mut codes, mut floats) = (None, None);
        let mut outs: Vec<Option<CubeTensor>> = weights.iter().map(|_| None).collect();
        for i in 0..weights.len() {
            same("columns of a linear layer", cols, weights[i].shape().1)?;
            match &weights[i].0 {
                // Made beside one before it.
                _ if outs[i].is_some() => {}
                Kind::Ternary { packed, .. } => {
                    let x = match &codes {
                        Some(codes) if Activations::rotation(codes) == packed.rotation() => codes,
                        _ => codes.insert(self.codes(&input, packed)?),
                    };
                    let parts = packed.form().parts.iter();
                    let made = parts.map(|&rows| self.tensor(tokens, rows)).collect::<Result<Vec<_>, _>>()?;
                    let buffers: Vec<_> = made.iter().map(|out| &out.buffer).collect();
                    self.device.linear(x, packed, &buffers, &Strategy::Inferred)?;
                    let mut made: Vec<_> = made.into_iter().map(Some).collect();
                    for (weight, out) in weights.iter().zip(&mut outs).skip(i) {
                        match &weight.0 {
                            Kind::Ternary { packed: other, part, .. }
                                if Arc::ptr_eq(packed, other) && out.is_none() =>
                            {
                                // Each part once: a matrix that is asked for twice is computed twice.
                                *out = made[*part].take();
                            }
                            _ => {}
                        }
                    }
                }
                Kind::Dense(matrix) => {
                    if floats.is_none() {
                        floats = self.floats(&input)?;
                    }
                    let out = self.tensor(tokens, matrix.rows())?;
                    let x = match (&floats, &input) {
                        (Some(made), _) => made,
                        (None, Input::Plain(x) | Input::Normed(x, _) | Input::Gated { gate: x, .. }) => x,
                    };
                    self.device.dense(&x.buffer, matrix, &out.buffer, &Strategy::Inferred)?;
                    outs[i] = Some(out);
                }
            }
        }
        Ok(outs.into_iter().flatten().collect())
    }

    fn linear_add(
        &self,
        input: Input<'_, Self>,
        weight: &CubeMatrix,
        to: &mut CubeTensor,
    ) -> Result<(), NnError> {
        let (tokens, cols) = shape_of(&input)?;
        let (rows, width) = weight.shape();
        same("columns of a linear layer", width, cols)?;
        same("width of an addend", to.width, rows)?;
        same("rows of an addend", to.rows(), tokens)?;
        match &weight.0 {
            Kind::Ternary { packed, .. } if packed.form().parts.len() == 1 => {
                let codes = self.codes(&input, packed)?;
                self.device.linear_add(&codes, packed, &[&to.buffer], &Strategy::Inferred)?;
            }
            Kind::Ternary { .. } => {
                for out in self.linear_of(input, &[weight])? {
                    self.add(to, &out)?;
                }
            }
            Kind::Dense(matrix) => {
                let made = self.floats(&input)?;
                let x = match (&made, &input) {
                    (Some(made), _) => made,
                    (None, Input::Plain(x) | Input::Normed(x, _) | Input::Gated { gate: x, .. }) => x,
                };
                self.device.dense_add(&x.buffer, matrix, &to.buffer, &Strategy::Inferred)?;
            }
        }
        Ok(())
    }

    fn rope(&self, x: &mut CubeTensor, rope: &CubeRope, positions: &[u32]) -> Result<(), NnError> {
        same("positions of a rotary embedding", x.rows(), positions.len())?;
        same("width beyond whole heads", 0, x.width % rope.head_dim)?;
        let needed = positions.iter().copied().max().map_or(0, |last| last as usize + 1);
        let kept = || rope.table.lock().unwrap_or_else(PoisonError::into_inner);
        let mut table = kept().clone();
        if needed > table.positions() {
            let grown = needed.max(2 * table.positions());
            let upload =
                |positions| RopeTable::upload(&self.device, &rope.frequencies, positions, rope.pairing);
            // Not under the lock, as in `positions`.
            table = match upload(grown) {
                // Twice as many may be more than one allocation may have where as many as are needed are not.
                Err(CubeError::Memory { .. }) => upload(needed)?,
                other => other?,
            };
            *kept() = table.clone();
        }
        let positions = self.positions(positions)?;
        Ok(self.device.rope(&x.buffer, rope.head_dim, &positions, &table, &Strategy::Inferred)?)
    }

    fn attention(
        &self,
        spec: &AttentionSpec,
        q: &CubeTensor,
        k: &CubeTensor,
        v: &CubeTensor,
        segments: &mut [Segment<'_, KvCache>],
    ) -> Result<CubeTensor, NnError> {
        let kv_width = spec.kv_heads * spec.head_dim;
        same("width of queries", spec.heads * spec.head_dim, q.width)?;
        same("width of keys", kv_width, k.width)?;
        same("width of values", kv_width, v.width)?;
        let rows = segments.iter().map(|s| s.rows.end).max().unwrap_or(0);
        for got in [q.rows(), k.rows(), v.rows()] {
            same("rows of a batch", rows, got)?;
        }
        let mut positions = vec![0u32; rows];
        for segment in segments.iter() {
            same("heads of a cache", spec.kv_heads, segment.cache.shape().kv_heads)?;
            same("width of a cached head", spec.head_dim, segment.cache.shape().head_dim)?;
            for (i, position) in positions[segment.rows.clone()].iter_mut().enumerate() {
                // The device refuses positions that a u32 does not hold.
                *position = u32::try_from(segment.first_position + i).unwrap_or(u32::MAX);
            }
        }
        let out = self.tensor(rows, q.width)?;
        // Rows between the segments attend to nothing.
        if segments.iter().map(|s| s.rows.len()).sum::<usize>() != rows {
            self.device.fill(&out.buffer.cast()?, 0)?;
        }
        let positions = self.positions(&positions)?;
        for segment in segments {
            let spec = spec.within(segment.window);
            let rows = attention::Segment {
                rows: segment.rows.clone(),
                positions: &positions,
                cache: &*segment.cache,
            };
            self.device.store(&k.buffer, &v.buffer, &rows)?;
            self.device.attention(&spec, &q.buffer, &rows, &out.buffer, &Strategy::Inferred)?;
        }
        Ok(out)
    }

    fn gated(
        &self,
        gate: &CubeTensor,
        up: &CubeTensor,
        activation: GatedActivation,
    ) -> Result<CubeTensor, NnError> {
        same("width of an up projection", gate.width, up.width)?;
        let out = self.tensor(gate.rows(), gate.width)?;
        self.device.gated(&gate.buffer, &up.buffer, activation, &out.buffer, &Strategy::Inferred)?;
        Ok(out)
    }

    fn add(&self, x: &mut CubeTensor, y: &CubeTensor) -> Result<(), NnError> {
        same("width of an addend", x.width, y.width)?;
        same("rows of an addend", x.rows(), y.rows())?;
        Ok(self.device.add(&x.buffer, &y.buffer, &Strategy::Inferred)?)
    }

    fn select_rows(&self, x: &CubeTensor, rows: &[usize]) -> Result<CubeTensor, NnError> {
        if let Some(&got) = rows.iter().find(|&&row| row >= x.rows()) {
            return Err(NnError::Shape { what: "row to select", expected: x.rows(), got });
        }
        let out = self.tensor(rows.len(), x.width)?;
        // A buffer has fewer than 2^32 numbers.
        let rows: Vec<u32> = rows.iter().map(|&row| row as u32).collect();
        self.copies.uploaded(size_of_val(&rows[..]));
        let rows = Indices::upload(&self.device, &rows, x.rows() as u32)?;
        self.device.select_rows(&x.buffer, x.width, &rows, &out.buffer)?;
        Ok(out)
    }

    fn top(&self, x: &CubeTensor, k: usize) -> Result<Option<Vec<crate::backend::Largest>>, NnError> {
        if !can_find(k, x.width) {
            return Ok(None);
        }
        let values = self.device.empty(x.rows() * k)?;
        let ids = self.device.top(&x.buffer, x.width, k, &values, &Strategy::Inferred)?;
        let (ids, values) = ids.read_with(&self.device, &values)?;
        self.copies.read(size_of_val(&ids[..]) + size_of_val(&values[..]));
        let pairs: Vec<(u32, f32)> = ids.into_iter().zip(values).collect();
        Ok(Some(pairs.chunks_exact(k).map(<[_]>::to_vec).collect()))
    }

    fn read(&self, x: CubeTensor) -> Result<Vec<f32>, NnError> {
        self.copies.read(x.buffer.bytes());
        Ok(self.device.read(&x.buffer)?)
    }

    fn token(
        &self,
        step: &TokenStep<'_, Self>,
        recorded: &mut CubeRecorded,
        run: &mut dyn FnMut() -> Result<CubeTensor, NnError>,
    ) -> Result<Best, NnError> {
        self.recorded_token(step, recorded, run)
    }
}
