//! Tiles of trits.

use trike_trit::{
    Coupling, Encoding, Granularity, GroupSize, Hadamard, ScaleValues, Scales, TritError, TritTensor,
};

use super::{LINE_BYTES, TILE_ROWS, check_len, number_bytes, tile_values, untile_values};
use crate::TensorError;

/// A dense line layout, which stores every weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TileLayout {
    /// Two bits per weight.
    TwoBit,
    /// Five weights per byte.
    Base3,
}

/// The lines of one plane of a tile of sixteen rows.
///
/// Every line has four bytes per row, row after row.
///
/// Two bits: byte `j` of row `r` of line `i` holds columns `16 i + j`, `+ 4`, `+ 8` and `+ 12`, lowest bits first, as
/// `trit + 1`.
///
/// Base 3: `5 span` columns take `span / 4` lines; byte `j` of row `r` of line `i` is `d0 + 3 d1 + 9 d2 + 27 d3 + 81
/// d4` with `df = trit + 1` of column `f span + 4 i + j`. The span is the group size of the scales, so that each digit
/// of a line belongs to one group, and 4 without groups.
///
/// Columns are padded with zero trits to whole [periods](Self::period).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TritShape {
    layout: TileLayout,
    cols: usize,
    span: usize,
}

impl TritShape {
    /// The lines of rows of `cols` columns with one scale per `group` columns, or per row.
    #[inline]
    pub fn new(layout: TileLayout, cols: usize, group: Option<GroupSize>) -> Self {
        let span = match layout {
            TileLayout::TwoBit => 4,
            TileLayout::Base3 => group.map_or(4, GroupSize::get),
        };
        Self { layout, cols, span }
    }

    /// The line layout.
    #[inline(always)]
    pub fn layout(&self) -> TileLayout {
        self.layout
    }

    /// Columns between consecutive digits of a byte.
    #[inline(always)]
    pub fn span(&self) -> usize {
        self.span
    }

    /// Columns per period of the line pattern.
    #[inline(always)]
    pub fn period(&self) -> usize {
        match self.layout {
            TileLayout::TwoBit => 16,
            TileLayout::Base3 => 5 * self.span,
        }
    }

    /// Columns including padding.
    #[inline(always)]
    pub fn padded_cols(&self) -> usize {
        self.cols.next_multiple_of(self.period())
    }

    /// Lines of one plane of one tile.
    #[inline(always)]
    pub fn lines(&self) -> usize {
        self.lines_for(self.padded_cols())
    }

    /// Lines of `cols` columns, a multiple of the period.
    #[inline(always)]
    pub fn lines_for(&self, cols: usize) -> usize {
        match self.layout {
            TileLayout::TwoBit => cols / 16,
            TileLayout::Base3 => cols / 20,
        }
    }

    /// Packs the padded codes `trit + 1` of sixteen rows.
    pub fn pack(&self, codes: &[u8], lines: &mut [u8]) {
        let padded = self.padded_cols();
        let lines = lines.as_chunks_mut::<LINE_BYTES>().0;
        for (r, codes) in codes.chunks_exact(padded).enumerate().take(TILE_ROWS) {
            match self.layout {
                TileLayout::TwoBit => {
                    for (line, codes) in lines.iter_mut().zip(codes.as_chunks::<16>().0) {
                        put_two_bits(line, r, codes);
                    }
                }
                TileLayout::Base3 => {
                    let per_period = self.span / 4;
                    for (lines, codes) in
                        lines.chunks_exact_mut(per_period).zip(codes.chunks_exact(5 * self.span))
                    {
                        for (i, line) in lines.iter_mut().enumerate() {
                            let digit = |f: usize, j: usize| codes[f * self.span + 4 * i + j];
                            line.as_chunks_mut().0[r] = std::array::from_fn::<u8, 4, _>(|j| {
                                (0..5).rev().fold(0, |byte, f| 3 * byte + digit(f, j))
                            });
                        }
                    }
                }
            }
        }
    }

    /// Reads the codes of row `r` of a tile, up to the length of `out`.
    pub fn read_row(&self, lines: &[u8], r: usize, out: &mut [u8]) {
        let byte = |line: usize, j: usize| lines[line * LINE_BYTES + 4 * r + j];
        for (col, out) in out.iter_mut().enumerate() {
            *out = match self.layout {
                TileLayout::TwoBit => (byte(col / 16, col % 4) >> (2 * (col % 16 / 4))) & 3,
                TileLayout::Base3 => {
                    let (period, rest) = (col / (5 * self.span), col % (5 * self.span));
                    let (f, inner) = (rest / self.span, rest % self.span);
                    byte(period * self.span / 4 + inner / 4, inner % 4) / [1, 3, 9, 27, 81][f] % 3
                }
            };
        }
    }

