//! Int8 weights with group scales.

use trike_core::{Int8Shape, Int8Tensor, Spread};
use trike_trit::ScaleValues;

use crate::error::{CpuError, check_len, check_range};
use crate::line::{CodeLine, ROWS};
use crate::matrix::shares::{Share, for_tiles};

use super::dense::shape;
use trike_host::{Cpu, Lines, Pool};

/// `rows x cols` weights `code * scale`, with one scale per `group` columns; the last group of a row may be shorter.
///
/// Intended for embeddings and LM heads, where one byte per weight is accurate enough but int8 activations are not:
/// [`linear`](crate::CpuOps::linear) multiplies the codes with 16-bit activations, `code = round(x * s)` with `s = 32767 /
/// max(max|x|, 1e-5)` per token, for every integer precision; for [`F32`](trike_core::ActivationPrecision::F32), with fixed-point
/// numbers of that precision. Products are summed exactly over the columns of a group, at most 256 at a time, so results are
/// bit-identical on every instruction set.
///
/// Like ternary weights, the matrix is a copy in tiles of sixteen rows: a line holds four columns of each.
///
/// ```
/// use trike_cpu::Int8Matrix;
///
/// // 16 rows of eight columns in groups of four: two scales per row.
/// let matrix = Int8Matrix::new(16, 8, 4, vec![1; 128], vec![0.5; 32])?;
/// assert_eq!(matrix.bytes(), 128 + 4 * 32);
/// assert_eq!(matrix.dequantize(), [0.5; 128]);
/// # Ok::<(), trike_cpu::CpuError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Int8Matrix {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) group: usize,
    /// `[tile][line]`, one stream; a tile as in [`Int8Shape`], the rows padded to whole tiles.
    pub(super) lines: Lines<CodeLine>,
    /// Whether the scales are f16.
    pub(super) halves: bool,
}

/// A group of a tile.
pub(crate) struct Int8Group<'a> {
    /// Sixteen f32, or sixteen f16 for even and sixteen for odd groups.
    pub(crate) scales: &'a CodeLine,
    pub(crate) halves: bool,
    pub(crate) codes: &'a [CodeLine],
}

impl Int8Matrix {
    /// Creates a matrix from row-major codes and scales (`[row][group]`).
    ///
    /// # Errors
    ///
    /// [`CpuError::Shape`] for a dimension of zero, [`CpuError::Range`] for a group that is not `1..=cols`,
    /// [`CpuError::Length`] for a wrong number of codes or scales, [`CpuError::NonFiniteParameter`] for a non-finite
    /// scale, [`HostError::Memory`](crate::HostError::Memory) when out of memory.
    pub fn new(
        rows: usize,
        cols: usize,
        group: usize,
        codes: Vec<i8>,
        scales: Vec<f32>,
    ) -> Result<Self, CpuError> {
        let count = shape("int8 matrix", rows, cols)?;
        check_range("group of an int8 matrix", 1, cols, group)?;
        check_len("codes of an int8 matrix", count, codes.len())?;
        check_len("scales of an int8 matrix", rows * cols.div_ceil(group), scales.len())?;
        match scales.iter().enumerate().find(|(_, scale)| !scale.is_finite()) {
            Some((index, &value)) => Err(CpuError::NonFiniteParameter { what: "int8 scale", index, value }),
            None => Source { rows, cols, group, codes: &codes, scales: &ScaleValues::F32(scales) }.pack(None),
        }
    }

