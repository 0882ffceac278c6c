//! Line layouts of a ternary matrix.

use trike_trit::GroupSize;

use crate::line::{CodeLine, ROWS};

/// A dense layout, which stores every weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fixed {
    TwoBit,
    Base3,
}

/// Maximum columns per integer sum of a long unit: a multiple of the steps of the layouts and panels.
///
/// With six folded planes and activations of -128 the sum stays below `364 * 128 * 16320 < 2^30`.
pub(crate) const LONG: usize = 16_320;

/// A layout for rows of a given length.
///
/// Two bits: byte `j` of row `r` of line `i` holds columns `16 i + j`, `+ 4`, `+ 8` and `+ 12`, lowest bits first, as
/// `trit + 1`.
///
/// Base 3: `5 span` columns take `span / 4` lines; byte `j` of row `r` of line `i` is `d0 + 3 d1 + 9 d2 + 27 d3 + 81
/// d4` with `df = trit + 1` of column `f span + 4 i + j`. The span is the group size of the scales, so that each digit
/// of a line belongs to one group, and 4 without groups.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    layout: Fixed,
    cols: usize,
    span: usize,
}

impl Shape {
    pub(crate) fn new(layout: Fixed, cols: usize, group: Option<GroupSize>) -> Self {
        let span = match layout {
            Fixed::TwoBit => 4,
            Fixed::Base3 => group.map_or(4, GroupSize::get),
        };
        Self { layout, cols, span }
    }

    pub(crate) fn layout(&self) -> Fixed {
        self.layout
    }

    /// Columns between two digits of a byte.
    pub(crate) fn span(&self) -> usize {
        self.span
    }

    /// Columns per period of the line pattern.
    pub(crate) fn period(&self) -> usize {
        match self.layout {
            Fixed::TwoBit => 16,
            Fixed::Base3 => 5 * self.span,
        }
    }

    /// Columns including padding.
    pub(crate) fn padded_cols(&self) -> usize {
        self.cols.next_multiple_of(self.period())
    }

    /// Lines of one plane of one tile.
    pub(crate) fn lines(&self) -> usize {
        self.lines_for(self.padded_cols())
    }

    /// Lines of `cols` columns, a multiple of the period.
    pub(crate) fn lines_for(&self, cols: usize) -> usize {
        match self.layout {
            Fixed::TwoBit => cols / 16,
            Fixed::Base3 => cols / 20,
        }
    }

    /// Packs the padded codes of 16 rows.
    pub(crate) fn pack(&self, codes: &[u8], lines: &mut [CodeLine]) {
        let padded = self.padded_cols();
        for (r, codes) in codes.chunks_exact(padded).enumerate().take(ROWS) {
            match self.layout {
                Fixed::TwoBit => {
                    for (line, codes) in lines.iter_mut().zip(codes.as_chunks::<16>().0) {
                        put_two_bits(line, r, codes);
                    }
                }
                Fixed::Base3 => {
                    let per_period = self.span / 4;
                    for (lines, codes) in
                        lines.chunks_exact_mut(per_period).zip(codes.chunks_exact(5 * self.span))
                    {
                        for (i, line) in lines.iter_mut().enumerate() {
                            let digit = |f: usize, j: usize| codes[f * self.span + 4 * i + j];
                            line.0.as_chunks_mut().0[r] = std::array::from_fn::<u8, 4, _>(|j| {
                                (0..5).rev().fold(0, |byte, f| 3 * byte + digit(f, j))
                            });
                        }
                    }
                }
            }
        }
    }

    /// Reads the codes of one row of a tile, up to the length of `out`.
    pub(crate) fn read_row(&self, lines: &[CodeLine], r: usize, out: &mut [u8]) {
        let byte = |line: usize, j: usize| lines[line].0[4 * r + j];
        for (col, out) in out.iter_mut().enumerate() {
            *out = match self.layout {
                Fixed::TwoBit => (byte(col / 16, col % 4) >> (2 * (col % 16 / 4))) & 3,
                Fixed::Base3 => {
                    let (period, rest) = (col / (5 * self.span), col % (5 * self.span));
                    let (f, inner) = (rest / self.span, rest % self.span);
                    byte(period * self.span / 4 + inner / 4, inner % 4) / [1, 3, 9, 27, 81][f] % 3
                }
            };
        }
    }
}

/// Writes 16 codes of row `r` into a two-bit line.
#[inline]
pub(super) fn put_two_bits(line: &mut CodeLine, r: usize, codes: &[u8; 16]) {
    let [a, b, c, d] = fours(codes);
    // Codes stay below 4, so no carry crosses a byte.
    let bytes = a | b << 2 | c << 4 | d << 6;
    line.0.as_chunks_mut().0[r] = bytes.to_le_bytes();
}

/// Four columns of each field as one word.
fn fours(codes: &[u8; 16]) -> [u32; 4] {
    let words = codes.as_chunks::<4>().0;
    std::array::from_fn(|f| u32::from_le_bytes(words[f]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use trike_host::Line;

    #[test]
    fn what_is_packed_is_read() {
        for layout in [Fixed::TwoBit, Fixed::Base3] {
            for group in [None, Some(GroupSize::G32), Some(GroupSize::G128)] {
                for cols in [1, 15, 16, 17, 20, 21, 159, 160, 161, 700] {
                    let shape = Shape::new(layout, cols, group);
                    let padded = shape.padded_cols();
                    assert!(padded >= cols && padded < cols + shape.period());
                    let codes: Vec<u8> = (0..ROWS * padded).map(|i| (i * i % 7 % 3) as u8).collect();
                    let mut lines = vec![Line([0xFF; 64]); shape.lines()];
                    shape.pack(&codes, &mut lines);
                    for (r, codes) in codes.chunks(padded).enumerate() {
                        let mut got = vec![9; padded];
                        shape.read_row(&lines, r, &mut got);
                        assert_eq!(got, codes, "{layout:?} {group:?} {cols} row {r}");
                    }
                }
            }
        }
    }
}
