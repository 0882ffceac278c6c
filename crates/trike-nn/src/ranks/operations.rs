//! Decoder operations on a rank's part of the model.

use std::ops::Range;

use trike_comm::Communicator;
use trike_core::{AttentionSpec, GatedActivation, Layout, RopeSpec, Tensor};
use trike_cpu::{FileRange, Tiles};

use super::{MOST_NOTICE, Parts, RankBackend, RankMatrix, RankTensor, bytes, notice, read_values};
use crate::{
    ActivationPolicy, Backend, BackendBase, BackendCaches, BackendOps, BackendPlacement, BackendSteps,
    BackendTransfers, BackendWeights, CacheCapabilities, CacheSpec, DeviceUse, NnError, StepInputs,
    StepNotice, WeightName, check,
};

/// The inputs of a step, with the ids for the ranks that hold a part of the embedding.
#[derive(Debug)]
pub struct RankInputs<I> {
    ids: Vec<u32>,
    rows: usize,
    inner: I,
}

impl<B: Backend, C: Communicator> RankBackend<B, C> {
    /// All-gathers the columns of a sharded tensor; `None` if this rank has no part of it.
    fn gathered<'t>(
        &self,
        x: &'t RankTensor<B::Tensor>,
        room: &'t mut Option<B::Tensor>,
    ) -> Result<Option<&'t B::Tensor>, NnError> {
        let (Some(local), Some(parts)) = (&x.local, &x.parts) else { return Ok(x.local.as_ref()) };
        let own = self.message(&self.inner.to_host(local)?)?;
        let widest = parts.iter().map(Range::len).max().unwrap_or(0);
        let all = self.comm.all_gather(&own, bytes(x.rows.saturating_mul(widest)))?;
        let mut columns = Vec::with_capacity(all.len());
        for (rank, (message, part)) in all.iter().zip(&**parts).enumerate() {
            columns.push(read_values(rank, x.rows * part.len(), message)?);
        }
        let joined = joined(x.rows, x.width, parts, &columns);
        Ok(Some(room.insert(self.inner.upload(&joined, x.width)?)))
    }

    /// The values of a tensor on rank 0; empty on the others.
    fn collected(&self, x: &RankTensor<B::Tensor>) -> Result<Vec<f32>, NnError> {
        let local = || match &x.local {
            Some(local) => self.inner.to_host(local),
            None => Ok(Vec::new()),
        };
        let rank = self.comm.rank();
        match &x.parts {
            Some(parts) if rank == 0 => {
                let mut columns = vec![local()?];
                for (from, part) in parts.iter().enumerate().skip(1) {
                    columns.push(self.values(from, x.rows * part.len())?);
                }
                Ok(joined(x.rows, x.width, parts, &columns))
            }
            None if rank == 0 && self.is_here() => local(),
            None if rank == 0 => self.values(self.stage, x.rows * x.width),
            // In a pipeline the rank of the stage holds the tensor; with tensor parallelism every rank holds an unsharded one.
            None if !self.is_here() || self.stage == 0 => Ok(Vec::new()),
            Some(_) | None => {
                self.comm.send(0, &self.message(&local()?)?)?;
                Ok(Vec::new())
            }
        }
    }

    /// The rows of a sharded table for the ids of the step, gathered from all ranks.
    fn looked_up(
        &self,
        table: &B::Matrix,
        parts: &Parts,
        inputs: &RankInputs<B::Inputs>,
        factor: f32,
    ) -> Result<B::Tensor, NnError> {
        let (rank, hidden) = (self.comm.rank(), self.spec.hidden);
        let ids_of = |part: &Range<usize>| {
            let here = inputs.ids.iter().filter(|&&id| part.contains(&(id as usize)));
            here.map(|&id| id - part.start as u32).collect::<Vec<u32>>()
        };
        let own = ids_of(&parts[rank]);
        let mut rows = Vec::with_capacity(parts.len());
        rows.resize_with(parts.len(), Vec::new);
        if !own.is_empty() {
            let mut local = StepInputs::default();
            local.push(&own, 0, None)?;
            rows[rank] =
                self.inner.to_host(&self.inner.embed(table, &self.inner.inputs(local)?, factor)?)?;
            let message = self.message(&rows[rank])?;
            for to in (0..parts.len()).filter(|&to| to != rank) {
                self.comm.send(to, &message)?;
            }
        }
        // Only ranks that hold a row of the step send anything.
        for (from, part) in parts.iter().enumerate().filter(|&(from, _)| from != rank) {
            let count = ids_of(part).len();
            if count > 0 {
                rows[from] = self.values(from, count * hidden)?;
            }
        }
        let mut each: Vec<_> = rows.iter().map(|rows| rows.chunks_exact(hidden)).collect();
        let mut all = Vec::with_capacity(inputs.ids.len() * hidden);
        for &id in &inputs.ids {
            let owner = parts.iter().position(|part| part.contains(&(id as usize)));
            let row = owner.and_then(|owner| each[owner].next());
            all.extend(row.ok_or(NnError::Token { id, vocab: self.spec.vocab })?);
        }
        self.inner.upload(&all, hidden)
    }
}

