//! The kernels that differ by instruction set, behind one trait; the scalar implementation is the specification.
//!
//! The ternary kernels, which are written over the vectors of [`crate::simd`], give the same bits on every instruction set.
//! The kernels for float and int8 weights fuse multiply and add where the machine can and sum in as many lanes as it has,
//! so they agree only within rounding: each errs at most twice as much as a plain f32 sum (`tests/dense.rs`). Within one
//! instruction set no result depends on the tokens and rows that are computed beside it.

pub(crate) mod element;
mod floats;
pub(crate) mod rows;
pub(crate) mod scalar;

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "x86_64")]
mod product;
#[cfg(target_arch = "x86_64")]
mod shared;

pub(crate) use element::Element;
pub(crate) use floats::FloatLanes;
pub(crate) use rows::Rows;

use crate::probe::{Peak, WordLine};
use crate::simd::Simd;

/// A loop that is compiled once for each instruction set.
///
/// Implementations mark `run` `#[inline(always)]`, so that it lands in a function with the right target features.
pub(crate) trait Loop {
    /// What the loop computes.
    type Output;
    /// Runs it.
    fn run(self) -> Self::Output;
}

/// The kernels of one instruction set: those of dense and int8 weights, and the vectors that ternary ones are written in.
pub(crate) trait Kernels: Simd {
    /// `out[t][r] = w[r] . x[t]` for rows of weights that are not ternary; `x` holds `out.len()` tokens, and each slice of
    /// `out` has `w.count()` places. An output has the same bits whatever rows and tokens are computed beside it.
    fn product<E: Element>(self, w: Rows<'_, E>, x: &[f32], out: &mut [&mut [f32]]);

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
