//! Int8 weights with group scales.

use half::f16;
use trike_core::Int8Tensor;
use trike_trit::ScaleValues;

use crate::error::{CpuError, check_len, check_range};
use crate::line::{CodeLine, ROWS};
use crate::matrix::shares::{Share, for_tiles};

use super::dense::shape;
use trike_host::{Cpu, Lines, Pool};

/// `rows x cols` weights `code * scale`, with one scale per `group` columns; the last group of a row may be shorter.
///
/// Intended for embeddings and LM heads, where one byte per weight is accurate enough but int8 activations are not:
/// [`linear`](crate::CpuOps::linear) multiplies the codes with 16-bit activations, `code = round(x * s)` with
/// `s = 32767 / max(max|x|, 1e-5)` per token, whatever integer precision it is given; given
/// [`F32`](trike_core::ActivationPrecision::F32), with fixed-point numbers of that precision. Products are summed exactly
/// over the columns of a group, at most 256 at a time, so results are bit-identical on every instruction set.
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
    rows: usize,
    cols: usize,
    group: usize,
    /// `[tile][block]`, one stream. A block is a line of scales and the codes of the groups that they belong to: two
    /// groups with f16 scales, one with f32. A half of a line of codes holds two columns of each row, row after row, as
    /// i8; every group is padded to whole lines, and the rows to whole tiles.
    lines: Lines<CodeLine>,
    /// Whether the scales are f16.
    halves: bool,
}

/// How the columns of int8 weights are padded: every group to whole lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spread {
    /// Columns of a group; the last group of a row may be shorter.
    pub(crate) group: usize,
    /// Columns of a group with padding.
    pub(crate) padded: usize,
}

impl Spread {
    pub(crate) fn new(cols: usize, group: usize) -> Self {
        // Groups that end with a line need no padding between them: they share activations whatever their size.
        if group.is_multiple_of(4) || group >= cols {
            Self { group: 4, padded: 4 }
        } else {
            Self { group, padded: group.next_multiple_of(4) }
        }
    }

    /// Lines of four columns.
    pub(crate) fn lines(self, cols: usize) -> usize {
        (cols / self.group * self.padded + cols % self.group).div_ceil(4)
    }
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

    /// Columns that share a scale.
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
        for (g, out) in out.chunks_mut(self.group).enumerate() {
            let Int8Group { scales, halves, codes } = self.group_of(tile, g);
            let scale = if halves {
                bytemuck::cast_ref::<[u8; 64], [[f16; ROWS]; 2]>(&scales.0)[g % 2][row].to_f32()
            } else {
                bytemuck::cast_ref::<[u8; 64], [f32; ROWS]>(&scales.0)[row]
            };
            for (line, out) in codes.iter().zip(out.chunks_mut(4)) {
                for (col, out) in out.iter_mut().enumerate() {
                    *out = scale * f32::from(line.0[place(row, col)].cast_signed());
                }
            }
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
    fn shape(&self) -> Shape {
        Shape { cols: self.cols, group: self.group, halves: self.halves }
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

/// Places of the parts of a tile.
#[derive(Clone, Copy)]
struct Shape {
    cols: usize,
    group: usize,
    halves: bool,
}

impl Shape {
    /// Lines of codes.
    #[inline(always)]
    fn code_lines(self) -> usize {
        Spread::new(self.cols, self.group).lines(self.cols)
    }

    /// Lines of codes and scales.
    #[inline(always)]
    fn lines(self) -> usize {
        let groups = self.cols.div_ceil(self.group);
        self.code_lines() + if self.halves { groups.div_ceil(2) } else { groups }
    }

    /// Of a group, the line of its scales and the first line of its codes.
    #[inline(always)]
    fn place(self, group: usize) -> (usize, usize) {
        let lines = self.group.div_ceil(4);
        if self.halves {
            let block = group / 2 * (2 * lines + 1);
            (block, block + 1 + group % 2 * lines)
        } else {
            let block = group * (lines + 1);
            (block, block + 1)
        }
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

/// The byte of a column, of four, in a line.
fn place(row: usize, col: usize) -> usize {
    32 * (col / 2) + 2 * row + col % 2
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
        let shape = Shape { cols, group, halves: matches!(scales, ScaleValues::F16(_)) };
        let (tiles, lines, groups) = (rows.div_ceil(ROWS), shape.lines(), cols.div_ceil(group));
        // LM heads are the largest matrices read in every step: in huge pages if available.
        let mut all = Lines::<CodeLine>::zeroed(tiles * lines)?;
        for_tiles(pool, rows * cols, tiles, &mut all, &|tile| tile * lines, |Share { tiles, part }| {
            for (tile, part) in tiles.zip(part.chunks_exact_mut(lines)) {
                for row in tile * ROWS..rows.min((tile + 1) * ROWS) {
                    let codes = codes[row * cols..][..cols].chunks(group);
                    for (g, codes) in codes.enumerate() {
                        let (scale_line, first) = shape.place(g);
                        put_scale(&mut part[scale_line], scales, row * groups + g, row % ROWS, g % 2);
                        let (fours, tail) = codes.as_chunks::<4>();
                        let mut lines = part[first..].iter_mut();
                        for (four, line) in fours.iter().zip(&mut lines) {
                            put(line, row % ROWS, *four);
                        }
                        if !tail.is_empty()
                            && let Some(line) = lines.next()
                        {
                            let mut four = [0; 4];
                            four[..tail.len()].copy_from_slice(tail);
                            put(line, row % ROWS, four);
                        }
                    }
                }
            }
            Ok(())
        })?;
        Ok(Int8Matrix { rows, cols, group, lines: all, halves: shape.halves })
    }
}

/// Writes the scale of a row; `odd` is 1 for odd groups.
fn put_scale(line: &mut CodeLine, scales: &ScaleValues, index: usize, row: usize, odd: usize) {
    match scales {
        ScaleValues::F16(scales) => {
            bytemuck::cast_mut::<[u8; 64], [[f16; ROWS]; 2]>(&mut line.0)[odd][row] = scales[index];
        }
        ScaleValues::F32(scales) => {
            bytemuck::cast_mut::<[u8; 64], [f32; ROWS]>(&mut line.0)[row] = scales[index];
        }
    }
}

/// Writes four columns of a row.
fn put(line: &mut CodeLine, row: usize, four: [i8; 4]) {
    for half in 0..2 {
        let at = place(row, 2 * half);
        line.0[at] = four[2 * half].cast_unsigned();
        line.0[at + 1] = four[2 * half + 1].cast_unsigned();
    }
}
