//! Kernel variants of ternary linears.

use super::kernels::{MmaShape, WmmaShape};

/// Kernel variants of a ternary linear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinearBlueprint {
    /// 4-byte dot products for few tokens, see [`DecodeBlueprint`]; the only kernel for [`TernaryLayout::Base3`](super::TernaryLayout::Base3) and
    /// [`TernaryLayout::Blocks`](super::TernaryLayout::Blocks).
    Decode(DecodeBlueprint),
    /// 4-byte dot products for many tokens: 64 rows times 32 code rows per cube, unpacked into shared memory.
    Tiled,
    /// Matrix instructions; see [`MmaShape`].
    Mma(MmaShape),
    /// Cooperative matrices, for many tokens on devices without other int8 matrix instructions; see [`WmmaShape`].
    Wmma(WmmaShape),
    /// Columns split across cubes; see [`SplitBlueprint`].
    Split(SplitBlueprint),
}

/// Columns split across cubes (split-K), for few tokens and so few rows of weights that most multiprocessors would be idle:
/// each cube stores partial sums in a scratch buffer, and a second kernel adds them up in cube order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SplitBlueprint {
    /// The first kernel.
    pub decode: DecodeBlueprint,
    /// Cubes that split the columns, 2 to [`MAX_SPLIT_CUBES`].
    pub cubes: usize,
}

/// Maximum cubes that split the columns of a matrix.
pub const MAX_SPLIT_CUBES: usize = 16;

/// One tile and `rows` code rows per cube; the units of a cube split the columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DecodeBlueprint {
    /// Code rows per cube: 1, 2, 4, 8 or 16, and at least those of one token.
    pub rows: usize,
    /// Groups of 32 units that split the columns.
    pub splits: usize,
}
