//! Sparse ternary weights on a device.

use trike_trit::{Granularity, TritTensor};

use super::kernels::bitmap::SIGN_BITS;
use super::shape::{BLOCK, MAX_COLS};
use crate::device::{Buffer, CubeDevice};
#[cfg(doc)]
use crate::error::CubeError;
use crate::error::{Result, check_range, check_rotation, check_shape, unsupported};

/// Maximum columns in [`SparseLayout::Entries`]: a column and a sign take two bytes.
pub const MAX_SPARSE_COLS: usize = 1 << 15;

/// Memory layout of a sparse matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SparseLayout {
    /// Two bytes per nonzero. The smaller layout above about 92 % of unstructured zeros.
    #[default]
    Entries,
    /// One bit per weight and one sign per nonzero, in chunks of 128 columns; zero chunks are omitted.
    Bitmap,
}

/// A trit tensor of one plane, stored without (most of) its zeros.
///
/// [`SparseLayout::Entries`] lists the nonzeros:
///
/// ```text
/// offsets  [rows + 1]: number of entries before the row's
/// entries  2 column + (1 if the trit is -1), two per word, the first in the low half
/// scales   [row]
/// ```
///
/// [`SparseLayout::Bitmap`] stores the chunks of 128 columns that are not all zero:
///
/// ```text
/// starts   [rows + 1][2]: number of chunks before the row's, number of sign words before the row's
/// headers  [chunk]: 2^17 (chunk number in its row) + (number of the row's signs before the chunk)
/// bits     [chunk][t of 4]: bit 4 s + b is 1 if the weight of column 128 number + 16 s + 4 t + b is not zero
/// signs    per row: for each set bit, in word order from the lowest bit, 1 if the trit is -1;
///          a row starts at a word boundary, and two padding words follow the last row
/// scales   [row]
/// ```
///
/// Entries are smaller than two bits per weight from 87.5 % zeros, a bitmap from about 30 %. Less memory does not mean less
/// time: locating the nonzeros can cost more than reading all weights. Not supported: group scales and in-place edits.
#[derive(Clone, Debug)]
pub struct SparseMatrix {
    form: SparseForm,
    pub(super) weights: Weights,
    pub(super) scales: Buffer<f32>,
}

/// The buffers of a layout.
#[derive(Clone, Debug)]
pub(super) enum Weights {
    Entries { offsets: Buffer<u32>, entries: Buffer<u32> },
    Bitmap { starts: Buffer<u32>, headers: Buffer<u32>, bits: Buffer<u32>, signs: Buffer<u32> },
}

/// Properties of a sparse matrix that plans depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SparseForm {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Number of nonzero trits.
    pub nonzeros: usize,
    /// Number of chunks of 128 columns of a row that are not all zero.
    pub chunks: usize,
    /// Memory layout of the weights.
    pub layout: SparseLayout,
}

/// Integer operations of a GPU per byte of memory traffic, on an H200 (0.86 per two bits).
const OPERATIONS_PER_BYTE: f64 = 3.4;
/// Operations per list entry and code row, counted in the instruction stream.
const ENTRY_OPERATIONS: f64 = 14.0;
/// Operations per bitmap word, without its bits.
const WORD_OPERATIONS: f64 = 24.0;
/// Operations per set bit and code row.
const BIT_OPERATIONS: f64 = 11.0;