    /// Copies the validated codes and scales of a tensor.
    ///
    /// # Errors
    ///
    /// [`HostError::Memory`](crate::HostError::Memory) when out of memory.
    pub fn from_tensor(tensor: &Int8Tensor) -> Result<Self, CpuError> {
        from_tensor(tensor, None)
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Columns per scale.
    pub fn group(&self) -> usize {
        self.group
    }

    /// Resident size in bytes: codes and scales.
    pub fn bytes(&self) -> usize {
        size_of_val::<[CodeLine]>(&self.lines)
    }

    /// All weights, row-major.
    pub fn dequantize(&self) -> Vec<f32> {
        let mut all = vec![0.0; self.rows * self.cols];
        for (row, out) in all.chunks_exact_mut(self.cols).enumerate() {
            self.dequantize_row(row, out);
        }
        all
    }

    /// Writes the weights of one row; the caller has checked `row` and the length of `out`.
    pub(crate) fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        let (tile, row) = (row / ROWS, row % ROWS);
        let mut all = vec![0; self.group];
        for (g, out) in out.chunks_mut(self.group).enumerate() {
            let Int8Group { scales, codes, .. } = self.group_of(tile, g);
            let (shape, group_codes) = (self.shape(), &mut all[..out.len()]);
            shape.read_codes(codes.iter().map(|line| &line.0), row, group_codes);
            let scale = shape.scale(&scales.0, g, row);
            out.iter_mut().zip(group_codes).for_each(|(out, code)| *out = scale * f32::from(*code));
        }
    }

    /// How columns are padded.
    pub(crate) fn spread(&self) -> Spread {
        Spread::new(self.cols, self.group)
    }

    /// Columns of a group with their padding.
    pub(crate) fn padded_group(&self) -> usize {
        self.group.next_multiple_of(4)
    }

    /// Scales per row.
    pub(crate) fn groups(&self) -> usize {
        self.cols.div_ceil(self.group)
    }

    #[inline(always)]
    fn shape(&self) -> Int8Shape {
        Int8Shape { cols: self.cols, group: self.group, halves: self.halves }
    }

    /// A group of a tile.
    #[inline(always)]
    pub(crate) fn group_of(&self, tile: usize, group: usize) -> Int8Group<'_> {
        let shape = self.shape();
        let all = shape.lines();
        let tile = &self.lines[tile * all..][..all];
        let (scales, codes) = shape.place(group);
        let len = self.padded_group().min(self.cols.next_multiple_of(4)) / 4;
        let len = len.min(shape.code_lines() - group * len);
        Int8Group { scales: &tile[scales], halves: self.halves, codes: &tile[codes..codes + len] }
    }
}

/// [`CpuOps::pack_int8`](crate::CpuOps::pack_int8).
pub(crate) fn pack_int8(cpu: &Cpu, tensor: &Int8Tensor) -> Result<Int8Matrix, CpuError> {
    from_tensor(tensor, Some(cpu.pool()))
}

fn from_tensor(tensor: &Int8Tensor, pool: Option<&Pool>) -> Result<Int8Matrix, CpuError> {
    let (rows, cols, group) = (tensor.rows(), tensor.cols(), tensor.group());
    Source { rows, cols, group, codes: tensor.codes(), scales: tensor.scales() }.pack(pool)
}

/// Checked row-major weights.
struct Source<'a> {
    rows: usize,
    cols: usize,
    group: usize,
    codes: &'a [i8],
    scales: &'a ScaleValues,
}

impl Source<'_> {
    fn pack(self, pool: Option<&Pool>) -> Result<Int8Matrix, CpuError> {
        let Self { rows, cols, group, codes, scales } = self;
        let shape = Int8Shape { cols, group, halves: matches!(scales, ScaleValues::F16(_)) };
        let (tiles, lines, groups) = (rows.div_ceil(ROWS), shape.lines(), cols.div_ceil(group));
        // LM heads are the largest matrices read in every step: use huge pages if available.
        let mut all = Lines::<CodeLine>::zeroed(tiles * lines)?;
        for_tiles(pool, rows * cols, tiles, &mut all, &|tile| tile * lines, |Share { tiles, part }| {
            for (tile, part) in tiles.zip(part.chunks_exact_mut(lines)) {
                for row in tile * ROWS..rows.min((tile + 1) * ROWS) {
                    let (tile, codes) = (bytemuck::cast_slice_mut(part), &codes[row * cols..][..cols]);
                    shape.write_row(tile, row % ROWS, codes, scales, row * groups);
                }
            }
            Ok(())
        })?;
        Ok(Int8Matrix { rows, cols, group, lines: all, halves: shape.halves })
    }
}
