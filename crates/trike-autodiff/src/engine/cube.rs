//! A device as an executor of tapes.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use trike_core::{AttentionSpec, GatedActivation, ProductPrecision, RopePairing};
use trike_cpu::Store;
use trike_cube::attention::Positions;
use trike_cube::grad::{AdamWStep, DocumentBounds, Factor, Groups, HeadLoss, Lookups, Losses, Targets};
use trike_cube::ops::{CubeRopeTable, RowInput, RowNorm};
use trike_cube::{Buffer, CubeDevice, CubeError, Strategy};

use super::{
    AdamW, Elements, EngineLosses, EngineMemory, EngineOps, EngineOptimization, EngineQuantization, Operand,
    ScaleGroups,
};
use crate::error::{GradError, check_len};

/// f32 elements in the memory of a device.
#[derive(Debug)]
pub struct CubeEngineTensor(Buffer<f32>);

impl CubeEngineTensor {
    /// The memory.
    #[must_use]
    pub fn buffer(&self) -> &Buffer<f32> {
        &self.0
    }
}

impl Elements for CubeEngineTensor {
    fn elements(&self) -> usize {
        self.0.len()
    }
}

/// Bytes that an engine copied between host and device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    /// To the device.
    pub up: u64,
    /// From the device.
    pub down: u64,
}

/// A device as the executor of tapes. Tensors stay resident: uploads are [`EngineMemory::upload`] and the lists of tokens, documents and
/// targets; downloads are [`EngineMemory::download`], the sums of losses and the gradient norm.
///
/// Reductions have a fixed order, so repeated runs on one device give the same bits; they differ from those of the host.
#[derive(Debug)]
pub struct CubeEngine {
    device: CubeDevice,
    up: AtomicU64,
    down: AtomicU64,
}