impl SparseForm {
    /// Bytes read by a kernel.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let words = match self.layout {
            SparseLayout::Entries => self.rows + 1 + self.nonzeros.div_ceil(2).max(1),
            // The last sign word of a row is half full on average.
            SparseLayout::Bitmap => {
                2 * (self.rows + 1) + 5 * self.chunks.max(1) + (self.nonzeros + 16 * self.rows) / 32 + 2
            }
        };
        4 * (words + self.rows)
    }

    /// The layout with the lower predicted time for one code row.
    #[must_use]
    pub fn predicted(self) -> SparseLayout {
        let time = |layout| Self { layout, ..self }.predicted_time();
        if self.cols > MAX_SPARSE_COLS || time(SparseLayout::Bitmap) < time(SparseLayout::Entries) {
            SparseLayout::Bitmap
        } else {
            SparseLayout::Entries
        }
    }

    /// The predicted time for one code row, expressed as equivalent bytes of memory traffic: the maximum of the matrix's bytes
    /// and its operations, both counted, not measured.
    pub(super) fn predicted_time(self) -> f64 {
        let nonzeros = self.nonzeros as f64;
        let operations = match self.layout {
            SparseLayout::Entries => ENTRY_OPERATIONS * nonzeros,
            SparseLayout::Bitmap => 4.0 * WORD_OPERATIONS * self.chunks as f64 + BIT_OPERATIONS * nonzeros,
        };
        (self.bytes() as f64).max(operations / OPERATIONS_PER_BYTE)
    }

    pub(super) fn validate(&self) -> Result<()> {
        let widest = match self.layout {
            SparseLayout::Entries => MAX_SPARSE_COLS,
            SparseLayout::Bitmap => MAX_COLS,
        };
        check_range("columns of a sparse matrix", 1, widest, self.cols)?;
        check_shape("sparse matrix", self.rows, self.cols)?;
        check_shape("chunks of a sparse matrix", self.rows, self.cols.next_multiple_of(BLOCK))?;
        Ok(())
    }
}

impl SparseMatrix {
    /// Packs a tensor with one plane and one scale per tensor or per row, in the layout of [`SparseForm::predicted`].
    ///
    /// # Errors
    ///
    /// [`CubeError::Unsupported`] for more planes, scales per group or means, [`CubeError::Mismatch`] for a rotated tensor,
    /// [`CubeError::Range`] for rows longer than [`MAX_COLS`], [`CubeError::Shape`] and [`CubeError::Memory`].
    pub fn pack(device: &CubeDevice, tensor: &TritTensor) -> Result<Self> {
        let form = form_of(tensor)?;
        Self::pack_form(device, tensor, SparseForm { layout: form.predicted(), ..form })
    }

    /// [`SparseMatrix::pack`] in a chosen layout.
    ///
    /// # Errors
    ///
    /// As [`SparseMatrix::pack`]; [`CubeError::Range`] for rows longer than [`MAX_SPARSE_COLS`] in
    /// [`SparseLayout::Entries`].
    pub fn pack_as(device: &CubeDevice, tensor: &TritTensor, layout: SparseLayout) -> Result<Self> {
        Self::pack_form(device, tensor, SparseForm { layout, ..form_of(tensor)? })
    }

    fn pack_form(device: &CubeDevice, tensor: &TritTensor, form: SparseForm) -> Result<Self> {
        form.validate()?;
        let scales = (0..form.rows).map(|row| Ok(tensor.scale(0, row, 0)?)).collect::<Result<Vec<f32>>>()?;
        let weights = match form.layout {
            SparseLayout::Entries => {
                let host = list(tensor)?;
                Weights::Entries {
                    offsets: device.upload_weights(&host.offsets)?,
                    entries: device.upload_weights(&host.entries)?,
                }
            }
            SparseLayout::Bitmap => {
                let host = map(tensor)?;
                Weights::Bitmap {
                    starts: device.upload_weights(&host.starts)?,
                    headers: device.upload_weights(&host.headers)?,
                    bits: device.upload_weights(&host.bits)?,
                    signs: device.upload_weights(&host.signs)?,
                }
            }
        };
        Ok(Self { form, weights, scales: device.upload_weights(&scales)? })
    }

    /// Properties that plans depend on.
    #[must_use]
    pub fn form(&self) -> SparseForm {
        self.form
    }

    /// Device memory of the matrix, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let weights = match &self.weights {
            Weights::Entries { offsets, entries } => offsets.bytes() + entries.bytes(),
            Weights::Bitmap { starts, headers, bits, signs } => {
                starts.bytes() + headers.bytes() + bits.bytes() + signs.bytes()
            }
        };
        weights + self.scales.bytes()
    }
}

