//! Rows of dense or int8 weights.

use super::Element;

/// Columns per kernel step: one cache line of int8 weights.
pub(crate) const BLOCK: usize = 64;

/// Maximum blocks per span: columns summed in lanes before folding. Six tokens of this many activations are 24 KiB,
/// which fit a 48 KiB L1 cache together with four rows of weights, 16 KiB.
const LONGEST: usize = 16;

/// Contiguous rows of weights `scale * code`, or of plain floats.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a, E> {
    /// The elements, row-major, `cols` per row.
    pub(crate) codes: &'a [E],
    /// Columns, at least one.
    pub(crate) cols: usize,
    /// One scale per row and group of `group` columns; empty for plain floats.
    pub(crate) scales: &'a [f32],
    /// Columns that share a scale; the last group of a row may be shorter.
    pub(crate) group: usize,
}

impl<'a, E: Element> Rows<'a, E> {
    /// Number of rows.
    pub(crate) fn count(&self) -> usize {
        self.codes.len() / self.cols
    }

    /// Scales per row.
    pub(crate) fn groups(&self) -> usize {
        if self.scales.is_empty() { 0 } else { self.cols.div_ceil(self.group) }
    }

    /// The elements of a row.
    #[inline(always)]
    pub(crate) fn codes(&self, row: usize) -> &'a [E] {
        &self.codes[row * self.cols..][..self.cols]
    }

    /// A range of the rows.
    pub(crate) fn slice(&self, rows: std::ops::Range<usize>) -> Self {
        let groups = self.groups();
        Self {
            codes: &self.codes[rows.start * self.cols..rows.end * self.cols],
            scales: &self.scales[rows.start * groups..rows.end * groups],
            ..*self
        }
    }

    /// The weights of one row, as defined by the specification.
    pub(crate) fn weights(&self, row: usize) -> impl Iterator<Item = f32> {
        let groups = self.groups();
        let scales = &self.scales[row * groups..][..groups];
        let group = if scales.is_empty() { self.cols } else { self.group };
        self.codes(row).chunks(group).enumerate().flat_map(move |(g, codes)| {
            let scale = scales.get(g).copied().unwrap_or(1.0);
            codes.iter().map(move |code| scale * code.widen())
        })
    }

    /// Writes the weights of one row.
    #[inline(always)]
    pub(crate) fn write_weights(&self, row: usize, to: &mut [f32]) {
        let scales = &self.scales[row * self.groups()..];
        let group = if self.scales.is_empty() { self.cols } else { self.group };
        for (g, (codes, to)) in self.codes(row).chunks(group).zip(to.chunks_mut(group)).enumerate() {
            let scale = if self.scales.is_empty() { 1.0 } else { scales[g] };
            for (to, code) in to.iter_mut().zip(codes) {
                *to = scale * code.widen();
            }
        }
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
            let rows = Rows { codes: &vec![0i8; cols], cols, scales: &[], group: cols };
            assert_eq!(rows.span(), span, "{cols}");
        }
    }

    #[test]
    fn weights_take_the_scale_of_their_group() {
        let rows = Rows { codes: &[1i8, 2, 3, 4, 5, 6], cols: 3, scales: &[1.0, 10.0, 2.0, 20.0], group: 2 };
        let all: Vec<f32> = (0..rows.count()).flat_map(|row| rows.weights(row)).collect();
        assert_eq!(all, [1.0, 2.0, 30.0, 8.0, 10.0, 120.0]);
        assert_eq!(rows.slice(1..2).weights(0).collect::<Vec<_>>(), all[3..]);
        let plain = Rows { codes: &[1.5f32, 2.5], cols: 1, scales: &[], group: 1 };
        assert_eq!(plain.weights(1).collect::<Vec<_>>(), [2.5]);
        let mut written = [[f32::NAN; 3]; 2];
        written.iter_mut().enumerate().for_each(|(row, to)| rows.write_weights(row, to));
        assert_eq!(written.as_flattened(), all);
        let mut one = [f32::NAN];
        plain.write_weights(1, &mut one);
        assert_eq!(one, [2.5]);
    }
}
