//! The few vector operations that the kernels for float and int8 weights are written in.
//!
//! They are methods of the tokens, so they are safe: the token's existence proves the instructions. An implementation
//! marks each `#[inline(always)]` and not `#[target_feature]`, because a method of a trait cannot have the attribute
//! and be safe; the features come from [`Kernels::run`], which every loop over these operations is entered through.
//! Called from anywhere else they would be right, and slow.

use super::{Element, Kernels};

/// Vectors of f32.
pub(crate) trait FloatLanes: Kernels {
    /// One vector.
    type Lanes: Copy;
    /// Its lanes; they divide [`BLOCK`](super::rows::BLOCK).
    const LANES: usize;
    /// Tokens whose running sums, beside four rows, stay in registers; at most [`MOST_TOKENS`].
    const SIDE_TOKENS: usize;

    /// A vector of one number.
    fn splat_lanes(self, value: f32) -> Self::Lanes;

    /// `from[at..at + LANES]` as f32.
    fn load_lanes<E: Element, const N: usize>(self, from: &[E; N], at: usize) -> Self::Lanes;

    /// Writes `to[at..at + LANES]`.
    fn store_lanes<const N: usize>(self, to: &mut [f32; N], at: usize, lanes: Self::Lanes);

    /// `a * b`
    fn mul_lanes(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;

    /// `a * b + c`, rounded once.
    fn mul_add(self, a: Self::Lanes, b: Self::Lanes, c: Self::Lanes) -> Self::Lanes;

    /// The sum of the lanes of each vector, halves added until one lane is left.
    fn fold_lanes(self, lanes: [Self::Lanes; 4]) -> [f32; 4];

    /// Asks for a line, into the first cache or only into the second; asking for memory that does not exist does nothing.
    fn prefetch_lanes<const FIRST: bool>(self, line: *const u8);
}

/// The largest [`FloatLanes::SIDE_TOKENS`].
pub(crate) const MOST_TOKENS: usize = 6;
