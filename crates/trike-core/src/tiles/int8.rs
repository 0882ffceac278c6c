//! Tiles of int8 codes.

use half::f16;
use trike_trit::ScaleValues;

use super::{LINE_BYTES, TILE_ROWS, check_len};
use crate::{Int8Tensor, TensorError};

/// A line of a tile.
type Line = [u8; LINE_BYTES];

/// Padding of the columns of int8 weights: every group is padded to whole lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Columns of a group; the last group of a row may be shorter.
    pub group: usize,
    /// Columns of a group with padding.
    pub padded: usize,
}

impl Spread {
    /// The padding of rows of `cols` columns with a scale per `group` columns.
    #[inline(always)]
    pub fn new(cols: usize, group: usize) -> Self {
        // Groups that end at a line boundary need no padding between them: they share activations for every group size.
        if group.is_multiple_of(4) || group >= cols {
            Self { group: 4, padded: 4 }
        } else {
            Self { group, padded: group.next_multiple_of(4) }
        }
    }

    /// Lines of four columns.
    #[inline(always)]
    pub fn lines(self, cols: usize) -> usize {
        (cols / self.group * self.padded + cols % self.group).div_ceil(4)
    }
}

/// The lines of a tile of sixteen rows of int8 weights.
///
/// A tile is a sequence of blocks: one line of scales and the code lines of the groups that they belong to (two groups with f16
/// scales, one with f32). A code line holds four columns; each half of it holds two columns of each row, row after row, as i8.
/// Every group is padded with zeros to whole lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Int8Shape {
    /// Number of columns.
    pub cols: usize,
    /// Columns per scale.
    pub group: usize,
    /// Whether the scales are f16; otherwise f32.
    pub halves: bool,
}

impl Int8Shape {
    /// Lines of codes.
    #[inline(always)]
    pub fn code_lines(self) -> usize {
        Spread::new(self.cols, self.group).lines(self.cols)
    }

    /// Scales per row.
    #[inline(always)]
    pub fn groups(self) -> usize {
        self.cols.div_ceil(self.group)
    }

    /// Lines of codes and scales.
    #[inline(always)]
    pub fn lines(self) -> usize {
        self.code_lines() + if self.halves { self.groups().div_ceil(2) } else { self.groups() }
    }

    /// The scale line of a group, and the first of its code lines.
    #[inline(always)]
    pub fn place(self, group: usize) -> (usize, usize) {
        let lines = self.group.div_ceil(4);
        if self.halves {
            let block = group / 2 * (2 * lines + 1);
            (block, block + 1 + group % 2 * lines)
        } else {
            let block = group * (lines + 1);
            (block, block + 1)
        }
    }

    /// Writes row `r` of a tile: its codes, and its scales as elements `first..` of `scales`.
    pub fn write_row(self, tile: &mut [u8], r: usize, codes: &[i8], scales: &ScaleValues, first: usize) {
        let tile = tile.as_chunks_mut::<LINE_BYTES>().0;
        for (g, codes) in codes.chunks(self.group).enumerate() {
            let (scale_line, code_line) = self.place(g);
            match scales {
                ScaleValues::F16(scales) => {
                    tile[scale_line].as_chunks_mut().0[g % 2 * TILE_ROWS + r] =
                        scales[first + g].to_le_bytes();
                }
                ScaleValues::F32(scales) => {
                    tile[scale_line].as_chunks_mut().0[r] = scales[first + g].to_le_bytes();
                }
            }
            let (fours, tail) = codes.as_chunks::<4>();
            let mut lines = tile[code_line..].iter_mut();
            for (four, line) in fours.iter().zip(&mut lines) {
                put(line, r, *four);
            }
            if !tail.is_empty()
                && let Some(line) = lines.next()
            {
                let mut four = [0; 4];
                four[..tail.len()].copy_from_slice(tail);
                put(line, r, four);
            }
        }
    }

    /// The scale of a group of row `r`, from the scale line that contains it.
    pub fn scale(self, line: &Line, group: usize, r: usize) -> f32 {
        if self.halves {
            f16::from_le_bytes(line.as_chunks().0[group % 2 * TILE_ROWS + r]).to_f32()
        } else {
            f32::from_le_bytes(line.as_chunks().0[r])
        }
    }

    /// Reads the codes of a group of row `r` from its lines.
    pub fn read_codes<'a>(self, lines: impl Iterator<Item = &'a Line>, r: usize, out: &mut [i8]) {
        for (line, out) in lines.zip(out.chunks_mut(4)) {
            for (col, out) in out.iter_mut().enumerate() {
                *out = line[byte_of(r, col)].cast_signed();
            }
        }
    }
}

/// The byte index of one of four columns in a line.
fn byte_of(row: usize, col: usize) -> usize {
    32 * (col / 2) + 2 * row + col % 2
}

/// Writes four columns of a row.
fn put(line: &mut Line, row: usize, four: [i8; 4]) {
    for half in 0..2 {
        let at = byte_of(row, 2 * half);
        line[at] = four[2 * half].cast_unsigned();
        line[at + 1] = four[2 * half + 1].cast_unsigned();
    }
}