    /// The index of the first byte of `lines` that is not a code of the layout.
    pub fn invalid(&self, lines: &[u8]) -> Option<usize> {
        let bad = |byte: u8| match self.layout {
            TileLayout::TwoBit => byte & byte >> 1 & 0x55 != 0,
            TileLayout::Base3 => byte > 242,
        };
        // No early exit within a block, so that the compiler vectorizes it.
        let block = lines.chunks(4096).position(|block| match self.layout {
            TileLayout::TwoBit => block.iter().fold(0, |all, byte| all | byte & byte >> 1 & 0x55) != 0,
            TileLayout::Base3 => block.iter().fold(0, |most, &byte| byte.max(most)) > 242,
        })?;
        lines[block * 4096..].iter().position(|&byte| bad(byte)).map(|i| block * 4096 + i)
    }
}

/// Writes sixteen codes of row `r` into a two-bit line.
#[inline]
pub fn put_two_bits(line: &mut [u8; LINE_BYTES], r: usize, codes: &[u8; 16]) {
    let [a, b, c, d] = fours(codes);
    // Codes are below 4, so nothing carries into the next byte.
    let bytes = a | b << 2 | c << 4 | d << 6;
    line.as_chunks_mut().0[r] = bytes.to_le_bytes();
}

/// Four columns of each field as one word.
#[inline]
fn fours(codes: &[u8; 16]) -> [u32; 4] {
    let words = codes.as_chunks::<4>().0;
    std::array::from_fn(|f| u32::from_le_bytes(words[f]))
}

/// A ternary matrix in tiles: the trits of every plane, and scales in the same order.
///
/// ```
/// use trike_core::{TileLayout, TritTiles};
/// use trike_trit::{Encoding, Scales, TritTensor};
///
/// let trits: Vec<i8> = (0..20 * 32).map(|i| (i % 3) as i8 - 1).collect();
/// let tensor = TritTensor::from_trits(20, 32, &trits, Encoding::Base3, Scales::tensor(0.5))?;
/// let tiles = TritTiles::of(&tensor, TileLayout::TwoBit)?;
/// // Two tiles of sixteen rows, two lines of 64 bytes each.
/// assert_eq!(tiles.codes.len(), 2 * 2 * 64);
/// assert_eq!(tiles.to_tensor(Encoding::Base3)?, tensor);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TritTiles<B> {
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// Layout of the lines.
    pub layout: TileLayout,
    /// Number of planes; all of them are stored.
    pub depth: usize,
    /// Coupling of the planes.
    pub coupling: Coupling,
    /// Granularity of scales and means.
    pub granularity: Granularity,
    /// The rotation of the inputs.
    pub rotation: Option<Hadamard>,
    /// `[tile][plane][line]`, each line 64 bytes as in [`TritShape`]; the rows are padded to whole tiles.
    pub codes: B,
    /// Little-endian, `[tile][set][group][row of the tile]`, or `[set]` with one scale for all rows. A set is a plane with
    /// independent scales, or all tied planes.
    pub scales: B,
    /// Whether the scales are f16; otherwise f32.
    pub half_scales: bool,
    /// Means in the same order with one set, and whether they are f16.
    pub means: Option<(B, bool)>,
}

impl<B> TritTiles<B> {
    /// Layout of a line, and the number of lines per plane of a tile.
    pub fn shape(&self) -> TritShape {
        TritShape::new(self.layout, self.cols, self.granularity.group())
    }

    /// Sets of scales.
    pub fn sets(&self) -> usize {
        if self.coupling == Coupling::Free { self.depth } else { 1 }
    }

    fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE_ROWS)
    }

    /// Number of stored values for `sets` sets of scales, including padding; `None` on overflow.
    fn numbers(&self, sets: usize) -> Option<usize> {
        match self.granularity {
            Granularity::Tensor => Some(sets),
            Granularity::Row | Granularity::Group(_) => {
                let groups = self.granularity.groups_per_row(self.cols);
                self.tiles().checked_mul(sets)?.checked_mul(groups)?.checked_mul(TILE_ROWS)
            }
        }
    }

    /// Bytes of the codes, the scales and the means; `None` on overflow. The length of the means is given even if there are none.
    pub fn part_bytes(&self) -> Option<[usize; 3]> {
        let lines = self.tiles().checked_mul(self.depth)?.checked_mul(self.shape().lines())?;
        let means = self.means.as_ref().is_some_and(|(_, halves)| *halves);
        Some([
            lines.checked_mul(LINE_BYTES)?,
            self.numbers(self.sets())?.checked_mul(number_bytes(self.half_scales))?,
            self.numbers(1)?.checked_mul(number_bytes(means))?,
        ])
    }
}