/// Interleaves the column blocks of all ranks into rows.
fn joined(rows: usize, width: usize, parts: &Parts, columns: &[Vec<f32>]) -> Vec<f32> {
    let mut all = vec![0.0; rows * width];
    for (part, columns) in parts.iter().zip(columns) {
        for (row, own) in all.chunks_exact_mut(width).zip(columns.chunks_exact(part.len())) {
            row[part.clone()].copy_from_slice(own);
        }
    }
    all
}

impl<B: Backend, C: Communicator> BackendBase for RankBackend<B, C> {
    type Tensor = RankTensor<B::Tensor>;
    type Matrix = RankMatrix<B::Matrix>;
    type Vector = Option<B::Vector>;
    type Rope = B::Rope;
    type Cache = Option<B::Cache>;
    type Inputs = RankInputs<B::Inputs>;
    type Recorded = ();

    fn name(&self) -> String {
        format!("{}, {} on {} ranks", self.inner.name(), self.division.name(), self.comm.size())
    }
}

impl<B: Backend, C: Communicator> BackendWeights for RankBackend<B, C> {
    fn load_matrix(&self, weight: Tensor) -> Result<Self::Matrix, NnError> {
        let rows = weight.rows();
        let local = self.is_here().then(|| self.inner.load_matrix(weight)).transpose()?;
        Ok(RankMatrix { local, rows, parts: None })
    }

    fn load_table(&self, weight: Tensor) -> Result<Self::Matrix, NnError> {
        let rows = weight.rows();
        let local = self.is_here().then(|| self.inner.load_table(weight)).transpose()?;
        Ok(RankMatrix { local, rows, parts: None })
    }

    fn load_tiles(&self, tiles: &Tiles<FileRange>) -> Result<Option<Self::Matrix>, NnError> {
        let matrix = self.inner.load_tiles(tiles)?;
        Ok(matrix.map(|local| RankMatrix { local: Some(local), rows: tiles.rows(), parts: None }))
    }

    fn matrix_bytes(&self, matrix: &Self::Matrix) -> usize {
        matrix.local.as_ref().map_or(0, |local| self.inner.matrix_bytes(local))
    }

    fn matrix_layout(&self, matrix: &Self::Matrix) -> Option<Layout> {
        matrix.local.as_ref().and_then(|local| self.inner.matrix_layout(local))
    }

    fn load_vector(&self, values: Vec<f32>) -> Result<Self::Vector, NnError> {
        self.is_here().then(|| self.inner.load_vector(values)).transpose()
    }

    fn load_rope(&self, spec: &RopeSpec, head_dim: usize, context: usize) -> Result<B::Rope, NnError> {
        self.inner.load_rope(spec, head_dim, context)
    }
}

impl<B: Backend, C: Communicator> BackendCaches for RankBackend<B, C> {
    fn new_cache(&self, spec: &CacheSpec) -> Result<Self::Cache, NnError> {
        let kv_heads = self.division.kv_heads(self.comm.rank()).len();
        self.is_here().then(|| self.inner.new_cache(&CacheSpec { kv_heads, ..*spec })).transpose()
    }
}