/// An int8 matrix in tiles.
///
/// ```
/// use trike_core::{DenseData, DenseTensor, Int8Tensor, Int8Tiles};
///
/// let dense = DenseTensor::new(vec![3, 8], DenseData::F32((0..24).map(|i| i as f32).collect()))?;
/// let tensor = Int8Tensor::quantize(&dense, 4, true)?;
/// let tiles = Int8Tiles::of(&tensor);
/// // One tile: a line of scales for two groups, and a line of codes for each.
/// assert_eq!(tiles.lines.len(), 3 * 64);
/// assert_eq!(tiles.to_tensor()?, tensor);
/// # Ok::<(), trike_core::TensorError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Int8Tiles<B> {
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// Columns per scale, `1..=cols`.
    pub group: usize,
    /// Whether the scales are f16; otherwise f32.
    pub half_scales: bool,
    /// `[tile][line]`, each tile as in [`Int8Shape`]; the rows are padded with zeros to whole tiles.
    pub lines: B,
}

impl<B> Int8Tiles<B> {
    /// The lines of a tile.
    pub fn shape(&self) -> Int8Shape {
        Int8Shape { cols: self.cols, group: self.group, halves: self.half_scales }
    }

    /// Bytes of all tiles; `None` if they overflow or the group is not `1..=cols`.
    pub fn bytes(&self) -> Option<usize> {
        if !(1..=self.cols).contains(&self.group) {
            return None;
        }
        self.rows.div_ceil(TILE_ROWS).checked_mul(self.shape().lines())?.checked_mul(LINE_BYTES)
    }
}

impl<B: AsRef<[u8]>> Int8Tiles<B> {
    /// Checks the group and the number of bytes.
    ///
    /// # Errors
    ///
    /// [`TensorError::Shape`], [`TensorError::Group`], [`TensorError::Length`].
    pub fn check(&self) -> Result<(), TensorError> {
        crate::elements(&[self.rows, self.cols])?;
        let expected = self.bytes().ok_or(TensorError::Group { got: self.group })?;
        check_len("bytes of tiles", expected, self.lines.as_ref().len())
    }

    /// Checks that every scale is finite.
    ///
    /// # Errors
    ///
    /// The errors of [`check`](Self::check), and [`TensorError::NonFinite`].
    pub fn check_scales(&self) -> Result<(), TensorError> {
        self.check()?;
        let (shape, groups) = (self.shape(), self.shape().groups());
        let tiles = self.lines.as_ref().as_chunks::<LINE_BYTES>().0;
        for row in 0..self.rows {
            let tile = &tiles[row / TILE_ROWS * shape.lines()..];
            for group in 0..groups {
                let value = shape.scale(&tile[shape.place(group).0], group, row % TILE_ROWS);
                if !value.is_finite() {
                    return Err(TensorError::NonFinite { what: "scale", index: row * groups + group, value });
                }
            }
        }
        Ok(())
    }

    /// The tensor.
    ///
    /// # Errors
    ///
    /// The errors of [`check_scales`](Self::check_scales).
    pub fn to_tensor(&self) -> Result<Int8Tensor, TensorError> {
        self.check()?;
        let (shape, cols) = (self.shape(), self.cols);
        let mut codes = vec![0i8; self.rows * cols];
        let mut scales = Vec::with_capacity(self.rows * shape.groups());
        let lines = self.lines.as_ref().as_chunks::<LINE_BYTES>().0;
        for (row, codes) in codes.chunks_exact_mut(cols).enumerate() {
            let tile = &lines[row / TILE_ROWS * shape.lines()..][..shape.lines()];
            for (g, codes) in codes.chunks_mut(self.group).enumerate() {
                let (scale_line, code_line) = shape.place(g);
                scales.push(shape.scale(&tile[scale_line], g, row % TILE_ROWS));
                shape.read_codes(tile[code_line..].iter(), row % TILE_ROWS, codes);
            }
        }
        let scales = if self.half_scales {
            // The values were f16, so this is exact.
            ScaleValues::F16(scales.into_iter().map(f16::from_f32).collect())
        } else {
            ScaleValues::F32(scales)
        };
        Int8Tensor::new(self.rows, cols, self.group, codes, scales)
    }
}

impl Int8Tiles<Vec<u8>> {
    /// The tiles of a tensor.
    pub fn of(tensor: &Int8Tensor) -> Self {
        let half_scales = matches!(tensor.scales(), ScaleValues::F16(_));
        let (rows, cols, group) = (tensor.rows(), tensor.cols(), tensor.group());
        let mut tiles = Self { rows, cols, group, half_scales, lines: Vec::new() };
        let (shape, groups) = (tiles.shape(), tensor.groups_per_row());
        let tile_bytes = shape.lines() * LINE_BYTES;
        tiles.lines = vec![0; rows.div_ceil(TILE_ROWS) * tile_bytes];
        for (row, codes) in tensor.codes().chunks_exact(cols).enumerate() {
            let tile = &mut tiles.lines[row / TILE_ROWS * tile_bytes..][..tile_bytes];
            shape.write_row(tile, row % TILE_ROWS, codes, tensor.scales(), row * groups);
        }
        tiles
    }
}
