//! Weights on a device.

use std::sync::{Arc, Mutex, PoisonError};

use trike_core::{DenseData, Layout};
use trike_cube::CubeError;
use trike_cube::linear::{
    self, CubeDenseMatrix, CubeTernaryMatrix, DenseValues, SparseLayout, SparseMatrix, TernaryLayout,
};
use trike_cube::ops::CubeRopeTable;
use trike_trit::{Edit, GroupSize, TritTensor};

use super::CubeBackend;
use crate::{MatrixEdit, NnError, RopePairing, RopeSpec, Tensor};

/// A resident matrix.
#[derive(Debug)]
pub struct CubeMatrix(pub(super) Kind);

#[derive(Debug)]
pub(super) enum Kind {
    /// One part of a fused matrix.
    Ternary {
        packed: Arc<CubeTernaryMatrix>,
        part: usize,
        /// Host copy of a matrix for row lookups: few rows are read, so they are dequantized on the host.
        table: Option<Arc<TritTensor>>,
    },
    /// A sparse layout, which leaves out (most) zeros.
    Sparse {
        matrix: SparseMatrix,
        table: Option<Arc<TritTensor>>,
    },
    Dense(CubeDenseMatrix),
}

impl CubeMatrix {
    /// Rows and columns.
    pub(super) fn shape(&self) -> (usize, usize) {
        match &self.0 {
            Kind::Ternary { packed, part, .. } => (packed.form().parts[*part], packed.form().cols),
            Kind::Sparse { matrix, .. } => (matrix.form().rows, matrix.form().cols),
            Kind::Dense(matrix) => (matrix.rows(), matrix.cols()),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match &self.0 {
            // The bytes of a fused matrix are counted in its first part.
            Kind::Ternary { packed, part: 0, .. } => packed.bytes(),
            Kind::Ternary { .. } => 0,
            Kind::Sparse { matrix, .. } => matrix.bytes(),
            Kind::Dense(matrix) => matrix.bytes(),
        }
    }

    /// The layout of a ternary matrix.
    pub(super) fn layout(&self) -> Option<Layout> {
        match &self.0 {
            Kind::Ternary { packed, .. } => Some(match packed.form().layout {
                TernaryLayout::TwoBit => Layout::TwoBit,
                TernaryLayout::Base3 => Layout::Base3,
                TernaryLayout::Blocks => Layout::Blocks,
            }),
            Kind::Sparse { matrix, .. } => Some(match matrix.form().layout {
                SparseLayout::Entries => Layout::Sparse,
                SparseLayout::Bitmap => Layout::Bitmap,
            }),
            Kind::Dense(_) => None,
        }
    }

    /// Columns per scale of a ternary matrix; `None` if a whole row shares one.
    pub(super) fn group(&self) -> Option<GroupSize> {
        match &self.0 {
            Kind::Ternary { packed, .. } => packed.form().group.and_then(GroupSize::from_usize),
            Kind::Sparse { .. } | Kind::Dense(_) => None,
        }
    }

    /// Host copy of a ternary table.
    pub(super) fn host_table(&self) -> Result<&Arc<TritTensor>, NnError> {
        match &self.0 {
            Kind::Ternary { table: Some(table), .. } | Kind::Sparse { table: Some(table), .. } => Ok(table),
            Kind::Ternary { .. } | Kind::Sparse { .. } | Kind::Dense(_) => Err(NnError::Unsupported {
                what: "a row lookup in a matrix that was loaded for products".to_owned(),
                backend: "devices".to_owned(),
                remedy: "load it as a table",
            }),
        }
    }
}

/// Cosines and sines for the positions requested so far.
#[derive(Debug)]
pub struct CubeRope {
    frequencies: Vec<f32>,
    pairing: RopePairing,
    pub(super) head_dim: usize,
    table: Mutex<CubeRopeTable>,
}

/// Positions with cosines and sines on the device from the start, at eight bytes per pair: 4 MiB for heads of 128.
const KEPT_POSITIONS: usize = 8192;

impl CubeRope {
    pub(super) fn upload(
        backend: &CubeBackend,
        spec: &RopeSpec,
        head_dim: usize,
        context: usize,
    ) -> Result<Self, NnError> {
        let frequencies = spec.frequencies(head_dim);
        let kept = context.clamp(1, KEPT_POSITIONS);
        let table = CubeRopeTable::upload(&backend.device, &frequencies, kept, spec.pairing)?;
        Ok(Self { frequencies, pairing: spec.pairing, head_dim, table: Mutex::new(table) })
    }