impl<B: Backend, C: Communicator> BackendTransfers for RankBackend<B, C> {
    fn receive(&self, from: &Self, x: &Self::Tensor, width: usize) -> Result<Self::Tensor, NnError> {
        let mut local = None;
        if from.is_here() {
            if let Some(x) = &x.local {
                self.comm.send(self.stage, &self.message(&self.inner.to_host(x)?)?)?;
            }
        } else if self.is_here() {
            local = Some(self.inner.upload(&self.values(from.stage, x.rows * width)?, width)?);
        }
        Ok(RankTensor::whole(local, x.rows, width))
    }

    fn upload(&self, values: &[f32], width: usize) -> Result<Self::Tensor, NnError> {
        check::upload(values.len(), width)?;
        let local = self.is_here().then(|| self.inner.upload(values, width)).transpose()?;
        Ok(RankTensor::whole(local, values.len() / width, width))
    }

    fn to_host(&self, x: &Self::Tensor) -> Result<Vec<f32>, NnError> {
        self.collected(x)
    }

    fn inputs(&self, inputs: StepInputs) -> Result<Self::Inputs, NnError> {
        let (ids, rows) = (inputs.ids().to_vec(), inputs.rows());
        Ok(RankInputs { ids, rows, inner: self.inner.inputs(inputs)? })
    }
}

impl<B: Backend, C: Communicator> BackendOps for RankBackend<B, C> {
    fn embed(
        &self,
        table: &Self::Matrix,
        inputs: &Self::Inputs,
        factor: f32,
    ) -> Result<Self::Tensor, NnError> {
        let local = match (&table.local, &table.parts) {
            (None, _) => None,
            (Some(table), None) => Some(self.inner.embed(table, &inputs.inner, factor)?),
            (Some(table), Some(parts)) => Some(self.looked_up(table, parts, inputs, factor)?),
        };
        Ok(RankTensor::whole(local, inputs.rows, self.spec.hidden))
    }

    fn rms_norm(&self, x: &Self::Tensor, weight: &Self::Vector, eps: f32) -> Result<Self::Tensor, NnError> {
        let local = match (self.gathered(x, &mut None)?, weight) {
            (Some(x), Some(weight)) => Some(self.inner.rms_norm(x, weight, eps)?),
            _ => None,
        };
        Ok(RankTensor::whole(local, x.rows, x.width))
    }

    fn head_norm(&self, x: &Self::Tensor, weight: &Self::Vector, eps: f32) -> Result<Self::Tensor, NnError> {
        let local = match (&x.local, weight) {
            (Some(x), Some(weight)) => Some(self.inner.head_norm(x, weight, eps)?),
            _ => None,
        };
        Ok(RankTensor { local, rows: x.rows, width: x.width, parts: x.parts.clone() })
    }

    fn linear(&self, x: &Self::Tensor, weights: &[&Self::Matrix]) -> Result<Vec<Self::Tensor>, NnError> {
        let mut room = None;
        let own: Vec<&B::Matrix> = weights.iter().filter_map(|weight| weight.local.as_ref()).collect();
        let mut outs = match self.gathered(x, &mut room)? {
            Some(x) => self.inner.linear(x, &own)?.into_iter(),
            None => Vec::new().into_iter(),
        };
        let out = |weight: &&Self::Matrix| RankTensor {
            local: weight.local.as_ref().and_then(|_| outs.next()),
            rows: x.rows,
            width: weight.rows,
            parts: weight.parts.clone(),
        };
        Ok(weights.iter().map(out).collect())
    }

    fn add_bias(&self, x: &mut Self::Tensor, bias: &Self::Vector) -> Result<(), NnError> {
        match (&mut x.local, bias) {
            (Some(x), Some(bias)) => self.inner.add_bias(x, bias),
            _ => Ok(()),
        }
    }

    fn add(&self, x: &mut Self::Tensor, y: &Self::Tensor) -> Result<(), NnError> {
        match (&mut x.local, self.gathered(y, &mut None)?) {
            (Some(x), Some(y)) => self.inner.add(x, y),
            _ => Ok(()),
        }
    }

    fn rope(&self, x: &mut Self::Tensor, rope: &B::Rope, inputs: &Self::Inputs) -> Result<(), NnError> {
        match &mut x.local {
            Some(x) => self.inner.rope(x, rope, &inputs.inner),
            None => Ok(()),
        }
    }