impl CubeEngine {
    /// An engine on a device.
    #[must_use]
    pub fn new(device: CubeDevice) -> Self {
        Self { device, up: AtomicU64::new(0), down: AtomicU64::new(0) }
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &CubeDevice {
        &self.device
    }

    /// Bytes copied since the engine was created.
    #[must_use]
    pub fn transfers(&self) -> Transfers {
        Transfers { up: self.up.load(Ordering::Relaxed), down: self.down.load(Ordering::Relaxed) }
    }

    fn went_up(&self, bytes: usize) {
        self.up.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn came_down(&self, bytes: usize) {
        self.down.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// The tables of a rotary embedding on a device, for both directions; replaced by longer ones when a position exceeds them.
#[derive(Debug)]
pub struct CubeEngineRopeTable {
    frequencies: Vec<f32>,
    pairing: RopePairing,
    tables: Mutex<[CubeRopeTable; 2]>,
}

/// The rotation of the heads of some tokens on a device.
#[derive(Clone, Debug)]
pub struct CubeRotary {
    /// Forwards and back.
    tables: [CubeRopeTable; 2],
    positions: Positions,
}

fn tables(
    device: &CubeDevice,
    frequencies: &[f32],
    pairing: RopePairing,
    positions: usize,
) -> Result<[CubeRopeTable; 2], CubeError> {
    // The inverse of a rotation is the rotation by the negative angle.
    let back: Vec<f32> = frequencies.iter().map(|f| -f).collect();
    let upload = |frequencies: &[f32]| CubeRopeTable::upload(device, frequencies, positions, pairing);
    Ok([upload(frequencies)?, upload(&back)?])
}

fn factor(operand: Operand<'_, CubeEngineTensor>) -> Factor<'_> {
    let Operand { values, first, rows, cols, transposed } = operand;
    Factor { values: &values.0, first, rows, cols, transposed }
}

fn grouped(groups: ScaleGroups) -> Groups {
    let ScaleGroups { rows, cols, len, per_row } = groups;
    if per_row == 0 { Groups::whole(rows * cols) } else { Groups { rows, cols, len: len.min(cols) } }
}

impl EngineMemory for CubeEngine {
    type Tensor = CubeEngineTensor;

    type View = CubeEngineTensor;

    type RopeTable = CubeEngineRopeTable;

    type Rotary = CubeRotary;

    type Segments = DocumentBounds;

    type Ids = Lookups;

    type Targets = Targets;

    /// One batch saturates a device.
    const SIDE_BY_SIDE: bool = false;

    fn allocate(&self, len: usize) -> Result<CubeEngineTensor, GradError> {
        Ok(CubeEngineTensor(self.device.empty(len)?))
    }

    fn upload(&self, values: Vec<f32>) -> Result<CubeEngineTensor, GradError> {
        self.went_up(4 * values.len());
        Ok(CubeEngineTensor(self.device.upload(&values)?))
    }

    fn download<'v>(&self, tensor: &'v CubeEngineTensor) -> Result<Cow<'v, [f32]>, GradError> {
        self.came_down(tensor.0.bytes());
        Ok(Cow::Owned(self.device.read(&tensor.0)?))
    }

    fn fill(&self, tensor: &mut CubeEngineTensor, value: f32) -> Result<(), GradError> {
        Ok(self.device.fill(&tensor.0.cast()?, value.to_bits())?)
    }

    fn copy(&self, from: &CubeEngineTensor, to: &mut CubeEngineTensor) -> Result<(), GradError> {
        Ok(self.device.copy(&from.0, &to.0)?)
    }

    fn each_alone<I: Send, R: Send>(
        &self,
        items: Vec<I>,
        run: impl Fn(&Self, I) -> R + Sync,
        take: impl FnMut(R) + Send,
    ) -> Result<(), GradError> {
        items.into_iter().map(|item| run(self, item)).for_each(take);
        Ok(())
    }
}

impl EngineOps for CubeEngine {
    const ROUNDS_OPERANDS: bool = false;

    fn rope_table(
        &self,
        frequencies: Vec<f32>,
        pairing: RopePairing,
        positions: usize,
    ) -> Result<CubeEngineRopeTable, GradError> {
        self.went_up(16 * frequencies.len() * positions);
        let tables = Mutex::new(tables(&self.device, &frequencies, pairing, positions)?);
        Ok(CubeEngineRopeTable { frequencies, pairing, tables })
    }

    fn rotary(&self, table: &CubeEngineRopeTable, positions: Vec<u32>) -> Result<CubeRotary, GradError> {
        let needed = positions.iter().max().map_or(0, |last| *last as usize + 1);
        let mut found = table.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if needed > found[0].positions() {
            let positions = needed.next_power_of_two();
            self.went_up(16 * table.frequencies.len() * positions);
            *found = tables(&self.device, &table.frequencies, table.pairing, positions)?;
        }
        self.went_up(4 * positions.len());
        Ok(CubeRotary { tables: found.clone(), positions: Positions::upload(&self.device, &positions)? })
    }

    fn segments(&self, lengths: Vec<usize>) -> Result<DocumentBounds, GradError> {
        let documents = DocumentBounds::upload(&self.device, &lengths)?;
        self.went_up(documents.bytes());
        Ok(documents)
    }

    fn ids(&self, ids: &[u32], rows: usize) -> Result<Lookups, GradError> {
        let ids = Lookups::upload(&self.device, ids, rows)?;
        self.went_up(ids.bytes());
        Ok(ids)
    }

    fn targets(&self, targets: &[Option<u32>]) -> Result<Targets, GradError> {
        let targets = Targets::upload(&self.device, targets)?;
        self.went_up(targets.bytes());
        Ok(targets)
    }

    fn add(&self, sum: &mut CubeEngineTensor, x: &CubeEngineTensor) -> Result<(), GradError> {
        check_len("summand", sum.elements(), x.elements())?;
        Ok(self.device.add(&sum.0, &x.0, &Strategy::Inferred)?)
    }

    fn scale(&self, x: &mut CubeEngineTensor, by: f32) -> Result<(), GradError> {
        Ok(self.device.scale(&x.0, by)?)
    }

    fn scale_by(&self, x: &mut CubeEngineTensor, by: &CubeEngineTensor) -> Result<(), GradError> {
        Ok(self.device.scale_by(&x.0, &by.0)?)
    }

    fn add_row(&self, x: &mut CubeEngineTensor, row: &CubeEngineTensor) -> Result<(), GradError> {
        Ok(self.device.add(&x.0, &row.0, &Strategy::Inferred)?)
    }

    fn sum_rows(&self, x: &CubeEngineTensor, out: &mut CubeEngineTensor) -> Result<(), GradError> {
        Ok(self.device.sum_rows(&x.0, &out.0)?)
    }

    fn matmul(
        &self,
        a: Operand<'_, CubeEngineTensor>,
        b: Operand<'_, CubeEngineTensor>,
        out: &mut CubeEngineTensor,
        at: usize,
        store: Store,
        precision: ProductPrecision,
    ) -> Result<(), GradError> {
        if precision != ProductPrecision::F32 {
            return Err(GradError::Precision { executor: "a device", precision });
        }
        Ok(self.device.product(factor(a), factor(b), &out.0, at, store == Store::Add)?)
    }

    fn rms_norm(
        &self,
        x: &CubeEngineTensor,
        weight: &CubeEngineTensor,
        eps: f32,
        out: &mut CubeEngineTensor,
    ) -> Result<(), GradError> {
        let norm = RowNorm { weight: &weight.0, eps };
        Ok(self.device.rms_norm(RowInput::Plain(&x.0), norm, &out.0, &Strategy::Inferred)?)
    }

    fn rms_norm_input(
        &self,
        x: &CubeEngineTensor,
        weight: &CubeEngineTensor,
        eps: f32,
        dy: &CubeEngineTensor,
        dx: &mut CubeEngineTensor,
    ) -> Result<(), GradError> {
        Ok(self.device.rms_norm_input(&x.0, &weight.0, eps, &dy.0, &dx.0)?)
    }

    fn rms_norm_weight(
        &self,
        x: &CubeEngineTensor,
        eps: f32,
        dy: &CubeEngineTensor,
        dw: &mut CubeEngineTensor,
    ) -> Result<(), GradError> {
        Ok(self.device.rms_norm_weight(&x.0, eps, &dy.0, &dw.0)?)
    }

    fn rope(
        &self,
        x: &mut CubeEngineTensor,
        heads: usize,
        how: &CubeRotary,
        back: bool,
    ) -> Result<(), GradError> {
        let [forward, inverse] = &how.tables;
        let head_dim = x.elements() / how.positions.values().len() / heads.max(1);
        check_len("input of rope", how.positions.values().len() * heads * head_dim, x.elements())?;
        let table = if back { inverse } else { forward };
        Ok(self.device.rope(&x.0, head_dim, &how.positions, table, &Strategy::Inferred)?)
    }

    fn attention(
        &self,
        spec: &AttentionSpec,
        qkv: [&CubeEngineTensor; 3],
        segments: &DocumentBounds,
        out: &mut CubeEngineTensor,
    ) -> Result<(), GradError> {
        Ok(self.device.documents_attention(spec, qkv.map(CubeEngineTensor::buffer), segments, &out.0)?)
    }

    fn attention_back(
        &self,
        spec: &AttentionSpec,
        qkv: [&CubeEngineTensor; 3],
        segments: &DocumentBounds,
        dy: &CubeEngineTensor,
        gradients: [&mut CubeEngineTensor; 3],
    ) -> Result<(), GradError> {
        let qkv = qkv.map(CubeEngineTensor::buffer);
        let gradients = gradients.map(|gradient| &gradient.0);
        Ok(self.device.documents_attention_back(spec, qkv, segments, &dy.0, gradients)?)
    }

    fn gated(
        &self,
        gate: &CubeEngineTensor,
        up: &CubeEngineTensor,
        activation: GatedActivation,
        out: &mut CubeEngineTensor,
    ) -> Result<(), GradError> {
        Ok(self.device.gated(&gate.0, &up.0, activation, &out.0, &Strategy::Inferred)?)
    }

    fn gated_back(
        &self,
        gate: &CubeEngineTensor,
        up: &CubeEngineTensor,
        activation: GatedActivation,
        dy: &CubeEngineTensor,
        [d_gate, d_up]: [&mut CubeEngineTensor; 2],
    ) -> Result<(), GradError> {
        Ok(self.device.gated_back(&gate.0, &up.0, activation, &dy.0, &d_gate.0, &d_up.0)?)
    }

    fn gather(
        &self,
        table: &CubeEngineTensor,
        cols: usize,
        ids: &Lookups,
        out: &mut CubeEngineTensor,
    ) -> Result<(), GradError> {
        Ok(self.device.select_rows(&table.0, cols, ids.ids(), &out.0)?)
    }

    fn scatter_add(
        &self,
        rows: &CubeEngineTensor,
        cols: usize,
        ids: &Lookups,
        table: &mut CubeEngineTensor,
    ) -> Result<(), GradError> {
        Ok(self.device.add_rows_to(&rows.0, cols, ids, &table.0)?)
    }
}

impl EngineQuantization for CubeEngine {
    fn round_activations(
        &self,
        x: &CubeEngineTensor,
        width: usize,
        group: usize,
        smallest: f32,
        out: &mut CubeEngineTensor,
    ) -> Result<(), GradError> {
        let group = group.clamp(1, width.max(1));
        Ok(self.device.round_activations(&x.0, width, group, smallest, &out.0)?)
    }

    fn round_weights(
        &self,
        weights: &CubeEngineTensor,
        cols: usize,
        group: usize,
        take: impl FnOnce() -> Result<CubeEngineTensor, GradError>,
    ) -> Result<CubeEngineTensor, GradError> {
        let out = take()?;
        self.device.round_weights(&weights.0, cols, group, &out.0)?;
        Ok(out)
    }

    fn scales(
        &self,
        weights: &CubeEngineTensor,
        groups: ScaleGroups,
        least_squares: bool,
    ) -> Result<CubeEngineTensor, GradError> {
        let out = self.allocate(groups.count())?;
        self.device.group_scales(&weights.0, grouped(groups), least_squares, &out.0)?;
        Ok(out)
    }

    fn ternarize(
        &self,
        weights: &CubeEngineTensor,
        scales: &CubeEngineTensor,
        groups: ScaleGroups,
        lambda: f32,
        out: &mut CubeEngineTensor,
    ) -> Result<(), GradError> {
        Ok(self.device.ternarize(&weights.0, &scales.0, grouped(groups), lambda, &out.0)?)
    }

    fn clip(
        &self,
        weights: &CubeEngineTensor,
        scales: &CubeEngineTensor,
        groups: ScaleGroups,
        clip: f32,
        factor: f32,
        gradient: &mut CubeEngineTensor,
    ) -> Result<(), GradError> {
        let groups = grouped(groups);
        Ok(self.device.clip_gradient(&weights.0, &scales.0, groups, clip, factor, &gradient.0)?)
    }

    fn scales_back(
        &self,
        weights: &CubeEngineTensor,
        scales: &CubeEngineTensor,
        groups: ScaleGroups,
        lambda: f32,
        dy: &CubeEngineTensor,
    ) -> Result<CubeEngineTensor, GradError> {
        let out = self.allocate(groups.count())?;
        self.device.scale_gradients(&weights.0, &scales.0, grouped(groups), lambda, &dy.0, &out.0)?;
        Ok(out)
    }
}

impl EngineLosses for CubeEngine {
    type Losses = Losses;

    fn losses(&self, rows: usize) -> Result<Losses, GradError> {
        Ok(Losses::new(&self.device, rows)?)
    }

    fn totals(&self, losses: Losses) -> Result<[f64; 2], GradError> {
        self.came_down(8);
        Ok(losses.totals(&self.device)?)
    }

    fn cross_entropy(
        &self,
        logits: &mut CubeEngineTensor,
        rows: Range<usize>,
        targets: &Targets,
        scale: f32,
        losses: &mut Losses,
    ) -> Result<(), GradError> {
        Ok(self.device.head_loss(&logits.0, rows, HeadLoss::CrossEntropy { targets, scale }, losses)?)
    }

    fn divergence(
        &self,
        logits: &mut CubeEngineTensor,
        rows: Range<usize>,
        teacher: &mut CubeEngineTensor,
        scale: f32,
        losses: &mut Losses,
    ) -> Result<(), GradError> {
        let loss = HeadLoss::Divergence { teacher: &teacher.0, scale };
        Ok(self.device.head_loss(&logits.0, rows, loss, losses)?)
    }

    fn distill(
        &self,
        logits: &mut CubeEngineTensor,
        rows: Range<usize>,
        teacher: &mut CubeEngineTensor,
        targets: &Targets,
        scales: [f32; 2],
        losses: &mut Losses,
    ) -> Result<(), GradError> {
        let loss = HeadLoss::Both { targets, teacher: &teacher.0, scales };
        Ok(self.device.head_loss(&logits.0, rows, loss, losses)?)
    }
}

impl EngineOptimization for CubeEngine {
    fn sum_of_squares(&self, all: &[&CubeEngineTensor]) -> Result<f64, GradError> {
        self.came_down(4);
        let all: Vec<&Buffer<f32>> = all.iter().map(|tensor| &tensor.0).collect();
        Ok(f64::from(self.device.sum_of_squares(&all)?))
    }

    fn adamw(
        &self,
        step: &AdamW,
        value: &mut CubeEngineTensor,
        gradient: &CubeEngineTensor,
        [first, second]: [&mut CubeEngineTensor; 2],
    ) -> Result<(), GradError> {
        let AdamW { limit, beta1, beta2, epsilon, rate, correction, kept } = *step;
        let step = AdamWStep { limit, beta1, beta2, epsilon, rate, correction, kept };
        Ok(self.device.adamw(&step, &value.0, &gradient.0, &first.0, &second.0)?)
    }

    fn momentum(
        &self,
        decay: f32,
        limit: f32,
        mean: &CubeEngineTensor,
        gradient: &CubeEngineTensor,
        out: &mut CubeEngineTensor,
    ) -> Result<(), GradError> {
        Ok(self.device.sum_of(&mean.0, &gradient.0, [decay, limit], &out.0)?)
    }

    fn add_momentum(
        &self,
        decay: f32,
        limit: f32,
        mean: &mut CubeEngineTensor,
        gradient: &CubeEngineTensor,
    ) -> Result<(), GradError> {
        Ok(self.device.add_into(&mean.0, &gradient.0, [decay, limit])?)
    }

    fn descend(
        &self,
        kept: f32,
        rate: f32,
        value: &mut CubeEngineTensor,
        update: &CubeEngineTensor,
    ) -> Result<(), GradError> {
        Ok(self.device.add_into(&value.0, &update.0, [kept, -rate])?)
    }

    fn normalize(&self, x: &mut CubeEngineTensor) -> Result<(), GradError> {
        Ok(self.device.normalize(&x.0)?)
    }

    fn polynomial(
        &self,
        coefficients: [f32; 3],
        side: usize,
        gram: &CubeEngineTensor,
        square: &mut CubeEngineTensor,
    ) -> Result<(), GradError> {
        Ok(self.device.polynomial(coefficients, side, &gram.0, &square.0)?)
    }
}