    /// A table of at least `needed` positions.
    pub(super) fn table(&self, backend: &CubeBackend, needed: usize) -> Result<CubeRopeTable, NnError> {
        let kept = || self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let table = kept().clone();
        if needed <= table.positions() {
            return Ok(table);
        }
        let upload =
            |positions| CubeRopeTable::upload(&backend.device, &self.frequencies, positions, self.pairing);
        // Upload without the lock: it may wait for a recording thread, which may in turn wait for the lock.
        let table = match upload(needed.max(2 * table.positions())) {
            // Twice the positions may exceed the largest allocation: retry with the required number.
            Err(CubeError::Memory { .. }) => upload(needed)?,
            other => other?,
        };
        *kept() = table.clone();
        Ok(table)
    }
}

impl CubeBackend {
    /// Loads a matrix; with `looked_up`, its rows can be looked up.
    pub(super) fn upload_matrix(&self, weight: Tensor, looked_up: bool) -> Result<CubeMatrix, NnError> {
        let device = &self.device;
        Ok(CubeMatrix(match weight {
            Tensor::Ternary(tensor) => match packing(self.layout_of(&tensor)) {
                Packing::Ternary(layout) => {
                    let packed = Arc::new(CubeTernaryMatrix::pack_as(device, &[&tensor], layout)?);
                    self.remember(&packed);
                    Kind::Ternary { packed, part: 0, table: looked_up.then(|| Arc::new(tensor)) }
                }
                Packing::Sparse(layout) => {
                    let matrix = SparseMatrix::pack_as(device, &tensor, layout)?;
                    Kind::Sparse { matrix, table: looked_up.then(|| Arc::new(tensor)) }
                }
            },
            Tensor::Int8(w) => {
                let scales: Vec<f32> = w.scales().iter().collect();
                let values = DenseValues::Int8 { codes: w.codes(), scales: &scales, group: w.group() };
                Kind::Dense(CubeDenseMatrix::upload(device, w.rows(), w.cols(), values)?)
            }
            Tensor::Dense(w) => {
                let values = match w.data() {
                    DenseData::F32(v) => DenseValues::F32(v),
                    DenseData::F16(v) => DenseValues::F16(v),
                    DenseData::Bf16(v) => DenseValues::Bf16(v),
                };
                Kind::Dense(CubeDenseMatrix::upload(device, w.rows(), w.cols(), values)?)
            }
        }))
    }

    /// Loads matrices, fused where possible.
    pub(super) fn upload_matrices(&self, weights: Vec<Tensor>) -> Result<Vec<CubeMatrix>, NnError> {
        let mut tensors = Vec::with_capacity(weights.len());
        for weight in &weights {
            if let Tensor::Ternary(tensor) = weight {
                tensors.push(tensor);
            }
        }
        let joined = (tensors.len() == weights.len()).then(|| self.joined_layout(&tensors)).flatten();
        if let Some(layout) = joined {
            let packed = Arc::new(CubeTernaryMatrix::pack_as(&self.device, &tensors, layout)?);
            self.remember(&packed);
            let part = |part| CubeMatrix(Kind::Ternary { packed: Arc::clone(&packed), part, table: None });
            return Ok((0..tensors.len()).map(part).collect());
        }
        weights.into_iter().map(|weight| self.upload_matrix(weight, false)).collect()
    }

    /// Edits a matrix: in its buffer if the layout supports it, without touching the other parts of a fused matrix, otherwise
    /// by packing the tensor again into a matrix of its own.
    pub(super) fn edit_matrix(
        &self,
        matrix: &mut CubeMatrix,
        edits: &[Edit],
        edited: &TritTensor,
    ) -> Result<MatrixEdit, NnError> {
        let looked_up = match &matrix.0 {
            Kind::Ternary { packed, part, table: None } if packed.form().layout == TernaryLayout::TwoBit => {
                self.device.edit(packed, *part, edits)?;
                return Ok(MatrixEdit::InPlace);
            }
            Kind::Ternary { table, .. } | Kind::Sparse { table, .. } => table.is_some(),
            Kind::Dense(_) => false,
        };
        *matrix = self.upload_matrix(Tensor::Ternary(edited.clone()), looked_up)?;
        Ok(MatrixEdit::Replaced)
    }

    /// The layout of a matrix: the requested one if the device has a kernel for the tensor in it, else the predicted one.
    fn layout_of(&self, tensor: &TritTensor) -> Layout {
        let activations = self.activations.precision(tensor.scales().granularity().group());
        match self.layout {
            Some(layout) if linear::has_kernel(&self.device, tensor, layout, activations) => layout,
            Some(_) => Layout::TwoBit,
            None => linear::choose_layout(&self.device, tensor, activations),
        }
    }

    /// The common layout in which tensors can be fused, if there is one.
    fn joined_layout(&self, tensors: &[&TritTensor]) -> Option<TernaryLayout> {
        let mut layouts = tensors.iter().map(|tensor| self.layout_of(tensor));
        let first = layouts.next()?;
        match packing(first) {
            Packing::Ternary(layout) if layouts.all(|other| other == first) => {
                CubeTernaryMatrix::can_join(&self.device, tensors, layout).then_some(layout)
            }
            _ => None,
        }
    }
}

/// The kernels of a layout.
enum Packing {
    Ternary(TernaryLayout),
    Sparse(SparseLayout),
}

fn packing(layout: Layout) -> Packing {
    match layout {
        Layout::TwoBit => Packing::Ternary(TernaryLayout::TwoBit),
        Layout::Base3 => Packing::Ternary(TernaryLayout::Base3),
        Layout::Blocks => Packing::Ternary(TernaryLayout::Blocks),
        Layout::Sparse => Packing::Sparse(SparseLayout::Entries),
        Layout::Bitmap => Packing::Sparse(SparseLayout::Bitmap),
    }
}