    fn attention(
        &self,
        spec: &AttentionSpec,
        q: &Self::Tensor,
        k: &Self::Tensor,
        v: &Self::Tensor,
        inputs: &Self::Inputs,
        caches: &mut [&mut Self::Cache],
    ) -> Result<Self::Tensor, NnError> {
        let rank = self.comm.rank();
        let (heads, kv_heads) = (self.division.heads(rank).len(), self.division.kv_heads(rank).len());
        let spec = AttentionSpec { heads, kv_heads, ..*spec };
        let local = match (&q.local, &k.local, &v.local) {
            (Some(q), Some(k), Some(v)) => {
                let mut own: Vec<&mut B::Cache> =
                    caches.iter_mut().filter_map(|cache| cache.as_mut()).collect();
                Some(self.inner.attention(&spec, q, k, v, &inputs.inner, &mut own)?)
            }
            _ => None,
        };
        Ok(RankTensor { local, rows: q.rows, width: q.width, parts: q.parts.clone() })
    }

    fn gated(
        &self,
        gate: &Self::Tensor,
        up: &Self::Tensor,
        activation: GatedActivation,
    ) -> Result<Self::Tensor, NnError> {
        let local = match (&gate.local, &up.local) {
            (Some(gate), Some(up)) => Some(self.inner.gated(gate, up, activation)?),
            _ => None,
        };
        Ok(RankTensor { local, rows: gate.rows, width: gate.width, parts: gate.parts.clone() })
    }

    fn select_rows(&self, x: &Self::Tensor, rows: &[usize]) -> Result<Self::Tensor, NnError> {
        let local = x.local.as_ref().map(|x| self.inner.select_rows(x, rows)).transpose()?;
        Ok(RankTensor { local, rows: rows.len(), width: x.width, parts: x.parts.clone() })
    }
}

impl<B: Backend, C: Communicator> BackendPlacement for RankBackend<B, C> {
    fn stages(&self) -> usize {
        1 + self.later.len()
    }

    fn stage_of(&self, layer: usize) -> usize {
        self.division.rank_of(layer)
    }

    fn stage(&self, index: usize) -> &Self {
        index.checked_sub(1).and_then(|index| self.later.get(index)).unwrap_or(self)
    }

    fn rows_of(&self, name: WeightName, rows: usize) -> Range<usize> {
        self.rows_here(name, rows)
    }

    fn load_rows(
        &self,
        name: WeightName,
        rows: usize,
        weight: &mut dyn FnMut() -> Result<Tensor, NnError>,
    ) -> Result<Self::Matrix, NnError> {
        if !self.is_here() {
            return Ok(RankMatrix { local: None, rows, parts: None });
        }
        let part = |rank| self.division.rows(rank, name, rows);
        let local = Some(self.inner.load_part(weight()?, part(self.comm.rank()))?);
        let parts = (!self.division.is_pipeline()).then(|| (0..self.comm.size()).map(part).collect());
        Ok(RankMatrix { local, rows, parts })
    }

    fn announce(&self, step: &StepNotice<'_>) -> Result<(), NnError> {
        if self.comm.rank() != 0 || self.comm.size() == 1 {
            return Ok(());
        }
        if step.sequences != 1 {
            return Err(NnError::Unsupported {
                what: format!("{} sequences in a step", step.sequences),
                backend: self.name(),
                remedy: "run one after the other",
            });
        }
        self.comm.broadcast(0, Some(&notice::message(step)), MOST_NOTICE)?;
        Ok(())
    }

    fn next_step(&self) -> Result<Option<StepNotice<'static>>, NnError> {
        match self.comm.rank() {
            0 => Ok(None),
            _ => notice::read(&self.comm.receive(0, MOST_NOTICE)?),
        }
    }
}

impl<B: Backend, C: Communicator> BackendSteps for RankBackend<B, C> {}

impl<B: Backend, C: Communicator> Backend for RankBackend<B, C> {
    fn activations(&self) -> ActivationPolicy {
        self.inner.activations()
    }

    fn device_use(&self) -> Option<DeviceUse> {
        self.inner.device_use()
    }

    fn capabilities(&self) -> CacheCapabilities {
        // A page would have to be kept on every rank.
        CacheCapabilities { pages: false, ..self.inner.capabilities() }
    }
}
