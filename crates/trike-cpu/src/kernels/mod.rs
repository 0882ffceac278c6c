//! The kernels that differ by instruction set, behind one trait; the scalar implementation is the specification.
//!
//! The ternary kernels give the same bits on every instruction set: the integer stage is exact, and the f32 stages use
//! sixteen running sums (lane `l` takes the elements that are `l` modulo 16, or the four bytes `4l..4l + 4` of a line),
//! multiply and add separately, and fold the lanes in one fixed order. The dense and int8-weight kernels fuse multiply
//! and add where the machine can, so they agree only within rounding.

pub(crate) mod element;
pub(crate) mod scalar;

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;

#[cfg(test)]
mod tests;

pub(crate) use element::Element;

use crate::line::{ByteLine, CodeLine, FloatLine, SumLine, TILE};
use crate::probe::{Peak, WordLine};

/// One token's int8 activations, padded with zeros to whole blocks.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "the portable kernels need no bias"))]
#[derive(Clone, Copy)]
pub(crate) struct ByteToken<'a> {
    /// Four lines a block, in the order of the columns.
    pub(crate) codes: &'a [ByteLine],
    /// For each line of `codes`, minus the sums of its groups of four: the `-1` of `trit = code - 1`.
    pub(crate) negated: &'a [SumLine],
    /// The sum of all codes.
    pub(crate) sum: i32,
    /// What one step of a code stands for, for each 32 columns (1 when the factor belongs to the whole token).
    pub(crate) factors: &'a [f32],
}

/// A loop that is compiled once for each instruction set.
///
/// Implementations mark `run` `#[inline(always)]`, so that it lands in a function with the right target features.
pub(crate) trait Loop {
    /// What the loop computes.
    type Output;
    /// Runs it.
    fn run(self) -> Self::Output;
}

/// The kernels of one instruction set. `T` tokens share one reading of the weights.
///
/// A tile is [`TILE`] rows, line by line: line `4 b + r` holds block `b` of row `r`.
pub(crate) trait Kernels: Copy + Send + Sync + 'static {
    /// `sum_i trit[r][i] * x[t][i]` over whole rows, exact.
    fn ternary_rows_i8<const T: usize>(self, tile: &[CodeLine], x: [ByteToken<'_>; T]) -> [[i32; TILE]; T];

    /// `sum_u scale[u][r] * factor[t][u] * sum_{i in u} trit[r][i] * x[t][i]` over units of `UNIT` (32, 64, 128 or 256)
    /// columns; `FACTORS` says whether the tokens' factors are used at all.
    fn ternary_units_i8<const T: usize, const UNIT: usize, const FACTORS: bool>(
        self,
        tile: &[CodeLine],
        scales: &[[f32; TILE]],
        x: [ByteToken<'_>; T],
    ) -> [[f32; TILE]; T];

    /// [`Kernels::ternary_rows_i8`] with f32 activations.
    fn ternary_rows_f32<const T: usize>(self, tile: &[CodeLine], x: [&[FloatLine]; T]) -> [[f32; TILE]; T];

    /// [`Kernels::ternary_units_i8`] with f32 activations.
    fn ternary_units_f32<const T: usize, const UNIT: usize>(
        self,
        tile: &[CodeLine],
        scales: &[[f32; TILE]],
        x: [&[FloatLine]; T],
    ) -> [[f32; TILE]; T];

    /// Dot products of `R` rows with `T` tokens, all of one length.
    fn dense<E: Element, const R: usize, const T: usize>(self, w: [&[E]; R], x: [&[f32]; T])
    -> [[f32; R]; T];

    /// `sum_g scale[g] * sum_{i in g} code[i] * x[t][i]` for one row of int8 weights.
    fn int8<const T: usize>(self, codes: &[i8], scales: &[f32], group: usize, x: [&[f32]; T]) -> [f32; T];

    /// `out[j] = rows[j] . x` for contiguous rows of `x.len()` elements.
    fn dense_rows<E: Element>(self, rows: &[E], x: &[f32], out: &mut [f32]);

    /// `out += sum_j weights[j] * rows[j]` for contiguous rows of `out.len()` elements.
    #[allow(dead_code, reason = "attention has its own kernels")]
    fn accumulate_rows<E: Element>(self, weights: &[f32], rows: &[E], out: &mut [f32]);

    /// Writes elements as f32; the slices have one length.
    fn widen<E: Element>(self, from: &[E], to: &mut [f32]);

    /// Reads lines in `S` streams side by side, asking `ahead` lines ahead unless that is zero; the sum of what was read.
    fn read<const S: usize>(self, lines: &[WordLine], ahead: usize) -> u64;

    /// Loops that reach for the int8 peak of the instruction set, at least one.
    fn peaks(self) -> &'static [Peak<Self>];

    /// Runs a loop with this instruction set turned on.
    fn run<L: Loop>(self, task: L) -> L::Output;
}

/// Folds sixteen lanes in the order that every implementation follows.
#[inline(always)]
pub(crate) fn fold(mut lanes: [f32; 16]) -> f32 {
    for width in [8, 4, 2, 1] {
        for l in 0..width {
            lanes[l] += lanes[l + width];
        }
    }
    lanes[0]
}

/// Cuts lines into `S` streams of one length.
#[inline(always)]
fn streams<const S: usize>(lines: &[WordLine]) -> ([&[WordLine]; S], usize) {
    let len = lines.len() / S;
    (std::array::from_fn(|s| &lines[s * len..][..len]), len)
}
