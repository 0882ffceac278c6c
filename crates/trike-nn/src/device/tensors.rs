//! Activations on a device, and transfers between device and host.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use trike_cube::attention::{CacheToken, Positions, TokenTable};
use trike_cube::ops::Indices;
use trike_cube::{Buffer, CubeError};
use trike_trit::TritTensor;

use super::CubeBackend;
use crate::{DeviceUse, NnError, StepInputs, check};

/// Activations, `rows x width`, row-major.
#[derive(Debug)]
pub struct CubeTensor {
    pub(super) buffer: Buffer<f32>,
    pub(super) width: usize,
}

impl CubeTensor {
    pub(super) fn rows(&self) -> usize {
        self.buffer.len() / self.width
    }

    pub(super) fn shape(&self) -> check::Shape {
        (self.rows(), self.width)
    }
}

/// The inputs of a step, with their positions on the device.
#[derive(Debug)]
pub struct CubeInputs {
    pub(super) host: StepInputs,
    pub(super) first: OnDevice,
    /// For the later devices of a pipeline.
    pub(super) later: Vec<OnDevice>,
    /// The tokens of a recorded step, overwritten before each replay.
    pub(super) ids: Option<Ids>,
}

/// The inputs of a step on one device.
#[derive(Debug)]
pub(super) struct OnDevice {
    pub(super) positions: Positions,
    /// Tokens of several sequences that a layer processed together; most layers reuse those of the first.
    pub(super) tokens: Mutex<Vec<TokenTable>>,
}

impl CubeInputs {
    /// The inputs on the device of a stage. Inputs made by a stage for itself are on its device only.
    pub(super) fn at(&self, stage: usize) -> &OnDevice {
        stage.checked_sub(1).and_then(|index| self.later.get(index)).unwrap_or(&self.first)
    }

    /// Exclusive bound of positions that a recording can be replayed with.
    pub(super) fn bound(&self) -> u32 {
        let tokens = self.first.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.iter().map(TokenTable::bound).fold(self.first.positions.bound(), u32::min)
    }
}

/// A buffer with the tokens of a step, which is written before each replay.
#[derive(Clone, Debug)]
pub(super) enum Ids {
    /// Looked up on the device.
    Table(Indices),
    /// Looked up on the host, in a ternary table.
    Rows { rows: Buffer<f32>, table: Arc<TritTensor> },
}

/// Bytes transferred between host and device since the backend was created, weights excluded.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    uploads: AtomicU64,
    uploaded_bytes: AtomicU64,
    read_backs: AtomicU64,
    read_bytes: AtomicU64,
    transfers: AtomicU64,
    transferred_bytes: AtomicU64,
    captures: AtomicU64,
    replays: AtomicU64,
}

impl Traffic {
    pub(super) fn uploaded(&self, bytes: usize) {
        self.uploads.fetch_add(1, Ordering::Relaxed);
        self.uploaded_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn read(&self, bytes: usize) {
        self.read_backs.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// A tensor came from another device.
    pub(super) fn received(&self, bytes: usize) {
        self.transfers.fetch_add(1, Ordering::Relaxed);
        self.transferred_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn captured(&self) {
        self.captures.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn replayed(&self) {
        self.replays.fetch_add(1, Ordering::Relaxed);
    }
}

impl CubeBackend {
    /// A tensor with unspecified values: the operation writes all of it.
    pub(super) fn tensor(&self, rows: usize, width: usize) -> Result<CubeTensor, NnError> {
        let len = rows.checked_mul(width).ok_or(CubeError::Shape { what: "tensor", rows, cols: width })?;
        Ok(CubeTensor { buffer: self.device.empty(len)?, width })
    }

    pub(super) fn upload_tensor(&self, values: &[f32], width: usize) -> Result<CubeTensor, NnError> {
        check::upload(values.len(), width)?;
        self.traffic.uploaded(size_of_val(values));
        Ok(CubeTensor { buffer: self.device.upload(values)?, width })
    }

    pub(super) fn read_tensor(&self, x: &CubeTensor) -> Result<Vec<f32>, NnError> {
        self.traffic.read(x.buffer.bytes());
        Ok(self.device.read(&x.buffer)?)
    }

    pub(super) fn upload_inputs(&self, host: StepInputs) -> Result<CubeInputs, NnError> {
        let first = self.upload_positions(host.positions())?;
        let later = self.each().skip(1).map(|stage| stage.upload_positions(host.positions()));
        let later = later.collect::<Result<_, _>>()?;
        Ok(CubeInputs { host, first, later, ids: None })
    }

    fn upload_positions(&self, positions: &[u32]) -> Result<OnDevice, NnError> {
        self.traffic.uploaded(size_of_val(positions));
        let positions = Positions::upload(&self.device, positions)?;
        Ok(OnDevice { positions, tokens: Mutex::default() })
    }

    /// Uploads the cache offsets of tokens of several sequences.
    pub(super) fn upload_batch(&self, tokens: &[CacheToken<'_>]) -> Result<TokenTable, NnError> {
        self.traffic.uploaded(3 * size_of::<u32>() * tokens.len());
        Ok(TokenTable::upload(&self.device, tokens)?)
    }

    /// Memory and traffic of this device alone.
    pub(super) fn used(&self) -> DeviceUse {
        let memory = self.device.memory();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let traffic = &self.traffic;
        DeviceUse {
            in_use: memory.in_use,
            peak: memory.peak,
            reserved: memory.reserved,
            total: memory.total,
            uploads: count(&traffic.uploads),
            uploaded_bytes: count(&traffic.uploaded_bytes),
            read_backs: count(&traffic.read_backs),
            read_bytes: count(&traffic.read_bytes),
            transfers: count(&traffic.transfers),
            transferred_bytes: count(&traffic.transferred_bytes),
            captures: count(&traffic.captures),
            replays: count(&traffic.replays),
        }
    }
}