/// The form of a tensor as a list; an error for unsupported tensors.
pub fn form_of(tensor: &TritTensor) -> Result<SparseForm> {
    let remedy = "pack the tensor as a CubeTernaryMatrix";
    if tensor.depth() != 1 {
        let property = format!("{} trit planes", tensor.depth());
        return unsupported("sparse matrix", property, remedy);
    }
    check_rotation("a sparse matrix", None, tensor.rotation(), remedy)?;
    let grouped = matches!(tensor.scales().granularity(), Granularity::Group(_));
    if grouped || tensor.scales().means().is_some() {
        let property = format!("{} scales per row or group means", tensor.groups_per_row());
        return unsupported("sparse matrix", property, remedy);
    }
    let nonzeros = (tensor.rows() as u64 * tensor.cols() as u64).saturating_sub(tensor.zeros()) as usize;
    let (rows, cols) = (tensor.rows(), tensor.cols());
    let mut chunks = 0;
    let mut trits = vec![0i8; cols];
    for row in 0..rows {
        tensor.read_row(0, row, &mut trits)?;
        chunks += trits.chunks(BLOCK).filter(|chunk| chunk.iter().any(|&t| t != 0)).count();
    }
    Ok(SparseForm { rows, cols, nonzeros, chunks, layout: SparseLayout::Entries })
}

/// The buffers of [`SparseLayout::Entries`] on the host.
pub struct List {
    /// The number of entries before each row, and the total.
    pub offsets: Vec<u32>,
    /// Two entries per word.
    pub entries: Vec<u32>,
}

/// Lists the nonzeros.
pub fn list(tensor: &TritTensor) -> Result<List> {
    let mut offsets = vec![0];
    let mut halves = Vec::new();
    let mut trits = vec![0i8; tensor.cols()];
    for row in 0..tensor.rows() {
        tensor.read_row(0, row, &mut trits)?;
        halves.extend(
            trits
                .iter()
                .enumerate()
                .filter(|(_, t)| **t != 0)
                .map(|(col, t)| 2 * col as u32 + u32::from(*t < 0)),
        );
        offsets.push(halves.len() as u32);
    }
    // Buffers must not be empty.
    let mut entries: Vec<u32> =
        halves.chunks(2).map(|pair| pair[0] | pair.get(1).unwrap_or(&0) << 16).collect();
    if entries.is_empty() {
        entries.push(0);
    }
    Ok(List { offsets, entries })
}

/// The buffers of [`SparseLayout::Bitmap`] on the host.
pub struct Map {
    /// The numbers of chunks and of sign words before each row, and the totals.
    pub starts: Vec<u32>,
    /// One word per chunk.
    pub headers: Vec<u32>,
    /// Four words per chunk.
    pub bits: Vec<u32>,
    /// The signs of each row.
    pub signs: Vec<u32>,
}

/// Maps the nonzeros.
pub fn map(tensor: &TritTensor) -> Result<Map> {
    let mut host = Map { starts: vec![0, 0], headers: Vec::new(), bits: Vec::new(), signs: Vec::new() };
    let mut trits = vec![0i8; tensor.cols().next_multiple_of(BLOCK)];
    for row in 0..tensor.rows() {
        tensor.read_row(0, row, &mut trits[..tensor.cols()])?;
        let (first, mut count) = (host.signs.len(), 0);
        for (number, chunk) in trits.chunks(BLOCK).enumerate() {
            if chunk.iter().all(|&trit| trit == 0) {
                continue;
            }
            host.headers.push((number as u32) << SIGN_BITS | count as u32);
            for t in 0..4 {
                let mut word = 0;
                for bit in 0..32 {
                    let trit = chunk[16 * (bit / 4) + 4 * t + bit % 4];
                    if trit != 0 {
                        word |= 1 << bit;
                        host.signs.resize(first + count / 32 + 1, 0);
                        host.signs[first + count / 32] |= u32::from(trit < 0) << (count % 32);
                        count += 1;
                    }
                }
                host.bits.push(word);
            }
        }
        host.starts.extend([host.headers.len() as u32, host.signs.len() as u32]);
    }
    // A word of bits may read signs past the last one; and buffers must not be empty.
    host.signs.extend([0, 0]);
    if host.headers.is_empty() {
        host.headers.push(0);
        host.bits.extend([0; 4]);
    }
    Ok(host)
}
