//! Rows of dense weights.

use super::Element;

/// Columns per kernel step: four cache lines of f32.
pub(crate) const BLOCK: usize = 64;

/// Maximum blocks per span: columns summed in lanes before folding. Six tokens of this many activations are 24 KiB,
/// which fit a 48 KiB L1 cache together with four rows of weights, 16 KiB.
const LONGEST: usize = 16;

/// Contiguous rows of floats.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a, E> {
    /// The elements, row-major, `cols` per row.
    pub(crate) elements: &'a [E],
    /// Columns, at least one.
    pub(crate) cols: usize,
}

impl<'a, E: Element> Rows<'a, E> {
    /// Number of rows.
    pub(crate) fn count(&self) -> usize {
        self.elements.len() / self.cols
    }

    /// The elements of a row.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> &'a [E] {
        &self.elements[row * self.cols..][..self.cols]
    }

    /// A range of the rows.
    pub(crate) fn slice(&self, rows: std::ops::Range<usize>) -> Self {
        Self { elements: &self.elements[rows.start * self.cols..rows.end * self.cols], ..*self }
    }

    /// Blocks per row; the last one may be partial.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "the portable kernels need no blocks"))]
    pub(crate) fn blocks(&self) -> usize {
        self.cols.div_ceil(BLOCK)
    }

    /// Blocks per span, whose products are summed before the lanes are folded. It depends only on the columns, so a
    /// result does not depend on the number of tokens or rows of the call.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "the portable kernels need no blocks"))]
    pub(crate) fn span(&self) -> usize {
        self.blocks().div_ceil(self.blocks().div_ceil(LONGEST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_short_and_even() {
        for (cols, span) in
            [(1, 1), (64, 1), (65, 2), (1024, 16), (1025, 9), (2560, 14), (4096, 16), (6912, 16)]
        {
            let rows = Rows { elements: &vec![0f32; cols], cols };
            assert_eq!(rows.span(), span, "{cols}");
        }
    }
}