impl<B: AsRef<[u8]>> TritTiles<B> {
    /// Checks the lengths of the parts.
    ///
    /// # Errors
    ///
    /// [`TensorError::Shape`] and [`TensorError::Length`].
    pub fn check(&self) -> Result<(), TensorError> {
        let shape = || TensorError::Shape { shape: vec![self.rows, self.cols] };
        crate::elements(&[self.rows, self.cols])?;
        let [codes, scales, means] = self.part_bytes().ok_or_else(shape)?;
        check_len("bytes of tiles", codes, self.codes.as_ref().len())?;
        check_len("bytes of the scales of tiles", scales, self.scales.as_ref().len())?;
        match &self.means {
            Some((bytes, _)) => check_len("bytes of the means of tiles", means, bytes.as_ref().len()),
            None => Ok(()),
        }
    }

    /// The error for byte `index` of the codes.
    fn code_error(&self, index: usize) -> TritError {
        let (shape, encoding) = match self.layout {
            TileLayout::TwoBit => (self.shape(), Encoding::TwoBit),
            TileLayout::Base3 => (self.shape(), Encoding::Base3),
        };
        let (line, byte) = (index / LINE_BYTES, index % LINE_BYTES);
        let (plane, line) = (line / shape.lines(), line % shape.lines());
        let per_period = (shape.span() / 4).max(1);
        let start = line / per_period * shape.period() + line % per_period * 4;
        TritError::Code {
            plane: plane % self.depth,
            row: plane / self.depth * TILE_ROWS + byte / 4,
            col: start + byte % 4,
            code: self.codes.as_ref()[index],
            encoding,
        }
    }

    /// The tensor, in any encoding.
    ///
    /// # Errors
    ///
    /// The errors of [`check`](Self::check) as [`TritError::Length`], and the errors of [`TritTensor::new`].
    pub fn to_tensor(&self, encoding: Encoding) -> Result<TritTensor, TritError> {
        let (rows, cols, shape) = (self.rows, self.cols, self.shape());
        self.check().map_err(|error| match error {
            TensorError::Length { what, expected, got } => TritError::Length { what, expected, got },
            _ => TritError::Shape { rows, cols },
        })?;
        if let Some(index) = shape.invalid(self.codes.as_ref()) {
            return Err(self.code_error(index));
        }
        let plane_bytes = shape.lines() * LINE_BYTES;
        let (codes, mut row_codes) = (self.codes.as_ref(), vec![0; cols]);
        let read = |plane: usize, row: usize, trits: &mut [i8]| {
            let start = (row / TILE_ROWS * self.depth + plane) * plane_bytes;
            shape.read_row(&codes[start..][..plane_bytes], row % TILE_ROWS, &mut row_codes);
            trits.iter_mut().zip(&row_codes).for_each(|(trit, code)| *trit = code.cast_signed() - 1);
        };
        let values = |bytes: &[u8], halves: bool, sets: usize| match self.granularity {
            // One row of `sets` groups has the same order.
            Granularity::Tensor if halves => {
                ScaleValues::F16(bytes.as_chunks().0.iter().map(|&b| half::f16::from_le_bytes(b)).collect())
            }
            Granularity::Tensor => {
                ScaleValues::F32(bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect())
            }
            Granularity::Row | Granularity::Group(_) => {
                untile_values(bytes, halves, rows, sets, self.granularity.groups_per_row(cols))
            }
        };
        let means = self.means.as_ref().map(|(bytes, halves)| values(bytes.as_ref(), *halves, 1));
        let scales = values(self.scales.as_ref(), self.half_scales, self.sets());
        let scales = Scales::new(self.granularity, scales, means);
        let tensor = TritTensor::from_rows(rows, cols, self.depth, encoding, self.coupling, scales, read)?;
        tensor.with_rotation(self.rotation)
    }
}

