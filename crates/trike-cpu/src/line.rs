//! The shapes of cache lines that the kernels read.

use trike_host::Line;

/// Sixty-four codes or packed bytes of ternary weights; the layouts say what they mean.
pub(crate) type CodeLine = Line<[u8; 64]>;
/// Bytes that the slots of sparse weights point at: activations, and a zero at the end.
pub(crate) type TableLine = Line<[i8; 128]>;
/// Sixteen i32, one per row.
pub(crate) type IntLine = Line<[i32; 16]>;
/// Sixteen f32, one per row.
pub(crate) type FloatLine = Line<[f32; 16]>;

/// Rows of a tile of ternary weights: the 32-bit lanes of the widest vector.
pub(crate) const ROWS: usize = 16;
/// Rows that dense and int8 weights are cut between.
pub(crate) const TILE: usize = 4;