impl TritTiles<Vec<u8>> {
    /// The tiles of a tensor.
    ///
    /// # Errors
    ///
    /// The errors of reading its rows.
    pub fn of(tensor: &TritTensor, layout: TileLayout) -> Result<Self, TritError> {
        let (rows, cols) = (tensor.rows(), tensor.cols());
        let scales = tensor.scales();
        let granularity = scales.granularity();
        let halves = |values: &ScaleValues| matches!(values, ScaleValues::F16(_));
        let ordered = |values: &ScaleValues, sets: usize| match (granularity, values) {
            (Granularity::Tensor, ScaleValues::F16(v)) => v.iter().flat_map(|v| v.to_le_bytes()).collect(),
            (Granularity::Tensor, ScaleValues::F32(v)) => v.iter().flat_map(|v| v.to_le_bytes()).collect(),
            _ => tile_values(values, rows, sets, granularity.groups_per_row(cols)),
        };
        let mut tiles = Self {
            rows,
            cols,
            layout,
            depth: tensor.depth(),
            coupling: tensor.coupling(),
            granularity,
            rotation: tensor.rotation(),
            codes: Vec::new(),
            scales: Vec::new(),
            half_scales: halves(scales.values()),
            means: scales.means().map(|means| (ordered(means, 1), halves(means))),
        };
        tiles.scales = ordered(scales.values(), tiles.sets());
        let (shape, mut trits) = (tiles.shape(), vec![0i8; cols]);
        let padded = shape.padded_cols();
        let mut lines = vec![0; shape.lines() * LINE_BYTES];
        for tile in 0..tiles.tiles() {
            for plane in 0..tiles.depth {
                let mut codes = vec![1u8; TILE_ROWS * padded];
                for (row, codes) in (tile * TILE_ROWS..rows).zip(codes.chunks_exact_mut(padded)) {
                    tensor.read_row(plane, row, &mut trits)?;
                    codes.iter_mut().zip(&trits).for_each(|(code, trit)| *code = (trit + 1).cast_unsigned());
                }
                shape.pack(&codes, &mut lines);
                tiles.codes.extend_from_slice(&lines);
            }
        }
        Ok(tiles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUTS: [TileLayout; 2] = [TileLayout::TwoBit, TileLayout::Base3];

    #[test]
    fn what_is_packed_is_read() {
        for layout in LAYOUTS {
            for group in [None, Some(GroupSize::G32), Some(GroupSize::G128)] {
                for cols in [1, 15, 16, 17, 20, 21, 159, 160, 161, 700] {
                    let shape = TritShape::new(layout, cols, group);
                    let padded = shape.padded_cols();
                    assert!(padded >= cols && padded < cols + shape.period());
                    let codes: Vec<u8> = (0..TILE_ROWS * padded).map(|i| (i * i % 7 % 3) as u8).collect();
                    let mut lines = vec![0xFF; shape.lines() * LINE_BYTES];
                    shape.pack(&codes, &mut lines);
                    assert_eq!(shape.invalid(&lines), None);
                    for (r, codes) in codes.chunks(padded).enumerate() {
                        let mut got = vec![9; padded];
                        shape.read_row(&lines, r, &mut got);
                        assert_eq!(got, codes, "{layout:?} {group:?} {cols} row {r}");
                    }
                }
            }
        }
    }

    #[test]
    fn bytes_that_are_no_codes_are_found() {
        for (layout, bad) in [
            (TileLayout::TwoBit, &[0b11, 0b1100, 0b0011_0000, 0b1100_0000, 0xFF][..]),
            (TileLayout::Base3, &[243, 255]),
        ] {
            let shape = TritShape::new(layout, 64, None);
            for at in [0, 1, 4095, 4096, 9_999] {
                for &byte in bad {
                    let mut lines = vec![0b0110_0110; 10_000];
                    assert_eq!(shape.invalid(&lines), None);
                    lines[at] = byte;
                    lines[9_999] = bad[0];
                    assert_eq!(shape.invalid(&lines), Some(at), "{layout:?} {byte}");
                }
            }
        }
    }

    #[test]
    fn tiles_of_the_wrong_length_or_with_bad_codes_are_errors() {
        let tensor = TritTensor::from_trits(17, 40, &[1; 680], Encoding::Base3, Scales::tensor(0.5));
        let tensor = tensor.expect("a tensor");
        for layout in LAYOUTS {
            let tiles = TritTiles::of(&tensor, layout).expect("tiles");
            let mut short = tiles.clone();
            short.codes.pop();
            assert!(matches!(short.to_tensor(Encoding::Base3), Err(TritError::Length { .. })));
            let mut many = tiles.clone();
            many.scales.extend([0; 4]);
            assert!(matches!(many.to_tensor(Encoding::Base3), Err(TritError::Length { .. })));
            let mut bad = tiles.clone();
            // The second tile, in a line of columns from 16 (two bits) or 20 (base 3), byte 1 of row 2.
            let line = tiles.shape().lines() + 1;
            bad.codes[line * LINE_BYTES + 9] = 0xFF;
            let col = tiles.shape().period() + 1;
            match bad.to_tensor(Encoding::Base3) {
                Err(TritError::Code { plane, row, col: got, code, .. }) => {
                    assert_eq!((plane, row, got, code), (0, 18, col, 0xFF), "{layout:?}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
